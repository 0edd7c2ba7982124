"""The closed intermediate form: what has no constructor here goes no further.

Rule 1: every node is frozen and typed; a type is never guessed again after lowering.
Rule 2: columns are fields with an identity of their own; names that analysts wrote end at lowering.
Rule 3: a privacy status is a Python type: Public, Protected, Released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID

from dpsql.policy import Column as PolicyColumn
from dpsql.policy import Table
from dpsql.sqltypes import SqlType

Value = bool | int | float | Decimal | str | date | datetime | time | UUID | None


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a relation; `number` is unique within one compiled query."""

    number: int
    type: SqlType


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


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion that gives NULL where the value does not fit; `scale` is for numeric(p, s)."""

    argument: Expr
    type: SqlType
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class InList:
    """argument IN (items): constants only."""

    argument: Expr
    items: tuple[Literal, ...]
    type: SqlType = SqlType.BOOLEAN


@dataclass(frozen=True, slots=True)
class Window:
    """A window function over a relation that is not protected."""

    function: str
    arguments: tuple[Expr, ...]
    partition: tuple[Expr, ...]
    order: tuple[Order, ...]
    running: bool
    type: SqlType


Expr = Column | Literal | Call | Case | Cast | InList | Window


@dataclass(frozen=True, slots=True)
class Order:
    """One ORDER BY term."""

    expression: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """count, count_rows, sum, avg, min or max of an argument, over the rows that pass the filter."""

    function: str
    argument: Expr | None
    distinct: bool
    filter: Expr | None
    type: SqlType


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
    """One row a group; without keys one row always. Fields are keys, then aggregates."""

    input: Relation
    key_fields: tuple[Field, ...]
    keys: tuple[Expr, ...]
    aggregate_fields: tuple[Field, ...]
    aggregates: tuple[AggregateCall, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """Keys, then aggregates."""
        return self.key_fields + self.aggregate_fields


@dataclass(frozen=True, slots=True)
class Release:
    """An aggregation of protected rows: the boundary at which a query is cut.

    The fields are the aggregation's, then for each aggregate the half-width of its 95 % interval. What is inside is
    read by the engine, bounded, and noised.
    """

    protected: Protected
    aggregate: Aggregate
    margins: tuple[Field, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The aggregation's fields, then their margins."""
        return self.aggregate.fields + self.margins


@dataclass(frozen=True, slots=True)
class Join:
    """A join of relations that are not protected; kind is inner, left, right, full or cross."""

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
    | Filter
    | Project
    | Aggregate
    | Release
    | Join
    | Distinct
    | SetOperation
    | Sort
)


# Privacy statuses


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
        max_rows: Rows of one unit that may count in an ungrouped aggregate; enforced by the rewrite.
        max_groups: Groups that one unit may touch.
        max_rows_per_group: Rows of one unit that may count in one group.
        one_row: True where the engine's schema enforces at most one row a unit.
    """

    relation: Relation
    unit: Field
    max_rows: int
    max_groups: int
    max_rows_per_group: int
    one_row: bool


@dataclass(frozen=True, slots=True)
class Released:
    """Rows made from noisy releases (and public rows): all further work is post-processing."""

    relation: Relation


Status = Public | Protected | Released


def inputs(relation: Relation) -> tuple[Relation, ...]:
    """The relations that `relation` is made of, without going through a release boundary."""
    match relation:
        case Scan() | UnitScan() | SystemScan() | Values() | Series() | Release():
            return ()
        case Join() | SetOperation():
            return (relation.left, relation.right)
        case _:
            return (relation.input,)


def operands(expression: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside `expression`."""
    match expression:
        case Column() | Literal():
            return ()
        case Call():
            return expression.arguments
        case Cast():
            return (expression.argument,)
        case InList():
            return (expression.argument, *expression.items)
        case Case():
            return (*(part for branch in expression.branches for part in branch), expression.default)
        case _:
            orders = tuple(term.expression for term in expression.order)
            return expression.arguments + expression.partition + orders


def fields_in(expression: Expr) -> frozenset[Field]:
    """The fields that `expression` refers to."""
    if isinstance(expression, Column):
        return frozenset({expression.field})
    return frozenset().union(*(fields_in(part) for part in operands(expression)))


def windows_in(expression: Expr) -> tuple[Window, ...]:
    """The window functions in an expression."""
    if isinstance(expression, Window):
        return (expression,)
    return tuple(window for part in operands(expression) for window in windows_in(part))


def rewrite_expression(expression: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expression` from the top: where `change` gives an expression it stands instead."""
    changed = change(expression)
    if changed is not None:
        return changed

    def again(part: Expr) -> Expr:
        return rewrite_expression(part, change)

    match expression:
        case Column() | Literal():
            return expression
        case Call():
            return replace(expression, arguments=tuple(map(again, expression.arguments)))
        case Cast() | InList():
            return replace(expression, argument=again(expression.argument))
        case Case():
            branches = tuple((again(condition), again(value)) for condition, value in expression.branches)
            return replace(expression, branches=branches, default=again(expression.default))
        case _:
            return replace(
                expression,
                arguments=tuple(map(again, expression.arguments)),
                partition=tuple(map(again, expression.partition)),
                order=tuple(replace(term, expression=again(term.expression)) for term in expression.order),
            )


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The terms that are all true where `condition` is true."""
    if isinstance(condition, Call) and condition.function == "and":
        return tuple(term for part in condition.arguments for term in conjuncts(part))
    return (condition,)
