"""How every connection to DuckDB is set up."""

from __future__ import annotations

from pathlib import Path

import duckdb

# A progress bar on standard output would end up in the middle of what `--json` prints.
MEMORY = "2GiB"
"""DuckDB takes four fifths of the machine by itself; training and the web process need theirs."""
_MEMORY_LIMIT = "SELECT value FROM system.main.duckdb_settings() WHERE name = 'memory_limit'"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_QUIET = "SET enable_progress_bar = false"


def connect(
    path: Path | None = None, *, read_only: bool = False, sealed: bool = False
) -> duckdb.DuckDBPyConnection:
    """Open a database file (None: one in memory); nothing is fetched from the network, times are UTC.

    `sealed` lets SQL read and write no other file: a backup attaches one, and stages are handed
    parquet files, so that the database of an open workspace is not.
    """
    connection = duckdb.connect(
        ":memory:" if path is None else str(path),
        read_only=read_only,
        config={
            "autoinstall_known_extensions": "false",
            "enable_external_access": "false" if sealed else "true",
        },
    )
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute(_QUIET)
    limit, unit = connection.execute(_MEMORY_LIMIT).fetchall()[0][0].split()
    if float(limit) * _UNITS[unit] > 2 * _UNITS["GiB"]:
        connection.execute(f"SET GLOBAL memory_limit = '{MEMORY}'")
    return connection


def cursor_of(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Another cursor on the same database; it does not inherit the setting of the session."""
    cursor = connection.cursor()
    cursor.execute(_QUIET)
    return cursor
