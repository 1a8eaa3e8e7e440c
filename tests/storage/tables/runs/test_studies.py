"""Studies: which one an id means."""

from __future__ import annotations

import pytest

from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import Study, StudyKind
from storage.tables.runs import studies


def test_the_name_of_a_study_is_answered_with_its_ids(db: Database):
    kinds: tuple[tuple[StudyKind, str], ...] = (
        ("sweep", "beta"), ("sweep", "both"), ("compare", "both"),
    )  # fmt: skip
    for kind, name in kinds:
        made = Study(
            id=f"{kind}-{name}", kind=kind, name=name, status="running", repeats="r", iteration=1
        )
        studies.save(db, made)
    assert studies.get(db, "sweep-beta").name == "beta"
    with pytest.raises(NotFound, match=r"there is no study 'beta'; its id is sweep-beta$"):
        studies.get(db, "beta")
    with pytest.raises(
        NotFound, match=r"its id is (compare-both or sweep-both|sweep-both or comp)"
    ):
        studies.get(db, "both")
    with pytest.raises(NotFound, match=r"there is no study 'gamma'$"):
        studies.get(db, "gamma")
