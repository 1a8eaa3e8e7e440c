"""Pairs written elsewhere: queued, judged blind, learned from, and measured by nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest

from labeler.annotate.session import LabelSession
from pipeline.config.sections import Config
from pipeline.promotion import gate
from pipeline.reward.data import split_by_prompt
from storage import worker_files
from storage.engine import backup
from storage.engine.database import Database
from storage.exporting.exports import export
from storage.importing.imports import (
    BadFile,
    import_judgments,
    import_pairs,
    import_prompts,
)
from storage.labeling import judgments, model_judges, queue
from storage.records import RANDOM_STREAM, WRITTEN, Annotator, Iteration, Phase, Prompt, new_id, now
from storage.tables import iterations, policy_judgments
from storage.tables.people import annotators
from tests.helpers.import_files import CHAT, everything, reasons, total
from tests.helpers.judged_pairs import pair as judged_pair
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.storage_world import fill

PAIR = {"prompt": "Name a fruit", "response_a": "Pear", "response_b": "Apple"}


def pairs_of(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"Question {n}?", "response_a": f"yes {n}", "response_b": f"no {n}"}
        for n in range(count)
    ]


def add_people(db: Database, *names: str) -> None:
    for name in names:
        annotators.add(db, Annotator(id=name, name=name))


def judge_all(db: Database, who: str, outcome: Any = "a") -> list[str]:
    """`who` judges everything in the queue; the comparisons."""
    seen: list[str] = []
    while leased := queue.lease(db, who, queue.AT_ONCE).pairs:
        for pair in leased:
            judgments.judge(
                db, id=new_id("j"), comparison=pair.comparison.id, annotator=who, outcome=outcome
            )
            seen.append(pair.comparison.id)
    return seen


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_file_type_puts_pairs_into_the_queue(db: Database, file: Any, ending: str) -> None:
    add_people(db, "ann")
    row = {**PAIR, "model_a": "pearbot", "model_b": "applebot", "category": "food"}

    report = import_pairs(db, file([row], f"rows{ending}"))

    assert report.added | {"withdrawals": 0} == {
        "prompts": 1, "models": 2, "completions": 2, "comparisons": 1,
        "annotators": 0, "judgments": 0, "withdrawals": 0,
    }  # fmt: skip
    [leased] = queue.lease(db, "ann", 4).pairs
    assert leased.prompt.id == Prompt.make("Name a fruit", role="train").id
    assert (leased.prompt.role, leased.prompt.category) == ("train", "food")
    assert {leased.left, leased.right} == {"Pear", "Apple"}
    assert (leased.comparison.arm, leased.comparison.iteration) == (WRITTEN, 0)
    models = {row["name"]: row for row in db.read("SELECT * FROM models")}
    assert set(models) == {"pearbot", "applebot"}
    assert {row["role"] for row in models.values()} == {"external"}
    assert {row["parent"] for row in models.values()} == {None}


def test_a_prompt_may_be_a_conversation(db: Database, file: Any) -> None:
    add_people(db, "ann")
    import_pairs(db, file([{**PAIR, "prompt": CHAT}]))

    [leased] = queue.lease(db, "ann", 1).pairs

    assert [m.role for m in leased.prompt.messages] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("phase", [None, *get_args(Phase)])
def test_they_wait_for_people_in_every_phase(db: Database, file: Any, phase: Phase | None) -> None:
    if phase:
        fill(db, pairs=1)
        iterations.save(db, Iteration(number=1, phase=phase))
    else:
        add_people(db, "ann")
    assert len(queue.lease(db, "ann", 16).pairs) == (0 if phase in (None, "sampling") else 1)

    import_pairs(db, file(pairs_of(3)))  # while people are at the desk

    found = {pair.comparison.id for pair in queue.lease(db, "ann", 16).pairs}
    written = {row["id"] for row in db.read("SELECT id FROM comparisons WHERE arm = 'written'")}
    assert len(written) == 3
    assert written <= found


def test_they_stay_in_the_queue_when_the_next_iteration_begins_and_after_a_restart(
    db: Database, file: Any
) -> None:
    fill(db, pairs=2)
    import_pairs(db, file(pairs_of(2)))
    fill(db, pairs=2, iteration=2)
    db.close()

    with Database.open(db.workspace) as again:
        arms = [pair.comparison.arm for pair in queue.lease(again, "ann", 16).pairs]
        assert sorted(arms) == ["random", "random", "written", "written"]
        assert queue.progress(again, "ann", since=now()).remaining == 4
        assert len(judge_all(again, "ann")) == 4
        assert queue.progress(again, "bob", since=now()).remaining == 0


def test_they_are_mixed_with_the_pairs_of_the_loop(db: Database, file: Any) -> None:
    import_pairs(db, file(pairs_of(400)))

    positions = [row["position"] for row in db.read("SELECT position FROM comparisons")]

    # Uniform in [0, 2^62), as those of the loop: the mean of 400 is within 4 standard errors.
    shares = [position / 2**62 for position in positions]
    assert min(shares) >= 0
    assert max(shares) < 1
    assert abs(sum(shares) / 400 - 0.5) < 4 * (1 / 12 / 400) ** 0.5
    assert len(set(positions)) == 400


def test_they_are_judged_blind_and_undone_like_any_other(db: Database, file: Any) -> None:
    add_people(db, "ann")
    ann = annotators.by_name(db, "ann")
    assert ann
    import_pairs(db, file([{**PAIR, "model_a": "secret-a", "model_b": "secret-b"}]))
    session = LabelSession(db)

    [pair] = session.lease(ann, 4).pairs
    assert "secret" not in repr(pair)
    assert WRITTEN not in repr(pair)
    judgments.judge(db, id=new_id("j"), annotator=ann.id, comparison=pair.id, outcome="a")
    assert session.lease(ann, 4).pairs == []
    undone = session.undo(ann, id=new_id("u"))
    assert undone.pair.id == pair.id
    assert [again.id for again in session.lease(ann, 4).pairs] == [pair.id]


def test_a_model_judge_is_asked_about_them_as_well(db: Database, file: Any) -> None:
    import_pairs(db, file(pairs_of(2)))

    assert len(model_judges.open_pairs(db, annotator="robot", limit=9)) == 2


def test_a_file_twice_adds_nothing(db: Database, file: Any) -> None:
    rows = [*pairs_of(3), {**PAIR, "id": "q7"}, {**PAIR, "id": "q8"}, PAIR]
    first = import_pairs(db, file(rows))
    before = everything(db)

    swapped = [
        row | {"response_a": row["response_b"], "response_b": row["response_a"]} for row in rows
    ]
    again = [import_pairs(db, file(rows)), import_pairs(db, file(swapped, "swapped.csv"))]

    assert first.added["comparisons"] == 6  # ids keep equal texts apart
    for report in again:
        assert (total(report), report.known) == (0, 6)
    assert everything(db) == before


BAD = {
    "no response_b": ({"response_b": None}, "response_b is missing"),
    "empty": ({"response_a": "  \n"}, "response_a is empty"),
    "equal": ({"response_a": "Apple "}, "response_a and response_b are the same"),
    "too long": ({"response_a": "x" * 200_001}, "response_a has 200,001 characters"),
    "a number": ({"response_b": 5}, "response_b must be text, not the number 5"),
    "a boolean": ({"prompt": True}, "prompt must be text, not the boolean true"),
    "a list": ({"response_a": ["x"]}, "response_a must be a list of"),
    "no prompt": ({"prompt": None}, "the prompt is missing"),
    "blank prompt": ({"prompt": " "}, "a user message that is not blank"),
    "answered": (
        {"prompt": [*CHAT, {"role": "assistant", "content": "x"}]},
        "end with a user turn",
    ),
    "arm": ({"arm": "wonky"}, "arm is 'wonky' and must be one of"),
    "model": ({"model_a": {"name": "x"}}, "model_a must be text"),
}


def test_every_bad_row_is_named_with_its_number_and_nothing_is_stored(
    db: Database, file: Any
) -> None:
    rows = [PAIR, *({**PAIR, **change} for change, _ in BAD.values())]
    with pytest.raises(BadFile) as bad:
        import_pairs(db, file(rows))

    said = reasons(bad)
    assert list(said) == list(range(2, len(BAD) + 2))
    for reason, (_, expected) in zip(said.values(), BAD.values(), strict=True):
        assert expected in reason
        assert "\n" not in reason
    assert not any(everything(db).values())

    report = import_pairs(db, file(rows), skip_bad=True)
    assert report.added["comparisons"] == 1
    assert len(report.skipped) == len(BAD)


def test_an_id_names_one_pair(db: Database, file: Any) -> None:
    rows = [{**PAIR, "id": "x"}, {**PAIR, "id": "x", "response_a": "Plum"}]
    with pytest.raises(BadFile) as bad:
        import_pairs(db, file(rows))
    assert "belongs to another pair on line 1" in reasons(bad)[2]

    import_pairs(db, file(rows[:1]))
    with pytest.raises(BadFile) as bad:
        import_pairs(db, file(rows[1:]))
    assert "in this workspace" in reasons(bad)[1]


def test_what_is_taken_otherwise_than_it_says_is_told(db: Database, file: Any) -> None:
    import_prompts(db, file([{"prompt": "apart", "role": "held-out"}], "prompts.jsonl"))
    voted = {**PAIR, "prompt": "voted", "annotator": "zoe", "outcome": "a"}
    import_judgments(db, file([voted], "votes.jsonl"))
    rows = [
        {**PAIR, "prompt": "apart"},
        {**PAIR, "arm": "random"},
        PAIR,
        {**PAIR, "prompt": "voted"},
    ]

    report = import_pairs(db, file(rows))

    told = {w.line: w.reason for w in report.warnings}
    assert "no reward model learns" in told[1]
    assert f"stored as {WRITTEN}" in told[2]
    assert "repeats line 2" in told[3]
    assert "this pair was imported with judgments" in told[4]
    assert queue.progress(db, "anybody", since=now()).remaining == 2


def test_a_rebuild_from_the_journal_has_them(db: Database, file: Any) -> None:
    add_people(db, "ann")
    import_pairs(db, file(pairs_of(3)))
    judge_all(db, "ann")
    import_pairs(db, file(pairs_of(5)))
    before = everything(db)
    db.close()

    backup.rebuild(db.workspace)

    with Database.open(db.workspace) as again:
        assert everything(again) == before
        assert backup.verify(again).same
        assert queue.progress(again, "ann", since=now()).remaining == 2


def test_judgments_of_them_go_out_raw_and_come_back(
    db: Database, file: Any, tmp_path: Path
) -> None:
    add_people(db, "ann")
    import_pairs(db, file([{**PAIR, "model_a": "pearbot", "id": "p-1"}, *pairs_of(2)]))
    judge_all(db, "ann", outcome="b")
    export(db, format="raw", out=tmp_path / "raw.jsonl", names=True)

    rows = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert {row["arm"] for row in rows} == {WRITTEN}
    assert {row["item"] for row in rows} == {"p-1", None}
    with Database.open(tmp_path / "other") as other:
        import_judgments(other, tmp_path / "raw.jsonl")
        export(other, format="raw", out=tmp_path / "again.jsonl", names=True)
        assert not queue.progress(other, "ann", since=now()).remaining
    back = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    for row in (*rows, *back):
        row.pop("arm")  # here it is "imported", as everything that was judged elsewhere
    assert back == rows


# What they are learned from, and what does not count them.


@pytest.fixture
def world(db: Database, file: Any) -> Database:
    """A trained policy with judgments of its own, and written pairs that ann has judged."""
    add_models(db, policies=1)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling", policy_produced=None, reward_model=None)
    compare(db, "policy-1", "sft-1", ["first", "second", "first"])
    named = {"model_a": "policy-1", "model_b": "sft-1"}  # names prove nothing
    import_pairs(db, file([row | named for row in pairs_of(5)]))
    assert len(judge_all(db, "ann", outcome="a")) == 5
    return db


def test_the_reward_model_learns_from_them(world: Database, tmp_path: Path) -> None:
    worker_files.write_judgments_input(world, tmp_path, iteration=2)

    arms = pd.read_parquet(tmp_path / "judgments.parquet")["arm"].value_counts()
    assert arms.to_dict() == {"reference": 3, WRITTEN: 5}


def test_no_held_out_figure_rests_on_them() -> None:
    own = [judged_pair(0, prompt=f"own {n}", name=f"o{n}", arm="random") for n in range(4)]
    written = [judged_pair(0, prompt=f"w {n}", name=f"w{n}", arm=WRITTEN) for n in range(16)]

    train, held_out = split_by_prompt([*own, *written], held_out_share=0.2, seed=0)

    assert not any(pair.random_stream for pair in written)
    assert {pair.arm for pair in held_out} == {"random"}
    assert len(train) == 16


def test_gate_win_rate_and_leaderboard_do_not_count_them(world: Database, tmp_path: Path) -> None:
    assert len(policy_judgments.judged(world)) == 3
    report = gate.report(policy_judgments.evidence(world), Config())
    [row] = [row for row in report.leaderboard if row.policy == "policy-1"]
    assert row.judgments == 3
    assert {row.policy for row in report.leaderboard} <= {"policy-1", "sft-1"}
    # Nor does a reward model predict them for the alarm.
    assert policy_judgments.write_pairs_input(world, tmp_path, iteration=0, proxy="reward-1") == 0
    assert WRITTEN not in (*RANDOM_STREAM, *policy_judgments.EVALUATION_ARMS)


def test_the_sampling_plan_is_the_same_with_and_without_them(
    world: Database, file: Any, tmp_path: Path
) -> None:
    def plan(name: str) -> list[dict[str, Any]]:
        inputs = tmp_path / name
        inputs.mkdir()
        worker_files.write_sampling_plan_input(
            world, inputs, pairs=30, shares={"reference": 0.2}, chosen=("bald", 0.5),
            prompts_per_pair=1.0, seed=3,
        )  # fmt: skip
        return pd.read_parquet(inputs / "prompts.parquet").to_dict("records")

    before = plan("before")
    rows = [{**PAIR, "prompt": f"How many is {n}?"} for n in range(40)]
    assert import_pairs(world, file(rows, "known.jsonl")).added["prompts"] == 0

    assert plan("after") == before


def test_labels_of_an_iteration_do_not_count_them(world: Database) -> None:
    current = iterations.latest(world)
    assert current
    assert worker_files.labels_in(world, current) == 3
    assert worker_files.labels_by_arm(world)[0] == {WRITTEN: 5}
