"""The playground: one prompt to several policies, side by side."""
