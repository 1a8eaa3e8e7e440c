"""The History tab: every iteration, its models and judgments."""
