"""Checks that a database has the tables, columns and types that a policy declares."""

import re
from collections.abc import Mapping
from fractions import Fraction

from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.ir.schema import EngineColumn, EngineTable
from dpsql.policy import Policy, RowsOf, Table
from dpsql.policy.engines import POSTGRES, EngineKind
from dpsql.policy.lines import Key
from dpsql.policy.node import did_you_mean
from dpsql.sqltypes import SqlType

TablePath = tuple[str, ...]

_NOT_UNITS = (SqlType.BOOLEAN, SqlType.BYTEA)
_WHOLE = (SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT)
_KEYS = "an integer, text, uuid, numeric of a declared scale, date or timestamp"
_HINTS = {
    SqlType.NUMERIC: "ALTER TABLE {table} ALTER COLUMN {column} TYPE numeric(20, 4), or with as many digits as its "
    "values have, 38 at most. Or store CAST(trim_scale({column}) AS text) in a column, and name that.",
    SqlType.TIMESTAMP: "Store epoch_ns({column}) in a column of type BIGINT, and name that.",
    SqlType.TEXT: 'Store it in a column of type text with COLLATE "C", as one spelling for each value such as '
    "lower({column}), and name that.",
}
"""What to do about a column that cannot be a key, by its type."""


def path_of(table: Table, policy: Policy) -> TablePath:
    """Schema and name of a policy's table."""
    return (table.schema or policy.dataset.schema, table.relation)


def needed_columns(table: Table, policy: Policy) -> frozenset[str]:
    """The columns that queries may need: those listed, those that lead to the unit, and those that say which way."""
    conditions = {via.where.column for via in table.unit_via if via.where is not None}
    return key_columns(table, policy).union(conditions, (column.name for column in table.columns))


def key_columns(table: Table, policy: Policy) -> frozenset[str]:
    """The columns that lead to the unit, here and from elsewhere."""
    names = {*table.within_unit} | ({table.unit_key} if table.unit_key is not None else set())
    names |= {here for via in table.unit_via for here, _ in via.on}
    ways = (via for other in policy.tables for via in other.unit_via)
    return frozenset(names).union(there for via in ways if via.table == table.name for _, there in via.on)


def fitted(policy: Policy, found: Mapping[TablePath, EngineTable], engine: EngineKind) -> dict[str, EngineTable]:
    """The tables of the policy by their names in it.

    Args:
        policy: The policy.
        found: The tables of the database.
        engine: Which engine it is.

    Raises:
        InvalidPolicy: A table or column is missing, or of a type that cannot hold what the policy says, or leads to a
            unit and is of a type whose values dpsql and the engine do not tell apart alike.
    """
    tables = {}
    for table in policy.tables:
        path = path_of(table, policy)
        if path not in found:
            raise policy.wrong(
                ("tables", table.name),
                f'the database has no table "{".".join(path)}"',
                'Tables are named as in the database; another schema\'s as [tables."schema.table"].',
            )
        _check_columns(table, found[path], policy)
        tables[table.name] = found[path]
    if engine is not POSTGRES:
        _check_digits(policy, tables)
    _Keys(policy, tables, engine).check()
    return tables


def _check_columns(table: Table, engine: EngineTable, policy: Policy) -> None:
    """Check that every column of the policy exists, with a type that can hold its declared values."""
    for name in sorted(needed_columns(table, policy)):
        if name not in engine.columns:
            key: Key = ("columns", name) if table.column(name) is not None else ()
            key = ("unit_key",) if name == table.unit_key else key
            raise policy.wrong(
                ("tables", table.name, *key),
                f'the database\'s table has no column "{name}"',
                did_you_mean(name, engine.columns),
            )
    for column in table.columns:
        found = engine.columns[column.name]
        if not _holds(column.type, found.sql_type):
            raise policy.wrong(
                ("tables", table.name, "columns", column.name),
                f"the database's type is {found.type_name}, not {column.type.value}",
                f'type = "{re.sub(" [a-z ]*", "", found.sql_type.value)}"',
            )


def _check_digits(policy: Policy, tables: Mapping[str, EngineTable]) -> None:
    """Refuse a domain of more digits than its column: comparing the two converts both, which may fail by a row."""
    for table in policy.tables:
        for column in table.columns:
            found = tables[table.name].columns[column.name]
            if column.type is not SqlType.NUMERIC or found.sql_type is not SqlType.NUMERIC:
                continue
            digits = re.fullmatch(r"DECIMAL\(\d+,(\d+)\)", found.type_name, re.IGNORECASE)
            is_held = (
                digits is not None
                and found.exact
                and all((Fraction(str(value)) * 10 ** int(digits[1])).denominator == 1 for value in column.values or ())
            )
            if column.values_from is not None:
                source, name = column.values_from
                is_held = found.exact and tables[source].columns[name].type_name == found.type_name
            if not is_held and (column.values is not None or column.values_from is not None):
                raise policy.wrong(
                    ("tables", table.name, "columns", column.name),
                    f"its domain has other digits than {found.type_name}, so comparing them could fail",
                    "Store both as decimal(20, 4) or the like, with the digits of the domain.",
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


class _Keys:
    """Whether the columns that lead to units tell units apart just as the engine does."""

    def __init__(self, policy: Policy, tables: Mapping[str, EngineTable], engine: EngineKind) -> None:
        self._policy = policy
        self._tables = tables
        self._dialect = DIALECTS[engine]

    def check(self) -> None:
        """Refuse a unit_key, or either side of a unit_via, that does not."""
        numbers: dict[str, Key] = {}
        for table in self._policy.tables:
            at: Key = ("tables", table.name)
            if table.unit_key is not None:
                found = self._unit((*at, "unit_key"), table, table.unit_key)
                if found.sql_type is SqlType.NUMERIC:
                    numbers.setdefault(self._stored(found, found), (*at, "unit_key"))
            for via in table.unit_via:
                for here, there in via.on:
                    self._pair((*at, "unit_via", "on", here), (table, here), (self._table(via.table), there))
                self._condition((*at, "unit_via", "where"), table, via.where)
            if len(table.unit_via) > 1:
                self._check_one_unit((*at, "unit_via"), table)
        if len(numbers) > 1:
            (one, _), (other, at), *_ = numbers.items()
            raise self._policy.wrong(
                at,
                f"{other}, where the key of another table is {one}: joins would convert one of the two",
                f"Store both as {one}.",
            )

    def _unit(self, at: Key, table: Table, name: str) -> EngineColumn:
        found, declared = self._key(at, table, name)
        if found.sql_type in _NOT_UNITS or _is_narrower(declared, found.sql_type):
            raise self._policy.wrong(at, f"a {found.type_name} cannot be the unit as {declared.value}", _hint(found))
        return found

    def _pair(self, at: Key, child: tuple[Table, str], parent: tuple[Table, str]) -> None:
        here, there = (self._key(at, *end)[0] for end in (child, parent))
        if not here.sql_type.is_alike(there.sql_type) or self._stored(here, there) != self._stored(there, there):
            raise self._policy.wrong(
                at,
                f'{here.type_name}, where "{parent[1]}" of "{parent[0].name}" is {there.type_name}: '
                "comparing them would convert one of the two",
                f"Store both as {there.type_name}.",
            )

    def _key(self, at: Key, table: Table, name: str) -> tuple[EngineColumn, SqlType]:
        """A column that leads to a unit, and the type by which queries read it."""
        found, listed = self._tables[table.name].columns[name], table.column(name)
        if not found.exact:
            unit = self._policy.dataset.privacy_unit
            hint = _HINTS.get(found.sql_type, f"Name {_KEYS}.")
            raise self._policy.wrong(
                at,
                f'"{name}" of "{table.name}" is {found.type_name}: with this type or its collation, dpsql and '
                f"the database compare values differently; two {unit}s could count as one, or one as two",
                hint.format(table=table.name, column=name),
            )
        declared = found.sql_type if listed is None else listed.type
        if not declared.is_alike(found.sql_type):
            raise self._policy.wrong(at, f"a {found.type_name} cannot be a key as {declared.value}", _hint(found))
        return found, declared

    def _condition(self, at: Key, table: Table, where: RowsOf | None) -> None:
        """Refuse a condition on a column of another type than its constants have."""
        if where is None:
            return
        found, wanted = self._tables[table.name].columns[where.column], type(where.values[0])
        if not (found.sql_type.is_text if wanted is str else found.sql_type.is_integer):
            what = "texts" if wanted is str else "whole numbers"
            raise self._policy.wrong(
                at,
                f'"{where.column}" is {found.type_name}, and is compared with {what}',
                "A condition compares a column of texts with texts, or one of whole numbers with whole numbers.",
            )
        if not found.exact:
            raise self._policy.wrong(
                at,
                f'"{where.column}" is {found.type_name}: with this type or its collation, one value has '
                "several spellings, and a condition would match only one of them",
                'Store it as text with COLLATE "C", with one spelling for each value.',
            )

    def _check_one_unit(self, at: Key, table: Table) -> None:
        """Refuse ways that end at columns of unlike types: a unit could be two, by the way to it."""
        first, *others = self._ends(table)
        for other in others:
            if other.sql_type is not first.sql_type or self._stored(other, first) != self._stored(first, first):
                raise self._policy.wrong(
                    at,
                    f"the paths to the unit end at keys of types {first.type_name} and {other.type_name}",
                    "Store the unit's key with one type in all tables.",
                )

    def _ends(self, table: Table) -> list[EngineColumn]:
        """The unit's column of a table, or those at the ends of its ways."""
        if table.unit_key is not None:
            return [self._tables[table.name].columns[table.unit_key]]
        return [end for via in table.unit_via for end in self._ends(self._table(via.table))]

    def _table(self, name: str) -> Table:
        table = self._policy.table(name)
        if table is None:
            raise TypeError("unit path does not end at a unit key")
        return table

    def _stored(self, column: EngineColumn, target: EngineColumn) -> str:
        """The engine's type of a column's canonical values, read as those of another."""
        return self._dialect.stored_type(column, target.sql_type)


def _is_narrower(declared: SqlType, found: SqlType) -> bool:
    """True if units with large numbers would be lost."""
    return declared in _WHOLE and _WHOLE.index(declared) < _WHOLE.index(found)


def _hint(found: EngineColumn) -> str:
    return f"A key is {_KEYS}, declared with its own type: {found.sql_type.value} here."
