"""Sampling of rollouts: the decoding loop with its cache and draws, and the backends."""
