"""objects: a policy's tables, keys and comments as rows of pg_catalog, for one role.

Rule 1: rows depend only on the policy, and on the declared types of keys that it does not list.
Rule 2: objects that the role may not see have no rows, and no key refers to them.
Rule 3: OIDs are derived from names, so they are the same in all sessions and for all roles.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from dpsql.catalog.kinds import Kind, named, of_sql_type
from dpsql.catalog.relations import Row, typed_rows
from dpsql.compiler.scope.tables import SYSTEM_TABLES
from dpsql.policy import Policy, PolicyColumn, Role, Table
from dpsql.sqltypes import SqlType

KeyType = Callable[[str, str], SqlType]
OWNER_OID: Final = 10
OWNER: Final = "dpsql"
PUBLIC_OID: Final = 2200
_FIRST_OID: Final = 16384
_OIDS: Final = 2**30
_SHOWN_VALUES: Final = 20
_BTREE, _HEAP = 403, 2
_CLASS_OID, _CONSTRAINT_OID = 1259, 2606


@dataclass(frozen=True)
class ShownColumn:
    """A column of a table or view, with its number from 1."""

    name: str
    number: int
    kind: Kind
    not_null: bool
    comment: str | None


@dataclass(frozen=True)
class Key:
    """A primary, unique or foreign key; `refers` and `there` are those of a foreign one."""

    name: str
    kind: str
    columns: tuple[int, ...]
    refers: str | None = None
    there: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A table or view that the user may see."""

    schema: str
    name: str
    relkind: str
    columns: tuple[ShownColumn, ...]
    keys: tuple[Key, ...]
    comment: str | None

    @property
    def path(self) -> str:
        """Schema and name."""
        return f"{self.schema}.{self.name}"

    def number(self, column: str) -> int:
        """The number of a column."""
        return next(shown.number for shown in self.columns if shown.name == column)


class Oids:
    """OIDs by name, from 16384 on: a hash, and the next that is free where two names have the same."""

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._taken: set[int] = set()

    def __getitem__(self, name: str) -> int:
        if name not in self._by_name:
            oid = _FIRST_OID + zlib.crc32(name.encode()) % _OIDS
            while oid in self._taken:
                oid += 1
            self._taken.add(oid)
            self._by_name[name] = oid
        return self._by_name[name]


class PolicyObjects:
    """The rows that a policy adds to pg_catalog.

    Args:
        policy: Whose tables.
        role: Who sees them.
        key_type: The declared type of a key column that the policy does not list, by table and column.
    """

    def __init__(self, policy: Policy, role: Role, key_type: KeyType) -> None:
        self._policy = policy
        self._role = role
        self._key_type = key_type
        self.oids = Oids()
        for table in policy.tables:  # all of them, so that what others see changes no OID
            self._claim(_schema(table), table.relation)
        for name in SYSTEM_TABLES:
            self._claim("dpsql", name)
            self.oids[f"rule dpsql.{name}"]
        for schema in sorted({_schema(table) for table in policy.tables} | {"dpsql"}):
            self.oids[f"schema {schema}"]

    def _claim(self, schema: str, name: str) -> None:
        for what in ("table", "type", "array"):
            self.oids[f"{what} {schema}.{name}"]

    def schema_oid(self, schema: str) -> int:
        """The OID of a schema of the policy."""
        return PUBLIC_OID if schema == "public" else self.oids[f"schema {schema}"]

    def table_oid(self, path: str) -> int:
        """The OID of a table or view of the policy."""
        return self.oids[f"table {path}"]

    @cached_property
    def shown(self) -> tuple[Shown, ...]:
        """The tables and views of the role, in the policy's order."""
        tables = [self._table(table) for table in self._policy.tables if table.name in self._role.tables]
        return (*tables, *map(_system_view, SYSTEM_TABLES))

    @cached_property
    def schemas(self) -> tuple[str, ...]:
        """The schemas that hold something; public is always there."""
        return tuple(sorted({"public"} | {shown.schema for shown in self.shown}))

    @cached_property
    def _referred_to(self) -> frozenset[str]:
        """The tables that foreign keys lead to."""
        return frozenset(key.refers for shown in self.shown for key in shown.keys if key.refers is not None)

    def _visible(self) -> Iterator[Table]:
        return (table for table in self._policy.tables if table.name in self._role.tables)

    def _table(self, table: Table) -> Shown:
        keys = self._key_columns(table)
        primary = self._primary(table)
        names = [name for name in keys if table.column(name) is None] + [column.name for column in table.columns]
        columns = tuple(
            ShownColumn(
                name,
                number,
                of_sql_type(column.type if column is not None else self._key_type(table.name, name)),
                name in primary or (column is not None and not column.nullable),
                _column_comment(column),
            )
            for number, name in enumerate(names, 1)
            for column in (table.column(name),)
        )
        numbers = {column.name: column.number for column in columns}
        return Shown(
            _schema(table), table.relation, "r", columns, tuple(self._keys(table, numbers)), self._comment(table)
        )

    def _key_columns(self, table: Table) -> list[str]:
        """Return the columns that name the unit or lead to it, in this table and from tables that refer to it."""
        names = [] if table.unit_key is None else [table.unit_key]
        names += [here for via in table.unit_via for here, _ in via.on]
        ways = (via for child in self._visible() for via in child.unit_via)
        names += [there for via in ways if via.table == table.name for _, there in via.on]
        return list(dict.fromkeys((*names, *table.within_unit)))

    def _primary(self, table: Table) -> tuple[str, ...]:
        """The primary key: the unit key if a unit has one row, else the columns that another table refers to."""
        if table.unit_key is not None and table.rows_per_unit == 1:
            return (table.unit_key,)
        ways = (via for child in self._policy.tables if child.name in self._role.tables for via in child.unit_via)
        return next((tuple(there for _, there in via.on) for via in ways if via.table == table.name), ())

    def _keys(self, table: Table, numbers: Mapping[str, int]) -> Iterator[Key]:
        primary = self._primary(table)
        if primary:
            yield Key(f"{table.relation}_pkey", "p", tuple(numbers[name] for name in primary))
        referred = self._referred(table)
        if referred is not None:
            parent, pairs = referred
            here = tuple(numbers[mine] for mine, _ in pairs)
            name = "_".join([table.relation, *(mine for mine, _ in pairs), "fkey"])
            yield Key(name, "f", here, f"{_schema(parent)}.{parent.relation}", self._numbers(parent, pairs))

    def _referred(self, table: Table) -> tuple[Table, tuple[tuple[str, str], ...]] | None:
        """Return the table that leads to the unit, or the one with one row for each unit."""
        if table.unit_via:
            # With several ways, each applies to some rows only.
            via = table.unit_via[0]
            parent = self._policy.table(via.table) if len(table.unit_via) == 1 else None
            return (parent, via.on) if parent is not None and parent.name in self._role.tables else None
        if table.unit_key is None or table.rows_per_unit == 1:
            return None
        units = [other for other in self._visible() if other.unit_key is not None and other.rows_per_unit == 1]
        return (units[0], ((table.unit_key, str(units[0].unit_key)),)) if len(units) == 1 else None

    def _numbers(self, parent: Table, pairs: Iterable[tuple[str, str]]) -> tuple[int, ...]:
        hidden = [name for name in self._key_columns(parent) if parent.column(name) is None]
        names = [*hidden, *(column.name for column in parent.columns)]
        return tuple(names.index(there) + 1 for _, there in pairs)

    def _comment(self, table: Table) -> str | None:
        said = [table.description] if table.description else []
        if table.unit_key is not None:
            said.append(f"unit key {table.unit_key}")
        elif table.unit_via:
            said.append(f"unit by way of {' or '.join(via.table for via in table.unit_via)}")
        return "; ".join(said) or None

    # Rows

    def rows(self) -> dict[str, list[Row]]:
        """The rows by relation of pg_catalog; a column that a row leaves out has its default."""
        made: dict[str, list[Row]] = {"pg_namespace": list(self._namespaces())}
        for shown in self.shown:
            for relation, row in self._relation_rows(shown):
                made.setdefault(relation, []).append(row)
        return made

    def _namespaces(self) -> Iterator[Row]:
        for schema in self.schemas:
            if schema != "public":
                yield {"oid": self.schema_oid(schema), "nspname": schema}

    def _relation_rows(self, shown: Shown) -> Iterator[tuple[str, Row]]:
        oid, namespace = self.table_oid(shown.path), self.schema_oid(shown.schema)
        row_type, array_type = self.oids[f"type {shown.path}"], self.oids[f"array {shown.path}"]
        is_view, kinds = shown.relkind == "v", [key.kind for key in shown.keys]
        # Foreign keys are kept by triggers; psql looks for the keys only where there are some.
        has: Row = {"relhastriggers": shown.path in self._referred_to or "f" in kinds, "relhasindex": "p" in kinds}
        row = _class(oid, shown.name, namespace, shown.relkind, len(shown.columns))
        yield "pg_class", {**row, **has, "relhasrules": is_view, "reltype": row_type}
        own = {"oid": row_type, "typname": shown.name, "typtype": "c", "typcategory": "C", "typrelid": oid}
        yield "pg_type", {**own, **_RECORD_IO, "typnamespace": namespace, "typarray": array_type}
        own = {"oid": array_type, "typname": f"_{shown.name}", "typtype": "b", "typcategory": "A", "typelem": row_type}
        yield "pg_type", {**own, **_ARRAY_IO, "typnamespace": namespace}
        for column in shown.columns:
            yield "pg_attribute", _attribute(oid, column.number, column, column.not_null)
        comments = [(0, shown.comment), *((column.number, column.comment) for column in shown.columns)]
        for number, comment in comments:
            if comment is not None:
                yield "pg_description", {"objoid": oid, "objsubid": number, "description": comment}
        if is_view:  # what makes a table a view is a rule
            yield "pg_rewrite", {"oid": self.oids[f"rule {shown.path}"], "ev_class": oid}
        for key in shown.keys:
            yield from self._key_rows(shown, key, oid, namespace)

    def _key_rows(self, shown: Shown, key: Key, oid: int, namespace: int) -> Iterator[tuple[str, Row]]:
        index, constraint = self._index_oid(shown, key), self.oids[f"constraint {shown.path} {key.name}"]
        row = {"oid": constraint, "conname": key.name, "connamespace": namespace, "contype": key.kind}
        row |= {"conrelid": oid, "conindid": index, "conkey": list(key.columns), "confkey": None}
        there = 0
        if key.kind == "p":
            columns = [shown.columns[number - 1] for number in key.columns]
            yield "pg_class", _class(index, key.name, namespace, "i", len(columns))
            for number, column in enumerate(columns, 1):
                yield "pg_attribute", _attribute(index, number, column, False)
            yield "pg_index", _index(index, oid, columns)
            yield "pg_depend", _depends((_CLASS_OID, index), (_CONSTRAINT_OID, constraint), "i")
            row |= dict.fromkeys(("confupdtype", "confdeltype", "confmatchtype"), " ")
        else:  # by its index, clients find the key that a foreign one leads to
            there = self.table_oid(str(key.refers))
            yield "pg_depend", _depends((_CONSTRAINT_OID, constraint), (_CLASS_OID, index), "n")
            row |= {"confupdtype": "a", "confdeltype": "a", "confmatchtype": "s", "confrelid": there}
            row |= {"confkey": list(key.there)}
        for kind, relation, numbers in (("a", oid, key.columns), ("n", there, key.there)):
            for number in numbers:
                yield "pg_depend", _depends((_CONSTRAINT_OID, constraint), (_CLASS_OID, relation, number), kind)
        yield "pg_constraint", row

    def _index_oid(self, shown: Shown, key: Key) -> int:
        """The OID of the index that a key has, or that its foreign key leads to."""
        return self.table_oid(f"{shown.schema}.{key.name}" if key.kind == "p" else f"{key.refers}_pkey")


_RECORD_IO: Final[Row] = {"typinput": 2290, "typoutput": 2291, "typreceive": 2402, "typsend": 2403}
_ARRAY_IO: Final[Row] = {
    **{"typinput": 750, "typoutput": 751, "typreceive": 2400, "typsend": 2401, "typanalyze": 3816, "typsubscript": 6179}
}


def _schema(table: Table) -> str:
    return table.schema or "public"


def _system_view(name: str) -> Shown:
    columns = tuple(
        ShownColumn(column, number, of_sql_type(kind), False, None)
        for number, (column, kind) in enumerate(SYSTEM_TABLES[name].columns, 1)
    )
    return Shown("dpsql", name, "v", columns, (), None)


def _column_comment(column: PolicyColumn | None) -> str | None:
    """The description, and bounds or domain."""
    if column is None:
        return "key: may be joined on and counted"
    said = [column.description] if column.description else []
    if column.lower is not None and column.upper is not None:
        said.append(f"between {column.lower} and {column.upper}")
    if column.values is not None:
        values = [str(value) for value in column.values[:_SHOWN_VALUES]]
        more = len(column.values) - len(values)
        said.append("one of " + ", ".join(values) + (f" and {more} more" if more > 0 else ""))
    if column.values_from is not None:
        said.append("one of " + ".".join(column.values_from))
    return "; ".join(said) or None


def _class(oid: int, name: str, namespace: int, kind: str, columns: int) -> Row:
    method, identity = {"r": (_HEAP, "d"), "i": (_BTREE, "n"), "v": (0, "n")}[kind]
    row = {"oid": oid, "relname": name, "relnamespace": namespace, "relkind": kind, "relnatts": columns}
    return {**row, "relam": method, "relreplident": identity}


def _attribute(relation: int, number: int, column: ShownColumn, not_null: bool) -> Row:
    row = {"attrelid": relation, "attname": column.name, "atttypid": column.kind.oid, "attnum": number}
    return {**row, "attnotnull": not_null, "attndims": int(column.kind.is_array)}


def _depends(dependent: tuple[int, int], on: tuple[int, ...], kind: str) -> Row:
    """A row of pg_depend; each side has the OIDs of its relation and of itself, and a column number."""
    names = ("refclassid", "refobjid", "refobjsubid")
    return {"classid": dependent[0], "objid": dependent[1], "deptype": kind, **dict(zip(names, on, strict=False))}


@cache
def _operator_classes() -> Mapping[int, int]:
    """The operator class that an index has by default for a type, by the type's OID."""
    rows = [row for row in typed_rows("pg_opclass") if row["opcmethod"] == _BTREE and row["opcdefault"]]
    found = {int(str(row["opcintype"])): int(str(row["oid"])) for row in rows}
    return found | {named("varchar").oid: found[named("text").oid]}


def _index(index: int, relation: int, columns: list[ShownColumn]) -> Row:
    lists = {
        "indkey": [column.number for column in columns],
        "indcollation": [100 if column.kind.category == "S" else 0 for column in columns],
        "indclass": [_operator_classes().get(column.kind.oid, 0) for column in columns],
        "indoption": [0] * len(columns),
    }
    return {
        "indexrelid": index,
        "indrelid": relation,
        **dict.fromkeys(("indnatts", "indnkeyatts"), len(columns)),
        **lists,
    }
