"""The researcher's pages: one folder per tab, each with a `tab` (Gradio) and a `view` (HTML)."""
