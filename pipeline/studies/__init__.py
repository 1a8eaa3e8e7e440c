"""Experiments on whole runs outside the loop: sweeps, comparisons of methods, and their plots."""
