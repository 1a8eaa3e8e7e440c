"""Conversion between records, journal entries and table rows, as `KINDS` defines it.

An *entry* is a dict of JSON values with the field names of the record.  The journal line and the
table row are both made from the same entry, so they cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, Protocol, TypeVar

import duckdb

from storage import audit_records, gate_records, notification_records, records
from storage.engine import items
from storage.records import as_messages

T = TypeVar("T")
_JSON = json.JSONEncoder(ensure_ascii=False)
Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredSetting:
    """A value that a researcher chose, e.g. the guidelines; `value` is any JSON value."""

    key: str
    value: Any


class TableAccess(Protocol):
    """The part of `storage.engine.transaction.Tables` that the hooks of a kind use."""

    connection: duckdb.DuckDBPyConnection

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]: ...
    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None: ...
    def stored_keys(self, kind: Kind, keys: Sequence[Any]) -> set[Any]: ...


@dataclass(frozen=True)
class Kind:
    """How one type of record is stored."""

    name: str
    record: type
    table: str
    key: str = "id"
    immutable: bool = True
    """Records never change: storing equal content again has no effect, other content is a Conflict.
    A record of a mutable kind replaces the stored one."""
    ignored: frozenset[str] = frozenset()
    """Fields that may differ without a conflict; the first value is kept."""
    volatile: frozenset[str] = frozenset()
    """Fields that change without a journal entry."""
    ordered: bool = False
    """The table has a column `seq`, which is not in the entry: the order of the lines in the
    journal, counted over all ordered kinds."""
    accounts: bool = False
    """Determines who can sign in."""
    upgrade: Callable[[Entry], Entry] | None = None
    """Converts an entry that an earlier version wrote."""
    expand: Callable[[TableAccess, Sequence[Entry]], list[Entry]] | None = None
    """Writes the part of the entries that is in other tables; returns the rows of `table`."""
    gather: Callable[[TableAccess, list[dict[str, Any]]], None] | None = None
    """Puts that part back into rows that were read."""
    stored: Callable[[TableAccess, Sequence[Entry]], None] | None = None
    """Called with entries that have just been stored."""
    audit: Callable[[Entry | None, Entry], audit_records.Noted | None] | None = None
    """What the audit log notes of a change by a person: from the stored entry to the new one."""

    def same(self, one: Entry, other: Entry) -> bool:
        """Whether two entries of one key are equal, apart from `ignored` and `volatile` fields."""
        loose = self.ignored | self.volatile
        return all(one.get(k) == other.get(k) for k in (one.keys() | other.keys()) - loose)


_MEMBERS = "SELECT judgment FROM snapshot_judgments WHERE snapshot = $hash ORDER BY judgment"


def _expand_snapshots(tables: TableAccess, snapshots: Sequence[Entry]) -> list[Entry]:
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


def _add_items(tables: TableAccess, comparisons: Sequence[Entry]) -> None:
    items.add(tables.connection, [entry["id"] for entry in comparisons])


_EDITED = """
    UPDATE prompts SET category = e.category FROM prompt_edits AS e
    WHERE e.prompt = prompts.id AND e.category IS NOT NULL
      AND e.prompt IN (SELECT unnest($prompts::VARCHAR[]))
"""


def _set_categories(tables: TableAccess, edits: Sequence[Entry]) -> None:
    tables.rows(_EDITED, {"prompts": [entry["prompt"] for entry in edits]})


def _renamed(field: str) -> Callable[[Entry], Entry]:
    """Earlier versions called the stage and phase `policy` "ppo"."""

    def upgrade(entry: Entry) -> Entry:
        return entry | {field: "policy"} if entry.get(field) == "ppo" else entry

    return upgrade


_TIME = frozenset({"created_at"})
_ACT = frozenset({"created_at", "seq"})
# A repeated stage may compute slightly different scores; the first prediction is kept.
_ANY_SCORE = frozenset({"created_at", "reward_model", "first", "first_score", "second_score"})
_PROGRESS = frozenset({"progress", "message", "ingested_seq"})
_ALL = (
    Kind("prompt", records.Prompt, "prompts", ignored=_TIME | {"role", "category", "source"}),
    Kind(
        "prompt_edit",
        records.PromptEdit,
        "prompt_edits",
        "prompt",
        immutable=False,
        stored=_set_categories,
        audit=audit_records.of_prompt_edit,
    ),
    Kind("completion", records.Completion, "completions", ignored=_TIME),
    Kind(
        "comparison",
        records.Comparison,
        "comparisons",
        ignored=_TIME | {"position"},
        stored=_add_items,
    ),
    Kind(
        "check",
        records.Check,
        "checks",
        "comparison",
        immutable=False,
        audit=audit_records.of_check,
    ),
    Kind("judgment", records.Judgment, "judgments", ignored=_ACT, ordered=True),
    Kind("withdrawal", records.Withdrawal, "withdrawals", ignored=_TIME),
    Kind("skip", records.Skip, "skips", ignored=_ACT, ordered=True),
    Kind("flag", records.Flag, "flags", ignored=_ACT, ordered=True),
    Kind(
        "flag_answer",
        records.FlagAnswer,
        "flag_answers",
        immutable=False,
        audit=audit_records.of_flag_answer,
    ),
    Kind(
        "exclusion",
        records.Exclusion,
        "exclusions",
        "judgment",
        immutable=False,
        audit=audit_records.of_exclusion,
    ),
    Kind(
        "adjudication_request",
        records.AdjudicationRequest,
        "adjudication_requests",
        ignored=_TIME,
        audit=audit_records.of_adjudication_request,
    ),
    Kind(
        "adjudication",
        records.Adjudication,
        "adjudications",
        ignored=_TIME,
        audit=audit_records.of_adjudication,
    ),
    Kind("follow_up", records.FollowUp, "follow_ups", ignored=_TIME),
    Kind(
        "snapshot",
        records.Snapshot,
        "snapshots",
        "hash",
        ignored=_TIME | {"iteration"},
        expand=_expand_snapshots,
        gather=_gather_snapshots,
    ),
    Kind(
        "annotator",
        records.Annotator,
        "annotators",
        immutable=False,
        accounts=True,
        audit=audit_records.of_account,
    ),
    Kind(
        "token",
        records.Token,
        "tokens",
        "hash",
        immutable=False,
        accounts=True,
        audit=audit_records.of_token,
    ),
    Kind(
        "linked_identity",
        records.LinkedIdentity,
        "linked_identities",
        ignored=_TIME,
        accounts=True,
        audit=audit_records.of_linked_identity,
    ),
    Kind("model", records.ModelVersion, "models", immutable=False),
    Kind(
        "iteration",
        records.Iteration,
        "iterations",
        "number",
        immutable=False,
        upgrade=_renamed("phase"),
    ),
    Kind(
        "run",
        records.Run,
        "runs",
        immutable=False,
        volatile=_PROGRESS,
        upgrade=_renamed("stage"),
    ),
    Kind(
        "run_label",
        records.RunLabel,
        "run_labels",
        "run",
        immutable=False,
        audit=audit_records.of_run_label,
    ),
    Kind(
        "study",
        records.Study,
        "studies",
        immutable=False,
        volatile=frozenset({"progress", "message"}),
    ),
    Kind("study_run", records.StudyRun, "study_runs", immutable=False, volatile=_PROGRESS),
    Kind("prediction", gate_records.Prediction, "predictions", "comparison", ignored=_ANY_SCORE),
    Kind(
        "override",
        gate_records.GateOverride,
        "gate_overrides",
        ignored=_TIME,
        audit=audit_records.of_override,
    ),
    Kind(
        "setting", StoredSetting, "settings", "key", immutable=False, audit=audit_records.of_setting
    ),
    Kind("event", notification_records.Event, "events", ignored=_TIME | {"data"}),
    Kind(
        "webhook",
        notification_records.Webhook,
        "webhooks",
        immutable=False,
        audit=audit_records.of_webhook,
    ),
    Kind(
        "delivery",
        notification_records.Delivery,
        "deliveries",
        immutable=False,
        audit=audit_records.of_delivery,
    ),
    Kind("audit", audit_records.AuditEntry, "audit_log", ignored=_TIME),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
_BY_TYPE: dict[type, Kind] = {kind.record: kind for kind in _ALL}


def kind_of(record_type: type) -> Kind:
    """The kind of a type of record; TypeError if it is not stored."""
    try:
        return _BY_TYPE[record_type]
    except KeyError:
        raise TypeError(f"{record_type.__name__} is not a stored record type") from None


@cache
def _names(record_type: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record_type))


def to_entry(record: Any) -> Entry:
    """The JSON form of a record: times as ISO 8601 in UTC, messages as role and content."""
    return {name: _json_value(getattr(record, name)) for name in _names(type(record))}


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, records.Message | records.Mark):
        return to_entry(value)
    if isinstance(value, Mapping):
        return {str(k): _json_value(v) for k, v in value.items()}
    if isinstance(value, Iterable):
        return [_json_value(v) for v in value]
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON: {value!r}")


# Fields whose column contains JSON text.
JSON_FIELDS = frozenset(
    {
        *(
            "messages",
            "criteria",
            "reasons",
            "safety",
            "marks",
            "summary",
            "settings",
            "evaluation",
        ),
        *("config", "value", "payload", "learned", "data", "events", "details", "plan"),
    }
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


def columns_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """One list per column for a bulk insert, with JSON fields as text.

    A field that no entry has is left out, so its column gets the default: journals written before
    the column existed remain readable.
    """
    names = dict.fromkeys(name for entry in entries for name in entry)
    columns = {name: [entry.get(name) for entry in entries] for name in names}
    for name in JSON_FIELDS & columns.keys():
        columns[name] = [_JSON.encode(value) for value in columns[name]]
    return columns
