"""The "Studies" section: sweeps and comparisons of methods."""
