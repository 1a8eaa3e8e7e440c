"""The Loop tab: where the iteration stands, and what to do next."""
