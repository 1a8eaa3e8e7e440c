"""The "Judgments" section of the Data page."""
