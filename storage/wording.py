"""Numbers and nouns in sentences.  Pure functions, so that `pipeline` may import them too."""

from __future__ import annotations


def plural(count: int, noun: str, nouns: str = "") -> str:
    """``1 label``, ``2 labels``; `nouns` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def decimal(value: float, digits: int) -> str:
    """A number with fixed decimals and a true minus; what rounds to zero has no sign."""
    return f"{value:z,.{digits}f}".replace("-", "−")


def signed(value: float, digits: int) -> str:
    """Like `decimal`, with a sign before positive values too."""
    plus = "+" if round(value, digits) > 0 else ""
    return plus + decimal(value, digits)


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign: ``+1.2`` for .012."""
    return signed(100 * share, 1)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis: at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
