"""Every setting, by section.  Nothing here loads torch."""
