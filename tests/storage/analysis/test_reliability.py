"""What is said of each annotator: by hand, in simulation, and without giving others away."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from scipy.stats import hypergeom

from storage.analysis.intervals import clearly_below, cluster_variance, clustered, wilson
from storage.analysis.reliability import annotator_figures, annotator_fit
from storage.engine.database import Database
from storage.labeling.own_figures import own_figures
from storage.records import Annotator, Judgment, ModelVersion, Withdrawal
from tests.helpers.rated import judgment, pair

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)


def people(db: Database, *names: str, **more: Any) -> None:
    db.write(lambda tx: tx.store(*(Annotator(id=name, name=name, **more) for name in names)))


def pairs(db: Database, count: int, *, a_prompt: int = 1) -> list[str]:
    """Comparisons c0, c1, … with `a_prompt` of them for each prompt."""
    made = [
        record
        for n in range(count)
        for record in pair(f"c{n}", f"x {n}", f"y {n}", prompt=f"p{n // a_prompt}")
    ]
    db.write(lambda tx: tx.store(*made))
    return [f"c{n}" for n in range(count)]


def store(db: Database, judgments: list[Judgment]) -> None:
    db.write(lambda tx: tx.store(*judgments))


# Intervals


def test_wilson_by_hand() -> None:
    # Newcombe (1998), Table I: 81 of 263 gives .2553 to .3662, 0 of 20 gives 0 to .1611
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0, 0.1611), abs=5e-5)


def test_clusters_of_equal_answers_count_once() -> None:
    # Ten prompts with four equal answers each, six of them 1: the variance is that of 10 answers,
    # 10/9 · (6 · (4·.4)² + 4 · (4·.6)²) / 40² = .02667; .24 / .02667 = 9 answers, with t(9) = 2.2622
    squares = 6 * (4 * 0.4) ** 2 + 4 * (4 * 0.6) ** 2
    found = clustered(0.6, cluster_variance(squares, n=40, clusters=10), clusters=10, most=40)
    assert found == pytest.approx(wilson(0.6, 9, 2.262157), abs=1e-5)


def test_one_prompt_gives_no_interval_and_equal_ones_do_not_collapse() -> None:
    assert clustered(0.5, cluster_variance(0, n=8, clusters=1), clusters=1) is None
    low, high = clustered(1.0, 0.0, clusters=8, most=8) or ()
    assert high == 1
    assert 0.5 < low < 0.7
    # Halves that happen to be alike know no more than the answers they average.
    low, high = clustered(0.5, 1e-8, clusters=8, most=8) or ()
    assert high - low > 0.5


# Figures


def test_figures_by_hand(db: Database) -> None:
    people(db, "ann", "bob", "eve", "idle")
    asked = pairs(db, 4, a_prompt=2)
    said = [
        # ann: first shown left, second shown left (swapped), first shown right (swapped), tie
        ("ann", "c0", "first", False, 1000), ("ann", "c1", "second", True, 2000),
        ("ann", "c2", "first", True, 3000), ("ann", "c3", "tie", False, 4000),
        ("bob", "c0", "first", False, None), ("bob", "c1", "first", False, None),
        ("bob", "c2", "first", False, None),
        ("eve", "c0", "both_bad", False, None), ("eve", "c2", "first", False, None),
    ]  # fmt: skip
    store(
        db,
        [
            Judgment(id=f"{who}-{c}", comparison=c, annotator=who, outcome=outcome,  # type: ignore[arg-type]
                     shown_swapped=swapped, milliseconds=time)
            for who, c, outcome, swapped, time in said
        ],
    )  # fmt: skip
    assert asked == ["c0", "c1", "c2", "c3"]
    found = annotator_figures(db)
    ann, idle = found["ann"], found["idle"]
    assert (ann.judgments, ann.decided, ann.tie_rate, ann.both_bad_rate) == (4, 3, 0.25, 0)
    assert ann.left_rate == pytest.approx(2 / 3)
    assert ann.left_interval == pytest.approx(wilson(2 / 3, 3))
    # 1, 2, 3, 4 s: the median 2.5, the 10% quantile .3 of the way from 1 to 2
    assert (ann.median_seconds, ann.quick_seconds) == (2.5, pytest.approx(1.3))
    # ann: c0 agrees with bob, not with eve (½); c1 not with bob (0); c2 with both (1)
    assert (ann.shared_items, ann.agreement) == (3, pytest.approx(0.5))
    # Prompt p0 has c0 and c1, residuals ½ − ½ + 0 − ½ = −½; p1 has c2 with +½: squares ½.
    # Five single answers; 2/1 · ½ / 9 = 1/9; .25 · 9 = 2.25 answers, with t(1) = 12.706
    assert ann.agreement_interval == pytest.approx(wilson(0.5, 2.25, 12.7062), abs=1e-5)
    assert found["eve"].both_bad_rate == 0.5
    assert found["eve"].median_seconds is None
    assert (idle.judgments, idle.left_rate, idle.tie_rate, idle.agreement) == (0, None, None, None)
    assert (idle.shared_items, idle.left_interval, idle.agreement_interval) == (0, None, None)


def test_a_side_presser_shows_and_nobody_is_left_out(db: Database) -> None:
    people(db, "left", "blind")
    asked = pairs(db, 200)
    rng = np.random.default_rng(0)
    swapped = {c: bool(rng.random() < 0.5) for c in asked}
    store(
        db,
        [
            Judgment(id=f"{who}-{c}", comparison=c, annotator=who, shown_swapped=swapped[c],
                     outcome="first" if (who == "blind" and rng.random() < 0.5)
                     or (who == "left" and not swapped[c]) else "second")
            for c in asked for who in ("left", "blind")
        ],
    )  # fmt: skip
    found = annotator_figures(db)
    assert set(found) == {"left", "blind"}
    assert found["left"].left_rate == 1
    assert found["left"].left_interval[0] > 0.97  # type: ignore[index]
    low, high = found["blind"].left_interval or ()
    assert low < 0.5 < high


def test_models_are_measured_against_people_and_are_not_the_others(db: Database) -> None:
    people(db, "ann", "bob")
    people(db, "judge", kind="model")
    pairs(db, 2)
    said = [("ann", "c0", "first"), ("bob", "c0", "first"), ("judge", "c0", "second"),
            ("ann", "c1", "tie"), ("judge", "c1", "second")]  # fmt: skip
    store(db, [judgment(c, who, outcome) for who, c, outcome in said])
    found = annotator_figures(db)
    assert (found["ann"].shared_items, found["ann"].agreement) == (1, 1.0)
    assert (found["judge"].shared_items, found["judge"].agreement) == (2, 0.0)
    both = annotator_figures(db, kinds=("person", "model"))
    # c0: bob agrees, the judge does not (½); c1: the judge does not (0)
    assert (both["ann"].shared_items, both["ann"].agreement) == (2, 0.25)


@pytest.mark.parametrize(
    ("matched", "answered", "usual_matched", "usual_answered", "below"),
    [
        (0, 1, 1, 1, False),  # p = 1/2
        (0, 1, 200, 200, False),  # 1/201
        (0, 2, 100, 100, True),  # 1/(102 · 101 / 2)
        (0, 6, 9, 10, True),  # .00087
        (1, 6, 9, 10, False),  # .0076
        (9, 10, 9, 10, False),
        (0, 3, 0, 3, False),
        (4000, 10000, 9000, 10000, True),
    ],
)
def test_a_share_is_clearly_below_by_fishers_exact_test(
    matched: int, answered: int, usual_matched: int, usual_answered: int, below: bool
) -> None:
    """The limit is .00135; `scipy.stats.hypergeom.cdf` is an independent computation of p."""
    trials, hits = answered + usual_answered, matched + usual_matched
    p = hypergeom.cdf(matched, trials, hits, answered)
    assert (p < 0.0013499) == below
    assert clearly_below(matched, answered, usual_matched, usual_answered) == below


def test_agreement_intervals_cover_under_clusters_of_prompts() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(1000):
        # 60 prompts with 1 to 5 items; a prompt's own chance of agreement is Beta(3, 1.5)
        sizes = rng.integers(1, 6, size=60)
        chances = rng.beta(3, 1.5, size=60)
        hits = rng.binomial(sizes, chances).astype(float)
        n = sizes.sum()
        share = hits.sum() / n
        squares = float(((hits - share * sizes) ** 2).sum())
        low, high = (
            clustered(share, cluster_variance(squares, n=n, clusters=60), clusters=60, most=n) or ()
        )
        covered += low <= 3 / 4.5 <= high
    assert 0.93 <= covered / 1000 <= 0.965


def test_what_the_newest_reward_model_says_of_annotators(db: Database) -> None:
    assert annotator_fit(db) is None
    old = ModelVersion(id="r1", role="reward", name="r1", created_at=NOON, summary={
        "annotators": [{"annotator": "ann", "slope": 0.2}], "expected_agreement": 0.5})  # fmt: skip
    db.write(lambda tx: tx.store(old))
    assert annotator_fit(db).by_annotator["ann"].slope_sd is None  # type: ignore[union-attr]
    row = {"annotator": "ann", "slope": 1.2, "slope_sd": 0.1, "side_bias": 0.3,
           "side_bias_sd": 0.2, "weight": 1.44, "judgments": 60, "new_field": 1}  # fmt: skip
    summary = {"annotators": [row], "expected_agreement": 0.61}
    later = ModelVersion(id="r2", role="reward", name="r2", created_at=NOON + timedelta(hours=1),
                         summary=summary)  # fmt: skip
    db.write(lambda tx: tx.store(later))
    found = annotator_fit(db)
    assert found is not None
    assert found.expected_agreement == 0.61
    ann = found.by_annotator["ann"]
    assert (ann.slope, ann.weight) == (1.2, 1.44)
    plain = ModelVersion(id="r3", role="reward", name="r3", created_at=NOON + timedelta(hours=2))
    db.write(lambda tx: tx.store(plain))
    assert annotator_fit(db) is None


def test_a_mean_of_shared_pairs_knows_no_more_than_its_single_answers(db: Database) -> None:
    people(db, "ann", "bob", "eve")
    pairs(db, 30)
    said = {
        "ann": ["first"] * 30,
        "bob": ["second", *["first"] * 29],
        "eve": ["second", "first", *["second"] * 28],
    }
    store(db, [judgment(f"c{n}", who, o) for who, all_ in said.items() for n, o in enumerate(all_)])
    found = annotator_figures(db)["ann"]
    # ½ on 28 pairs, 0 on one, 1 on one: 60 answers, and t of 29 degrees of freedom.
    assert found.agreement == pytest.approx(0.5)
    assert found.agreement_interval == pytest.approx(wilson(0.5, 60, 2.04523), abs=1e-4)


# One's own


def own(db: Database, who: str = "ann", midnight: datetime = MIDNIGHT) -> dict[str, Any]:
    return asdict(own_figures(db, who, midnight=midnight))


def yesterday(db: Database, outcomes: dict[str, list[str]]) -> None:
    said = [
        judgment(f"c{n}", who, outcome, created_at=MIDNIGHT - timedelta(hours=9, minutes=-n))
        for who, given in outcomes.items()
        for n, outcome in enumerate(given)
    ]
    store(db, said)


def test_own_figures_by_hand(db: Database) -> None:
    people(db, "ann", "bob")
    pairs(db, 30)
    yesterday(db, {"ann": ["first"] * 20, "bob": ["first"] * 15 + ["tie"] * 5})
    store(db, [judgment("c20", "ann", "tie", created_at=NOON, milliseconds=5000)])
    assert own(db) == {
        "judgments": 21, "today": 1, "decided": 20, "left_rate": 1.0,
        "tie_rate": pytest.approx(1 / 21), "both_bad_rate": 0, "median_seconds": 5.0,
        "shared_pairs": 20, "agreement": 0.75,
    }  # fmt: skip
    assert own(db, "nobody") == {
        "judgments": 0, "today": 0, "decided": None, "left_rate": None, "tie_rate": None,
        "both_bad_rate": None, "median_seconds": None, "shared_pairs": 0, "agreement": None,
    }  # fmt: skip


def test_agreement_tells_nothing_of_a_single_pair(db: Database) -> None:
    people(db, "ann", "bob")
    pairs(db, 60)
    yesterday(db, {"ann": ["first"] * 19, "bob": ["first"] * 19})
    assert (own(db)["shared_pairs"], own(db)["agreement"]) == (0, None)
    yesterday_more = MIDNIGHT - timedelta(minutes=30)
    said = [judgment("c19", who, "first", created_at=yesterday_more) for who in ("ann", "bob")]
    store(db, said)
    before = own(db)
    # twenty agree, and that all do is not said: it would tell bob's answer to every pair
    assert (before["shared_pairs"], before["agreement"]) == (20, 0.95)
    # one more pair, today or yesterday, changes nothing that could be looked up
    store(db, [judgment("c20", who, "first", created_at=NOON) for who in ("ann", "bob")])
    shown = own(db)
    assert (shown["shared_pairs"], shown["agreement"]) == (20, 0.95)
    tomorrow = own(db, midnight=MIDNIGHT + timedelta(days=1))
    assert (tomorrow["shared_pairs"], tomorrow["agreement"]) == (20, 0.95)


def test_what_another_says_today_is_not_counted_today(db: Database) -> None:
    people(db, "ann", "bob")
    pairs(db, 40)
    yesterday(db, {"ann": ["first"] * 40, "bob": ["first"] * 10 + ["second"] * 10})
    before = own(db)
    today = [judgment(f"c{n}", "bob", "first", created_at=NOON) for n in range(20, 40)]
    store(db, today)
    assert own(db) == before
    after = own(db, midnight=MIDNIGHT + timedelta(days=1))
    assert (before["agreement"], after["agreement"], after["shared_pairs"]) == (0.5, 0.75, 40)


def test_a_late_answer_to_an_old_pair_of_his_joins_the_next_block(db: Database) -> None:
    people(db, "ann", "bob")
    pairs(db, 40)
    old = judgment("c30", "ann", "first", created_at=MIDNIGHT - timedelta(hours=20))
    store(db, [old])
    yesterday(db, {"ann": ["first"] * 20, "bob": ["second"] * 10 + ["first"] * 10})
    before = own(db)
    # Were it counted by when ann said it, it would push the last of the twenty out, where they agree.
    store(db, [judgment("c30", "bob", "second", created_at=NOON)])
    tomorrow = own(db, midnight=MIDNIGHT + timedelta(days=1))
    assert (before["shared_pairs"], before["agreement"]) == (20, 0.5)
    assert (tomorrow["shared_pairs"], tomorrow["agreement"]) == (20, 0.5)


def test_revising_an_answer_does_not_probe_the_others(db: Database) -> None:
    people(db, "ann", "bob")
    pairs(db, 60)
    yesterday(db, {"ann": ["first"] * 39, "bob": ["first"] * 10 + ["second"] * 29})
    before = own(db)
    assert (before["shared_pairs"], before["agreement"]) == (20, 0.5)
    revised = judgment("c0", "ann", "second", id="again", replaces="j-c0-ann", created_at=NOON)
    store(db, [revised])
    again = judgment("c0", "ann", "tie", id="back", replaces="again", created_at=NOON)
    for retries in ([], [again]):
        store(db, retries)
        for days in range(3):  # not today, and on no later day
            after = own(db, midnight=MIDNIGHT + timedelta(days=days))
            assert (after["shared_pairs"], after["agreement"]) == (20, 0.5)


def test_undoing_an_answer_does_not_probe_the_others(db: Database) -> None:
    people(db, "ann", "bob")
    pairs(db, 44)
    yesterday(db, {"ann": ["first"] * 44, "bob": ["first"] * 20 + ["second"] * 24})
    # The first forty are shown: bob says the same of twenty.
    assert (own(db)["shared_pairs"], own(db)["agreement"]) == (40, 0.5)
    for n in range(24):
        gone = Withdrawal(id=f"w{n}", replaces=f"j-c{n}-ann", annotator="ann", created_at=NOON)
        db.write(lambda tx, gone=gone: tx.store(gone))
        for days in range(2):
            after = own(db, midnight=MIDNIGHT + timedelta(days=days))
            assert (after["shared_pairs"], after["agreement"]) == (40, 0.5)
    assert own(db)["judgments"] == 20  # annotators see their own judgments at once


def test_only_the_last_revision_of_a_day_counts_and_a_withdrawn_judgment_does_not(
    db: Database,
) -> None:
    people(db, "ann", "bob")
    pairs(db, 20)
    yesterday(db, {"ann": ["second"] * 19, "bob": ["first"] * 20})
    late = MIDNIGHT - timedelta(minutes=1)
    revised = [
        judgment(f"c{n}", "ann", "first", id=f"m{n}", replaces=f"j-c{n}-ann", created_at=late)
        for n in range(15)
    ]
    slip = judgment("c19", "ann", "second", created_at=late)
    taken_back = Withdrawal(id="w", replaces=slip.id, annotator="ann", created_at=late)
    db.write(lambda tx: tx.store(*revised, slip, taken_back))
    assert own(db)["shared_pairs"] == 0  # nineteen
    store(db, [judgment("c19", "ann", "first", id="better", created_at=NOON)])
    tomorrow = own(db, midnight=MIDNIGHT + timedelta(days=1))
    assert (tomorrow["shared_pairs"], tomorrow["agreement"]) == (20, 0.8)  # 15 + 1 of 20


def test_own_agreement_knows_items_by_their_texts(db: Database) -> None:
    people(db, "ann", "bob")
    pairs(db, 20)
    turned = [r for n in range(20) for r in pair(f"t{n}", f"y {n}", f"x {n}", prompt=f"p{n}")]
    db.write(lambda tx: tx.store(*turned))
    then = MIDNIGHT - timedelta(hours=1)
    store(db, [judgment(f"c{n}", "ann", "first", created_at=then) for n in range(20)])
    bobs = ["second"] * 12 + ["first"] * 8  # of the turned pairs: "second" is what ann called first
    store(db, [judgment(f"t{n}", "bob", o, created_at=then) for n, o in enumerate(bobs)])
    assert (own(db)["shared_pairs"], own(db)["agreement"]) == (20, 0.6)
