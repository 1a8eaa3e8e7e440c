"""The Verdicts section: gate verdicts, leaderboards and rulings."""
