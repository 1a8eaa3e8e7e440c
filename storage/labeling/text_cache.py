"""A read-ahead cache of the texts of pairs: a query for many takes little longer than for one.

Prompts, completions and comparisons are immutable, so cached texts stay valid.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storage.engine.codec import from_row
from storage.errors import NotFound
from storage.records import Prompt

_KEPT = 1024
MAX_BYTES = 64_000_000
"""Limit of the cached texts: an imported text may have megabytes."""
_PAIRS = """
    SELECT c.id AS comparison, f.text AS first_text, s.text AS second_text, p.*
    FROM comparisons AS c
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE c.id IN (SELECT unnest($ids))
"""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a comparison."""

    prompt: Prompt
    first: str
    second: str


class TextCache:
    """The most recently read texts by comparison, up to `most` bytes.  Thread-safe."""

    def __init__(self, *, most: int = MAX_BYTES) -> None:
        self.bytes = 0
        self._most = most
        self._texts: dict[str, Texts] = {}
        self._sizes: dict[str, int] = {}
        self._reading = threading.Lock()

    def __contains__(self, comparison: str) -> bool:
        return comparison in self._texts

    def fetch(
        self, read: Callable[..., list[dict[str, Any]]], ids: Sequence[str], ahead: Iterable[str]
    ) -> dict[str, Texts]:
        """The texts of `ids`; if one is not cached, the texts of `ahead` are read with it."""
        found = self._known(ids)
        if found is None:
            # One thread at a time: the first reads ahead the texts that the others need.
            with self._reading:
                found = self._known(ids) or self._read(read, ids, ahead)
        return found

    def _known(self, ids: Sequence[str]) -> dict[str, Texts] | None:
        found = {name: self._texts.get(name) for name in ids}
        known = {name: texts for name, texts in found.items() if texts is not None}
        return known if len(known) == len(found) else None

    def _read(
        self, read: Callable[..., list[dict[str, Any]]], ids: Sequence[str], ahead: Iterable[str]
    ) -> dict[str, Texts]:
        fresh = {
            row["comparison"]: Texts(from_row(Prompt, row), row["first_text"], row["second_text"])
            for row in read(_PAIRS, ids=[*{*ids, *ahead}])
        }
        missing = sorted(set(ids) - fresh.keys())
        if missing:
            raise NotFound(f"the texts of comparison {missing[0]!r} are not stored")
        self._keep(fresh)
        return {name: fresh[name] for name in ids}

    def _keep(self, fresh: dict[str, Texts]) -> None:
        """Add texts and drop the oldest; the caller holds the lock."""
        for name, texts in fresh.items():
            if name not in self._sizes:
                self._sizes[name] = _size(texts)
                self.bytes += self._sizes[name]
                self._texts[name] = texts
        while len(self._sizes) > _KEPT or self.bytes > self._most:
            oldest = next(iter(self._sizes))
            self.bytes -= self._sizes.pop(oldest)
            del self._texts[oldest]


def _size(texts: Texts) -> int:
    parts = (texts.first, texts.second, *(message.content for message in texts.prompt.messages))
    return sum(map(sys.getsizeof, parts))
