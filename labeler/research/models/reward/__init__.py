"""The Reward model section: quality, learning curve and verdict."""
