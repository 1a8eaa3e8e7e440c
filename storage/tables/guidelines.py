"""Guidelines for annotators and their versions.

Each judgment has the version that was on the annotator's page.  Every saved text is kept, so that
the text of a version can be read later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from storage.engine.codec import StoredSetting
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.records import digest
from storage.tables import settings

_KEY = "guidelines"
_VERSIONS = """
    SELECT j.guidelines AS version, count(*) AS judgments, min(j.created_at) AS first,
           s.value ->> '$' AS text
    FROM current_judgments AS j LEFT JOIN settings AS s ON s.key = 'guidelines.' || j.guidelines
    WHERE j.guidelines IS NOT NULL GROUP BY 1, 4 ORDER BY first, version
"""


@dataclass(frozen=True, kw_only=True)
class GuidelinesVersion:
    """A version with current judgments; `first` is when the earliest of them was given.

    `text` is None for the default guidelines, for imported judgments, and for a text that was saved
    before versions were kept and replaced since.
    """

    version: str
    judgments: int
    first: datetime
    text: str | None


def current(db: Database, default: str) -> str:
    """The text that annotators see: the one saved last, or `default`."""
    return str(settings.get(db, _KEY, default))


def save(db: Database, text: str) -> None:
    """Show this text to annotators from now on, and keep it as a version."""

    def operation(tx: Transaction) -> None:
        tx.store(StoredSetting(key=f"{_KEY}.{digest(text)}", value=text))
        tx.store(StoredSetting(key=_KEY, value=text))

    db.write(operation)


def versions(db: Database) -> list[GuidelinesVersion]:
    """The versions under which current judgments were given, oldest first."""
    found = [GuidelinesVersion(**row) for row in db.read(_VERSIONS)]
    text = current(db, "")
    return [
        replace(each, text=text) if each.text is None and each.version == digest(text) else each
        for each in found
    ]
