"""The researcher's page, mounted at /research.

`build` makes the Blocks; `CSS` and `HEAD` go to the mount.  Every tab is an object that lays out
its components and owns their handlers; what it shows by itself is its `Panel`.  A tab is
refreshed when it is opened, and by its timer while it stays open; besides these, one slow timer
keeps the line above the tabs true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gradio as gr
from gradio.components import Component

from labeler.ports import Loop
from labeler.research.annotators.tab import AnnotatorsTab
from labeler.research.calls import Page
from labeler.research.data.tab import DataTab
from labeler.research.history.tab import HistoryTab
from labeler.research.loop.tab import LoopTab
from labeler.research.panel import Panel, Updates, html_slot
from labeler.research.policies.tab import PoliciesTab
from labeler.research.reward.tab import RewardTab
from labeler.research.samples.tab import SamplesTab
from labeler.research.top import headline
from labeler.research.training.tab import TrainingTab
from storage.engine.database import Database

CSS = (Path(__file__).parent / "research.css").read_text(encoding="utf-8")

CACHE_SECONDS = (3600, 3600)
"""How often Gradio looks for old files in its cache, and how old they are."""

HEAD = '<meta name="color-scheme" content="light dark">'


def build(db: Database, loop: Loop, *, people_changed: Callable[[], None]) -> gr.Blocks:
    """The page over an open workspace; handlers read it anew at every turn.

    `people_changed` is called when somebody may have been signed out.
    """
    with Page(
        title="Kitestring", analytics_enabled=False, fill_width=True, delete_cache=CACHE_SECONDS
    ) as blocks:
        top = html_slot(elem_id="top")
        panels: dict[gr.Tab, Panel] = {}
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            with gr.Tab("Loop", id="loop") as tab:
                loop_tab = LoopTab(db, loop, top)
                panels[tab] = loop_tab.panel()
            with gr.Tab("Training", id="training") as tab:
                training_tab = TrainingTab(db, loop, top)
                panels[tab] = training_tab.panel()
            with gr.Tab("Reward model", id="reward") as tab:
                panels[tab] = RewardTab(loop).panel()
            with gr.Tab("Policies", id="policies") as tab:
                panels[tab] = PoliciesTab(loop).panel()
            with gr.Tab("Samples", id="samples") as tab:
                panels[tab] = SamplesTab(db).panel()
            with gr.Tab("Annotators", id="annotators") as tab:
                panels[tab] = AnnotatorsTab(db, people_changed).panel()
            with gr.Tab("Data", id="data") as tab:
                data_tab = DataTab(db)
                panels[tab] = data_tab.panel()
            with gr.Tab("History", id="history") as tab:
                panels[tab] = HistoryTab(db).panel()
        _wire(panels)
        training_tab.retry.click(
            lambda: gr.Tabs(selected="loop"),
            outputs=tabs,
            show_progress="hidden",
            api_visibility="private",
        )
        gr.Timer(4).tick(
            lambda: {top: headline(db)},
            outputs=top,
            show_progress="hidden",
            api_visibility="private",
        )
        first = next(iter(panels.values()))
        blocks.load(
            lambda: first.refresh() | loop_tab.fill() | data_tab.load(),
            outputs=[*first.outputs, *loop_tab.form.components, *data_tab.outputs_of_load()],
            show_progress="hidden",
            api_visibility="private",
        )
    return blocks


def _wire(panels: Mapping[gr.Tab, Panel]) -> None:
    """Refresh each tab when it is opened and, where it asks for that, while it is open."""
    timers = {
        tab: gr.Timer(panel.every, active=i == 0)
        for i, (tab, panel) in enumerate(panels.items())
        if panel.every is not None
    }
    for tab, panel in panels.items():
        tab.select(
            _opening(tab, panel, timers),
            inputs=panel.inputs,
            outputs=[*panel.outputs, *timers.values()],
            show_progress="hidden",
            api_visibility="private",
        )
        if tab in timers:
            timers[tab].tick(
                panel.refresh,
                inputs=panel.inputs,
                outputs=panel.outputs,
                show_progress="hidden",
                api_visibility="private",
            )


def _opening(
    tab: gr.Tab, panel: Panel, timers: Mapping[gr.Tab, gr.Timer]
) -> Callable[..., Updates]:
    def open_tab(*values: object) -> Updates:
        switched: dict[Component, object] = {
            timer: gr.Timer(active=owner is tab) for owner, timer in timers.items()
        }
        return panel.refresh(*values) | switched

    return open_tab
