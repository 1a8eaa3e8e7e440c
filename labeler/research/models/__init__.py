"""The Models page: verdicts on policies, reward models, samples, and lineage."""
