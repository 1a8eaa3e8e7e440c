"""A study with real workers, started and watched in a real browser."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from playwright.sync_api import expect

from storage.records import Run
from storage.tables.people import tokens
from storage.tables.runs import runs
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import add_person
from tests.helpers.served_studio import served_studio
from tests.helpers.study_world import fill_for_studies


@pytest.mark.slow
def test_a_sweep_is_started_watched_and_overlaid(tmp_path: Path):
    """With real workers: by mouse, and a second one by keyboard that is cancelled and continued."""
    workspace = tmp_path / "w"
    fill_for_studies(workspace, ppo__updates=5)
    settings = {"worker.threads": "1", "worker.nice": "0"}
    find_chromium()
    with served_studio(workspace, settings=settings, looping=True) as served, chromium() as browser:
        person = add_person(served.db, "Ruth", "researcher")
        secret = tokens.issue(served.db, person.id, "session", lifetime=None)
        before = [asdict(run) for run in runs.listing(served.db)]
        with new_page(browser, cookie=(served.url, served.app.state.auth.cookie, secret)) as page:
            page.goto(f"{served.url}/research/?tab=runs&section=studies")
            page.locator(".st-new").click()
            drawer = page.locator("#study-drawer")
            drawer.locator("[name=name]").fill("mouse")
            drawer.locator("[name=kl_weight]").fill("0, 0.3")
            drawer.get_by_role("button", name="Start study").click()
            expect(drawer).to_be_hidden()
            card = page.locator("[data-study=sweep-mouse]")
            expect(card.locator(".st-progress")).to_contain_text("β = 0")
            expect(page.locator(".st-new")).to_be_disabled()
            expect(card.locator(".st-plot")).to_be_visible()
            expect(card.locator("tbody tr")).to_have_count(2)

            page.locator(".st-new").focus()
            page.keyboard.press("Enter")
            page.keyboard.type("keys")
            page.keyboard.press("Tab")
            page.keyboard.type("0.1")
            page.keyboard.press("Enter")
            keys = page.locator("[data-study=sweep-keys]")
            keys.get_by_role("button", name="Cancel").press("Enter")
            expect(keys).to_contain_text("Continue keeps what is done.")
            keys.get_by_role("button", name="Continue").press("Enter")
            expect(keys.locator("tbody tr")).to_have_count(1)

            card.get_by_role("link", name="Compare curves").click()
            expect(page.locator("#compare .ks-member input:checked")).to_have_count(2)
            expect(page.locator("#compare .ks-chart").first).to_contain_text("mouse: β = 0.3")
        assert [asdict(run) for run in runs.listing(served.db)] == before
        assert all(isinstance(run, Run) for run in runs.listing(served.db))
