"""Export of judgments as a dataset: a file, a directory or a hub repository, with its card."""
