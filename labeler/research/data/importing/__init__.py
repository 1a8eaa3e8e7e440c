"""The Import section: pairs from a file, and the commands of the other imports."""
