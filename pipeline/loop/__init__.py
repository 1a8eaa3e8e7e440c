"""The loop in the web process: phases, stage inputs, settings and remedies."""
