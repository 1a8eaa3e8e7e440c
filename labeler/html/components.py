"""Records and numbers → text and HTML: pure functions that both kinds of page share.

Names, comments and samples are hostile.  Every piece of HTML is a ``Markup`` put together with
``Markup.format`` and ``join``, which escape all that is not ``Markup`` already; `html` turns the
finished piece into the plain string a page takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from markupsafe import Markup

from storage.records import Message

DASH = "–"
Tone = Literal["neutral", "info", "good", "warn", "bad"]
Align = Literal["left", "right"]

# What may not travel: lone surrogates (no UTF-8 for them), control characters but tab and
# line ends, and the marks that turn the direction of everything after them.
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def html(markup: Markup) -> str:
    """The finished HTML as a plain string; characters that break pages become U+FFFD."""
    return _UNSAFE.sub("\ufffd", str(markup))


def lines(pieces: Iterable[Any]) -> Markup:
    """Pieces one after the other; plain strings are escaped."""
    return Markup("\n").join(pieces)


# ------------------------------------------------------------------ numbers and times


def number(value: float | int | None, digits: int = 3) -> str:
    """A figure for people: whole numbers in full, others to `digits` significant digits."""
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
    """``3.00e-6``: the exponent as short as it goes."""
    mantissa, exponent = f"{value:.{decimals}e}".split("e")
    return _minus(f"{mantissa}e{int(exponent)}")


def _minus(text: str) -> str:
    return "−" + text[1:] if text.startswith("-") else text


def signed(value: float | None, digits: int = 3) -> str:
    """As `number`, with the sign always shown."""
    text = number(value, digits)
    return text if value is None or text == DASH or value <= 0 else f"+{text}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share as a percentage."""
    if value is None or not math.isfinite(value):
        return DASH
    return _minus(f"{value:z.{digits}%}")


def interval(low: float | None, high: float | None) -> str:
    """A 95% interval of a share, ``66–81%``; empty when it is not known."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{100 * low:.0f}–{100 * high:.0f}%"


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(then: datetime, now: datetime) -> str:
    """How long since, roughly."""
    seconds = (now - then).total_seconds()
    for limit, unit, name in ((3600, 60, "min"), (86400, 3600, "h"), (86400 * 30, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name} ago" if seconds >= 60 else "just now"
    return then.strftime("%Y-%m-%d")


def moment(value: datetime | None) -> Markup:
    """A point in time, to the minute in UTC; the full figure on hover."""
    if value is None:
        return Markup(DASH)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        value.isoformat(), value.strftime("%Y-%m-%d %H:%M:%S"), value.strftime("%b %d, %H:%M")
    )


def plural(count: int, noun: str, nouns: str = "") -> str:
    """``1 label``, ``2 labels``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


# ------------------------------------------------------------------ pieces of a page


def badge(text: str, tone: Tone = "neutral", *, dot: bool = False) -> Markup:
    """A small coloured label; `dot` marks something that is going on."""
    mark = Markup('<i class="ks-dot"></i>') if dot else Markup("")
    return Markup('<span class="ks-badge ks-{}">{}{}</span>').format(tone, mark, text)


def info(text: str) -> Markup:
    """A mark that explains itself when pointed at, focused or tapped."""
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
    """One figure at a glance: label, value, a line of detail."""
    return Markup(
        '<div class="ks-tile"><div class="ks-label">{}{}</div><div class="ks-value">{}</div>'
        '{}<div class="ks-detail">{}</div></div>'
    ).format(label, info(help), value, extra or "", detail)


def tiles(pieces: Iterable[Markup]) -> Markup:
    return Markup('<div class="ks-tiles">{}</div>').format(lines(pieces))


def note(tone: Tone, title: str, body: Any = "") -> Markup:
    """A paragraph that wants to be read."""
    return Markup('<div class="ks-note ks-{}" role="status"><b>{}</b>{}</div>').format(
        tone, title, Markup("<div>{}</div>").format(body) if body else ""
    )


def empty(title: str, body: Any = "") -> Markup:
    """What stands where there is nothing to show yet, and how that changes."""
    return Markup('<div class="ks-empty"><b>{}</b><p>{}</p></div>').format(title, body)


def heading(title: str, detail: Any = "") -> Markup:
    return Markup('<div class="ks-heading"><h2>{}</h2><span>{}</span></div>').format(title, detail)


def definitions(rows: Iterable[tuple[str, Any]]) -> Markup:
    """Names and what they stand for, in two columns."""
    pieces = [Markup("<dt>{}</dt><dd>{}</dd>").format(name, value) for name, value in rows]
    return Markup('<dl class="ks-definitions">{}</dl>').format(lines(pieces))


@dataclass(frozen=True)
class Column:
    """One column of a table; `help` explains its heading."""

    title: str
    align: Align = "left"
    help: str = ""


def figure(value: str | Markup, detail: str) -> Markup:
    """A figure with what it is known by, in small print below."""
    small = Markup("<small>{}</small>").format(detail) if detail else ""
    return Markup('<span class="ks-figure">{}{}</span>').format(value, small)


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, caption: str = "") -> Markup:
    """A table whose cells may be text (escaped) or Markup.

    Each cell repeats its column's title in ``data-label``: on a phone the rows stand as cards, and
    what the heads would explain is below them.
    """
    head = [
        Markup('<th scope="col" class="ks-{}">{}{}</th>').format(c.align, c.title, info(c.help))
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
    """What the columns mean, for phones, which show no heads to point at."""
    terms = [Markup("<dt>{}</dt><dd>{}</dd>").format(c.title, c.help) for c in columns if c.help]
    if not terms:
        return Markup("")
    return Markup(
        '<details class="ks-terms"><summary>What the figures mean</summary><dl>{}</dl></details>'
    ).format(Markup("").join(terms))


def button(label: str, action: str, target: str, *, tone: Tone = "neutral") -> Markup:
    """A button inside a table; the page's script sends (`action`, `target`) to the server."""
    return Markup(
        '<button type="button" class="ks-button ks-{}" data-action="{}" data-target="{}">{}</button>'
    ).format(tone, action, target, label)


def prose(text: str) -> Markup:
    """A text as its author broke it into lines; nothing in it is markup."""
    return Markup('<div class="ks-prose" dir="auto">{}</div>').format(text)


def conversation(messages: Sequence[Message]) -> Markup:
    """A prompt: the last user turn alone when that is all there is, else every turn by role."""
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


def attributes(values: Mapping[str, Any]) -> Markup:
    """``a="1" b="2"``, escaped."""
    return Markup(" ").join(Markup('{}="{}"').format(k, v) for k, v in values.items())
