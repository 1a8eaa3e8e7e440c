"""The promotion of policies: gate, leaderboard, over-optimization alarm and statistical power."""
