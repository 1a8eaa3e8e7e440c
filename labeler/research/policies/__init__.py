"""The Policies tab: gate verdicts, leaderboard and rulings."""
