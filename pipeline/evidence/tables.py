"""The records of an evidence package: written with pseudonyms, and read again without a workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.engine.connection import connect
from storage.engine.database import Database
from storage.engine.migrations import migrate
from storage.engine.transaction import fetch
from storage.tables.people.pseudonyms import pseudonym

KEPT = ("quality", "tie_model", "kl_weight")
"""What is kept of the summaries of models."""
_PERSON = "(SELECT alias FROM aliases WHERE id = t.{column})"
_JUDGMENT = "'j-' || left(sha256($key || t.{column}), 16)"
# A reward model's summary has other figures by the ids of annotators.
_SUMMARY = "json_object({})".format(", ".join(f"'{k}', t.{{column}} -> '$.{k}'" for k in KEPT))
# What a table's columns become.  The id of an imported judgment is a digest that includes the
# annotator's name, so ids of judgments are hashed with the key, as in an export.
_WRITTEN: Mapping[str, Mapping[str, str]] = {
    "prompts": {},
    "completions": {},
    "comparisons": {},
    "annotators": {"id": _PERSON, "name": _PERSON.format(column="id"), "password_hash": "NULL"},
    "judgments": {"id": _JUDGMENT, "replaces": _JUDGMENT, "annotator": _PERSON},
    "withdrawals": {"replaces": _JUDGMENT, "annotator": _PERSON},
    "skips": {"annotator": _PERSON},
    "flags": {"annotator": _PERSON},
    "exclusions": {"judgment": _JUDGMENT, "researcher": "''"},
    "checks": {"judgment": _JUDGMENT, "annotator": _PERSON},
    "models": {"path": "''", "summary": _SUMMARY},
    "iterations": {},
    "snapshots": {},
    "snapshot_judgments": {"judgment": _JUDGMENT},
    "predictions": {},
    "gate_overrides": {"researcher": "''"},
    "items": {},
}
_COLUMNS = (
    "SELECT column_name FROM duckdb_columns() WHERE table_name = $table ORDER BY column_index"
)
_ALIASES = "aliases AS (SELECT unnest($ids) AS id, unnest($names) AS alias)"


def aliases(db: Database, key: bytes) -> dict[str, str]:
    """The pseudonym of each annotator's id."""
    return {row["id"]: pseudonym(key, row["id"]) for row in db.read("SELECT id FROM annotators")}


def write_tables(db: Database, folder: Path, key: bytes) -> None:
    """Write the tables as parquet files, with pseudonyms in place of annotators."""
    named = aliases(db, key)
    known = {"ids": list(named), "names": list(named.values()), "key": key.hex()}
    for table, changed in _WRITTEN.items():
        columns = [row["column_name"] for row in db.read(_COLUMNS, table=table)]
        chosen = ", ".join(
            f"{changed[column].format(column=column)} AS {column}"
            if column in changed
            else f"t.{column}"
            for column in columns
        )
        sql = f"WITH {_ALIASES} SELECT {chosen} FROM {table} AS t"
        # DuckDB refuses parameters that a query does not use.
        used = {name: value for name, value in known.items() if f"${name}" in sql}
        db.copy_to_parquet(sql, folder / f"{table}.parquet", **used)


def judgment_aliases(db: Database, ids: Sequence[str], key: bytes) -> list[str]:
    """What ids of judgments become in a package."""
    sql = f"SELECT {_JUDGMENT.format(column='id')} AS id FROM (SELECT unnest($ids) AS id) AS t"
    return [row["id"] for row in db.read(sql, ids=list(ids), key=key.hex())]


class Tables:
    """The tables of a package in memory, for code that reads a `Database`."""

    def __init__(self, folder: Path) -> None:
        self._connection = connect()
        migrate(self._connection)
        for table in _WRITTEN:
            file = str(folder / f"{table}.parquet").replace("'", "''")
            self._connection.execute(f"DELETE FROM {table}")
            self._connection.execute(f"INSERT INTO {table} BY NAME FROM read_parquet('{file}')")

    def read(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]:
        return fetch(self._connection.cursor(), sql, parameters)
