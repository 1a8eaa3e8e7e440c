"""Reading and writing records, one module per record type."""
