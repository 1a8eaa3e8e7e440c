"""The loop as the web process runs it: phases, stage inputs, settings and remedies."""
