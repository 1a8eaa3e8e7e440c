"""Splits a long Markdown text into pieces, each of which can be rendered in bounded time.

The parser takes quadratic time in the worst case, so it gets at most `MAX_PIECE_LENGTH` characters
at a time.  A longer text is cut at the end of a top-level block, never inside fenced code, which
takes linear time and has no separate limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PIECE_LENGTH = 20_000
"""Characters that are parsed at once, without fenced code."""
MAX_WORK = 4 * MAX_PIECE_LENGTH**2
"""The sum of the squared lengths of a text's pieces, which bounds the total time.  A ``[`` counts
as `MAX_PIECE_LENGTH` / `MAX_BRACKETS` characters."""
MAX_TEXT_LENGTH = 100_000
"""Characters; a longer text is not rendered."""
MAX_CELLS = 16_000
"""Lines times the ``|`` of the widest line, summed over blocks: the parser pads short rows of a
table to the width of its header."""
MAX_BRACKETS = 1_000
"""``[`` that are parsed at once: the search for the ends of links is quadratic in them."""
MAX_FORMULAS = 500
"""Possible formulas of a text, counted by their delimiters; MathML is thirty times as long."""

_SOFT_LENGTH = 4_000
"""Characters after which a piece ends at the next border that does not cut a list or quote."""
_HARD_LENGTH = 8_000
"""Characters after which a piece ends at any border."""
_FENCE = re.compile(r"((?:[ \t>]|[-+*] |\d+[.)] )*)(`{3,}(?=[^`]*$)|~{3,})")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_BLANK = re.compile(r"\n[ \t]*\n")
_CONTINUES = re.compile(r"[-+*>]|\d+[.)]")


@dataclass(frozen=True)
class _Block:
    """Lines that must not be separated; `code` if they are one fenced block."""

    text: str
    code: bool = False

    @property
    def brackets(self) -> int:
        return 0 if self.code else self.text.count("[")

    @property
    def weight(self) -> int:
        """The number of characters as which it counts for `MAX_WORK`."""
        heavy = self.brackets * (MAX_PIECE_LENGTH // MAX_BRACKETS)
        return 0 if self.code else max(len(self.text), heavy)

    @property
    def cells(self) -> int:
        return 0 if self.code else _cells(self.text)

    @property
    def formulas(self) -> int:
        return 0 if self.code else _formulas(self.text)

    @property
    def fits(self) -> bool:
        """Whether it can be parsed at once."""
        return self.code or (len(self.text) <= MAX_PIECE_LENGTH and self.brackets <= MAX_BRACKETS)


def chunks(text: str) -> list[str] | None:
    """The pieces of a text in order, or None if it would take too long to render.

    Their concatenation is the text.  A text within the limits is one piece.
    """
    if len(text) > MAX_TEXT_LENGTH:
        return None
    if _Block(text).fits and _cells(text) <= MAX_CELLS and _formulas(text) <= MAX_FORMULAS:
        return [text]
    # From here on code counts less: a fenced block is parsed alone, so it can be nothing else.
    blocks = [piece for block in _blocks(text) for piece in _shortened(block)]
    if sum(b.cells for b in blocks) > MAX_CELLS or not all(b.fits for b in blocks):
        return None
    if sum(b.formulas for b in blocks) > MAX_FORMULAS:
        return None
    pieces = list(_packed(blocks))
    work = sum(piece.weight**2 for piece in pieces)
    return [piece.text for piece in pieces] if work <= MAX_WORK else None


def _cells(text: str) -> int:
    """An upper bound of the cells in a text's tables; a table ends at a blank line."""
    if text.count("|") < 2:
        return 0
    tables = [table.split("\n") for table in _BLANK.split(text)]
    return sum(max(line.count("|") for line in lines) * len(lines) for lines in tables)


def _formulas(text: str) -> int:
    """An upper bound of the formulas in a text: ``$…$``, ``\\(…\\)`` or ``\\[…\\]``."""
    return text.count("$") // 2 + text.count("\\(") + text.count("\\[")


def _blocks(text: str) -> Iterator[_Block]:
    """Cut before each unindented line after a blank line, and around unindented code.

    Code in a list or quote belongs to it, and open code is never cut.
    """
    pending: list[str] = []
    fence, margin, quoted, blank = "", False, False, False
    for line in _LINES.findall(text):
        opens = None if fence else _FENCE.match(line)
        starts = not fence and blank and line[:1].strip()
        if pending and (starts or (opens and not opens.group(1))):
            yield _Block("".join(pending))
            pending = []
        pending.append(line)
        blank = not line.strip()
        if opens:
            fence, margin, quoted = opens.group(2), not opens.group(1), ">" in opens.group(1)
        elif fence and (_closes(line, fence, margin) or (quoted and line.lstrip()[:1] != ">")):
            fence = ""
            if margin:
                yield _Block("".join(pending), code=True)
                pending = []
    if pending:
        yield _Block("".join(pending), code=bool(fence) and margin)


def _closes(line: str, fence: str, margin: bool) -> bool:
    """Whether the parser may read this line as the end of the code; exact for unindented code."""
    if margin and line.startswith(("    ", "\t")):
        return False
    mark = line.strip(" \t\r\n" if margin else " \t>\r\n")
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _shortened(block: _Block) -> Iterator[_Block]:
    """A block that is too long, cut between lines that are neither table rows nor quotes."""
    if block.fits:
        yield block
        return
    pending: list[str] = []
    size = brackets = 0
    for line in _LINES.findall(block.text):
        full = size + len(line) > MAX_PIECE_LENGTH // 2 or brackets + line.count("[") > MAX_BRACKETS
        if pending and full and line[:1].strip() and "|" not in line and line[0] != ">":
            yield _Block("".join(pending))
            pending, size, brackets = [], 0, 0
        pending.append(line)
        size += len(line)
        brackets += line.count("[")
    yield _Block("".join(pending))


def _packed(blocks: list[_Block]) -> Iterator[_Block]:
    """Join blocks into pieces of moderate length."""
    pending: list[str] = []
    size = brackets = 0
    for block in blocks:
        continues = _CONTINUES.match(block.text) is not None
        full = size + len(block.text) > MAX_PIECE_LENGTH or brackets + block.brackets > MAX_BRACKETS
        enough = _HARD_LENGTH if continues else _SOFT_LENGTH
        if pending and (block.code or full or size >= enough):
            yield _Block("".join(pending))
            pending, size, brackets = [], 0, 0
        if block.code:
            yield block
            continue
        pending.append(block.text)
        size += len(block.text)
        brackets += block.brackets
    if pending:
        yield _Block("".join(pending))
