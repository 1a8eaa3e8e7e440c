"""What a page needs to typeset the formulas that `labeler/html/markdown.py` leaves as LaTeX."""

from __future__ import annotations

from pathlib import Path

SCRIPT = (Path(__file__).parent / "formulas.js").read_text(encoding="utf-8")
"""JavaScript: defines `typesetAll` and `typesetEach` in the scope that it is put into."""

HEAD = (
    '<link rel="stylesheet" href="/static/formulas.css">'
    '<script src="/static/temml.min.js"></script>'
    '<script src="/static/temml-mhchem.min.js"></script>'
)
"""HTML for the page's head that `SCRIPT` needs."""
