"""Rows of files: read in bounded memory, column by column, with notes on what is wrong."""
