"""The research tabs over a real database: what they read, and what their handlers do."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import gradio as gr
import httpx
import pytest
from fastapi import Request
from research_seed import HOSTILE, RecordingLoop, Seeding, in_a_loop

from labeler.app import create_app
from labeler.auth import Identity
from labeler.research import pages, reading
from labeler.research.annotators_tab import AnnotatorsTab
from labeler.research.data_tab import DataTab
from labeler.research.history_tab import HistoryTab
from labeler.research.loop_tab import LoopTab
from labeler.research.panel import Cached, piece
from labeler.research.samples_tab import SamplesTab
from labeler.research.training_tab import LATEST, TrainingTab
from storage import (
    annotators,
    exporting,
    iterations,
    judgments,
    queue,
    runs,
    settings,
    snapshots,
    tokens,
)
from storage.database import Database
from storage.records import Annotator, Iteration, now

T = TypeVar("T")
MIDNIGHT = now() - timedelta(hours=30)
"""Everything the seed has labelled is later, so "today" is all of it."""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory) -> Iterator[Database]:
    """Two finished iterations, a third in which PPO has failed.  Tests only read it."""
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        seeding = Seeding(db)
        seeding.history(labels=40)
        seeding.failed_ppo(3)
        yield db


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
            loop, LoopTab(db, loop, top := piece()), TrainingTab(db, loop, top), SamplesTab(db),
            AnnotatorsTab(db), DataTab(db), HistoryTab(db),
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def tabs(seeded) -> Tabs:
    return all_tabs(seeded, RecordingLoop())


@pytest.fixture(scope="module")
def db(tmp_path_factory) -> Iterator[Database]:
    """One iteration in labeling.  Tests change it, each something else."""
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        Seeding(db).history(finished=0, labels=30)
        yield db


@pytest.fixture(scope="module")
def live(db) -> Tabs:
    return all_tabs(db, RecordingLoop())


@pytest.fixture(scope="module")
def page(seeded) -> gr.Blocks:
    return in_a_loop(lambda: pages.build(seeded, RecordingLoop()))


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


def pressed(action: str, target: str) -> gr.EventData:
    return gr.EventData(None, {"action": action, "id": target})


# Reading


def test_work_equals_a_count_by_hand_over_the_stored_judgments(seeded):
    stored = seeded.read("SELECT * FROM current_judgments WHERE annotator = 'annotator-0'")
    (ada,) = [w for w in reading.work(seeded, midnight=MIDNIGHT) if w.annotator.name == "Ada"]
    assert ada.judged == len(stored) > 10
    assert ada.today == len(stored)
    assert ada.latest == max(row["created_at"] for row in stored)
    assert ada.skips == 1


def test_the_annotators_tab_says_how_everybody_judges(tabs, seeded):
    seen = tabs.annotators.refresh()
    figures = seen[tabs.annotators.reliability]
    stored = seeded.read("SELECT outcome, shown_swapped, milliseconds FROM current_judgments "
                         "WHERE annotator = 'annotator-0'")  # fmt: skip
    outcomes = Counter(row["outcome"] for row in stored)
    # the left response is the first one unless the sides were swapped
    left = sum((row["outcome"], row["shown_swapped"]) in (("first", False), ("second", True))
               for row in stored)  # fmt: skip
    (ada,) = [row for row in figures.split("<tr>") if ">Ada<" in row]
    assert f"{left / (outcomes['first'] + outcomes['second']):.0%}<small>" in ada
    assert f"{outcomes['tie'] / len(stored):.0%}" in ada
    assert "1.30<small>1.06 to 1.54</small>" in ada  # what the newest reward model has fitted
    (carl,) = [row for row in figures.split("<tr>") if "Careless" in row]
    assert "answers left 100% of the time" in carl
    assert "Krippendorff" in seen[tabs.annotators.agreement]
    assert "66.0%" in seen[tabs.annotators.agreement]


def test_the_state_counts_labels_of_the_current_iteration_only(seeded):
    state = reading.state(seeded, midnight=MIDNIGHT)
    # 26 of 40 comparisons judged, three of them (0, 10, 20) twice
    assert state.labels == 29
    assert state.judgments == 44 + 44 + 29
    assert state.wanted == 120
    assert state.policy is not None
    assert state.policy.id == "policy-2"
    assert state.run is not None
    assert state.run.status == "failed"
    assert state.previous is not None
    assert state.previous.number == 2


def test_an_empty_workspace_has_a_state_and_every_tab_shows_something(tmp_path):
    loop = RecordingLoop("The loop has not started: import prompts first.")
    with Database.open(tmp_path / "empty") as empty:
        made = all_tabs(empty, loop)
        tabs: list[Any] = [
            made.loop_tab, made.training, made.samples, made.annotators, made.data, made.history
        ]  # fmt: skip
        values = {"TrainingTab": (LATEST, {}), "SamplesTab": (None, "gain", "", 1),
                  "DataTab": ("trl", "drop", "jsonl", False), "HistoryTab": (None,)}  # fmt: skip
        for tab in tabs:
            panel = tab.panel()
            updates = panel.refresh(*values.get(type(tab).__name__, ()))
            assert set(updates) <= set(panel.outputs)
            assert any("ks-" in str(value) for value in updates.values())


# The whole page


def test_the_page_reads_for_every_tab_what_its_handlers_take(page):
    selecting = [fn for fn in page.fns.values() if fn.targets[0][1] == "select"]
    ticking = [fn for fn in page.fns.values() if fn.targets[0][1] == "tick"]
    assert len(selecting) == 7
    assert len(ticking) == 5  # four tabs, and the line above them
    for fn in (*selecting, *ticking):
        values = [getattr(component, "value", None) for component in fn.inputs]
        updates = fn.fn(*values)
        assert set(updates) <= set(fn.outputs)
        assert updates


def test_opening_a_tab_stops_every_timer_but_its_own(page):
    selecting = [fn for fn in page.fns.values() if fn.targets[0][1] == "select"]
    running = []
    for fn in selecting:
        updates = fn.fn(*[getattr(component, "value", None) for component in fn.inputs])
        timers = [value for value in updates.values() if isinstance(value, gr.Timer)]
        assert len(timers) == 4
        running.append(sum(timer.active for timer in timers))
    assert running == [1, 1, 1, 0, 1, 0, 0]  # loop, training, policies and annotators are live


def test_no_handler_can_be_called_by_name(page):
    assert {fn.api_visibility for fn in page.fns.values()} == {"private"}


# Loop


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


def test_train_is_closed_with_the_reason_and_open_without_one(live, monkeypatch):
    tab = live.loop_tab
    assert tab.refresh()[tab.train].interactive is True
    assert tab.refresh()[tab.reason] == ""
    monkeypatch.setattr(live.loop, "reason", "There are no labels yet.")
    assert tab.refresh()[tab.train].interactive is False
    assert "There are no labels" in tab.refresh()[tab.reason]


# Training


def test_a_failed_run_shows_its_reason_flag_charts_log_and_what_can_be_done(tabs):
    tab = tabs.training
    updates = tab.refresh(LATEST, {})
    assert "out of memory at update 90" in updates[tab.card]
    assert "<img" not in updates[tab.card]
    assert "KL high" in updates[tab.flags]
    assert updates[tab.charts].count("<svg") == 15
    assert "reward/std" not in updates[tab.others]
    assert "run-3-ppo update 59" in updates[tab.log]
    shown = {b.elem_id: updates[b].visible for b in (tab.cancel, tab.resume, tab.retry)}
    assert shown == {"cancel": False, "resume": True, "retry": True}


def test_a_reward_run_without_new_labels_says_so(tabs, monkeypatch):
    tab = tabs.training
    said = "No label is new since the last training"
    assert said not in tab.refresh("run-2-reward", {})[tab.flags]
    monkeypatch.setattr(snapshots, "new_in", lambda _, iteration: 0 if iteration == 2 else 5)
    assert said in tab.refresh("run-2-reward", {})[tab.flags]
    assert said not in tab.refresh("run-1-reward", {})[tab.flags]
    assert said not in tab.refresh("run-2-ppo", {})[tab.flags]


def test_resume_is_offered_only_where_there_is_a_checkpoint(tabs):
    tab = tabs.training
    folder = tab._db.workspace / "runs" / "run-3-ppo" / "checkpoint"
    folder.rename(folder.with_name("elsewhere"))
    try:
        updates = tab.refresh(LATEST, {})
        assert (updates[tab.resume].visible, updates[tab.retry].visible) == (False, True)
    finally:
        folder.with_name("elsewhere").rename(folder)


def test_what_the_browser_has_is_not_sent_again(tabs):
    tab = tabs.training
    seen = tab.refresh(LATEST, {})[tab.seen]
    again = tab.refresh(LATEST, seen)
    assert tab.charts not in again
    assert tab.choice not in again
    assert tab.card in again
    other = tab.refresh("run-2-reward", seen)
    assert "train/loss" in other[tab.charts]


def test_buttons_act_on_the_run_that_is_shown(tabs):
    tab, loop = tabs.training, RecordingLoop()
    updates = tab._press(loop.resume, "Resumed.")(LATEST, {})
    tab._press(loop.retry, "Again.")("run-2-reward", {})
    assert loop.asked == [("resume", "run-3-ppo"), ("retry", "run-2-reward")]
    assert "Resumed." in updates[tab.answer]


def test_a_refusal_of_the_loop_is_said(tabs):
    def refuse(run: str) -> None:
        raise ValueError(f"{run} has no checkpoint yet; retry it from the start instead")

    tab = tabs.training
    updates = tab._press(refuse, "Resumed.")(LATEST, {})
    assert "has no checkpoint yet" in updates[tab.answer]
    assert "Resumed." not in updates[tab.answer]


def test_a_run_that_was_asked_to_stop_says_so_on_both_tabs_until_it_has(db, live):
    seeding = Seeding(db)
    before = iterations.get(db, 1)
    seeding.iteration(1, "ppo", 30)
    running = seeding.run(1, "ppo", "running", progress=0.25, finished_at=None)
    request = db.workspace / running.directory / "cancel"
    request.touch()
    try:
        training, loop_tab = live.training, live.loop_tab
        updates = training._press(live.loop.cancel, "")(LATEST, {})
        assert ("cancel", running.id) in live.loop.asked
        assert updates[training.answer] == ""
        for _ in range(2):  # at once, and to a page that has just been opened
            assert "Cancelling: stops after this update" in updates[training.card]
            assert "time left" not in updates[training.card]
            assert updates[training.cancel].interactive is False
            assert "PPO: cancelling" in updates[training._top]
            updates = training.refresh(LATEST, {})
        updates = loop_tab.refresh()
        assert "Cancelling: stops after this update" in updates[loop_tab.next]
        assert "Cancelling: stops after this update" in updates[loop_tab.head]
        assert "nothing to do" not in updates[loop_tab.next]

        runs.save(db, replace(running, status="cancelled", finished_at=now()))
        updates = training.refresh(LATEST, {})
        assert "ancelling" not in updates[training.card] + updates[training._top]
        # Pressing "Resume" here sets the line above the tabs right at once.
        runs.save(db, replace(running, status="running", attempt=2))
        request.unlink()
        updates = training._press(live.loop.resume, "Resumed.")(LATEST, {})
        assert "PPO" in updates[training._top]
        assert "ancel" not in updates[training._top]
    finally:
        runs.save(db, replace(running, status="succeeded", finished_at=now()))
        iterations.save(db, before)


# Samples


def test_samples_of_the_last_evaluation_stand_side_by_side(tabs):
    tab = tabs.samples
    updates = tab.refresh(None, "gain", "", 1)
    assert updates[tab.iteration].value == 2
    shown = updates[tab.list]
    assert shown.count('class="ks-sample"') == 7
    for side in ("SFT reference", "Previous policy", "New policy"):
        assert shown.count(side) == 7
    assert "<img" not in shown
    gains = [float(g.replace("−", "-")) for g in re.findall(r"([+−][\d.]+) against SFT", shown)]
    assert gains == sorted(gains, reverse=True)


def test_the_first_iteration_has_no_previous_policy_and_a_filter_narrows(tabs):
    tab = tabs.samples
    updates = tab._filter(1, "prompt", "COMPOST")
    assert "Previous policy" not in updates[tab.list]
    assert updates[tab.list].count('class="ks-sample"') == 1
    assert "1 prompt · page 1 of 1" in updates[tab.where]


def test_samples_whose_files_are_gone_say_so(db, live):
    Seeding(db).run(1, "evaluate", "succeeded")
    tab = live.samples
    assert "are gone" in tab.refresh(1, "gain", "", 1)[tab.list]


# Annotators


def test_a_new_annotator_gets_an_invite_that_works_once_he_is_there(db, live):
    tab = live.annotators
    updates = tab._add(f" Eve {HOSTILE} ", "annotator", asked_by(db))
    link = re.search(r"https://kite\.example/invite\?token=([\w-]+)", updates[tab.answer])
    assert link is not None
    invited = tokens.check(db, link[1], ("invite",))
    assert invited is not None
    assert invited.name == f"Eve {HOSTILE}"
    assert "<img" not in updates[tab.answer] + updates[tab.people]


@pytest.mark.parametrize(("name", "says"), [("Ada", "is taken"), ("  ", "needs a name")])
def test_a_name_that_cannot_be_is_refused_with_the_reason(db, live, name, says):
    before = len(annotators.listing(db))
    updates = live.annotators._add(name, "annotator", asked_by(db))
    assert any(says in str(value) for value in updates.values())
    assert len(annotators.listing(db)) == before


def test_disabling_ends_every_session_and_enabling_lets_back_in(db, live):
    tab = live.annotators
    session = tokens.issue(db, "annotator-0", "session", lifetime=None)
    tab._act(pressed("disable", "annotator-0"), asked_by(db))
    assert annotators.get(db, "annotator-0").disabled
    tab._act(pressed("enable", "annotator-0"), asked_by(db))
    assert not annotators.get(db, "annotator-0").disabled
    assert tokens.check(db, session, ("session",)) is None


def test_the_last_researcher_cannot_lock_himself_out(db, live):
    tab = live.annotators
    updates = tab._act(pressed("disable", "researcher"), asked_by(db))
    assert "only researcher" in updates[tab.answer]
    assert not annotators.get(db, "researcher").disabled
    annotators.add(db, Annotator(id="second", name="Second", role="researcher"))
    tab._act(pressed("disable", "researcher"), asked_by(db))
    assert annotators.get(db, "researcher").disabled
    tab._act(pressed("enable", "researcher"), asked_by(db))


def test_clearing_a_flag_brings_the_pair_back_to_the_queue(db, live):
    iterations.save(db, Iteration(number=1, phase="labeling", labels_wanted=30))
    (pair,) = queue.lease_next(db, "annotator-0", 1)
    judgments.flag(
        db, id="flag", comparison=pair.comparison.id, annotator="annotator-0", comment="broken"
    )
    tab = live.annotators
    assert "broken" in tab.refresh()[tab.flags]
    updates = tab._act(pressed("clear", "flag"), asked_by(db))
    assert "back in the queue" in updates[tab.answer]
    assert "broken" not in updates[tab.flags]
    (again,) = queue.lease_next(db, "annotator-1", 1)
    assert again.comparison.id == pair.comparison.id


def test_somebody_who_is_not_there_is_said(db, live):
    tab = live.annotators
    updates = tab._act(pressed("disable", "nobody"), asked_by(db))
    assert "nobody" in updates[tab.answer]


def test_slow_figures_are_computed_again_when_their_key_changes_but_not_more_often():
    moment, computed = [0.0], []
    cached = Cached(lambda: computed.append(1) or len(computed), at_most_every=30,
                    clock=lambda: moment[0])  # fmt: skip
    assert [cached.get("a"), cached.get("a"), cached.get("b")] == [1, 1, 1]
    moment[0] = 31.0
    assert [cached.get("a"), cached.get("b")] == [1, 2]


# Data


def test_guidelines_are_saved_and_previewed_without_markup_of_their_own(db, live):
    tab = live.data
    tab._save(f"**Be kind.** {HOSTILE}")
    assert settings.get(db, "guidelines") == f"**Be kind.** {HOSTILE}"
    preview = tab.load()[tab.preview]
    assert "<strong>Be kind.</strong>" in preview
    assert "<img" not in preview


def test_the_download_is_what_export_writes(seeded, tabs, tmp_path):
    app = in_a_loop(
        lambda: create_app(
            seeded, loop=RecordingLoop(), admin=lambda *_: None, admin_token="t",
            accounts_required=False,
        )
    )  # fmt: skip
    tab = tabs.data
    link = re.search(r'href="([^"]+)"', tab._link("raw", "keep", "jsonl", True))
    assert link is not None
    researcher = tokens.issue(seeded, "researcher", "api", lifetime=None)
    annotator = tokens.issue(seeded, "annotator-0", "api", lifetime=None)

    async def get(token: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"Authorization": f"Bearer {token}"}
            return await client.get(link[1].replace("&amp;", "&"), headers=headers)

    exporting.export(seeded, format="raw", ties="keep", out=tmp_path / "raw.jsonl", names=True)
    answer = asyncio.run(get(researcher))
    assert answer.status_code == 200
    assert answer.content == (tmp_path / "raw.jsonl").read_bytes()
    assert "attachment" in answer.headers["content-disposition"]
    assert asyncio.run(get(annotator)).status_code == 403


# History


def test_history_lists_iterations_models_and_lineage(tabs):
    tab = tabs.history
    updates = tab.refresh(None)
    assert updates[tab.table].count("<tr>") == 4  # the head and three iterations
    assert "PPO failed" in updates[tab.table]
    assert updates[tab.charts].count("<svg") == 3
    assert updates[tab.tree].count('class="ks-node"') == 5
    assert updates[tab.model].value == "policy-2"
    assert "rewarded by reward-2" in updates[tab.lineage]
