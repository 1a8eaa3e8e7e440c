"""What did my labels do?: the pairs, the choice and the new answer, on any screen and in any language."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from labeler.translation import catalog
from storage.engine import lookup
from storage.records import FollowUp, Iteration
from storage.tables import iterations
from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import desk_page, shown
from tests.helpers.followed_up import follow_up
from tests.labeler.annotate.test_browser_axe import violations

HOSTILE = "**Bold** <img src=x onerror=alert(1)> $x^2$"
ANSWERS = [("a", 2, HOSTILE), ("b", None, "=b"), ("a", None, "=b")]


def open_changes(page):
    page.locator(".menu summary").click()
    page.locator(".menu [data-do=changes]").click()
    expect(page.locator(".changes")).to_be_visible()
    return page.locator(".changes")


def test_the_page_shows_each_pair_as_it_was_judged_and_claims_no_cause(browser, world, server, who):
    follow_up(world[0], who, ANSWERS)
    with desk_page(browser, world, server, who) as page:
        pair = shown(page)
        changes = open_changes(page)
        expect(changes.locator("li")).to_have_count(3)
        expect(changes.locator("[role=status]")).to_have_text(
            "Your 3 judgments were among the 367 that trained the reward model of iteration 1."
        )
        expect(changes.locator(".honest")).to_contain_text("Nobody can tell what a single judgment")
        expect(changes.locator(".refused")).to_be_hidden()
        expect(changes.get_by_label("Iteration")).to_be_hidden()
        row = changes.locator("li").filter(has=page.locator("strong"))
        expect(row.locator(".card.a .mark")).to_have_text("Your choice: A is clearly better")
        expect(row.locator(".card.b .mark")).to_have_count(0)
        expect(row.locator(".card.new .mark")).to_have_count(0)
        expect(row.locator(".card.new strong")).to_have_text("Bold")
        expect(row.locator(".card.new math")).to_have_count(1)
        assert changes.locator("img").count() == 0
        kept = changes.locator("li").filter(has_text="Your choice: B is better")
        expect(kept.locator(".card.new .mark")).to_have_text("The same as response B")
        worse = changes.locator("li").filter(has_text="Your choice: A is better")
        expect(worse.locator(".card.new .mark")).to_have_text("The same as response B")
        page.keyboard.press("1")  # no key reaches the pair behind
        page.keyboard.press("Escape")
        expect(changes).to_be_hidden()
        assert shown(page) == pair
        expect(page.locator(".menu summary")).to_be_focused()
    assert world[0].read(
        "SELECT count(*) AS n FROM judgments WHERE annotator = $who", who=who.id
    ) == [{"n": 3}]


def test_the_newest_iteration_is_shown_and_an_earlier_one_can_be_chosen(
    browser, world, server, who
):
    db = world[0]
    follow_up(db, who, ANSWERS[:1])
    [id] = [
        row["id"] for row in db.read("SELECT id FROM follow_ups ORDER BY created_at DESC LIMIT 1")
    ]
    newer = replace(
        lookup.by_key(db, FollowUp, id), id=f"{id}-2", iteration=2, text="Of the second policy."
    )
    db.write(lambda tx: tx.store(newer))
    iterations.save(db, Iteration(number=2, phase="sampling", reward_model="reward-1"))
    with desk_page(browser, world, server, who) as page:
        changes = open_changes(page)
        status = changes.locator("[role=status]")
        expect(status).to_contain_text("iteration 2.")
        expect(changes.locator(".card.new .text")).to_have_text("Of the second policy.")
        changes.get_by_label("Iteration").select_option("1")
        expect(status).to_contain_text("iteration 1.")
        expect(changes.locator(".card.new strong")).to_have_text("Bold")


def test_before_the_first_training_the_page_says_what_will_come(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        changes = open_changes(page)
        expect(changes.locator("[role=status]")).to_contain_text("Nothing yet.")
        expect(changes.locator(".honest")).to_be_hidden()
        page.keyboard.press("Escape")
        page.context.set_offline(True)
        open_changes(page)
        expect(changes.locator("[role=status]")).to_contain_text("No connection")


@pytest.mark.parametrize(
    ("width", "scheme", "language"),
    [(1440, "light", "en"), (1024, "dark", "de"), (390, "dark", "ja"), (320, "light", "ar")],
)
def test_it_fits_any_screen_in_any_language_and_violates_no_rule(
    browser, world, server, who, width, scheme, language
):
    follow_up(world[0], who, ANSWERS)
    with desk_page(
        browser, world, server, who, width=width, scheme=scheme, locale=language
    ) as page:
        changes = open_changes(page)
        expect(changes.locator("li")).to_have_count(3)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        overflow = "node => node.scrollWidth - node.clientWidth"
        assert changes.evaluate(overflow) <= 0
        assert violations(page) == []
        if language != "en":
            expect(changes.locator("h2")).to_have_text(catalog(language)["What did my labels do?"])
        first, last = (
            changes.locator(f"li:first-child .card.{s}").bounding_box() for s in ("a", "new")
        )
        assert first
        assert last
        if width <= 800:
            assert last["y"] > first["y"]
        else:
            assert last["x"] > first["x"]


def test_a_refused_policy_is_said(browser, world, server, who):
    db = world[0]
    follow_up(db, who, ANSWERS)
    iterations.save(db, Iteration(number=2, phase="sampling", verdict="blocked"))
    with desk_page(browser, world, server, who) as page:
        wait_for_pair(page)
        changes = open_changes(page)
        expect(changes.locator(".refused")).to_contain_text("was not accepted")
