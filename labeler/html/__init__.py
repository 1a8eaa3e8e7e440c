"""HTML from records and from untrusted text."""
