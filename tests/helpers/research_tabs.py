"""All tabs of the research page over a database, without a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import gradio as gr
from fastapi import Request

from labeler.research.annotators.tab import AnnotatorsTab
from labeler.research.data.tab import DataTab
from labeler.research.history.tab import HistoryTab
from labeler.research.loop.tab import LoopTab
from labeler.research.samples.tab import SamplesTab
from labeler.research.tab import html_slot
from labeler.research.training.tab import TrainingTab
from labeler.security.auth import Identity
from storage.engine.database import Database
from storage.tables import annotators
from tests.helpers.recording_loop import RecordingLoop, in_a_loop

T = TypeVar("T")


@dataclass(frozen=True)
class Tabs:
    """All tabs, and the loop they speak to."""

    loop: RecordingLoop
    loop_tab: LoopTab
    training: TrainingTab
    samples: SamplesTab
    annotators: AnnotatorsTab
    data: DataTab
    history: HistoryTab


def all_tabs(db: Database, loop: RecordingLoop) -> Tabs:
    """Laid out together, because each Blocks costs Gradio half a second."""
    return laid_out(
        lambda: Tabs(
            loop, LoopTab(db, loop, top := html_slot()), TrainingTab(db, loop, top), SamplesTab(db),
            AnnotatorsTab(db, lambda: None), DataTab(db), HistoryTab(db),
        )
    )  # fmt: skip


def laid_out(make: Callable[[], T]) -> T:
    """A tab inside Blocks of its own."""

    def build() -> T:
        with gr.Blocks(analytics_enabled=False), gr.Tabs(), gr.Tab("Tab"):
            return make()

    return in_a_loop(build)


def asked_by(db: Database, name: str = "Rosa") -> gr.Request:
    """A request as it comes through the gate."""
    who = annotators.by_name(db, name)
    assert who is not None
    scope = {
        "type": "http",
        "headers": [(b"origin", b"https://kite.example")],
        "state": {"identity": Identity(who, bearer=False)},
    }
    return gr.Request(request=Request(scope))


def pressed(action: str, target: str, **more: str) -> gr.EventData:
    return gr.EventData(None, {"action": action, "id": target, **more})
