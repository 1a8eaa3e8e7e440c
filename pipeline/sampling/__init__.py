"""Pairs for the annotators, chosen from samples at random or by the reward model."""
