"""How every connection to DuckDB is set up."""

from __future__ import annotations

from pathlib import Path

import duckdb

# A progress bar on standard output would end up in the middle of what `--json` prints.
_QUIET = "SET enable_progress_bar = false"


def connect(path: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open a database file (None: one in memory); nothing is fetched from the network, times are UTC."""
    connection = duckdb.connect(
        ":memory:" if path is None else str(path),
        config={"autoinstall_known_extensions": "false"},
    )
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute(_QUIET)
    return connection


def cursor_of(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Another cursor on the same database; it does not inherit the setting of the session."""
    cursor = connection.cursor()
    cursor.execute(_QUIET)
    return cursor
