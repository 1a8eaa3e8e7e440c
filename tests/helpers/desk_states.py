"""A walk through every state of the annotator's page and of the account pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI
from playwright.sync_api import Page, Route, expect

from storage.engine.database import Database
from storage.generation_records import GenerationRefused
from storage.importing.imports import import_practice
from storage.labeling import judgments, queue
from storage.labeling.flag_answers import answer_flag
from storage.records import Annotator
from storage.tables import settings
from storage.tables.people import tokens
from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import press, shown, wait_for_other
from tests.helpers.desk_world import add_pairs, add_person, make_app, plain_pairs, workspace
from tests.helpers.followed_up import follow_up
from tests.helpers.scripted_generation import Scripted
from tests.helpers.specimens import SPECIMENS

PRACTICE_ROWS = [
    {
        "prompt": f"Practice {number}?",
        "response_a": "right",
        "response_b": "wrong",
        "answer": "a",
        "explanation": "**Right** because it is.",
    }
    for number in range(2)
]
FORM = settings.JudgmentForm(reasons=("too long", "wrong"), safety="optional", marks=True)
# The whole texts would take axe minutes.
SEEN = [(prompt, text[:2000], text[:1000]) for prompt, text in SPECIMENS.values()]
PASSWORD = "correct horse battery"


class Walk(Protocol):
    """What a test does in each state; `part` if something covers the rest of the page."""

    page: Page

    def state(self, name: str, part: str = "html", page: Page | None = None) -> None: ...


@dataclass(frozen=True)
class Studio:
    """A workspace in which each person finds every state."""

    db: Database
    app: FastAPI
    script: Scripted
    people: dict[str, Annotator]


@contextmanager
def studio(folder: Path, names: list[str], texts: list[Any]) -> Iterator[Studio]:
    file = folder / "practice.jsonl"
    file.write_text("\n".join(map(json.dumps, PRACTICE_ROWS)))
    script = Scripted()
    with workspace(folder / "w", []) as db:
        add_pairs(db, [*plain_pairs(4), *texts], wanted=99)
        people = {name: add_person(db, f"Ann {name}") for name in names}
        for person in people.values():
            follow_up(db, person, [("a", 2, "Better."), ("b", None, "=b")])
            answer_a_flag(db, person)
        import_practice(db, file)
        settings.ask_for_practice(db, True)
        settings.choose_judgment_form(db, FORM)
        yield Studio(db, make_app(db, generation=script), script, people)


def answer_a_flag(db: Database, person: Annotator) -> None:
    [pair] = queue.lease(db, person.id, 1).pairs
    flag = judgments.flag(
        db, id=f"f-{person.id}", comparison=pair.comparison.id, annotator=person.id, comment="Rude."
    )
    answer_flag(
        db, id=f"a-{person.id}", flag=flag.id, researcher="rosa", text="Thank you.", clear=True
    )


def go_through(walk: Walk, world: Studio, url: str, person: Annotator) -> None:
    """One way through all states, for a person who has judged nothing."""
    world.script.reset()
    page = walk.page
    page.emulate_media(reduced_motion="reduce")  # no color fades
    # A service worker could send what `troubles` holds back.
    page.add_init_script("Object.defineProperty(Navigator.prototype, 'serviceWorker', {})")
    page.goto(f"{url}/label/")
    wait_for_pair(page)
    practice(walk)
    panels(walk)
    marks(walk)
    live(walk, world.script)
    dialogs_of_own_work(walk)
    specimens(walk)
    troubles(walk, url)
    account_pages(walk, world.db, url, person)


def practice(walk: Walk) -> None:
    page = walk.page
    walk.state("practice pair")
    for name in ("explanation", "end of practice"):
        page.keyboard.press("1")
        expect(page.locator("dialog.practice")).to_be_visible()
        walk.state(name)
        page.keyboard.press("Enter")
        expect(page.locator("dialog.practice")).to_be_hidden()
        wait_for_pair(page)


def panels(walk: Walk) -> None:
    page = walk.page
    walk.state("judging")
    for name, key in {
        "details": "d",
        "plain text": "r",
        "differences": "w",
        "guidelines": "g",
    }.items():
        page.keyboard.press(key)
        walk.state(name)
        page.keyboard.press(key)
    page.keyboard.press("c")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".told")).not_to_be_empty()
    walk.state("a choice is missing")
    page.keyboard.press("d")
    for name, key in {".help": "?", ".flagging": "f"}.items():
        page.keyboard.press(key)
        expect(page.locator(name)).to_be_visible()
        walk.state(name)
        if key == "?":
            page.locator(".help .changer").first.click()
            walk.state("a new key")
            page.keyboard.press("Escape")
        page.keyboard.press("Escape")
    page.keyboard.press("e")
    walk.state("editor")
    page.locator(".editor").get_by_role("radio").first.check()
    page.locator(".editor textarea").fill("yes, and more")
    walk.state("edited")
    page.keyboard.press("Escape")
    for menu in (".more", ".menu"):
        page.locator(f"{menu} summary").click()
        walk.state(menu, menu)
        page.keyboard.press("Escape")


def marks(walk: Walk) -> None:
    page = walk.page
    for reason in ("good", "wrong"):
        page.evaluate(
            "getSelection().selectAllChildren(document.querySelector('.response.a .text > *'))"
        )
        expect(page.locator(".marking")).to_be_visible()
        walk.state("reasons of a mark", ".marking")
        page.locator(f"[data-mark={reason}]").click()
    walk.state("marks")
    page.keyboard.press("h")
    expect(page.locator("[role=textbox]").first).to_be_focused()
    walk.state("caret")
    page.keyboard.press("Escape")


def live(walk: Walk, script: Scripted) -> None:
    page = walk.page
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
    walk.state("live")
    script.pause = asyncio.Event()
    field.fill("How long?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".live .streams p").last).not_to_be_empty()
    walk.state("streaming")
    script.pause.set()
    wait_for_pair(page)
    script.pause = None
    walk.state("turn")
    page.keyboard.press("1")
    expect(field).to_be_focused()
    walk.state("between turns")
    field.fill("And then?")
    page.keyboard.press("Control+Enter")
    wait_for_pair(page)
    page.keyboard.press("9")
    expect(page.locator("[data-live=fresh]")).to_be_focused()
    walk.state("conversation over")
    page.keyboard.press("Enter")
    field.fill("Again?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".live .heard")).not_to_be_empty()
    expect(field).to_be_visible()
    walk.state("failed turn")
    field.fill("")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    wait_for_pair(page)


def dialogs_of_own_work(walk: Walk) -> None:
    page = walk.page
    press(page, "1")
    page.keyboard.press("m")
    drawer = page.locator(".drawer")
    expect(drawer.locator(".given").first).to_be_visible()
    expect(drawer.locator(".answers li")).to_have_count(1)
    walk.state("my judgments and an answer to a flag")
    drawer.get_by_role("searchbox").fill("zzzz")
    expect(drawer.locator(".given")).to_have_count(0)
    walk.state("nothing found")
    drawer.get_by_role("searchbox").fill("")
    drawer.locator(".given").first.click()
    expect(page.locator(".revising")).to_be_visible()
    walk.state("an earlier pair")
    page.keyboard.press("Escape")
    wait_for_pair(page)
    for name in ("figures", "changes"):
        page.locator(".menu summary").click()
        page.locator(f".menu [data-do={name}]").click()
        expect(page.locator(f".{name} :is(li, dd)").first).to_be_visible()
        walk.state(name)
        page.keyboard.press("Escape")


def specimens(walk: Walk) -> None:
    page = walk.page
    wait_for_pair(page)
    left = len(SEEN)
    while left:
        before = shown(page)
        if before[0].startswith("specimen"):
            walk.state(before[0], ".pair")
            left -= 1
        page.keyboard.press("1")
        if left:
            wait_for_other(page, before)


def troubles(walk: Walk, url: str) -> None:
    page = walk.page
    second = page.context.new_page()
    second.emulate_media(reduced_motion="reduce")
    second.goto(f"{url}/label/")
    expect(second.locator(".here")).to_be_visible()
    walk.state("open elsewhere", page=second)
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
    walk.state("no pair left")
    for name, answer in {"offline": None, "signed out": 401, "refused": 409}.items():
        page.keyboard.press("z")
        wait_for_pair(page)
        expect(page.locator(".status")).to_have_attribute("data-status", "saved")
        # A page's own routes miss requests that pass its service worker.
        page.context.route("**/label/api/judgments", answering(answer))
        page.keyboard.press("1")
        kind = "refused" if answer == 409 else "waiting"
        expect(page.locator(".status")).to_have_attribute("data-status", kind)
        walk.state(name)
        page.context.unroute("**/label/api/judgments")
        if answer == 409:
            page.locator(".tray button").last.click()
        else:
            page.evaluate("dispatchEvent(new Event('online'))")
            expect(page.locator(".status")).to_have_attribute("data-status", "saved")


def answering(status: int | None) -> Callable[[Route], None]:
    """A handler of requests; None: no connection."""

    def handle(route: Route) -> None:
        if status:
            route.fulfill(status=status, json={"error": "It was refused."})
        else:
            route.abort()

    return handle


def account_pages(walk: Walk, db: Database, url: str, person: Annotator) -> None:
    page = walk.page
    page.goto(f"{url}/label/password")
    walk.state("no password to change")
    token = tokens.issue(db, person.id, "invite", lifetime=None)
    page.context.clear_cookies()
    page.goto(f"{url}/invite?token={token}")
    walk.state("invite")
    for field_, text in {"#password": PASSWORD, "#again": "another one"}.items():
        page.locator(field_).fill(text)
    page.locator("form button").click()
    expect(page.locator(".problem")).to_be_visible()
    walk.state("invite with a mistake")
    for field_ in ("#password", "#again"):
        page.locator(field_).fill(PASSWORD)
    page.locator("form button").click()
    wait_for_pair_or_idle(page)
    page.goto(f"{url}/label/password")
    walk.state("change of the password")
    for field_, text in {"#old": "wrong", "#password": PASSWORD, "#again": PASSWORD}.items():
        page.locator(field_).fill(text)
    page.locator("form button").click()
    expect(page.locator(".problem")).to_be_visible()
    walk.state("change with a mistake")
    page.goto(f"{url}/nowhere")
    walk.state("missing page")
    page.context.clear_cookies()
    page.goto(f"{url}/sign-in")
    walk.state("sign in")
    page.locator("#name").fill(person.name)
    page.locator("#password").fill("wrong")
    page.locator("form button").click()
    expect(page.locator(".problem")).to_be_visible()
    walk.state("sign in with a mistake")


def wait_for_pair_or_idle(page: Page) -> None:
    page.wait_for_selector(".desk:is([data-state=judging], [data-state=idle])")
