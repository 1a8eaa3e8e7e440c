"""The Export section: the current judgments as a dataset."""
