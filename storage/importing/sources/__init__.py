"""Files of other tools, read as rows of `import --judgments` and `import --gold`."""
