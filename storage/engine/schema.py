"""Whether a database holds the schema that the migrations make, and nothing beside it.

A file from elsewhere may hold a view in place of a table, a macro under the name of a function, a
trigger or a computed column: each is SQL of its author that would run among ours, and could read
the files of the machine.
"""

from __future__ import annotations

from functools import cache

import duckdb

from storage.engine import connection as engine
from storage.engine.migrations import MIGRATIONS, applied_to, migrate
from storage.errors import StorageDamaged

Catalogue = frozenset[tuple[str, str, str, str]]
"""Kind, schema, name and the SQL of each entry."""

# Qualified, and without functions: an unqualified name would find a macro of the file first.
_LISTED = {
    "schema": "schema_name, schema_name, parent_schema FROM system.main.duckdb_schemas()",
    "table": "schema_name, table_name, sql FROM system.main.duckdb_tables()",
    "view": "schema_name, view_name, sql FROM system.main.duckdb_views()",
    "index": "schema_name, index_name, sql FROM system.main.duckdb_indexes()",
    "sequence": "schema_name, sequence_name, sql FROM system.main.duckdb_sequences()",
    "trigger": "schema_name, trigger_name, sql FROM system.main.duckdb_triggers()",
    "macro": "schema_name, function_name, macro_definition FROM system.main.duckdb_functions()",
    "type": "schema_name, type_name, logical_type FROM system.main.duckdb_types()",
}
_OURS_ALONE = " WHERE database_name <> 'system' AND database_name <> 'temp'"
_SHOWN = 3


def require_known(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise StorageDamaged, naming what is strange, unless the schema is that of this version or of
    an earlier one.

    For a connection that has run nothing yet: what is asked here runs no SQL of the file.
    """
    found = _catalogue(connection)
    version = 0
    if any(entry in found for entry in _of_version(0) if entry[2] == "migrations"):
        version = len(applied_to(connection))
    known = _of_version(version)
    strange, missing = found - known, known - found
    if not strange and (version == 0 or not missing):  # a start may have been stopped at any point
        return
    of_none = strange - _of_version(len(MIGRATIONS))
    named = sorted({f"the {kind} {name!r}" for kind, _, name, _ in of_none or strange or missing})
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    what = "holds what no Kitestring makes" if strange else "lacks what Kitestring makes"
    raise StorageDamaged(f"the database {what}: {', '.join(named[:_SHOWN])}{more}")


@cache
def _of_version(number: int) -> Catalogue:
    """The schema after so many migrations."""
    with engine.connect(sealed=True) as connection:
        migrate(connection, MIGRATIONS[:number])
        return _catalogue(connection)


def _catalogue(connection: duckdb.DuckDBPyConnection) -> Catalogue:
    return frozenset(
        (kind, str(schema), str(name), str(sql))
        for kind, listed in _LISTED.items()
        for schema, name, sql in connection.execute(f"SELECT {listed}{_OURS_ALONE}").fetchall()
    )
