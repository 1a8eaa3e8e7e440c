"""The report on a reward model: learning curve, forecast and verdict."""
