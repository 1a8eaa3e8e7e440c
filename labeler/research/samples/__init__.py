"""The Samples tab: what each model answers."""
