"""The Samples section: the responses of each model."""
