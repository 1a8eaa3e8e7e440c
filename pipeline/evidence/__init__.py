"""The evidence package: the records behind a workspace's figures, and a check that recomputes them."""
