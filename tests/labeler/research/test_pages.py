"""The research tabs over a real database: what they read, and what their handlers do."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import gradio as gr
import httpx
import pytest

from labeler.app import create_app
from labeler.research import pages, reading
from labeler.research.charts import CHARTS_JS
from labeler.research.overview import trust
from labeler.research.runs.tab import LATEST
from storage.analysis.agreement import Agreement
from storage.engine.database import Database
from storage.exporting import exports
from storage.gate_report import GateReport
from storage.labeling import judgments, queue
from storage.records import Annotator, Mark, now
from storage.reports import RewardReport, Stopped
from storage.tables import iterations, settings, snapshots
from storage.tables.people import annotators, tokens
from storage.tables.runs import runs
from tests.helpers.policy_world import add_iteration, add_models
from tests.helpers.recording_loop import HOSTILE, RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding, labeling_workspace
from tests.helpers.research_tabs import Tabs, all_tabs, asked_by
from tests.helpers.storage_world import fill

MIDNIGHT = now() - timedelta(hours=30)
"""Everything the seed has labeled is later, so "today" is all of it."""


STOPPED = Stopped(
    run="run-3-policy", attempt=1, stage="policy", status="failed", reason="", resumable=True,
    may_label=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def seeded(tmp_path_factory) -> Iterator[Database]:
    """Two finished iterations, a third in which PPO has failed.  Tests only read it."""
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        seeding = Seeding(db)
        seeding.history(labels=40)
        seeding.failed_ppo(3)
        yield db


@pytest.fixture(scope="module")
def tabs(seeded) -> Tabs:
    return all_tabs(seeded, RecordingLoop())


@pytest.fixture(scope="module")
def db(tmp_path_factory) -> Iterator[Database]:
    """Tests change it, each something else."""
    yield from labeling_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def live(db) -> Tabs:
    return all_tabs(db, RecordingLoop())


@pytest.fixture(scope="module")
def page(seeded) -> gr.Blocks:
    return in_a_loop(lambda: pages.build(seeded, RecordingLoop(), accounts_changed=lambda: None))


# Reading


def test_work_equals_a_count_by_hand_over_the_stored_judgments(seeded):
    stored = seeded.read("SELECT * FROM current_judgments WHERE annotator = 'annotator-0'")
    (ada,) = [w for w in reading.work(seeded, midnight=MIDNIGHT) if w.annotator.name == "Ada"]
    assert ada.judged == len(stored) > 10
    assert ada.today == len(stored)
    assert ada.latest == max(row["created_at"] for row in stored)
    assert ada.skips == 1


def test_the_annotators_tab_says_how_everybody_judges(tabs, seeded):
    seen = tabs.people.refresh()
    figures = seen[tabs.people.reliability]
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
    assert "prefers the left in 100% of decisions" in carl
    (one,) = [row for row in seen[tabs.people.people].split("<tr>") if ">Ada<" in row]
    seconds = sorted(row["milliseconds"] / 1000 for row in stored)
    middle = statistics.median(seconds)
    assert f"{middle:.0f} s<small>" in one
    assert f">{len(stored)}<small>" in one
    assert "1.30<small>1.06 to 1.54</small>" in one
    (other,) = [row for row in seen[tabs.people.people].split("<tr>") if "Careless" in row]
    assert "prefers the left in 100% of decisions" in other
    assert "Krippendorff" in seen[tabs.people.agreement]
    assert "66.0%" in seen[tabs.people.agreement]


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
    assert state.evaluated is not None
    assert state.evaluated.number == 2


def test_a_policy_that_is_being_evaluated_is_not_given_the_figures_of_the_last_one(tmp_path):
    with Database.open(tmp_path / "evaluating") as fresh:
        add_models(fresh, policies=2)
        add_iteration(fresh, 1, evaluation={"policy": {"kl": 4.2}, "win_rate_reward_model": 0.71})
        add_iteration(fresh, 2, phase="evaluating")
        state = reading.state(fresh, midnight=MIDNIGHT)
    assert state.policy is not None
    assert (state.policy.id, state.evaluated, state.judge) == ("policy-2", None, None)
    seen = trust.summaries(
        state, GateReport(), RewardReport(models=()), Agreement(items=0), open_flags=0, now=MIDNIGHT
    )
    assert "policy-2" in seen
    assert "not evaluated yet" in seen
    assert "4.20" not in seen


def test_an_empty_workspace_has_a_state_and_every_tab_shows_something(tmp_path):
    loop = RecordingLoop("The loop has not started. Import prompts first.")
    with Database.open(tmp_path / "empty") as empty:
        made = all_tabs(empty, loop)
        tabs: list[Any] = [
            made.overview, made.iterations, made.runs, made.samples, made.lineage, made.exporting,
            made.importing, made.marks, made.people,
        ]  # fmt: skip
        values = {"RunsTab": (LATEST, {}), "SamplesTab": (None, "gain", "", 1),
                  "ExportTab": ("trl", "drop", "jsonl", False), "LineageTab": (None,)}  # fmt: skip
        for tab in tabs:
            updates = tab.refresh(*values.get(type(tab).__name__, ()))
            assert set(updates) <= set(tab.outputs)
            assert any("ks-" in str(value) for value in updates.values())


# The whole page


def opening(page: Any) -> list[Any]:
    """The functions that the server runs when a section is selected."""
    return [fn for fn in page.fns.values() if fn.targets[0][1] == "select" and fn.fn is not None]


def test_the_page_reads_for_every_tab_what_its_handlers_take(page, seeded):
    selecting = opening(page)
    ticking = [fn for fn in page.fns.values() if fn.targets[0][1] == "tick"]
    sections = [id for id, block in page.blocks.items() if isinstance(block, gr.Tab)]
    timers = [id for id, block in page.blocks.items() if isinstance(block, gr.Timer)]
    # Scripts fetch what these show; Gradio would warn of a handler without outputs.
    opened = [fn.targets[0][0] for fn in selecting]
    assert {page.blocks[id].label for id in sections if id not in opened} == {
        "Overview: Settings", "Runs: Compare", "Runs: Studies", "Models: Playground",
        "Team: Judgment form",
    }  # fmt: skip
    assert sorted(fn.targets[0][0] for fn in ticking) == sorted(timers)
    assert len(sections) > 12
    assert len(timers) > 5
    for fn in (*selecting, *ticking):
        values = [getattr(component, "value", None) for component in fn.inputs]
        asked = [asked_by(seeded)] if fn in selecting else []
        updates = fn.fn(*asked, *values)
        assert set(updates) <= set(fn.outputs)
        assert updates


def test_no_answer_of_the_server_switches_a_timer(page):
    """Gradio may select the first section too when the address names another one, and answers may come
    in any order: the section in view would not be refreshed."""
    answered = [fn for fn in opening(page) if any(isinstance(out, gr.Timer) for out in fn.outputs)]
    assert answered == []


def test_every_place_of_a_chart_has_the_script_that_draws_it(page, seeded):
    drawn = 0
    for fn in opening(page):
        values = [getattr(component, "value", None) for component in fn.inputs]
        updates = fn.fn(asked_by(seeded), *values)
        places = [place for place, html in updates.items() if "ks-uplot" in str(html)]
        assert all(place.js_on_load == CHARTS_JS for place in places)
        drawn += len(places)
    assert drawn >= 2


def test_the_browser_switches_timers_before_it_asks_the_server(page):
    """What comes after a request waits for it, and then runs after later events."""
    timers = [block for block in page.blocks.values() if isinstance(block, gr.Timer)]
    for fn in opening(page):
        of_section = [each for each in page.fns.values() if each.targets == fn.targets]
        assert [each.fn for each in of_section] == [None, fn.fn]
        switch = of_section[0]
        assert "aria-selected=true" in switch.js
        # The header's timer always runs.
        assert len(switch.outputs) == len(set(switch.outputs)) == len(timers) - 1 == 6


def test_no_handler_can_be_called_by_name(page):
    assert {fn.api_visibility for fn in page.fns.values()} == {"private"}


# Loop


# Training


def test_a_failed_run_shows_its_reason_flag_charts_log_and_what_can_be_done(tabs, monkeypatch):
    monkeypatch.setattr(tabs.loop, "stopped", STOPPED)
    tab = tabs.runs
    updates = tab.refresh(LATEST, {})
    assert "out of memory at update 90" in updates[tab.card]
    assert "<img" not in updates[tab.card]
    assert "KL high" in updates[tab.flags]
    assert updates[tab.charts].count("<figure") == 16
    assert "reward/std" not in updates[tab.others]
    assert "run-3-policy update 59" in updates[tab.log]
    shown = {b.elem_id: updates[b].visible for b in (tab.cancel, tab.resume, tab.retry)}
    assert shown == {"cancel": False, "resume": True, "go-retry": True}


def test_later_stages_do_not_hide_the_run_of_the_policy(tmp_path):
    with Database.open(tmp_path / "w") as db:
        Seeding(db).history(finished=1, labels=20)
        tab = all_tabs(db, RecordingLoop()).runs
        assert runs.listing(db)[-1].stage != "policy"
        card = tab.refresh(LATEST, {})[tab.card]
        assert re.findall(r'ks-run-id">([\w-]+)<', card) == ["run-1-policy"]
        stages = re.findall(r'<a href="\?tab=runs&amp;run=([\w-]+)"( aria-current="true")?>', card)
        assert stages[0] == ("run-1-policy", ' aria-current="true"')
        assert {id for id, _ in stages} == {each.id for each in runs.listing(db, iteration=1)}
        runs.save(db, replace(runs.listing(db)[-1], id="next", iteration=2, status="running"))
        assert 'ks-run-id">next<' in tab.refresh(LATEST, {})[tab.card]


def test_a_reward_run_without_new_labels_says_so(tabs, monkeypatch):
    tab = tabs.runs
    said = "There are no new labels since the last training"
    assert said not in tab.refresh("run-2-reward", {})[tab.flags]
    monkeypatch.setattr(snapshots, "new_in", lambda _, iteration: 0 if iteration == 2 else 5)
    assert said in tab.refresh("run-2-reward", {})[tab.flags]
    assert said not in tab.refresh("run-1-reward", {})[tab.flags]
    assert said not in tab.refresh("run-2-ppo", {})[tab.flags]


def test_only_the_run_that_the_loop_waits_for_can_go_on(tabs, monkeypatch):
    tab = tabs.runs

    def offered(choice: str, stopped: Stopped | None) -> tuple[bool, bool]:
        monkeypatch.setattr(tabs.loop, "stopped", stopped)
        updates = tab.refresh(choice, {})
        return updates[tab.resume].visible, updates[tab.retry].visible

    assert offered(LATEST, STOPPED) == (True, True)
    assert offered(LATEST, replace(STOPPED, resumable=False)) == (False, True)
    assert offered("run-2-reward", STOPPED) == (False, False)
    assert offered(LATEST, None) == (False, False)  # it failed, and was left


def test_the_overview_says_how_many_more_judgments_the_gate_needs(tmp_path):
    """11 judgments against SFT have not decided the test, and 40 pairs are left."""
    with Database.open(tmp_path) as db:
        seeding = Seeding(db)
        seeding.history(labels=40)
        seeding.judge_policies(2, wins=1.0, judgments=11, unjudged=40)
        overview = all_tabs(db, RecordingLoop(db=db)).overview
        shown = overview.refresh()[overview.next]
        assert re.search(
            r"About \d+ more judgments until the test of policy-2 against SFT decides "
            r"\(90%: \d+ to [\w ]+\), \d+ of them on the gate\.",
            shown,
        )


def test_the_resources_of_a_run_are_sent_when_a_sample_is_new(tmp_path):
    with Database.open(tmp_path / "w") as db:
        Seeding(db).history(finished=1, labels=20)
        tab = all_tabs(db, RecordingLoop()).runs
        first = tab.refresh(LATEST, {})
        assert "No samples" in first[tab.resources]
        directory = db.workspace / "runs/run-1-policy"
        line = '{"time": 1, "cpu": 1.5, "memory": 2000000000, "gpus": []}\n'
        (directory / "resources.jsonl").write_text(line)
        second = tab.refresh(LATEST, first[tab.seen])
        assert second[tab.resources].count("<figure") == 2
        assert tab.resources not in tab.refresh(LATEST, second[tab.seen])
        with (directory / "resources.jsonl").open("a") as file:
            file.write(line.replace('"time": 1', '"time": 11'))
        assert tab.resources in tab.refresh(LATEST, second[tab.seen])


def test_what_the_browser_has_is_not_sent_again(tabs):
    tab = tabs.runs
    seen = tab.refresh(LATEST, {})[tab.seen]
    again = tab.refresh(LATEST, seen)
    assert tab.charts not in again
    assert tab.choice not in again
    assert tab.card in again
    other = tab.refresh("run-2-reward", seen)
    assert "train/loss" in other[tab.charts]


def test_buttons_act_on_the_run_that_is_shown(tabs):
    tab, loop = tabs.runs, RecordingLoop()
    updates = tab._press(loop.resume, "Resumed.", LATEST, {})
    tab._press(loop.cancel, "", "run-2-reward", {})
    assert loop.asked == [("resume", "run-3-policy"), ("cancel", "run-2-reward")]
    assert "Resumed." in updates[tab.answer]


def test_a_refusal_of_the_loop_is_said(tabs):
    def refuse(run: str) -> None:
        raise ValueError(f"{run} has no checkpoint yet; retry it from the start instead")

    tab = tabs.runs
    updates = tab._press(refuse, "Resumed.", LATEST, {})
    assert "has no checkpoint yet" in updates[tab.answer]
    assert "Resumed." not in updates[tab.answer]


def test_a_run_that_was_asked_to_stop_says_so_on_both_tabs_until_it_has(db, live):
    seeding = Seeding(db)
    before = iterations.get(db, 1)
    seeding.iteration(1, "policy", 30)
    waiting = "finishes this update; killed after 3 min without progress"
    running = seeding.run(1, "policy", "running", progress=0.25, finished_at=None, message=waiting)
    request = db.workspace / running.directory / "cancel"
    request.touch()
    try:
        training, overview = live.runs, live.overview
        updates = training._press(live.loop.cancel, "", LATEST, {})
        assert ("cancel", running.id) in live.loop.asked
        assert updates[training.answer] == ""
        for _ in range(2):  # at once, and to a page that has just been opened
            assert f"Cancelling: {waiting}" in updates[training.card]
            assert "time left" not in updates[training.card]
            assert updates[training.cancel].interactive is False
            assert "PPO: cancelling" in updates[training._top]
            updates = training.refresh(LATEST, {})
        updates = overview.refresh()
        assert f"Cancelling: {waiting}" in updates[overview.next]
        assert f"Cancelling: {waiting}" in updates[overview.head]
        assert "nothing to do" not in updates[overview.next]

        runs.save(db, replace(running, status="cancelled", finished_at=now()))
        updates = training.refresh(LATEST, {})
        assert "ancelling" not in updates[training.card] + updates[training._top]
        # Pressing "Resume" here sets the line above the tabs right at once.
        runs.save(db, replace(running, status="running", attempt=2))
        request.unlink()
        updates = training._press(live.loop.resume, "Resumed.", LATEST, {})
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
    assert "are missing" in tab.refresh(1, "gain", "", 1)[tab.list]


# Data


def test_guidelines_are_saved_and_previewed_without_markup_of_their_own(db, live):
    tab = live.guidelines
    tab._save(f"**Be kind.** {HOSTILE}")
    assert settings.get(db, "guidelines") == f"**Be kind.** {HOSTILE}"
    preview = tab.load()[tab.preview]
    assert "<strong>Be kind.</strong>" in preview
    assert "<img" not in preview


def test_versions_of_the_guidelines_are_compared_word_by_word(tmp_path):
    with Database.open(tmp_path / "guided") as fresh:
        tab = all_tabs(fresh, RecordingLoop()).guidelines
        seen = tab.refresh()
        assert not seen[tab.choices].visible  # only the default
        tab._save("Prefer the true answer.")
        tab._save(f"Prefer the short answer. {HOSTILE}")
        seen = tab._save("Prefer the short and true answer.")
        assert "Saved." in seen[tab.answer]
        shown = dict(seen[tab.before].choices)
        assert len(shown) == 4
        (newest, *_, first) = shown
        assert newest.startswith("current: ")
        assert "short and true" in newest
        # The new text is compared with the one before it.
        assert re.search(
            r"the short\s?<ins>\s?and true\s?</ins>\s?answer\.<del>", seen[tab.changes]
        )
        assert "<img" not in seen[tab.changes]
        true = next(value for name, value in shown.items() if "Prefer the true" in name)
        changes = tab._compare(true, shown[newest])
        assert "2 words added, 0 removed" in changes
        assert "the<ins> short and</ins> true answer." in changes
        assert "The two texts are equal." in tab._compare(true, true)
        assert tab._compare("unknown", true) == ""
        kept = tab.refresh(true, shown[first])
        assert (kept[tab.before].value, kept[tab.after].value) == (true, shown[first])


def test_the_form_of_judging_is_chosen_on_the_team_page(db, live):
    tab = live.form
    parts = (["clear"], " too long \n\nwrong", "required", "optional", True)
    assert "Saved." in tab._save_form("one-press", "required", *parts)
    assert settings.judgment_form(db) == settings.JudgmentForm(
        "one-press", "required", ("clear",), ("too long", "wrong"), "required", "optional", True
    )
    shown = tab.load()
    assert [shown[each] for each in tab.form] == [
        *("one-press", "required", ["clear"], "too long\nwrong", "required", "optional", True),
    ]
    assert "The form was not saved." in tab._save_form("stars", "required", *parts)
    twice = (["clear"], "wrong\nwrong", "required", "optional", False)
    assert "each tag may be given once" in tab._save_form("one-press", "required", *twice)
    assert settings.judgment_form(db).scale == "one-press"


def test_marked_passages_are_counted_and_shown_in_their_context(db, live):
    assert "No marked passages yet" in live.marks.refresh()[live.marks.marked]
    person = annotators.add(db, Annotator(id="marker", name="<b>Mia</b>"))
    for n, (outcome, reasons) in enumerate((("a", ("wrong",)), ("tie", ("wrong", "good")))):
        pair = queue.lease(db, person.id, 1).pairs[0]
        marks = [
            Mark(
                reason=reason, quote="<i>x</i>", prefix="before ", suffix=" after", start=7, end=15
            )
            for reason in reasons
        ]
        judgments.judge(
            db, id=f"marked-{n}", comparison=pair.comparison.id, annotator=person.id,
            outcome=outcome, marks={"b": marks},
        )  # fmt: skip
    assert [vars(each) for each in reading.mark_reasons(db)] == [
        {"reason": "wrong", "marks": 2, "judgments": 2},
        {"reason": "good", "marks": 1, "judgments": 1},
    ]
    shown = live.marks.refresh()[live.marks.marked]
    assert shown.count("before <mark>&lt;i&gt;x&lt;/i&gt;</mark> after") == 3
    assert "&lt;b&gt;Mia&lt;/b&gt;" in shown
    cells = re.findall(r'data-label="Response">([^<]+)<', shown)
    assert cells == ["tie", "tie", "other"]  # the newest first; A was preferred, B marked
    judgments.undo(db, id="undo-marked", annotator=person.id)
    assert [each.marks for each in reading.mark_reasons(db)] == [1]


def test_the_download_is_what_export_writes(seeded, tabs, tmp_path):
    app = in_a_loop(
        lambda: create_app(
            seeded, loop=RecordingLoop(), admin=lambda *_: None, admin_token="t",
            accounts_required=False,
        )
    )  # fmt: skip
    tab = tabs.exporting
    link = re.search(r'href="([^"]+)"', tab._link("raw", "keep", "jsonl", True))
    assert link is not None
    researcher = tokens.issue(seeded, "researcher", "api", lifetime=None)
    annotator = tokens.issue(seeded, "annotator-0", "api", lifetime=None)

    async def get(token: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"Authorization": f"Bearer {token}"}
            return await client.get(link[1].replace("&amp;", "&"), headers=headers)

    exports.export(seeded, format="raw", ties="keep", out=tmp_path / "raw.jsonl", names=True)
    answer = asyncio.run(get(researcher))
    assert answer.status_code == 200
    assert answer.content == (tmp_path / "raw.jsonl").read_bytes()
    assert "attachment" in answer.headers["content-disposition"]
    assert asyncio.run(get(annotator)).status_code == 403


def test_the_export_page_has_the_command_that_pushes_the_same_to_the_hub(seeded, tabs):
    shown = html.unescape(tabs.exporting._link("raw", "keep", "jsonl", True))
    found = re.search(r"<code>python launch.py export (.*?)</code>", shown)
    assert found is not None
    given = shlex.split(found[1])
    assert given == [
        "--workspace", str(seeded.workspace), "--format", "raw", "--ties", "keep", "--names",
        "--out", "hf://datasets/OWNER/NAME",
    ]  # fmt: skip
    assert "--names" not in tabs.exporting._link("raw", "keep", "jsonl", False)


def test_an_export_that_would_be_empty_says_why_in_place_of_a_link(tmp_path):
    with Database.open(tmp_path / "ties") as db:
        fill(db, pairs=1)
        [pair] = queue.lease(db, "ann", 1).pairs
        judgments.judge(db, id="j", comparison=pair.comparison.id, annotator="ann", outcome="tie")
        tab = all_tabs(db, RecordingLoop()).exporting
        dropped = tab._link("trl", "drop", "jsonl", False)
        assert "href" not in dropped
        assert "Nothing is left to export" in dropped
        assert "All 1 judgments are ties or both bad" in dropped
        assert "which this export drops; split or keep ties." in dropped
        assert "href" in tab._link("trl", "split", "jsonl", False)
        assert "href" in tab._link("raw", "drop", "jsonl", False)


# History


def test_iterations_models_and_lineage_are_listed(tabs):
    tab = tabs.iterations
    updates = tab.refresh()
    assert updates[tab.table].count("<tr>") == 4  # the head and three iterations
    assert "Policy failed" in updates[tab.table]
    assert updates[tab.charts].count("<figure") == 3
    tab = tabs.lineage
    updates = tab.refresh(None)
    assert updates[tab.tree].count('class="ks-node"') == 5
    assert updates[tab.model].value == "policy-2"
    assert "rewarded by reward-2" in updates[tab.lineage]
