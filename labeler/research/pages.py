"""The researcher's site, mounted at /research: five pages with sections.

A section is a `Tab`. It is refreshed when it is opened, and by its timer while it is open. A slow
timer refreshes the header above the pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import gradio as gr

from labeler.html import formulas
from labeler.html.components import render
from labeler.ports import Loop
from labeler.research.calls import Page
from labeler.research.charts import UPLOT
from labeler.research.data.adjudication.tab import AdjudicationTab
from labeler.research.data.exporting.tab import ExportTab
from labeler.research.data.importing.tab import ImportTab
from labeler.research.data.judgments.tab import JudgmentsTab
from labeler.research.data.marks.tab import MarksTab
from labeler.research.data.prompts.tab import PromptsTab
from labeler.research.first_view.first_views import FirstViews
from labeler.research.models.lineage.tab import LineageTab
from labeler.research.models.playground.tab import PlaygroundTab
from labeler.research.models.publishing.tab import PublishTab
from labeler.research.models.reward.tab import RewardTab
from labeler.research.models.samples.tab import SamplesTab
from labeler.research.models.verdicts.tab import VerdictsTab
from labeler.research.navigation import navigation, typed
from labeler.research.overview.iterations_tab import IterationsTab
from labeler.research.overview.settings.tab import SettingsTab
from labeler.research.overview.tab import OverviewTab
from labeler.research.runs.compare_tab import CompareTab
from labeler.research.runs.eta import Eta
from labeler.research.runs.studies.tab import StudiesTab
from labeler.research.runs.tab import RunsTab
from labeler.research.tab import Tab, Updates, caller, html_slot, on
from labeler.research.team.audit.tab import AuditTab
from labeler.research.team.guidelines.tab import GuidelinesTab
from labeler.research.team.judgment_form.tab import JudgmentFormTab
from labeler.research.team.notifications.tab import NotificationsTab
from labeler.research.team.notifications.view import payload
from labeler.research.team.people.tab import PeopleTab
from labeler.research.top import headline, role_note
from labeler.webhooks.dispatcher import Dispatcher
from labeler.webhooks.service import Webhooks
from storage.engine.database import Database
from storage.tables.runs import events

CSS = "".join(
    (Path(__file__).parent / name).read_text(encoding="utf-8")
    for name in ("research.css", "data/data.css", "overview/settings/settings.css")
)

CACHE_SECONDS = (3600, 3600)
"""Seconds between Gradio's cleanups of its file cache, and the age at which it deletes a file."""

_ADDRESS = (Path(__file__).parent / "address.js").read_text(encoding="utf-8")
_REQUESTS = (Path(__file__).parent / "requests.js").read_text(encoding="utf-8")
_FIELDS = (Path(__file__).parent / "fields.js").read_text(encoding="utf-8")
_SCROLLING = (Path(__file__).parent / "scrolling.js").read_text(encoding="utf-8")
_NOTIFY = (Path(__file__).parent / "notify.js").read_text(encoding="utf-8")
_PALETTE = (Path(__file__).parent / "palette.js").read_text(encoding="utf-8")
SCRIPTS = f"{UPLOT}<script>{_REQUESTS}</script><script>{_FIELDS}</script>"
"""HTML that the scripts of sections need."""
HEAD = (
    f'<meta name="color-scheme" content="light dark">{SCRIPTS}{formulas.HEAD}'
    f"<script>{_ADDRESS}</script><script>{_NOTIFY}</script>"
    f"<script>{_PALETTE}</script>"
    f"<script>{_SCROLLING}</script>"
)
NOTIFIED = 10
"""Events that the page knows; a browser that was away for longer shows these."""

Pages = Mapping[str, Mapping[str, Callable[[], Tab]]]
"""The sections of each page by name, in the order shown."""


def pages(
    db: Database,
    loop: Loop,
    top: gr.HTML,
    *,
    accounts_changed: Callable[[], None],
    webhooks: Webhooks,
) -> Pages:
    """All pages; `top` is the header, which some sections refresh too."""
    eta = Eta()
    return {
        "Overview": {
            "Loop": lambda: OverviewTab(db, loop, top, eta),
            "Iterations": lambda: IterationsTab(db, loop),
            "Settings": SettingsTab,
        },
        "Runs": {
            "Run": lambda: RunsTab(db, loop, top, eta),
            "Compare": lambda: CompareTab(),
            "Studies": StudiesTab,
        },
        "Models": {
            "Verdicts": lambda: VerdictsTab(db, loop),
            "Reward model": lambda: RewardTab(loop),
            "Playground": PlaygroundTab,
            "Samples": lambda: SamplesTab(db),
            "Lineage": lambda: LineageTab(db),
            "Publish": lambda: PublishTab(db),
        },
        "Data": {
            "Judgments": lambda: JudgmentsTab(db),
            "Adjudication": lambda: AdjudicationTab(db),
            "Prompts": lambda: PromptsTab(db),
            "Export": lambda: ExportTab(db),
            "Import": lambda: ImportTab(db),
            "Marked passages": lambda: MarksTab(db),
        },
        "Team": {
            "People": lambda: PeopleTab(db, accounts_changed),
            "Guidelines": lambda: GuidelinesTab(db),
            "Judgment form": lambda: JudgmentFormTab(db),
            "Notifications": lambda: NotificationsTab(db, webhooks),
            "Audit log": lambda: AuditTab(db),
        },
    }


def build(
    db: Database,
    loop: Loop,
    *,
    accounts_changed: Callable[[], None],
    webhooks: Webhooks | None = None,
) -> Page:
    """The site of an open workspace; `accounts_changed` is called after an account is changed.

    Without `webhooks`, they can be changed and tested, but events are not sent.
    """
    webhooks = webhooks or Webhooks(db, Dispatcher(db))
    with Page(
        title="Kitestring", analytics_enabled=False, fill_width=True, delete_cache=CACHE_SECONDS
    ) as blocks:
        top = html_slot(elem_id="top")
        reader = html_slot(elem_id="reader")
        happened = html_slot(elem_id="events", elem_classes="ks-none")
        made = pages(db, loop, top, accounts_changed=accounts_changed, webhooks=webhooks)
        shown: dict[str, dict[str, tuple[gr.Tab, Tab]]] = {}
        sections_of = {page: list(each) for page, each in made.items()}
        html_slot(value=render(navigation(sections_of)))
        tabs: dict[gr.Tab, Tab] = {}
        # One tab for each section. Its row of buttons is hidden: address.js presses them.
        with gr.Tabs(elem_id="sections", overflow_behavior="wrap") as row:
            for page, sections in made.items():
                for section, make in sections.items():
                    name = f"{page}: {section}"
                    with gr.Tab(name, id=name) as block:
                        tabs[block] = make()
                    shown.setdefault(page, {})[section] = (block, tabs[block])
        _refresh(tabs)
        for tab in tabs.values():
            if isinstance(tab, RunsTab):
                on(tab.retry.click, lambda: gr.Tabs(selected="Overview: Loop"), outputs=[row])

        def header() -> Updates:
            newest = render(payload(events.listing(db, limit=NOTIFIED)))
            return {top: headline(db), happened: newest}

        on(gr.Timer(4).tick, header, outputs=[top, happened], access="viewer")
        first = next(iter(tabs.values()))

        def load(request: gr.Request) -> Updates:
            updates = first.refresh() | {reader: role_note(caller(request).role)}
            for tab in tabs.values():
                updates |= tab.load() | tab.open_at(request.query_params)
            return updates

        on(
            blocks.load,
            load,
            outputs=[reader, *first.outputs, *(c for t in tabs.values() for c in t.loaded)],
            access="viewer",
        )
    blocks.typed = typed(sections_of)
    blocks.first_view = FirstViews(
        shown,
        headline=lambda: headline(db),
        style=lambda: blocks.theme_css + CSS,
        head=SCRIPTS,
    )
    return blocks


_SWITCH = """
() => {
  const open = document.querySelector("#sections [role=tab][aria-selected=true]").textContent.trim();
  return %s.map((section) => ({ __type__: "update", active: section === open }));
}
"""
"""Starts the timer of the open section and stops the others; their names are in the order of outputs."""


def _refresh(tabs: Mapping[gr.Tab, Tab]) -> None:
    """Refresh each section when it is opened and, if it has a timer, while it is open."""
    timers = {
        block: gr.Timer(tab.every, active=i == 0)
        for i, (block, tab) in enumerate(tabs.items())
        if tab.every is not None
    }

    def opening(tab: Tab) -> Callable[..., Updates]:
        def open_tab(request: gr.Request, *values: object) -> Updates:
            return tab.refresh_for(caller(request), *values)

        return open_tab

    switch = _SWITCH % json.dumps([block.label for block in timers])
    for block, tab in tabs.items():
        # In the browser, and by what it shows: events and answers may arrive in any order.
        block.select(None, None, [*timers.values()], js=switch)
        if tab.outputs:
            on(block.select, opening(tab), tab.inputs, tab.outputs, access="viewer")
        if block in timers:
            on(timers[block].tick, tab.refresh, tab.inputs, tab.outputs, access="viewer")
