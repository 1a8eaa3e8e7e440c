"""Is the reward model good enough?  Learning curve, forecast and verdict, as people read them."""
