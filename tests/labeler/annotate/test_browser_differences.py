"""Word differences (W): what is marked, and that formulas, code and both sides stay as they are."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import labeler.annotate
from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import desk_page
from tests.helpers.desk_world import add_person

SOURCE = Path(labeler.annotate.__file__).parent / "scripts" / "differences.js"
FIRST = "The quick fox **sleeps** today."
SECOND = "The brown fox sleeps today, too."
CODE = "Use $x^2$ here:\n\n```python\nvalue = 1\nprint(value)\n```"
OTHER_CODE = "Use $x_2$ here:\n\n```python\nvalue = 2\nprint(value)\n```"
LONG = [" ".join(f"{side}{i}" for i in range(21_000)) for side in "xy"]
TEXTS = [
    ("short: ?", FIRST, SECOND),
    ("code: ?", CODE, OTHER_CODE),
    ("Japanese: ?", "猫は可愛いです", "犬は可愛いです"),
    ("equal: ?", "One **word** more", "One word more"),
    ("long: ?", *LONG),
    ("empty: ?", "", "Only here"),
]


@pytest.fixture
def open_pair(browser, world, server, request):
    """Opens the page with one pair of `TEXTS`, as a new annotator."""

    def opened(name, **settings):
        who = add_person(world[0], request.node.name[:60])
        manager = desk_page(browser, world, server, who, **settings)
        page = manager.__enter__()
        request.addfinalizer(lambda: manager.__exit__(None, None, None))
        while not page.locator(".turn.last .text").inner_text().startswith(f"{name}:"):
            before = page.locator(".turn.last .text").inner_text()
            page.keyboard.press("s")
            page.wait_for_function(
                "old => document.querySelector('.turn.last .text').innerText !== old", arg=before
            )
            wait_for_pair(page)
        return page

    return opened


def marked(page):
    """The marked words of the response of `FIRST` and of the other, whatever their sides."""
    by_side = [page.locator(f".response.{side} .differs").all_inner_texts() for side in "ab"]
    return sorted(by_side)


def text_of(page):
    return [page.locator(f".response.{side} .text").inner_text() for side in "ab"]


def test_words_of_one_side_only_are_marked_in_both(open_pair):
    page = open_pair("short")
    before = text_of(page)
    page.keyboard.press("w")

    assert marked(page) == [["brown", ", too"], ["quick"]]
    assert text_of(page) == before
    note = page.locator(".differing")
    expect(note).to_contain_text("Underlined words are in one response only.")
    assert sorted(re.findall(r"\d words?", note.inner_text())) == ["1 word", "3 words"]
    expect(page.locator(".announcer")).to_have_text(note.inner_text())
    style = "n => getComputedStyle(n).textDecorationLine"
    assert page.locator(".differs").first.evaluate(style) == "underline"  # not by color alone
    page.keyboard.press("w")
    expect(page.locator(".differs")).to_have_count(0)
    expect(note).to_be_hidden()


def test_formulas_and_code_stay_whole(open_pair):
    page = open_pair("code")
    page.keyboard.press("w")

    expect(page.locator(".response .math.differs > math")).to_have_count(2)
    expect(page.locator(".response math mark")).to_have_count(0)
    assert sorted(page.locator(".response pre mark").all_inner_texts()) == ["1", "2"]
    code = page.locator(".response pre code").all_text_contents()
    assert sorted(code) == ["value = 1\nprint(value)\n", "value = 2\nprint(value)\n"]
    expect(page.locator(".code-bar mark")).to_have_count(0)


def test_scripts_without_spaces_are_split_into_words(open_pair):
    page = open_pair("Japanese")
    page.keyboard.press("w")
    assert marked(page) == [["犬"], ["猫"]]


def test_markup_alone_is_no_difference(open_pair):
    page = open_pair("equal")
    page.keyboard.press("w")
    expect(page.locator(".differing")).to_have_text("Both responses have the same words.")
    expect(page.locator(".differs")).to_have_count(0)


def test_an_empty_response_has_no_words(open_pair):
    page = open_pair("empty")
    page.keyboard.press("w")
    assert marked(page) == [[], ["Only here"]]


def test_neither_of_two_responses_beyond_the_limit_is_marked(open_pair):
    page = open_pair("long")
    page.keyboard.press("w")
    sentence = "The responses are too long to compare word by word."
    expect(page.locator(".differing")).to_have_text(sentence)
    expect(page.locator(".differs")).to_have_count(0)


def test_the_marks_stay_for_the_next_pair_and_for_plain_text(open_pair):
    page = open_pair("short")
    page.keyboard.press("w")
    page.keyboard.press("r")
    assert marked(page) == [["brown", ", too"], ["quick", "**", "**"]]
    page.keyboard.press("r")
    page.keyboard.press("s")
    wait_for_pair(page)
    expect(page.locator(".differing")).to_be_visible()
    expect(page.locator("[data-do=differences]")).to_have_attribute("aria-pressed", "true")


def _common(a, b):
    """The length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = 0
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], above + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def test_as_many_words_as_possible_are_unmarked(browser):
    chance = random.Random(5)
    pairs = [
        [[chance.choice("abcde"[:letters]) for _ in range(chance.randrange(90))] for _ in "ab"]
        for letters in (1, 2, 3, 5)
        for _ in range(50)
    ]
    page = browser.new_page()
    script = f"(pairs) => {{ {SOURCE.read_text()}; return pairs.map(([a, b]) => unmatched(a, b).map((each) => [...each])) }}"
    found = page.evaluate(script, pairs)
    page.close()
    for (a, b), (only_a, only_b) in zip(pairs, found, strict=True):
        left = [each for i, each in enumerate(a) if i not in only_a]
        right = [each for i, each in enumerate(b) if i not in only_b]
        assert left == right
        assert len(left) == _common(a, b)
