"""Untrusted LaTeX → MathML that is safe in a page.

The converter's output is not safe: ``\\text{<img onerror=…>}`` becomes live markup, ``\\href`` and
``\\style`` become attributes, ``\\hspace{-99em}`` moves text over its neighbors, and ``\\def``
recurses.  So this module rewrites its element tree with an allow-list, and formulas that are too
long, too deep or not understood are shown as source.
"""

from __future__ import annotations

import html
import re
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element

MAX_FORMULA_LENGTH = 1_000
MAX_DEPTH = 30

_ELEMENTS = """
    math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover
    mmultiscripts mprescripts mtable mtr mtd mstyle mpadded mphantom
"""
# No href, style, class or id; no colors, heights or offsets; widths only for small spaces.
_ATTRIBUTES = """
    display displaystyle scriptlevel mathvariant stretchy fence separator form accent accentunder
    linethickness columnalign rowalign movablelimits largeop symmetric
"""
ALLOWED_ELEMENTS = frozenset(_ELEMENTS.split())
ALLOWED_ATTRIBUTES = frozenset(_ATTRIBUTES.split())
_TABLES = """
    align align* alignat alignat* array cases equation equation* gather gather* matrix bmatrix
    Bmatrix pmatrix smallmatrix split vmatrix Vmatrix
"""
_ENVIRONMENTS = frozenset(_TABLES.split())
"""The converter reads the rows of all others as one line."""
_ENVIRONMENT = re.compile(r"\\begin\s*\{([^}]*)\}")
_UNDRAWN = frozenset(["linebreak", "columnlines", "rowlines", "frame", "mathbackground"])
_MACROS = ("\\def", "\\newcommand", "\\renewcommand", "\\let", "\\providecommand", "\\newenv")


def mathml(latex: str, *, block: bool) -> str | None:
    """`latex` as a left-to-right ``<math>`` element; None if it cannot be typeset."""
    if (
        len(latex) > MAX_FORMULA_LENGTH
        or latex.count("{") > 200
        or any(m in latex for m in _MACROS)
        or not _ENVIRONMENTS.issuperset(_ENVIRONMENT.findall(latex))
    ):
        return None
    try:
        tree = convert_to_element(latex, display="block" if block else "inline")
        return _serialize(tree, depth=0)
    # The converter raises IndexError, KeyError and bare Exceptions for LaTeX that it cannot parse.
    except Exception:
        return None


def _serialize(element: Element, *, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise ValueError("formula nested too deeply")
    name = element.tag.rsplit("}", 1)[-1]
    if name not in ALLOWED_ELEMENTS:
        raise ValueError(f"element {name} is not allowed in a formula")
    if _is_misread(element, name):
        raise ValueError("the converter did not understand a part of the formula")
    attributes = "".join(
        f' {key}="{_escape(value)}"'
        for key, value in element.attrib.items()
        if value is not None and (key in ALLOWED_ATTRIBUTES or _is_space(name, key, value))
    )
    if depth == 0:
        attributes += ' dir="ltr"'  # also within Arabic
    inside = _escape(element.text) + "".join(
        _serialize(child, depth=depth + 1) + _escape(child.tail) for child in element
    )
    return f"<{name}{attributes}>{inside}</{name}>"


def _is_misread(element: Element, name: str) -> bool:
    """Whether this is an unknown command, or a line or border that is not drawn."""
    text = html.unescape(element.text or "").strip()
    unknown = name != "mtext" and re.match(r"\\\w", text) is not None
    return unknown or not _UNDRAWN.isdisjoint(element.keys())


def _is_space(element: str, key: str, value: str) -> bool:
    """Whether it is a space like ``\\quad``: a width from 0 to 2 em on ``mspace``."""
    return element == "mspace" and key == "width" and bool(re.fullmatch(r"[012]?(\.\d+)?em", value))


def _escape(text: str | None) -> str:
    """Escape a text of the tree, in which the converter leaves entities (``&#x02192;``)."""
    return html.escape(html.unescape(text or ""))
