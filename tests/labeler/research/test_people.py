"""The annotators tab: invites, disabling, flags, and figures that are not worked out twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from labeler.research.tab import Cached
from storage.engine.database import Database
from storage.labeling import gold, judgments, queue
from storage.records import Annotator, Iteration, Judgment
from storage.tables import iterations
from storage.tables.people import annotators, tokens
from tests.helpers.recording_loop import HOSTILE, RecordingLoop
from tests.helpers.research_seed import labeling_workspace
from tests.helpers.research_tabs import Tabs, all_tabs, asked_by, pressed


@pytest.fixture(scope="module")
def db(tmp_path_factory) -> Iterator[Database]:
    """Tests change it, each something else."""
    yield from labeling_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def live(db) -> Tabs:
    return all_tabs(db, RecordingLoop())


def test_a_new_annotator_gets_an_invite_that_works_once_he_is_there(db, live):
    tab = live.people
    name = f"Eve {HOSTILE.rstrip(chr(0x202E))}"  # with what turns writing around it is refused
    updates = tab._add(f" {name} ", "annotator", asked_by(db))
    link = re.search(r"https://kite\.example/invite\?token=([\w-]+)", updates[tab.answer])
    assert link is not None
    invited = tokens.check(db, link[1], ("invite",))
    assert invited is not None
    assert invited.name == name
    assert "<img" not in updates[tab.answer] + updates[tab.people]


@pytest.mark.parametrize(
    ("name", "says"),
    [("Ada", "is taken"), ("  ", "needs a name"), ("o\u200bwner", "U+200B, which is invisible")],
)
def test_a_name_that_cannot_be_is_refused_with_the_reason(db, live, name, says):
    before = len(annotators.listing(db))
    updates = live.people._add(name, "annotator", asked_by(db))
    assert any(says in str(value) for value in updates.values())
    assert len(annotators.listing(db)) == before


def test_disabling_ends_every_session_and_enabling_lets_back_in(db, live):
    tab = live.people
    session = tokens.issue(db, "annotator-0", "session", lifetime=None)
    tab._act(pressed("disable", "annotator-0"), asked_by(db))
    assert annotators.get(db, "annotator-0").disabled
    tab._act(pressed("enable", "annotator-0"), asked_by(db))
    assert not annotators.get(db, "annotator-0").disabled
    assert tokens.check(db, session, ("session",)) is None


def test_the_last_researcher_cannot_lock_himself_out(db, live):
    tab = live.people
    updates = tab._act(pressed("disable", "researcher"), asked_by(db))
    assert "only researcher" in updates[tab.answer]
    assert not annotators.get(db, "researcher").disabled
    annotators.add(db, Annotator(id="second", name="Second", role="researcher"))
    tab._act(pressed("disable", "researcher"), asked_by(db))
    assert annotators.get(db, "researcher").disabled
    tab._act(pressed("enable", "researcher"), asked_by(db))


def test_tokens_are_issued_counted_and_revoked(db, live):
    tab = live.people
    who = annotators.add(db, Annotator(id="scripted", name="Scripted"))
    session = tokens.issue(db, who.id, "session", lifetime=None)

    def row(updates):
        (found,) = [each for each in updates[tab.people].split("<tr>") if ">Scripted<" in each]
        return found

    assert "nothing yet" in row(tab.refresh())
    updates = tab._act(pressed("token", who.id), asked_by(db))
    secret = re.search(r'data-copy="([\w-]+)"', updates[tab.answer])
    assert secret is not None
    assert tokens.check(db, secret[1], ("api",)) == who
    assert "1 API token" in row(updates)
    updates = tab._act(pressed("invite", who.id), asked_by(db))
    assert "1 invite, 1 API token" in row(updates)
    assert 'data-open="2"' in row(updates)
    updates = tab._act(pressed("revoke", who.id), asked_by(db))
    assert "2 of Scripted&#39;s invites and API tokens revoked." in updates[tab.answer]
    assert "nothing yet" in row(updates)
    assert tokens.check(db, secret[1], ("api",)) is None
    assert tokens.check(db, session, ("session",)) == who
    annotators.set_disabled(db, who.id, disabled=True)
    updates = tab._act(pressed("token", who.id), asked_by(db))
    assert "enable the account first" in updates[tab.answer]


def test_clearing_a_flag_brings_the_pair_back_to_the_queue(db, live):
    iterations.save(db, Iteration(number=1, phase="labeling", labels_wanted=30))
    (pair,) = queue.lease(db, "annotator-0", 1).pairs
    judgments.flag(
        db, id="flag", comparison=pair.comparison.id, annotator="annotator-0", comment="broken"
    )
    tab = live.people
    assert "broken" in tab.refresh()[tab.flags]
    updates = tab._act(pressed("clear", "flag"), asked_by(db))
    assert "returns to the queue" in updates[tab.answer]
    assert "broken" not in updates[tab.flags]
    (again,) = queue.lease(db, "annotator-1", 1).pairs
    assert again.comparison.id == pair.comparison.id
    # A second press, or another researcher's: it is cleared, and stays so.
    twice = tab._act(pressed("clear", "flag"), asked_by(db))
    assert twice[tab.answer] == updates[tab.answer]
    assert db.read("SELECT count(*) AS n FROM withdrawals WHERE replaces = 'flag'") == [{"n": 1}]
    assert "no flag" in tab._act(pressed("clear", "never"), asked_by(db))[tab.answer]


def test_a_flag_is_answered_by_whoever_is_signed_in_and_cleared_only_if_asked(db, live):
    (pair,) = queue.lease(db, "annotator-0", 1).pairs
    judgments.flag(
        db, id="asked", comparison=pair.comparison.id, annotator="annotator-0", comment="why me"
    )
    tab = live.people
    answered = tab._act(pressed("answer", "asked", text=f"Because. {HOSTILE}"), asked_by(db))
    assert "My judgments" in answered[tab.answer]
    assert "why me" in answered[tab.flags]
    assert "Because. &lt;img" in answered[tab.flags]
    cleared = tab._act(pressed("answer-and-clear", "asked", text="Done."), asked_by(db))
    assert "returns to the queue" in cleared[tab.answer]
    assert "why me" not in cleared[tab.flags]
    rows = db.read("SELECT researcher, text FROM flag_answers ORDER BY created_at")
    rosa = annotators.by_name(db, "Rosa")
    assert rosa is not None
    assert [row["text"] for row in rows] == [f"Because. {HOSTILE}".strip(), "Done."]
    assert {row["researcher"] for row in rows} == {rosa.id}
    blank = tab._act(pressed("answer", "asked"), asked_by(db))
    assert "needs a text" in blank[tab.answer]


def test_somebody_who_is_not_there_is_said(db, live):
    tab = live.people
    updates = tab._act(pressed("disable", "nobody"), asked_by(db))
    assert "nobody" in updates[tab.answer]


def test_slow_figures_are_computed_again_when_their_key_changes_but_not_more_often():
    moment, computed = [0.0], []
    cached = Cached(lambda: computed.append(1) or len(computed), at_most_every=30,
                    clock=lambda: moment[0])  # fmt: skip
    assert [cached.get("a"), cached.get("a"), cached.get("b")] == [1, 1, 1]
    moment[0] = 31.0
    assert [cached.get("a"), cached.get("b")] == [1, 2]


def test_slow_figures_are_computed_at_once_on_another_occasion():
    computed = []
    cached = Cached(lambda: computed.append(1) or len(computed), at_most_every=30,
                    clock=lambda: 0.0)  # fmt: skip
    given = [("a", 1), ("b", 1), ("b", 2), ("c", 2), ("c", 1)]
    assert [cached.get(key, occasion=occasion) for key, occasion in given] == [1, 1, 2, 2, 3]


def test_gold_pairs_are_made_and_retired_and_nothing_in_them_runs(db, live):
    tab = live.people
    pairs = queue.lease(db, "annotator-0", 2).pairs
    for pair in pairs:
        for who in ("annotator-0", "annotator-1"):
            agreed = Judgment(
                id=f"gold-{pair.comparison.id}-{who}", comparison=pair.comparison.id, annotator=who,
                outcome="first", shown_swapped=False,
            )  # fmt: skip
            db.write(lambda tx, agreed=agreed: tx.store(agreed))

    updates = tab._make_gold(1000)

    made = gold.listing(db)
    assert f"{len(made)} gold pairs made" in updates[tab.gold_answer]
    assert {pair.comparison.id for pair in pairs} <= {each.source for each in made}
    assert "Retire" in updates[tab.gold]
    assert "<img" not in updates[tab.gold]
    tab._act(pressed("gold-retire", made[0].id), asked_by(db))
    assert sum(each.active for each in gold.listing(db)) == len(made) - 1
    updates = tab._act(pressed("gold-restore", made[0].id), asked_by(db))
    assert sum(each.active for each in gold.listing(db)) == len(made)
    assert "It was refused" not in updates[tab.answer]
    assert "needs the same preference by 2" in tab._make_gold(1)[tab.gold_answer]
    assert "must be at least 1" in tab._make_gold(None)[tab.gold_answer]
