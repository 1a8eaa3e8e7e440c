"""Records to journal entries to table rows, and back: one table of kinds drives all three.

An *entry* is a dict of JSON values with the field names of the record.  A record becomes an
entry once, and both the journal line and the table row are made from that entry, so the two
cannot say different things.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, Protocol, TypeVar

import duckdb

from storage import gate_records, records
from storage.engine import items
from storage.records import as_messages

T = TypeVar("T")
_JSON = json.JSONEncoder(ensure_ascii=False)
Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredSetting:
    """A value the researcher chose, e.g. the guidelines; `value` is anything JSON can hold."""

    key: str
    value: Any


class TableAccess(Protocol):
    """What the hooks of a kind use of `storage.engine.transaction.Tables`."""

    connection: duckdb.DuckDBPyConnection

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]: ...
    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None: ...
    def stored_keys(self, kind: Kind, keys: Sequence[Any]) -> set[Any]: ...


@dataclass(frozen=True)
class Kind:
    """How one type of record is kept.

    `once` kinds never change: storing the same id again changes nothing, and other content is
    a Conflict.  `ignored` fields may differ without being a conflict (the first one stays).
    Other kinds are replaced whole; `volatile` fields change without a journal entry.

    Rows of `ordered` kinds have a column `seq`, counted over all of them: the order of their lines in
    the journal, whatever the clock said.  It is no part of the entry.  Records of `people` kinds
    say who may sign in.

    `upgrade` turns an entry that an earlier version wrote into one of today.

    Three hooks serve kinds that are more than one row.  `expand` writes what stands in other
    tables and returns the rows of the kind's own; `gather` puts it back into rows that were read;
    `stored` follows entries that are in the table now.
    """

    name: str
    record: type
    table: str
    key: str = "id"
    once: bool = True
    ignored: frozenset[str] = frozenset()
    volatile: frozenset[str] = frozenset()
    ordered: bool = False
    people: bool = False
    upgrade: Callable[[Entry], Entry] | None = None
    expand: Callable[..., list[Entry]] | None = None
    gather: Callable[[TableAccess, list[dict[str, Any]]], None] | None = None
    stored: Callable[[TableAccess, Sequence[Entry]], None] | None = None

    def same(self, one: Entry, other: Entry) -> bool:
        """Whether two entries of one key say the same, apart from what may differ."""
        loose = self.ignored | self.volatile
        return all(one.get(k) == other.get(k) for k in (one.keys() | other.keys()) - loose)


_MEMBERS = "SELECT judgment FROM snapshot_judgments WHERE snapshot = $hash ORDER BY judgment"


def _expand_snapshots(
    tables: TableAccess, snapshots: Sequence[Entry], *, skip_stored: bool
) -> list[Entry]:
    """Write which judgments belong to each snapshot; returns the rows of the snapshots."""
    stored: set[Any] = set()
    if skip_stored:
        stored = tables.stored_keys(KINDS["snapshot"], [entry["hash"] for entry in snapshots])
    members = [
        {"snapshot": entry["hash"], "judgment": judgment}
        for entry in snapshots
        if entry["hash"] not in stored
        for judgment in entry["judgments"]
    ]
    tables.insert("snapshot_judgments", members)
    return [{**entry, "judgments": len(entry["judgments"])} for entry in snapshots]


def _gather_snapshots(tables: TableAccess, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        members = tables.rows(_MEMBERS, {"hash": row["hash"]})
        row["judgments"] = tuple(member["judgment"] for member in members)


def _note_items(tables: TableAccess, comparisons: Sequence[Entry]) -> None:
    items.note(tables.connection, [entry["id"] for entry in comparisons])


def _renamed(field: str) -> Callable[[Entry], Entry]:
    """Until version 0.2 the policy's stage and phase were called ppo, whatever the method."""

    def upgrade(entry: Entry) -> Entry:
        return entry | {field: "policy"} if entry.get(field) == "ppo" else entry

    return upgrade


_TIME = frozenset({"created_at"})
_ACT = frozenset({"created_at", "seq"})
# A stage that is run again may score a little differently; the first prediction stands.
_ANY_SCORE = frozenset({"created_at", "reward_model", "first", "first_score", "second_score"})
_PROGRESS = frozenset({"progress", "message", "ingested_seq"})
_ALL = (
    Kind("prompt", records.Prompt, "prompts", ignored=_TIME | {"role", "category", "source"}),
    Kind("completion", records.Completion, "completions", ignored=_TIME),
    Kind(
        "comparison",
        records.Comparison,
        "comparisons",
        ignored=_TIME | {"position"},
        stored=_note_items,
    ),
    Kind("judgment", records.Judgment, "judgments", ignored=_ACT, ordered=True),
    Kind("withdrawal", records.Withdrawal, "withdrawals", ignored=_TIME),
    Kind("skip", records.Skip, "skips", ignored=_ACT, ordered=True),
    Kind("flag", records.Flag, "flags", ignored=_ACT, ordered=True),
    Kind(
        "snapshot",
        records.Snapshot,
        "snapshots",
        "hash",
        ignored=_TIME | {"iteration"},
        expand=_expand_snapshots,
        gather=_gather_snapshots,
    ),
    Kind("annotator", records.Annotator, "annotators", once=False, people=True),
    Kind("token", records.Token, "tokens", "hash", once=False, people=True),
    Kind("model", records.ModelVersion, "models", once=False),
    Kind(
        "iteration",
        records.Iteration,
        "iterations",
        "number",
        once=False,
        upgrade=_renamed("phase"),
    ),
    Kind(
        "run",
        records.Run,
        "runs",
        once=False,
        volatile=_PROGRESS,
        upgrade=_renamed("stage"),
    ),
    Kind("prediction", gate_records.Prediction, "predictions", "comparison", ignored=_ANY_SCORE),
    Kind("override", gate_records.GateOverride, "gate_overrides", ignored=_TIME),
    Kind("setting", StoredSetting, "settings", "key", once=False),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
_BY_TYPE: dict[type, Kind] = {kind.record: kind for kind in _ALL}


def kind_of(record: object) -> Kind:
    """The kind of a record; TypeError for anything else."""
    return kind_of_type(type(record))


def kind_of_type(record_type: type) -> Kind:
    """The kind that a type of record is; TypeError for anything else."""
    try:
        return _BY_TYPE[record_type]
    except KeyError:
        raise TypeError(f"{record_type.__name__} is not a record that storage keeps") from None


@cache
def _names(record_type: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record_type))


def to_entry(record: Any) -> Entry:
    """The JSON form of a record: times as ISO 8601 in UTC, messages as role and content."""
    return {name: _plain(getattr(record, name)) for name in _names(type(record))}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, records.Message):
        return {"role": value.role, "content": value.content}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Iterable):
        return [_plain(v) for v in value]
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON: {value!r}")


# Fields whose column holds JSON text.
JSON_FIELDS = frozenset(
    {"messages", "criteria", "summary", "settings", "evaluation", "config", "value", "payload"}
)


def from_row(record_type: type[T], row: Mapping[str, Any]) -> T:
    """The record in a table row (extra columns are ignored)."""
    values: dict[str, Any] = {}
    for name in _names(record_type):
        if name not in row:
            continue
        value = row[name]
        if name in JSON_FIELDS and isinstance(value, str):
            value = json.loads(value)
        values[name] = as_messages(value) if name == "messages" else value
    return record_type(**values)


def entry_of_row(kind: Kind, row: Mapping[str, Any]) -> Entry:
    """The journal entry that would have made this table row."""
    return to_entry(from_row(kind.record, row))


def columns_of(entries: list[Entry]) -> dict[str, list[Any]]:
    """Entries turned on their side, JSON fields as text, for one bulk insert.

    A field that no entry has is left out, so that its column takes its default: journals
    written before a column existed stay readable.
    """
    names = dict.fromkeys(name for entry in entries for name in entry)
    return {name: [_cell(name, entry.get(name)) for entry in entries] for name in names}


def _cell(name: str, value: Any) -> Any:
    if name in JSON_FIELDS:
        return _JSON.encode(value)
    return value
