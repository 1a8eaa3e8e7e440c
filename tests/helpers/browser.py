"""A real Chromium for tests: found on the machine, driven by playwright, closed at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SLOW = 120_000
"""Milliseconds until a wait gives up; the machine may be busy training."""


SHELL = "chromium-headless-shell"
"""Chromium without a browser's windows: a page of it opens in a third of the time."""


def find_chromium(*, full: bool = False) -> str:
    """The executable, the shell if there is one and `full` is false.

    Without one: skip, or fail where CI promises to have it.
    """
    for name in (*([] if full else [SHELL]), "chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    if os.environ.get("CI") == "true":
        pytest.fail("CI=true, but there is no Chromium: install it (apt-get install chromium)")
    pytest.skip("no Chromium on this machine; install it to run the browser tests")


@contextmanager
def chromium(*, full: bool = False) -> Iterator[Browser]:
    """A headless browser; `full`, as benchmarks want it, has all that people's browsers do."""
    path = find_chromium(full=full)
    expect.set_options(timeout=SLOW)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def wait_for_pair(page: Page) -> None:
    """Until a pair is on the annotator's screen, and for as long as verdicts on it are slips."""
    page.wait_for_selector(".desk[data-state=judging]")
    page.wait_for_timeout(300)


@contextmanager
def new_page(
    browser: Browser,
    *,
    width: int = 1280,
    height: int = 860,
    scheme: str = "light",
    cookie: tuple[str, str, str] | None = None,
    locale: str = "en-US",
    touch: bool = False,
    service_worker: bool = False,
) -> Iterator[Page]:
    """A page in a context of its own; fails at the end if a script on it failed.

    `cookie` is (url, name, value).  With `service_worker`, the page loads without a server, too; about
    one request in forty then goes past the page's routes, which Chromium's interception misses.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        locale=locale,
        has_touch=touch,
        is_mobile=touch,
        service_workers="allow" if service_worker else "block",
    )
    context.set_default_timeout(SLOW)
    if cookie:
        url, name, value = cookie
        context.add_cookies([{"url": url, "name": name, "value": value}])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    try:
        yield page
    finally:
        context.close()
    assert not problems
