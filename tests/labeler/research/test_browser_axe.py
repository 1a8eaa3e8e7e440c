"""axe, the keyboard and narrow screens in every section of the research site and on `/adjudicate`.

The sections are those of `pages`, so a new one is checked without a change here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from labeler.app import create_app
from labeler.research.pages import pages
from storage.engine.database import Database
from storage.reports import Stopped
from storage.tables.people import tokens
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import serving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding
from tests.labeler.annotate.test_browser_axe import RULES
from tests.labeler.annotate.test_browser_axe_sweep import APPEARANCE

_NOTHING = cast(Any, None)  # `pages` only names the sections here; it makes none
SECTIONS = [
    (page, section)
    for page, sections in pages(
        _NOTHING, _NOTHING, _NOTHING, accounts_changed=_NOTHING, webhooks=_NOTHING
    ).items()
    for section in sections
]
PRESSED = {"Loop": "#retry", "Judgments": ".ks-listed button", "People": "[data-action=manage]"}
"""Sections in which a button opens a dialog or a second part."""

STABLE = """() => new Promise((done) => {
  let timer = setTimeout(done, 500);
  const watch = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, 500); });
  watch.observe(document.body, { subtree: true, childList: true });
  setTimeout(done, 5000);
})"""
"""Resolves when the page has not changed for half a second."""

WIDE = """() => {
  // Gradio's container clips what is too wide, so the page need not scroll.
  const scrolls = (n) => n && !n.matches(".gradio-container, body") &&
    (/auto|scroll|hidden|clip/.test(getComputedStyle(n).overflowX) || scrolls(n.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter((n) => n.checkVisibility() && n.getBoundingClientRect().right > innerWidth + 1 && !scrolls(n.parentElement))
    .map((n) => n.outerHTML.slice(0, 140)).slice(0, 5);
}"""
"""What lies beyond the right edge of the page."""

UNREACHABLE = """() => {
  const FOCUSABLE = "a[href], button, input, select, textarea, summary, label, [tabindex='0'], [contenteditable=true]";
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    if (!node.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (getComputedStyle(node).cursor !== "pointer" || getComputedStyle(node.parentElement).cursor === "pointer") continue;
    if (!node.closest(FOCUSABLE) && !node.querySelector(FOCUSABLE)) found.push(node.outerHTML.slice(0, 160));
  }
  return found;
}"""
"""What can be clicked but not reached with the keyboard."""

UNSEEN = """() => {
  const CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
  const look = (node) => {
    const styles = [];
    for (let n = node, i = 0; n && i < 5; n = n.parentElement, i++) {
      for (const part of [null, "::after", "::before"]) {
        const s = getComputedStyle(n, part);
        styles.push(s.outlineStyle === "none" || parseFloat(s.outlineWidth) === 0 ? "" : s.outline, s.boxShadow, s.borderColor, i ? "" : s.backgroundColor);
      }
    }
    return styles.join("|");
  };
  const found = [];
  document.head.append(Object.assign(document.createElement("style"), { id: "still", textContent: "* { transition: none !important; animation: none !important }" }));
  for (const node of document.querySelectorAll(CONTROLS)) {
    if (node.disabled || node.tabIndex < 0 || !node.checkVisibility({ visibilityProperty: true })) continue;
    document.activeElement?.blur();
    const before = look(node);
    node.focus({ preventScroll: true, focusVisible: true });
    if (document.activeElement !== node) continue;
    if (look(node) === before) found.push(node.outerHTML.slice(0, 160));
  }
  document.activeElement?.blur();
  document.querySelector("#still").remove();
  return found;
}"""
"""Controls that look the same with and without the focus."""


@pytest.fixture(scope="module")
def cookie(tmp_path_factory) -> Iterator[tuple[str, str, str]]:
    """A served workspace whose third policy run has failed, and a researcher's cookie."""
    find_chromium()  # skips before anything is served
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        seeding = Seeding(db)
        seeding.history(finished=2, labels=60)
        seeding.judge_policies(1, wins=0.7, judgments=30)
        failed = seeding.failed_ppo(3)
        loop = RecordingLoop("Already training: PPO.", db)
        loop.stopped = Stopped(
            run=failed.id, attempt=1, stage="policy", status="failed", reason=failed.reason or "",
            resumable=True, may_label=False,
        )  # fmt: skip
        app = in_a_loop(
            lambda: create_app(
                db, loop=loop, admin=lambda *_: None, admin_token="t", accounts_required=False
            )
        )
        with serving(app) as server:
            secret = tokens.issue(db, "researcher", "session", lifetime=None)
            yield server.url, app.state.auth.cookie, secret


@pytest.fixture(scope="module")
def browser(cookie) -> Iterator[Browser]:
    assert cookie  # the server cannot start beside a running playwright
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def page(browser, cookie) -> Iterator[Page]:
    with new_page(browser, cookie=cookie, width=1440) as page:
        page.emulate_media(reduced_motion="reduce")
        page.goto(f"{cookie[0]}/research/")
        expect(page.locator("#loop-trust .ks-tile").first).to_be_visible()
        page.evaluate(Axe().axe_script)
        page.add_style_tag(content="* { transition: none !important }")  # no faded colors
        yield page


def violations(page: Page, *, width: int, only: list[str] | None = None) -> list[tuple[str, str]]:
    """The rule and the element of each violation at this width."""
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(250)  # charts are drawn anew, boxes that scroll get their tab stop
    options: dict[str, Any] = {"rules": RULES, "resultTypes": ["violations"]}
    if only:
        options["runOnly"] = only
    found = page.evaluate("how => axe.run('html', how)", options)["violations"]
    return [(each["id"], node["html"][:160]) for each in found for node in each["nodes"]]


def open_section(page: Page, name: tuple[str, str]) -> None:
    """The section with everything open that is folded."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator(f".ks-page-links a[data-tab^='{name[0]}: ']").click()
    page.locator(
        f":is(.ks-section-links, .ks-page-links) a[data-tab='{': '.join(name)}']"
    ).last.click()
    page.evaluate(STABLE)
    page.evaluate(
        """() => {
          for (const fold of document.querySelectorAll(".label-wrap:not(.open)")) if (fold.checkVisibility()) fold.click();
          for (const fold of document.querySelectorAll("details:not([open])")) if (fold.checkVisibility()) fold.open = true;
        }"""
    )


@pytest.mark.parametrize("name", SECTIONS, ids=": ".join)
def test_a_section_violates_no_rule_and_fits(page, name):
    page.emulate_media(color_scheme="light")
    expect(page.locator("body:not(.dark)")).to_have_css("background-color", "rgb(246, 246, 244)")
    open_section(page, name)
    assert violations(page, width=1440) == []
    assert page.evaluate(UNREACHABLE) == []
    page.keyboard.press("Tab")
    assert page.evaluate(UNSEEN) == []
    if name[1] in PRESSED:
        page.locator(PRESSED[name[1]]).locator("visible=true").first.click()
        page.evaluate(STABLE)
        assert violations(page, width=1440) == []
        page.keyboard.press("Escape")
    assert violations(page, width=390, only=APPEARANCE) == []
    for row in page.locator("nav:is(.ks-page-links, .ks-section-links):visible").all():
        tops = row.locator("a").evaluate_all("links => links.map((n) => n.offsetTop)")
        assert len(set(tops)) == 1

    page.emulate_media(color_scheme="dark")
    expect(page.locator("body.dark")).to_have_css("background-color", "rgb(18, 21, 28)")
    assert violations(page, width=390, only=APPEARANCE) == []
    page.set_viewport_size({"width": 320, "height": 640})
    page.wait_for_timeout(150)
    assert page.evaluate(WIDE) == []


def test_the_checks_find_a_violation(page):
    open_section(page, SECTIONS[0])
    page.evaluate(
        """() => document.querySelector("main").insertAdjacentHTML("beforeend", `<div id=control>
          <button style="outline: 0 !important; all: unset !important"></button>
          <div style="cursor: pointer; width: 2000px">x</div></div>`)"""
    )
    assert "button-name" in {rule for rule, _ in violations(page, width=1440)}
    assert len(page.evaluate(UNREACHABLE)) == 1
    assert page.evaluate(WIDE) != []
    page.locator("#control").evaluate("n => n.remove()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_adjudicators_violates_no_rule_and_fits(browser, cookie, scheme):
    with new_page(browser, cookie=cookie, scheme=scheme) as page:
        page.goto(f"{cookie[0]}/adjudicate")
        page.evaluate(Axe().axe_script)
        expect(page.locator(".outcomes button")).to_have_count(4)
        for width in (1440, 390):
            assert violations(page, width=width) == []
        page.keyboard.press("Tab")
        assert page.evaluate(UNSEEN) == []
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.evaluate(WIDE) == []
