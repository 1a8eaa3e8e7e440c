"""What the content security policies let a real browser do: the pages work, and no more than that."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import ConsoleMessage, Error

from labeler.security import access
from labeler.security.headers import GRADIO_POLICY
from tests.helpers.browser import new_page, wait_for_pair


def complaints(page) -> list[str]:
    """What the browser says of policies, as it comes."""
    told: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            told.append(message.text)

    page.on("console", note)
    return told


def test_the_account_pages_work_without_any_script_and_the_link_leads_to_a_pair(
    browser, server, who
):
    link = server.url + server.app.state.sign_in_url(who)
    with new_page(browser) as page:
        told = complaints(page)
        page.goto(f"{server.url}/sign-in")
        # Its style sheet and its picture came.
        accent = page.evaluate(
            "getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()"
        )
        assert accent == "#4338ca"
        assert page.locator("img").evaluate("e => e.complete && e.naturalWidth > 0")
        assert told == []
        with pytest.raises(Error):
            page.add_script_tag(content="document.title = 'mine'")
        assert page.title() != "mine"
        assert told
        told.clear()
        page.goto(link)
        page.get_by_role("button", name=f"Continue as {who.name}").click()
        wait_for_pair(page)
        assert told == []


def test_gradios_page_needs_what_its_policy_allows(browser, server, who, monkeypatch):
    """gr.HTML compiles its template with Function(); once it does not, the policy can be stricter."""
    link = server.url + server.app.state.sign_in_url(who)
    without = GRADIO_POLICY.replace(" 'unsafe-eval'", "")
    assert without != GRADIO_POLICY
    monkeypatch.setitem(access._POLICIES, "page", without)
    with new_page(browser) as page:
        told = complaints(page)
        page.goto(link)
        page.get_by_role("button", name=f"Continue as {who.name}").click()
        page.wait_for_url("**/label/")
        deadline = time.monotonic() + 60
        while not any("eval" in each for each in told):
            assert time.monotonic() < deadline, told
            page.wait_for_timeout(200)
        assert page.locator(".desk[data-state=judging]").count() == 0
