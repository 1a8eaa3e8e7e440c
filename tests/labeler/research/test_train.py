"""The form that starts training: what it sends, refuses and warns of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from labeler.research.overview.tab import OverviewTab
from labeler.research.overview.train_form import TrainForm
from storage.engine.database import Database
from storage.reports import SettingView, Stopped
from tests.helpers.recording_loop import RecordingLoop
from tests.helpers.research_seed import labeling_workspace
from tests.helpers.research_tabs import Tabs, all_tabs, laid_out


@pytest.fixture(scope="module")
def db(tmp_path_factory) -> Iterator[Database]:
    """Tests change it, each something else."""
    yield from labeling_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def live(db) -> Tabs:
    return all_tabs(db, RecordingLoop())


def typed(tab: OverviewTab, **changes: str) -> list[Any]:
    """The form as it stands, with some fields changed; ``ppo__lr`` is the field of ppo.lr."""
    values = {str(c.elem_id): c.value for c in tab.form.components}
    for name, text in changes.items():
        values["setting-" + name.replace("__", "-")] = text
    return list(values.values())


def test_train_sends_what_was_changed_and_says_so(live):
    live.loop.asked.clear()
    updates = live.overview._train(*typed(live.overview, ppo__kl_weight="0.1"))
    assert live.loop.asked == [("train", {"ppo.kl_weight": "0.1"})]
    assert "Changed: ppo.kl_weight=0.1" in updates[live.overview.answer]


def test_a_refused_setting_is_said_and_nothing_is_started(live):
    live.loop.asked.clear()
    updates = live.overview._train(*typed(live.overview, ppo__kl_weight="-1<b>"))
    assert live.loop.asked == []
    assert "ppo.kl_weight=-1&lt;b&gt; must be at least 0" in updates[live.overview.answer]


def classes(tab: OverviewTab, updates: dict) -> dict[str, list[str]]:
    """The classes that fields are given, by setting, where there are any."""
    given = {c.label: updates[c]["elem_classes"] for c in tab.form.components}
    return {str(name): found for name, found in given.items() if found}


def test_a_refusal_marks_the_field_it_names_and_unfolds_it(live, monkeypatch):
    tab = live.overview
    updates = tab._train(*typed(tab, ppo__kl_weight="-1"))
    assert classes(tab, updates) == {"ppo.kl_weight": ["ks-wrong"]}
    assert tab.form.outputs[-1] not in updates

    def refuse(_: dict[str, str]) -> None:
        raise ValueError("seed=7 suits ppo.updates=100 only, and no reward.center.more")

    monkeypatch.setattr(live.loop, "train", refuse)
    updates = tab._train(*typed(tab, seed="7"))
    assert set(classes(tab, updates)) == {"seed", "ppo.updates"}
    assert updates[tab.form.outputs[-1]] == {"open": True, "__type__": "update"}
    monkeypatch.undo()
    assert classes(tab, tab._train(*typed(tab))) == {}


def test_going_back_is_to_this_workspaces_settings_and_general_defaults_are_warned_of(live):
    tab = live.overview
    rate = next(c for c in tab.form.components if c.label == "ppo.lr")
    back, general = tab._fill_with(False), tab._fill_with(True)
    assert (back[rate]["value"], general[rate]["value"]) == ("5e-05", "3e-06")
    assert "This workspace uses other values: ppo.lr=5e-05." in general[tab.answer]
    assert back[tab.answer] == ""
    assert classes(tab, back) == {}


def test_what_training_reads_no_more_is_shown_and_never_sent(live):
    tab = live.overview
    field = next(c for c in tab.form.components if c.label == "sampling.top_p")
    assert (field.interactive, field.value) == (False, "0.9")
    assert "Cannot be changed here: sampling.top_p acts earlier." in field.info
    general = tab._fill_with(True)
    assert general[field]["value"] == "0.9"  # nor do the general defaults change it
    assert "sampling.top_p" not in general[tab.answer]
    live.loop.asked.clear()
    tab._train(*typed(tab, sampling__top_p="0.5"))
    assert live.loop.asked == [("train", {})]


def test_train_is_closed_with_the_reason_and_open_without_one(live, monkeypatch):
    tab = live.overview
    assert tab.refresh()[tab.train].interactive is True
    assert tab.refresh()[tab.reason] == ""
    monkeypatch.setattr(live.loop, "reason", "There are no labels yet.")
    assert tab.refresh()[tab.train].interactive is False
    assert "There are no labels" in tab.refresh()[tab.reason]


# Another attempt at a stage that stopped

FAILED = Stopped(
    run="run-7", attempt=1, stage="policy", status="failed", reason="ppo.lr=5e-05 diverged", resumable=True,
    may_label=False, flag="kl_high", remedy="Raise kl_weight.", suggestion={"ppo.kl_weight": "0.1"},
)  # fmt: skip


def field(tab: OverviewTab, name: str) -> Any:
    return next(c for c in tab.form.components if c.label == name)


def test_the_form_turns_to_the_stage_that_stopped_with_the_suggestion_filled_in(live, monkeypatch):
    tab = live.overview
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    seen = tab.refresh()
    assert seen[tab.stopped] == "run-7 1"
    assert "Retry with changes: Policy" in seen[tab.title]
    assert [seen[b].visible for b in (tab.train, tab.retry, tab.resume, tab.label)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert tab.load()[field(tab, "ppo.kl_weight")]["value"] == "0.1"  # however late it arrives
    changes = tab._switch()
    weight, rate = changes[field(tab, "ppo.kl_weight")], changes[field(tab, "ppo.lr")]
    assert (weight["value"], weight["elem_classes"]) == ("0.1", ["ks-suggested"])
    assert "previously 0.05" in weight["info"]
    # The reason names it: that field has to change.
    assert (rate["value"], rate["elem_classes"], rate["visible"]) == ("5e-05", ["ks-wrong"], True)
    assert set(changes) <= set(tab.form.outputs)
    monkeypatch.setattr(live.loop, "stopped", None)
    assert tab._switch()[field(tab, "ppo.kl_weight")]["value"] == "0.05"
    assert tab.refresh()[tab.retry].visible is False


def test_the_answer_of_train_goes_when_the_stage_stops(live, monkeypatch):
    tab = live.overview
    assert tab.answer not in tab._show_stopped()  # a retry that has just started keeps its answer
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    assert tab._show_stopped()[tab.answer] == ""


def test_a_retry_sends_what_was_changed_for_the_run_that_is_shown(live, monkeypatch):
    tab = live.overview
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    live.loop.asked.clear()
    values = typed(tab, ppo__kl_weight="0.1")
    refused = tab._retry("run-7 1", *typed(tab, ppo__lr="0"))
    assert classes(tab, refused) == {"ppo.lr": ["ks-wrong"]}
    stale = tab._retry("run-6 1", *values)
    assert "has changed since" in stale[tab.answer]
    assert live.loop.asked == []
    done = tab._retry("run-7 1", *values)
    assert live.loop.asked == [("retry", ("run-7", {"ppo.kl_weight": "0.1"}))]
    assert "Changed: ppo.kl_weight=0.1" in done[tab.answer]


def test_a_stopped_stage_can_be_resumed_or_left_for_labeling(live, monkeypatch):
    tab = live.overview
    monkeypatch.setattr(live.loop, "stopped", FAILED)
    live.loop.asked.clear()
    tab._press(live.loop.resume, "Resumed.", "run-7 1")
    tab._press(live.loop.label_more, "Labeling.", "run-7 1")
    assert live.loop.asked == [("resume", "run-7"), ("label more", "run-7")]


def test_settings_that_the_stage_does_not_read_are_left_out():
    listed = [
        SettingView(name="ppo.lr", value=0.1, default=0.1, kind="float", basic=True, help=""),
        SettingView(
            name="evaluate.prompts", value=9, default=9, kind="int", help="", offered=False
        ),
        SettingView(name="ppo.top_k", value=3, default=0, kind="int", help=""),
    ]
    form = laid_out(lambda: TrainForm(listed))
    suggestion = Stopped(**(vars(FAILED) | {"suggestion": {"ppo.top_k": "0"}}))
    changes = form.switch(listed, suggestion)
    shown = {c.label: changes[c]["visible"] for c in form.components}
    assert shown == {"ppo.lr": True, "evaluate.prompts": False, "ppo.top_k": True}
    assert changes[form.outputs[-1]]["open"] is True  # where the suggestion is
    values = {"ppo.lr": "0.1", "evaluate.prompts": "1", "ppo.top_k": "0"}
    asked = form.overrides(listed, [values[str(c.label)] for c in form.components])
    assert asked == {"ppo.top_k": "0"}
