"""The Data tab: imports, exports and guidelines."""
