"""The judgment browser: which judgments match, the counts, and the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.browsing.judgments import Filter, browse
from storage.browsing.pair import pair_in_full, pair_of
from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import flag_answers, judgments, queue
from storage.records import Check, Comparison, Judgment
from storage.tables import comparisons, models
from tests.helpers.browsed import fill


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Tests only read it."""
    with Database.open(tmp_path_factory.mktemp("browsing")) as opened:
        fill(opened)
        yield opened


def found(db: Database, **wanted) -> list[str]:
    return [row.id for row in browse(db, Filter(**wanted)).rows]


ALL = [f"j-{n}" for n in range(7, 0, -1)]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, ALL),
        ({"annotator": "id-bob"}, ["j-4", "j-2"]),
        ({"arm": "bald"}, ["j-5", "j-4"]),
        ({"outcome": "second"}, ["j-3", "j-2"]),
        ({"category": "facts"}, ["j-7", "j-6", "j-3"]),
        ({"iteration": 2}, ["j-7", "j-6", "j-5", "j-4"]),
        ({"disagreement": True}, ["j-2", "j-1"]),
        ({"disagreement": False}, ["j-7", "j-6", "j-5", "j-4", "j-3"]),
        ({"surprise": True}, ["j-3", "j-2"]),
        ({"flagged": True}, ["j-5", "j-4"]),
        ({"commented": True}, ["j-3"]),
        ({"excluded": True}, ["j-5"]),
        ({"excluded": False, "flagged": True}, ["j-4"]),
        ({"text": "PRIME"}, ["j-3"]),  # the prompt
        ({"text": " fish kettle"}, ["j-2", "j-1"]),  # the second response
        ({"text": "leaves"}, ["j-5", "j-4"]),  # the first response
        ({"text": "matter here"}, ["j-3"]),  # the comment
        ({"text": "nothing has this"}, []),
        ({"annotator": "id-ann", "category": "facts", "surprise": True}, ["j-3"]),
    ],
)
def test_the_judgments_that_match_a_filter_are_listed_newest_first(db, wanted, ids) -> None:
    assert found(db, **wanted) == ids
    assert browse(db, Filter(**wanted)).total == len(ids)


def test_a_row_has_what_the_list_shows(db) -> None:
    rows = {row.id: row for row in browse(db).rows}
    row = rows["j-2"]
    assert (row.annotator, row.annotator_name, row.prompt) == (
        "id-bob",
        "bob",
        "How do I boil rice?",
    )
    assert (row.arm, row.iteration, row.category) == ("random", 1, "advice")
    assert (row.outcome, row.expected) == ("second", 0.9)
    marks = {
        id: [m for m in ("disagreement", "surprise", "flagged", "commented", "excluded") if getattr(row, m)]
        for id, row in rows.items()
    }  # fmt: skip
    assert marks == {
        "j-1": ["disagreement"], "j-2": ["disagreement", "surprise"],
        "j-3": ["surprise", "commented"], "j-4": ["flagged"], "j-5": ["flagged", "excluded"],
        "j-6": [], "j-7": [],
    }  # fmt: skip


def test_each_facet_counts_what_the_other_filters_leave(db) -> None:
    seen = browse(db, Filter(annotator="id-ann", outcome="second"))
    counted = {
        name: {each.label: each.count for each in values} for name, values in seen.facets.items()
    }
    # without the filter on the annotator: j-2 and j-3; without that on the outcome: those of ann
    assert counted["annotator"] == {"ann": 1, "bob": 1}
    assert counted["outcome"] == {"first": 1, "second": 1, "tie": 1, "both_bad": 1}
    assert counted["category"] == {"facts": 1}
    assert counted["iteration"] == {"1": 1}
    assert counted["arm"] == {"random": 1}
    assert dict(seen.marks) == {
        "disagreement": 0, "surprise": 1, "flagged": 0, "commented": 1, "excluded": 0,
    }  # fmt: skip
    everything = browse(db)
    assert [(v.value, v.count) for v in everything.facets["annotator"]] == [
        ("id-ann", 4), ("id-bob", 2), ("id-robot", 1),
    ]  # fmt: skip
    assert [v.value for v in everything.facets["iteration"]] == ["2", "1"]
    # A mark's own filter does not change its count.
    assert browse(db, Filter(excluded=False)).marks["excluded"] == 1


def test_pages_follow_each_other_without_gaps_while_judgments_arrive(tmp_path: Path) -> None:
    with Database.open(tmp_path / "w") as db:
        fill(db)
        first = browse(db, limit=3)
        assert ([row.id for row in first.rows], first.after) == (ALL[:3], "j-5")
        late = Judgment(
            id="j-8", comparison="c-2", annotator="id-bob", outcome="tie", shown_swapped=False
        )
        db.write(lambda tx: tx.store(late))
        second = browse(db, limit=3, before=first.after)
        assert ([row.id for row in second.rows], second.after) == (ALL[3:6], "j-2")
        third = browse(db, limit=3, before=second.after)
        assert ([row.id for row in third.rows], third.after) == (ALL[6:], None)
        assert third.total == 8


def test_revised_and_withdrawn_judgments_and_checks_are_not_listed(tmp_path: Path) -> None:
    with Database.open(tmp_path / "w") as db:
        fill(db)
        # Two comments on prompt c-2 remain; c-1 is not disputed any more.
        for who in ("id-ann", "id-bob"):
            queue.lease(db, who, 10)
        again = Judgment(
            id="j-9", comparison="c-1", annotator="id-bob", outcome="first", shown_swapped=False,
            replaces="j-2",
        )  # fmt: skip
        pair = db.read("SELECT * FROM comparisons WHERE id = 'c-4'")[0]
        gold = Comparison(
            id="g-1", prompt=pair["prompt"], first=pair["first"], second=pair["second"],
            iteration=0, arm="gold",
        )  # fmt: skip
        comparisons.add(db, [gold])
        answer = Judgment(
            id="j-g", comparison="g-1", annotator="id-ann", outcome="tie", shown_swapped=False
        )
        check = Check(comparison="g-1", kind="gold", answer="first")
        db.write(lambda tx: tx.store(again, check, answer))
        judgments.undo(db, id="w-1", annotator="id-ann", replaces="j-3")
        assert found(db) == ["j-9", "j-7", "j-6", "j-5", "j-4", "j-1"]
        assert found(db, disagreement=True) == []


def test_without_a_file_the_stored_predictions_are_used(tmp_path: Path) -> None:
    with Database.open(tmp_path / "w") as db:
        fill(db)
        newest = models.reward_models(db)[0]
        (db.workspace / str(newest.directory) / "outputs" / "held_out.parquet").unlink()
        # c-2 has 0.2 for the first response, which agrees with j-3; nothing is known about c-1.
        assert found(db, surprise=True) == []
        assert {row.id: row.expected for row in browse(db).rows}["j-3"] == 0.2


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"before": "j-99"}, NotFound, "no judgment 'j-99'"),
        ({"limit": 0}, ValueError, "from 1 to 500"),
        ({"filter": Filter(text="x" * 201)}, ValueError, "at most 200 characters"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(db, asked, error, says) -> None:
    with pytest.raises(error, match=says):
        browse(db, **asked)


def test_a_pair_in_full_has_its_texts_judgments_flags_and_predictions(db) -> None:
    flag_answers.answer_flag(db, id="a-1", flag="f-1", researcher="rosa", text="It is a haiku.")
    pair = pair_in_full(db, pair_of(db, "j-5"))
    assert (pair.comparison, pair.first, pair.second) == (
        "c-3",
        "Leaves fall on stone.",
        "Roses are red.",
    )
    assert (pair.first_model, pair.role, pair.category, pair.arm) == (
        "policy-1",
        "train",
        "poems",
        "bald",
    )
    assert pair.messages[0].content == "Write a haiku."
    by_bob, by_ann = pair.judgments
    assert (by_bob.id, by_bob.annotator, by_bob.outcome, by_bob.excluded) == (
        "j-4",
        "bob",
        "first",
        False,
    )
    assert (by_ann.excluded, by_ann.exclusion_reason, by_ann.excluded_by) == (
        True,
        "half asleep",
        "Rosa",
    )
    [flag] = pair.flags
    assert (flag.annotator, flag.comment, flag.state) == ("bob", "rude", "open")
    assert [(a.text, a.researcher) for a in flag.answers] == [("It is a haiku.", "Rosa")]
    assert pair.predicted is not None
    assert (pair.predicted.reward_model, pair.predicted.expected) == ("reward-1", 0.7)
    # the newest model's file goes before the table
    other = pair_in_full(db, "c-2")
    assert other.predicted is not None
    assert (other.predicted.reward_model, other.predicted.expected) == ("reward-2", 0.8)
    assert [j.learned_by for j in other.judgments] == [["reward-2"]]
    assert [j.learned_by for j in pair.judgments] == [[], []]
    assert pair_in_full(db, "c-4").flags == []


def test_an_unknown_pair_or_judgment_is_refused(db) -> None:
    with pytest.raises(NotFound, match="no comparison 'c-9'"):
        pair_in_full(db, "c-9")
    with pytest.raises(NotFound, match="no judgment and no pair 'j-99'"):
        pair_of(db, "j-99")
