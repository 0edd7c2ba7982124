"""worlds: generated databases in a policy's own shape, that differ by the rows of units at their limits.

Rule 1: of the policy's database the schema alone is read; no row of it is, and nothing here is written to it.
Rule 2: each unit that comes and goes has groups of its own, so each is a pair of neighbours as far as these go.
Rule 3: such a unit exceeds every limit: more rows than count, more groups, values beyond the bounds.
"""

from dataclasses import dataclass, replace
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path

import duckdb

from dpsql.compiler.engines.dialect import quote_name
from dpsql.compiler.schema import EngineSchema, EngineTable
from dpsql.policy import Budget, Column, MechanismChoice, Policy, QueryDefaults, Role, Table, UnitVia, Value
from dpsql.privacy.cost import Accountant
from dpsql.privacy.sensitivity import Adjacency
from dpsql.sqltypes import SqlType

PROBE, BLOCK, SECRET, CHOICE = "audit_probe", "audit_block", "audit_secret", "audit_choice"
"""Columns that every protected table has besides its own: a unit's group, its many groups, a key that is not public,
and a public value that all its rows have."""
SPREAD = 12
"""Groups that the rows of one unit lie in, by BLOCK."""
CHOICES = ("a", "b", "c")
ROLES = {Accountant.BASIC: "audit_basic", Accountant.ZCDP: "audit_zcdp"}
SELECTION_DELTA = Fraction(1, 20)
"""δ of a query with keys that are not public: so large that it can be measured."""
MAX_EPSILON = Fraction(8)

_PROBES, _BLOCKS = "audit_probes", "audit_blocks"
_OTHERS = 5
"""Units that stay."""
_PUBLIC_ROWS = 10
_MOST_ROWS = 250_000
"""Rows of all the units that come and go, in one table."""
_INTEGERS = {SqlType.SMALLINT: 2**15 - 1, SqlType.INTEGER: 2**31 - 1, SqlType.BIGINT: 2**63 - 1}
_ENGINE_TYPES = {
    SqlType.NUMERIC: "DECIMAL(38, 9)",
    SqlType.REAL: "FLOAT",
    SqlType.DOUBLE: "DOUBLE",
    SqlType.TIME: "TIME",
    SqlType.TIMESTAMP: "TIMESTAMP",
    SqlType.TIMESTAMPTZ: "TIMESTAMPTZ",
    SqlType.BYTEA: "BLOB",
}


@dataclass(frozen=True)
class Rows:
    """Which units' rows a database has.

    Attributes:
        name: What the database is called.
        first: Number of the first unit that comes and goes; None where none is there.
        high: Whether their values are beyond the upper bounds; else beyond the lower ones.
        nobody: Whether there are rows that lead to no unit.
    """

    name: str
    first: int | None
    high: bool = True
    nobody: bool = False


@dataclass(frozen=True)
class Worlds:
    """What is audited.

    Attributes:
        policy: The owner's, with the columns, roles and budgets of the audit; its url is that of no database.
        schema: What the owner's engine enforces.
        units: How many units come and go, one pair of neighbours each.
    """

    policy: Policy
    schema: EngineSchema
    units: int

    @property
    def protected(self) -> tuple[Table, ...]:
        """The protected tables."""
        return tuple(table for table in self.policy.tables if not table.public)

    @property
    def substitutes(self) -> bool:
        """Whether neighbours differ by a unit that is another."""
        return self.policy.dataset.adjacency is Adjacency.SUBSTITUTE

    def is_one_row(self, table: Table) -> bool:
        """Whether the engine enforces that a unit has one row."""
        return self.rows_of(table) == 1

    def has_nobody(self, table: Table) -> bool:
        """Whether there can be rows that lead to no unit."""
        column = table.unit_key or (table.unit_via.on[0][0] if table.unit_via is not None else "")
        return not self._engine(table).columns[column].not_null

    def rows_of(self, table: Table) -> int:
        """The rows of each unit that comes and goes: as many as there can be, and more than count."""
        keys = frozenset({table.unit_key} if table.unit_key else {here for here, _ in _via(table).on})
        if self._engine(table).is_unique(keys):
            return 1 if table.unit_key else self.rows_of(self._parent(table))
        return max(2 * (table.max_rows or 1), 2 * SPREAD)

    def at(self, path: Path, accountant: Accountant, version: str = "audit") -> Policy:
        """The policy of one of the databases; the cap adds up as the audit's own budget does."""
        budget = self.policy.roles[list(ROLES).index(accountant)].budget
        dataset = replace(self.policy.dataset, url=f"duckdb:///{path}", data_version=version, budget=budget)
        return replace(self.policy, dataset=dataset)

    def write(self, folder: Path, rows: Rows) -> Path:
        """Make a database, and return its file."""
        path = folder / f"{rows.name}.duckdb"
        with duckdb.connect(str(path)) as database:
            database.execute("SET TimeZone = 'UTC'")
            for table in self.policy.tables:
                self._create(database, table)
                if table.public:
                    database.execute(_insert(self._path(table), self._public_rows(table)))
                    continue
                database.execute(_insert(self._path(table), self._unit_rows(table, -_OTHERS, 0, 1, high=True)))
                if rows.first is not None:
                    of_each = self._unit_rows(
                        table, rows.first, rows.first + self.units, self.rows_of(table), high=rows.high
                    )
                    database.execute(_insert(self._path(table), of_each))
                if rows.nobody and self.has_nobody(table):
                    lost = self._unit_rows(table, 0, 1, self.rows_of(table), high=True, lost=True)
                    database.execute(_insert(self._path(table), lost))
        return path

    # Tables

    def _engine(self, table: Table) -> EngineTable:
        return self.schema.tables[table.name]

    def _parent(self, table: Table) -> Table:
        return next(each for each in self.policy.tables if each.name == _via(table).table)

    def _path(self, table: Table) -> str:
        return f"{quote_name(table.schema or self.policy.dataset.schema)}.{quote_name(table.relation)}"

    def _columns(self, table: Table) -> dict[str, SqlType]:
        """The columns that the audit's databases have: those of the policy, and those that keys need."""
        columns = {column.name: column.type for column in table.columns}
        known = self.schema.tables[table.name].columns if table.name in self.schema.tables else {}
        needed = {name for names in self._unique(table) for name in names}
        needed |= {table.unit_key} if table.unit_key else set()
        needed |= {here for here, _ in table.unit_via.on} if table.unit_via is not None else set()
        needed |= {
            there
            for child in self.policy.tables
            if child.unit_via is not None and child.unit_via.table == table.name
            for _, there in child.unit_via.on
        }
        return columns | {name: known[name].sql_type for name in sorted(needed) if name not in columns}

    def _unique(self, table: Table) -> list[list[str]]:
        known = self.schema.tables.get(table.name)
        return sorted(sorted(names) for names in known.unique_keys) if known is not None else []

    def _create(self, database: duckdb.DuckDBPyConnection, table: Table) -> None:
        known = self.schema.tables.get(table.name)
        listed = []
        for name, sql_type in self._columns(table).items():
            not_null = known is not None and name in known.columns and known.columns[name].not_null
            is_key = any(name in names for names in self._unique(table)) or name == table.unit_key
            listed.append(f"{quote_name(name)} {_engine_type(sql_type)}{' NOT NULL' if not_null and is_key else ''}")
        listed += [f"UNIQUE ({', '.join(map(quote_name, names))})" for names in self._unique(table)]
        database.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_name(table.schema or self.policy.dataset.schema)}")
        database.execute(f"CREATE TABLE {self._path(table)} ({', '.join(listed)})")

    # Rows

    def _public_rows(self, table: Table) -> str:
        own = {_PROBES: 2 * self.units, _BLOCKS: 2 * self.units * SPREAD}
        values = [f"{_number('r', sql_type)} AS {quote_name(name)}" for name, sql_type in self._columns(table).items()]
        return f"SELECT {', '.join(values)} FROM range({own.get(table.name, _PUBLIC_ROWS)}) AS rows (r)"

    def _unit_rows(self, table: Table, first: int, end: int, rows: int, *, high: bool, lost: bool = False) -> str:
        """Rows of the units numbered from `first` to before `end`, `rows` each."""
        values = [
            f"{self._value(table, name, sql_type, 'u', 'r', high, lost)} AS {quote_name(name)}"
            for name, sql_type in self._columns(table).items()
        ]
        return f"SELECT {', '.join(values)} FROM range({first}, {end}) AS units (u), range({rows}) AS rows (r)"

    def _value(self, table: Table, name: str, sql_type: SqlType, unit: str, row: str, high: bool, lost: bool) -> str:
        """SQL for the value of one column in row `row` of unit `unit`."""
        if name == table.unit_key:
            return _null(sql_type) if lost else _number(unit, sql_type)
        if table.unit_via is not None and (there := dict(table.unit_via.on).get(name)) is not None:
            parent = self._parent(table)
            above = f"({row} % (CASE WHEN {unit} < 0 THEN 1 ELSE {self.rows_of(parent)} END))"
            return _null(sql_type) if lost else self._value(parent, there, sql_type, unit, above, high, lost)
        column = table.column(name)
        if column is not None and any(name in names for names in self._unique(table)):
            column = None
        if column is None:
            rows = self.rows_of(table)
            return _number(f"({unit if not lost else 2 * self.units} * {rows} + {row})", sql_type)
        return self._listed(column, unit, row, high)

    def _listed(self, column: Column, unit: str, row: str, high: bool) -> str:
        """SQL for a column of the policy; units that stay have no value in the audit's own."""
        stays = f"{unit} < 0"
        match column.name:
            case "audit_probe":
                return f"CASE WHEN NOT {stays} THEN {unit} END"
            case "audit_block":
                return f"CASE WHEN NOT {stays} THEN {unit} * {SPREAD} + {row} % {SPREAD} END"
            case "audit_secret":
                return f"CASE WHEN NOT {stays} THEN 's' || {unit} END"
            case "audit_choice":
                return f"CASE WHEN {stays} THEN NULL WHEN {unit} < {self.units} THEN 'b' ELSE 'c' END"
        if column.values:
            listed = ", ".join(_constant(value, column.type) for value in column.values)
            return f"list_extract([{listed}], CAST({row} % {len(column.values)} AS BIGINT) + 1)"
        if column.values_from is not None:
            return _number(f"({row} % {_PUBLIC_ROWS})", column.type)
        return _extreme(column, high)


def worlds(policy: Policy, schema: EngineSchema, units: int) -> Worlds:
    """Return what is audited of a policy, with so many units that come and go, or fewer where each has many rows."""
    public = tuple(
        Table(name, None, True, None, None, None, None, None, None, (Column(column, SqlType.INTEGER, nullable=False),))
        for name, column in ((_PROBES, "probe"), (_BLOCKS, "block"))
    )
    own = (
        Column(PROBE, SqlType.INTEGER, values_from=(_PROBES, "probe")),
        Column(BLOCK, SqlType.INTEGER, values_from=(_BLOCKS, "block")),
        Column(SECRET, SqlType.TEXT),
        Column(CHOICE, SqlType.TEXT, values=CHOICES, nullable=False),
    )
    tables = tuple(t if t.public else replace(t, columns=(*t.columns, *own)) for t in policy.tables)
    names = frozenset(table.name for table in (*tables, *public))
    budgets = {
        accountant: Budget(Fraction(10**6), Fraction(99, 100), accountant, None, Fraction(99, 100))
        for accountant in ROLES
    }
    defaults = QueryDefaults(Fraction(1), SELECTION_DELTA, MechanismChoice.LAPLACE, MAX_EPSILON)
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
        roles=tuple(Role(name, budgets[accountant], defaults, names) for accountant, name in ROLES.items()),
        tables=(*tables, *public),
        groups=(),
    )
    made = Worlds(audited, schema, units)
    most = max(made.rows_of(table) for table in made.protected)
    return replace(made, units=max(2, min(units, _MOST_ROWS // most)))


def neighbours(worlds: Worlds) -> tuple[Rows, Rows]:
    """The two sides: every unit is there, and none is; or every one is another."""
    if worlds.substitutes:
        return Rows("one", 0), Rows("other", worlds.units, high=False)
    return Rows("present", 0), Rows("absent", None)


def _via(table: Table) -> UnitVia:
    if table.unit_via is None:
        raise TypeError("a protected table has a unit key or a way to it")
    return table.unit_via


def _insert(path: str, rows: str) -> str:
    return f"INSERT INTO {path} BY NAME {rows}"


def _engine_type(sql_type: SqlType) -> str:
    if sql_type.is_text:
        return "VARCHAR"
    if sql_type.is_array:
        return "INTEGER[]" if sql_type.element is None else f"{_engine_type(sql_type.element)}[]"
    return _ENGINE_TYPES.get(sql_type, sql_type.value.upper())


def _null(sql_type: SqlType) -> str:
    return f"CAST(NULL AS {_engine_type(sql_type)})"


def _number(number: str, sql_type: SqlType) -> str:
    """SQL for a value of a type that stands for a whole number, another for each; NULL where there is no such way."""
    if sql_type.is_text:
        return f"'v' || {number}"
    if sql_type.is_number:
        return f"CAST({number} AS {_engine_type(sql_type)})"
    if sql_type is SqlType.UUID:
        return f"CAST(md5(CAST({number} AS VARCHAR)) AS UUID)"
    if sql_type is SqlType.DATE:
        return f"DATE '2000-01-01' + CAST({number} AS INTEGER)"
    if sql_type is SqlType.BOOLEAN:
        return f"({number}) % 2 = 0"
    return _null(sql_type)


def _extreme(column: Column, high: bool) -> str:
    """SQL for a value beyond a column's bounds on one side, as far as its type goes."""
    lower, upper = column.lower, column.upper
    if lower is None or upper is None:
        return _number("1", column.type)
    if isinstance(lower, Fraction) and isinstance(upper, Fraction):
        width = upper - lower + 1
        value = upper + 10 * width if high == (abs(upper) >= abs(lower)) else lower - 10 * width
        most = _INTEGERS.get(column.type)
        if most is not None:
            value = Fraction(max(-most, min(most, int(value))))
        return _constant(value, column.type)
    bound = upper if high else lower
    if isinstance(bound, datetime):
        bound = bound.replace(tzinfo=None)
    return _constant(bound, column.type)


def _constant(value: Value | datetime, sql_type: SqlType) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, Fraction) and value.denominator != 1:
        return f"CAST({value.numerator}::DOUBLE / {value.denominator} AS {_engine_type(sql_type)})"
    text = value.isoformat() if isinstance(value, date) else str(value)
    quoted = text.replace("'", "''")
    return f"CAST('{quoted}' AS {_engine_type(sql_type)})"
