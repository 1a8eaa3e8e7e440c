"""Statistics of preferences: win rates with intervals, and tests that may be looked at early."""
