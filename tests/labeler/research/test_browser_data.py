"""The sections Judgments, Adjudication and Prompts in a real browser, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from labeler.app import create_app
from storage.browsing.prompts import browse_prompts
from storage.engine.database import Database
from storage.labeling import adjudication
from storage.records import Annotator
from storage.tables.people import annotators, tokens
from tests.helpers.browsed import fill
from tests.helpers.browser import SLOW, chromium, find_chromium, new_page
from tests.helpers.desk_world import Server, serving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop

expect.set_options(timeout=SLOW)


@dataclass(frozen=True)
class World:
    """A served workspace with the judgments of `tests.helpers.browsed`."""

    db: Database
    server: Server

    def cookie(self, who: str) -> tuple[str, str, str]:
        secret = tokens.issue(self.db, who, "session", lifetime=None)
        return (self.server.url, self.server.app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    find_chromium()  # skips before anything is served
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        fill(db)
        annotators.add(db, Annotator(id="vi", name="Vi", role="viewer"))
        app = in_a_loop(
            lambda: create_app(
                db, loop=RecordingLoop(db=db), admin=lambda *_: None, admin_token="t",
                accounts_required=False,
            )
        )  # fmt: skip
        with serving(app) as server:
            yield World(db, server)


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[Browser]:
    assert world.server.url
    with chromium() as running:
        yield running


@contextmanager
def section(browser: Browser, world: World, name: str, who: str = "rosa", **more) -> Iterator[Page]:
    with new_page(browser, cookie=world.cookie(who), **more) as page:
        query = "?tab=data" + (f"&section={name}" if name else "")
        page.goto(f"{world.server.url}/research/{query}")
        yield page


def test_judgments_are_filtered_opened_excluded_and_a_flag_is_answered(browser, world) -> None:
    with section(browser, world, "") as page:
        items = page.locator("#judgments button")
        expect(items).to_have_count(7)
        page.locator("#judgments-text").get_by_role("textbox").fill("rice")
        expect(items).to_have_count(2)
        page.get_by_label("Surprises the reward model").check()
        expect(items).to_have_count(1)
        items.first.click()
        pair = page.locator("#judgment-pair")
        expect(pair).to_contain_text("Use a fish kettle.")
        expect(pair).to_contain_text("90% by reward-2")
        page.get_by_role("button", name="Clear filters").click()
        expect(items).to_have_count(7)
        pair.locator(".ks-given", has_text="bob").get_by_role("button", name="Exclude").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("not their own words")
        page.get_by_role("dialog").get_by_role("button", name="Exclude").click()
        expect(page.locator("#judgments-answer")).to_contain_text("The judgment is excluded.")
        expect(pair).to_contain_text("Excluded by Rosa")
        expect(items.filter(has_text="rice").filter(has_text="disagreement")).to_have_count(0)
        items.filter(has_text="haiku").last.click()
        pair.get_by_role("button", name="Answer").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("It is a haiku.")
        page.get_by_role("dialog").get_by_role("button", name="Answer and clear").click()
        expect(pair).to_contain_text("It is a haiku.")
        expect(pair.locator(".ks-badge", has_text="cleared")).to_be_visible()
        expect(pair.get_by_role("button", name="Clear", exact=True)).to_have_count(0)


def test_on_a_phone_the_pair_is_below_the_list_and_comes_into_view(browser, world) -> None:
    with section(browser, world, "", width=390, height=800) as page:
        page.locator("#judgments button", has_text="prime").click()
        pair = page.locator("#judgment-pair .ks-pair")
        expect(pair).to_contain_text("An odd number.")
        expect(pair).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_adjudicator_rules_blind_and_then_sees_the_votes(browser, world) -> None:
    adjudication.send(world.db, "c-2")
    with section(browser, world, "adjudication") as page:
        pair = page.locator("#waiting-pair")
        expect(pair).to_contain_text("What is a prime?")
        assert "policy-1" not in pair.inner_text()
        pair.get_by_role("button", name="A is better").click()
        expect(page.locator("#ruling-given")).to_contain_text("needs a reason")
        pair.get_by_label("Reason").fill("two divisors")
        pair.get_by_role("button", name="A is better").click()
        expect(page.locator("#ruling-given")).to_contain_text("ann: 2 is better")
        expect(page.locator("#rulings")).to_contain_text("two divisors")
        assert [each.comparison for each in adjudication.rulings(world.db)] == ["c-2"]


def test_on_a_phone_a_long_prompt_of_a_ruling_wraps(browser, world) -> None:
    adjudication.send(world.db, "c-4")
    adjudication.rule(
        world.db, id="r-phone", comparison="c-4", outcome="a", reason="a wren", adjudicator="rosa"
    )
    with section(browser, world, "adjudication", width=390) as page:
        cell = page.locator("#rulings td[data-label=Prompt]", has_text="Name a bird.").locator(
            "> *"
        )
        expect(cell).to_be_visible()
        right = cell.evaluate(
            "(each) => { each.textContent = 'Name a bird of the sea. '.repeat(9);"
            " const text = document.createRange(); text.selectNodeContents(each);"
            " return text.getBoundingClientRect().right; }"
        )
        assert right <= 390


def test_an_unknown_section_opens_the_first_one_of_its_page(browser, world) -> None:
    with section(browser, world, "nothing") as page:
        expect(page.locator("#judgments button").first).to_be_visible()
        expect(page).to_have_url(f"{world.server.url}/research/?tab=data")


def test_paragraphs_of_guidelines_are_apart(browser, world) -> None:
    with new_page(browser, cookie=world.cookie("rosa")) as page:
        page.goto(f"{world.server.url}/research/?tab=team&section=guidelines")
        paragraphs = page.locator(".ks-guidelines > p")
        expect(paragraphs.nth(1)).to_be_visible()
        first, second = (paragraphs.nth(n).bounding_box() for n in (-2, -1))
        assert first is not None
        assert second is not None
        assert second["y"] - first["y"] - first["height"] >= 6


def test_prompts_are_added_searched_and_retired(browser, world) -> None:
    with section(browser, world, "prompts") as page:
        table = page.locator("#prompts-table")
        expect(table.locator("tbody tr")).to_have_count(4)
        page.locator("#prompt-new textarea").fill("Why is the sky blue?")
        page.locator("#prompt-category").get_by_role("textbox").fill("facts")
        page.locator("#prompt-add").click()
        expect(page.locator("#prompt-answer")).to_contain_text("The prompt is stored")
        expect(table.locator("tbody tr")).to_have_count(5)
        page.locator("#prompts-text").get_by_role("textbox").fill("SKY")
        expect(table.locator("tbody tr")).to_have_count(1)
        table.get_by_role("button", name="Retire").click()
        expect(table.locator(".ks-badge", has_text="retired")).to_be_visible()
        table.get_by_role("button", name="Category").click()
        box = page.get_by_role("dialog").get_by_role("textbox")
        expect(box).to_have_value("facts")
        box.fill("science")
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(table).to_contain_text("science")
        [row] = [row for row in browse_prompts(world.db).rows if "sky" in row.text]
        assert (row.retired, row.category) == (True, "science")


def test_a_viewer_reads_and_gets_no_buttons_that_change_something(browser, world) -> None:
    with section(browser, world, "", who="vi") as page:
        page.locator("#judgments button").first.click()
        pair = page.locator("#judgment-pair .ks-pair")
        expect(pair).to_contain_text("Name a bird.")
        for name in ("Exclude", "Send to adjudication"):
            expect(pair.get_by_role("button", name=name)).to_have_count(0)
        page.goto(f"{world.server.url}/research/?tab=team")
        expect(page.locator("#people")).to_contain_text("bob")
        for name in ("Name", "Role", "Pairs", "Ask for practice"):
            expect(page.get_by_label(name, exact=True)).to_be_hidden()


def test_a_detected_tools_fields_are_named_on_the_page(browser, world, tmp_path) -> None:
    """The names of an Argilla file's fields are unusual: the report asks for them, and the page takes
    them.  The file is one line, as exports of tools are."""
    said = [{"value": "second", "user_id": "u-1"}]
    fields = {"task": "Name a tree.", "old": "An oak", "new": "A beech"}
    records = [
        {"id": "r1", "fields": {}, "responses": {}},
        {"id": "r2", "fields": fields, "responses": {"choice": said}},
    ]
    file = tmp_path / "records.json"
    file.write_text(json.dumps(records))
    with section(browser, world, "import") as page:
        form = page.locator(".ks-import")
        form.locator("input[type=file]").set_input_files(file)
        form.get_by_role("button", name="Preview").click()
        notes = form.locator(".im-notes")
        expect(notes).to_contain_text("Row 2 it is not clear")
        expect(notes).to_contain_text("name them under Names of fields: a=FIELD and b=FIELD.")
        expect(form.get_by_label("What it contains")).to_have_value("judgments:argilla")
        form.get_by_label("Names of fields").fill("prompt=task\na=old\nb=new")
        form.get_by_role("button", name="Preview").click()
        expect(form.locator(".im-rows")).to_contain_text("A beech")
        expect(form.locator(".im-rows caption")).to_have_text("The first 1 row as understood")
        expect(notes.first).to_contain_text("Row 1 ")
        warning = notes.filter(has_text="1 warning")
        expect(warning).to_contain_text("the responses have no status")
        expect(warning.locator("li")).to_be_visible()
