"""Editing the better response (E): prefilled, compared with the original, stored with the judgment."""

from __future__ import annotations

from playwright.sync_api import expect

from storage.tables import settings
from tests.helpers.desk_browser import (
    desk_page,
    judgments_of,
    preferred,
    shown,
    status,
    wait_for_other,
    wait_for_shown,
)


def write_edit(page, text):
    """Open the editor, choose A and write."""
    page.keyboard.press("e")
    page.locator(".editor").get_by_role("radio", name="A", exact=True).check()
    page.locator(".editor textarea").fill(text)


def test_the_better_response_is_edited_and_stored_with_its_judgment(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.keyboard.press("i")  # clearly
        page.keyboard.press("e")
        editor, area = page.locator(".editor"), page.locator(".editor textarea")
        expect(area).to_be_disabled()
        editor.get_by_role("button", name="Save").click()
        expect(editor.get_by_role("status")).to_have_text("First choose which response is better.")
        editor.get_by_role("radio", name="B", exact=True).check()
        expect(area).to_have_value(before[2])  # the text of B
        editor.get_by_role("button", name="Save").click()
        expect(editor.get_by_role("status")).to_contain_text("You have changed nothing.")
        area.fill(f"{before[2]} and more")
        expect(editor.locator(".edits ins")).to_have_text([" and more"])
        expect(editor.locator(".edits del")).to_have_count(0)
        area.press("Control+Enter")
        wait_for_other(page, before)
        expect(page.locator(".trace")).to_have_text("B, clearly, edited")
        status(page, "saved")
        (row,) = judgments_of(world[0], who)
        assert (preferred(row), row["strength"]) == (before[2], 2)
        assert row["edit"] == f"{before[2]} and more"

        page.keyboard.press("z")  # the unsent edit comes back with the pair
        wait_for_shown(page, before)
        page.keyboard.press("e")
        expect(area).to_have_value(f"{before[2]} and more")


def test_the_editor_shows_both_responses_and_takes_the_keys_of_a_judgment(
    browser, world, server, who
):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        editor = page.locator(".editor")
        page.keyboard.press("e")
        options = editor.locator(".option")
        assert tuple(options.locator("p").all_inner_texts()) == before[1:]
        options.last.locator("p").evaluate("p => { p.textContent = 'long '.repeat(60); }")
        boxes = options.evaluate_all("all => all.map((e) => e.getBoundingClientRect().toJSON())")
        assert (boxes[0]["top"], boxes[0]["height"]) == (boxes[1]["top"], boxes[1]["height"])
        page.keyboard.press("o")
        page.keyboard.press("2")
        expect(editor.locator("textarea")).to_be_focused()
        page.keyboard.type("1")  # no longer a key
        expect(editor.get_by_role("radio", name="B", exact=True)).to_be_checked()
        page.keyboard.press("Shift+Tab")  # from the text to a choice
        page.keyboard.press("Control+Enter")
        wait_for_other(page, before)
        expect(page.locator(".trace")).to_have_text("B, much, edited")
        page.keyboard.press("m")
        expect(page.locator(".drawer .given").first).to_contain_text("B is much better, edited")
        page.locator(".drawer .given").first.click()
        wait_for_shown(page, before)
        expect(page.locator(".revising")).to_contain_text("B is much better, edited.")


def test_an_unsent_edit_survives_a_reload_and_a_choice_sends_none(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        write_edit(page, "shorter")
        page.keyboard.press("Escape")
        page.reload()
        wait_for_shown(page, before)
        page.keyboard.press("e")
        expect(page.locator(".editor textarea")).to_have_value("shorter")
        expect(page.locator(".edits del")).to_have_count(1)
        page.locator(".editor").get_by_role("button", name="Cancel").click()
        page.keyboard.press("1")
        wait_for_other(page, before)
        status(page, "saved")
    assert [row["edit"] for row in judgments_of(world[0], who)] == [""]


def test_a_revision_keeps_the_edit_of_the_same_choice(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        write_edit(page, "better")
        page.keyboard.press("Control+Enter")
        wait_for_other(page, before)
        status(page, "saved")
        for key in ("1", "2"):
            page.keyboard.press("m")
            page.locator(".drawer .given").first.click()
            wait_for_shown(page, before)
            page.keyboard.press(key)
            wait_for_other(page, before)
            status(page, "saved")
    assert [row["edit"] for row in judgments_of(world[0], who)] == ["better", "better", ""]


def test_a_required_strength_is_required_of_an_edit(browser, world, server, who):
    form = settings.JudgmentForm("one-press", "required")
    settings.choose_judgment_form(world[0], form)
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        write_edit(page, "better")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".editor .said")).to_contain_text("First choose how much better")
        page.locator(".editor").get_by_role("radio", name="much").check()
        page.locator(".editor").get_by_role("button", name="Save").click()
        wait_for_other(page, before)
        status(page, "saved")
    settings.choose_judgment_form(world[0], settings.JudgmentForm())
    assert [(row["edit"], row["strength"]) for row in judgments_of(world[0], who)] == [
        ("better", 3)
    ]


def test_an_edit_waits_for_a_required_part(browser, world, server, who):
    settings.choose_judgment_form(world[0], settings.JudgmentForm(safety="required"))
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        write_edit(page, "better")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".told")).to_contain_text("First label both responses")
        for side in "ab":
            page.locator(f"[data-safety=safe][data-side={side}]").click()
        page.locator(".choice.a").click()
        wait_for_other(page, before)
        status(page, "saved")
    settings.choose_judgment_form(world[0], settings.JudgmentForm())
    assert [row["edit"] for row in judgments_of(world[0], who)] == ["better"]
