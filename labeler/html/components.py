"""Numbers, dates and records as text and HTML, for all pages. Pure functions.

Names, comments and samples are untrusted. Every piece of HTML is a ``Markup`` built by
``Markup.format`` and ``join``, which escape everything else. `render` turns the finished piece into
a plain string for a page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from markupsafe import Markup

from storage import wording
from storage.records import Message

DASH = "–"
Tone = Literal["neutral", "info", "good", "warn", "bad"]
Align = Literal["left", "right"]

# Lone surrogates (not valid in UTF-8), control characters except tabs and line ends, and marks that
# change the direction of all following text.
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def render(markup: Markup) -> str:
    """Finished HTML as a plain string; characters that break pages become U+FFFD."""
    return _UNSAFE.sub("\ufffd", str(markup))


def lines(pieces: Iterable[Any]) -> Markup:
    """Pieces one after another; plain strings are escaped."""
    return Markup("\n").join(pieces)


def _div(css: str, pieces: Iterable[Any]) -> Markup:
    """The pieces in a ``div``, without empty ones; nothing if all are empty."""
    shown = [piece for piece in pieces if piece]
    return Markup('<div class="{}">{}</div>').format(css, lines(shown)) if shown else Markup("")


def card(*pieces: Any, css: str = "") -> Markup:
    """Pieces in a box."""
    return _div(f"ks-card {css}".strip(), pieces)


def stack(*pieces: Any, css: str = "") -> Markup:
    """Pieces below each other."""
    return _div(f"ks-stack {css}".strip(), pieces)


def side_by_side(*pieces: Any) -> Markup:
    """Pieces in two columns, if there is room."""
    return _div("ks-beside", pieces)


# ------------------------------------------------------------------ numbers and times


def number(value: float | int | None, digits: int = 3) -> str:
    """Integers in full, other numbers with `digits` significant digits."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, int):
        return _minus(f"{value:,}")
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 10 ** (digits + 3) or size < 1e-3:
        return scientific(value, digits - 1)
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return _minus(f"{value:,.{decimals}f}")


def scientific(value: float, decimals: int) -> str:
    """Scientific notation without leading zeros in the exponent: ``3.00e-6``."""
    mantissa, exponent = f"{value:.{decimals}e}".split("e")
    return _minus(f"{mantissa}e{int(exponent)}")


def _minus(text: str) -> str:
    return "−" + text[1:] if text.startswith("-") else text


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with fixed decimals, so that figures in a column line up."""
    if value is None or not math.isfinite(value):
        return DASH
    return wording.decimal(value, digits)


def signed(value: float | None, digits: int = 2) -> str:
    """Like `decimal`, with a sign before positive values too."""
    if value is None or not math.isfinite(value):
        return DASH
    return wording.signed(value, digits)


def percent(value: float | None, digits: int = 0) -> str:
    """A share as a percentage."""
    if value is None or not math.isfinite(value):
        return DASH
    return _minus(f"{value:z.{digits}%}")


def interval(low: float | None, high: float | None) -> str:
    """An interval of a share, ``66–81%``; empty if unknown."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{100 * low:.0f}–{100 * high:.0f}%"


_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def duration(seconds: float | None) -> str:
    """A duration in its two largest units: ``6 min 30 s``, ``11 h``."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, large, smaller, small in _UNITS:
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def ago(then: datetime, now: datetime) -> str:
    """The time since `then`, rounded down."""
    seconds = (now - then).total_seconds()
    for limit, unit, name in ((3600, 60, "min"), (86400, 3600, "h"), (86400 * 30, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name} ago" if seconds >= 60 else "just now"
    return then.strftime("%Y-%m-%d")


def moment(value: datetime | None) -> Markup:
    """A time in UTC to the minute; hovering shows the second."""
    if value is None:
        return Markup(DASH)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        value.isoformat(), value.strftime("%Y-%m-%d %H:%M:%S"), value.strftime("%b %d, %H:%M")
    )


def sentence(text: str) -> str:
    """Text with an initial capital and a period; a name such as ``ppo.lr`` is not capitalized."""
    text = text.strip()
    first = text.split(" ", 1)[0]
    if first.isalpha():
        text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."


# ------------------------------------------------------------------ pieces of a page


def badge(text: str, tone: Tone = "neutral", *, dot: bool = False) -> Markup:
    """A small colored label; `dot` marks something that is running."""
    mark = Markup('<i class="ks-dot"></i>') if dot else Markup("")
    return Markup('<span class="ks-badge ks-{}">{}{}</span>').format(tone, mark, text)


def info(text: str) -> Markup:
    """An icon that shows an explanation when it is hovered, focused or tapped."""
    if not text:
        return Markup("")
    return Markup(
        '<span class="ks-hint" tabindex="0" role="note" aria-label="{0}" data-tip="{0}">i</span>'
    ).format(text)


def bar(done: float, *, tone: Tone = "info", label: str = "") -> Markup:
    """A progress bar filled to the share `done`."""
    share = 0.0 if not math.isfinite(done) else min(max(done, 0.0), 1.0)
    return Markup(
        '<div class="ks-bar ks-{}" role="progressbar" aria-label="{}" aria-valuemin="0" '
        'aria-valuemax="100" aria-valuenow="{}"><div style="width:{}%"></div></div>'
    ).format(tone, label or "progress", round(100 * share), round(100 * share, 1))


def tile(
    label: str, value: Any, detail: Any = "", *, help: str = "", extra: Markup | None = None
) -> Markup:
    """One figure: label, value and a line of detail."""
    return Markup(
        '<div class="ks-tile"><div class="ks-label">{}{}</div><div class="ks-value">{}</div>'
        '{}<div class="ks-detail">{}</div></div>'
    ).format(label, info(help), value, extra or "", detail)


def tiles(pieces: Iterable[Markup]) -> Markup:
    return Markup('<div class="ks-tiles">{}</div>').format(lines(pieces))


def note(tone: Tone, title: str, body: Any = "") -> Markup:
    """A highlighted paragraph."""
    return Markup('<div class="ks-note ks-{}" role="status"><b>{}</b>{}</div>').format(
        tone, title, Markup("<div>{}</div>").format(body) if body else ""
    )


def empty(title: str, body: Any = "") -> Markup:
    """A placeholder that says what will appear here and when."""
    return Markup('<div class="ks-empty"><b>{}</b><p>{}</p></div>').format(title, body)


def heading(title: str, detail: Any = "") -> Markup:
    return Markup('<div class="ks-heading"><h2>{}</h2><span>{}</span></div>').format(title, detail)


def detail(text: Any) -> Markup:
    """A line in small print."""
    return Markup('<span class="ks-detail">{}</span>').format(text)


def definitions(rows: Iterable[tuple[str, Any]]) -> Markup:
    """Terms and descriptions in two columns."""
    pieces = [Markup("<dt>{}</dt><dd>{}</dd>").format(name, value) for name, value in rows]
    return Markup('<dl class="ks-definitions">{}</dl>').format(lines(pieces))


@dataclass(frozen=True)
class Column:
    """One column of a table; `help` explains its heading. A column of buttons has no title."""

    title: str
    align: Align = "left"
    help: str = ""


def with_interval(value: float | None, low: float | None, high: float | None) -> Markup:
    """A share with its 95% interval in a muted tone."""
    return Markup('<span>{} <span class="ks-muted">{}</span></span>').format(
        percent(value), interval(low, high)
    )


def figure(value: str | Markup, *details: str) -> Markup:
    """A figure with details in small print below."""
    small = Markup("").join(Markup("<small>{}</small>").format(each) for each in details if each)
    return Markup('<span class="ks-figure">{}{}</span>').format(value, small)


_UNTITLED = Markup('<span class="ks-hidden">Actions</span>')
"""The heading of a column of buttons, which only screen readers read."""


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, caption: str = "") -> Markup:
    """A table whose cells are text, which is escaped, or Markup.

    Each cell repeats its column's title in ``data-label``: phones show rows as cards, with the
    explanations of the columns below.
    """
    head = [
        Markup('<th scope="col" class="ks-{}">{}{}</th>').format(
            c.align, c.title or _UNTITLED, info(c.help)
        )
        for c in columns
    ]
    body = []
    for row in rows:
        cells = [
            Markup('<td class="ks-{}" data-label="{}">{}</td>').format(c.align, c.title, cell)
            for c, cell in zip(columns, row, strict=True)
        ]
        body.append(Markup("<tr>{}</tr>").format(Markup("").join(cells)))
    return Markup(
        '<div class="ks-scroll"><table class="ks-table"><caption>{}</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table>{}</div>"
    ).format(caption, Markup("").join(head), lines(body), _terms(columns))


def _terms(columns: Sequence[Column]) -> Markup:
    """The explanations of the columns, for phones, which show no column headings."""
    terms = [Markup("<dt>{}</dt><dd>{}</dd>").format(c.title, c.help) for c in columns if c.help]
    if not terms:
        return Markup("")
    return Markup(
        '<details class="ks-terms"><summary>What the columns mean</summary><dl>{}</dl></details>'
    ).format(Markup("").join(terms))


def interval_bar(name: str, low: float, middle: float, high: float) -> Markup:
    """A line from 0 to 100% with an estimate and its 95% interval, all shares."""
    low, middle, high = (round(100 * share, 1) for share in (low, middle, high))
    return Markup(
        '<div class="ks-range" role="img" aria-label="{}: {}%, 95% interval {} to {}%">'
        '<i style="left:{}%;width:{}%"></i><b style="left:{}%"></b></div>'
    ).format(name, middle, low, high, low, round(high - low, 1), middle)


def button(label: str, action: str, target: str, *, tone: Tone = "neutral") -> Markup:
    """A button in a table; the page's script sends (`action`, `target`) to the server."""
    return Markup(
        '<button type="button" class="ks-button ks-{}" data-action="{}" data-target="{}">{}</button>'
    ).format(tone, action, target, label)


def prose(text: str) -> Markup:
    """A text with its author's line breaks, escaped."""
    return Markup('<div class="ks-prose" dir="auto">{}</div>').format(text)


def conversation(messages: Sequence[Message]) -> Markup:
    """A prompt: a single message without its role, otherwise every message with its role."""
    if len(messages) == 1:
        return prose(messages[0].content)
    turns = [
        Markup('<div class="ks-turn"><span class="ks-role">{}</span>{}</div>').format(
            m.role, prose(m.content)
        )
        for m in messages
    ]
    return lines(turns)


def preformatted(text: str, *, empty_text: str = "Nothing yet.") -> Markup:
    return Markup('<pre class="ks-pre">{}</pre>').format(text or empty_text)
