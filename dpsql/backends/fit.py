"""Whether a database has what a policy says of it: tables, columns, and types that can hold it."""

import re
from collections.abc import Mapping

from dpsql.compiler.schema import EngineColumn, EngineTable
from dpsql.errors import InvalidPolicy
from dpsql.policy import Policy, Table
from dpsql.sqltypes import ARRAYS, SqlType

TablePath = tuple[str, ...]

_NOT_UNITS = ARRAYS | {SqlType.REAL, SqlType.DOUBLE, SqlType.INTERVAL, SqlType.JSON, SqlType.BYTEA, SqlType.BOOLEAN}


def path_of(table: Table, policy: Policy) -> TablePath:
    """Schema and name of a policy's table."""
    return (table.schema or policy.dataset.schema, table.relation)


def needed_columns(table: Table, policy: Policy) -> frozenset[str]:
    """The columns that queries may need: those listed, and those that lead to the unit, here and from elsewhere."""
    names = {column.name for column in table.columns} | ({table.unit_key} if table.unit_key is not None else set())
    for other in policy.tables:
        if other.unit_via is not None:
            for here, there in other.unit_via.on:
                names |= ({here} if other is table else set()) | (
                    {there} if other.unit_via.table == table.name else set()
                )
    return frozenset(names)


def fitted(
    policy: Policy, found: Mapping[TablePath, EngineTable], blurred: frozenset[tuple[TablePath, str]]
) -> dict[str, EngineTable]:
    """The tables of the policy by their names in it.

    Args:
        policy: The policy.
        found: The tables of the database.
        blurred: Columns of which the engine and SQL's own equality do not tell the same values apart.

    Raises:
        InvalidPolicy: A table or column is missing, or of a type that cannot hold what the policy says.
    """
    tables = {}
    for table in policy.tables:
        path = path_of(table, policy)
        if path not in found:
            raise InvalidPolicy(
                f'{policy.path}: tables.{table.name}: the database has no table "{".".join(path)}"',
                hint='Tables are named as in the database; another schema\'s as [tables."schema.table"].',
            )
        _check_columns(table, found[path], policy)
        if table.unit_key is not None:
            _check_unit(table, table.unit_key, found[path], policy, (path, table.unit_key) in blurred)
        tables[table.name] = found[path]
    return tables


def _check_columns(table: Table, engine: EngineTable, policy: Policy) -> None:
    """Every column the policy names is there, with a type that can hold what the policy says."""
    for name in sorted(needed_columns(table, policy)):
        if name not in engine.columns:
            raise InvalidPolicy(
                f'{policy.path}: tables.{table.name}: the database\'s table has no column "{name}"',
                hint="It has: " + ", ".join(engine.columns),
            )
    for column in table.columns:
        found = engine.columns[column.name]
        if not _holds(column.type, found.sql_type):
            raise InvalidPolicy(
                f"{policy.path}: tables.{table.name}.columns.{column.name}: the database's type is "
                f"{found.type_name}, not {column.type.value}",
                hint=f'type = "{re.sub(" [a-z ]*", "", found.sql_type.value)}"',
            )


def _check_unit(table: Table, name: str, engine: EngineTable, policy: Policy, is_blurred: bool) -> None:
    """Two units never become one, nor one two: the key's declared type tells apart just what the engine's does."""
    found, column = engine.columns[name], table.column(name)
    declared = column.type if column is not None else found.sql_type
    if is_blurred:
        raise InvalidPolicy(
            f'{policy.path}: tables.{table.name}.unit_key: two spellings in "{name}" may be one unit to the database, '
            f"or two units one spelling: that is how its type ({found.type_name}) or collation compares",
            hint="Name another column, or one of a view that has one spelling for each unit.",
        )
    if found.sql_type in _NOT_UNITS or not _is_alike(declared, found):
        raise InvalidPolicy(
            f"{policy.path}: tables.{table.name}.unit_key: a {found.type_name} cannot be the unit as {declared.value}",
            hint="A unit key is an integer, text, uuid, numeric, date or timestamp, declared with its own type.",
        )


def _is_alike(declared: SqlType, found: EngineColumn) -> bool:
    return (
        declared is found.sql_type
        or (declared.is_integer and found.sql_type.is_integer)
        or (declared.is_text and found.sql_type.is_text)
    )


def _holds(declared: SqlType, found: SqlType) -> bool:
    if declared.is_number:
        return found.is_number
    if declared.is_text:
        return found.is_text
    if declared.is_moment:
        return found.is_moment
    if declared.element is not None and found.element is not None:
        return declared is found or (declared.element.is_text and found.element.is_text)
    return declared is found
