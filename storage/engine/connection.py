"""Connections to DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb

_MEMORY = "2GiB"
"""DuckDB's default is 80% of the memory, but training and the web process need some too."""
_MEMORY_LIMIT = "SELECT system.main.current_setting('memory_limit')"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# A progress bar would corrupt the output of `--json`.
_QUIET = "SET enable_progress_bar = false"


def connect(
    path: Path | None = None, *, read_only: bool = False, sealed: bool = False
) -> duckdb.DuckDBPyConnection:
    """Open a database file (None: in memory), in UTC and without downloads of extensions.

    With `sealed`, SQL cannot access other files.  An open workspace is not sealed, because a backup
    attaches a file and the inputs of stages are exported as parquet files.
    """
    connection = duckdb.connect(
        ":memory:" if path is None else str(path),
        read_only=read_only,
        config={
            # Without these, DuckDB keeps what a query has freed: hundreds of megabytes for hours.
            "allocator_background_threads": "true",
            "autoinstall_known_extensions": "false",
            "enable_external_access": "false" if sealed else "true",
        },
    )
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute(_QUIET)
    limit, unit = connection.execute(_MEMORY_LIMIT).fetchall()[0][0].split()
    if float(limit) * _UNITS[unit] > 2 * _UNITS["GiB"]:
        connection.execute(f"SET GLOBAL memory_limit = '{_MEMORY}'")
    return connection


def cursor_of(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Another cursor on the same database.  Settings of a session are not inherited."""
    cursor = connection.cursor()
    cursor.execute(_QUIET)
    return cursor
