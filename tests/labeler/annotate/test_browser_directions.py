"""Arabic and Hebrew beside code, lists and tables: where things stand on the screen."""

from __future__ import annotations

from itertools import pairwise

import pytest

from labeler.html import components
from labeler.research.pages import CSS
from tests.helpers.browser import new_page, wait_for_pair
from tests.helpers.desk_browser import desk_page
from tests.helpers.desk_world import add_person

ARABIC = (
    "كيف أعكس قائمة في بايثون؟",
    "يمكنك استخدام `reversed(items)[0] + 1` أو الشيفرة التالية:\n\n"
    "```python\nprint(items[::-1], end='!')  # done\n```\n\n"
    "1. اكتب القائمة أولا\n2. ثم اعكسها\n3. Run it once\n\n"
    "> اقتباس قصير\n\n| الاسم | القيمة |\n|---|---|\n| واحد | 1 |\n\n## خاتمة\n\n$a + b = c$ صحيح.",
    "Use `reversed(items)`:\n\n* first (1)\n* שלום עולם\n\nשלום, זה `x = y(1)` בשורה.",
)
FAR = "عدد " + "1" * 4  # a list that begins at a number of four digits
LONG = (FAR, "1998. " + "سنة جيدة\n" * 2 + "\n\n100. نص", "12. twelve\n13. thirteen")

POSITIONS = """
(selector) => {
  const card = document.querySelector(selector).getBoundingClientRect();
  const found = { card: [card.left, card.right], items: [], code: [], blocks: [] };
  for (const item of document.querySelectorAll(`${selector} li`)) {
    const { left, right } = item.getBoundingClientRect();
    const style = getComputedStyle(item);
    found.items.push({ left, right, dir: style.direction, inside: style.listStylePosition });
  }
  for (const code of document.querySelectorAll(`${selector} code`)) {
    const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    const places = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (let i = 0; i < node.length; i += 1) {
        const range = document.createRange();
        range.setStart(node, i);
        range.setEnd(node, i + 1);
        const box = range.getBoundingClientRect();
        if (box.width) places.push([box.top, box.left]);
      }
    }
    found.code.push(places);
  }
  for (const block of document.querySelectorAll(`${selector} :is(p, blockquote, th, .heading)`)) {
    found.blocks.push([block.textContent.trim(), getComputedStyle(block).direction]);
  }
  return found;
}
"""
TOO_LONG = ("Which one?", "word " * 5_000, "**short**")
TEXTS = [ARABIC, LONG, TOO_LONG]

WIDTHS = [(1280, 860), (390, 844)]


def both_sides(page):
    """What is measured of the Arabic response and of the other one."""
    found = [page.evaluate(POSITIONS, f".response.{side} .text") for side in ("a", "b")]
    return sorted(found, key=lambda each: len(each["blocks"]), reverse=True)


def room_for_marker(found, item):
    """Pixels between an item and the edge of the card on the side where its marker stands."""
    left, right = found["card"]
    return right - item["right"] if item["dir"] == "rtl" else item["left"] - left


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_code_reads_from_the_left_and_markers_stand_in_the_card(
    browser, world, server, width, height
):
    db, _ = world
    who = add_person(db, f"Reader {width}")
    with desk_page(browser, world, server, who, width=width, height=height) as page:
        arabic, mixed = both_sides(page)

    assert len(arabic["code"]) == 2  # inline and the block
    for places in arabic["code"] + mixed["code"]:
        assert len(places) >= 8
        for (top, left), (next_top, next_left) in pairwise(places):
            assert next_left > left or next_top > top
    for found in (arabic, mixed):
        for item in found["items"]:
            assert room_for_marker(found, item) >= 24
    assert [item["dir"] for item in arabic["items"]] == ["rtl", "rtl", "ltr"]
    assert [item["dir"] for item in mixed["items"]] == ["ltr", "rtl"]
    directions = dict(arabic["blocks"])
    assert {directions[name] for name in ("اقتباس قصير", "الاسم", "خاتمة")} == {"rtl"}
    assert [d for text, d in arabic["blocks"] if text.endswith("صحيح.")] == ["rtl"]
    first, *_, last = mixed["blocks"]
    assert (first[1], last[1]) == ("ltr", "rtl")  # not one direction for all of a response


def test_numbers_of_any_length_stand_in_the_card(browser, world, server):
    db, _ = world
    with desk_page(browser, world, server, add_person(db, "Counter")) as page:
        page.keyboard.press("1")
        page.wait_for_function(
            "() => document.querySelector('.turn.last').innerText.includes('1111')"
        )
        measured = [page.evaluate(POSITIONS, f".response.{side} .text") for side in ("a", "b")]

    items = [(found, item) for found in measured for item in found["items"]]
    assert len(items) == 4
    for found, item in items:
        assert item["inside"] == "inside" or room_for_marker(found, item) >= 36


def test_a_response_that_cannot_be_formatted_leaves_both_plain_and_the_page_says_so(
    browser, world, server
):
    db, _ = world
    with desk_page(browser, world, server, add_person(db, "Patient")) as page:
        assert page.locator(".notice").is_hidden()
        for pair in ("1111", "Which one?"):
            page.keyboard.press("0")
            page.wait_for_function(
                "text => document.querySelector('.turn.last').innerText.includes(text)", arg=pair
            )
            wait_for_pair(page)

        assert "plain text" in page.locator(".notice").inner_text()
        assert page.locator(".response .text > pre.plain").count() == 2
        assert page.locator(".response strong").count() == 0
        page.keyboard.press("r")  # asked for, it needs no explanation
        assert page.locator(".notice").is_hidden()


def test_each_line_of_a_sample_has_a_direction_of_its_own(browser):
    text = "هذا سطر (1)\nx = f(1)\nשורה [2]"
    sample = f'<div class="ks-sample"><div class="ks-side">{components.prose(text)}</div></div>'
    places = """() => {
      const node = document.querySelector(".ks-prose").firstChild;
      return [...node.data].map((letter, i) => {
        const range = document.createRange();
        range.setStart(node, i);
        range.setEnd(node, i + 1);
        return [letter, range.getBoundingClientRect().left];
      });
    }"""
    with new_page(browser, width=600) as page:
        page.set_content(f"<style>{CSS}</style>{sample}")
        found = page.evaluate(places)

    lefts = [[left for _, left in line] for line in split_at(found, "\n")]
    arabic, code, hebrew = lefts
    assert arabic[0] == max(arabic)
    assert hebrew[0] == max(hebrew)
    assert code == sorted(code)
    assert arabic[0] > 400 > code[-1]  # each begins at its own edge


def split_at(letters, end):
    """(letter, place) of each line."""
    lines = [[]]
    for letter, place in letters:
        if letter == end:
            lines.append([])
        else:
            lines[-1].append((letter, place))
    return lines
