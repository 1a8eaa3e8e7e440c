"""The Loop tab: the state of the iteration and the next step."""
