"""Guidelines for annotators and their versions.

Guidelines have a text for all languages, and may have others for single languages; together they are
one version.  Each judgment has the version that was on the annotator's page.  Every saved text for all
languages is kept, so that the text of a version can be read later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from storage.engine.codec import StoredSetting
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.records import digest
from storage.tables import settings

_KEY = "guidelines"
_SAVED = """
    SELECT substr(key, 12) AS version, value ->> '$' AS text FROM settings
    WHERE starts_with(key, 'guidelines.') ORDER BY rowid
"""
_TRANSLATIONS = "guidelines_translations"
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


def current(db: Database, default: str, language: str = "") -> str:
    """The text that annotators see who chose `language`: its own, or the one for all, or `default`."""
    own = _translations(db).get(language)
    return own or str(settings.get(db, _KEY, default))


def version(db: Database, default: str) -> str:
    """The version of the guidelines in all languages; `default` is used until a text is saved."""
    return _version(str(settings.get(db, _KEY, default)), _translations(db))


def save(db: Database, text: str, *, language: str = "", default: str = "") -> None:
    """Show this text to annotators from now on, and keep it as a version.

    With a `language`, only to those who chose it; an empty text removes it.  `default` is the text for
    all languages until one is saved.
    """
    translations = _translations(db)
    if language:
        translations = {**translations, language: text}
        translations = {name: each for name, each in translations.items() if each.strip()}
        text = str(settings.get(db, _KEY, default))

    def operation(tx: Transaction) -> None:
        tx.store(StoredSetting(key=f"{_KEY}.{_version(text, translations)}", value=text))
        if not language:
            tx.store(StoredSetting(key=_KEY, value=text))
        tx.store(StoredSetting(key=_TRANSLATIONS, value=translations))

    db.write(operation)


def _translations(db: Database) -> dict[str, str]:
    """The texts for single languages."""
    return settings.get(db, _TRANSLATIONS, {})


def _version(text: str, translations: Mapping[str, str]) -> str:
    return digest(text, *(part for pair in sorted(translations.items()) for part in pair))


@dataclass(frozen=True, kw_only=True)
class SavedGuidelines:
    """A stored text for all languages; `current` if annotators see it now."""

    version: str
    text: str
    current: bool = False


def saved(db: Database, default: str) -> list[SavedGuidelines]:
    """`default` and all stored texts in the order in which they were saved; the current one last."""
    now = version(db, default)
    rows = [
        {"version": digest(default), "text": default},
        *db.read(_SAVED),
    ]
    texts = {row["version"]: str(row["text"]) for row in rows}
    texts[now] = current(db, default)
    ordered = [*(each for each in texts if each != now), now]
    return [
        SavedGuidelines(version=each, text=texts[each], current=each == now) for each in ordered
    ]


def versions(db: Database) -> list[GuidelinesVersion]:
    """The versions under which current judgments were given, oldest first."""
    found = [GuidelinesVersion(**row) for row in db.read(_VERSIONS)]
    text = current(db, "")
    known = version(db, "")
    return [
        replace(each, text=text) if each.text is None and each.version == known else each
        for each in found
    ]
