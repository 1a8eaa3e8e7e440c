"""The command line, one module per subject; the only folder that imports all other packages."""
