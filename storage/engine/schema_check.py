"""Checks that a database has exactly the schema that the migrations create.

A file of unknown origin may have a view in place of a table, a macro with the name of a function, a
trigger or a computed column.  Their SQL would run as part of our queries and could read files of
this machine.
"""

from __future__ import annotations

from functools import cache

import duckdb

from storage.engine import connection as engine
from storage.engine.migrations import MIGRATIONS, applied_to, migrate
from storage.errors import StorageDamaged, first_few

Catalog = frozenset[tuple[str, str, str, str]]
"""Kind, schema, name and the SQL of each entry."""

# Qualified names, no functions: an unqualified name would resolve to a macro of the file first.
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
_OURS = " WHERE database_name <> 'system' AND database_name <> 'temp'"


def require_known(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise StorageDamaged unless the schema is that of this version or an earlier one.

    Call it first on a new connection: the queries here run no SQL of the file.
    """
    found = _catalog(connection)
    version = 0
    if any(entry in found for entry in _of_version(0) if entry[2] == "migrations"):
        version = len(applied_to(connection))
    known = _of_version(version)
    strange, missing = found - known, known - found
    if not strange and (version == 0 or not missing):  # the first start may have been interrupted
        return
    of_none = strange - _of_version(len(MIGRATIONS))
    named = sorted({f"the {kind} {name!r}" for kind, _, name, _ in of_none or strange or missing})
    what = "has unknown objects" if strange else "lacks objects of its schema"
    raise StorageDamaged(f"the database {what}: {first_few(named, ', ')}")


@cache
def _of_version(number: int) -> Catalog:
    """The schema after this number of migrations."""
    with engine.connect(sealed=True) as connection:
        migrate(connection, MIGRATIONS[:number])
        return _catalog(connection)


def _catalog(connection: duckdb.DuckDBPyConnection) -> Catalog:
    return frozenset(
        (kind, str(schema), str(name), str(sql))
        for kind, listed in _LISTED.items()
        for schema, name, sql in connection.execute(f"SELECT {listed}{_OURS}").fetchall()
    )
