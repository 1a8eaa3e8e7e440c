"""Reading and writing records, one module for each kind."""
