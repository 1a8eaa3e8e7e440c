"""The Samples tab: the responses of each model."""
