"""Gold pairs and re-asks: who gets which, that nothing gives them away, and that no figure about
models or agreement uses them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from labeler.annotate.session import PRACTICE, LabelSession
from pipeline.promotion import gate
from storage import worker_files
from storage.analysis.agreement import agreement
from storage.analysis.checks import CheckResult, check_results, practice_state
from storage.analysis.intervals import wilson
from storage.analysis.reliability import annotator_figures
from storage.engine import backup
from storage.engine.database import Database
from storage.exporting.exports import export
from storage.importing.imports import BadFile, import_gold, import_judgments, import_practice
from storage.labeling import gold, judgments, model_judges, queue
from storage.labeling.check_schedule import FIRST_PAIRS, due
from storage.labeling.own_figures import own_figures
from storage.labeling.own_judgments import own_judgments
from storage.records import CHECKS, Annotator, Judgment
from storage.status import status
from storage.tables import guidelines, policy_judgments, snapshots
from storage.tables.people import annotators
from storage.tables.settings import CheckPlan, ask_for_practice, check_plan_of, set_check_plan
from tests.helpers.import_files import reasons
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.storage_world import fill

ALWAYS = CheckPlan(gold_share=0.5, reask_share=0.0)
PAIR = {"prompt": "Name a fruit", "response_a": "Pear", "response_b": "Car", "answer": "a"}


def gold_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"Gold {n}?",
            "response_a": f"right {n}",
            "response_b": f"wrong {n}",
            "answer": "a",
        }
        for n in range(count)
    ]


def give(db: Database, pair: queue.LeasedPair, who: str, outcome: Any = "a") -> str:
    id = str(uuid.uuid4())
    judgments.judge(db, id=id, comparison=pair.comparison.id, annotator=who, outcome=outcome)
    return id


def label(
    db: Database, who: str, most: int = 10_000, *, outcome: Any = "a"
) -> list[queue.LeasedPair]:
    """`who` judges one pair after another; the pairs in the order in which they came."""
    seen: list[queue.LeasedPair] = []
    while len(seen) < most and (leased := queue.lease(db, who, 1).pairs):
        give(db, leased[0], who, outcome)
        seen += leased
    return seen


def arms(pairs: list[queue.LeasedPair]) -> list[str]:
    return [pair.comparison.arm for pair in pairs]


# ------------------------------------------------------------------ the schedule


def test_everybody_gets_the_same_share_at_places_that_only_the_key_tells() -> None:
    plan = CheckPlan(gold_share=0.02, gold_first=0, reask_share=0.04, reask_after=50)

    def places(kind: Any, who: str, key: bytes = b"k" * 32) -> list[int]:
        counts = [due(plan, kind, key, who, n) for n in range(1001)]
        return [n for n in range(1, 1001) if counts[n] > counts[n - 1]]

    for who in ("ann", "bob"):
        # One in each block of 1 / .02 = 50 pairs.
        assert [(place - 1) // 50 for place in places("gold", who)] == list(range(20))
        # One in each block of 1 / .04 = 25 pairs, the first of which begins after 50 pairs.
        assert [(place - 51) // 25 for place in places("reask", who)] == list(range(38))
    assert places("gold", "ann") != places("gold", "bob")
    assert places("gold", "ann") != places("gold", "ann", b"other" * 6)
    within = [(place - 1) % 50 for who in "abcdefghij" for place in places("gold", who)]
    # 200 places, uniform in a block: mean 24.5, standard error √((50² − 1) / 12 / 200) = 1.02.
    assert abs(sum(within) / len(within) - 24.5) < 4 * 1.02


def test_first_pairs_have_more_gold() -> None:
    plan = CheckPlan(gold_share=0.02, gold_first=5)
    counts = [due(plan, "gold", b"k" * 32, "ann", n) for n in range(FIRST_PAIRS + 101)]
    assert [counts[n] for n in (0, 8, 16, 24, 32, 40)] == [0, 1, 2, 3, 4, 5]  # blocks of 40 / 5
    assert (counts[90], counts[140]) == (6, 7)  # then blocks of 50


def test_first_pairs_never_have_less_gold_than_the_share() -> None:
    plan = CheckPlan(gold_share=0.5, gold_first=6)
    assert due(plan, "gold", b"k" * 32, "ann", FIRST_PAIRS) == 20
    assert due(CheckPlan(gold_share=0, gold_first=6), "gold", b"k" * 32, "ann", 1000) == 0


def test_checks_can_be_off(db: Database, file: Any) -> None:
    fill(db, 80)
    import_gold(db, file(gold_rows(3)))
    set_check_plan(db, CheckPlan(gold_share=0, reask_share=0))
    assert set(arms(label(db, "ann"))) == {"random"}


# ------------------------------------------------------------------ gold pairs


def test_a_gold_pair_looks_like_any_other(db: Database, file: Any) -> None:
    fill(db, 4)
    import_gold(db, file(gold_rows(2)))
    set_check_plan(db, ALWAYS)
    ann = annotators.by_name(db, "ann")
    assert ann
    session = LabelSession(db)

    pairs = session.lease(ann, 16).pairs

    stored = {row["id"]: row["arm"] for row in db.read("SELECT id, arm FROM comparisons")}
    kinds = [stored[pair.id] for pair in pairs]
    assert sorted(kinds) == ["gold"] * 2 + ["random"] * 4
    assert "gold" not in repr([(p.id, p.a.html, p.b.html, p.notice) for p in pairs])
    checked = next(pair for pair in pairs if stored[pair.id] == "gold")
    usual = next(pair for pair in pairs if stored[pair.id] == "random")
    assert vars(checked).keys() == vars(usual).keys()
    ids = {row["id"] for row in db.read("SELECT id FROM comparisons WHERE arm = 'gold'")}
    # The form of the loop's ids: c- and 16 hex digits.
    assert all(len(id) == 18 and set(id[2:]) <= set("0123456789abcdef") for id in ids)


def test_each_gold_pair_goes_once_to_everybody_in_an_order_of_their_own(
    db: Database, file: Any
) -> None:
    fill(db, 60, wanted=3)
    import_gold(db, file(gold_rows(12)))
    set_check_plan(db, ALWAYS)

    orders = {who: [p.comparison.id for p in label(db, who) if p.comparison.arm == "gold"]
              for who in ("ann", "bob", "cat")}  # fmt: skip

    assert {len(order) for order in orders.values()} == {12}
    assert len({frozenset(order) for order in orders.values()}) == 1
    assert len({tuple(order) for order in orders.values()}) == 3


def test_the_share_is_that_of_the_settings_however_pairs_are_leased(
    db: Database, file: Any
) -> None:
    fill(db, 400)
    import_gold(db, file(gold_rows(40)))
    set_check_plan(db, CheckPlan(gold_share=0.1, gold_first=0, reask_share=0))
    seen: list[str] = []
    for n in range(40):  # pages that hold 16 pairs, answer half of them, and reload
        pairs = queue.lease(db, "ann", 16).pairs
        for pair in pairs[: 8 + n % 3]:
            give(db, pair, "ann")
            seen.append(pair.comparison.arm)
    others = seen.count("random")
    assert abs(seen.count("gold") - others * 0.1) <= 2
    assert len(seen) > 300


def test_nobody_gets_a_gold_pair_of_responses_that_they_judged(db: Database) -> None:
    fill(db, 30, wanted=2)
    for who in ("ann", "bob"):
        label(db, who, 6, outcome="a" if who == "ann" else "tie")
    agree(db, ["c1-10", "c1-11"], "ann", "bob", "first")
    assert gold.make(db, 20) == 2
    set_check_plan(db, ALWAYS)

    assert "gold" not in arms(label(db, "ann"))
    assert arms(label(db, "cat")).count("gold") == 2


def agree(db: Database, ids: list[str], *who_and_outcome: str) -> None:
    *people, outcome = who_and_outcome
    db.write(
        lambda tx: tx.store(
            *(
                Judgment(
                    id=f"j-{id}-{who}", comparison=id, annotator=who, outcome=outcome,  # type: ignore[arg-type]
                    shown_swapped=False,
                )
                for id in ids for who in people
            )
        )
    )  # fmt: skip


def test_gold_is_made_of_pairs_on_which_everybody_agrees(db: Database) -> None:
    fill(db, 7)
    agree(db, ["c1-0"], "ann", "bob", "second")
    agree(db, ["c1-1"], "ann", "bob", "cat", "first")
    agree(db, ["c1-2"], "ann", "first")  # one annotator
    agree(db, ["c1-3"], "ann", "bob", "tie")  # no preference
    agree(db, ["c1-4"], "ann", "bob", "first")
    agree(db, ["c1-4"], "cat", "second")  # not unanimous
    annotators.add(db, Annotator(id="bot", name="bot", kind="model"))
    agree(db, ["c1-5"], "ann", "bot", "first")  # a model does not count
    agree(db, ["c1-6"], "ann", "bob", "first")
    judgments.judge(db, **leased(db, "c1-6", "bob"), outcome="tie")  # revised

    assert gold.candidates(db) == 2
    assert gold.make(db, 1) == 1
    [made] = gold.listing(db)
    assert (made.source, made.answer) == ("c1-1", "first")  # three judgments come first
    assert (made.first, made.second) == ("first 1", "second 1")
    assert gold.make(db, 20) == 1
    assert {(p.source, p.answer) for p in gold.listing(db)} == {
        ("c1-1", "first"),
        ("c1-0", "second"),
    }
    with pytest.raises(ValueError, match="needs the same preference by 2 annotators"):
        gold.make(db, 1)


def leased(db: Database, comparison: str, who: str) -> dict[str, str]:
    """Arguments for a judgment of a pair that `who` may judge."""
    db.write(
        lambda tx: queue.lease_items(
            tx, [tx.observer(queue.QueueCache).item(tx, comparison)], who, tx.now()
        )
    )
    return {"id": str(uuid.uuid4()), "comparison": comparison, "annotator": who}


def test_imported_gold(db: Database, file: Any) -> None:
    fill(db, 1)
    rows = [PAIR, PAIR | {"answer": "b", "response_a": "Sofa", "response_b": "Fig"}]
    report = import_gold(db, file(rows))
    assert (report.added["comparisons"], report.added["checks"]) == (2, 2)
    pairs = {pair.first: pair for pair in gold.listing(db)}
    wins = {pair.first if pair.answer == "first" else pair.second for pair in pairs.values()}
    assert wins == {"Pear", "Fig"}
    assert {row["role"] for row in db.read("SELECT role FROM prompts WHERE category = ''")} >= {
        "audit"
    }
    again = import_gold(db, file([PAIR]))
    assert (again.known, sum(again.added.values())) == (1, 0)
    other = import_gold(db, file([PAIR | {"answer": "b"}]))
    assert [note.reason for note in other.warnings] == [
        "the gold pair is stored with the other answer and keeps it"
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "c"}, "answer is 'c' and must be one of a, b"),
        ({"answer": "tie"}, "answer is 'tie' and must be one of a, b"),
        ({"response_b": "Pear"}, "response_a and response_b are the same, so there is nothing to compare"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(db: Database, file: Any, row: dict[str, str], reason: str) -> None:
    with pytest.raises(BadFile) as refused:
        import_gold(db, file([PAIR, PAIR | {"prompt": "Other"} | row]))
    assert reasons(refused) == {2: reason}
    assert gold.listing(db) == []


def test_one_file_cannot_give_a_pair_both_answers(db: Database, file: Any) -> None:
    turned = PAIR | {"response_a": "Car", "response_b": "Pear", "answer": "a"}
    with pytest.raises(BadFile) as refused:
        import_gold(db, file([PAIR, turned]))
    assert reasons(refused) == {
        2: "line 1 has the same pair with the other answer; remove one of them"
    }


def test_a_retired_pair_is_not_served_and_does_not_count(db: Database, file: Any) -> None:
    fill(db, 20, wanted=2)
    import_gold(db, file(gold_rows(2)))
    set_check_plan(db, ALWAYS)
    right_and_wrong(db, "ann")
    assert check_results(db)["ann"].gold.answered == 2
    first, second = (pair.id for pair in gold.listing(db))
    gold.set_active(db, first, active=False)

    assert check_results(db)["ann"].gold.answered == 1
    assert [p.comparison.id for p in label(db, "bob") if p.comparison.arm == "gold"] == [second]
    gold.set_active(db, first, active=True)
    assert check_results(db)["ann"].gold.answered == 2


def right_and_wrong(db: Database, who: str) -> None:
    """`who` judges everything by its text: gold pairs as expected, but for a tie on the last."""
    while leased_pairs := queue.lease(db, who, 1).pairs:
        [pair] = leased_pairs
        left = pair.left.startswith("right")
        give(db, pair, who, "tie" if "1" in pair.left and "right" in pair.left + pair.right
             else "a" if left else "b")  # fmt: skip


def test_the_results_are_shares_with_intervals(db: Database, file: Any) -> None:
    fill(db, 20)
    import_gold(db, file(gold_rows(4)))
    set_check_plan(db, ALWAYS)
    right_and_wrong(db, "ann")

    found = check_results(db)["ann"].gold

    assert (found.answered, found.matched, found.share) == (4, 3, 0.75)  # a tie is missed
    assert found.interval == wilson(0.75, 4)
    reported = status(db).checks
    assert (reported.gold_pairs, reported.gold.matched) == (4, 3)
    assert [(a.name, a.gold.answered, a.reask.answered) for a in reported.annotators] == [
        ("ann", 4, 0)
    ]


# ------------------------------------------------------------------ re-asks


REASKS = CheckPlan(gold_share=0, reask_share=0.2, reask_after=10)


def test_own_pairs_are_asked_again_later_with_the_sides_swapped(db: Database) -> None:
    fill(db, 100)
    set_check_plan(db, REASKS)

    seen = label(db, "ann")

    again = [n for n, pair in enumerate(seen) if pair.comparison.arm == "reask"]
    assert 15 <= len(again) <= 18  # a fifth of the 90 pairs after the first 10
    checks = {row["comparison"]: row for row in db.read("SELECT * FROM checks")}
    place = {pair.comparison.id: n for n, pair in enumerate(seen)}
    for n in again:
        check, pair = checks[seen[n].comparison.id], seen[n]
        source = seen[place[check["source"]]]
        assert (pair.left, pair.right) == (source.right, source.left)
        between = arms(seen[place[check["source"]] + 1 : n])
        assert between.count("random") >= 10
        assert check["annotator"] == "ann"
    assert len({checks[seen[n].comparison.id]["source"] for n in again}) == len(again)
    # Always the left response, so with swapped sides never the same answer.
    found = check_results(db)["ann"].reask
    assert (found.answered, found.matched) == (len(again), 0)


def test_the_same_answer_is_consistent_whatever_the_side(db: Database) -> None:
    fill(db, 60)
    set_check_plan(db, REASKS)
    while leased_pairs := queue.lease(db, "ann", 1).pairs:
        give(db, leased_pairs[0], "ann", "a" if leased_pairs[0].left.startswith("first") else "b")
    found = check_results(db)["ann"].reask
    assert found.answered == found.matched >= 8


def test_a_re_ask_never_replaces_the_first_judgment(db: Database) -> None:
    fill(db, 40)
    set_check_plan(db, REASKS)
    seen = label(db, "ann")
    assert db.read("SELECT count(*) AS n FROM judgments WHERE replaces IS NOT NULL")[0]["n"] == 0
    assert len(own_judgments(db, "ann")[0]) == 30  # a page of the list, with both
    standing = db.read("SELECT count(*) AS n FROM standing_judgments")[0]["n"]
    current = db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"]
    assert (standing, current) == (len(seen), 40)


def test_a_re_ask_that_was_not_answered_is_leased_again(db: Database) -> None:
    fill(db, 40)
    set_check_plan(db, REASKS)
    label(db, "ann", 20)
    first = [pair.comparison.id for pair in queue.lease(db, "ann", 16).pairs]
    moment = db.clock() + timedelta(hours=1)
    db.clock = lambda: moment
    second = [pair.comparison.id for pair in queue.lease(db, "ann", 16).pairs]
    asked = {row["comparison"] for row in db.read("SELECT comparison FROM checks")}
    assert set(first) & asked == set(second) & asked != set()


def test_a_withdrawn_first_judgment_does_not_count(db: Database) -> None:
    fill(db, 40)
    set_check_plan(db, REASKS)
    label(db, "ann")
    before = check_results(db)["ann"].reask.answered
    [row, *_] = db.read("SELECT judgment FROM checks ORDER BY comparison")
    judgments.undo(db, id="u", annotator="ann", replaces=row["judgment"])
    assert check_results(db)["ann"].reask.answered == before - 1


def test_an_undone_check_comes_back_with_the_same_sides(db: Database, file: Any) -> None:
    fill(db, 10)
    import_gold(db, file(gold_rows(1)))
    set_check_plan(db, ALWAYS)
    while True:
        [pair] = queue.lease(db, "ann", 1).pairs
        give(db, pair, "ann")
        if pair.comparison.arm == "gold":
            break
    undone = judgments.undo(db, id="u", annotator="ann")
    assert undone.comparison == pair.comparison.id
    assert check_results(db) == {}
    [again] = queue.lease(db, "ann", 1).pairs
    assert (again.comparison.id, again.left, again.right) == (
        undone.comparison,
        pair.left,
        pair.right,
    )


def test_a_lease_on_a_check_that_ended_is_renewed_like_any_other(db: Database, file: Any) -> None:
    fill(db, 10)
    import_gold(db, file(gold_rows(2)))
    set_check_plan(db, ALWAYS)
    held = [pair.comparison.id for pair in queue.lease(db, "ann", 8).pairs]
    moment = db.clock() + timedelta(hours=1)
    db.clock = lambda: moment
    answer = queue.lease(db, "ann", 1, holding=held)
    assert answer.gone == []
    assert not {pair.comparison.id for pair in answer.pairs} & set(held)


def test_the_counts_tell_nothing(db: Database, file: Any) -> None:
    """Each judgment lowers `remaining` by one, and a lease does not change it."""
    fill(db, 60)
    import_gold(db, file(gold_rows(5)))
    set_check_plan(db, CheckPlan(gold_share=0.05, gold_first=3, reask_share=0.1, reask_after=10))
    queue.lease(db, "ann", 1)
    since = queue.midnight(db.clock())
    before = queue.progress(db, "ann", since=since)
    seen: list[str] = []
    while leased_pairs := queue.lease(db, "ann", 3).pairs:
        assert queue.progress(db, "ann", since=since) == before
        give(db, leased_pairs[0], "ann")
        seen.append(leased_pairs[0].comparison.arm)
        after = queue.progress(db, "ann", since=since)
        assert (after.judged, after.done) == (before.judged + 1, before.done + 1)
        assert after.remaining == before.remaining - 1
        before = after
    assert before.remaining == 0
    assert set(seen) == {"random", "gold", "reask"}


def test_checks_are_counted_before_the_first_lease_of_a_workspace(db: Database) -> None:
    fill(db, 60)
    set_check_plan(db, CheckPlan(gold_share=0, reask_share=0.1, reask_after=10))
    before = queue.progress(db, "ann", since=queue.midnight(db.clock()))
    assert before.remaining == 60 + 5  # a tenth of the pairs after the tenth
    queue.lease(db, "ann", 1)
    assert queue.progress(db, "ann", since=queue.midnight(db.clock())) == before


def test_model_judges_do_not_get_them(db: Database, file: Any) -> None:
    fill(db, 5)
    import_gold(db, file(gold_rows(2)))
    found = model_judges.open_pairs(db, annotator="bot", limit=100)
    assert {pair.id for pair in found} == {f"c1-{n}" for n in range(5)}


def test_a_rebuild_and_a_restart_keep_them(db: Database, file: Any) -> None:
    fill(db, 40)
    import_gold(db, file(gold_rows(3)))
    set_check_plan(db, CheckPlan(gold_share=0.1, reask_share=0.2, reask_after=10))
    label(db, "ann", 30)
    before, workspace = check_results(db), db.workspace
    assert before["ann"].gold.answered
    assert before["ann"].reask.answered
    db.close()
    report = backup.rebuild(workspace)
    assert report.records["check"] >= 4
    with Database.open(workspace) as again:
        assert check_results(again) == before
        seen = label(again, "ann")
        assert len({pair.comparison.id for pair in seen}) == len(seen)
        sources = again.read("SELECT source FROM checks WHERE kind = 'reask'")
        assert len({row["source"] for row in sources}) == len(sources)


# ------------------------------------------------------------------ export and import


def test_checks_come_back_from_a_raw_export_and_are_in_no_other(
    db: Database, file: Any, tmp_path: Any
) -> None:
    fill(db, 40)
    import_gold(db, file(gold_rows(3)))
    set_check_plan(db, CheckPlan(gold_share=0.1, reask_share=0.2, reask_after=10))
    label(db, "ann")
    found = check_results(db)["ann"]
    for names in (True, False):
        out = tmp_path / f"raw-{names}.jsonl"
        export(db, format="raw", out=str(out), names=names, history=True)
        with Database.open(tmp_path / f"other-{names}") as other:
            report = import_judgments(other, out)
            assert report.warnings == []
            [results] = check_results(other).values()
            assert results == found
            assert other.read("SELECT count(*) AS n FROM current_judgments")[0]["n"] == 40
            assert sum(import_judgments(other, out).added.values()) == 0
    trl = export(db, format="trl", out=str(tmp_path / "trl.jsonl"))
    assert trl.rows == 40
    assert trl.left_out == {"of gold pairs": 3, "of reask pairs": found.reask.answered}
    rows = [json.loads(line) for line in (tmp_path / "raw-True.jsonl").read_text().splitlines()]
    golden = [row for row in rows if row["arm"] == "gold"]
    assert {row[f"response_{row['expected']}"][:5] for row in golden} == {"right"}


# ------------------------------------------------------------------ statistics hold


@pytest.fixture
def judged_twice(db: Database) -> Database:
    """Policies that were compared, pairs with agreement, then many answered checks."""
    add_models(db, 1)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling")
    compare(db, "sft-1", "policy-1", ["first", "second", "tie"] * 10)
    compare(db, "policy-1", "policy-1", ["first"] * 20, arm="random")
    fill(db, 30, wanted=2, iteration=3)
    for who in ("ann", "bob"):
        label(db, who, outcome="a")
    return db


FIGURES: dict[str, Callable[[Database], Any]] = {
    "win rates": lambda db: policy_judgments.judged(db),
    "the gate": lambda db: gate.verdict(policy_judgments.evidence(db), "policy-1"),
    "agreement": lambda db: agreement(db),
    "agreement with others": lambda db: {
        id: (each.judgments, each.agreement, each.left_rate)
        for id, each in annotator_figures(db).items()
    },
    "own agreement": lambda db: (
        own_figures(db, "ann", midnight=db.clock() + timedelta(days=1)).shared_pairs
    ),
    "labels by arm": lambda db: worker_files.labels_by_arm(db),
    "labels waiting": lambda db: snapshots.waiting(db, ["person"]),
    "guidelines": lambda db: guidelines.versions(db),
    "status": lambda db: [
        getattr(status(db), name)
        for name in ("judgments", "comparisons", "annotators", "iteration")
    ],
}


@pytest.mark.parametrize("figure", FIGURES)
def test_no_figure_but_those_about_annotators_uses_checks(
    judged_twice: Database, file: Any, figure: str
) -> None:
    db = judged_twice
    before = FIGURES[figure](db)
    answer_checks(db, file)
    assert FIGURES[figure](db) == before


def answer_checks(db: Database, file: Any) -> None:
    """Ann and Bob answer gold pairs, one made from judgments, and re-asks, with other outcomes."""
    gold.make(db, 3)
    import_gold(db, file(gold_rows(12)))
    import_practice(db, file(practice_rows(3)))
    plan = CheckPlan(gold_share=0.5, reask_share=0.5, reask_after=1, practice=True)
    set_check_plan(db, plan)
    seen = [arm for who in ("ann", "bob") for arm in arms(label(db, who, outcome="b"))]
    assert set(seen) == set(CHECKS)


def test_nothing_is_learned_from_checks(judged_twice: Database, file: Any, tmp_path: Any) -> None:
    db = judged_twice

    def learned() -> list[str]:
        return worker_files.write_judgments_input(db, tmp_path, iteration=3)[1]

    before = learned()
    sampled = db.read(worker_files._SAMPLED_SO_FAR, stream=["random"], apart=["written", *CHECKS])
    answer_checks(db, file)
    assert learned() == before
    after = db.read(worker_files._SAMPLED_SO_FAR, stream=["random"], apart=["written", *CHECKS])
    assert sorted(map(str, after)) == sorted(map(str, sampled))


# ------------------------------------------------------------------ practice


def practice_rows(count: int) -> list[dict[str, Any]]:
    return [row | {"explanation": f"Because **{n}**."} for n, row in enumerate(gold_rows(count))]


def test_practice_comes_first_with_an_explanation_and_only_if_asked_for(
    db: Database, file: Any
) -> None:
    fill(db, 6)
    import_practice(db, file(practice_rows(3)))
    assert set(arms(queue.lease(db, "ann", 16).pairs)) == {"random"}
    ask_for_practice(db, True)
    bob = annotators.by_name(db, "bob")
    assert bob
    session = LabelSession(db)
    since = queue.midnight(db.clock())

    pairs = session.lease(bob, 2).pairs

    assert [pair.notice for pair in pairs] == [PRACTICE] * 2
    fields = {"strength": None, "criteria": {}, "comment": "", "milliseconds": None}
    operation = session.judgment_operation(
        bob, id=str(uuid.uuid4()), comparison=pairs[0].id, outcome="a", **fields
    )
    judgment, answer = db.write(operation)
    assert answer
    right = "a" if pairs[0].a.text.startswith("right") else "b"
    assert (answer.answer, answer.matched) == (right, right == "a")
    assert answer.html == answer.text.replace(
        "Because **", '<p dir="auto">Because <strong>'
    ).replace("**.", "</strong>.</p>\n")
    assert judgment.comparison == pairs[0].id
    assert queue.progress(db, "bob", since=since).remaining == 2 + 6
    seen = label(db, "bob")
    assert arms(seen)[:2] == ["practice"] * 2
    assert "practice" not in arms(seen)[2:]
    assert "practice" not in arms(label(db, "bob"))


def test_the_first_answer_to_a_practice_pair_counts(db: Database, file: Any) -> None:
    fill(db, 1)
    import_practice(db, file(practice_rows(1)))
    ask_for_practice(db, True)
    [pair] = queue.lease(db, "ann", 1).pairs
    wrong = "b" if pair.left.startswith("right") else "a"
    give(db, pair, "ann", wrong)
    judgments.undo(db, id="u", annotator="ann")
    give(db, pair, "ann", "a" if wrong == "b" else "b")
    found = check_results(db)["ann"].practice
    assert (found.answered, found.matched) == (1, 0)


def test_the_pass_mark_is_a_lower_bound() -> None:
    def state(matched: int, answered: int) -> str:
        return practice_state(CheckResult(answered=answered, matched=matched), pairs=12, mark=0.5)

    # Wilson, one-sided 95%, z = 1.645: 9 of 12: (.75 + .1127 − 1.645 √(.015625 + .0047)) / 1.2255
    # = .513; 8 of 12: .432.
    assert [state(n, 12) for n in (8, 9, 12)] == ["below the mark", "passed", "passed"]
    assert [state(0, 0), state(11, 11)] == ["not started", "in progress"]


def test_a_practice_pair_needs_an_explanation(db: Database, file: Any) -> None:
    with pytest.raises(BadFile) as refused:
        import_practice(db, file([practice_rows(1)[0], practice_rows(2)[1] | {"explanation": " "}]))
    assert list(reasons(refused)) == [2]


def test_the_latest_choice_about_practice_counts(db: Database) -> None:
    set_check_plan(db, CheckPlan(practice=True))
    assert check_plan_of(db).practice
    ask_for_practice(db, False)
    set_check_plan(db, CheckPlan(practice=True))  # the settings files did not change
    assert not check_plan_of(db).practice
    set_check_plan(db, CheckPlan(practice=True, gold_share=0.1))
    assert (check_plan_of(db).practice, check_plan_of(db).gold_share) == (False, 0.1)
    set_check_plan(db, CheckPlan())
    ask_for_practice(db, True)
    assert check_plan_of(db) == CheckPlan(practice=True)
