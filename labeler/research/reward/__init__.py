"""The Reward model tab: quality, learning curve and verdict."""
