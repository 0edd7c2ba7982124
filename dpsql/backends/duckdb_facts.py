"""Facts about the tables of a DuckDB database, read from its catalog and never from rows."""

import re
from dataclasses import replace
from typing import Final

import duckdb

from dpsql.backends.duckdb_files import VIEWS
from dpsql.backends.fit import TablePath, fitted, needed_columns, path_of
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.ir.schema import EngineColumn, EngineSchema, EngineTable
from dpsql.policy import Policy
from dpsql.policy.engines import engine_of
from dpsql.sqltypes import SqlType

_STORED: Final = """
    SELECT schema_name, table_name FROM duckdb_tables()
    WHERE database_name = {name} AND NOT contains(sql, 'GENERATED')"""
"""Tables whose rows are there as they are read: a generated column may be drawn by lot in each read. The definition is
DuckDB's own spelling; DuckDB 1 lists generated columns nowhere else."""

_TYPES = {
    "BOOLEAN": SqlType.BOOLEAN,
    "TINYINT": SqlType.SMALLINT,
    "UTINYINT": SqlType.SMALLINT,
    "SMALLINT": SqlType.SMALLINT,
    "USMALLINT": SqlType.INTEGER,
    "INTEGER": SqlType.INTEGER,
    "UINTEGER": SqlType.BIGINT,
    "BIGINT": SqlType.BIGINT,
    "UBIGINT": SqlType.NUMERIC,
    "HUGEINT": SqlType.NUMERIC,
    "UHUGEINT": SqlType.NUMERIC,
    "FLOAT": SqlType.REAL,
    "DOUBLE": SqlType.DOUBLE,
    "VARCHAR": SqlType.TEXT,
    "DATE": SqlType.DATE,
    "TIME": SqlType.TIME,
    "TIMESTAMP": SqlType.TIMESTAMP,
    "TIMESTAMP_S": SqlType.TIMESTAMP,
    "TIMESTAMP_MS": SqlType.TIMESTAMP,
    "TIMESTAMP_NS": SqlType.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": SqlType.TIMESTAMPTZ,
    "INTERVAL": SqlType.INTERVAL,
    "UUID": SqlType.UUID,
    "BLOB": SqlType.BYTEA,
    "JSON": SqlType.JSON,
}


def sql_type(type_name: str) -> SqlType:
    """The PostgreSQL type of a DuckDB type name; ARRAY for nested types other than lists."""
    element = re.sub(r"(\[\d*\])+$", "", type_name)
    if element != type_name:
        return sql_type(element).array
    if type_name.startswith("DECIMAL"):
        return SqlType.NUMERIC
    if type_name.startswith("ENUM"):
        return SqlType.TEXT
    return _TYPES.get(type_name, SqlType.ARRAY)


def read_schema(database: duckdb.DuckDBPyConnection, policy: Policy) -> EngineSchema:
    """The tables of a policy as the attached database, or files that are tables, have them.

    Raises:
        InvalidPolicy: A table or column is missing, or is of another type.
    """
    from_files = {path_of(table, policy) for table in policy.tables if table.files is not None}
    tables = {
        path: found for path, found in _tables_of(database, "current_database()").items() if path not in from_files
    }
    views = _tables_of(database, DuckDB.quote_text(VIEWS)) if from_files else {}
    tables |= {path: replace(found, path=(VIEWS, *path)) for path, found in views.items()}
    for table in policy.tables:
        if (found := tables.get(path_of(table, policy))) is not None:
            needed = needed_columns(table, policy) & found.columns.keys()
            exact = {
                n: replace(c, exact=_is_exact(database, found.path, n, c))
                for n, c in found.columns.items()
                if n in needed
            }
            tables[path_of(table, policy)] = replace(found, columns={**found.columns, **exact})
    engine = engine_of(policy.dataset.url)
    return EngineSchema(engine, fitted(policy, tables, engine))


def _tables_of(database: duckdb.DuckDBPyConnection, name: str) -> dict[TablePath, EngineTable]:
    """The tables and views of an attached database, which SQL names, by schema and name."""
    columns: dict[TablePath, dict[str, EngineColumn]] = {}
    found = database.execute(
        "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
        f"WHERE database_name = {name}"
    ).fetchall()
    for schema, table, column, type_name, nullable in found:
        columns.setdefault((schema, table), {})[column] = EngineColumn(type_name, sql_type(type_name), not nullable)
    unique: dict[TablePath, set[frozenset[str]]] = {}
    constraints = database.execute(
        "SELECT schema_name, table_name, constraint_column_names FROM duckdb_constraints() "
        f"WHERE database_name = {name} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
    ).fetchall()
    for schema, table, names in constraints:
        unique.setdefault((schema, table), set()).add(frozenset(names))
    stored = set(database.execute(_STORED.format(name=name)).fetchall())
    return {
        path: EngineTable(path, listed, frozenset(unique.get(path, ())), path in stored)
        for path, listed in columns.items()
    }


def _is_exact(database: duckdb.DuckDBPyConnection, path: TablePath, name: str, column: EngineColumn) -> bool:
    """True for one of the dialect's exact types, where texts are compared byte by byte.

    DuckDB lists the collations of columns nowhere, but it compares no two texts of unlike ones.
    """
    kind = "ENUM" if column.type_name.startswith("ENUM(") else column.type_name
    if kind != "VARCHAR":
        return kind in DuckDB.exact_types
    try:
        table = DuckDB().quote_path(path)
        database.execute(f"DESCRIBE SELECT {DuckDB.quote_name(name)} = ('' COLLATE \"C\") FROM {table}")
    except duckdb.Error:
        return False
    return True
