"""The benchmark of clicks runs to its end also where nobody dawdles, and says what did not happen."""

from __future__ import annotations

import pytest

from benchmarks import click_to_next
from tests.helpers.browser import new_page
from tests.helpers.desk_browser import cookie_of

GUARD = 1_500
"""Milliseconds in which verdicts are slips here: longer than the way from pair to first key."""


@pytest.fixture
def guarded_page(browser, world, server, who):
    """The desk as it is, with a longer guard against slips."""
    with new_page(browser, cookie=cookie_of(world, server.url, who)) as page:

        def lengthen(route):
            answer = route.fetch()
            assert "const UNREAD = 250;" in answer.text()
            body = answer.text().replace("const UNREAD = 250;", f"const UNREAD = {GUARD};")
            route.fulfill(response=answer, body=body)

        page.route("**/label/", lengthen)
        page.goto(f"{server.url}/label/")
        page.set_default_timeout(10_000)
        page.wait_for_selector(".desk[data-state=judging]")
        yield page


def test_no_key_is_pressed_while_a_verdict_would_be_a_slip(guarded_page, monkeypatch):
    monkeypatch.setattr(click_to_next, "GUARD_MS", GUARD + 50, raising=False)

    figures = click_to_next.measure(guarded_page, 2)

    assert figures["labels"] == 2
    assert 0 < figures["p50_ms"] <= figures["max_ms"] < 5_000


def test_a_press_that_brings_no_pair_ends_the_measurement(guarded_page, monkeypatch):
    monkeypatch.setattr(click_to_next, "GUARD_MS", 0)
    guarded_page.set_default_timeout(1_000)

    with pytest.raises(SystemExit, match="key press 1 brought no next pair"):
        click_to_next.measure(guarded_page, 2)
