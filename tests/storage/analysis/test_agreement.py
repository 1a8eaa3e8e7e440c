"""Agreement against numbers worked by hand and against the `krippendorff` package."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest

from storage.analysis import agreement_statistics
from storage.analysis.agreement import Agreement, Kappa, agreement
from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.records import Annotator, Judgment, Withdrawal
from tests.helpers.rated import judgment, pair

OUTCOMES = ("first", "second", "tie", "both_bad")
NOTHING = Agreement(items=0, kappas=[])


def rate(db: Database, ratings: dict[str, list[str | None]], *, iteration: int = 1) -> None:
    """Store one comparison for each place in the lists and what each annotator said of it."""
    records: list[Any] = []
    for n in range(max(map(len, ratings.values()))):
        records += pair(
            f"c-{iteration}-{n}", f"one {iteration}.{n}", f"other {n}", iteration=iteration
        )
    for name, outcomes in ratings.items():
        records.append(Annotator(id=f"id-{name}", name=name))
        for n, outcome in enumerate(outcomes):
            if outcome is not None:
                said = judgment(f"c-{iteration}-{n}", f"id-{name}", outcome)
                # Sides differ between annotators: only canonical outcomes may count.
                records.append(replace(said, shown_swapped=name > "b"))
    db.write(lambda tx: tx.store(*records))


def test_two_annotators_by_hand(db: Database) -> None:
    # ten items; they agree on 4 first, 3 second, 1 tie; differ on one first/second, one tie/second
    ann = ["first"] * 5 + ["second"] * 3 + ["tie"] * 2
    bob = ["first"] * 4 + ["second"] * 4 + ["tie", "second"]
    rate(db, {"ann": ann, "bob": bob})
    found = agreement(db)
    assert found.items == 10
    # percent: 8 of 10 items agree
    assert found.percent == pytest.approx(0.8)
    # kappa: chance = (5·4 + 3·5 + 2·1) / 10² = .37, (.8 − .37) / (1 − .37) = .43 / .63
    [kappa] = found.kappas
    low, high = kappa.interval or ()
    assert (kappa.annotators, kappa.items) == (["ann", "bob"], 10)
    assert kappa.kappa == pytest.approx(0.43 / 0.63)
    assert low < 0.43 / 0.63 < high
    # alpha: 20 ratings, first 9, second 8, tie 3; disagreement expected by chance
    # 1 − (9·8 + 8·7 + 3·2) / (20·19) = 1 − 134/380 = 246/380; alpha = 1 − .2 / (246/380)
    assert found.alpha == pytest.approx(1 - 0.2 / (246 / 380))


def test_items_judged_by_more_people_weigh_more(db: Database) -> None:
    # item 0 by three: first first second → 2 of 6 ordered pairs agree, /(3−1) → g = 1 of n = 3
    # item 1 by two: tie tie → g = 2 of n = 2; item 2 by one person: not an item
    ratings = {
        "ann": ["first", "tie", "second"],
        "bob": ["first", "tie", None],
        "eve": ["second", None, None],
    }
    rate(db, ratings)  # type: ignore[arg-type]
    found = agreement(db)
    assert found.items == 2
    assert found.percent == pytest.approx(3 / 5)
    # expected disagreement: first 2, tie 2, second 1 of 5 → 1 − (2 + 2 + 0) / 20 = .8
    assert found.alpha == pytest.approx(1 - 0.4 / 0.8)
    pairs = [["ann", "bob"], ["ann", "eve"], ["bob", "eve"]]
    assert [each.annotators for each in found.kappas] == pairs


def test_without_overlap_nothing_is_known(db: Database) -> None:
    rate(db, {"ann": ["first", None], "bob": [None, "tie"]})
    assert agreement(db) == NOTHING


def test_one_category_only_leaves_chance_corrections_undefined(db: Database) -> None:
    rate(db, {"ann": ["first"] * 3, "bob": ["first"] * 3})
    kappa = Kappa(annotators=["ann", "bob"], kappa=None, interval=None, items=3)
    assert agreement(db) == Agreement(items=3, percent=1.0, kappas=[kappa])


def test_total_disagreement_is_counted_too(db: Database) -> None:
    # no item agrees, so the sum over agreeing cells is empty: chance (1·1 + 1·1)/4 = .5
    rate(db, {"ann": ["first", "second"], "bob": ["second", "first"]})
    assert [each.kappa for each in agreement(db).kappas] == [pytest.approx(-1.0)]
    assert agreement(db).percent == 0.0


def test_only_current_judgments_of_the_iteration_count(db: Database) -> None:
    rate(db, {"ann": ["first", "tie"], "bob": ["second", "tie"]})
    rate(db, {"ann": ["first"], "bob": ["second"]}, iteration=2)
    revision = Judgment(
        id="again",
        comparison="c-1-0",
        annotator="id-bob",
        outcome="first",
        shown_swapped=False,
        replaces="j-c-1-0-id-bob",
    )
    db.write(lambda tx: tx.store(revision))
    assert agreement(db, iteration=1).percent == 1.0
    assert agreement(db, iteration=2).percent == 0.0
    assert agreement(db).items == 3
    db.write(lambda tx: tx.store(Withdrawal(id="w", replaces="again", annotator="id-bob")))
    assert agreement(db, iteration=1).items == 1


def test_a_model_that_judges_is_in_the_kappas_alone(db: Database) -> None:
    ann, bob = ["first", "second", "tie", "first"], ["first", "second", "tie", "second"]
    rate(db, {"ann": ann, "bob": bob})  # type: ignore[arg-type]
    alone = agreement(db)
    rate(db, {"judge": ["second"] * 4})
    db.write(lambda tx: tx.store(Annotator(id="id-judge", name="judge", kind="model")))
    found = agreement(db)
    assert replace(found, kappas=alone.kappas) == alone
    assert found.percent == 0.75
    assert [each.annotators for each in found.kappas] == [
        ["ann", "bob"], ["ann", "judge"], ["bob", "judge"],
    ]  # fmt: skip


def test_the_interval_of_kappa_is_what_items_drawn_again_spread_by() -> None:
    confusion = np.array([[120, 20, 10, 0], [15, 90, 15, 0], [5, 10, 115, 0], [0, 0, 0, 0]])
    coin = np.random.default_rng(0)
    drawn = coin.multinomial(400, confusion.ravel() / 400, size=20_000).reshape(-1, 4, 4)
    spread, _ = agreement_statistics.kappas(drawn)
    [value], [interval] = agreement_statistics.kappas(confusion[None])
    # .8125 agree; chance is (150 · 140 + 120 · 120 + 130 · 140)/400² = .335.
    assert value == pytest.approx((0.8125 - 0.335) / 0.665)
    assert interval == pytest.approx(np.quantile(spread, [0.025, 0.975]), abs=0.005)
    few = np.array([[3, 1, 0, 0], [1, 3, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])
    _, [nine] = agreement_statistics.kappas(few[None])
    _, [ten] = agreement_statistics.kappas((few + np.diag([0, 0, 1, 0]))[None])
    assert (nine, ten is None) == (None, False)
    assert agreement_statistics.kappas(np.diag([30, 3, 3, 0])[None]) == ([1.0], [None])  # no spread


RANK = np.array([2.0, 0.0, 1.0, 1.0])
"""The level of each of `OUTCOMES`: second < tie < first, both_bad as tie."""


def random_table(generator: np.random.Generator, raters: int, items: int) -> np.ndarray:
    """Codes of outcomes, (raters, items), with places nobody filled; some outcomes never used."""
    used = generator.choice(4, size=generator.integers(2, 5), replace=False)
    truth = generator.choice(used, size=items)
    table = np.full((raters, items), np.nan)
    for row in table:
        noise = generator.random(items) < generator.uniform(0, 0.9)
        given = generator.random(items) < generator.uniform(0.3, 1)
        said = np.where(noise, generator.choice(used, size=items), truth)
        row[given] = said[given]
    return table


def oracle(table: np.ndarray, level: str) -> float | None:
    """Krippendorff's alpha by the package; None where it finds a single category."""
    ranks = (
        table if level == "nominal" else np.where(np.isnan(table), np.nan, RANK[as_codes(table)])
    )
    used = ranks[:, (~np.isnan(ranks)).sum(axis=0) >= 2]
    if len(np.unique(used[~np.isnan(used)])) < 2:
        return None
    return krippendorff.alpha(ranks, level_of_measurement=level)


def as_codes(table: np.ndarray) -> np.ndarray:
    return np.nan_to_num(table).astype(int)


def as_patterns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts of second, tie, first and both_bad an item; and how many items have them."""
    counts = np.stack([(table == OUTCOMES.index(o)).sum(axis=0) for o in PATTERN], axis=1)
    return np.unique(counts[counts.sum(axis=1) >= 2], axis=0, return_counts=True)


PATTERN = ("second", "tie", "first", "both_bad")


def test_alphas_equal_the_krippendorff_package_on_random_tables() -> None:
    generator = np.random.default_rng(11)
    compared = 0
    for _ in range(300):
        table = random_table(generator, generator.integers(2, 7), generator.integers(3, 80))
        counts, items = as_patterns(table)
        if not len(items):
            continue
        found = agreement_statistics.agreement(counts, items)
        for name, level in (("alpha", "nominal"), ("alpha_ordinal", "ordinal")):
            expected = oracle(table, level)
            if expected is None:
                assert found[name] is None
            else:
                assert found[name] == pytest.approx(expected, abs=1e-10)
                compared += 1
    assert compared > 500


def test_agreement_from_the_database_equals_the_packages(db: Database) -> None:
    table = random_table(np.random.default_rng(7), 5, 300)
    rate(
        db,
        {
            f"annotator{n}": [None if np.isnan(code) else OUTCOMES[int(code)] for code in row]
            for n, row in enumerate(table)
        },
    )
    found = agreement(db)
    for level, alpha, interval in (
        ("nominal", found.alpha, found.alpha_interval),
        ("ordinal", found.alpha_ordinal, found.alpha_ordinal_interval),
    ):
        assert alpha == pytest.approx(oracle(table, level), abs=1e-10)
        low, high = interval or ()
        assert low < alpha < high
    for kappa in found.kappas:
        both = table[[int(name[-1]) for name in kappa.annotators]]
        shared = both[:, ~np.isnan(both).any(axis=0)]
        assert kappa.kappa == pytest.approx(_cohen(shared), abs=1e-12)
        assert kappa.items == shared.shape[1]


def test_ordinal_alpha_by_hand() -> None:
    # Three items of two raters: second/second, tie/first, first/both_bad.  Levels: second 2,
    # tie 2 (one of them both_bad), first 2, n = 6.  Distances: second-tie ((2+2)/2)² = 4,
    # tie-first 4, second-first (1 + 2 + 1)² = 16.  Seen: two items disagree tie-first, each twice
    # in the coincidences: 4 · 4 / 6 = 16/6.  Expected: 2·(2·2·4 + 2·2·4 + 2·2·16) / (6·5) = 192/30.
    counts = np.array([[2, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    found = agreement_statistics.agreement(counts, np.array([1, 1, 1]))
    assert found["alpha_ordinal"] == pytest.approx(1 - (16 / 6) / (192 / 30))
    # Nominal keeps both_bad apart: 1 of 3 items agrees; by chance 1 − (2 + 2) / 30.
    assert found["alpha"] == pytest.approx(1 - (2 / 3) / (26 / 30))


# Intervals


def test_a_draw_over_the_patterns_is_a_bootstrap_of_the_items() -> None:
    generator = np.random.default_rng(3)
    table = random_table(generator, 3, 200)
    counts, items = as_patterns(table)
    found = agreement_statistics.intervals(counts, items, draws=4000)
    rated = table[:, (~np.isnan(table)).sum(axis=0) >= 2]
    drawn = [
        krippendorff.alpha(
            rated[:, generator.integers(0, rated.shape[1], rated.shape[1])],
            level_of_measurement="nominal",
        )
        for _ in range(1500)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found["alpha"] == pytest.approx([low, high], abs=0.15 * (high - low))


def test_intervals_are_the_same_for_the_same_table() -> None:
    counts, items = np.array([[1, 0, 1, 0], [0, 0, 2, 0], [2, 0, 0, 0]]), np.array([9, 20, 11])
    found = agreement_statistics.intervals(counts, items)
    found["percent"] = None  # the caller's copy
    assert agreement_statistics.intervals(counts, items)["percent"]
    assert agreement_statistics.intervals(counts, items, seed=1) != agreement_statistics.intervals(
        counts, items
    )
    # 20 + 11 of 40 items agree: .775, and a standard error of √(.775 · .225 / 40) = .066
    low, high = agreement_statistics.intervals(counts, items)["percent"] or ()
    assert (low, high) == (pytest.approx(0.775 - 1.96 * 0.066, abs=0.03),
                           pytest.approx(0.775 + 1.96 * 0.066, abs=0.03))  # fmt: skip


def test_too_few_items_or_no_spread_give_no_interval() -> None:
    mixed = np.array([[1, 0, 1, 0], [0, 0, 2, 0]])
    assert agreement_statistics.intervals(mixed, np.array([4, 5]))["percent"] is None
    assert agreement_statistics.intervals(mixed, np.array([4, 6]))["percent"] is not None
    agreed = np.array([[2, 0, 0, 0], [0, 0, 2, 0]])
    assert agreement_statistics.intervals(agreed, np.array([20, 20])) == dict.fromkeys(
        agreement_statistics.FIGURES
    )


def test_intervals_cover_what_many_items_would_show() -> None:
    generator = np.random.default_rng(5)
    # Truth: three raters; an item is clear (all hit its outcome .9) or not (they guess).
    truth = agreement_statistics.agreement(*as_patterns(three_raters(generator, 400_000)))
    covered = dict.fromkeys(agreement_statistics.FIGURES, 0)
    for _ in range(400):
        found = agreement_statistics.intervals(
            *as_patterns(three_raters(generator, 120)), draws=400
        )
        for name, (low, high) in found.items():  # type: ignore[misc]
            covered[name] += low <= truth[name] <= high
    for name, times in covered.items():
        assert 0.92 < times / 400 < 0.975, name  # 95% ± 2.5 standard errors of 400 trials


def three_raters(generator: np.random.Generator, items: int) -> np.ndarray:
    best = generator.choice([0, 1, 2], p=[0.4, 0.4, 0.2], size=items)
    clear = generator.random(items) < 0.6
    hit = (generator.random((3, items)) < 0.9) & clear
    table = np.where(hit, best * 1.0, generator.choice(4, p=[0.4, 0.4, 0.1, 0.1], size=(3, items)))
    table[2, generator.random(items) < 0.2] = np.nan
    return table


# Items


def twins(db: Database, *, item: str | None = None) -> None:
    """ "good" against "bad" for one prompt, in iteration 1 and, the other way round, in 2."""
    people = [Annotator(id=f"id-{name}", name=name) for name in ("ann", "bob", "eve")]
    db.write(lambda tx: tx.store(*people, *pair("c-1", "good", "bad", iteration=1)))
    db.write(lambda tx: tx.store(*pair("c-2", "bad", "good", iteration=2, item=item)))


def test_the_same_two_responses_in_either_order_are_one_item(db: Database) -> None:
    twins(db)
    said = [judgment("c-1", "id-ann", "first"), judgment("c-2", "id-bob", "second")]
    db.write(lambda tx: tx.store(*said))
    assert (agreement(db).items, agreement(db).percent) == (1, 1.0)  # both prefer "good"
    db.write(lambda tx: tx.store(judgment("c-2", "id-eve", "first")))
    assert (agreement(db).items, agreement(db).percent) == (1, pytest.approx(1 / 3))
    assert agreement(db, iteration=1).items == 0


def test_an_item_has_one_rating_of_an_annotator_the_latest(db: Database) -> None:
    twins(db)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    said = [
        judgment("c-1", "id-ann", "second", created_at=late),
        judgment("c-2", "id-ann", "second", created_at=early),
        judgment("c-1", "id-bob", "second", created_at=early),
    ]
    db.write(lambda tx: tx.store(*said))
    assert (agreement(db).items, agreement(db).percent) == (1, 1.0)


def test_ties_do_not_turn_with_the_sides(db: Database) -> None:
    twins(db)
    said = [judgment("c-1", "id-ann", "tie"), judgment("c-2", "id-bob", "tie"),
            judgment("c-2", "id-eve", "both_bad")]  # fmt: skip
    db.write(lambda tx: tx.store(*said))
    assert agreement(db).percent == pytest.approx(1 / 3)


def test_both_bad_does_not_turn_either(db: Database) -> None:
    twins(db)
    said = [judgment("c-1", "id-ann", "both_bad"), judgment("c-2", "id-bob", "both_bad")]
    db.write(lambda tx: tx.store(*said))
    assert (agreement(db).items, agreement(db).percent) == (1, 1.0)


def test_an_imported_item_keeps_equal_texts_apart(db: Database) -> None:
    twins(db, item="7")
    said = [judgment("c-1", "id-ann", "first"), judgment("c-2", "id-bob", "second")]
    db.write(lambda tx: tx.store(*said))
    assert agreement(db).items == 0


def test_another_prompt_with_the_same_answers_is_another_item(db: Database) -> None:
    people = [Annotator(id=name, name=name) for name in ("ann", "bob")]
    pairs = [*pair("c-1", "yes", "no", prompt="p"), *pair("c-2", "yes", "no", prompt="q")]
    said = [judgment("c-1", "ann", "first"), judgment("c-2", "bob", "first")]
    db.write(lambda tx: tx.store(*people, *pairs, *said))
    assert agreement(db).items == 0


FIRST_VIEW = """
CREATE VIEW current_judgments AS
    SELECT j.* FROM judgments AS j
    ANTI JOIN judgments AS later ON later.replaces = j.id
    ANTI JOIN withdrawals AS w ON w.replaces = j.id
"""
"""As the first migration makes it."""


def test_items_of_an_older_workspace_and_of_a_rebuilt_one_are_found(tmp_path: Path) -> None:
    with Database.open(tmp_path / "w") as db:
        twins(db)
        said = [judgment("c-1", "id-ann", "first"), judgment("c-2", "id-bob", "second")]
        db.write(lambda tx: tx.store(*said))
        rows = "SELECT * FROM items ORDER BY comparison"
        noted = db.read(rows)
        assert [row["twin"] for row in noted] == [True, True]
        db.write(lambda tx: tx.execute("DROP TABLE items"))
        for later in (
            "predictions",
            "gate_overrides",
            "flag_answers",
            "follow_ups",
            "exclusions",
            "adjudication_requests",
            "adjudications",
            "prompt_edits",
            *("events", "webhooks", "deliveries", "linked_identities", "audit_log", "run_labels"),
            *("studies", "study_runs", "last_metrics"),
        ):
            db.write(lambda tx, later=later: tx.execute(f"DROP TABLE {later}"))
        for acts in ("judgments", "skips", "flags"):
            db.write(lambda tx, acts=acts: tx.execute(f"ALTER TABLE {acts} DROP COLUMN seq"))
        for later in ("guidelines", "reasons", "safety", "edit", "marks"):
            sql = f"ALTER TABLE judgments DROP COLUMN {later}"
            db.write(lambda tx, sql=sql: tx.execute(sql))
        for later in ("started_at", "seconds"):
            sql = f"ALTER TABLE runs DROP COLUMN {later}"
            db.write(lambda tx, sql=sql: tx.execute(sql))
        for later in (
            "VIEW rulings",
            "VIEW retired_prompts",
            "TABLE checks",
            "VIEW standing_judgments",
            "VIEW current_judgments",
        ):
            db.write(lambda tx, later=later: tx.execute(f"DROP {later}"))
        db.write(lambda tx: tx.execute(FIRST_VIEW))
        for column in ("conversation", "turn"):
            db.write(lambda tx, c=column: tx.execute(f"ALTER TABLE comparisons DROP COLUMN {c}"))
        db.write(lambda tx: tx.execute("DELETE FROM migrations WHERE name <> 'm001_initial'"))
    with Database.open(tmp_path / "w") as db:
        assert db.read(rows) == noted
    rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as db:
        assert db.read(rows) == noted
        assert agreement(db).percent == 1.0


@pytest.mark.parametrize(("items", "low"), [(9, None), (12, 0.7575)])
def test_items_that_all_agree_have_wilsons_interval(db: Database, items: int, low: float | None):
    """With all of n in agreement, its lower end is n / (n + 1.96²)."""
    rate(db, {"a": ["first"] * items, "b": ["first"] * items})
    found = agreement(db)
    assert (found.items, found.percent) == (items, 1.0)
    assert found.alpha_interval is None
    if low is None:
        assert found.percent_interval is None
    else:
        assert found.percent_interval == pytest.approx([low, 1.0], abs=1e-4)


def _cohen(pair: np.ndarray) -> float:
    """Kappa from the confusion matrix, as textbooks draw it."""
    confusion = np.zeros((4, 4))
    for x, y in pair.T.astype(int):
        confusion[x, y] += 1
    confusion /= confusion.sum()
    chance = confusion.sum(axis=0) @ confusion.sum(axis=1)
    return (np.trace(confusion) - chance) / (1 - chance)
