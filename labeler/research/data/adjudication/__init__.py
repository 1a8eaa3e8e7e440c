"""The "Adjudication" section of the Data page."""
