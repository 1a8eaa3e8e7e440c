"""Responses on the screen: formulas, code, links, and that both sides are shown alike."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from storage.tables import settings
from tests.helpers.browser import new_page, wait_for_pair
from tests.helpers.desk_browser import cookie_of
from tests.helpers.desk_world import add_person
from tests.helpers.specimens import SPECIMENS

GOOD = r"so $x^2$ and $$\boxed{y} = \begin{aligned} a &= b \\ c &= d \end{aligned}$$"
PYTHON = "def f(x):\n\treturn '" + "x" * 200 + "'  # <b>\n\n"
_SENTENCE = "A sentence that is long enough for more than one line of a wide card. " * 3
PROSE = (
    f"{_SENTENCE}\n\n* {_SENTENCE}\n\n> {_SENTENCE}\n\n"
    "|" + "long cell of a table|" * 9 + "\n|" + "-|" * 9 + "\n|" + "1|" * 9
)
PAIRS = {
    "typeset": (GOOD, r"so \(\ce{H2O}\)"),
    "one of two": (GOOD, r"so $\unknown{x}$ and $z$"),
    "hostile": (
        "$$\\rule{999em}{999em}$$\n\n$$x\\hspace{9em}\\mathllap{y}$$\n\n$$\\raisebox{9em}{x}$$",
        "$$\\text{<img src='https://evil.example/x.png'>}$$\n\n$$\\cancelto{a}{b}$$",
    ),
    "code": (
        f"```python\n{PYTHON}```\n\n```\nshort\n```",
        "```\n" + "a long line of code " * 12 + "\n```",
    ),
    "prose": (PROSE, "See [this](https://example.org/).\n\n" + PROSE),
}

TEXTS = [(f"{name}: $p^2$", *both) for name, both in PAIRS.items() if name != "prose"]
TEXTS.append((f"prose: {PROSE}", *PAIRS["prose"]))
TEXTS += [(prompt, text, text + "\n") for prompt, text in SPECIMENS.values()]


@pytest.fixture
def open_pair(browser, world, server, request):
    """Opens the page with one pair, as a new annotator; fails if the page asks another server."""

    def opened(name, **settings):
        who = add_person(world[0], request.node.name[:60])
        context = new_page(browser, cookie=cookie_of(world, server.url, who), **settings)
        page = context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        asked = []
        page.on("request", lambda sent: asked.append(sent.url))
        request.addfinalizer(lambda: _none_elsewhere(asked, server.url))

        def only_this(route):
            answer = route.fetch(url=re.sub(r"n=\d+", "n=16", route.request.url))
            data = answer.json()
            data["pairs"] = [
                pair for pair in data["pairs"] if pair["prompt"][-1]["text"].startswith(f"{name}:")
            ]
            route.fulfill(response=answer, json=data)

        page.route("**/label/api/next?*", only_this)
        # The page may ask for more while it closes.
        request.addfinalizer(lambda: page.unroute_all(behavior="ignoreErrors"))
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        return page

    return opened


def _none_elsewhere(asked, url):
    assert [each for each in asked if not each.startswith((url, "data:"))] == []


def test_formulas_are_typeset_with_a_maths_font(open_pair):
    page = open_pair("typeset")

    expect(page.locator(".response .math > math")).to_have_count(3)
    expect(page.locator(".prompt .math > math")).to_have_count(1)
    expect(page.locator(".response code")).to_have_count(0)
    expect(page.locator(".notice")).to_be_hidden()
    page.wait_for_function("document.fonts.check('16px \"STIX Two Math\"')")
    # The letters a and c stand above each other, and so do the equals signs.
    lefts = page.evaluate(
        "[...document.querySelectorAll('.response mtr')].map((row) => row.querySelector('mo').getBoundingClientRect().left)"
    )
    assert len(lefts) == 2
    assert lefts[0] == pytest.approx(lefts[1], abs=1)


def test_both_responses_show_source_if_one_formula_cannot_be_typeset(open_pair):
    page = open_pair("one of two")

    expect(page.locator(".response math")).to_have_count(0)
    expect(page.locator(".response .math > code")).to_have_count(4)
    expect(page.locator(".notice")).to_contain_text("shown as LaTeX")
    expect(page.locator(".prompt .math > math")).to_have_count(1)  # both responses have this prompt
    page.keyboard.press("r")
    expect(page.locator(".notice")).to_be_hidden()
    page.keyboard.press("r")
    expect(page.locator(".notice")).to_be_visible()


def test_no_formula_leaves_its_box(open_pair):
    page = open_pair("hostile")
    expect(page.locator(".response .math > math")).to_have_count(5)

    outside = page.evaluate("""() => {
      const boxes = [...document.querySelectorAll(".response .text")].map((box) => box.getBoundingClientRect());
      const inside = (x, y) => boxes.some((box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom);
      const found = [];
      for (let x = 1; x < innerWidth; x += 7) for (let y = 1; y < innerHeight; y += 7) {
        if (!inside(x, y) && document.elementFromPoint(x, y)?.closest(".response .text")) found.push([x, y]);
      }
      return found;
    }""")
    assert outside == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_formulas_of_the_guidelines_are_typeset(open_pair, world):
    settings.put(world[0], "guidelines", r"Prefer $x^2$ to $\unknown$.")
    page = open_pair("typeset", width=1440)

    expect(page.locator(".guidelines .math > math")).to_have_count(1)
    expect(page.locator(".guidelines .math > code")).to_have_text([r"\unknown"])


# Code


def test_long_lines_of_code_wrap_in_both_responses_and_the_browser_remembers(open_pair):
    page = open_pair("code", width=900)
    wraps = page.get_by_role("button", name="Wrap")
    expect(wraps).to_have_count(3)
    wide = "[...document.querySelectorAll('.response pre')].map((pre) => pre.scrollWidth > pre.clientWidth)"
    assert page.evaluate(wide) == [True, True, False]

    wraps.first.focus()
    page.keyboard.press("Enter")

    assert page.evaluate(wide) == [False, False, False]
    for button in wraps.all():
        expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".announcer")).to_have_text("Long lines of code wrap.")
    page.reload()
    expect(page.locator("[data-code=wrap][aria-pressed=true]")).to_have_count(3)
    assert page.evaluate(wide) == [False, False, False]
    page.get_by_role("button", name="Wrap").first.click()
    assert page.evaluate(wide) == [True, True, False]


def test_code_is_copied_as_it_is_written(open_pair):
    page = open_pair("code")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator(".response .code").filter(has_text="def f")
    shown = block.inner_text()

    block.get_by_role("button", name="Copy").press("Enter")

    expect(block.get_by_role("button", name="Copied")).to_be_visible()
    expect(page.locator(".announcer")).to_have_text("Code copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == PYTHON
    expect(block.get_by_role("button", name="Copy", exact=True)).to_be_visible()
    assert block.inner_text() == shown
    # What is selected by hand has no words of the bar either.
    selected = page.evaluate("""() => {
      getSelection().selectAllChildren(document.querySelector(".pair"));
      return getSelection().toString();
    }""")
    assert "def f" in selected
    assert "Copy" not in selected


def test_code_is_copied_where_the_browser_offers_no_clipboard(open_pair):
    page = open_pair("code")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not here')) }"
    )
    button = (
        page.locator(".response .code").filter(has_text="def f").get_by_role("button", name="Copy")
    )
    button.focus()

    page.keyboard.press("Enter")

    expect(page.locator(".announcer")).to_have_text("Code copied.")
    assert page.evaluate("navigator.clipboard.readText()") == PYTHON
    assert page.evaluate("document.activeElement.dataset.code") == "copy"
    assert page.locator("body > textarea, .desk > textarea").count() == 0


def test_plain_text_has_no_bars(open_pair):
    page = open_pair("code")
    page.keyboard.press("r")
    expect(page.locator(".response pre.plain")).to_have_count(2)
    expect(page.locator(".code-bar")).to_have_count(0)


# Lines and links


def test_lines_of_prose_have_about_70_characters(open_pair):
    page = open_pair("prose")

    found = page.evaluate("""() => {
      const widths = (selector) => [...document.querySelectorAll(`.prompt .text${selector}`)].map((node) => {
        const ruler = document.createElement("span");
        ruler.style = "position: absolute; inline-size: 1ch; visibility: hidden";
        node.append(ruler);
        const ch = ruler.getBoundingClientRect().width;
        ruler.remove();
        return node.getBoundingClientRect().width / ch;
      });
      return { prose: widths(" > :is(p, ul, blockquote)"), table: widths(" table"), room: widths("") };
    }""")
    assert found["room"][0] > 75
    assert len(found["prose"]) == 3
    assert max(found["prose"]) == pytest.approx(70, abs=1)
    assert found["table"][0] > 71


def test_the_size_of_text_follows_the_variable(open_pair):
    page = open_pair("prose")
    size = "getComputedStyle(document.querySelector('.response p')).fontSize"
    assert page.evaluate(size) == "16px"
    page.evaluate("document.querySelector('.desk').style.setProperty('--text-size', '1.5')")
    assert page.evaluate(size) == "24px"


def test_links_are_underlined(open_pair):
    page = open_pair("prose")
    link = page.locator(".response a").first
    expect(link).to_have_attribute("href", "https://example.org/")
    assert "underline" in link.evaluate("node => getComputedStyle(node).textDecorationLine")


# Specimens


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_text_looks_the_same_on_both_sides(open_pair, name):
    page = open_pair(f"specimen {name}")
    page.wait_for_function("document.fonts.status === 'loaded'")

    a, b = page.evaluate("""() => [..."ab"].map((side) => {
      const text = document.querySelector(`.response.${side} .text`);
      const { width, height } = text.getBoundingClientRect();
      return { html: text.innerHTML, width, height };
    })""")
    assert a["html"]
    assert a == b
    assert page.locator(".pair :is(.math > code, .latex, pre.plain)").count() == 0
    expect(page.locator(".notice")).to_be_hidden()


@pytest.mark.parametrize("width", [1280, 320])
@pytest.mark.parametrize("name", SPECIMENS)
def test_nothing_overflows_its_box(open_pair, name, width):
    page = open_pair(f"specimen {name}", width=width)

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = page.evaluate("""() => [...document.querySelectorAll(".pair .text")]
      .filter((text) => text.scrollWidth > text.clientWidth + 1)
      .map((text) => [text.scrollWidth, text.clientWidth])""")
    assert wide == []
