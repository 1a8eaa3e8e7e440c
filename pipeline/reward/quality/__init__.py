"""How good a reward model is: measured on held-out judgments, with its scale and its ceiling."""
