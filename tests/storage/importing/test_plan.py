"""The plan of an import, before anything is stored: a file's votes against an empty workspace, and
against the few records that a test names."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from storage.engine import lookup
from storage.importing.planning import plan as planning
from storage.importing.planning.plan import Plan, plan_demonstrations, plan_prompts, plan_votes
from storage.importing.planning.votes import Answer, Vote
from storage.records import Completion, Outcome, Prompt, PromptRole
from storage.tables.people import pseudonyms

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FRUIT = Prompt.make("Name a fruit", role="train")


class Workspace:
    """Stands for a database: rows by query, and none of any other."""

    def __init__(self, rows: dict[str, list[dict[str, Any]]] | None = None) -> None:
        self._rows = rows or {}

    def rows(self, sql: str, /, **_: Any) -> list[dict[str, Any]]:
        return self._rows.get(sql, [])


def vote(line: int, **more: Any) -> Vote:
    """ann's vote for the first of two responses, unless `more` says otherwise."""
    given = {"a": Answer("Apple"), "b": Answer("Pear"), "annotator": "ann", "outcome": "a"}
    return Vote(**{"line": line, "prompt": FRUIT} | given | more)


def plan(*votes: Vote, rows: dict[str, list[dict[str, Any]]] | None = None) -> Plan:
    return plan_votes(Workspace(rows), votes, when=NOON)


def told(found: Plan) -> list[tuple[int, str]]:
    return [(note.line, note.reason) for note in found.warnings.first]


def roles_told(found: Plan) -> list[tuple[int, str]]:
    """What is said of the role that a prompt has already."""
    return [(line, reason.partition(" with the role ")[2]) for line, reason in told(found)]


def bad(found: Plan) -> list[tuple[int, str]]:
    return [(note.line, note.reason) for note in found.bad.first]


def test_a_vote_is_one_pair_of_iteration_0_with_what_it_refers_to():
    found = plan(vote(1, item="x"))
    (comparison,) = found.comparisons.values()
    (judgment,) = found.judgments.values()
    (annotator,) = found.annotators.values()
    assert (comparison.iteration, comparison.arm, comparison.item) == (0, "imported", "x")
    assert (comparison.prompt, comparison.created_at) == (FRUIT.id, NOON)
    assert [found.completions[id].text for id in (comparison.first, comparison.second)] == [
        "Apple",
        "Pear",
    ]
    assert (judgment.comparison, judgment.annotator) == (comparison.id, annotator.id)
    assert (judgment.outcome, judgment.shown_swapped, judgment.replaces) == ("first", False, None)
    assert (annotator.name, annotator.kind, judgment.created_at) == ("ann", "person", NOON)
    assert list(found.prompts.values()) == [FRUIT]
    assert [model.name for model in found.models.values()] == ["imported"]
    assert (told(found), bad(found), found.known, found.withdrawals) == ([], [], 0, {})


@pytest.mark.parametrize(
    ("left", "right", "pressed", "outcome", "swapped"),
    [
        ("Apple", "Pear", "a", "first", False),
        ("Apple", "Pear", "b", "second", False),
        ("Pear", "Apple", "a", "second", True),
        ("Pear", "Apple", "b", "first", True),
        ("Pear", "Apple", "tie", "tie", True),
    ],
)
def test_sides_are_those_of_the_texts_in_order(
    left: str, right: str, pressed: Any, outcome: Outcome, swapped: bool
):
    criteria = {"helpful": "a", "clear": "tie"}
    (judgment,) = plan(
        vote(1, a=Answer(left), b=Answer(right), outcome=pressed, criteria=criteria)
    ).judgments.values()
    assert (judgment.outcome, judgment.shown_swapped) == (outcome, swapped)
    assert judgment.criteria == {"helpful": "second" if swapped else "first", "clear": "tie"}


def test_a_criterion_is_a_b_or_tie():
    found = plan(vote(1, criteria={"clear": "both_bad"}))
    assert bad(found) == [(1, "a criterion says 'both_bad' and must be one of a, b, tie")]
    assert found.judgments == {}


@pytest.mark.parametrize(("left", "same"), [("Pear", True), ("Apple", False), ("Plum", False)])
def test_two_equal_responses_are_noted(left: str, same: bool):
    found = plan(vote(1, a=Answer(left)))
    assert told(found) == ([(1, "the two responses are the same")] if same else [])
    assert len(found.judgments) == 1


@pytest.mark.parametrize("names", [("one", "three"), ("three", "two"), ("three", "three")])
def test_other_names_of_models_for_a_pair_are_noted_and_not_taken(names: tuple[str, str]):
    first = vote(1, a=Answer("Apple", "one"), b=Answer("Pear", "two"))
    again = vote(2, a=Answer("Apple", names[0]), b=Answer("Pear", names[1]), annotator="bob")
    turned = replace(again, line=3, annotator="cat", a=again.b, b=again.a)
    found = plan(first, again, turned)
    kept = "the pair is already known as one against two; these names were kept"
    assert told(found) == [(2, kept), (3, kept)]
    assert {model.name for model in found.models.values()} == {"one", "two"}
    assert told(plan(first, replace(first, line=2, annotator="bob"))) == []
    assert told(plan(first, replace(first, line=2, annotator="bob", a=first.b, b=first.a))) == []


def test_a_second_vote_of_one_annotator_revises_the_first_in_order_of_time():
    late, early = vote(1, outcome="b", created_at=NOON), vote(2, created_at=NOON - HOUR)
    found = plan(late, early, vote(3, annotator="bob"))
    made = found.judgments
    assert made[late.judgment_id()].replaces == early.judgment_id()
    assert made[early.judgment_id()].replaces is None
    said = "ann judged this pair before, on line 2; the later judgment revises the earlier one"
    assert told(found) == [(1, said)]
    # Named by the vote itself, the revision needs no word.
    assert told(plan(replace(late, replaces=early.judgment_id()), early)) == []


def test_a_vote_cannot_revise_what_is_revised_or_not_the_annotators_current_one():
    first = vote(1, id="j1")
    second = vote(2, id="j2", outcome="b", replaces="j1", created_at=NOON + HOUR)
    again = vote(3, id="j3", outcome="tie", replaces="j1", created_at=NOON + 2 * HOUR)
    found = plan(first, second, again)
    assert bad(found) == [(3, "ann has another judgment of this pair, j2")]
    # Another annotator has none of the pair, and what is revised stays so.
    found = plan(first, second, replace(again, annotator="bob"))
    assert bad(found) == [(3, "judgment j1 was already revised or withdrawn")]
    assert list(found.judgments) == ["j1", "j2"]


def test_a_withdrawn_vote_counts_no_more_and_is_not_revised():
    gone = vote(1, id="j1", withdrawn_at=NOON + HOUR)
    found = plan(gone, vote(2, id="j2", outcome="b", created_at=NOON + 2 * HOUR))
    (withdrawal,) = found.withdrawals.values()
    assert (withdrawal.replaces, withdrawal.created_at) == ("j1", NOON + HOUR)
    assert withdrawal.annotator == found.judgments["j1"].annotator
    assert found.judgments["j2"].replaces is None
    assert (told(found), bad(found)) == ([], [])


def test_a_repeated_id_must_repeat_all_of_the_row():
    first = vote(1, id="j1", comment="crisp")
    for kind in (None, "person"):  # not of the judgment itself
        found = plan(first, replace(first, line=2, kind=kind))
        assert told(found) == [(2, "repeats line 1 and was counted once")]
    for other in ({"comment": "dry"}, {"outcome": "b"}, {"milliseconds": 3}, {"comment": "a"}):
        found = plan(first, replace(first, line=2, **other))
        assert bad(found) == [(2, "id j1 was used on line 1 for other content")]
        assert len(found.judgments) == 1


def test_the_first_line_that_states_a_kind_states_it_for_all():
    silent, model = vote(1, item="1"), vote(2, item="2", kind="model")
    found = plan(vote(3, item="3", kind="person"), model, silent)
    assert bad(found) == [
        (3, "annotator_kind is person, and ann is a model on line 2; give one of them another name")
    ]
    assert [each.kind for each in found.annotators.values()] == ["model"]


@pytest.mark.parametrize("known", ["sft", "train", "held-out", "audit"])
@pytest.mark.parametrize("role", ["sft", "train", "held-out", "audit"])
def test_a_prompt_keeps_its_role_and_who_does_not_learn_is_said(
    known: PromptRole, role: PromptRole
):
    """Of all pairs of roles: only those with a held-out or audit prompt make a difference."""
    read = known.encode().decode()  # an equal string, but another one than in the code
    stored = {lookup._ROLES: [{"id": FRUIT.id, "role": read}]}
    found = plan(vote(1, prompt=replace(FRUIT, role=role)), rows=stored)
    kept = f"{known} and keeps it"
    learns = {
        "held-out": "; no reward model learns from the judgment",
        "audit": "; only the audit model learns from the judgment",
    }
    differs = known != role and ({known, role} & {"held-out", "audit"})
    assert roles_told(found) == ([(1, kept + learns.get(known, ""))] if differs else [])
    assert (found.prompts, len(found.judgments)) == ({}, 1)

    stated = plan_prompts(Workspace(stored), [(1, replace(FRUIT, role=role))])
    unused = "; its demonstration is stored, but not used for training"
    apart = role == "sft" and known in ("held-out", "audit")
    assert roles_told(stated) == ([(1, kept + unused * apart)] if known != role else [])
    assert stated.known == 1


def test_of_two_roles_in_one_file_the_first_is_kept():
    held = replace(FRUIT, role="held-out")
    found = plan_prompts(Workspace(), [(1, held), (2, FRUIT), (3, held)])
    assert (list(found.prompts.values()), found.known) == ([held], 0)
    assert roles_told(found) == [(2, "held-out and keeps it")]


def test_demonstrations_bring_their_authors_model_once():
    answer = Completion(id="r1", prompt=FRUIT.id, policy="demonstrations", text="Pear")
    asked = replace(FRUIT, role="sft")
    found = plan_demonstrations(Workspace(), [(1, asked, answer)], when=NOON)
    assert (list(found.models), found.known) == (["demonstrations"], 0)
    assert (found.completions, found.prompts) == ({"r1": answer}, {FRUIT.id: asked})
    assert plan_demonstrations(Workspace(), [], when=NOON).models == {}
    stored = Workspace({planning._ANSWERS: [{"id": "r1"}]})
    assert plan_demonstrations(stored, [(1, asked, answer)], when=NOON).known == 1


def test_a_stored_judgment_is_checked_and_its_withdrawal_taken_once():
    again = vote(1, id="j1", withdrawn_at=NOON + HOUR)
    known = {
        "id": "j1", "comparison": again.comparison_id(), "annotator": "ann", "outcome": "first",
        "revised": False, "withdrawn": False,
    }  # fmt: skip

    def of(given: Vote, **stored: Any) -> Plan:
        return plan(given, rows={planning._KNOWN_JUDGMENTS: [known | stored]})

    found = of(again)
    assert (found.known, len(found.withdrawals), found.judgments) == (1, 1, {})
    assert (found.prompts, found.comparisons, found.annotators) == ({}, {}, {})
    for given, stored in (
        (replace(again, withdrawn_at=None), {}),
        (again, {"withdrawn": True}),
        (again, {"withdrawn": True, "revised": True}),
    ):
        found = of(given, **stored)
        assert (found.known, found.withdrawals, told(found)) == (1, {}, [])
    found = of(again, revised=True)
    assert (found.known, found.withdrawals) == (1, {})
    assert [line for line, _ in told(found)] == [1]
    for other in ({"annotator": "bob"}, {"outcome": "second"}, {"outcome": "both_bad"}):
        found = of(again, **other)
        assert found.known == 0
        assert "already in this workspace, by another annotator or" in bad(found)[0][1]


def test_a_vote_older_than_the_stored_current_one_is_refused():
    late = vote(1, created_at=NOON)
    for made, fits in ((NOON, True), (NOON - HOUR, True), (NOON + HOUR, False)):
        current = {
            "annotator": "ann", "comparison": late.comparison_id(), "id": "j0", "created_at": made,
        }  # fmt: skip
        found = plan(late, rows={planning._CURRENT: [current]})
        assert [made.replaces for made in found.judgments.values()] == (["j0"] if fits else [])
        said = "ann judged this pair again later, on 2026-03-01"
        assert bad(found) == ([] if fits else [(1, said)])


def test_a_vote_on_a_written_pair_belongs_to_its_comparison_and_keeps_its_own_id(
    monkeypatch: pytest.MonkeyPatch,
):
    key = bytes(range(32))
    monkeypatch.setattr(planning, "known_key", lambda _: key)
    here, elsewhere = vote(1), vote(2, item="x")
    named = vote(3, annotator="bob", comparison="c-named")
    written = pseudonyms.written_id(key, here.comparison_id())
    rows = {planning._COMPARISONS: [{"id": written}]}
    made = plan(here, elsewhere, named, rows=rows).judgments
    assert {id: judgment.comparison for id, judgment in made.items()} == {
        here.judgment_id(): written,
        elsewhere.judgment_id(): elsewhere.comparison_id(),
        named.judgment_id(): "c-named",
    }


@pytest.mark.parametrize("known", [False, True])
def test_a_name_is_checked_unless_somebody_here_has_it(known: bool):
    name = "o\u200bwner"
    people = [{"id": "a-1", "name": name, "kind": "person"}] if known else []
    found = plan(vote(1, annotator=name), rows={"SELECT id, name, kind FROM annotators": people})
    assert ["U+200B" in reason for _, reason in bad(found)] == ([] if known else [True])
    assert [each.annotator for each in found.judgments.values()] == (["a-1"] if known else [])
    assert found.annotators == {}
