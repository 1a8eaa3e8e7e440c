"""axe in every state that the annotator's page has, in every language, wide and light, narrow and dark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from labeler.translation import LANGUAGES
from storage.generation_records import GenerationRefused
from storage.importing.imports import import_practice
from storage.tables import settings, tokens
from tests.helpers.browser import chromium, new_page, wait_for_pair
from tests.helpers.desk_browser import cookie_of, press, shown, wait_for_other
from tests.helpers.desk_world import (
    add_pairs,
    add_person,
    make_app,
    plain_pairs,
    serving,
    workspace,
)
from tests.helpers.followed_up import follow_up
from tests.helpers.scripted_generation import Scripted
from tests.helpers.specimens import SPECIMENS
from tests.labeler.annotate.test_browser_axe import RULES, TEXTS, answer_a_flag
from tests.labeler.annotate.test_browser_practice import ROWS

VIEWS = ((1280, "light"), (390, "dark"))
APPEARANCE = ["color-contrast", "target-size", "scrollable-region-focusable"]
"""The rules that may find something else in the second view."""
FORM = settings.JudgmentForm(reasons=("too long", "wrong"), safety="optional", marks=True)
# Of a long text, axe would measure the contrast of each word.
SEEN = [(prompt, text[:2000], text[:1000]) for prompt, text in SPECIMENS.values()]
PASSWORD = "correct horse battery"


@dataclass
class Sweep:
    """What axe finds in the states of one language."""

    page: Page
    states: list[str] = field(default_factory=list)
    found: list[tuple[str, ...]] = field(default_factory=list)

    def state(self, name: str, part: str = "html", page: Page | None = None) -> None:
        """Run axe in both views; `part` if something covers the rest of the page."""
        page = page or self.page
        self.states.append(name)
        for width, scheme in VIEWS:
            only = {"runOnly": APPEARANCE} if (width, scheme) != VIEWS[0] else {}
            page.set_viewport_size({"width": width, "height": 860})
            page.emulate_media(color_scheme=scheme)
            if not page.evaluate("Boolean(window.axe)"):
                page.evaluate(Axe().axe_script)
            options = {"rules": RULES, "resultTypes": ["violations"], **only}
            for each in page.evaluate("([part, how]) => axe.run(part, how)", [part, options])[
                "violations"
            ]:
                self.found += [
                    (name, f"{width} {scheme}", each["id"], node["html"][:150])
                    for node in each["nodes"]
                ]
        page.set_viewport_size({"width": VIEWS[0][0], "height": 860})


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    file = folder / "practice.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    script = Scripted()
    with workspace(folder / "w", []) as db:
        add_pairs(db, [*plain_pairs(4), *TEXTS, *SEEN], wanted=99)
        people = {language: add_person(db, f"Ann {language}") for language in LANGUAGES}
        for person in people.values():
            follow_up(db, person, [("a", 2, "Better."), ("b", None, "=b")])
            answer_a_flag(db, person)
        import_practice(db, file)
        settings.ask_for_practice(db, True)
        settings.choose_judgment_form(db, FORM)
        app = make_app(db, generation=script)
        with serving(app) as server, chromium() as browser:
            yield browser, (db, app), server, script, people


@pytest.fixture
def sweep(studio, request) -> Iterator[Sweep]:
    browser, world, server, _, people = studio
    cookie = cookie_of(world, server.url, people[request.param])
    with new_page(browser, locale=request.param, cookie=cookie) as page:
        page.emulate_media(reduced_motion="reduce")  # no color fades
        # A service worker could send what `troubles` holds back.
        page.add_init_script("Object.defineProperty(Navigator.prototype, 'serviceWorker', {})")
        yield Sweep(page)


def check_all(sweep: Sweep, studio, language: str) -> None:
    """One way through all states."""
    _, world, server, script, people = studio
    script.reset()
    page = sweep.page
    page.goto(f"{server.url}/label/")
    wait_for_pair(page)
    expect(page.locator("html")).to_have_attribute("lang", language)
    # A bar that covers half of a button makes it a small target, until the page is scrolled.
    page.add_style_tag(content=".verdict { position: static !important }")
    practice(sweep)
    panels(sweep)
    marks(sweep)
    live(sweep, script)
    dialogs_of_own_work(sweep)
    specimens(sweep)
    troubles(sweep, server)
    account_pages(sweep, world[0], server.url, people[language])
    assert sweep.found == []


def practice(sweep: Sweep) -> None:
    page = sweep.page
    sweep.state("practice pair")
    for name in ("explanation", "end of practice"):
        page.keyboard.press("1")
        expect(page.locator("dialog.practice")).to_be_visible()
        sweep.state(name)
        page.keyboard.press("Enter")
        expect(page.locator("dialog.practice")).to_be_hidden()
    wait_for_pair(page)


def panels(sweep: Sweep) -> None:
    page = sweep.page
    sweep.state("judging")
    for name, key in {
        "details": "d",
        "plain text": "r",
        "differences": "w",
        "guidelines": "g",
    }.items():
        page.keyboard.press(key)
        sweep.state(name)
        page.keyboard.press(key)
    page.keyboard.press("c")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".told")).not_to_be_empty()
    sweep.state("a choice is missing")
    page.keyboard.press("d")
    for name, key in {".help": "?", ".flagging": "f"}.items():
        page.keyboard.press(key)
        expect(page.locator(name)).to_be_visible()
        sweep.state(name)
        if key == "?":
            page.locator(".help .changer").first.click()
            sweep.state("a new key")
            page.keyboard.press("Escape")
        page.keyboard.press("Escape")
    page.keyboard.press("e")
    sweep.state("editor")
    page.locator(".editor").get_by_role("radio").first.check()
    page.locator(".editor textarea").fill("yes, and more")
    sweep.state("edited")
    page.keyboard.press("Escape")
    for menu in (".more", ".menu"):
        page.locator(f"{menu} summary").click()
        sweep.state(menu, menu)
        page.keyboard.press("Escape")


def marks(sweep: Sweep) -> None:
    page = sweep.page
    for reason in ("good", "wrong"):
        page.evaluate(
            "getSelection().selectAllChildren(document.querySelector('.response.a .text > *'))"
        )
        expect(page.locator(".marking")).to_be_visible()
        sweep.state("reasons of a mark", ".marking")
        page.locator(f"[data-mark={reason}]").click()
    sweep.state("marks")
    page.keyboard.press("h")
    expect(page.locator("[role=textbox]").first).to_be_focused()
    sweep.state("caret")
    page.keyboard.press("Escape")


def live(sweep: Sweep, script: Scripted) -> None:
    page = sweep.page
    script.texts = [
        "One more.",
        "Two more.",
        "Three",
        "Four",
        GenerationRefused("It stopped."),
        "x",
    ]
    page.keyboard.press("l")
    field = page.locator(".live textarea")
    expect(field).to_be_focused()
    expect(page.locator(".live .heard")).to_have_text("")
    sweep.state("live")
    script.pause = asyncio.Event()
    field.fill("How long?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".live .streams p").last).not_to_be_empty()
    sweep.state("streaming")
    script.pause.set()
    wait_for_pair(page)
    script.pause = None
    sweep.state("turn")
    page.keyboard.press("1")
    expect(field).to_be_focused()
    sweep.state("between turns")
    field.fill("And then?")
    page.keyboard.press("Control+Enter")
    wait_for_pair(page)
    page.keyboard.press("9")
    expect(page.locator("[data-live=fresh]")).to_be_focused()
    sweep.state("conversation over")
    page.keyboard.press("Enter")
    field.fill("Again?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".live .heard")).not_to_be_empty()
    expect(field).to_be_visible()
    sweep.state("failed turn")
    field.fill("")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    wait_for_pair(page)


def dialogs_of_own_work(sweep: Sweep) -> None:
    page = sweep.page
    press(page, "1")
    page.keyboard.press("m")
    drawer = page.locator(".drawer")
    expect(drawer.locator(".given").first).to_be_visible()
    expect(drawer.locator(".answers li")).to_have_count(1)
    sweep.state("my judgments and an answer to a flag")
    drawer.get_by_role("searchbox").fill("zzzz")
    expect(drawer.locator(".given")).to_have_count(0)
    sweep.state("nothing found")
    drawer.get_by_role("searchbox").fill("")
    drawer.locator(".given").first.click()
    expect(page.locator(".revising")).to_be_visible()
    sweep.state("an earlier pair")
    page.keyboard.press("Escape")
    wait_for_pair(page)
    for name in ("figures", "changes"):
        page.locator(".menu summary").click()
        page.locator(f".menu [data-do={name}]").click()
        expect(page.locator(f".{name} :is(li, dd)").first).to_be_visible()
        sweep.state(name)
        page.keyboard.press("Escape")


def specimens(sweep: Sweep) -> None:
    page = sweep.page
    wait_for_pair(page)
    left = len(SEEN)
    while left:
        before = shown(page)
        if before[0].startswith("specimen"):
            sweep.state(before[0], ".pair")
            left -= 1
        page.keyboard.press("1")
        if left:
            wait_for_other(page, before)


def troubles(sweep: Sweep, server) -> None:
    page = sweep.page
    second = page.context.new_page()
    second.emulate_media(reduced_motion="reduce")
    second.goto(f"{server.url}/label/")
    expect(second.locator(".here")).to_be_visible()
    sweep.state("open elsewhere", page=second)
    second.close()
    while page.locator(".desk").get_attribute("data-state") == "judging":
        before = shown(page)
        page.keyboard.press("1")
        page.wait_for_function(
            "old => document.querySelector('.desk').dataset.state !== 'judging' || document.querySelector('.turn.last .text').innerText.trim() !== old",
            arg=before[0],
        )
        page.wait_for_timeout(300)
    expect(page.locator(".status")).to_have_attribute("data-status", "saved")
    sweep.state("no pair left")
    for name, answer in {"offline": None, "signed out": 401, "refused": 409}.items():
        page.keyboard.press("z")
        wait_for_pair(page)
        expect(page.locator(".status")).to_have_attribute("data-status", "saved")
        page.route("**/label/api/judgments", answering(answer))
        page.keyboard.press("1")
        kind = "refused" if answer == 409 else "waiting"
        expect(page.locator(".status")).to_have_attribute("data-status", kind)
        sweep.state(name)
        page.unroute("**/label/api/judgments")
        if answer == 409:
            page.locator(".tray button").last.click()
        else:
            page.evaluate("dispatchEvent(new Event('online'))")
            expect(page.locator(".status")).to_have_attribute("data-status", "saved")


def answering(status: int | None):
    """A handler of requests; None: no connection."""

    def handle(route) -> None:
        if status:
            route.fulfill(status=status, json={"error": "It was refused."})
        else:
            route.abort()

    return handle


def account_pages(sweep: Sweep, db, url: str, person) -> None:
    page = sweep.page
    page.goto(f"{url}/label/password")
    sweep.state("no password to change")
    token = tokens.issue(db, person.id, "invite", lifetime=None)
    page.context.clear_cookies()
    page.goto(f"{url}/invite?token={token}")
    sweep.state("invite")
    for field_, text in {"#password": PASSWORD, "#again": "another one"}.items():
        page.locator(field_).fill(text)
    page.locator("form button").click()
    expect(page.locator(".problem")).to_be_visible()
    sweep.state("invite with a mistake")
    for field_ in ("#password", "#again"):
        page.locator(field_).fill(PASSWORD)
    page.locator("form button").click()
    wait_for_pair_or_idle(page)
    page.goto(f"{url}/label/password")
    sweep.state("change of the password")
    for field_, text in {"#old": "wrong", "#password": PASSWORD, "#again": PASSWORD}.items():
        page.locator(field_).fill(text)
    page.locator("form button").click()
    expect(page.locator(".problem")).to_be_visible()
    sweep.state("change with a mistake")
    page.goto(f"{url}/nowhere")
    sweep.state("missing page")
    page.context.clear_cookies()
    page.goto(f"{url}/sign-in")
    sweep.state("sign in")
    page.locator("#name").fill(person.name)
    page.locator("#password").fill("wrong")
    page.locator("form button").click()
    expect(page.locator(".problem")).to_be_visible()
    sweep.state("sign in with a mistake")


def wait_for_pair_or_idle(page: Page) -> None:
    page.wait_for_selector(".desk:is([data-state=judging], [data-state=idle])")


@pytest.mark.parametrize("sweep", ["en"], indirect=True)
def test_no_state_violates_a_rule(sweep, studio):
    check_all(sweep, studio, "en")


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [each for each in LANGUAGES if each != "en"], indirect=True)
def test_no_state_violates_a_rule_in_any_language(sweep, studio, request):
    check_all(sweep, studio, request.node.callspec.params["sweep"])


def test_both_views_are_checked(studio):
    with new_page(studio[0]) as page:
        page.set_content(
            "<html lang=en><title>x</title><style>@media (max-width: 800px) { p { color: #aaa } }</style>"
            "<main><h1>x</h1><p>pale</p><button></button></main>"
        )
        sweep = Sweep(page)
        sweep.state("control")
    assert [each[1:3] for each in sweep.found] == [
        ("1280 light", "button-name"),
        ("390 dark", "color-contrast"),
    ]
