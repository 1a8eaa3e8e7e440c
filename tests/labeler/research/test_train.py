"""The action bar of the Overview page, and what the routes behind its drawer start and refuse."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from labeler.annotate.routes import explain_errors
from labeler.research.api.loop import loop_routes
from labeler.research.api.settings import settings_routes
from storage.commands import Commands
from storage.engine.database import Database
from storage.records import Run
from storage.reports import Stopped
from storage.tables.runs import runs
from tests.helpers.recording_loop import RecordingLoop
from tests.helpers.research_seed import labeling_workspace
from tests.helpers.research_tabs import Tabs, all_tabs


@pytest.fixture(scope="module")
def db(tmp_path_factory) -> Iterator[Database]:
    """Tests change it, each something else."""
    yield from labeling_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def live(db) -> Tabs:
    return all_tabs(db, RecordingLoop())


@pytest.fixture
def routes(db, live) -> Iterator[TestClient]:
    app = FastAPI()
    explain_errors(app)
    for router in (*loop_routes(db, live.loop, Commands(db)), settings_routes(db, live.loop)):
        app.include_router(router)
    live.loop.asked.clear()
    with TestClient(app, base_url="http://testserver/research/api") as client:
        yield client


def test_train_sends_what_was_changed(live, routes):
    answer = routes.post("loop/train", json={"overrides": {"ppo.kl_weight": "0.1"}})
    assert answer.json() == {"started": True}
    assert live.loop.asked == [("train", {"ppo.kl_weight": "0.1"})]


def test_every_wrong_setting_is_named_and_nothing_is_started(live, routes):
    wrong = {"ppo.kl_weight": "-1<b>", "ppo.lr": "0", "seed": "3"}
    answer = routes.post("loop/train", json={"overrides": wrong})
    assert answer.status_code == 422
    assert answer.json()["fields"] == {
        "ppo.kl_weight": "ppo.kl_weight=-1<b> must be at least 0",
        "ppo.lr": "ppo.lr=0 must be more than 0",
    }
    assert live.loop.asked == []


def test_the_form_has_the_settings_with_those_of_the_last_training(routes):
    found = routes.get("loop/form").json()
    assert (found["iteration"], found["reason"], found["stopped"]) == (1, None, None)
    rate = next(each for each in found["settings"] if each["name"] == "ppo.lr")
    assert (rate["value"], rate["preset"], rate["last"]) == (5e-05, 2e-05, 1e-05)
    assert rate["basic"] == {"ppo": 3}
    fixed = next(each for each in found["settings"] if each["name"] == "sampling.top_p")
    assert fixed["applies_text"] == "Applies from the next iteration"


def test_train_is_closed_with_the_reason_and_open_without_one(live, monkeypatch):
    tab = live.overview
    assert tab.refresh()[tab.train].interactive is True
    monkeypatch.setattr(live.loop, "reason", "There are no labels yet.")
    assert tab.refresh()[tab.train].interactive is False
    assert "There are no labels" in tab.refresh()[tab.next]


# Another attempt at a stage that stopped

FAILED = Stopped(
    run="run-7", attempt=1, stage="policy", status="failed", reason="ppo.lr=5e-05 diverged", resumable=True,
    may_label=False, flag="kl_high", remedy="Raise kl_weight.", suggestion={"ppo.kl_weight": "0.1"},
)  # fmt: skip


def test_a_stopped_stage_changes_the_buttons_and_the_form(live, routes, monkeypatch):
    tab = live.overview
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    seen = tab.refresh()
    assert seen[tab.stopped] == "run-7 1"
    assert [seen[b].visible for b in (tab.train, tab.retry, tab.resume, tab.label)] == [
        False, True, True, False,
    ]  # fmt: skip
    found = routes.get("loop/form").json()
    assert (found["stage"], found["flag"]) == ("Policy", "KL high")
    assert found["stopped"]["suggestion"] == {"ppo.kl_weight": "0.1"}


def test_the_answer_of_a_button_goes_when_a_stage_stops(live, monkeypatch):
    tab = live.overview
    assert tab._forget_answer() == gr.skip()  # what has just been resumed keeps its answer
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    assert tab._forget_answer() == {tab.answer: ""}


def test_a_retry_is_of_the_run_that_is_shown(live, routes, db, monkeypatch):
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    again = Run(id="run-8", stage="policy", iteration=1, status="running", directory="runs/8")
    runs.save(db, again)  # which the real loop makes
    changes = {"ppo.kl_weight": "0.1"}
    for stale in ({"run": "run-6", "attempt": 1}, {"run": "run-7", "attempt": 2}):
        answer = routes.post("loop/retry", json={"overrides": changes, **stale})
        assert (answer.status_code, "has changed since" in answer.text) == (409, True)
    assert routes.post("loop/retry", json={"overrides": {"ppo.lr": "0"}}).status_code == 422
    assert live.loop.asked == []
    shown = {"overrides": changes, "run": "run-7", "attempt": 1}
    assert routes.post("loop/retry", json=shown).json() == {"run": "run-8"}
    assert live.loop.asked == [("retry", ("run-7", changes))]


def test_a_stopped_stage_can_be_resumed_or_left_for_labeling(live, monkeypatch):
    tab = live.overview
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    live.loop.asked.clear()
    stale = tab._press(live.loop.resume, "Resumed.", "run-6 1")
    assert "has changed since" in stale[tab.answer]
    tab._press(live.loop.resume, "Resumed.", "run-7 1")
    tab._press(live.loop.label_more, "Labeling.", "run-7 1")
    assert live.loop.asked == [("resume", "run-7"), ("label more", "run-7")]
