"""The content of a policy as frozen values; only load_policy makes them, after validation."""

import enum
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from dpsql.errors import InvalidPolicy
from dpsql.policy.lines import Key
from dpsql.policy.source import wrong_at
from dpsql.privacy.cost import Accountant, Adjacency
from dpsql.sqltypes import ARRAYS, SqlType

Bound = Fraction | date | datetime
Value = str | int | Fraction | bool | date

_KEY_TYPES = (
    frozenset(SqlType)
    - ARRAYS
    - {
        SqlType.REAL,
        SqlType.DOUBLE,
        SqlType.INTERVAL,
        SqlType.JSON,
        SqlType.UNKNOWN,
    }
)


def can_be_key(sql_type: SqlType) -> bool:
    """Return True if values of the type have one canonical spelling: good as unit, join and group key."""
    return sql_type in _KEY_TYPES


class MechanismChoice(enum.StrEnum):
    """The noise of a role's queries, unless the analyst sets another one."""

    AUTO = "auto"
    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"


@dataclass(frozen=True, slots=True)
class RenewalWindow:
    """The period after which a budget renews: a number of days, or the calendar month.

    Attributes:
        days: The number of days; None for the calendar month.
    """

    days: int | None

    def __str__(self) -> str:
        if self.days is None:
            return "calendar month"
        return "1 day" if self.days == 1 else f"{self.days} days"


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on what may be lost.

    Attributes:
        epsilon: Limit on epsilon.
        delta: Limit on delta; 0 under the pure accountant.
        accountant: How charges are added up.
        window: When the budget renews; None for never, and always None for a dataset's cap.
        selection_share: Part of delta that is kept for groups with private keys.
    """

    epsilon: Fraction
    delta: Fraction
    accountant: Accountant
    window: RenewalWindow | None
    selection_share: Fraction


@dataclass(frozen=True, slots=True)
class QueryDefaults:
    """The price of one query, unless the analyst sets another one, and the highest price allowed.

    Attributes:
        epsilon: Price of a query.
        delta: The extra price of a query with private keys; 0 if the budget has no delta for them.
        mechanism: The kind of noise.
        max_epsilon: The highest price that an analyst may set.
        wide_share: The part of a query's price that buys wide totals, which show how much bounding drops.
        derives: Whether answers may be derived from earlier releases.
    """

    epsilon: Fraction
    delta: Fraction
    mechanism: MechanismChoice
    max_epsilon: Fraction
    wide_share: Fraction = Fraction(0)
    derives: bool = True


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of user: a budget, prices, and the names of the tables that exist for it."""

    name: str
    budget: Budget
    query: QueryDefaults
    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class UserGroup:
    """Users who share a budget: a member's charges count against it and against the member's own budget."""

    name: str
    budget: Budget
    description: str | None


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """How the answers in a column were given.

    Attributes:
        truth: The probability of a true answer.
        values: How many values there are to answer with.
    """

    truth: Fraction
    values: int

    @property
    def lie(self) -> Fraction:
        """The probability of each of the other values."""
        return (1 - self.truth) / (self.values - 1)


@dataclass(frozen=True, slots=True)
class PolicyColumn:
    """A column that analysts may name.

    Attributes:
        name: Its name.
        type: Its type.
        lower: Values below are raised to it: a Fraction for numbers, a date, a naive datetime (timestamp)
            or one in UTC (timestamptz). None exactly if upper is None.
        upper: Values above are lowered to it.
        step: The grid that values are rounded to before they are added; None if there is none, or for other types.
        values: The whole domain: str (uuid too), int, Fraction (decimal), bool or date.
        values_from: The public table and column that hold the domain.
        description: A comment for clients.
        nullable: Whether the column may hold NULL.
        collected_by: The randomized response that collected its values; None if there was none.
    """

    name: str
    type: SqlType
    lower: Bound | None = None
    upper: Bound | None = None
    step: Fraction | None = None
    values: tuple[Value, ...] | None = None
    values_from: tuple[str, str] | None = None
    description: str | None = None
    nullable: bool = True
    collected_by: RandomizedResponse | None = None

    def __hash__(self) -> int:
        """The hash is the name's: plans that hold columns are hashed for each query."""
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class RowsOf:
    """The rows whose column has one of some values.

    Attributes:
        column: The column.
        values: Texts, or whole numbers.
    """

    column: str
    values: tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnitVia:
    """A way from a table without a unit column to its unit.

    Attributes:
        table: The table nearer to the unit.
        on: Pairs of a column here and the column of that table that it equals.
        where: The rows that go this way; None for all.
    """

    table: str
    on: tuple[tuple[str, str], ...]
    where: RowsOf | None = None


class FileFormat(enum.StrEnum):
    """The format of files."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def has_types(self) -> bool:
        """Return True if the files contain the types of their columns."""
        return self not in (FileFormat.CSV, FileFormat.JSON)

    @property
    def has_snapshots(self) -> bool:
        """Return True for a table format, whose metadata determine the files of the table and never change."""
        return self in (FileFormat.DELTA, FileFormat.ICEBERG)


@dataclass(frozen=True, slots=True)
class FileColumn:
    """The type of a column of files.

    Attributes:
        name: Its name.
        type: Its type.
        digits: All digits of a decimal, and those after the point; None for another type.
    """

    name: str
    type: SqlType
    digits: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table.

    Attributes:
        format: Their format.
        paths: Their paths below the folder of the data: patterns, in which * is any name and ** any folders. For Delta,
            the folder of the table; for Iceberg, one metadata file.
        columns: For CSV and JSON, the columns to read and their types; for others, the types that files must have.
        hive: Columns in the names of folders, as in year=2024.
    """

    format: FileFormat
    paths: tuple[str, ...]
    columns: tuple[FileColumn, ...]
    hive: tuple[FileColumn, ...]


CONTRIBUTION_BOUNDS = {
    "max_rows": "rows_per_unit",
    "max_groups": "groups_per_unit",
    "max_rows_per_group": "rows_per_group",
}
"""Keys of a policy that bound what one unit contributes, and the fields of Table that hold them."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that analysts may name.

    A protected table has either unit_key or unit_via, and all three bounds; a public one has none of them.

    Attributes:
        name: Its name in the policy, with the schema if the policy has one ("sales.orders").
        schema: The database's schema of it; None for the dataset's schema.
        public: True if its rows belong to no unit.
        unit_key: The column that names the unit; it need not be among the columns.
        unit_via: The ways to the unit of a table without such a column; each row follows at most one of them.
        description: A comment for clients.
        rows_per_unit: The bound of one unit's rows.
        groups_per_unit: The bound of one unit's groups; at most max_rows.
        rows_per_group: The bound of one unit's rows in one group; at most max_rows.
        min_units: Groups with fewer units are not shown; 1 to show all.
        within_unit: Keys whose rows belong to one unit each, the owner asserts: joins on them compare the units, too.
        columns: The columns that exist for analysts, in the order of the policy.
        files: Its files; None for a table of a database.
    """

    name: str
    schema: str | None
    public: bool
    unit_key: str | None
    unit_via: tuple[UnitVia, ...]
    description: str | None
    rows_per_unit: int | None
    groups_per_unit: int | None
    rows_per_group: int | None
    columns: tuple[PolicyColumn, ...]
    min_units: int = 1
    within_unit: tuple[str, ...] = ()
    files: Files | None = None

    def __hash__(self) -> int:
        """The hash is the name's: plans that hold tables are hashed for each query."""
        return hash(self.name)

    @property
    def relation(self) -> str:
        """The table's name within its schema."""
        return self.name.rpartition(".")[2]

    def column(self, name: str) -> PolicyColumn | None:
        """Return the column of exactly this name, or None."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class Dataset:
    """The database, its privacy unit, and the cap over all users together.

    Attributes:
        name: The database name that clients connect to.
        url: The location of the data, with environment variables filled in and a DuckDB path absolute. It may contain
            a password: repr leaves it out.
        schema: The schema of tables without a schema in their name.
        privacy_unit: The name of one unit, for messages.
        adjacency: Whether neighbouring datasets differ by the presence of one unit, or by its data.
        data_version: Releases are reused within one version.
        budget: The cap; it never renews.
        cap: Policies over the same people name the same cap and share it; default: the dataset's name.
        reply_quantum: Replies are delayed to a multiple of this number of milliseconds; 0 for no delay.
        timezone: IANA name of the time zone in which timestamptz values are shown and truncated.
        preview: The answer to queries that select rows of a protected table: "refuse" or "synthetic".
        prepared_schema: The schema of prepared tables in PostgreSQL; None if there are none, and for DuckDB files.
        max_error_ratio: The largest allowed error of derived answers and prepared tables, relative to a full release.
        memory: The bytes that a DuckDB engine may use; None for half of the machine's.
        threads: Threads that a DuckDB engine may use; None for all processors.
        spill: The directory for data that exceeds a DuckDB engine's memory; None to write nothing.
        processes: The number of processes that serve the dataset; each has a part of the memory, threads and disk.
    """

    name: str
    url: str = field(repr=False)
    schema: str
    privacy_unit: str
    adjacency: Adjacency
    data_version: str
    budget: Budget
    cap: str
    reply_quantum: int
    timezone: str
    preview: str = "refuse"
    prepared_schema: str | None = None
    max_error_ratio: Fraction = Fraction(1)
    memory: int | None = None
    threads: int | None = None
    spill: str | None = None
    processes: int = 1


@dataclass(frozen=True)
class Policy:
    """One policy file; `text` is what it says."""

    dataset: Dataset
    roles: tuple[Role, ...]
    tables: tuple[Table, ...]
    path: Path
    groups: tuple[UserGroup, ...] = ()
    text: str = field(default="", repr=False, compare=False)

    def wrong(self, key: Key, what: str, hint: str) -> InvalidPolicy:
        """Return the error for a key that the database does not fit, with its line."""
        return wrong_at(self.path, self.text, key, what, hint)

    def table(self, name: str) -> Table | None:
        """Return the table of exactly this name, or None."""
        return next((table for table in self.tables if table.name == name), None)

    def role(self, name: str) -> Role | None:
        """Return the role of exactly this name, or None."""
        return next((role for role in self.roles if role.name == name), None)

    def group(self, name: str) -> UserGroup | None:
        """Return the group of users of exactly this name, or None."""
        return next((group for group in self.groups if group.name == name), None)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all that the answer to a query depends on, in hex: part of what a release is reused by.

        In: the dataset's name, schema, adjacency, data version and time zone; each table's unit, bounds and columns
        with their types, limits, steps and domains, and as what files are read. Out: what changes no answer (comments,
        the url, paths, who may spend how much on what). The order of tables and of a domain's values does not matter,
        that of columns does.
        """
        dataset = self.dataset
        told = [
            "dpsql policy 1",
            [dataset.name, dataset.schema, dataset.adjacency.value, dataset.data_version, dataset.timezone],
            sorted(_table_facts(table) for table in self.tables),
        ]
        return hashlib.sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()


def _table_facts(table: Table) -> list[str]:
    ways = [[via.table, sorted(via.on), *_where_facts(via)] for via in table.unit_via]
    via = ways[0] if len(ways) == 1 else ways or None
    bounds = [table.rows_per_unit, table.groups_per_unit, table.rows_per_group]
    bounds += [table.min_units] if table.min_units > 1 else []
    facts: list[object] = [table.public, table.unit_key, via, bounds, [*map(_column_facts, table.columns)]]
    if table.files is not None:
        read_as = (*table.files.columns, *table.files.hive)
        facts.append([table.files.format, [[each.name, each.type.value, each.digits] for each in read_as]])
    # The name comes first, so that sorting by these lists sorts by table.
    return [table.name, json.dumps(facts)]


def _where_facts(via: UnitVia) -> list[object]:
    return [] if via.where is None else [via.where.column, sorted(via.where.values)]


def _column_facts(column: PolicyColumn) -> list[object]:
    values = None if column.values is None else sorted(_exact(column.values))
    limits = [None if limit is None else str(limit) for limit in (column.lower, column.upper, column.step)]
    asked = [] if column.collected_by is None else [str(column.collected_by.truth)]
    return [column.name, column.type.value, limits, values, column.values_from, column.nullable, *asked]


def _exact(values: Iterable[Value]) -> list[str]:
    # Within one column's type, str is injective: Fractions print as p/q, dates as ISO 8601.
    return [str(value) for value in values]
