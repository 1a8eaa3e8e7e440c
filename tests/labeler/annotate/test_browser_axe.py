"""States of the annotator's page, checked by axe (WCAG 2.2 and best practices)."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from storage.tables import settings
from tests.helpers.browser import new_page, wait_for_pair
from tests.helpers.desk_browser import desk_page, press
from tests.helpers.desk_states import answer_a_flag
from tests.helpers.desk_world import add_person
from tests.labeler.annotate.test_browser_conversation import conversation

RULES = {name: {"enabled": True} for name in ("label-content-name-mismatch", "target-size")}
"""Rules that axe does not run by default."""
SAMPLE = """# A heading

A [link](https://example.org) in a sentence, **bold**, ~~struck~~ and `code`.

* [x] a task

| a | b |
|---|---|
| 1 | 2 |

```python
def f(x): return "text"  # a comment
```
"""

TEXTS = [
    (conversation(12, system="You are a gardener.", last="Why?"), SAMPLE, SAMPLE * 12),
    ("Short?", "yes", "no"),
]


def violations(page: Page, part: str = "html") -> list[tuple[str, str]]:
    page.wait_for_timeout(400)  # colors that fade have arrived
    found = Axe().run(page, context=part, options={"rules": RULES}).response["violations"]
    return [(each["id"], node["html"][:200]) for each in found for node in each["nodes"]]


VIEWS = [(width, scheme) for width in (1440, 390) for scheme in ("light", "dark")]


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_no_state_violates_a_rule(browser, world, server, width, scheme):
    person = add_person(world[0], f"{width} {scheme}")
    answer_a_flag(world[0], person)
    with desk_page(browser, world, server, person, width=width, scheme=scheme) as page:
        # A bar that covers half of a button makes it a small target, until the page is scrolled.
        page.add_style_tag(content=".verdict { position: static !important }")
        keys = {
            "judging": None,
            "details": "d",
            "plain text": "r",
            "differences": "w",
            "guidelines": "g",
        }
        for state, key in keys.items():
            if key:
                page.keyboard.press(key)
            assert violations(page) == [], state
        page.keyboard.press("Escape")
        for dialog, key in {".help": "?", ".flagging": "f"}.items():
            page.keyboard.press(key)
            expect(page.locator(dialog)).to_be_visible()
            assert violations(page) == [], dialog
            page.keyboard.press("Escape")
        page.keyboard.press("e")
        page.locator(".editor").get_by_role("radio", name="A", exact=True).check()
        page.locator(".editor textarea").fill("yes, and more")
        assert violations(page) == [], "editor"
        page.keyboard.press("Escape")
        for menu in (".more", ".menu"):
            page.locator(f"{menu} summary").click()
            assert violations(page, menu) == [], menu  # it covers parts of the page
        page.locator("[data-do=figures]").click()
        expect(page.locator(".figures")).to_be_visible()
        assert violations(page) == [], "figures"
        page.keyboard.press("Escape")

        press(page, "1")
        page.keyboard.press("m")
        expect(page.locator(".drawer .given")).to_have_count(1)
        expect(page.locator(".drawer .answers li")).to_have_count(1)
        assert violations(page) == [], "my judgments"
        page.locator(".drawer .given").click()
        expect(page.locator(".revising")).to_be_visible()
        assert violations(page) == [], "an earlier pair"
        page.keyboard.press("Escape")
        expect(page.locator(".revising")).to_be_hidden()
        wait_for_pair(page)
        page.context.set_offline(True)
        page.route("**/label/api/judgments", lambda route: route.abort())
        page.keyboard.press("2")
        expect(page.locator(".status")).to_have_attribute("data-status", "waiting")
        assert violations(page) == [], "offline"
        page.unroute("**/label/api/judgments")
        page.context.set_offline(False)
        expect(page.locator(".empty h1")).to_have_text("All caught up")
        assert violations(page) == [], "idle"


@pytest.mark.parametrize("width", [1440, 320])
def test_the_scale_of_one_press_violates_no_rule(browser, world, server, width):
    settings.choose_judgment_form(world[0], settings.JudgmentForm("one-press"))
    person = add_person(world[0], f"one press {width}")
    with desk_page(browser, world, server, person, width=width) as page:
        expect(page.locator(".choice")).to_have_count(8)
        assert violations(page) == []
    settings.choose_judgment_form(world[0], settings.JudgmentForm())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 320])
def test_a_form_with_all_parts_violates_no_rule(browser, world, server, width, scheme):
    form = settings.JudgmentForm(
        reasons=("too long", "wrong"), rationale="required", safety="required"
    )
    settings.choose_judgment_form(world[0], form)
    person = add_person(world[0], f"all parts {width} {scheme}")
    with desk_page(browser, world, server, person, width=width, scheme=scheme) as page:
        page.keyboard.press("y")
        for name in ("safety=unsafe][data-side=a", "reason=wrong][data-side=b"):
            page.locator(f"[data-{name}]").click()
        page.locator(".choice.a").click()
        expect(page.locator(".told")).not_to_be_empty()
        assert violations(page) == []
    settings.choose_judgment_form(world[0], settings.JudgmentForm())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 320])
def test_marks_violate_no_rule(browser, world, server, width, scheme):
    settings.choose_judgment_form(world[0], settings.JudgmentForm(reasons=("wrong",), marks=True))
    person = add_person(world[0], f"marks {width} {scheme}")
    with desk_page(browser, world, server, person, width=width, scheme=scheme) as page:
        page.add_style_tag(content=".verdict { position: static !important }")
        for reason in ("good", "bad", "wrong"):
            page.evaluate(
                "getSelection().selectAllChildren(document.querySelector('.response.a .text > *'))"
            )
            expect(page.locator(".marking")).to_be_visible()
            assert violations(page, ".marking") == []  # it covers parts of the page
            page.locator(f"[data-mark={reason}]").click()
        expect(page.locator(".response.a .marks li")).to_have_count(3)
        assert violations(page) == [], "marks"
        page.keyboard.press("r")
        assert violations(page) == [], "marks of another view"
        page.keyboard.press("h")
        expect(page.locator("[role=textbox]").first).to_be_focused()
        assert violations(page) == [], "caret"
    settings.choose_judgment_form(world[0], settings.JudgmentForm())


def test_the_rules_find_a_violation(browser, world, server):
    with desk_page(browser, world, server, add_person(world[0], "control")) as page:
        page.locator(".choices").evaluate("n => n.append(document.createElement('button'))")
        assert "button-name" in {rule for rule, _ in violations(page)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sign_in_page_violates_no_rule(browser, server, scheme):
    with new_page(browser, scheme=scheme) as page:
        page.goto(f"{server.url}/sign-in")
        assert violations(page) == []
