"""The commands on judgments: list, show, exclude and restore.  Arguments and results are JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from storage.browsing.judgments import PAGE, Filter, Listing, browse
from storage.browsing.pair import PairInFull, pair_in_full, pair_of
from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import exclusions
from storage.records import Arm, Exclusion, Outcome
from storage.tables import annotators


def judgment_commands(db: Database) -> dict[str, Callable[..., Any]]:
    """The commands by name."""

    def listing(
        annotator: str | None = None,
        arm: Arm | None = None,
        outcome: Outcome | None = None,
        category: str | None = None,
        iteration: int | None = None,
        text: str = "",
        disagreement: bool | None = None,
        surprise: bool | None = None,
        flagged: bool | None = None,
        commented: bool | None = None,
        excluded: bool | None = None,
        before: str | None = None,
        limit: int = PAGE,
    ) -> Listing:
        """`annotator` is a name; the rest is as for `browse`."""
        wanted = Filter(
            annotator=None if annotator is None else _id_of(db, annotator),
            arm=arm, outcome=outcome, category=category, iteration=iteration, text=text,
            disagreement=disagreement, surprise=surprise, flagged=flagged, commented=commented,
            excluded=excluded,
        )  # fmt: skip
        return browse(db, wanted, before=before, limit=limit)

    def show(id: str) -> PairInFull:
        return pair_in_full(db, pair_of(db, id))

    def exclude(id: str, reason: str) -> dict[str, Any]:
        return _stored(exclusions.exclude(db, id, reason=reason))

    def restore(id: str, reason: str = "") -> dict[str, Any]:
        return _stored(exclusions.restore(db, id, reason=reason))

    return {
        "judgments.list": listing,
        "judgments.show": show,
        "judgments.exclude": exclude,
        "judgments.restore": restore,
    }


def _id_of(db: Database, name: str) -> str:
    found = annotators.by_name(db, name)
    if found is None:
        known = ", ".join(a.name for a in annotators.listing(db)) or "nobody"
        raise NotFound(f"there is no annotator called {name!r}; there are: {known}")
    return found.id


def _stored(made: Exclusion) -> dict[str, Any]:
    return dataclasses.asdict(made) | {"created_at": made.created_at.isoformat()}
