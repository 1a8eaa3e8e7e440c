"""Formatting and pieces of HTML: figures worked by hand, and text that means harm."""

from __future__ import annotations

import html
import html.parser
import json
from datetime import UTC, datetime, timedelta

import pytest

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.charts import Chart, Limit, Series, group
from storage.records import Message

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HARM = "<script>alert(1)</script><img src=x onerror='alert(2)'>\" onfocus=\"alert(3)"


class Tags(html.parser.HTMLParser):
    """Every element and attribute of a piece of HTML, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0, "0"),
        (1234567, "1,234,567"),
        (0.0, "0"),
        (0.05, "0.0500"),  # three significant digits
        (1234.5, "1,234"),
        (-0.0143, "−0.0143"),
        (3e-6, "3.00e-6"),
        (-2.5e7, "−2.50e7"),
        (-12, "−12"),
    ],
)
def test_number(value, text):
    assert components.number(value) == text


def test_signs_are_shown_and_zero_has_none():
    assert [components.signed(v) for v in (0.5, -0.5, 0.0, None)] == ["+0.50", "−0.50", "0.00", "–"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (4.25, "4.2 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3 * 3600 + 7 * 60, "3 h 7 min"),
        (2 * 86400 + 5 * 3600, "2 d 5 h"),
    ],
)
def test_duration(seconds, text):
    assert components.duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("there is no run yet", "There is no run yet."),
        ("ppo.lr is empty", "ppo.lr is empty."),
        ("reward-1 has no report", "reward-1 has no report."),
        ("Choose a role.", "Choose a role."),
        ("", ""),
    ],
)
def test_sentences_begin_with_a_capital_and_end_with_a_period(text, sentence):
    assert components.sentence(text) == sentence


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (timedelta(seconds=59), "just now"),
        (timedelta(minutes=5, seconds=30), "5 min ago"),
        (timedelta(hours=23, minutes=59), "23 h ago"),
        (timedelta(days=3, hours=5), "3 d ago"),
        (timedelta(days=59), "2026-01-01"),  # 59 days before 1 March
    ],
)
def test_ago(before, text):
    assert components.ago(NOON - before, NOON) == text


def test_a_share_beyond_the_ends_fills_the_bar_and_no_more():
    assert "width:100.0%" in components.bar(7 / 5)
    assert "width:0.0%" in components.bar(-1)
    assert 'aria-valuenow="0"' in components.bar(float("nan"))


@pytest.mark.parametrize(
    "piece",
    [
        lambda text: components.badge(text),
        lambda text: components.info(text),
        lambda text: components.tile(text, text, text, help=text),
        lambda text: components.note("bad", text, text),
        lambda text: components.empty(text, text),
        lambda text: components.heading(text, text),
        lambda text: components.table([components.Column(text, help=text)], [[text]], caption=text),
        lambda text: components.button(text, text, text),
        lambda text: components.prose(text),
        lambda text: components.preformatted(text),
        lambda text: components.definitions([(text, text)]),
        lambda text: components.conversation([Message("system", text), Message("user", text)]),
        lambda text: components.bar(0.5, label=text),
        lambda text: group([Chart(text, [Series(text, [1, 2], [1.0, 2.0])], text)], x_title=text),
        lambda text: group(
            [Chart("t", [Series("s", [1, 2], [1.0, 2.0])], limits=[Limit(1.5, text)])]
        ),
    ],
)
def test_harmful_text_adds_no_element_and_no_attribute(piece):
    harmless, harmful = (
        Tags(components.render(piece("harmless"))),
        Tags(components.render(piece(HARM))),
    )
    assert harmful.tags == harmless.tags
    assert harmful.attributes == harmless.attributes
    shown = "".join(harmful.texts)
    assert HARM in shown or "<script>" not in shown  # shown as text, or only in an attribute


def test_markup_is_kept_and_text_is_escaped_in_the_same_table():
    made = components.table([components.Column("x")], [[Markup("<b>bold</b>")], ["<b>text</b>"]])
    assert "<b>bold</b>" in made
    assert "&lt;b&gt;text&lt;/b&gt;" in made


def test_characters_that_break_pages_become_replacement_characters():
    # a lone surrogate has no UTF-8; U+202E turns the text after it around; NUL ends strings
    assert components.render(Markup("a\ud800b\u202ec\x00d\te\r\nf")) == "a�b�c�d\te\r\nf"
    components.render(Markup("\udfff")).encode()


def test_what_rounds_to_nothing_has_no_sign():
    assert [components.percent(-0.001), components.number(-0.0), components.signed(-0.0)] == [
        "0%",
        "0",
        "0.00",
    ]


def test_charts_of_a_group_share_the_steps_from_the_first_to_the_last():
    early = Chart("a", [Series("a", [1, 2], [1.0, 2.0])])
    late = Chart("b", [Series("b", [5, 40], [1.0, 2.0])])
    drawn = group([early, late])
    assert 'data-low="1"' in drawn
    assert 'data-high="40"' in drawn
    assert drawn.count("<figure") == 2


def test_a_chart_without_a_finite_value_is_left_out():
    assert group([Chart("a", [Series("a", [1], [float("nan")])])]) == ""


def test_the_page_gets_all_points_with_gaps_and_limits():
    series = Series("a", [1, 2, 3], [0.1234567, float("inf"), 0.3])
    drawn = group([Chart("a", [series], limits=[Limit(0.5, "warn")], y_title="nats")])
    data = html.unescape(drawn.split('data-chart="')[1].split('"')[0])
    assert json.loads(data) == {
        "series": [{"name": "a", "x": [1, 2, 3], "y": [0.123457, None, 0.3]}],
        "yTitle": "nats",
        "limits": [{"value": 0.5, "label": "warn"}],
    }


def test_a_chart_is_described_in_words():
    series = Series("kl", [1, 2, 3, 4], [0.0, 2.5, -0.5, float("nan")])
    assert (
        'aria-label="KL. kl: 0 at update 1, −0.500 at update 3, lowest −0.500, highest 2.50."'
        in group([Chart("KL", [series])])
    )
