"""All settings, by section.  Nothing here imports torch."""
