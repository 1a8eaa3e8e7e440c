"""Runs of stages and studies: their states, events, settings and figures, and who is told."""
