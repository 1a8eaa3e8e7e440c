"""Adjudication: which pairs wait, blind rulings, and that figures stay on the votes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.analysis.agreement import agreement
from storage.browsing.pair import pair_in_full
from storage.engine.backup import rebuild, verify
from storage.engine.database import Database
from storage.errors import Conflict, NotFound
from storage.exporting.exports import export
from storage.labeling import adjudication, exclusions, judgments
from storage.records import Annotator, Check, Flag, Judgment
from storage.sides import shown_swapped
from storage.tables.people import annotators
from storage.worker_files import write_judgments_input
from tests.helpers.storage_world import fill

# ann, bob and robot (a model) on four pairs; only c1-0 is in dispute between people.
SAID = {
    "ann": ("first", "tie", "second", "first"),
    "bob": ("second", "tie", "second", None),
    "robot": (None, "first", None, "second"),
}


@pytest.fixture
def db(tmp_path: Path):
    with Database.open(tmp_path / "w") as opened:
        fill(opened, 4, wanted=2, people=("ann", "bob"))
        annotators.add(opened, Annotator(id="robot", name="robot", kind="model"))
        annotators.add(opened, Annotator(id="rosa", name="Rosa", role="researcher"))
        annotators.add(opened, Annotator(id="adam", name="Adam", role="adjudicator"))
        made = [
            Judgment(
                id=f"{who}-{n}", comparison=f"c1-{n}", annotator=who, outcome=outcome,
                shown_swapped=False,
            )
            for who, outcomes in SAID.items()
            for n, outcome in enumerate(outcomes)
            if outcome
        ]  # fmt: skip
        opened.write(lambda tx: tx.store(*made))
        yield opened


def waiting(db: Database, who: str = "rosa") -> list[str]:
    return [pair.comparison for pair in adjudication.waiting(db, who)]


def ruled(db: Database, outcome="a", **more):
    given = {"id": "r-1", "comparison": "c1-0", "reason": " clear ", "adjudicator": "rosa"}
    return adjudication.rule(db, outcome=outcome, **given | more)


def test_pairs_on_which_people_disagree_wait_until_somebody_rules(db) -> None:
    assert waiting(db) == ["c1-0"]  # neither agreement nor a model's other opinion
    assert adjudication.count_waiting(db, "rosa") == 1
    ruled(db)
    assert waiting(db) == waiting(db, "adam") == []
    assert adjudication.count_waiting(db, "rosa") == 0


def test_who_judged_a_pair_does_not_rule_on_it(db) -> None:
    annotators.set_role(db, "ann", "adjudicator")
    assert waiting(db, "ann") == []
    with pytest.raises(NotFound, match="you judged it yourself"):
        ruled(db, adjudicator="ann")


def test_a_pair_in_dispute_is_blind_and_its_sides_depend_on_the_adjudicator(db) -> None:
    for who in ("rosa", "adam", ""):
        [pair] = adjudication.waiting(db, who)
        texts = ("first 0", "second 0")
        assert (pair.a, pair.b) == (texts[::-1] if shown_swapped(who, "c1-0") else texts)
        assert pair == adjudication.waiting_pair(db, "c1-0", who)
        assert set(vars(pair)) == {"comparison", "messages", "a", "b", "sent"}
    # Both orders occur over many adjudicators.
    assert len({shown_swapped(f"adjudicator-{n}", "c1-0") for n in range(20)}) == 2


@pytest.mark.parametrize("outcome", ["a", "b", "tie", "both_bad"])
def test_a_ruling_is_stored_in_the_order_of_the_pair_and_shows_the_votes(db, outcome) -> None:
    given = ruled(db, outcome)
    swapped = shown_swapped("rosa", "c1-0")
    sides = {"a": "second" if swapped else "first", "b": "first" if swapped else "second"}
    assert given.outcome == sides.get(outcome, outcome)
    assert (given.adjudicator, given.reason, given.prompt) == ("Rosa", "clear", "question 1.0?")
    assert [(v.annotator, v.outcome) for v in given.votes] == [("ann", "first"), ("bob", "second")]
    assert adjudication.rulings(db) == [given]
    assert adjudication.on_screen(given.outcome, "c1-0", "rosa") == outcome
    assert list(pair_in_full(db, "c1-0").rulings) == [given]


def test_figures_and_training_stay_on_the_votes(db, tmp_path) -> None:
    before = agreement(db)
    (tmp_path / "in").mkdir()
    learned = write_judgments_input(db, tmp_path / "in", iteration=1)
    ruled(db)
    assert agreement(db) == before
    assert write_judgments_input(db, tmp_path / "in", iteration=1) == learned


def test_a_pair_can_be_sent_again_and_the_newest_ruling_counts(db, tmp_path) -> None:
    ruled(db, "tie", reason="no difference")
    adjudication.send(db, "c1-0", researcher="rosa")
    adjudication.send(db, "c1-2")  # on which they agree
    assert sorted(waiting(db)) == ["c1-0", "c1-2"]
    assert all(pair.sent for pair in adjudication.waiting(db, "rosa"))
    ruled(db, "both_bad", id="r-2", reason="looked again", adjudicator="adam")
    assert waiting(db) == ["c1-2"]
    assert [each.outcome for each in adjudication.rulings(db, "c1-0")] == ["both_bad", "tie"]
    export(db, format="raw", out=tmp_path / "out.jsonl", names=True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {(r["id"], r["ruling"], r["ruling_reason"]) for r in rows if r["ruling"]} == {
        ("ann-0", "both_bad", "looked again"), ("bob-0", "both_bad", "looked again"),
    }  # fmt: skip


def test_an_exported_ruling_is_on_the_sides_of_its_row(db, tmp_path) -> None:
    swapped = Judgment(
        id="cat-0", comparison="c1-0", annotator="adam", outcome="first", shown_swapped=True
    )
    db.write(lambda tx: tx.store(swapped))
    given = ruled(db, "a")
    export(db, format="raw", out=tmp_path / "out.jsonl", names=True)
    rows = {r["id"]: r for r in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    left = "a" if given.outcome == "first" else "b"
    assert rows["ann-0"]["ruling"] == left
    assert rows["cat-0"]["ruling"] == {"a": "b", "b": "a"}[left]
    assert rows["ann-0"]["response_a" if left == "a" else "response_b"] == f"{given.outcome} 0"


def test_excluding_or_flagging_ends_the_wait(db) -> None:
    exclusions.exclude(db, "bob-0", reason="guessed")
    assert waiting(db) == []
    exclusions.restore(db, "bob-0")
    assert waiting(db) == ["c1-0"]
    db.write(lambda tx: tx.store(Flag(id="f", comparison="c1-0", annotator="ann")))
    assert waiting(db) == []
    judgments.clear_flag(db, id="w", flag="f", researcher="rosa")
    assert waiting(db) == ["c1-0"]


def test_the_same_ruling_sent_again_is_stored_once(db) -> None:
    assert ruled(db) == ruled(db)
    assert len(adjudication.rulings(db)) == 1
    with pytest.raises(Conflict, match="already used for another ruling"):
        ruled(db, "tie")


def test_who_may_not_rule_and_what_needs_no_ruling_is_refused(db) -> None:
    fill(db, 1, iteration=2, people=("eve",))
    for who in ("eve", "robot"):
        with pytest.raises(ValueError, match="may not rule"):
            ruled(db, adjudicator=who)
    annotators.set_disabled(db, "adam", disabled=True)
    with pytest.raises(ValueError, match="may not rule"):
        ruled(db, adjudicator="adam")
    with pytest.raises(ValueError, match="needs a reason"):
        ruled(db, reason=" ")
    with pytest.raises(ValueError, match="outcome='c'"):
        ruled(db, "c")
    with pytest.raises(NotFound, match="does not wait for your ruling"):
        ruled(db, comparison="c1-1")
    with pytest.raises(NotFound, match="no comparison 'c9'"):
        adjudication.send(db, "c9")
    db.write(lambda tx: tx.store(Check(comparison="c1-3", kind="gold", answer="first")))
    with pytest.raises(ValueError, match="is a gold pair"):
        adjudication.send(db, "c1-3")
    assert adjudication.rulings(db) == []


def test_rulings_survive_a_rebuild_from_the_journal(db, tmp_path) -> None:
    given = ruled(db)
    adjudication.send(db, "c1-2")
    assert verify(db).same
    db.close()
    rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as again:
        assert adjudication.rulings(again) == [given]
        assert waiting(again) == ["c1-2"]
