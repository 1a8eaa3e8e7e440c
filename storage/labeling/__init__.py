"""The annotators' side: which pair comes next, leases, judgments, and what is cached for speed."""
