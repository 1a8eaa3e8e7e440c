"""The form that starts training: what it sends, refuses and warns of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from recording_loop import RecordingLoop
from research_seed import labeling_workspace
from research_tabs import Tabs, all_tabs

from labeler.research.loop_tab import LoopTab
from storage.database import Database


@pytest.fixture(scope="module")
def db(tmp_path_factory) -> Iterator[Database]:
    """Tests change it, each something else."""
    yield from labeling_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def live(db) -> Tabs:
    return all_tabs(db, RecordingLoop())


def typed(tab: LoopTab, **changes: str) -> list[Any]:
    """The form as it stands, with some fields changed; ``ppo__lr`` is the field of ppo.lr."""
    values = {str(c.elem_id): c.value for c in tab.form.components}
    for name, text in changes.items():
        values["setting-" + name.replace("__", "-")] = text
    return list(values.values())


def test_train_sends_what_was_changed_and_says_so(live):
    live.loop.asked.clear()
    updates = live.loop_tab._press_train(*typed(live.loop_tab, ppo__kl_weight="0.1"))
    assert live.loop.asked == [("train", {"ppo.kl_weight": "0.1"})]
    assert "Changed: ppo.kl_weight=0.1" in updates[live.loop_tab.answer]


def test_a_refused_setting_is_said_and_nothing_is_started(live):
    live.loop.asked.clear()
    updates = live.loop_tab._press_train(*typed(live.loop_tab, ppo__kl_weight="-1<b>"))
    assert live.loop.asked == []
    assert "ppo.kl_weight=-1&lt;b&gt; must be at least 0" in updates[live.loop_tab.answer]


def classes(tab: LoopTab, updates: dict) -> dict[str, list[str]]:
    """The classes that fields are given, by setting, where there are any."""
    given = {c.label: updates[c]["elem_classes"] for c in tab.form.components}
    return {str(name): found for name, found in given.items() if found}


def test_a_refusal_marks_the_field_it_names_and_unfolds_it(live, monkeypatch):
    tab = live.loop_tab
    updates = tab._press_train(*typed(tab, ppo__kl_weight="-1"))
    assert classes(tab, updates) == {"ppo.kl_weight": ["ks-wrong"]}
    assert tab.form.outputs[-1] not in updates

    def refuse(_: dict[str, str]) -> None:
        raise ValueError("seed=7 suits ppo.updates=100 only, and no reward.center.more")

    monkeypatch.setattr(live.loop, "train", refuse)
    updates = tab._press_train(*typed(tab, seed="7"))
    assert set(classes(tab, updates)) == {"seed", "ppo.updates"}
    assert updates[tab.form.outputs[-1]] == {"open": True, "__type__": "update"}
    monkeypatch.undo()
    assert classes(tab, tab._press_train(*typed(tab))) == {}


def test_going_back_is_to_this_workspaces_settings_and_general_defaults_are_warned_of(live):
    tab = live.loop_tab
    rate = next(c for c in tab.form.components if c.label == "ppo.lr")
    back, general = tab._fill_with(False), tab._fill_with(True)
    assert (back[rate]["value"], general[rate]["value"]) == ("5e-05", "3e-06")
    assert "This workspace has its own: ppo.lr=5e-05." in general[tab.answer]
    assert back[tab.answer] == ""
    assert classes(tab, back) == {}


def test_what_training_reads_no_more_is_shown_and_never_sent(live):
    tab = live.loop_tab
    field = next(c for c in tab.form.components if c.label == "sampling.top_p")
    assert (field.interactive, field.value) == (False, "0.9")
    assert "Not here: sampling.top_p acts earlier." in field.info
    general = tab._fill_with(True)
    assert general[field]["value"] == "0.9"  # nor do the general defaults change it
    assert "sampling.top_p" not in general[tab.answer]
    live.loop.asked.clear()
    tab._press_train(*typed(tab, sampling__top_p="0.5"))
    assert live.loop.asked == [("train", {})]


def test_train_is_closed_with_the_reason_and_open_without_one(live, monkeypatch):
    tab = live.loop_tab
    assert tab.refresh()[tab.train].interactive is True
    assert tab.refresh()[tab.reason] == ""
    monkeypatch.setattr(live.loop, "reason", "There are no labels yet.")
    assert tab.refresh()[tab.train].interactive is False
    assert "There are no labels" in tab.refresh()[tab.reason]
