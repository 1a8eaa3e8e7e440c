"""Agreement against numbers worked by hand and against the `krippendorff` package."""

from __future__ import annotations

from typing import Any

import krippendorff
import numpy as np
import pytest

from storage.agreement import agreement, agreement_by_id
from storage.database import Database
from storage.records import Annotator, Comparison, Completion, Judgment, Withdrawal

OUTCOMES = ("first", "second", "tie", "both_bad")


def rate(db: Database, ratings: dict[str, list[str | None]], *, iteration: int = 1) -> None:
    """Store one comparison for each place in the lists and what each annotator said of it."""
    records: list[Any] = []
    for name, outcomes in ratings.items():
        records.append(Annotator(id=f"id-{name}", name=name))
        for n, outcome in enumerate(outcomes):
            pair = f"c-{iteration}-{n}"
            records.append(
                Comparison(
                    id=pair, prompt="p", first="f", second="s", iteration=iteration, arm="random"
                )
            )
            if outcome is not None:
                records.append(
                    Judgment(
                        id=f"j-{iteration}-{name}-{n}",
                        comparison=pair,
                        annotator=f"id-{name}",
                        outcome=outcome,  # type: ignore[arg-type]
                        # Sides differ between annotators: only canonical outcomes may count.
                        shown_swapped=name > "b",
                    )
                )
    answers = [Completion(id=id, prompt="p", policy="m", text=id) for id in "fs"]
    db.write(lambda tx: tx.store(*answers, *records))


def test_two_annotators_by_hand(db: Database) -> None:
    # ten items; they agree on 4 first, 3 second, 1 tie; differ on one first/second, one tie/second
    ann = ["first"] * 5 + ["second"] * 3 + ["tie"] * 2
    bob = ["first"] * 4 + ["second"] * 4 + ["tie", "second"]
    rate(db, {"ann": ann, "bob": bob})
    found = agreement(db)
    assert found["items"] == 10
    # percent: 8 of 10 items agree
    assert found["percent"] == pytest.approx(0.8)
    # kappa: chance = (5·4 + 3·5 + 2·1) / 10² = .37, (.8 − .37) / (1 − .37) = .43 / .63
    assert found["kappa"] == {"ann|bob": pytest.approx(0.43 / 0.63)}
    # alpha: 20 ratings, first 9, second 8, tie 3; disagreement expected by chance
    # 1 − (9·8 + 8·7 + 3·2) / (20·19) = 1 − 134/380 = 246/380; alpha = 1 − .2 / (246/380)
    assert found["alpha"] == pytest.approx(1 - 0.2 / (246 / 380))


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
    assert found["items"] == 2
    assert found["percent"] == pytest.approx(3 / 5)
    # expected disagreement: first 2, tie 2, second 1 of 5 → 1 − (2 + 2 + 0) / 20 = .8
    assert found["alpha"] == pytest.approx(1 - 0.4 / 0.8)
    assert set(found["kappa"]) == {"ann|bob", "ann|eve", "bob|eve"}


def test_without_overlap_nothing_is_known(db: Database) -> None:
    rate(db, {"ann": ["first", None], "bob": [None, "tie"]})
    assert agreement(db) == {"items": 0, "percent": None, "alpha": None, "kappa": {}}


def test_one_category_only_leaves_chance_corrections_undefined(db: Database) -> None:
    rate(db, {"ann": ["first"] * 3, "bob": ["first"] * 3})
    assert agreement(db) == {"items": 3, "percent": 1.0, "alpha": None, "kappa": {"ann|bob": None}}


def test_total_disagreement_is_counted_too(db: Database) -> None:
    # no item agrees, so the sum over agreeing cells is empty: chance (1·1 + 1·1)/4 = .5
    rate(db, {"ann": ["first", "second"], "bob": ["second", "first"]})
    assert agreement(db)["kappa"] == {"ann|bob": pytest.approx(-1.0)}
    assert agreement(db)["percent"] == 0.0


def test_only_current_judgments_of_the_iteration_count(db: Database) -> None:
    rate(db, {"ann": ["first", "tie"], "bob": ["second", "tie"]})
    rate(db, {"ann": ["first"], "bob": ["second"]}, iteration=2)
    revision = Judgment(
        id="again",
        comparison="c-1-0",
        annotator="id-bob",
        outcome="first",
        shown_swapped=False,
        replaces="j-1-bob-0",
    )
    db.write(lambda tx: tx.store(revision))
    assert agreement(db, iteration=1)["percent"] == 1.0
    assert agreement(db, iteration=2)["percent"] == 0.0
    assert agreement(db)["items"] == 3
    db.write(lambda tx: tx.store(Withdrawal(id="w", replaces="again", annotator="id-bob")))
    assert agreement(db, iteration=1)["items"] == 1


def test_alpha_matches_the_krippendorff_package(db: Database) -> None:
    generator = np.random.default_rng(7)
    truth = generator.integers(0, 4, size=300)
    ratings: dict[str, list[str | None]] = {}
    table = np.full((5, 300), np.nan)
    for row in range(5):
        noise = generator.random(300) < 0.35
        codes = np.where(noise, generator.integers(0, 4, size=300), truth)
        given = generator.random(300) < 0.6
        table[row] = np.where(given, codes, np.nan)
        said = zip(codes, given, strict=True)
        ratings[f"annotator{row}"] = [OUTCOMES[code] if shown else None for code, shown in said]
    rate(db, ratings)
    oracle = krippendorff.alpha(table, level_of_measurement="nominal")
    found = agreement(db)
    assert found["alpha"] == pytest.approx(oracle, abs=1e-12)
    for one, other, kappa in agreement_by_id(db)["kappas"]:
        pair = table[[int(one[-1]), int(other[-1])]]
        assert kappa == pytest.approx(_cohen(pair[:, ~np.isnan(pair).any(axis=0)]), abs=1e-12)


def _cohen(pair: np.ndarray) -> float:
    """Kappa from the confusion matrix, as textbooks draw it."""
    confusion = np.zeros((4, 4))
    for x, y in pair.T.astype(int):
        confusion[x, y] += 1
    confusion /= confusion.sum()
    chance = confusion.sum(axis=0) @ confusion.sum(axis=1)
    return (np.trace(confusion) - chance) / (1 - chance)
