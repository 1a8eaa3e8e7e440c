"""Exclude all judgments that a filter matches, such as those of an annotator, or restore them."""

from __future__ import annotations

from dataclasses import replace

from storage.browsing.judgments import MAX_PAGE, Filter, browse
from storage.engine.database import Database
from storage.labeling import exclusions


def exclude_all(db: Database, wanted: Filter, *, reason: str, researcher: str = "") -> int:
    """Exclude the judgments that match, and return their number.

    ValueError without a reason, and for a filter that matches every judgment.
    """
    chosen = _matching(db, wanted, excluded=False)
    return exclusions.exclude_each(db, chosen, reason=reason, researcher=researcher)


def restore_all(db: Database, wanted: Filter, *, reason: str = "", researcher: str = "") -> int:
    """Restore the excluded judgments that match, and return their number; see `exclude_all`."""
    chosen = _matching(db, wanted, excluded=True)
    return exclusions.restore_each(db, chosen, reason=reason, researcher=researcher)


def narrows(wanted: Filter) -> bool:
    """Whether a filter chooses some judgments, apart from the excluded ones."""
    return replace(wanted, excluded=None, text=wanted.text.strip()) != Filter()


def _matching(db: Database, wanted: Filter, *, excluded: bool) -> list[str]:
    if not narrows(wanted):
        raise ValueError(
            "set a filter first, such as the annotator; without one, all judgments would change"
        )
    found: list[str] = []
    before = None
    while True:
        page = browse(db, replace(wanted, excluded=excluded), before=before, limit=MAX_PAGE)
        found += [row.id for row in page.rows]
        if page.after is None:
            return found
        before = page.after
