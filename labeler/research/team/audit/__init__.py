"""The "Audit log" section: who did what on the research side."""
