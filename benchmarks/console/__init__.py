"""The researcher's console on a large workspace; see `benchmarks.console.__main__`."""
