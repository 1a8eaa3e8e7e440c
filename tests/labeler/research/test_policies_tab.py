"""The "Policies" tab and what the other tabs say of the gate."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from labeler.research.models.verdicts import models_view
from labeler.research.models.verdicts import view as verdicts_view
from labeler.research.models.verdicts.tab import ALL, VerdictsTab
from labeler.research.overview.iterations_tab import IterationsTab
from labeler.research.overview.tab import OverviewTab
from labeler.research.runs.eta import Eta
from labeler.research.tab import html_slot
from storage.engine.database import Database
from storage.gate_records import StandingRuling
from storage.gate_report import (
    GateReport,
    Meeting,
    ModelBoard,
    ModelRank,
    Rank,
    SequentialEvidence,
    Standing,
)
from storage.importing.imports import import_judgments
from storage.labeling import judgments, queue
from storage.records import new_id
from storage.tables import iterations, policy_judgments
from tests.helpers.recording_loop import HOSTILE, RecordingLoop
from tests.helpers.research_seed import Seeding
from tests.helpers.research_tabs import asked_by, laid_out


@dataclass(frozen=True)
class World:
    """policy-1 is no better than SFT and was promised to be, policy-2 is better."""

    db: Database
    loop: RecordingLoop
    policies: VerdictsTab
    overview: OverviewTab
    iterations: IterationsTab


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        seeding = Seeding(db)
        seeding.history(labels=20)
        seeding.judge_policies(1, wins=0.5)
        seeding.judge_policies(2, wins=0.78)
        loop = RecordingLoop(db=db)
        yield laid_out(
            lambda: World(
                db,
                loop,
                VerdictsTab(db, loop),
                OverviewTab(db, loop, html_slot(), Eta()),
                IterationsTab(db, loop),
            )
        )


def rank(policy: str, **more: float) -> Rank:
    return Rank(policy=policy, judgments=60, **more)


def promoted(policy: str) -> Standing:
    """A policy that a researcher promoted as the evidence does."""
    test = SequentialEvidence(
        decision="better", log_e=4.0, prompts=60, stopped_at=40, path=[], limit=3.0
    )
    return Standing(
        policy=policy, verdict="promoted", by_evidence="promoted",
        ruling=StandingRuling(ruling="promote", reason="yes", researcher="Rosa", at="2026-01-01"),
        win_rate=None, versus=[], sequential=test, may_stop=True, alarm=None, words=[],
    )  # fmt: skip


def test_a_policy_that_the_canary_holds_or_blocks_is_shown_with_the_reason(world: World):
    seeding = Seeding(world.db)
    seeding.canary(2, lost=8, gained=3)
    held = world.policies.refresh(None)[world.policies.standing]
    assert "lost too much on the canary" in held
    assert "The loss may be chance, but the policy is not promoted." in held
    assert "Knead the dough." in held
    report = world.loop.gate()
    assert "loses too much on the canary" in verdicts_view.gate_notice(report)
    blocked = replace(report.policies[0], verdict="blocked")
    told = verdicts_view.gate_notice(replace(report, policies=[blocked]))
    assert "policy-2 is blocked" in told


def test_the_overview_shows_the_label_budget_as_the_loop_has_it(world: World):
    """The loop keeps a budget as long as nothing is stored; the page keeps none of its own."""
    tab, db = world.overview, world.db
    current = iterations.latest(db)
    assert current is not None
    iterations.save(db, replace(current, labels_wanted=500))
    left = world.loop.label_budget().left
    assert f"{left} of 500 labels are left" in tab.refresh()[tab.next]
    [pair] = queue.lease(db, "annotator-0", 1).pairs
    judgments.judge(
        db, id=new_id("j"), comparison=pair.comparison.id, annotator="annotator-0", outcome="a"
    )
    assert f"{left - 1} of 500 labels are left" in tab.refresh()[tab.next]


def test_the_policy_being_judged_is_shown_until_another_is_chosen(world: World):
    tab = world.policies
    first = tab.refresh(None)
    assert first[tab.policy].value == "policy-2"
    assert "significantly better than SFT" in first[tab.standing]
    assert "60 judgments against SFT; 10 wanted" in first[tab.standing]  # half of 20 labels
    other = tab.refresh("policy-1")
    assert other[tab.policy].value == "policy-1"
    assert "its reward model predicted 72%" in other[tab.standing]
    assert "judgments against SFT;" not in other[tab.standing]  # they are about the other one now


def test_the_curve_carries_every_point_and_its_limit(world: World):
    shown = html.unescape(str(world.policies.refresh("policy-1")[world.policies.curve]))
    assert "Sequential test of policy-1 against SFT" in shown
    path = world.loop.gate().policies[1].sequential.path
    assert len(path) == 60
    steps, values = (json.dumps(each, separators=(",", ":")) for each in zip(*path, strict=True))
    assert steps.startswith("[1,2,3,")
    assert values.startswith("[0.0,")  # one judgment settles nothing
    drawn = [
        [float(x) for x in found.split(",")] for found in re.findall(r'"[xy]":\[([^]]+)\]', shown)
    ]
    assert json.loads(steps) in drawn
    assert json.loads(values) in drawn
    assert "decided" in verdicts_view.curve(world.loop.gate(), "policy-2")


def test_a_ruling_that_says_what_the_evidence_says_leaves_it_the_word():
    report = GateReport(
        policies=[promoted("a")], leaderboard=[rank("a", win_rate=0.7, low=0.6, high=0.8)]
    )
    assert "significantly better than SFT" in verdicts_view.standing(report, "a")
    assert 'ks-good">promoted' in verdicts_view.board(report)


def test_an_interval_is_drawn_where_it_lies():
    report = GateReport(
        policies=[promoted("a")],
        leaderboard=[rank("a", win_rate=0.7, low=0.55, high=0.8), rank("z")],
    )
    shown = str(verdicts_view.board(report))
    assert 'style="left:55.0%;width:25.0%"' in shown
    assert '<b style="left:70.0%">' in shown
    assert "not comparable with SFT yet" in shown
    assert "55–80%" in shown


def test_the_loop_says_when_judging_may_stop_and_when_a_policy_is_blocked(world: World):
    tab = world.overview
    assert "policy-2 is better than SFT. You can stop comparing them." in tab.refresh()[tab.gate]
    report = world.loop.gate()

    def news(**changes: Any) -> str:
        changed = [replace(each, **changes) for each in report.policies]
        return str(
            verdicts_view.gate_notice(replace(report, policies=changed, last_promoted="sft-1"))
        )

    assert news(may_stop=False) == ""
    blocked = news(verdict="blocked")
    assert "policy-2 is blocked. The next iteration samples sft-1." in blocked
    assert "may stop" not in blocked


def test_what_the_loop_says_of_a_policy_changes_with_the_ruling_and_the_iteration(
    tmp_path: Path,
):
    with Database.open(tmp_path) as db:
        seeding = Seeding(db)
        seeding.history(labels=20)
        seeding.judge_policies(2, wins=0.78)
        tab = laid_out(lambda: OverviewTab(db, RecordingLoop(db=db), html_slot(), Eta()))
        assert "policy-2 is better than SFT" in tab.refresh()[tab.gate]
        policy_judgments.override(db, "policy-2", "block", reason="flatters")
        assert "policy-2 is blocked" in tab.refresh()[tab.gate]
        newest = iterations.latest(db)
        assert newest
        began = replace(
            newest, number=newest.number + 1, phase="sampling", policy_sampled="policy-1"
        )
        iterations.save(db, began)
        assert "policy-2" not in tab.refresh()[tab.gate]


def test_before_any_policy_there_is_a_word_on_what_comes(world: World):
    tab = laid_out(lambda: VerdictsTab(world.db, RecordingLoop()))
    shown = tab.refresh(None)
    assert "No trained policy yet" in shown[tab.standing]
    assert (shown[tab.curve], shown[tab.board]) == ("", "")
    assert not shown[tab.overruling].visible  # there is nothing to rule on
    assert world.policies.refresh(None)[world.policies.overruling].visible
    assert "There is no trained policy yet" in tab._rule(None, ALL, "promote", "x", asked_by(world.db))[tab.answer]  # fmt: skip


def test_a_ruling_needs_a_reason_and_carries_the_researchers_name(world: World):
    tab, who = world.policies, asked_by(world.db)
    refused = tab._rule("policy-1", ALL, "promote", "  ", who)
    assert "needs a written reason" in refused[tab.answer]
    assert tab.reason not in refused  # what was typed stays
    reason = f"read all of them {HOSTILE}"
    stored = tab._rule("policy-1", ALL, "promote", reason, who)
    assert "policy-1 is now promoted." in stored[tab.answer]
    assert stored[tab.reason] == ""
    assert "Rosa ruled “promote”" in stored[tab.standing]
    assert "by a researcher&#39;s ruling; the evidence does not show it" in stored[tab.standing]
    assert "significantly better" not in stored[tab.standing]
    assert "<img" not in stored[tab.standing]
    history = world.iterations.refresh()[world.iterations.rulings]
    assert "read all of them" in history
    assert "Rosa" in history
    assert "<img" not in history
    assert [o.researcher for o in policy_judgments.overrides(world.db)] == ["Rosa"]


def test_the_report_is_computed_again_only_for_a_judgment_a_model_or_a_ruling(world: World):
    calls, gate = [], world.loop.gate
    world.loop.gate = lambda: calls.append(1) or gate()
    tab = laid_out(lambda: VerdictsTab(world.db, world.loop))
    assert all("Rosa" not in tab.refresh("policy-1")[tab.standing] for _ in range(3))
    assert len(calls) == 1
    policy_judgments.override(world.db, "policy-1", "block", reason="flatters", researcher="Rosa")
    assert "Rosa ruled “block”" in tab.refresh("policy-1")[tab.standing]
    assert len(calls) == 2


def test_the_history_tells_each_policys_verdict_in_its_own_row(world: World):
    shown = str(world.iterations.refresh()[world.iterations.table])
    labeling, second, first = shown.split("<tbody>")[1].split("</tr>")[:3]
    assert ("blocked" in first, "promoted" in second) == (True, True)
    assert "ks-badge ks-bad" not in second + labeling


def test_models_of_imported_judgments_have_a_leaderboard_by_category(
    world: World, file: Any
) -> None:
    tab = world.policies
    shown = tab.refresh(None)
    assert (shown[tab.models], shown[tab.category].visible) == ("", False)  # only policies so far
    votes = [
        {"prompt": f"Q{n}?", "response_a": f"x{n}", "response_b": f"y{n}", "annotator": "imp",
         "model_a": "llama", "model_b": "gemma", "outcome": "a" if n % 4 else "b"}
        for n in range(40)
    ]  # fmt: skip
    import_judgments(world.db, file(votes))
    sql = (
        "UPDATE prompts SET category = 'fruit' "
        "WHERE id IN (SELECT prompt FROM comparisons WHERE arm = 'imported')"
    )
    world.db.write(lambda tx: tx.execute(sql))
    fresh = laid_out(lambda: VerdictsTab(world.db, world.loop))
    shown = fresh.refresh(None)
    text = html.unescape(str(shown[fresh.models]))
    assert "llama" in text
    assert "not connected by judgments" in text  # to SFT, the anchor
    assert shown[fresh.category].choices == [(name, name) for name in (ALL, "(none)", "fruit")]
    alone = fresh.refresh(None, "fruit")
    text = html.unescape(str(alone[fresh.models]))
    # Both have 40 judgments, and gemma is the first by its name.  30 wins and one virtual tie give
    # 30.5 / 41 = 74%.
    assert "40 judgments on 40 prompts of the category fruit" in text
    assert "Wins against gemma" in text
    assert "74%" in text
    assert "policy-1" not in text
    assert fresh.refresh(None, "gone")[fresh.category].value == ALL


def test_the_table_of_wins_has_the_best_models_and_no_markup_of_their_names() -> None:
    names = [f"<b>m{n}</b>" for n in range(14)]
    ranks = [ModelRank(model=name, judgments=9, won=0.5, rating=0.0, error=0.1, win_rate=0.5,
                       low=0.4, high=0.6) for name in names]  # fmt: skip
    met = [Meeting(model=names[0], opponent=names[1], judgments=8, wins=6.0),
           Meeting(model=names[1], opponent=names[0], judgments=8, wins=2.0)]  # fmt: skip
    board = ModelBoard(anchor=names[0], category=None, judgments=8, prompts=4, ranks=ranks,
                       meetings=met, categories={})  # fmt: skip
    text = models_view.models(board)
    assert "<b>m" not in text
    assert "Wins between the 12 best models" in text
    assert "75% of 8" in text
    assert "25% of 8" in text
    few = models_view.models(replace(board, ranks=ranks[:2]))
    assert "<details>" not in few.replace('<details class="ks-terms">', "")
    assert models_view.models(replace(board, anchor=None, ranks=[])) == ""
