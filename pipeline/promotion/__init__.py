"""Whether a policy is promoted: gate, leaderboard, over-optimization alarm and statistical power."""
