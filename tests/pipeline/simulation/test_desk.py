"""What simulated annotators do at the desk besides judging the queue: practice, gold pairs, live
conversations and edits, through the real routes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline.simulation.annotators import Choice, population
from pipeline.simulation.checks import checks_report
from pipeline.simulation.clients import LeasedPair
from pipeline.simulation.driver import simulate
from pipeline.simulation.edits import editing_ms, improved
from pipeline.simulation.preference import score
from pipeline.simulation.report import PairJudge
from storage.analysis.checks import check_results
from storage.engine.database import Database
from storage.generation_records import LiveSettings
from storage.importing.imports import import_gold, import_practice
from storage.sides import shown_swapped
from storage.tables.people import annotators
from storage.tables.settings import CheckPlan, set_check_plan
from tests.helpers.scripted_generation import Scripted
from tests.helpers.scripted_studio import ScriptedStudio, drive, kindness

EGGS = "I would like eggs with a firm yolk, so how long do they cook?"
RIGHT = "Boil the egg for eight minutes, then cool it in cold water."
DETAIL = "Slightly older eggs are easier to peel."
WRONG = "Eggs need a full hour of boiling before they are safe."


def known_pairs(tmp_path: Path, name: str, count: int) -> Path:
    """A file of pairs whose better response is A, and as clear as can be."""
    path = tmp_path / f"{name}.jsonl"
    rows = [
        {"prompt": f"Question {name}{n}", "response_a": "kind 9.0", "response_b": "kind 1.0",
         "answer": "a", "explanation": "A is kinder."}
        for n in range(count)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def profiles(db: Database) -> dict[str, str]:
    """The profile of each annotator's id, in the simulations of this file."""
    known = {each.name: each.profile for each in population(4, bad=0.25, seed=1)}
    return {account.id: known[account.name] for account in annotators.listing(db)}


# ------------------------------------------------------------------ practice and gold pairs


def test_everybody_finishes_practice_before_the_first_label(db: Database, tmp_path: Path) -> None:
    import_practice(db, known_pairs(tmp_path, "p", 30))
    set_check_plan(db, CheckPlan(gold_share=0, reask_share=0, practice=True))
    report = drive(db, labels=4)
    assert db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"] == 4
    results, careless = check_results(db), []
    for id, profile in profiles(db).items():
        assert results[id].practice.answered == 30
        if profile == "careful":
            assert results[id].practice.matched == 30
        else:
            careless.append(results[id].practice.matched)
    rows = db.read(
        "SELECT j.seq, c.arm FROM judgments AS j JOIN comparisons AS c ON c.id = j.comparison"
    )
    seqs = {
        practice: [r["seq"] for r in rows if (r["arm"] == "practice") == practice]
        for practice in (True, False)
    }
    assert max(seqs[True]) < min(seqs[False])
    # Expected: 12 ± 3 (a guess is A in 40% of cases).  The pass mark is 20 of 30.
    assert max(careless) < 20
    checked = report["checks"]["annotators"]
    assert {(row["profile"], row["practice"], row["found"]) for row in checked} == {
        ("careful", "passed", False),
        ("careless", "below the mark", True),
    }
    careful, bad = report["checks"]["groups"]
    assert (careful["group"], careful["annotators"], careful["passed_practice"]) == (
        "careful",
        3,
        3,
    )
    assert (bad["group"], bad["found"], bad["passed_practice"]) == ("bad", 1, 0)


def test_practice_is_answered_once_over_two_iterations(db: Database, tmp_path: Path) -> None:
    import_practice(db, known_pairs(tmp_path, "p", 3))
    set_check_plan(db, CheckPlan(gold_share=0, reask_share=0, practice=True))
    drive(db, labels=2, iterations=2)
    assert {each.practice.answered for each in check_results(db).values()} == {3}
    judged = db.read("SELECT count(*) AS n FROM judgments")[0]["n"]
    assert judged == 2 * 2 + 4 * 3


def test_a_careless_annotator_misses_gold_pairs_and_is_found(db: Database, tmp_path: Path) -> None:
    import_gold(db, known_pairs(tmp_path, "g", 20))
    set_check_plan(db, CheckPlan(gold_share=0.5, reask_share=0))
    told: list[str] = []
    report = drive(db, labels=150, studio={"pairs": 160}, progress=told.append)
    rows = {row["name"]: row for row in report["checks"]["annotators"]}
    assert len(rows) == 4
    for row in rows.values():
        assert row["gold"] >= 8
        careful = row["profile"] == "careful"
        assert (row["gold_share"] == 1.0, row["found"]) == (careful, not careful)
    careful, bad = report["checks"]["groups"]
    assert (careful["annotators"], careful["gold_share"], careful["found"]) == (3, 1.0, 0)
    assert (bad["annotators"], bad["found"]) == (1, 1)
    assert careful["gold"] + bad["gold"] == sum(row["gold"] for row in rows.values())
    assert "annotators found by checks: 0 of 3 careful, 1 of 1 bad" in told


def figures(answered: int = 0, matched: int = 0) -> dict[str, Any]:
    share = matched / answered if answered else None
    return {"answered": answered, "matched": matched, "share": share, "interval": None}


def checked(name: str, gold: Any, reask: Any, practice: str = "not started") -> dict[str, Any]:
    return {"name": name, "gold": gold, "reask": reask, "practice_state": practice}


def test_an_annotator_is_found_below_the_others_or_below_the_mark() -> None:
    people = population(5, bad=0.2, seed=1)
    names = [each.name for each in people]
    usual, none = figures(10, 9), figures()
    rows = [
        # Fisher's exact test at three standard errors, .00135:
        checked(names[0], figures(6, 1), none),  # others 50 of 56: .0002
        checked(names[1], figures(6, 3), none),  # others 48 of 56: .06
        checked(names[2], usual, figures(6, 0)),  # the other's re-asks 9 of 10: .0009
        checked(names[3], usual, usual),
        checked(names[4], figures(30, 29), none, "below the mark"),
        checked("somebody else", figures(6, 0), none),  # no simulated annotator
    ]
    found = checks_report({"annotators": rows}, people)
    assert found is not None
    assert [each.found for each in found.annotators] == [True, False, True, False, True]
    place = next(n for n, each in enumerate(people) if each.profile != "careful")
    careful, bad = found.groups
    assert (bad.annotators, bad.found) == (1, found.annotators[place].found)
    assert (bad.gold, bad.gold_share) == (
        rows[place]["gold"]["answered"],
        rows[place]["gold"]["share"],
    )
    assert careful.gold + bad.gold == 62
    assert checks_report({"annotators": rows[5:]}, people) is None


# ------------------------------------------------------------------ edits


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"I am not sure, but {RIGHT[0].lower()}{RIGHT[1:]}", RIGHT),
        (f"{RIGHT} But I could be wrong.", RIGHT),
        (f"What a brilliant question! {RIGHT}", RIGHT),
        (f"You are absolutely right! {WRONG}", RIGHT),
        (f"{RIGHT} {WRONG}", RIGHT),
        (f"{RIGHT} {DETAIL}", None),
        (RIGHT, None),
    ],
)
def test_an_edit_removes_the_faults_of_the_demo(before: str, after: str | None) -> None:
    assert improved(EGGS, before, score) == after
    # The same question at the end of a conversation.
    talk = f"user: Hello\n\nassistant: Perhaps.\n\nuser: {EGGS}"
    assert improved(talk, before, score) == after
    if after:
        assert score(EGGS, after) > score(EGGS, before) + 0.2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("It may depend, but boil it.", "Boil it."),
        ("In short: boil it.", "Boil it."),
        ("Boil it. So it is.", "Boil it."),
        ("Boil it", None),
    ],
)
def test_an_edit_leaves_out_what_the_gold_preference_does_not_want(
    before: str, after: str | None
) -> None:
    assert improved("Eggs?", before, lambda _, text: -len(text) / 10) == after
    # A gain of a tenth of a standard deviation is not worth an edit.
    assert improved("Eggs?", before, lambda _, text: -0.1 * (text == before)) is None


def test_the_time_of_an_edit() -> None:
    # Four words are read, at 252 ms; two places are changed, at 1.5 s; one word is typed, at 60 s / 19.
    assert editing_ms("a b c d e", "a x c e") == pytest.approx(4 * 252 + 2 * 1500 + 60_000 / 19)


def hesitation(prompt: str, response: str) -> float:
    """`kindness`, less for "Perhaps."."""
    return kindness(prompt, f" {response.replace('Perhaps.', '')}") - 10 * ("Perhaps." in response)


def hesitant(prompt: str, response: str) -> float:
    return -1e3 if response == "Perhaps." else hesitation(prompt, response)


def test_edits_improve_what_careful_annotators_prefer(db: Database) -> None:
    report = drive(db, labels=60, edits=0.5, gold=hesitant, studio={"lead": "Perhaps. "})
    who = profiles(db)
    rows = db.read(
        "SELECT j.annotator, j.outcome, j.edit, j.milliseconds, a.kind, f.text AS first, s.text AS second "
        "FROM current_judgments AS j JOIN annotators AS a ON a.id = j.annotator "
        "JOIN comparisons AS c ON c.id = j.comparison "
        "JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second"
    )
    edited = [row for row in rows if row["edit"]]
    for row in edited:
        assert who[row["annotator"]] == "careful"
        assert row["edit"] == row[row["outcome"]].removeprefix("Perhaps. ")
        assert row["kind"] == "simulated"
    decided = [r for r in rows if who[r["annotator"]] == "careful" and r["outcome"] in r]
    assert 0.25 < len(edited) / len(decided) < 0.75  # half of them; about 40
    [iteration] = report["iterations"]
    assert iteration["edits"] == len(edited)


def test_edits_change_no_judgment_but_take_time() -> None:
    pairs = [
        LeasedPair(id=f"c-{n}", prompt="Question", left="Perhaps. kind 0.1", right="kind 0.0")
        for n in range(60)
    ]
    careful = population(1, bad=0, seed=1)[0]

    def gold(prompt: str, response: str) -> float:
        return hesitant(prompt, response) / 20

    def judged(share: float) -> list[Choice]:
        judge = PairJudge(careful, gold, seed=1, shuffle=False, edits=share)
        return [judge(pair) for pair in pairs]

    plain, edited = judged(0.0), judged(1.0)
    assert not any(choice.edit for choice in plain)
    assert [(c.outcome, c.strength) for c in plain] == [(c.outcome, c.strength) for c in edited]
    assert {choice.outcome for choice in plain} >= {"b", "tie"}
    for before, after in zip(plain, edited, strict=True):
        assert (after.milliseconds > before.milliseconds) == bool(after.edit)


def test_edits_and_shuffled_labels_exclude_each_other(db: Database) -> None:
    with pytest.raises(ValueError, match="carry no information, but edits do"):
        drive(db, edits=0.5, shuffle_labels=True)


# ------------------------------------------------------------------ live conversations


def number(prompt: str, response: str) -> float:
    """The gold preference of replies: a hundred times their last number."""
    assert "uestion" in prompt
    return 100 * float(response.split()[-1])


def scripted(turns: int) -> Scripted:
    """Replies of that many turns, the first one better in every other turn."""
    texts = [f"kind {n % 4}.0" for turn in range(turns) for n in (turn, turn + 2)]
    live = LiveSettings(replies="reference", turns=3, temperatures=(1.0, 1.0))
    return Scripted(texts=list(texts), live=live)


def test_a_share_of_the_judgments_is_given_in_conversations(db: Database) -> None:
    script = scripted(100)
    report = drive(db, labels=20, annotators=2, bad=0, live=0.5, gold=number, generation=script)
    [iteration] = report["iterations"]
    assert iteration["labels_by_arm"] == {"live": 10, "random": 10}
    rows = db.read(
        "SELECT c.id, c.conversation, c.turn, j.annotator, j.outcome, f.text AS first, "
        "s.text AS second, p.messages::VARCHAR AS messages FROM comparisons AS c "
        "JOIN current_judgments AS j ON j.comparison = c.id JOIN prompts AS p ON p.id = c.prompt "
        "JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second "
        "WHERE c.arm = 'live' ORDER BY c.conversation, c.turn"
    )
    assert [*Counter(row["annotator"] for row in rows).values()] == [5, 5]
    conversations = defaultdict(list)
    for row in rows:
        conversations[row["conversation"]].append(row)
    assert sorted(map(len, conversations.values())) == [2, 2, 3, 3]  # 5 turns each, 3 at most
    for turns in conversations.values():
        assert [row["turn"] for row in turns] == [*range(1, len(turns) + 1)]
        assert len({row["annotator"] for row in turns}) == 1
        for row, later in pairwise(turns):
            said = [message["content"] for message in json.loads(later["messages"])]
            assert said[-2] == row[preferred(row)]  # the better reply goes on
            assert said[-1].startswith("Question")


def preferred(row: dict[str, Any]) -> str:
    """The better reply, which a careful annotator chose; after a tie, A."""
    if row["outcome"] == "tie":
        return "second" if shown_swapped(row["annotator"], row["id"]) else "first"
    better = max(("first", "second"), key=lambda side: number("question", row[side]))
    assert row["outcome"] == better
    return better


def test_a_reply_that_ended_early_is_asked_again(db: Database) -> None:
    script = scripted(20)
    script.texts.insert(0, ValueError("the model stumbled"))
    drive(db, labels=4, annotators=1, bad=0, live=1.0, gold=number, generation=script)
    assert db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"] == 4


def test_without_live_conversations_the_simulation_says_how_to_turn_them_on(db: Database) -> None:
    with pytest.raises(ValueError, match=r"add --set live\.replies=policy"):
        drive(db, live=0.5)
    assert db.read("SELECT count(*) AS n FROM judgments")[0]["n"] == 0


def test_shares_beyond_one_are_refused(db: Database) -> None:
    studio = ScriptedStudio(db)
    for share in ({"live": 1.5}, {"edits": -0.1}):
        with pytest.raises(ValueError, match="must be shares between 0 and 1"):
            simulate("http://127.0.0.1:9", studio.admin, **share)
