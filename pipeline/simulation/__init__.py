"""Simulated annotators, who judge by a hidden preference, to test the whole loop."""
