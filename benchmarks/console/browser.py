"""Times that Chromium measures on the console: first content of sections, and filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from playwright.sync_api import Browser, Page

from benchmarks.console.served import Served
from tests.helpers.browser import new_page

FIRST = "Overview: Loop"
CONTENT: Mapping[str, str] = {
    FIRST: ".ks-steps-row",
    "Overview: Iterations": "#iterations table",
    "Runs: Run": "#run-card > *",
    "Runs: Compare": "#compare tbody tr",
    "Models: Verdicts": "#standing .ks-card, #leaderboard table",
    "Models: Reward model": "#reward-figures > *",
    "Models: Playground": "#playground textarea",
    "Models: Samples": "#samples .ks-sample, #samples .ks-card",
    "Models: Lineage": "#lineage-graph svg",
    "Data: Judgments": "#judgments [data-open]",
    "Data: Prompts": "#prompts-table table",
    "Team: People": "#people table",
    "Team: Guidelines": "#guidelines textarea",
    "Team: Judgment form": "#scale input",
}
"""What a person came for, by section; of another section, the first text or field in its panel."""
TIMED = ("overview", "runs", "models", "data", "team")
"""Pages that other researchers have open; the timers of their first sections ask again and again."""
LIMIT_MS = 30_000
SETTLE_MS = 800
"""Milliseconds in which a page finishes its first requests; its timers never stop asking."""

_OPEN_PANEL = (
    """[...document.querySelectorAll("#sections [role=tabpanel]")].find(p => p.checkVisibility())"""
)
_OPEN_ROOTS = """
const attach = Element.prototype.attachShadow;
Element.prototype.attachShadow = function (options) { return attach.call(this, { ...options, mode: "open" }); };
"""
"""The first view is in a closed root, where a measurement finds nothing."""
_SEEN = f"""
([selector, ready]) => {{
  const first = document.getElementById("first-view");
  if (ready && first) return false;
  const panel = first?.shadowRoot?.querySelector(".tab") ?? {_OPEN_PANEL};
  if (!panel) return false;
  const shown = (each) => each.checkVisibility() && each.getBoundingClientRect().height > 0;
  const all = selector ? [...panel.querySelectorAll(selector)]
    : [...panel.querySelectorAll("*")].filter((each) => !each.children.length);
  return all.some(shown) && performance.now();
}}
"""
_OPENED = f"""
name => {{
  const panel = {_OPEN_PANEL}, tab = document.querySelector("#sections [aria-selected=true]");
  return panel && tab.textContent.trim() === name;
}}
"""
_OPEN = """
name => {
  const links = [...document.querySelectorAll(".ks-section-links a, .ks-page-links a")];
  const start = performance.now();
  links.find(link => link.dataset.tab === name).click();
  return start;
}
"""
_SECTIONS = """
() => [...new Map([...document.querySelectorAll(".ks-section-links a, .ks-page-links a")]
    .map(link => [link.dataset.tab, link.getAttribute("href")])).entries()]
"""
# From the event, which causes the request, to the frame after the one that shows another text.
_WATCH = """
([watched, event, source]) => {
  // Not all of the component's text: Gradio counts the seconds in a hidden part of it.
  const said = () => document.querySelector(watched).textContent, before = said();
  window.kiteTook = null;
  const began = (cause) => {
    if (!cause.target.closest(source)) return;
    removeEventListener(event, began, true);
    const look = () => requestAnimationFrame(said() === before ? look
      : () => { window.kiteTook = performance.now() - cause.timeStamp; });
    look();
  };
  addEventListener(event, began, true);
}
"""


def sections(page: Page) -> list[tuple[str, str]]:
    """Name and address of each section, as the navigation lists them."""
    return page.evaluate(_SECTIONS)


@dataclass(frozen=True)
class Opening:
    """Milliseconds from the start of the navigation until the section's content can be read, in the
    first view or in Gradio's page, and until Gradio's page is ready."""

    read: float
    ready: float


def first_content(page: Page, url: str, name: str) -> Opening:
    """Open an address whose section has this name."""
    page.add_init_script(_OPEN_ROOTS)
    page.goto(url, wait_until="commit")
    seen, ready = _seen(page, name), _seen(page, name, ready=True)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return Opening(max(seen, painted), ready)


def opened(page: Page, name: str) -> float:
    """Milliseconds from a click on the section's link until its content is visible."""
    start = page.evaluate(_OPEN, name)
    page.wait_for_function(_OPENED, arg=name, polling="raf")
    return _seen(page, name, ready=True) - start


def _seen(page: Page, name: str, *, ready: bool = False) -> float:
    wanted = [CONTENT.get(name, ""), ready]
    seen = page.wait_for_function(_SEEN, arg=wanted, polling="raf", timeout=LIMIT_MS)
    return float(seen.json_value())


def _timed(page: Page, watched: str, event: str, source: str, act: Callable[[], None]) -> float:
    """Milliseconds from the event in `source` that `act` causes until `watched` is painted anew."""
    page.evaluate(_WATCH, [watched, event, source])
    act()
    took = page.wait_for_function("window.kiteTook", polling="raf", timeout=LIMIT_MS)
    page.wait_for_timeout(SETTLE_MS)
    return float(took.json_value())


def _choose(page: Page, watched: str, field: str, number: int) -> float:
    """Choose an option of a list by its place."""
    page.locator(f"{field} input").click()
    option = page.get_by_role("option").nth(number)
    option.wait_for()
    return _timed(page, watched, "mousedown", "[role=option]", option.click)


def _write(page: Page, watched: str, field: str, text: str) -> float:
    found = page.locator(f"{field} textarea, {field} input").first
    return _timed(page, watched, "input", field, lambda: found.fill(text))


def filters(browser: Browser, served: Served, round: int) -> dict[str, float]:
    """Milliseconds of each filter, from its event to the painted number of rows."""
    found: dict[str, float] = {}
    total, prompts = "#judgments-total .ks-detail", "#prompts-total .ks-detail"
    with new_page(browser, cookie=served.cookie, width=1440) as page:
        _settled(page, served, "tab=data", "Data: Judgments")
        commented = page.locator("#judgments-only input").nth(3)
        for name, act in (
            ("annotator", lambda: _choose(page, total, "#judgments-annotator", 1 + round % 3)),
            ("outcome", lambda: _choose(page, total, "#judgments-outcome", 1)),
            ("text", lambda: _write(page, total, "#judgments-text", f"in c-{1 + round % 2}-")),
            ("comment", lambda: _timed(page, total, "click", "label", commented.check)),
        ):
            found[f"judgments: {name}"] = act()
            page.get_by_role("button", name="Clear filters").click()
            page.wait_for_timeout(SETTLE_MS)
        _settled(page, served, "tab=data&section=prompts", "Data: Prompts")
        found["prompts: role"] = _choose(page, prompts, "#prompts-role", 1)
        found["prompts: text"] = _write(page, prompts, "#prompts-text", f"Question {round}")
        _settled(page, served, "tab=runs&section=compare", "Runs: Compare")
        status = "#compare [role=status]"
        found["runs: search"] = _write(page, status, "#compare .ks-runs", "run-1-policy")
    return found


def _settled(page: Page, served: Served, query: str, name: str) -> None:
    first_content(page, f"{served.url}/research/?{query}", name)
    page.wait_for_timeout(SETTLE_MS)


@contextmanager
def others(browser: Browser, served: Served) -> Iterator[None]:
    """Five pages of other researchers stay open until the context ends."""
    with ExitStack() as pages:
        for tab in TIMED:
            page = pages.enter_context(new_page(browser, cookie=served.cookie))
            page.goto(f"{served.url}/research/?tab={tab}")
            page.wait_for_timeout(SETTLE_MS)
        yield
