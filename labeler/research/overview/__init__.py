"""The Overview page: the state of the iteration and the next step."""
