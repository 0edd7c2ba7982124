"""The closed intermediate form: SQL without a constructor here is refused.

Rule 1: every node is frozen and typed; types are final after lowering.
Rule 2: columns are fields with identities; names of the query end at lowering.
Rule 3: a privacy status is a Python type: Public, Protected, Released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

from dpsql.policy import PolicyColumn, Table
from dpsql.sqltypes import Span, SqlType

Value = bool | int | float | Decimal | str | date | datetime | time | UUID | None


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a relation; `number` is unique within one compiled query."""

    number: int
    type: SqlType

    def __hash__(self) -> int:
        """The hash is the number, so that sets of fields have the same order in every process."""
        return self.number


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers as whole multiples of a step, so that their sums are exact.

    Attributes:
        step: What one grid unit is worth.
        lower: Least grid value after clamping.
        upper: Greatest grid value after clamping.
    """

    step: Fraction
    lower: int
    upper: int

    @property
    def centre(self) -> int:
        """The grid value that means are measured from."""
        return (self.lower + self.upper) // 2


# Expressions


@dataclass(frozen=True, slots=True)
class Column:
    """A reference to a field of the input relation."""

    field: Field

    @property
    def type(self) -> SqlType:
        """The field's type."""
        return self.field.type


@dataclass(frozen=True, slots=True)
class Literal:
    """A typed constant; UNKNOWN is a quoted literal whose type its place decides.

    `parameter` is the 0-based index of a placeholder whose value is not known yet.
    """

    value: Value
    type: SqlType
    parameter: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator of the allow-list, by its name there."""

    function: str
    arguments: tuple[Expr, ...]
    type: SqlType


@dataclass(frozen=True, slots=True)
class Case:
    """CASE WHEN condition THEN value … ELSE default END."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr
    type: SqlType


MAX_PRECISION = 38
"""Digits of a numeric, before the point and behind it, as many as every engine has."""
COMPUTED_SCALE = 15
"""Digits after the point of numerics of no scale of their own; double precision, which computes them, has no more."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion that gives NULL where the value does not fit; `scale` is for numeric(p, s)."""

    argument: Expr
    type: SqlType
    scale: int | None = None

    @property
    def is_computed(self) -> bool:
        """True for what numeric arithmetic gives: it is done in double precision, and rounded to the digits of that."""
        return self.type is SqlType.NUMERIC and self.scale == COMPUTED_SCALE and self.argument.type is SqlType.DOUBLE


@dataclass(frozen=True, slots=True)
class InList:
    """argument IN (items): constants only."""

    argument: Expr
    items: tuple[Literal, ...]
    type: SqlType = SqlType.BOOLEAN


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows that a window function sees, relative to its own row.

    Attributes:
        mode: ROWS, GROUPS (of peers), or RANGE (which counts peers, and rows whose sort value is near).
        start: Rows or groups before (negative) or after the row, or the distance of sort values; None is the first row.
        end: The same; None is the partition's last row.
    """

    mode: str
    start: int | Decimal | Span | None
    end: int | Decimal | Span | None

    @property
    def is_near(self) -> bool:
        """True if rows are in the frame by their sort values: by groups of peers, or by a distance."""
        return self.mode != "ROWS" and any(offset not in (None, 0) for offset in (self.start, self.end))


@dataclass(frozen=True, slots=True)
class Window:
    """A window function; `frame` is None for SQL's own default, `grid` is what numbers are added up on."""

    function: str
    arguments: tuple[Expr, ...]
    partition: tuple[Expr, ...]
    order: tuple[Order, ...]
    frame: Frame | None
    type: SqlType
    grid: Grid | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    """True where a relation, which may refer to fields of the row outside it, has a row."""

    relation: Relation
    type: SqlType = SqlType.BOOLEAN


@dataclass(frozen=True, slots=True)
class InRelation:
    """argument IN (the only field of a relation), with SQL's meaning of NULL."""

    argument: Expr
    relation: Relation
    type: SqlType = SqlType.BOOLEAN


@dataclass(frozen=True, slots=True)
class Scalar:
    """The only field of a relation of one row at the most; NULL where it has none."""

    relation: Relation
    type: SqlType


Expr = Column | Literal | Call | Case | Cast | InList | Window | Exists | InRelation | Scalar


@dataclass(frozen=True, slots=True)
class Order:
    """One ORDER BY term."""

    expression: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate of an argument (None: of rows), over the rows that pass the filter.

    `grid` is the grid on which numbers are added exactly; `other` is a second argument; `fractions` are those of
    percentiles, several for an array; `order` is the order of values that are collected.
    """

    function: str
    argument: Expr | None
    distinct: bool
    filter: Expr | None
    type: SqlType
    grid: Grid | None = None
    other: Expr | None = None
    fractions: tuple[Decimal, ...] = ()
    order: tuple[Order, ...] = ()

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The arguments, the filter and what orders them, as far as there are any."""
        terms = (term.expression for term in self.order)
        return tuple(part for part in (self.argument, self.other, self.filter, *terms) if part is not None)


# Relations


@dataclass(frozen=True, slots=True)
class Scan:
    """A table of the policy; `columns[i]` gives `fields[i]`, canonical for its type."""

    table: Table
    columns: tuple[PolicyColumn, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class UnitScan:
    """A protected table with its hidden unit: rows without a unit are not there.

    `columns[i]` gives `column_fields[i]`; `unit_field` carries the unit, reached along the table's `unit_via` path.
    """

    table: Table
    columns: tuple[PolicyColumn, ...]
    column_fields: tuple[Field, ...]
    unit_field: Field

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns' fields, then the unit."""
        return (*self.column_fields, self.unit_field)


@dataclass(frozen=True, slots=True)
class SystemScan:
    """A relation of schema dpsql, made from policy and ledger while the query runs."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Values:
    """Constant rows."""

    fields: tuple[Field, ...]
    rows: tuple[tuple[Literal, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Every integer, or every first day of `unit`, from `start` to `stop` inclusive."""

    fields: tuple[Field, ...]
    start: int | date
    stop: int | date
    unit: str | None


@dataclass(frozen=True, slots=True)
class Unnest:
    """The texts of the elements of arrays, which are of the row outside: one place a row, in no order.

    Attributes:
        fields: One for each array, NULL behind its end; then the place from 1, if it is `numbered`.
        arrays: The arrays.
        numbered: Whether the place is a field, as for WITH ORDINALITY.
    """

    fields: tuple[Field, ...]
    arrays: tuple[Expr, ...]
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which the condition is true."""

    input: Relation
    condition: Expr

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's fields."""
        return self.input.fields


@dataclass(frozen=True, slots=True)
class Project:
    """`expressions[i]` gives `fields[i]`."""

    input: Relation
    fields: tuple[Field, ...]
    expressions: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row a group; without keys one row always. Fields are keys, then aggregates.

    `rows` is set where every group is of one unit: how many of its rows are expected at the most.
    """

    input: Relation
    key_fields: tuple[Field, ...]
    keys: tuple[Expr, ...]
    aggregate_fields: tuple[Field, ...]
    aggregates: tuple[AggregateCall, ...]
    rows: int | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """Keys, then aggregates."""
        return self.key_fields + self.aggregate_fields


@dataclass(frozen=True, slots=True)
class Picks:
    """Groups that are selected by their only aggregate, whose field is then the rank of each: from 1, or 0 for others.

    Attributes:
        count: The number of groups selected.
        least: True if the groups with the least values are selected.
        within: Key fields: groups are selected for each combination of their values.
    """

    count: int
    least: bool
    within: frozenset[Field] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """An aggregation of protected rows: the boundary where a query is split.

    The fields are the aggregation's, then the two limits of the 95 % interval for each aggregate. The engine reads the
    inner relation, which is bounded and noised; or groups are selected by it, and its value is not released.
    """

    protected: Protected
    aggregate: Aggregate
    limits: tuple[tuple[Field, Field], ...]
    picks: Picks | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The aggregation's fields, then their limits."""
        return self.aggregate.fields + tuple(limit for pair in self.limits for limit in pair)

    @property
    def picked_fields(self) -> tuple[Field, ...]:
        """The keys that are selected; empty if groups are shown with their aggregates."""
        if self.picks is None:
            return ()
        return tuple(field for field in self.aggregate.key_fields if field not in self.picks.within)

    def __hash__(self) -> int:
        """The hash of the fields: nested releases contain their rows twice, so hashing rows takes exponential time."""
        return hash(self.fields)


@dataclass(frozen=True, slots=True)
class UnitWindows:
    """Rows of units with window functions, each over the rows of one unit; `rows` is the expected number of rows.

    Where ORDER BY has ties, the values of the rows decide, never their physical order.
    """

    input: Relation
    window_fields: tuple[Field, ...]
    windows: tuple[Window, ...]
    rows: int

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's fields, then the windows."""
        return self.input.fields + self.window_fields


@dataclass(frozen=True, slots=True)
class Join:
    """A join; kind is inner, left, right, full, cross or matched.

    "matched" is an outer join that keeps public rows: its rows are those of an inner join, and public rows without a
    match are groups of zero people.
    """

    kind: str
    left: Relation
    right: Relation
    condition: Expr | None

    @property
    def fields(self) -> tuple[Field, ...]:
        """Left fields, then right fields."""
        return self.left.fields + self.right.fields


@dataclass(frozen=True, slots=True)
class Distinct:
    """The rows without repetition."""

    input: Relation

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's fields."""
        return self.input.fields


@dataclass(frozen=True, slots=True)
class SetOperation:
    """UNION, INTERSECT or EXCEPT [ALL] of relations of the same width."""

    kind: str
    all: bool
    left: Relation
    right: Relation
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Sort:
    """Some fields of the input, ordered and cut."""

    input: Relation
    fields: tuple[Field, ...]
    order: tuple[Order, ...]
    limit: int | None
    offset: int


Relation = (
    Scan
    | UnitScan
    | SystemScan
    | Values
    | Series
    | Unnest
    | Filter
    | Project
    | Aggregate
    | Release
    | UnitWindows
    | Join
    | Distinct
    | SetOperation
    | Sort
)


# Privacy statuses


UNIT_OR_NULL = ("?",)
"""The way of a field that is the unit where it is not NULL."""
WITHIN_UNIT = ("within_unit",)
"""The way of a key whose rows the policy says are all of one unit."""


@dataclass(frozen=True, slots=True)
class Link:
    """Fields that lead to the unit.

    Attributes:
        way: The table and its columns that they are keys of; () for the unit itself, UNIT_OR_NULL, and WITHIN_UNIT.
        fields: The fields, in the order of those columns.
    """

    way: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Public:
    """Rows anybody may see: public tables, constants."""

    relation: Relation


@dataclass(frozen=True, slots=True)
class Protected:
    """Rows that each belong to exactly one privacy unit.

    Attributes:
        relation: The rows; `unit` is one of its fields.
        unit: The hidden unit key, never NULL.
        rows_per_unit: The bound of one unit's rows in an ungrouped aggregate; enforced by the rewrite.
        groups_per_unit: The bound of one unit's groups.
        rows_per_group: The bound of one unit's rows in one group.
        one_row: True if the engine's schema, or the SQL below, enforces at most one row per unit.
        links: Keys that lead to the unit, each under a name that equal ways to a unit share: rows of two relations with
            equal keys of the same name belong to the same unit.
        linked: For a subquery over the rows of the outer row's unit: the field of that unit.
        absent: If an outer join keeps public rows without a match: the fields that are NULL in these rows.
        kept: The preserved side of an outer join of rows of units, until the next operation.
    """

    relation: Relation
    unit: Field
    rows_per_unit: int
    groups_per_unit: int
    rows_per_group: int
    one_row: bool
    links: frozenset[Link] = frozenset()
    linked: Field | None = None
    absent: frozenset[Field] | None = None
    kept: Protected | None = field(default=None, compare=False)

    def is_unit(self, expression: Expr) -> bool:
        """True if an expression equals the unit in every row."""
        return isinstance(expression, Column) and Link((), (expression.field,)) in self.links

    def leads_to_unit(self, expressions: Sequence[Expr]) -> bool:
        """True where rows that agree on the expressions are of one unit."""
        fields = {expression.field for expression in expressions if isinstance(expression, Column)}
        return any(link.way != UNIT_OR_NULL and fields.issuperset(link.fields) for link in self.links)

    def is_unit_or_null(self, expression: Expr) -> bool:
        """True where an expression is the unit wherever it is not NULL."""
        is_one = isinstance(expression, Column) and Link(UNIT_OR_NULL, (expression.field,)) in self.links
        return is_one or self.is_unit(expression)


@dataclass(frozen=True, slots=True)
class Released:
    """Rows made from noisy releases (and public rows): all further work is post-processing."""

    relation: Relation


Status = Public | Protected | Released
