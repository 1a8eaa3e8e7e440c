"""The Lineage section: every iteration, its models and judgments."""
