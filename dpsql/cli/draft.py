"""Drafts a policy from a DuckDB schema.

Rule 1: nothing but the schema is read: limits or domains taken from values would leak what they are to protect.
Rule 2: what a person must decide is left out, so that an unfinished draft is no valid policy.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpsql.backends.duckdb import sql_type
from dpsql.errors import InvalidParameter
from dpsql.sqltypes import SqlType

_DUCKDB = "duckdb:///"
_HINT = "dpsql policy init duckdb:///clinic.duckdb"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {SqlType.DOUBLE: "double", SqlType.NUMERIC: "decimal", SqlType.VARCHAR: "varchar", SqlType.CHAR: "char"}

_HEAD = """\
# A draft from the schema of the database. Decide what is marked TODO, from common knowledge and never from the data;
# then run: dpsql policy check THIS_FILE
version = 1

[dataset]
name = {name}
url = {url}
schema = {schema}
privacy_unit = "person"            # TODO: whom the guarantee protects, in a word
adjacency = "add_remove"
data_version = "1"                 # change it whenever the data changes
budget = {{ epsilon = 20, delta = 1e-6 }}    # TODO: the cap over all users together; delta far below 1 / people

[roles.analyst]
budget = {{ epsilon = 5, delta = 1e-6 }}     # TODO: what one analyst may learn
query = {{ epsilon = 0.1, delta = 1e-9, max_epsilon = 1 }}
"""
_UNIT = """\
# TODO: whose row is it? One of:
#   unit_key = "…"                 the column that names the person
#   unit_via = {{ table = "…", on = {{ column_here = "column_there" }} }}
#   public = true                  the rows are about nobody (then without max_rows)
# {unique}
max_rows = 10                      # TODO: at most so many rows of one person count
"""


@dataclass(frozen=True)
class _Column:
    name: str
    type_name: str


@dataclass(frozen=True)
class _Table:
    schema: str
    name: str
    columns: tuple[_Column, ...]
    unique: tuple[tuple[str, ...], ...]


def draft_policy(url: str) -> str:
    """Return the TOML text of a policy for a database, to be finished by hand.

    Raises:
        InvalidParameter: The URL names no DuckDB file that can be read.
    """
    path = _path(url)
    tables = _read_schema(path)
    if not tables:
        raise InvalidParameter(f"{path} has no tables", hint=_HINT)
    schemas = [table.schema for table in tables]
    schema = "main" if "main" in schemas else schemas[0]
    head = _HEAD.format(name=_quoted(path.stem), url=_quoted(f"{_DUCKDB}{path}"), schema=_quoted(schema))
    return "\n".join([head, *("\n".join(_table_lines(table, schema)) + "\n" for table in tables)])


def _path(url: str) -> Path:
    scheme, separator, _ = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        raise InvalidParameter("drafting a policy from PostgreSQL is not available yet", hint=_HINT)
    if not url.startswith(_DUCKDB) or url == _DUCKDB:
        raise InvalidParameter("the URL names no DuckDB file", hint=_HINT)
    path = Path(url.removeprefix(_DUCKDB)).resolve()
    if not path.is_file():
        raise InvalidParameter(f"there is no file {path}", hint=_HINT)
    return path


def _read_schema(path: Path) -> list[_Table]:
    try:
        with duckdb.connect(str(path), read_only=True, config={"enable_external_access": False}) as database:
            columns = database.execute(
                "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns() "
                "WHERE database_name = current_database() AND NOT internal "
                "ORDER BY schema_name, table_name, column_index"
            ).fetchall()
            keys = database.execute(
                "SELECT schema_name, table_name, constraint_column_names FROM duckdb_constraints() "
                "WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') "
                "ORDER BY ALL"
            ).fetchall()
    except duckdb.Error:
        raise InvalidParameter(f"{path} is not a DuckDB file that can be read now", hint=_HINT) from None
    names = list(dict.fromkeys((schema, table) for schema, table, _, _ in columns))
    return [
        _Table(
            *name,
            tuple(_Column(column, type_name) for *path, column, type_name in columns if tuple(path) == name),
            tuple(tuple(unique) for *path, unique in keys if tuple(path) == name),
        )
        for name in names
    ]


def _table_lines(table: _Table, schema: str) -> Iterator[str]:
    key = _key(table.name if table.schema == schema else f"{table.schema}.{table.name}")
    unique = "; ".join(", ".join(map(_quoted, names)) for names in table.unique)
    yield f"[tables.{key}]"
    yield _UNIT.format(
        unique=f"The schema has as unique: {unique}." if unique else "No column is unique by the schema."
    )
    yield f"[tables.{key}.columns]"
    yield "# A column that is removed here does not exist for analysts."
    yield from map(_column_line, table.columns)


def _column_line(column: _Column) -> str:
    kind = sql_type(column.type_name)
    if kind in (SqlType.ARRAY, SqlType.UNKNOWN):
        return f"# {_quoted(column.name)}: type {_quoted(column.type_name)} is not supported"
    name = _SHORT.get(kind, kind.value.removesuffix(" without time zone"))
    name = name.replace("timestamp with time zone", "timestamptz")
    return f"{_key(column.name)} = {{ type = {_quoted(name)} }}{_todo(kind)}"


def _todo(kind: SqlType) -> str:
    if kind.is_integer or kind.is_moment:
        return "    # TODO: lower = …, upper = …"
    if kind.is_number:
        return "    # TODO: lower = …, upper = …, step = …"
    return '    # TODO: values = ["…"] if the domain is known to all' if kind.is_text else ""


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    # A JSON string is a TOML string, but for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
