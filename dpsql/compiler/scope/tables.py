"""tables: the relations that one user may name, and their known properties before any data is read."""

from dataclasses import dataclass, replace

from dpsql.compiler.ir.nodes import (
    WITHIN_UNIT,
    Field,
    Link,
    Protected,
    Public,
    Released,
    Scan,
    Status,
    SystemScan,
    UnitScan,
)
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.scope.lowering import Fields, Lowered
from dpsql.compiler.scope.resolve import undefined_table
from dpsql.policy import Policy, PolicyColumn, Role, Table
from dpsql.policy.profile import Profile
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class SystemTable:
    """A relation of schema dpsql: the gateway's own rows, made from policy and ledger for one user."""

    name: str
    columns: tuple[tuple[str, SqlType], ...]


SYSTEM_TABLES = {
    table.name: table
    for table in (
        SystemTable(
            "budget",
            (
                ("scope", SqlType.TEXT),
                ("accountant", SqlType.TEXT),
                ("epsilon_limit", SqlType.DOUBLE),
                ("epsilon_spent", SqlType.DOUBLE),
                ("epsilon_remaining", SqlType.DOUBLE),
                ("delta_limit", SqlType.DOUBLE),
                ("delta_remaining", SqlType.DOUBLE),
                ("queries", SqlType.BIGINT),
                ("queries_that_fit", SqlType.BIGINT),
                ("window_start", SqlType.TIMESTAMPTZ),
                ("window_end", SqlType.TIMESTAMPTZ),
                ("last_query_fits", SqlType.BIGINT),
                ("note", SqlType.TEXT),
            ),
        ),
        SystemTable(
            "columns",
            (
                ("table_name", SqlType.TEXT),
                ("column_name", SqlType.TEXT),
                ("data_type", SqlType.TEXT),
                ("status", SqlType.TEXT),
                ("lower", SqlType.TEXT),
                ("upper", SqlType.TEXT),
                ("domain", SqlType.TEXT),
                ("description", SqlType.TEXT),
            ),
        ),
        SystemTable(
            "releases",
            (
                ("release", SqlType.BIGINT),
                ("created", SqlType.TIMESTAMPTZ),
                ("query", SqlType.TEXT),
                ("epsilon", SqlType.DOUBLE),
                ("rho", SqlType.DOUBLE),
                ("delta", SqlType.DOUBLE),
                ("reused", SqlType.BIGINT),
                ("price", SqlType.TEXT),
                ("kept", SqlType.BOOLEAN),
            ),
        ),
    )
}


@dataclass(frozen=True)
class Catalog:
    """A policy as one role sees it, with the facts that the engine's schema enforces.

    Attributes:
        policy: The policy.
        schema: The facts.
        role: The role.
        profile: The released numbers of rows per unit, from which bounds may be chosen; None without a profile.
    """

    policy: Policy
    schema: EngineSchema
    role: Role
    profile: Profile | None = None

    def table(self, name: str) -> Table | None:
        """The table of that policy name, if the role may see it."""
        table = self.policy.table(name)
        return table if table is not None and name in self.role.tables else None

    def names(self) -> tuple[str, ...]:
        """Return the names that are allowed in FROM."""
        return tuple(sorted(self.role.tables)) + tuple(f"dpsql.{name}" for name in SYSTEM_TABLES)

    @property
    def unit_key(self) -> str:
        """The name of a column that is the unit's key, for hints."""
        tables = (table for table in self.policy.tables if table.name in self.role.tables)
        return next((table.unit_key for table in tables if table.unit_key is not None), "unit_key")

    def is_not_null(self, table: Table, column: str) -> bool:
        """True where the engine enforces NOT NULL."""
        return self.schema.tables[table.name].columns[column].not_null


@dataclass(frozen=True)
class Tables:
    """Finds tables by the names in queries.

    Attributes:
        catalog: The relations that the user may name.
        fields: The source of fields.
        schemas: The search path.
    """

    catalog: Catalog
    fields: Fields
    schemas: tuple[str, ...] = ("public",)

    def find(self, schema: str | None, name: str, at: int | None) -> Lowered:
        """The table of a name.

        Raises:
            UndefinedTable: There is none that the user may see.
        """
        for each in self.schemas if schema is None else (schema,):
            found = self._in_schema(each, name)
            if found is not None:
                return found
        full = name if schema is None else f"{schema}.{name}"
        raise undefined_table(full, self.catalog.names(), at)

    def _in_schema(self, schema: str, name: str) -> Lowered | None:
        if schema == "dpsql" and name in SYSTEM_TABLES:
            columns = tuple((column, self.fields.new(type_)) for column, type_ in SYSTEM_TABLES[name].columns)
            scanned = SystemScan(name, tuple(field for _, field in columns))
            return Lowered(Released(scanned), columns, schemas=frozenset({"dpsql"}))
        own = frozenset({self.catalog.policy.dataset.schema, "public"})
        schemas = own if schema in own else frozenset({schema})
        table = self.catalog.table(name) if schemas == own else None
        # A policy may name the dataset's own schema, too.
        written = self.catalog.policy.dataset.schema if schemas == own else schema
        table = table or self.catalog.table(f"{written}.{name}")
        if table is None:
            return None
        if not table.public:
            return replace(self.protected(table), schemas=schemas)
        fields = tuple(self.fields.new(column.type) for column in table.columns)
        names = (column.name for column in table.columns)
        named = tuple(zip(names, fields, strict=True))
        return Lowered(Public(Scan(table, table.columns, fields)), named, schemas=schemas)

    def protected(self, table: Table) -> Lowered:
        """The rows of a protected table, with their hidden unit."""
        unit_column = self._unit_column(table)
        unit = self.fields.new(unit_column.type)
        own_unit = unit_column.name if table.unit_key is not None else None
        keys = tuple(self._unlisted(table, name) for name in self._key_names(table) if name != own_unit)
        unlisted = tuple(column for column in keys if column is not None)
        scanned = tuple(column for column in (*table.columns, *unlisted) if column.name != own_unit)
        by_name = {column.name: self.fields.new(column.type) for column in scanned}
        relation = UnitScan(table, scanned, tuple(by_name.values()), unit)
        shown = {column.name: unit if column.name == own_unit else by_name[column.name] for column in table.columns}
        hidden = {column.name: by_name[column.name] for column in unlisted}
        if unit_column.name not in shown and unit_column.name not in hidden:
            hidden[unit_column.name] = unit
        status = self._status(table, relation, self._links(table, unit, own_unit, by_name))
        return Lowered(status, tuple(shown.items()), tuple(hidden.items()), frozenset(hidden.values()))

    def _status(self, table: Table, relation: UnitScan, links: frozenset[Link]) -> Status:
        schema = self.catalog.schema.tables[table.name]
        one_row = table.unit_key is not None and schema.is_unique(frozenset({table.unit_key}))
        limits = (1, 1, 1) if one_row else (table.rows_per_unit, table.groups_per_unit, table.rows_per_group)
        max_rows, max_groups, per_group = (limit or 1 for limit in limits)
        return Protected(relation, relation.unit_field, max_rows, max_groups, per_group, one_row, links)

    def _unit_column(self, table: Table) -> PolicyColumn:
        """The column that names the unit, in this table or at the end of its first way."""
        while table.unit_via:
            parent = self.catalog.policy.table(table.unit_via[0].table)
            if parent is None:
                raise TypeError("unit path does not end at a unit key")
            table = parent
        name = table.unit_key or ""
        column = table.column(name)
        return column or PolicyColumn(name, self.catalog.schema.tables[table.name].columns[name].sql_type)

    def _ways(self, table: Table) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The keys of a table that lead to the unit: the name of each way, and its columns in this table.

        Guarantee: rows of two units never meet, with any rows in the tables: a join on a key compares the units, too.
        Assumes: for that, nothing; what the policy says of keys only decides which joins are accepted.
        Reference: Wilson et al. 2020, for joins of protected tables that compare their units.
        """
        ways = []
        for via in table.unit_via:
            here, there = zip(*via.on, strict=True)
            ways.append(((via.table, *there), here))
        for via in (via for child in self.catalog.policy.tables for via in child.unit_via if via.table == table.name):
            own = tuple(column for _, column in via.on)
            ways.append(((table.name, *own), own))
        ways += [(WITHIN_UNIT, (name,)) for name in table.within_unit]
        return list(dict.fromkeys(ways))

    def _key_names(self, table: Table) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, columns in self._ways(table) for name in columns))

    def _unlisted(self, table: Table, name: str) -> PolicyColumn | None:
        """A key that the policy does not list as a column: joins may name it, and nothing else."""
        if table.column(name) is not None:
            return None
        return PolicyColumn(name, self.catalog.schema.tables[table.name].columns[name].sql_type)

    def _links(self, table: Table, unit: Field, own_unit: str | None, by_name: dict[str, Field]) -> frozenset[Link]:
        named = by_name if own_unit is None else by_name | {own_unit: unit}
        ways = {Link(way, tuple(named[name] for name in columns)) for way, columns in self._ways(table)}
        return frozenset(ways | {Link((), (unit,))})
