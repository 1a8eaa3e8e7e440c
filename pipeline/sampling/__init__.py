"""Pairs for the annotators: made from samples, chosen at random or by the reward model."""
