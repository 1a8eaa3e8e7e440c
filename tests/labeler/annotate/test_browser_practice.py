"""Practice on the annotator's page: a notice, then the expected answer and why."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from labeler.annotate.session import PRACTICE
from labeler.translation import catalog
from storage.importing.imports import import_practice
from storage.tables import settings
from tests.helpers.desk_browser import desk_page, press
from tests.helpers.desk_states import PRACTICE_ROWS
from tests.helpers.desk_world import add_person, make_app, plain_pairs, serving, workspace
from tests.labeler.annotate.test_browser_axe import violations


def test_each_practice_pair_is_explained_after_the_choice(browser, tmp_path):
    file = tmp_path / "practice.jsonl"
    file.write_text("\n".join(map(json.dumps, PRACTICE_ROWS)))
    with workspace(tmp_path / "workspace", plain_pairs(4)) as db:
        import_practice(db, file)
        settings.ask_for_practice(db, True)
        app = make_app(db)
        with serving(app) as server:
            who = add_person(db, "Ann")
            with desk_page(browser, (db, app), server, who, locale="de") as page:
                german = catalog("de")
                for left in (1, 0):
                    expect(page.locator(".notice")).to_have_text(german[PRACTICE])
                    right = page.locator(".response", has_text="right").first
                    side = "a" if "a" in right.get_attribute("class").split() else "b"
                    page.keyboard.press({"a": "2", "b": "1"}[side])  # the wrong one
                    dialog = page.locator("dialog.practice")
                    expect(dialog).to_be_visible()
                    expected = german["Expected: {judgment}"].format(
                        judgment=german[f"{side.upper()} is better"]
                    )
                    expect(dialog.locator("h2")).to_have_text(expected)
                    expect(dialog.locator("strong").first).to_have_text("Right")
                    # The next pair is on the screen: the dialog shows the one that was judged.
                    texts = dialog.locator(".card .text").all_inner_texts()
                    other = "ab"[side == "a"]
                    assert [text.strip() for text in texts] == ["right", "wrong"][
                        :: 1 if side == "a" else -1
                    ]
                    expect(dialog.locator(f".card.{side} .mark")).to_have_text(german["Expected"])
                    expect(dialog.locator(f".card.{other} .mark")).to_have_text(
                        german["Your choice"]
                    )
                    more = german["{count} more practice pairs."]["one"].format(count=1)
                    last = german[
                        "This was the last practice pair. Your judgments count from now on."
                    ]
                    expect(dialog.locator(".left")).to_have_text(more if left else last)
                    assert violations(page) == []
                    page.keyboard.press("Enter")
                    expect(dialog).to_be_hidden()
                expect(page.locator(".notice")).to_be_hidden()
                press(page, "1")


def test_an_explanation_waits_for_another_dialog(browser, tmp_path):
    file = tmp_path / "practice.jsonl"
    file.write_text(json.dumps(PRACTICE_ROWS[0]))
    with workspace(tmp_path / "workspace", plain_pairs(4)) as db:
        import_practice(db, file)
        settings.ask_for_practice(db, True)
        app = make_app(db)
        with (
            serving(app) as server,
            desk_page(browser, (db, app), server, add_person(db, "Ann")) as page,
        ):
            waiting = []
            page.route("**/label/api/judgments", lambda route: waiting.append(route))
            page.keyboard.press("1")
            page.keyboard.press("?")
            expect(page.locator(".help")).to_be_visible()
            waiting[0].continue_()
            expect(page.locator(".status")).to_have_attribute("data-status", "saved")
            expect(page.locator("dialog.practice")).to_be_hidden()
            page.keyboard.press("Escape")
            expect(page.locator("dialog.practice")).to_be_visible()
