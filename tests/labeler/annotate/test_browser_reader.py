"""The annotator's page as a screen reader has it: headings, names, announcements and the focus."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.helpers.browser import chromium
from tests.helpers.desk_browser import desk_page, press
from tests.helpers.desk_world import add_person, make_app, serving, workspace
from tests.helpers.scripted_generation import Scripted

HEADINGS = "# Part\n\n### Deep\n\n## Next\n\ntext"
TEXTS = [("A question?", HEADINGS, "```python\nx = 1\n```")]
TEXTS += [(f"Question {n}?", f"first {n}", f"second {n}") for n in range(20)]


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    script = Scripted()
    with workspace(tmp_path_factory.mktemp("reader"), TEXTS) as db:
        app = make_app(db, generation=script)
        with serving(app) as server, chromium() as browser:
            yield browser, (db, app), server, script


@pytest.fixture
def page(studio, request):
    browser, world, server, script = studio
    script.reset()
    person = add_person(world[0], request.node.name)
    with desk_page(browser, world, server, person, width=1024) as page:
        expect(page.locator("nav [data-do=live]")).to_be_visible()
        yield page


def test_headings_of_a_response_are_below_its_own_without_gaps(page):
    while "Part" not in page.locator(".pair").inner_text():
        press(page, "s")
    levels = (
        page.locator(".pair")
        .get_by_role("heading")
        .evaluate_all(
            """all => all.map((n) => [n.textContent.trim().split(" ").at(-1),
            Number(n.getAttribute("aria-level") ?? n.tagName[1])])"""
        )
    )
    found = dict(levels)
    assert [found[name] for name in ("Part", "Deep", "Next")] == [3, 4, 4]
    assert page.get_by_role("group", name="python").get_by_role("button", name="Copy").count() == 1
