"""An annotator's list of their own judgments."""

from __future__ import annotations

import uuid

import pytest

from storage.errors import NotFound
from storage.labeling import judgments, own_judgments, queue
from storage.labeling.own_judgments import PAGE
from storage.records import Message
from storage.sides import canonical_outcome, screen_outcome
from tests.helpers.desk_world import add_person, plain_pairs, workspace

TEXTS = [
    ([Message("user", "Zuerst über Öl"), Message("assistant", "Ja?"), Message("user", "Why, say?")],
     "Because of \"PRICE\"", "No idea"),
    *plain_pairs(PAGE + 4),
]  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("own"), TEXTS) as opened:
        yield opened


@pytest.fixture
def ann(db):
    return add_person(db, f"Ann {uuid.uuid4()}").id


def judge(db, who, comparison, outcome="a", **more):
    fields = {"comparison": comparison, "annotator": who, "outcome": outcome, **more}
    return judgments.judge(db, id=str(uuid.uuid4()), **fields).id


def take(db, who, n=1):
    """Any pairs, also those that others have judged."""
    with_all = [row["id"] for row in db.read("SELECT id FROM comparisons ORDER BY position")][:n]

    def lease(tx):
        items = [tx.observer(queue.QueueCache).item(tx, id) for id in with_all]
        queue.lease_items(tx, items, who, tx.now())

    db.write(lease)
    return with_all


def ids(db, who, **more):
    found, is_more = own_judgments.own_judgments(db, who, **more)
    return [each.id for each in found], is_more


def test_the_inverse_of_the_sides():
    for swapped in (False, True):
        for outcome in ("a", "b", "tie", "both_bad"):
            stored = canonical_outcome(outcome, shown_swapped=swapped)
            assert screen_outcome(stored, shown_swapped=swapped) == outcome


def test_pages_from_the_newest_to_the_oldest(db, ann):
    given = [judge(db, ann, pair, "tie") for pair in take(db, ann, PAGE + 3)]
    newest = given[::-1]
    assert ids(db, ann) == (newest[:PAGE], True)
    assert ids(db, ann, before=newest[PAGE - 1]) == (newest[PAGE:], False)
    assert ids(db, ann, before=newest[-1]) == ([], False)


def test_only_current_judgments_of_ones_own(db, ann):
    ben = add_person(db, f"Ben {uuid.uuid4()}").id
    first, second, third = take(db, ann, 3)
    take(db, ben, 1)
    theirs = judge(db, ben, first)
    revised, undone, kept = (judge(db, ann, pair) for pair in (first, second, third))
    judgments.undo(db, id=str(uuid.uuid4()), annotator=ann, replaces=undone)
    revision = judge(db, ann, first, "b", replaces=revised)
    assert ids(db, ann) == ([revision, kept], False)  # a revision is the newest
    assert ids(db, ben) == ([theirs], False)
    refusals = set()
    for id in (revised, undone, theirs, "no-such-judgment"):
        with pytest.raises(NotFound) as refused:
            own_judgments.own_judgment(db, ann, id)
        refusals.add(str(refused.value).replace(id, "X"))
    assert len(refusals) == 1  # nothing tells which ids exist
    with pytest.raises(NotFound):
        own_judgments.own_judgments(db, ann, before=theirs)
    # The last row of a page may be revised before the next page is asked for.
    assert ids(db, ann, before=revised) == ([], False)


def test_a_judgment_comes_back_as_it_was_given(db, ann):
    said = {"outcome": "a", "strength": 2, "criteria": {"clear": "b", "helpful": "tie"}}
    for pair in take(db, ann, 6):  # both ways round
        id = judge(db, ann, pair, comment="ö\n", milliseconds=1234, **said)
        found = own_judgments.own_judgment(db, ann, id)
        assert (found.comparison, found.comment, found.milliseconds) == (pair, "ö\n", 1234)
        assert {name: getattr(found, name) for name in said} == said
        [listed] = own_judgments.own_judgments(db, ann)[0][:1]
        assert (listed.id, listed.outcome, listed.strength) == (id, "a", 2)


@pytest.mark.parametrize(
    ("search", "hits"),
    [
        ("why, SAY", 1),
        ("über ö", 1),  # an earlier turn
        ("ÜBER", 1),
        ('"price"', 1),  # quotes as in the text, not as in JSON
        ("no idea", 1),
        ("content", 0),  # a key of the stored JSON
        ("question number 1?", 1),
        ("second answer 2", 1),
        ("%", 0),
        ("nothing like this", 0),
    ],
)
def test_search_reads_prompts_and_responses(db, ann, search, hits):
    for pair in take(db, ann, 6):
        judge(db, ann, pair, "tie")
    assert len(ids(db, ann, search=search)[0]) == hits


def test_a_row_shows_the_beginning_of_the_last_message(db, ann):
    [pair] = take(db, ann)
    judge(db, ann, pair)
    [[row], _] = own_judgments.own_judgments(db, ann)
    assert row.prompt == "Why, say?"
