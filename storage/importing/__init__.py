"""Import of files: rows are read and checked, then planned, and stored in batches."""
