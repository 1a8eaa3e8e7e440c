"""Judgments per hour of work, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from storage.analysis.pace import LEAST, PAUSE, pace
from storage.records import Annotator, new_id
from tests.helpers.rated import judgment, pair

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def judged(db, name, seconds):
    """This person's judgments so many seconds after noon."""
    made = [
        record for n in range(len(seconds)) for record in pair(f"{name}{n}", f"x {n}", f"y {n}")
    ]
    people = [Annotator(id=name, name=name)]
    given = [
        replace(
            judgment(f"{name}{n}", name, "first"),
            id=new_id(),
            created_at=NOON + timedelta(seconds=s),
        )
        for n, s in enumerate(seconds)
    ]
    db.write(lambda tx: tx.store(*people, *made, *given))


def test_pauses_and_equal_times_do_not_count(db):
    # gaps: 20, 40, 30, 10, then a pause, 50, 30: six gaps of 180 s together
    judged(db, "ada", [0, 20, 60, 90, 100, 5000, 5050, 5080])
    judged(db, "imported", [0] * 9)
    judged(db, "few", [10 * n for n in range(LEAST)])  # one gap too few
    judged(db, "slow", [n * PAUSE for n in range(LEAST + 1)])
    judged(db, "slower", [n * (PAUSE + 1) for n in range(LEAST + 1)])
    found = pace(db)
    assert found["ada"] == pytest.approx(6 / 180 * 3600)
    assert found["slow"] == pytest.approx(3600 / PAUSE)
    assert set(found) == {"ada", "slow"}
