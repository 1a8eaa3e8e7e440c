"""The place of a marked passage in the response and in its formatted text."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from labeler.annotate import page
from labeler.annotate.marks import Searched, located
from labeler.html.markdown import render_pair
from labeler.html.text import text_of
from storage.records import MAX_MARKS, MAX_QUOTE_LENGTH, MAX_QUOTES_LENGTH

TEXT = (
    "Because **air** scatters blue, air & dust.\n\n1. First *item*\n2. Second one\n\n"
    "```python\nprint('x')\n```\n\n[site](http://a.b/c) ends: $x^2$ \U0001f331 now."
)
# By hand: markup is gone, numbers of lists too, an address follows its link, a formula is LaTeX.
RENDERED = (
    "Because air scatters blue, air & dust.\n\nFirst item\nSecond one\n\nprint('x')\n\n"
    "site (http://a.b/c) ends: x^2 \U0001f331 now.\n"
)
HTML = render_pair(TEXT, "other")[0]


def mark(quote: str, *, text: str = TEXT, nth: int = 0, source: bool = False):
    """The mark for the n-th place of a quote in the formatted text, or in the text itself."""
    html = render_pair(text, "other")[0]
    own = text if source else text_of(html)
    places = [i for i in range(len(own)) if own.startswith(quote, i)]
    kind = "" if source else "rendered_"
    given = dict.fromkeys(("start", "end", "rendered_start", "rendered_end")) | {
        f"{kind}start": places[nth],
        f"{kind}end": places[nth] + len(quote),
    }
    (found,) = located([{"reason": "bad", "quote": quote, **given}], text, html)
    return found


def test_the_formatted_text_has_no_markup():
    assert text_of(HTML) == RENDERED


@pytest.mark.parametrize(
    ("quote", "source"),
    [
        ("scatters blue", "scatters blue"),
        ("air scatters", "air** scatters"),
        ("Because air", "Because **air"),
        ("dust.", "dust."),
        ("& dust", "& dust"),
        ("item\nSecond", "item*\n2. Second"),
        (
            "First item\nSecond one\n\nprint('x')",
            "First *item*\n2. Second one\n\n```python\nprint('x')",
        ),
        ("site (http", "site](http"),
        ("ends: x^2 \U0001f331", "ends: $x^2$ \U0001f331"),
        ("\U0001f331 now", "\U0001f331 now"),
    ],
)
def test_a_passage_of_the_formatted_text_is_found_in_the_source(quote, source):
    found = mark(quote)
    assert TEXT[found.start : found.end] == source
    assert RENDERED[found.rendered_start : found.rendered_end] == quote
    again = mark(source, source=True)
    assert (again.start, again.end) == (found.start, found.end)


def test_which_of_equal_passages_is_meant():
    first, second = mark("air", nth=0), mark("air", nth=1)
    assert (first.start, second.start) == (TEXT.index("air"), TEXT.rindex("air"))
    assert (second.prefix, second.suffix) == (
        "Because air scatters blue, ",
        " & dust.\n\nFirst item\nSecond one\n",
    )
    assert mark("python", text="```python\npython\n```").start == len("```python\n")
    # The title of a link is not shown, so the text has one "air" more: which one is not certain.
    assert mark("air", text='[a](http://b "air") air').start is None
    # Footnotes are moved to the end.
    notes = "One[^1] two\n\n[^1]: more\n\nlast more"
    assert mark("more", text=notes).start is None
    assert mark("last", text=notes).start == notes.index("last")


def test_signs_alone_are_found_literally_or_not_at_all():
    assert mark("('").start == TEXT.index("('")
    assert mark(".", nth=0).start is None


def test_a_response_that_is_shown_as_plain_text_has_the_same_places():
    text = "> " * 40 + "deep **x**"
    assert "plain" in render_pair(text, "other")[0]
    found = mark("**x**", text=text)
    assert (found.start, found.end) == (found.rendered_start, found.rendered_end)


def test_passages_of_real_markdown_are_found_at_their_place():
    """Random passages of this documentation: tables, lists, links, code, bold text."""
    chance = random.Random(0)
    pages = (Path(__file__).parents[3] / "docs").glob("*.md")
    sections = [part for page in sorted(pages) for part in page.read_text().split("\n## ")]
    found: list[bool] = []
    literal = 0
    for text in (part for part in sections if 400 < len(part) < 8_000):
        html = render_pair(text, "other")[0]
        rendered = text_of(html)
        for _ in range(5):
            length = chance.randint(5, 400)
            start = chance.randrange(max(1, len(rendered) - length))
            quote = rendered[start : start + length]
            given = {"reason": "x", "quote": quote, "start": None, "end": None}
            place = {"rendered_start": start, "rendered_end": start + len(quote)}
            if quote != quote.strip() or not quote:
                continue
            (mark,) = located([given | place], text, html)
            found.append(mark.start is not None)
            if mark.start is None or mark.end is None:
                continue
            literal += text[mark.start : mark.end] == quote
            # The letters around it are those of the formatted text, at least on one side: hidden
            # addresses of links are in the other.
            before = Searched(text[: mark.start]).bare.endswith(Searched(mark.prefix).bare[-12:])
            behind = Searched(text[mark.end :]).bare.startswith(Searched(mark.suffix).bare[:12])
            assert before or behind, (mark, text[mark.start : mark.end])
    assert len(found) > 400
    assert sum(found) / len(found) > 0.98
    assert literal / len(found) < 0.5  # a literal search alone would not do


def test_a_long_response_takes_little_time():
    text = ("word **word** " * 10 + "\n\n") * 1_300
    html = render_pair(text, "other")[0]
    rendered = text_of(html)
    given = [
        {"reason": str(n), "quote": rendered[n * 5 : n * 5 + 900], "start": None, "end": None,
         "rendered_start": n * 5, "rendered_end": n * 5 + 900}
        for n in range(20)
    ]  # fmt: skip
    start = time.perf_counter()
    assert len(located(given, text, html)) == 20
    assert time.perf_counter() - start < 10


def test_the_page_has_the_limits_of_the_server():
    script = (Path(page.__file__).parent / "scripts" / "marks.js").read_text(encoding="utf-8")
    limits = {name: int(value) for name, value in re.findall(r"const (MAX_\w+) = (\d+);", script)}
    assert limits == {
        "MAX_MARKS": MAX_MARKS,
        "MAX_QUOTE": MAX_QUOTE_LENGTH,
        "MAX_QUOTES": MAX_QUOTES_LENGTH,
    }
