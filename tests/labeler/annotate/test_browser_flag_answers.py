"""An answer to a flag on the page: the quiet count, the list, and that nothing interrupts judging."""

from __future__ import annotations

import uuid

import pytest
from playwright.sync_api import expect

from storage.labeling.flag_answers import answer_flag
from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import desk_page, press, shown, status

HOSTILE = "<img src=x onerror=alert(1)> مرحبا"


def flag(page, comment):
    page.keyboard.press("f")
    page.locator(".flagging textarea").fill(comment)
    page.keyboard.press("Control+Enter")
    status(page, "saved")


def answer(db, who, text):
    [row] = db.read("SELECT id FROM flags WHERE annotator = $who", who=who.id)
    answer_flag(db, id=str(uuid.uuid4()), flag=row["id"], researcher="rosa", text=text)


@pytest.mark.parametrize(("width", "locale"), [(1280, "en-US"), (320, "ar")])
def test_an_answer_waits_in_the_menu_until_it_is_read(browser, world, server, who, width, locale):
    db, _ = world
    with desk_page(browser, world, server, who, width=width, locale=locale) as page:
        prompt = shown(page)[0]
        flag(page, "This is rude.")
        wait_for_pair(page)
        expect(page.locator(".menu .count")).to_be_hidden()
        answer(db, who, f"Removed, thank you. {HOSTILE}")
        pair = shown(page)
        press(page, "1")  # judging goes on
        status(page, "saved")
        page.reload()
        wait_for_pair(page)
        expect(page.locator(".menu .count")).to_have_text("1")
        assert page.locator("dialog[open]").count() == 0
        if locale == "en-US":
            expect(page.locator(".announcer")).to_have_text(
                "1 new answer to your flags in My judgments. New pair."
            )
            expect(page.locator(".menu summary")).to_have_accessible_name("Account 1 new answer")
        assert shown(page) != pair
        page.locator(".menu summary").click()
        page.locator(".menu [data-do=judgments]").click()
        answers = page.locator(".drawer .answers")
        expect(answers.locator("li")).to_have_count(1)
        expect(answers).to_have_attribute("open", "")
        expect(answers.locator("q")).to_have_text(prompt)
        expect(answers.locator(".own")).to_contain_text("This is rude.")
        expect(answers.locator(".said")).to_have_text(f"Removed, thank you. {HOSTILE}")
        assert answers.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        expect(page.locator(".menu .count")).to_be_hidden()
        page.keyboard.press("Escape")
        # A label after reading does not bring the count back.
        press(page, "2")
        status(page, "saved")
        expect(page.locator(".menu .count")).to_be_hidden()
        page.reload()
        wait_for_pair(page)
        expect(page.locator(".menu .count")).to_be_hidden()
        page.keyboard.press("m")
        expect(answers.locator("li")).to_have_count(1)
        expect(answers).not_to_have_attribute("open", "")
    read = db.read(
        "SELECT a.read_at FROM flag_answers a JOIN flags f ON f.id = a.flag WHERE f.annotator = $who",
        who=who.id,
    )
    assert [row["read_at"] is None for row in read] == [False]


def test_a_new_answer_is_announced_once_while_the_page_is_open(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        flag(page, "")
        wait_for_pair(page)
        answer(world[0], who, "Thanks.")
        page.keyboard.press("z")  # after an undo the page asks for its counts
        expect(page.locator(".menu .count")).to_have_text("1")
        expect(page.locator(".announcer")).to_have_text(
            "1 new answer to your flags in My judgments."
        )
        press(page, "1")
        status(page, "saved")
        expect(page.locator(".announcer")).to_have_text(
            "A is better. The pair that was here before."
        )


def test_without_a_connection_the_answers_stay_unread(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        flag(page, "")
        wait_for_pair(page)
        answer(world[0], who, "Thanks.")
        page.reload()
        wait_for_pair(page)
        page.context.set_offline(True)
        page.keyboard.press("m")
        expect(page.locator(".drawer [role=status]")).to_contain_text("No connection")
        expect(page.locator(".drawer .answers")).to_be_hidden()
        expect(page.locator(".menu .count")).to_have_text("1")
