"""A Markdown extension: ``$…$`` and ``$$…$$`` become MathML, which browsers draw without a script."""

from __future__ import annotations

import re
import xml.etree.ElementTree as etree
from typing import Any

from latex2mathml.converter import convert_to_element
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor

_BLOCK = r"\$\$(.+?)\$\$"
_INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<!\s)\$(?![\w$])"


class _Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self.display = display
        self.compiled_re = re.compile(pattern, re.DOTALL)

    def handleMatch(  # type: ignore[override]
        self, m: re.Match[str], data: str
    ) -> tuple[etree.Element, int, int]:
        del data
        # Markdown has already replaced backslash escapes such as `\|` in the cells of tables.
        return convert_to_element(m[1].strip(), display=self.display), m.start(), m.end()


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        # After code spans (190), before backslash escapes (180) and emphasis.
        md.inlinePatterns.register(_Formula(_BLOCK, md, "block"), "formula-block", 186)
        md.inlinePatterns.register(_Formula(_INLINE, md, "inline"), "formula-inline", 185)


def makeExtension(**options: Any) -> Formulas:
    return Formulas(**options)
