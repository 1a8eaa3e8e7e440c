"""The rules of labeling on a real workspace: blind, the same sides for ever, nothing lost."""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from typing import get_args

import pytest

from labeler.annotate import page as label_page
from labeler.annotate.session import MAX_RESPONSE_LENGTH, LabelSession
from storage.engine.transaction import Tables
from storage.errors import Conflict, NotFound, NotLeased
from storage.labeling import judgments
from storage.records import CRITERIA, STRENGTHS, Iteration, Message, Scale, ScreenOutcome
from storage.tables import iterations, settings
from tests.helpers.desk_world import add_pairs, add_person, workspace


@pytest.fixture
def db(tmp_path):
    with workspace(tmp_path) as db:
        yield db


@pytest.fixture
def session(db):
    return LabelSession(db)


@pytest.fixture
def ben(db):
    return add_person(db, "Ben")


def answer(comparison, outcome="a", **more):
    return {"id": str(uuid.uuid4()), "comparison": comparison, "outcome": outcome, **more}


def stored(db):
    return db.read("SELECT * FROM judgments ORDER BY created_at")


def test_a_pair_says_nothing_of_models_or_of_how_it_was_chosen(session, ben):
    pair = session.lease(ben, 1).pairs[0]

    shown = json.dumps(dataclasses.asdict(pair))
    assert set(dataclasses.asdict(pair)) == {"id", "prompt", "a", "b", "notice"}
    for secret in ("policy", "secret", "random", "x-"):
        assert secret not in shown.replace(pair.id, "")


def test_texts_come_raw_and_rendered(tmp_path):
    conversation = [
        Message("system", "Be *brief*."),
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", "Why?"),
    ]
    with workspace(tmp_path, [(conversation, "**Because**", "<b>No</b>")]) as db:
        pair = LabelSession(db).lease(add_person(db, "Ben"), 1).pairs[0]

    assert [message.role for message in pair.prompt] == ["system", "user", "assistant", "user"]
    assert pair.prompt[0].text == "Be *brief*."
    assert pair.prompt[0].html == '<p dir="auto">Be <em>brief</em>.</p>\n'
    assert {pair.a.html, pair.b.html} == {
        '<p dir="auto"><strong>Because</strong></p>\n',
        '<p dir="auto">&lt;b&gt;No&lt;/b&gt;</p>\n',
    }


def test_pressing_the_side_that_shows_a_completion_prefers_that_completion(db, session, ben):
    swaps = set()
    for pair in session.lease(ben, 6).pairs:
        judgments.judge(
            db, annotator=ben.id, **answer(pair.id, "a", criteria={"clear": "b", "helpful": "tie"})
        )
        judgment = db.read("SELECT * FROM judgments WHERE comparison = $id", id=pair.id)[0]
        a_is_first = pair.a.text.startswith("first")
        assert judgment["outcome"] == ("first" if a_is_first else "second")
        criteria = json.loads(judgment["criteria"])
        assert criteria == {"clear": "second" if a_is_first else "first", "helpful": "tie"}
        assert judgment["shown_swapped"] is not a_is_first
        swaps.add(a_is_first)
    assert swaps == {True, False}  # both ways round occurred among six pairs


def test_a_reload_shows_the_same_pairs_on_the_same_sides(session, ben):
    assert session.lease(ben, 3).pairs == session.lease(ben, 3).pairs


def test_what_is_held_is_not_handed_out_again(session, ben):
    held = session.lease(ben, 3).pairs
    more = session.lease(ben, 3, [pair.id for pair in held]).pairs

    assert not {pair.id for pair in held} & {pair.id for pair in more}
    assert len(more) == 3


def test_two_people_do_not_get_the_same_pair(db, session, ben):
    ann = add_person(db, "Ann")

    bens = {pair.id for pair in session.lease(ben, 3).pairs}
    anns = {pair.id for pair in session.lease(ann, 6).pairs}

    assert len(bens) == 3
    assert len(anns) == 3
    assert not bens & anns


def test_the_same_verdict_twice_is_one_judgment(db, session, ben):
    pair = session.lease(ben, 1).pairs[0]
    said = answer(pair.id, "b", strength=2, comment="better put", milliseconds=1234)

    for _ in range(2):
        assert judgments.judge(db, annotator=ben.id, **said).id == said["id"]
    rows = stored(db)
    assert len(rows) == 1
    assert (rows[0]["strength"], rows[0]["comment"], rows[0]["milliseconds"]) == (
        2,
        "better put",
        1234,
    )


def test_the_same_id_for_something_else_is_refused(db, session, ben):
    pair = session.lease(ben, 1).pairs[0]
    said = answer(pair.id, "b")
    judgments.judge(db, annotator=ben.id, **said)

    with pytest.raises(Conflict):
        judgments.judge(db, annotator=ben.id, **{**said, "outcome": "a"})
    assert len(stored(db)) == 1


def test_a_pair_that_was_never_his_is_refused(db, session, ben):
    others = session.lease(add_person(db, "Ann"), 1).pairs[0]

    with pytest.raises(NotLeased):
        judgments.judge(db, annotator=ben.id, **answer(others.id))
    with pytest.raises(NotFound):
        judgments.judge(db, annotator=ben.id, **answer("c-no-such-pair"))
    with pytest.raises(NotLeased):
        judgments.flag(db, annotator=ben.id, id=str(uuid.uuid4()), comparison=others.id, comment="")
    assert stored(db) == []


def test_a_late_answer_counts_after_the_loop_moved_on(db, session, ben):
    pair = session.lease(ben, 1).pairs[0]
    iterations.save(db, Iteration(number=1, phase="done"))
    add_pairs(db, [("A new question?", "x", "y")], iteration=2)

    judgments.judge(db, annotator=ben.id, **answer(pair.id))

    assert len(stored(db)) == 1


def test_undo_brings_the_pair_back_on_the_same_sides(db, session, ben):
    pair = session.lease(ben, 1).pairs[0]
    said = answer(pair.id)
    judgments.judge(db, annotator=ben.id, **said)

    undone = session.undo(ben, id=str(uuid.uuid4()))

    assert (undone.id, undone.kind, undone.pair) == (said["id"], "judgment", pair)
    assert session.lease(ben, 1).pairs[0] == pair
    assert db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"] == 0
    assert len(stored(db)) == 1  # history keeps it


@pytest.mark.parametrize("kind", ["skip", "flag"])
def test_a_skipped_or_flagged_pair_is_gone_until_undone(db, session, ben, kind):
    pair = session.lease(ben, 1).pairs[0]
    act = str(uuid.uuid4())
    if kind == "skip":
        judgments.skip(db, annotator=ben.id, id=act, comparison=pair.id)
    else:
        judgments.flag(db, annotator=ben.id, id=act, comparison=pair.id, comment="broken")
    assert pair.id not in {each.id for each in session.lease(ben, 6).pairs}

    undone = session.undo(ben, id=str(uuid.uuid4()), replaces=act)

    assert (undone.id, undone.kind, undone.pair) == (act, kind, pair)
    assert pair.id in {each.id for each in session.lease(ben, 6).pairs}


def test_an_undo_sent_twice_undoes_one(db, session, ben):
    first, second = session.lease(ben, 2).pairs
    judgments.judge(db, annotator=ben.id, **answer(first.id))
    judgments.judge(db, annotator=ben.id, **answer(second.id))
    undo = str(uuid.uuid4())

    once = session.undo(ben, id=undo)
    again = session.undo(ben, id=undo)

    assert once == again
    assert once.pair.id == second.id
    assert session.progress(ben)["judged"] == 1


def test_nothing_to_undo_and_what_is_not_his_are_refused(db, session, ben):
    with pytest.raises(NotFound):
        session.undo(ben, id=str(uuid.uuid4()))
    ann = add_person(db, "Ann")
    said = answer(session.lease(ann, 1).pairs[0].id)
    judgments.judge(db, annotator=ann.id, **said)
    with pytest.raises(NotFound):
        session.undo(ben, id=str(uuid.uuid4()), replaces=said["id"])


def test_progress_counts(db, session, ben):
    before = session.progress(ben)
    judgments.judge(db, annotator=ben.id, **answer(session.lease(ben, 1).pairs[0].id))
    after = session.progress(ben)

    assert (before["judged"], before["today"], before["remaining"]) == (0, 0, 6)
    assert before["form"] == {
        "scale": "two-step", "strength": "optional", "rationale": "optional", "safety": "off",
        "criteria": ("helpful", "truthful", "harmless", "clear"), "reasons": (),
        "marks": False,
    }  # fmt: skip
    assert (after["judged"], after["today"], after["remaining"]) == (1, 1, 5)


def test_an_empty_queue_says_what_the_loop_is_doing(db, session, ben):
    assert session.waiting_for() == "labeling"
    iterations.save(db, Iteration(number=1, phase="policy"))
    for pair in session.lease(ben, 16).pairs:
        judgments.judge(db, annotator=ben.id, **answer(pair.id))

    assert session.lease(ben, 4).pairs == []
    assert session.waiting_for() == "policy"


def test_guidelines_have_a_default_and_a_version(db, session):
    default = session.guidelines()
    assert "<strong>Helpful</strong>" in default["html"]

    settings.put(db, "guidelines", "Prefer <b>short</b> answers.")
    changed = session.guidelines()

    assert changed["html"] == '<p dir="auto">Prefer &lt;b&gt;short&lt;/b&gt; answers.</p>\n'
    assert changed["version"] != default["version"]


def test_a_greedy_request_is_refused(session, ben):
    for n in (0, -1, 1000):
        with pytest.raises(ValueError, match="between 1 and"):
            session.lease(ben, n)


def test_one_answer_holds_large_pairs_as_far_as_they_go_and_the_others_come_next(tmp_path):
    text = "word " * 20_000  # 100,000 characters, as written and as HTML
    with workspace(tmp_path, [(f"q{n}", f"a{n} {text}", f"b{n} {text}") for n in range(12)]) as db:
        desk, ben = LabelSession(db), add_person(db, "Ben")
        seen: list[str] = []
        while pairs := desk.lease(ben, 16, seen).pairs:
            assert sum(pair.size for pair in pairs) <= MAX_RESPONSE_LENGTH
            assert len(pairs) == min(4, 12 - len(seen))
            seen += [pair.id for pair in pairs]
        assert len(set(seen)) == len(seen) == 12


def test_one_pair_is_handed_out_whatever_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("labeler.annotate.session.MAX_RESPONSE_LENGTH", 1)
    with workspace(tmp_path, [(f"q{n}", "a", "b") for n in range(3)]) as db:
        desk, ben = LabelSession(db), add_person(db, "Ben")
        first = desk.lease(ben, 3).pairs
        assert len(first) == 1
        assert [pair.id for pair in desk.lease(ben, 3).pairs] == [first[0].id]
        assert len(desk.lease(ben, 3, [first[0].id]).pairs) == 1


def test_the_page_offers_the_outcomes_criteria_and_strengths_that_are_stored():
    view, html = label_page.script(), label_page.markup()

    def keys(name: str) -> list[str]:
        [body] = re.findall(rf"^const {name} = {{(.*)}};$", view, re.MULTILINE)
        return re.findall(r"(\w+): t\(\"", body)

    assert keys("CRITERIA") == list(CRITERIA)
    assert keys("OUTCOMES") == list(get_args(ScreenOutcome))
    for scale in get_args(Scale):
        [buttons] = re.findall(rf'<template data-scale="{scale}">(.*?)</template>', html, re.DOTALL)
        offered = re.findall(r'data-outcome="(\w+)"(?: data-by="(\d)")?', buttons)
        sides = [(side, by) for side in "ab" for by in (("",) if scale == "two-step" else "123")]
        assert sorted(offered) == sorted([*sides, ("tie", ""), ("both_bad", "")])
    buttons = re.findall(r'data-strength="(\d)"[^>]*>(\w+) <kbd', html)
    assert {int(number): word for number, word in buttons} == STRENGTHS
    [words] = re.findall(r"^const STRENGTHS = {(.*)};$", view, re.MULTILINE)
    assert {int(n): word for n, word in re.findall(r'(\d): "(\w+)"', words)} == STRENGTHS


def test_judgments_of_one_group_are_written_together(db, session, ben, monkeypatch):
    """A query per judgment would write each by itself, which takes much longer."""
    ids = [pair.id for pair in session.lease(ben, 4).pairs]
    operations = [
        session.judgment_operation(ben, **answer(id, strength=None), guidelines="v1") for id in ids
    ]
    db.write(operations[0])  # fills the caches
    written: list[str] = []
    apply = Tables.apply

    def noted(tables, kind, *given, **more):
        written.append(kind.name)
        apply(tables, kind, *given, **more)

    monkeypatch.setattr(Tables, "apply", noted)
    db.write(lambda tx: [operation(tx) for operation in operations[1:]])
    assert written == ["judgment"]
    assert len(stored(db)) == 4
