"""The researcher's page, mounted at /research.

A tab is refreshed when it is opened, and by its timer while it is open. A slow timer refreshes the
line above the tabs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gradio as gr
from gradio.blocks import Block

from labeler.html import formulas
from labeler.ports import Loop
from labeler.research.annotators.tab import AnnotatorsTab
from labeler.research.calls import Page
from labeler.research.charts import UPLOT
from labeler.research.data.tab import DataTab
from labeler.research.history.tab import HistoryTab
from labeler.research.loop.tab import LoopTab
from labeler.research.policies.tab import PoliciesTab
from labeler.research.reward.tab import RewardTab
from labeler.research.samples.tab import SamplesTab
from labeler.research.tab import Tab, Updates, caller, html_slot, on
from labeler.research.top import headline, role_note
from labeler.research.training.tab import TrainingTab
from storage.engine.database import Database

CSS = (Path(__file__).parent / "research.css").read_text(encoding="utf-8")

CACHE_SECONDS = (3600, 3600)
"""Seconds between Gradio's cleanups of its file cache, and the age at which it deletes a file."""

_ADDRESS = (Path(__file__).parent / "address.js").read_text(encoding="utf-8")
HEAD = f'<meta name="color-scheme" content="light dark">{UPLOT}{formulas.HEAD}<script>{_ADDRESS}</script>'


def build(db: Database, loop: Loop, *, accounts_changed: Callable[[], None]) -> Page:
    """The page of an open workspace; `accounts_changed` is called after an account is changed."""
    with Page(
        title="Kitestring", analytics_enabled=False, fill_width=True, delete_cache=CACHE_SECONDS
    ) as blocks:
        top = html_slot(elem_id="top")
        reader = html_slot(elem_id="reader")
        tabs: dict[gr.Tab, Tab] = {}
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as row:
            for name, make in {
                "Loop": lambda: LoopTab(db, loop, top),
                "Training": lambda: TrainingTab(db, loop, top),
                "Reward model": lambda: RewardTab(loop),
                "Policies": lambda: PoliciesTab(loop),
                "Samples": lambda: SamplesTab(db),
                "Annotators": lambda: AnnotatorsTab(db, accounts_changed),
                "Data": lambda: DataTab(db),
                "History": lambda: HistoryTab(db),
            }.items():
                with gr.Tab(name, id=name) as block:
                    tabs[block] = make()
        _refresh(tabs)
        for tab in tabs.values():
            if isinstance(tab, TrainingTab):
                on(tab.retry.click, lambda: gr.Tabs(selected="Loop"), outputs=[row])
        on(gr.Timer(4).tick, lambda: {top: headline(db)}, outputs=[top], access="viewer")
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
    return blocks


def _refresh(tabs: Mapping[gr.Tab, Tab]) -> None:
    """Refresh each tab when it is opened and, if it has a timer, while it is open."""
    timers = {
        block: gr.Timer(tab.every, active=i == 0)
        for i, (block, tab) in enumerate(tabs.items())
        if tab.every is not None
    }

    def opening(opened: gr.Tab) -> Callable[..., Updates]:
        def open_tab(*values: object) -> Updates:
            switched: dict[Block, object] = {
                timer: gr.Timer(active=block is opened) for block, timer in timers.items()
            }
            return tabs[opened].refresh(*values) | switched

        return open_tab

    for block, tab in tabs.items():
        on(
            block.select,
            opening(block),
            tab.inputs,
            [*tab.outputs, *timers.values()],
            access="viewer",
        )
        if block in timers:
            on(timers[block].tick, tab.refresh, tab.inputs, tab.outputs, access="viewer")
