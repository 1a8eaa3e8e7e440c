"""The annotator's page in a real browser: how tests open it, read it, and look up what was stored."""

from __future__ import annotations

from contextlib import contextmanager

from playwright.sync_api import expect

from storage.tables.people import tokens
from tests.helpers.browser import new_page, wait_for_pair


def cookie_of(world, url, who):
    db, app = world
    return (url, app.state.auth.cookie, tokens.issue(db, who.id, "session", lifetime=None))


@contextmanager
def desk_page(browser, world, server, who, **settings):
    """The page with its first pair on the screen."""
    with new_page(browser, cookie=cookie_of(world, server.url, who), **settings) as page:
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        yield page


def shown(page):
    """(prompt, A, B) as they stand on the screen."""
    return tuple(
        page.locator(selector).inner_text().strip()
        for selector in (".turn.last .text", ".response.a .text", ".response.b .text")
    )


def wait_for_other(page, before):
    """Until another pair is on the screen, and could be read."""
    page.wait_for_function(
        "old => document.querySelector('.turn.last .text').innerText.trim() !== old", arg=before[0]
    )
    wait_for_pair(page)


def wait_for_shown(page, pair):
    """Until this pair is on the screen again, as it stood, and could be read."""
    expect(page.locator(".turn.last .text")).to_have_text(pair[0])
    wait_for_pair(page)
    assert shown(page) == pair


def press(page, *keys):
    """Judge pair after pair; what was on the screen each time."""
    seen = []
    for key in keys:
        seen.append(shown(page))
        page.keyboard.press(key)
        wait_for_other(page, seen[-1])
    return seen


def sign_in_as(page, cookie):
    """The browser's cookie becomes this one, of `cookie_of`, and the page is not told."""
    url, name, value = cookie
    page.context.add_cookies([{"url": url, "name": name, "value": value}])


def status(page, kind):
    expect(page.locator(".status")).to_have_attribute("data-status", kind)


def judgments_of(db, who):
    sql = """
        SELECT j.*, p.messages, f.text AS first_text, s.text AS second_text
        FROM judgments AS j JOIN comparisons AS c ON c.id = j.comparison
        JOIN prompts AS p ON p.id = c.prompt
        JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second
        WHERE j.annotator = $who ORDER BY j.created_at
    """
    return db.read(sql, who=who.id)


def preferred(row):
    return {"first": row["first_text"], "second": row["second_text"]}.get(row["outcome"])
