"""Researchers' views of the judgments: lists with facets, and a pair with everything about it."""
