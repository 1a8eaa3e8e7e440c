"""The Runs page: the metrics, events and log of a run."""
