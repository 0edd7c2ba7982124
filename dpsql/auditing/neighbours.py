"""neighbours: generated databases with a policy's tables, which differ in the rows of units.

Units that are on one side only are called varying units; the other generated units are on both sides.

Rule 1: only the schema of the policy's database is read, unless the owner asks to copy its rows. Nothing is written to
    it, and errors that its rows cause are not quoted.
Rule 2: each varying unit has groups of its own. In these groups the two sides are neighbours.
Rule 3: a varying unit exceeds every bound: it has more rows and groups than count, and values beyond the bounds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import duckdb

from dpsql.auditing.values import beyond, constant, engine_type, null, number_as
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.ir.schema import EngineSchema, EngineTable
from dpsql.errors import NotSupportedError
from dpsql.policy import Budget, MechanismChoice, Policy, PolicyColumn, QueryDefaults, Role, Table, UnitVia
from dpsql.policy.engines import DUCKDB, engine_of
from dpsql.privacy.cost import Accountant, Adjacency
from dpsql.sqltypes import SqlType

PROBE, BLOCK, SECRET = "audit_probe", "audit_block", "audit_secret"
CHOICE, CROWD, PLACE = "audit_choice", "audit_crowd", "audit_place"
"""Columns that every protected table has in addition to its own.

PROBE is the unit's group, BLOCK its many groups, SECRET a private key, CHOICE a public value that is equal in all its
rows, CROWD another group, and PLACE a number. Residents are on both sides; they have the SECRET and CROWD of a varying
unit. PLACE numbers the residents from 1 and is 0 for varying units, so that a query can say how many residents count. A
unit and its substitute share their CROWD and no other group.
"""
RESIDENTS = 8
SPREAD = 12
"""The number of groups of one unit, by BLOCK."""
CHOICES = tuple("abcdefghijklmnop")
ROLES = {accountant: f"audit_{accountant.value}" for accountant in Accountant}
_MOST_DELTA = Fraction(1, 20)
"""δ of a query with private keys; large enough to be measured."""
MAX_EPSILON = Fraction(8)

_PROBES, _BLOCKS, _OWNERS = "audit_probes", "audit_blocks", "audit_source"
_OTHERS = 5
"""Units on both sides that are no residents."""
_PUBLIC_ROWS = 10
_MOST_ROWS = 250_000
"""The most rows of all varying units in one table."""


class NotAuditable(NotSupportedError, code="0A000"):
    """Neighbours cannot be generated for the policy's tables."""


@dataclass(frozen=True)
class DatasetRows:
    """The units whose rows a database has.

    Attributes:
        name: The name of the database.
        first: The number of the first varying unit; None if the database has none.
        high: Whether their values are beyond the bounds that are farther from 0; else beyond the others.
        orphans: Whether the database has rows without a unit.
    """

    name: str
    first: int | None
    high: bool = True
    orphans: bool = False


@dataclass(frozen=True)
class Database:
    """A database of the audit.

    Attributes:
        url: Its URL.
        schemas: Its names for the policy's schemas; the others have the same name.
    """

    url: str
    schemas: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Datasets:
    """The policy under audit, and how its databases are generated.

    Attributes:
        policy: The owner's policy with the columns, roles and budgets of the audit; `at` gives it a database.
        schema: The constraints that the owner's engine enforces.
        units: The number of varying units; each is a pair of neighbours.
        source: The DuckDB file whose rows are on both sides; None for a few generated units.
    """

    policy: Policy
    schema: EngineSchema
    units: int
    source: Path | None = None

    @property
    def protected(self) -> tuple[Table, ...]:
        """The protected tables."""
        return tuple(table for table in self.policy.tables if not table.public)

    @property
    def substitutes(self) -> bool:
        """Whether neighbours differ by the replacement of a unit."""
        return self.policy.dataset.adjacency is Adjacency.SUBSTITUTE

    def has_orphans(self, table: Table) -> bool:
        """Whether the table can have rows without a unit."""
        column = table.unit_key or _via(table).on[0][0]
        return not self._engine(table).columns[column].not_null

    def rows_of(self, table: Table) -> int:
        """The rows of each varying unit: more than count, unless a unique key allows fewer."""
        keys = frozenset({table.unit_key} if table.unit_key else {here for here, _ in _via(table).on})
        if self._engine(table).is_unique(keys):
            return 1 if table.unit_key else self.rows_of(self._parent(table))
        return max(2 * (table.rows_per_unit or 1), 2 * SPREAD)

    def schema_of(self, table: Table) -> str:
        """The policy's schema of a table."""
        return table.schema or self.policy.dataset.schema

    def path_of(self, table: Table) -> str:
        """A table's schema and name, quoted."""
        return f"{DuckDB.quote_name(self.schema_of(table))}.{DuckDB.quote_name(table.relation)}"

    def definition(self, table: Table) -> Iterator[str]:
        """Yield SQL that creates a table in DuckDB and in PostgreSQL."""
        known = self.schema.tables.get(table.name)
        listed = []
        for name, sql_type in self.columns(table).items():
            not_null = known is not None and name in known.columns and known.columns[name].not_null
            is_key = any(name in names for names in self._unique(table)) or name == table.unit_key
            listed.append(
                f"{DuckDB.quote_name(name)} {engine_type(sql_type)}{' NOT NULL' if not_null and is_key else ''}"
            )
        listed += [f"UNIQUE ({', '.join(map(DuckDB.quote_name, names))})" for names in self._unique(table)]
        yield f"CREATE SCHEMA IF NOT EXISTS {DuckDB.quote_name(self.schema_of(table))}"
        yield f"CREATE TABLE {self.path_of(table)} ({', '.join(listed)})"

    def at(
        self, database: Database, accountant: Accountant, version: str = "audit", delta: Fraction | None = None
    ) -> Policy:
        """The policy of one database; its cap is the budget of the accountant's role."""
        own, renamed = self.policy.dataset, database.schemas.get
        budget = self.policy.roles[list(ROLES).index(accountant)].budget
        schema = renamed(own.schema, own.schema)
        dataset = replace(own, url=database.url, schema=schema, data_version=version, budget=budget)
        tables = tuple(
            replace(each, schema=renamed(each.schema, each.schema)) if each.schema else each
            for each in self.policy.tables
        )
        roles = [
            replace(r, query=replace(r.query, delta=delta)) if delta and r.query.delta else r for r in self.policy.roles
        ]
        return replace(self.policy, dataset=dataset, tables=tables, roles=tuple(roles))

    def write(self, folder: Path, rows: DatasetRows) -> Path:
        """Create a database, and return its file."""
        path = folder / f"{rows.name}.duckdb"
        with duckdb.connect(str(path)) as database:
            database.execute("SET TimeZone = 'UTC'")
            if self.source is not None:
                database.execute(f"ATTACH {DuckDB.quote_text(str(self.source))} AS {_OWNERS} (READ_ONLY)")
            for table in self.policy.tables:
                try:
                    for statement in self.definition(table):
                        database.execute(statement)
                    for select in self._selects(table, rows):
                        database.execute(f"INSERT INTO {self.path_of(table)} BY NAME {select}")
                except duckdb.Error as error:
                    told = str(error).splitlines()[0] if self.source is None else type(error).__name__
                    raise NotAuditable(f'could not generate rows for table "{table.name}": {told}') from None
        return path

    def _selects(self, table: Table, rows: DatasetRows) -> Iterator[str]:
        """SQL for the rows of one table."""
        if self.source is not None and table.name not in (_PROBES, _BLOCKS):
            yield self._copied_rows(table)
        elif table.public:
            yield self._public_rows(table)
        else:
            yield self._unit_rows(table, -_OTHERS, 0, 1, high=True)
        if table.public:
            return
        count = self.rows_of(table)
        for place in range(1, RESIDENTS + 1):
            first, groups = 2 * self.units * place, self.units * (1 + self.substitutes)
            yield self._unit_rows(table, first, first + groups, min(count, table.rows_per_unit or 1), high=False)
        if rows.first is not None:
            yield self._unit_rows(table, rows.first, rows.first + self.units, count, high=rows.high)
        if rows.orphans and self.has_orphans(table):
            yield self._unit_rows(table, 0, 1, count, high=True, lost=True)

    # Tables

    def _engine(self, table: Table) -> EngineTable:
        return self.schema.tables[table.name]

    def _parent(self, table: Table) -> Table:
        return next(each for each in self.policy.tables if each.name == _via(table).table)

    def columns(self, table: Table) -> dict[str, SqlType]:
        """The columns of a table in the audit's databases: those of the policy, and those that keys need."""
        columns = {column.name: column.type for column in table.columns}
        known = self.schema.tables[table.name].columns if table.name in self.schema.tables else {}
        needed = {name for names in self._unique(table) for name in names}
        needed |= {*table.within_unit} | ({table.unit_key} if table.unit_key else set())
        needed |= {here for via in table.unit_via for here, _ in via.on}
        needed |= {via.where.column for via in table.unit_via if via.where is not None}
        ways = (via for child in self.policy.tables for via in child.unit_via if via.table == table.name)
        needed |= {there for via in ways for _, there in via.on}
        return columns | {name: known[name].sql_type for name in sorted(needed) if name not in columns}

    def _unique(self, table: Table) -> list[list[str]]:
        known = self.schema.tables.get(table.name)
        return sorted(sorted(names) for names in known.unique_keys) if known is not None else []

    # Rows

    def _public_rows(self, table: Table) -> str:
        own = {_PROBES: 2 * self.units, _BLOCKS: 2 * self.units * SPREAD}
        values = [
            f"{number_as('r', sql_type)} AS {DuckDB.quote_name(name)}" for name, sql_type in self.columns(table).items()
        ]
        return f"SELECT {', '.join(values)} FROM range({own.get(table.name, _PUBLIC_ROWS)}) AS rows (r)"

    def _copied_rows(self, table: Table) -> str:
        """The owner's rows; the audit's own columns are NULL, except for CHOICE."""
        own = dict.fromkeys((PROBE, BLOCK, SECRET, CROWD, PLACE), "NULL") | {CHOICE: f"'{CHOICES[0]}'"}
        values = [
            f"CAST({own.get(name, DuckDB.quote_name(name))} AS {engine_type(sql_type)}) AS {DuckDB.quote_name(name)}"
            for name, sql_type in self.columns(table).items()
        ]
        return f"SELECT {', '.join(values)} FROM {_OWNERS}.{self.path_of(table)}"

    @property
    def _shift(self) -> int:
        """An offset of generated keys, so that no generated unit is one of the owner's."""
        return 0 if self.source is None else 10**9

    def _unit_rows(self, table: Table, first: int, end: int, rows: int, *, high: bool, lost: bool = False) -> str:
        """SQL for the rows of the units from `first` to `end` - 1, `rows` each."""
        values = [
            f"{self._value(table, name, sql_type, 'u', 'r', high, lost)} AS {DuckDB.quote_name(name)}"
            for name, sql_type in self.columns(table).items()
        ]
        return f"SELECT {', '.join(values)} FROM range({first}, {end}) AS units (u), range({rows}) AS rows (r)"

    def _value(self, table: Table, name: str, sql_type: SqlType, unit: str, row: str, high: bool, lost: bool) -> str:
        """SQL for the value of one column in row `row` of unit `unit`."""
        if name == table.unit_key:
            return null(sql_type) if lost else number_as(f"({unit} + {self._shift})", sql_type)
        way = _via(table) if table.unit_via else None
        if way is not None and way.where is not None and name == way.where.column:
            return constant(way.where.values[0], sql_type)
        if way is not None and (there := dict(way.on).get(name)) is not None:
            parent = self._parent(table)
            above = f"({row} % (CASE WHEN {unit} < 0 THEN 1 ELSE {self.rows_of(parent)} END))"
            return null(sql_type) if lost else self._value(parent, there, sql_type, unit, above, high, lost)
        column = table.column(name)
        if column is not None and any(name in names for names in self._unique(table)):
            column = None
        if column is None:
            rows = self.rows_of(table)
            place = f"{unit if not lost else 4 * self.units} * {rows} + {row}"
            return number_as(f"({place} + {self._shift})", sql_type)
        return self._listed(column, unit, row, high)

    def _listed(self, column: PolicyColumn, unit: str, row: str, high: bool) -> str:
        """SQL for a listed column; in PROBE and BLOCK, only varying units have a value."""
        stays = f"{unit} < 0 OR {unit} >= {2 * self.units}"
        match column.name:
            case "audit_probe":
                return f"CASE WHEN NOT ({stays}) THEN {unit} END"
            case "audit_block":
                return f"CASE WHEN NOT ({stays}) THEN {unit} * {SPREAD} + {row} % {SPREAD} END"
            case "audit_secret":
                return f"CASE WHEN {unit} >= 0 THEN 's' || {unit} % {2 * self.units} END"
            case "audit_crowd":
                shared = f"{unit} >= 0 AND ({unit} < {2 * self.units} OR {unit} % {2 * self.units} < {self.units})"
                return f"CASE WHEN {shared} THEN {unit} % {self.units} END"
            case "audit_place":
                return f"CASE WHEN {unit} >= 0 THEN {unit} // {2 * self.units} END"
            case "audit_choice":
                return f"CASE WHEN {unit} >= 0 AND {unit} < {self.units} THEN 'b' ELSE 'a' END"
        if column.values:
            listed = ", ".join(constant(value, column.type) for value in column.values)
            return f"list_extract([{listed}], CAST({row} % {len(column.values)} AS BIGINT) + 1)"
        if column.values_from is not None:
            return number_as(f"({row} % {_PUBLIC_ROWS})", column.type)
        return beyond(column, high)


_PUBLIC = tuple(
    Table(
        name,
        None,
        True,
        None,
        (),
        None,
        None,
        None,
        None,
        (PolicyColumn(column, SqlType.INTEGER, nullable=False),),
    )
    for name, column in ((_PROBES, "probe"), (_BLOCKS, "block"))
)
"""The audit's own tables."""
_OWN = (
    PolicyColumn(PROBE, SqlType.INTEGER, values_from=(_PROBES, "probe")),
    PolicyColumn(BLOCK, SqlType.INTEGER, values_from=(_BLOCKS, "block")),
    PolicyColumn(SECRET, SqlType.TEXT),
    PolicyColumn(CHOICE, SqlType.TEXT, values=CHOICES, nullable=False),
    PolicyColumn(CROWD, SqlType.INTEGER, values_from=(_PROBES, "probe")),
    PolicyColumn(PLACE, SqlType.INTEGER),
)
"""The audit's own columns of protected tables."""


def datasets(policy: Policy, schema: EngineSchema, units: int, runs: int, *, with_rows: bool = False) -> Datasets:
    """Return the datasets for the audit of a policy.

    Args:
        policy: The policy.
        schema: The constraints that its engine enforces.
        units: The number of varying units; it is reduced if each has many rows.
        runs: The number of runs of each class that the budgets must allow.
        with_rows: Whether the rows of the policy's database are copied as well.

    Raises:
        NotAuditable: A table or column has a name that the audit needs, or `with_rows` is set for another engine than
            DuckDB.
    """
    taken = {table.name for table in policy.tables} | {c.name for table in policy.tables for c in table.columns}
    if clash := sorted(taken & {_PROBES, _BLOCKS, PROBE, BLOCK, SECRET, CHOICE, CROWD, PLACE}):
        raise NotAuditable(f'the audit itself uses the name "{clash[0]}"', hint="Audit a copy without it.")
    # min_units is removed: the audit computes the distribution without it, and some accountants do not allow it.
    held = [replace(table, files=None) for table in policy.tables]
    tables = tuple(t if t.public else replace(t, columns=(*t.columns, *_OWN), min_units=1) for t in held)
    names = frozenset(table.name for table in (*tables, *_PUBLIC))
    budgets = {accountant: _budget(accountant) for accountant in ROLES}
    delta = min(_MOST_DELTA, Fraction(9, 10) / runs)
    dataset = replace(
        policy.dataset,
        budget=budgets[Accountant.BASIC],
        cap="audit",
        reply_quantum=0,
        preview="refuse",
        prepared_schema=None,
    )
    audited = replace(
        policy,
        dataset=dataset,
        roles=tuple(Role(name, budgets[each], _defaults(each, delta), names) for each, name in ROLES.items()),
        tables=(*tables, *_PUBLIC),
        groups=(),
    )
    if with_rows and engine_of(policy.dataset.url) is not DUCKDB:
        raise NotAuditable(
            "rows can be copied only from a DuckDB file", hint="Leave out --with-rows to audit generated rows."
        )
    made = Datasets(audited, schema, units, Path(DUCKDB.location(policy.dataset.url)) if with_rows else None)
    most = max(made.rows_of(table) for table in made.protected)
    return replace(made, units=max(2, min(units, _MOST_ROWS // most)))


def _budget(accountant: Accountant) -> Budget:
    """A budget that the audit does not use up, with δ for one selection per run."""
    delta = Fraction(0) if accountant is Accountant.PURE else Fraction(99, 100)
    share = Fraction(99, 100) if accountant in (Accountant.ZCDP, Accountant.ADVANCED) else Fraction(0)
    return Budget(Fraction(10**6), delta, accountant, None, share)


def _defaults(accountant: Accountant, delta: Fraction) -> QueryDefaults:
    without = accountant in (Accountant.PURE, Accountant.RDP)
    return QueryDefaults(Fraction(1), Fraction(0) if without else delta, MechanismChoice.LAPLACE, MAX_EPSILON)


def neighbours(datasets: Datasets) -> tuple[DatasetRows, DatasetRows]:
    """The two sides: with all varying units and with none, or with other units in their place."""
    if datasets.substitutes:
        # Both have values at the bound farther from 0, so both groups change as much as they can.
        return DatasetRows("one", 0), DatasetRows("other", datasets.units)
    return DatasetRows("present", 0), DatasetRows("absent", None)


def _via(table: Table) -> UnitVia:
    """The first way of a table to its unit, which all generated rows take."""
    if not table.unit_via:
        raise TypeError("a protected table has a unit key or a way to it")
    return table.unit_via[0]
