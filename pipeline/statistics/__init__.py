"""Statistics of preferences: win rates with intervals, and an anytime-valid sequential test."""
