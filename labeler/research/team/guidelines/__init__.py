"""The Guidelines section: what annotators should prefer."""
