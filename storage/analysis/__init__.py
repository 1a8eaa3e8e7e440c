"""Agreement between annotators and the reliability of each, with intervals."""
