"""Marked passages on the page: selected by mouse, keyboard and on a phone, listed, kept and stored."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from labeler.html.markdown import render_pair
from labeler.html.text import text_of
from storage.tables import settings
from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import (
    desk_page,
    judgments_of,
    shown,
    status,
    wait_for_other,
    wait_for_shown,
)
from tests.helpers.desk_world import add_person
from tests.helpers.specimens import FORMULAS

MARKDOWN = """Plants need **light** to make sugar 🌱 and *water*.

1. Take the pot.
2. Then `pour` slowly:

```python
def water(pot):
    return pot + 1
```

The formula $x^2 + y$ says it all.
"""
ARABIC = "ضع النبات في **الضوء** ثم اسقه بالماء كل يوم."
TEXTS = [
    ("Plants?", MARKDOWN, MARKDOWN),
    ("نبات؟", ARABIC, ARABIC),
    ("Short?", "first answer", "second answer"),
    ("Long?", "x" * 1001 + "\n\n" + "\n\n".join("yz"[n % 2] * 990 for n in range(8)), "y"),
]
FORM = settings.JudgmentForm(reasons=("too long", "wrong"), marks=True)

# Selects from the first place of one text to the end of the first place of another after it.
SELECT = """
([side, first, last]) => {
  const walker = document.createTreeWalker(document.querySelector(`.response.${side} .text`), NodeFilter.SHOW_TEXT);
  let [start, end] = [null, null];
  for (let node = walker.nextNode(); node && !end; node = walker.nextNode()) {
    if (!start && node.data.includes(first)) start = [node, node.data.indexOf(first)];
    if (start && node.data.includes(last)) end = [node, node.data.indexOf(last) + last.length];
  }
  getSelection().setBaseAndExtent(...start, ...end);
}
"""
# Selects a part of the fifth line of a paragraph, from its end if `backwards`; returns the top and bottom
# of the line that the selection goes on to.
SELECT_LINE = """
(backwards) => {
  const text = [...document.querySelectorAll(".response .text")].find((each) => each.children.length > 2);
  const node = text.children[2].firstChild;
  const box = (at) => {
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    return range.getBoundingClientRect();
  };
  const starts = [...Array(node.length).keys()].filter((at) => !at || box(at).top > box(at - 1).top + 4);
  const next = starts[backwards ? 3 : 5];
  scrollBy(0, box(next).top - innerHeight * 0.3);
  const ends = [starts[4] + 3, starts[5] - 3];
  getSelection().setBaseAndExtent(...(backwards ? ends.reverse() : ends).flatMap((end) => [node, end]));
  return [box(next).top, box(next).bottom];
}
"""
# The highlighted texts by the kind of mark.
HIGHLIGHTED = """
() => Object.fromEntries(["good", "bad", "tag"].map((name) => [
  name, [...(CSS.highlights.get(`kite-${name}`) ?? [])].map(String).join("|")
]))
"""


@pytest.fixture(autouse=True)
def form(world):
    settings.choose_judgment_form(world[0], FORM)
    yield
    settings.choose_judgment_form(world[0], settings.JudgmentForm())


def select(page, first, last=None, side="a"):
    page.evaluate(SELECT, [side, first, last or first])
    expect(page.locator(".marking")).to_be_visible()


def mark(page, reason, first, last=None, side="a"):
    select(page, first, last, side)
    page.locator(f"[data-mark='{reason}']").click()
    expect(page.locator(".marking")).to_be_hidden()


def rows(page, side="a"):
    """The list of marks: (reason, passage)."""
    return [
        (row.locator(".reason").inner_text(), row.locator("q").inner_text())
        for row in page.locator(f".response.{side} .marks li").all()
    ]


def stored(db, who):
    """The stored marks of each judgment, with the sides of the screen."""
    side = [
        {"first": "ab"[row["shown_swapped"]], "second": "ba"[row["shown_swapped"]]}
        for row in judgments_of(db, who)
    ]
    found = [json.loads(row["marks"]) for row in judgments_of(db, who)]
    return [
        {names[key]: given for key, given in marks.items()}
        for names, marks in zip(side, found, strict=True)
    ]


def reopen(page, prompt):
    page.keyboard.press("m")
    page.locator(".drawer .given").filter(has_text=prompt).click()
    expect(page.locator(".revising")).to_be_visible()
    wait_for_pair(page)


def go_to(page, prompt):
    """Judge pairs until this one is on the screen."""
    while page.locator(".turn.last .text").inner_text().strip() != prompt:
        before = shown(page)
        page.keyboard.press("0")
        wait_for_other(page, before)


def test_a_passage_is_marked_with_the_mouse_kept_and_stored(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        go_to(page, "Plants?")
        box = page.locator(".response.a .text strong").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 1, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 1, middle, steps=4)
        expect(page.locator(".marking")).to_be_hidden()  # nothing moves under the pointer
        page.mouse.up()
        expect(page.locator(".marking button")).to_have_text(["Good", "Bad", "too long", "wrong"])
        page.locator(".marking button", has_text="wrong").click()
        mark(page, "good", "sugar", "and", side="b")
        assert (rows(page), rows(page, "b")) == ([("wrong", "light")], [("Good", "sugar 🌱 and")])
        assert page.evaluate(HIGHLIGHTED) == {"good": "sugar 🌱 and", "bad": "", "tag": "light"}

        page.reload()
        wait_for_pair(page)
        assert (rows(page), rows(page, "b")) == ([("wrong", "light")], [("Good", "sugar 🌱 and")])
        before = shown(page)
        page.keyboard.press("1")
        wait_for_other(page, before)
        assert rows(page) == rows(page, "b") == []
        assert page.evaluate(HIGHLIGHTED) == {"good": "", "bad": "", "tag": ""}
        status(page, "saved")
        page.keyboard.press("z")
        wait_for_shown(page, before)
        assert rows(page) == [("wrong", "light")]
    marks = stored(world[0], who)[-1]
    (light,), (sugar,) = marks["a"], marks["b"]
    assert (light["reason"], light["quote"], light["prefix"]) == ("wrong", "light", "Plants need ")
    assert MARKDOWN[light["start"] : light["end"]] == "light"
    # The seedling is one character, though two units of a browser's text.
    assert MARKDOWN[sugar["start"] : sugar["end"]] == "sugar 🌱 and"
    rendered = text_of(render_pair(MARKDOWN, MARKDOWN)[0])
    assert rendered[sugar["rendered_start"] : sugar["rendered_end"]] == "sugar 🌱 and"


def test_the_keyboard_alone_marks_and_removes(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        go_to(page, "Plants?")
        before = shown(page)
        page.keyboard.press("h")
        a = page.get_by_role("textbox", name="Text of response A")
        expect(a).to_be_focused()
        hint = page.locator(".caret-hint")
        expect(page.locator(".announcer")).to_contain_text("Esc ends.")
        page.keyboard.press("Enter")
        expect(page.locator(".told")).to_have_text(
            "First select text with Shift and the arrow keys."
        )
        page.keyboard.type("x1")  # writes nothing, and judges nothing
        page.evaluate("navigator.clipboard?.writeText('pasted').catch(() => {})")
        for key in ("Delete", "Backspace", "Control+b", "Control+v", "Shift+Enter"):
            page.keyboard.press(key)
        assert shown(page) == before
        for _ in range(6):
            page.keyboard.press("Shift+ArrowRight")
        expect(page.locator(".marking")).to_be_visible()
        page.keyboard.press("Enter")
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.mark") == "wrong"
        page.keyboard.press("Enter")
        expect(a).to_be_focused()
        assert rows(page) == [("wrong", "Plants")]
        expect(page.locator(".announcer")).to_have_text("Marked: wrong.")
        expect(hint).to_be_visible()
        # The caret goes on after the passage.
        for key in ("ArrowRight", *["Shift+ArrowRight"] * 4, "Enter", "Enter"):
            page.keyboard.press(key)
        assert rows(page) == [("wrong", "Plants"), ("Good", "need")]
        for _ in range(40):  # past the code and the buttons of the marks
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.ariaLabel") == "Text of response B":
                break
        for key in (*["Shift+ArrowRight"] * 6, "Enter", "Enter"):
            page.keyboard.press(key)
        assert rows(page, "b") == [("Good", "Plants")]
        page.keyboard.press("Escape")
        expect(page.locator("[contenteditable=true]")).to_have_count(0)
        expect(hint).to_be_hidden()
        assert shown(page) == before
        page.locator(".response.a .remove").first.focus()
        page.keyboard.press("Enter")
        assert rows(page) == [("Good", "need")]
        assert "need" in page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press("2")
        wait_for_other(page, before)
        status(page, "saved")
    assert [each["quote"] for each in stored(world[0], who)[-1]["a"]] == ["need"]


def test_a_reopened_judgment_shows_its_marks_and_a_revision_changes_them(
    browser, world, server, who
):
    with desk_page(browser, world, server, who) as page:
        go_to(page, "Plants?")
        before = shown(page)
        mark(page, "bad", "Then", "slowly")
        mark(page, "too long", "formula", "says")
        page.keyboard.press("1")
        wait_for_other(page, before)
        status(page, "saved")
        page.reload()
        wait_for_pair(page)
        reopen(page, "Plants?")
        assert rows(page) == [("Bad", "Then pour slowly"), ("too long", "formula x^2 + y says")]
        assert page.evaluate(HIGHLIGHTED)["bad"] == "Then |pour| slowly"
        expect(page.locator(".response.a .math.marked.tag")).to_have_count(1)
        page.locator(".response.a .remove").first.click()
        page.keyboard.press("2")
        status(page, "saved")
        page.keyboard.press("z")  # the earlier judgment counts again
        status(page, "saved")
        page.wait_for_function("document.querySelector('.trace').textContent === 'Restored'")
    first, second, third = stored(world[0], who)[-3:]
    assert [each["quote"] for each in second["a"]] == ["formula x^2 + y says"]
    assert third == first
    (then, formula) = first["a"]
    assert MARKDOWN[then["start"] : then["end"]] == "Then `pour` slowly"
    assert MARKDOWN[formula["start"] : formula["end"]] == "formula $x^2 + y$ says"


def test_a_passage_with_code_has_no_words_of_the_page(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        go_to(page, "Plants?")
        mark(page, "bad", "slowly", "return")
        assert rows(page) == [("Bad", "slowly: def water(pot): return")]
        highlighted = page.evaluate(HIGHLIGHTED)["bad"]
        assert "Copy" not in highlighted
        assert "water" in highlighted
        # Word differences and marks are shown together.
        page.keyboard.press("w")
        assert page.evaluate(HIGHLIGHTED)["bad"].replace("|", "") == highlighted.replace("|", "")
        page.keyboard.press("r")  # the mark has a place in the text as written once it is stored
        expect(page.locator(".response.a .marks")).to_contain_text("(not in this view)")
        mark(page, "good", "**light**")
        page.keyboard.press("r")
        mark(page, "good", "light")  # the same passage of the formatted text
        before = shown(page)
        page.keyboard.press("1")
        wait_for_other(page, before)
        status(page, "saved")
        reopen(page, "Plants?")
        page.keyboard.press("r")
        assert page.evaluate(HIGHLIGHTED)["good"] == "**light**|light"
        assert page.evaluate(HIGHLIGHTED)["bad"].startswith("slowly:\n\n```python")
        page.keyboard.press("r")
        assert page.evaluate(HIGHLIGHTED)["good"] == "light|light"
    bad, good, _ = stored(world[0], who)[-1]["a"]
    assert bad["quote"] == "slowly:\n\ndef water(pot):\n    return"
    assert MARKDOWN[good["start"] : good["end"]] == good["quote"] == "**light**"
    assert good["rendered_end"] - good["rendered_start"] == len("light")


def test_a_judgment_ends_the_choice_of_a_reason(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        go_to(page, "Plants?")
        before = shown(page)
        select(page, "light")
        page.keyboard.press("h")
        assert page.evaluate("document.activeElement.dataset.mark") == "good"
        page.keyboard.press("1")
        wait_for_other(page, before)
        expect(page.locator(".marking")).to_be_hidden()
        page.keyboard.press("z")
        wait_for_shown(page, before)
        select(page, "light")
        page.keyboard.press("Escape")
        expect(page.locator(".marking")).to_be_hidden()
        assert rows(page) == []


def test_a_selection_of_both_responses_or_of_the_prompt_is_none(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.responses'))")
        page.evaluate("document.dispatchEvent(new Event('selectionchange'))")
        expect(page.locator(".marking")).to_be_hidden()
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.prompt'))")
        page.evaluate("document.dispatchEvent(new Event('selectionchange'))")
        expect(page.locator(".marking")).to_be_hidden()


@pytest.mark.parametrize("height", [860, 420])
@pytest.mark.parametrize("backwards", [False, True])
def test_the_reasons_do_not_cover_the_line_that_a_selection_goes_on_to(
    browser, world, server, who, backwards, height
):
    with desk_page(browser, world, server, who, height=height) as page:
        go_to(page, "Long?")
        top, bottom = page.evaluate(SELECT_LINE, backwards)
        expect(page.locator(".marking")).to_be_visible()
        box = page.locator(".marking").bounding_box()
        assert box["y"] >= bottom or box["y"] + box["height"] <= top


def test_marks_have_limits(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        go_to(page, "Long?")
        side = "a" if page.locator(".response.a").inner_text().endswith("z" * 990) else "b"
        for _ in range(2):
            page.evaluate(SELECT, [side, "z" * 990, "z" * 990])
            page.locator("[data-mark=bad]").click()
        told = page.locator(".told")
        expect(told).to_have_text("This passage is already marked with this reason.")
        page.evaluate(SELECT, [side, "x", "x" * 1001])
        page.locator("[data-mark=bad]").click()
        expect(told).to_have_text("A marked passage can have 1000 characters at most.")
        for reason in ("good", "too long", "wrong"):
            mark(page, reason, "z" * 990, side=side)
        mark(page, "good", "y" * 990, side=side)
        page.evaluate(SELECT, [side, "y" * 990, "y" * 990])
        page.locator("[data-mark=bad]").click()
        expect(told).to_have_text("All marked passages together can have 5000 characters at most.")
        assert len(rows(page, side)) == 5


@pytest.mark.parametrize("locale", ["en", "ar"])
def test_arabic_is_marked_too(browser, world, server, locale):
    who = add_person(world[0], f"right to left {locale}")
    with desk_page(browser, world, server, who, locale=locale) as page:
        go_to(page, "نبات؟")
        mark(page, "bad", "في", "ثم")
        row = page.locator(".response.a .marks li")
        boxes = [
            row.locator(part).bounding_box()["x"] for part in (".reason", ".passage", ".remove")
        ]
        assert boxes == sorted(boxes, reverse=locale == "ar")
        assert rows(page)[0][1] == "في الضوء ثم"
        page.locator(".response.a .text p").click()
        page.keyboard.press("h")
        for _ in range(2):
            page.keyboard.press("Shift+ArrowLeft")  # forward in the text
        page.keyboard.press("Enter")
        page.keyboard.press("ArrowLeft" if locale == "ar" else "ArrowRight")
        assert page.evaluate("document.activeElement.dataset.mark") == "bad"
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        assert len(rows(page)) == 2
        page.keyboard.press("1")
        status(page, "saved")
    first, second = stored(world[0], who)[-1]["a"]
    assert ARABIC[first["start"] : first["end"]] == "في **الضوء** ثم"
    assert second["quote"] == ARABIC[:2]


@pytest.mark.parametrize("size", [(390, 844), (320, 640), (390, 500)])
def test_on_a_phone_the_reasons_are_above_the_choices(browser, world, server, size):
    width, height = size
    who = add_person(world[0], f"phone {size}")
    with desk_page(browser, world, server, who, width=width, height=height) as page:
        go_to(page, "Plants?")
        select(page, "light", side="a")
        bar, choices = (
            page.locator(".marking").bounding_box(),
            page.locator(".choices").bounding_box(),
        )
        assert bar["x"] >= 0
        assert bar["x"] + bar["width"] <= width
        assert bar["y"] + bar["height"] <= min(height, choices["y"])
        for button in page.locator(".marking button").all():
            assert button.bounding_box()["height"] >= 44
        page.locator("[data-mark=wrong]").click()
        assert rows(page) == [("wrong", "light")]
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_tap_on_a_reason_keeps_the_selection(browser, world, server, who):
    with desk_page(browser, world, server, who, width=390, height=844, touch=True) as page:
        go_to(page, "Plants?")
        select(page, "light")
        page.locator("[data-mark=wrong]").tap()
        assert rows(page) == [("wrong", "light")]
        page.locator(".response.a .remove").tap()
        assert rows(page) == []
        page.locator(".more summary").tap()
        page.locator("[data-do=mark]").tap()  # no caret: it would open the keyboard of the phone
        expect(page.locator(".told")).to_have_text(
            "Select text in a response, then choose a reason."
        )
        expect(page.locator("[contenteditable=true]")).to_have_count(0)


def test_the_kind_of_line_tells_marks_apart_without_colors(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        page.emulate_media(forced_colors="active")
        paragraph = page.locator(".response.a .text p").first
        script = "(p, name) => getComputedStyle(p, `::highlight(kite-${name})`).textDecorationStyle"
        styles = [paragraph.evaluate(script, name) for name in ("good", "bad", "tag")]
    assert styles == ["solid", "wavy", "dashed"]


def test_a_form_without_marks_offers_none(browser, world, server, who):
    settings.choose_judgment_form(world[0], settings.JudgmentForm(reasons=("wrong",)))
    with desk_page(browser, world, server, who) as page:
        go_to(page, "Plants?")
        page.evaluate(SELECT, ["a", "light", "light"])
        page.keyboard.press("h")
        expect(page.locator(".marking")).to_be_hidden()
        expect(page.locator("[contenteditable=true]")).to_have_count(0)
        page.locator(".more summary").click()
        expect(page.locator(".more")).to_contain_text("Plain text")
        expect(page.locator("[data-do=mark]")).to_be_hidden()


SPECIMENS = (
    MARKDOWN, ARABIC, " ".join(f"${each}$" for each in FORMULAS[:20]),
    "a\r\nb\r\n\r\n```\r\n\r\nc\r\n```", "\n\n    indented\n\n> quote\n> > deeper\n\n***",
    "| a | b |\n|---|---|\n| 1 | `x|` |\n\n* [x] done &amp; <b>bold</b>\n\nnote[^1]\n\n[^1]: *it*",
    "![image](http://x/y.png) <http://a.b> [a](javascript:x) \\* &lt; &#13; &nbsp;|", "> " * 40 + "\n deep",
)  # fmt: skip


def test_the_server_and_the_browser_agree_about_the_formatted_text(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        for text in SPECIMENS:
            html = render_pair(text, text)[0]
            script = "(html) => { const t = document.createElement('template'); t.innerHTML = html; return t.content.textContent; }"
            assert text_of(html) == page.evaluate(script, html), text
