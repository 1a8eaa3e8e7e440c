"""The Data page: what comes in and goes out, and what annotators marked."""
