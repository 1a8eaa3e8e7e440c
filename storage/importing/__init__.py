"""Import of files: rows are read, checked one by one, planned, and stored in one transaction."""
