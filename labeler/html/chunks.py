"""A long Markdown text in pieces that can each be rendered in bounded time.

The parser's time grows with the square of what it is given in the worst case, so no more than
`MAX_PIECE_LENGTH` characters go to it at once.  A longer text is cut where a top-level block ends, never
inside fenced code: that is as cheap as it is long, and has no limit of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PIECE_LENGTH = 20_000
"""Characters that are parsed at once, fenced code apart."""
MAX_WORK = 4 * MAX_PIECE_LENGTH**2
"""The sum of the squared lengths of a text's pieces: what bounds the time of the whole.  A ``[``
counts as many characters as make `MAX_PIECE_LENGTH` of `MAX_BRACKETS`."""
MAX_TEXT_LENGTH = 100_000
"""Characters of a text that is rendered at all."""
MAX_CELLS = 16_000
"""Lines times the ``|`` of the widest, summed over blocks: a short row of a table is filled up to
the width of its head."""
MAX_BRACKETS = 1_000
"""``[`` that are parsed at once: the search for the ends of links is quadratic in them."""
MAX_FORMULAS = 500
"""Formulas of a text, by the marks that may begin one; each becomes thirty times as long as it was."""

_ENOUGH = 4_000
"""Characters from which a piece may end at the next border that cuts no list or quote."""
_PLENTY = 8_000
"""Characters from which it ends at any border."""
_FENCE = re.compile(r"((?:[ \t>]|[-+*] |\d+[.)] )*)(`{3,}(?=[^`]*$)|~{3,})")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_BLANK = re.compile(r"\n[ \t]*\n")
_GOES_ON = re.compile(r"[-+*>]|\d+[.)]")


@dataclass(frozen=True)
class _Block:
    """Lines that stay together; `code` where they are one fenced block."""

    text: str
    code: bool = False

    @property
    def brackets(self) -> int:
        return 0 if self.code else self.text.count("[")

    @property
    def weight(self) -> int:
        """The characters that it counts as."""
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
    """The pieces of a text, in order; None where one would take too long to render.

    Put together they are the text.  A text within the limits is one piece.
    """
    if len(text) > MAX_TEXT_LENGTH:
        return None
    if _Block(text).fits and _cells(text) <= MAX_CELLS and _formulas(text) <= MAX_FORMULAS:
        return [text]
    # Only from here on does code count less: it is parsed alone, where it cannot be anything else.
    blocks = [piece for block in _blocks(text) for piece in _shortened(block)]
    if sum(b.cells for b in blocks) > MAX_CELLS or not all(b.fits for b in blocks):
        return None
    if sum(b.formulas for b in blocks) > MAX_FORMULAS:
        return None
    pieces = list(_packed(blocks))
    work = sum(piece.weight**2 for piece in pieces)
    return [piece.text for piece in pieces] if work <= MAX_WORK else None


def _cells(text: str) -> int:
    """How many cells the tables in a text can have at most; a table ends at a blank line."""
    if text.count("|") < 2:
        return 0
    tables = [table.split("\n") for table in _BLANK.split(text)]
    return sum(max(line.count("|") for line in lines) * len(lines) for lines in tables)


def _formulas(text: str) -> int:
    """How many formulas a text can have at most: ``$…$``, ``\\(…\\)`` or ``\\[…\\]``."""
    return text.count("$") // 2 + text.count("\\(") + text.count("\\[")


def _blocks(text: str) -> Iterator[_Block]:
    """Cut before each line at the margin that follows a blank line, and around code at the margin.

    Code in a list or a quote is part of that; while it is open nothing is cut.
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
    """Whether the parser may take this line for the end of the code; at the margin, whether it does."""
    if margin and line.startswith(("    ", "\t")):
        return False
    mark = line.strip(" \t\r\n" if margin else " \t>\r\n")
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _shortened(block: _Block) -> Iterator[_Block]:
    """A block that is too long, cut at its own lines where they are neither rows nor quotes."""
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
    """Blocks put together into pieces that are neither many nor long."""
    pending: list[str] = []
    size = brackets = 0
    for block in blocks:
        goes_on = _GOES_ON.match(block.text) is not None
        full = size + len(block.text) > MAX_PIECE_LENGTH or brackets + block.brackets > MAX_BRACKETS
        if pending and (block.code or full or size >= (_PLENTY if goes_on else _ENOUGH)):
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
