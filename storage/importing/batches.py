"""The records of a plan in batches, each of which is stored in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage.engine.codec import kind_of
from storage.engine.lookup import Reader
from storage.engine.transaction import encode
from storage.importing.target import Batch

MAX_RECORDS = 500
"""Records in a batch: about 20 ms in the writer thread."""

Groups = Mapping[str, Mapping[str, Any]]
"""Records by name of the group and by key."""


def stored_keys(reader: Reader, groups: Groups) -> dict[str, set[str]]:
    """The keys that are stored already, by name of the group."""
    found: dict[str, set[str]] = {}
    for name, records in groups.items():
        if records:
            kind = kind_of(type(next(iter(records.values()))))
            # Table and key are names of the schema, from the table of kinds.
            sql = (
                f"SELECT {kind.key} AS key FROM {kind.table} "
                f"WHERE {kind.key} IN (SELECT unnest($keys))"
            )
            found[name] = {row["key"] for row in reader.rows(sql, keys=list(records))}
    return found


def batches(groups: Groups, stored: Mapping[str, set[str]]) -> Iterator[Batch]:
    """The records in the order of the groups; in a group, the stored ones come first.

    Stored records are only compared, which takes a query that batches of new ones do not need.
    """
    parts: dict[str, list[Any]] = {}
    size, fresh = 0, True
    for name, records in groups.items():
        known = stored.get(name, set())
        for key in sorted(records, key=lambda key: key not in known):
            if size == MAX_RECORDS:
                yield _batch(parts, fresh)
                parts, size, fresh = {}, 0, True
            parts.setdefault(name, []).append(records[key])
            size, fresh = size + 1, fresh and key not in known
    if size:
        yield _batch(parts, fresh)


def _batch(parts: dict[str, list[Any]], fresh: bool) -> Batch:
    return Batch({name: encode(records) for name, records in parts.items()}, fresh)
