"""Reading and writing records, one module a noun."""
