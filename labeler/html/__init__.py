"""HTML from records and from text that strangers wrote."""
