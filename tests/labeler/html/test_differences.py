"""Word differences: what was added and removed, by hand, and both texts recovered from the HTML."""

from __future__ import annotations

import html
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeler.html.differences import count, differences


@pytest.mark.parametrize(
    ("before", "after", "shown", "words"),
    [
        ("Be kind.", "Be very kind.", "Be<ins> very</ins> kind.", (1, 0)),
        ("Be very kind.", "Be kind.", "Be<del> very</del> kind.", (0, 1)),
        ("Be kind.", "Be brief.", "Be <del>kind</del><ins>brief</ins>.", (1, 1)),
        ("a\nb\nc", "a\nB\nc", "a\n<del>b</del><ins>B</ins>\nc", (1, 1)),
        ("", "new", "<ins>new</ins>", (1, 0)),
        ("same", "same", "same", (0, 0)),
        ("a < b", "a <b>x</b>", None, None),
    ],
)
def test_words_by_hand(before, after, shown, words):
    if shown is not None:
        assert differences(before, after) == f'<div class="ks-differences" dir="auto">{shown}</div>'
        assert count(before, after) == words
    assert recovered(differences(before, after)) == (before, after)


def recovered(markup: str) -> tuple[str, str]:
    inner = markup.removeprefix('<div class="ks-differences" dir="auto">').removesuffix("</div>")
    old = re.sub(r"<ins>.*?</ins>|</?del>", "", inner, flags=re.DOTALL)
    new = re.sub(r"<del>.*?</del>|</?ins>", "", inner, flags=re.DOTALL)
    return html.unescape(old), html.unescape(new)


@given(st.text("ab <>&\n.", max_size=40), st.text("ab <>&\n.", max_size=40))
def test_both_texts_are_in_it_and_no_markup_of_theirs(before, after):
    made = str(differences(before, after))
    assert recovered(made) == (before, after)
    assert set(re.findall(r"<[^>]*>", made)) <= {
        '<div class="ks-differences" dir="auto">', "</div>", "<ins>", "</ins>", "<del>", "</del>",
    }  # fmt: skip


def test_a_long_text_does_not_take_long():
    before, after = " ".join("abcdef" * 4000), " ".join("fedcba" * 4000)
    began = time.monotonic()
    assert recovered(differences(before, after)) == (before, after)
    assert time.monotonic() - began < 2
