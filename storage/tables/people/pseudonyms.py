"""Pseudonyms of annotators in exports, and other values that depend on the workspace's secret key.

A plain hash of a name can be reversed by trying names, so pseudonyms depend on the key too.  So do
the ids and the order of responses of written pairs: an annotator who knows the texts must not
recognize a pair by its id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from storage.tables import settings

if TYPE_CHECKING:
    from storage.engine.database import Database
    from storage.engine.lookup import Reader

SECRET = "pseudonym_secret"


def key_of(db: Database) -> bytes:
    """The workspace's secret key, created on first use."""
    return settings.secret(db, SECRET)


def pseudonym(key: bytes, annotator: str) -> str:
    """The annotator's pseudonym, the same in every export of a workspace."""
    return f"annotator-{keyed(key, annotator, size=6)}"


def pseudonyms_here(reader: Reader, annotators: Iterable[str]) -> set[str]:
    """The pseudonyms of these annotators; empty before the key is created."""
    key = known_key(reader)
    return {pseudonym(key, id) for id in annotators} if key else set()


def keyed(key: bytes, text: str, *, size: int = 8) -> str:
    """A keyed hash of a text: `size` bytes in hex."""
    return hashlib.blake2b(text.encode(), key=key, digest_size=size).hexdigest()


def written_id(key: bytes, content: str) -> str:
    """The id of a written pair's comparison, from its content."""
    return f"c-{keyed(key, f'written {content}')}"


def random_bits(key: bytes, id: str, *, bits: int = 1) -> int:
    """Bits that are random without the key, but the same each time for a written pair."""
    return int(keyed(key, f"coin {id}"), 16) >> (64 - bits)


def known_key(reader: Reader) -> bytes | None:
    """The key, or None before its first use."""
    return settings.known_secret(reader, SECRET)
