"""The "Prompts" section of the Data page."""
