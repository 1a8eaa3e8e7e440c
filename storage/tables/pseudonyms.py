"""Pseudonyms: what stands for an annotator's name outside, and the key that alone leads back.

An id that follows from a name is no better than the name: whoever tries names out finds it.  So
what leaves the workspace under pseudonyms, and what decides sides, follows from the key too.  So do
the ids of written pairs: an annotator knows the texts, and must not know a pair of a file by its id.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

from storage.engine.codec import StoredSetting
from storage.engine.transaction import Transaction

if TYPE_CHECKING:
    from storage.engine.database import Database
    from storage.engine.lookup import Reader

SECRET = "pseudonym_secret"
_KEY = "SELECT value ->> '$' AS value FROM settings WHERE key = $key"


def key_of(db: Database) -> bytes:
    """The workspace's key, made when it is first needed; never exported."""

    def operation(tx: Transaction) -> bytes:
        if known := known_key(tx):
            return known
        made = secrets.token_hex(32)
        tx.store(StoredSetting(key=SECRET, value=made))
        return bytes.fromhex(made)

    return db.write(operation)


def pseudonym(key: bytes, annotator: str) -> str:
    """What stands for the annotator with this id, the same in every export of a workspace."""
    return f"annotator-{keyed(key, annotator, size=6)}"


def pseudonyms_here(reader: Reader, annotators: Iterable[str]) -> set[str]:
    """What stands for the annotators with these ids; nothing while nothing was exported."""
    key = known_key(reader)
    return {pseudonym(key, id) for id in annotators} if key else set()


def keyed(key: bytes, text: str, *, size: int = 8) -> str:
    """`size` bytes in hex that identify a text to whoever has the key."""
    return hashlib.blake2b(text.encode(), key=key, digest_size=size).hexdigest()


def written_id(key: bytes, content: str) -> str:
    """The id of the comparison that a written pair becomes, from what identifies its content."""
    return f"c-{keyed(key, f'written {content}')}"


def coin(key: bytes, id: str, *, bits: int = 1) -> int:
    """As many random bits for a written pair, the same each time, which its id alone does not tell."""
    return int(keyed(key, f"coin {id}"), 16) >> (64 - bits)


def known_key(reader: Reader) -> bytes | None:
    """The key, or None before it was needed."""
    rows = reader.rows(_KEY, key=SECRET)
    return bytes.fromhex(rows[0]["value"]) if rows else None
