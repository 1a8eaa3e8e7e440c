"""The first view: the section of the address as HTML, shown until Gradio has started."""
