"""The Training tab: a run's metrics, events and log."""
