"""The researcher's pages: one folder a tab, each with a `tab` (Gradio) and a `view` (HTML)."""
