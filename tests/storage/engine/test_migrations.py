"""Migrations run once each, with their record, or not at all."""

from __future__ import annotations

import dataclasses
import datetime

import duckdb
import pytest

from storage.engine.codec import KINDS
from storage.engine.migrations import MIGRATIONS, m001_initial, migrate
from storage.engine.transaction import Tables
from storage.errors import StorageDamaged


@pytest.fixture
def connection(tmp_path):
    with duckdb.connect(str(tmp_path / "w.duckdb")) as opened:
        yield opened


def m002_adds_a_column(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("ALTER TABLE prompts ADD COLUMN stars BIGINT DEFAULT 3")


def m002_fails_half_way(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TABLE half (x INTEGER)")
    raise RuntimeError("power cut")


def tables(connection: duckdb.DuckDBPyConnection) -> set[str]:
    return {
        row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    }


def applied(connection: duckdb.DuckDBPyConnection) -> list[str]:
    return [r[0] for r in connection.execute("SELECT name FROM migrations ORDER BY 1").fetchall()]


def test_an_empty_database_gets_every_migration_once(connection):
    assert migrate(connection) == [m.__name__ for m in MIGRATIONS]
    assert migrate(connection) == []
    assert applied(connection) == [m.__name__ for m in MIGRATIONS]


def test_every_field_of_every_record_has_its_column(connection):
    migrate(connection)
    columns: dict[str, set[str]] = {}
    for table, column in connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns()"
    ).fetchall():
        columns.setdefault(table, set()).add(column)
    for kind in KINDS.values():
        fields = {f.name for f in dataclasses.fields(kind.record)}
        order = {"seq"} if kind.ordered else set()
        assert columns[kind.table] == fields | order, kind.name


def test_a_database_with_data_gets_what_it_lacks_and_keeps_its_rows(connection):
    migrate(connection, [m001_initial])
    Tables(connection).apply(
        KINDS["prompt"],
        [{"id": "p", "role": "train", "messages": [], "created_at": "2026-01-02T03:04:05+00:00"}],
    )
    assert migrate(connection, [m001_initial, m002_adds_a_column]) == ["m002_adds_a_column"]
    row = connection.execute("SELECT id, stars, created_at FROM prompts").fetchall()
    assert row == [("p", 3, datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC))]


def test_a_migration_that_fails_leaves_neither_its_changes_nor_its_record(connection):
    with pytest.raises(RuntimeError, match="power cut"):
        migrate(connection, [m001_initial, m002_fails_half_way])
    assert applied(connection) == ["m001_initial"]
    assert "half" not in tables(connection)
    assert migrate(connection, [m001_initial, m002_adds_a_column]) == ["m002_adds_a_column"]


def test_a_database_of_a_newer_version_is_refused(connection):
    migrate(connection, [m001_initial, m002_adds_a_column])
    with pytest.raises(StorageDamaged, match=r"m002_adds_a_column.*update Kitestring"):
        migrate(connection, [m001_initial])


def test_a_journal_from_before_a_column_existed_can_still_be_applied(connection):
    migrate(connection, [m001_initial, m002_adds_a_column])
    Tables(connection).apply(KINDS["prompt"], [{"id": "p", "role": "sft", "messages": []}])
    assert connection.execute("SELECT stars FROM prompts").fetchall() == [(3,)]
