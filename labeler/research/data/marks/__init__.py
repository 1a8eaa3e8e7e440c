"""The Marked passages section: what annotators marked, and why."""
