"""Labeling: the queue of pairs, leases, judgments, and their caches."""
