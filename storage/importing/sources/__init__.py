"""Files of other tools, read as rows of `import --judgments`, `--pairs` and `--gold`."""
