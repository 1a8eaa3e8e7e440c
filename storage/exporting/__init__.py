"""Judgments out: as a dataset in a file, a directory or on the hub, with its card."""
