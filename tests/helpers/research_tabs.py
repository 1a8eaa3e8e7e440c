"""Sections of the research site over a database, without a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import gradio as gr
from fastapi import Request

from labeler.research.data.adjudication.tab import AdjudicationTab
from labeler.research.data.exporting.tab import ExportTab
from labeler.research.data.importing.tab import ImportTab
from labeler.research.data.judgments.tab import JudgmentsTab
from labeler.research.data.marks.tab import MarksTab
from labeler.research.data.prompts.tab import PromptsTab
from labeler.research.models.lineage.tab import LineageTab
from labeler.research.models.samples.tab import SamplesTab
from labeler.research.overview.iterations_tab import IterationsTab
from labeler.research.overview.tab import OverviewTab
from labeler.research.runs.eta import Eta
from labeler.research.runs.tab import RunsTab
from labeler.research.tab import html_slot
from labeler.research.team.guidelines.tab import GuidelinesTab
from labeler.research.team.judgment_form.tab import JudgmentFormTab
from labeler.research.team.people.tab import PeopleTab
from labeler.security.auth import Identity
from storage.engine.database import Database
from storage.tables.people import annotators
from tests.helpers.recording_loop import RecordingLoop, in_a_loop

T = TypeVar("T")


@dataclass(frozen=True)
class Tabs:
    """Sections, and the loop they call."""

    loop: RecordingLoop
    overview: OverviewTab
    iterations: IterationsTab
    runs: RunsTab
    samples: SamplesTab
    lineage: LineageTab
    judgments: JudgmentsTab
    adjudication: AdjudicationTab
    prompts: PromptsTab
    exporting: ExportTab
    importing: ImportTab
    marks: MarksTab
    people: PeopleTab
    guidelines: GuidelinesTab
    form: JudgmentFormTab


def all_tabs(db: Database, loop: RecordingLoop) -> Tabs:
    """Laid out together, because each Blocks costs Gradio half a second."""
    return laid_out(
        lambda: Tabs(
            loop=loop,
            overview=OverviewTab(db, loop, top := html_slot(), Eta()),
            iterations=IterationsTab(db, loop),
            runs=RunsTab(db, loop, top, Eta()),
            samples=SamplesTab(db),
            lineage=LineageTab(db),
            judgments=JudgmentsTab(db),
            adjudication=AdjudicationTab(db),
            prompts=PromptsTab(db),
            exporting=ExportTab(db),
            importing=ImportTab(db),
            marks=MarksTab(db),
            people=PeopleTab(db, lambda: None),
            guidelines=GuidelinesTab(db),
            form=JudgmentFormTab(db),
        )
    )


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
