"""sources: the public rows that the values of group keys are taken from.

Rule: the values of a source, and their number, follow from policy and query alone; public tables and released relations
have unknown content and are inserted as relations.
"""

from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

from dpsql.compiler.ir.conditions import TRUE, is_null, negated
from dpsql.compiler.ir.nodes import (
    Aggregate,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Project,
    Relation,
    Release,
    Scan,
    Series,
    Sort,
    Value,
    Values,
)
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.values.calendar_units import series_length, truncated
from dpsql.policy import PolicyColumn, Table
from dpsql.sqltypes import SqlType

MAX_SOURCE = 30_000
"""Values of a domain that are tried one by one to find a key's domain."""
TYPICAL_TABLE = 200
"""How many values a public table's column is taken to have, as long as the data is not read."""
MAX_BIGINT = 2**63 - 1
MAX_WHOLE = 2**53
"""Up to here every whole number is a floating-point number of its own."""


@dataclass(frozen=True)
class Source:
    """Public rows that include the values of some fields.

    Attributes:
        relation: The rows.
        size: Their maximal number; None if a public table or a released relation decides.
        joined: True if every protected row surely has one of these rows, because the query joins them.
        optional: True if a row of NULLs can take the place of a missing match.
        condition: For optional rows, the join condition with the sources before them: NULLs appear only without
            a match; None if it is unknown.
        typical: The assumed number of rows if a public table decides.
        limits: For all whole numbers or all days of a range, with or without NULL: the ends of the range.
    """

    relation: Relation
    size: int | None
    joined: bool = False
    optional: bool = False
    condition: Expr | None = None
    typical: int = TYPICAL_TABLE
    limits: tuple[int, int] | tuple[date, date] | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields whose values are listed."""
        return self.relation.fields

    @property
    def most(self) -> int | None:
        """How many rows there are at the most, that of NULLs included."""
        return self.size + self.optional if self.size is not None else None


@dataclass(frozen=True)
class NestedSource:
    """Fields that take the values of expressions over some protected relations.

    Attributes:
        fields: The fields.
        arms: Relations, each with one expression for each field.
        optional: True if a row of NULLs can take the place of a missing match.
    """

    fields: tuple[Field, ...]
    arms: tuple[tuple[Relation, tuple[Expr, ...]], ...]
    optional: bool


@dataclass(frozen=True)
class Lister:
    """Makes sources.

    Attributes:
        catalog: The policy, and what the engine's schema enforces.
        fields: The source of fields.
    """

    catalog: Catalog
    fields: Fields

    def column(self, table: Table, column: PolicyColumn, sql_type: SqlType) -> Source | None:
        """The declared domain of a column of a protected table, or None if it has none."""
        nulls = column.nullable and not self.catalog.is_not_null(table, column.name)
        if column.values_from is not None:
            return self._from_table(column.values_from, sql_type, nulls)
        if column.values is not None:
            return self.values(tuple(_plain(value, sql_type) for value in column.values), sql_type, nulls)
        if sql_type is SqlType.BOOLEAN:
            return self.values((False, True), sql_type, nulls)
        lower, upper = column.lower, column.upper
        if sql_type.is_integer and isinstance(lower, Fraction) and isinstance(upper, Fraction):
            return self.numbers(lower.__ceil__(), upper.__floor__(), sql_type, nulls)
        if sql_type is SqlType.DATE and isinstance(lower, date) and isinstance(upper, date):
            return self.moments(lower, upper, "day", sql_type, nulls)
        return None

    def values(self, values: tuple[Value, ...], sql_type: SqlType, nulls: bool) -> Source:
        """A list of constants, with one at least."""
        rows = tuple((Literal(value, sql_type),) for value in ((*values, None) if nulls else values))
        return Source(Values((self.fields.new(sql_type),), rows), len(rows))

    def numbers(self, low: int, high: int, sql_type: SqlType, nulls: bool) -> Source | None:
        """The whole numbers from `low` to `high`, or None if there are too many."""
        furthest = MAX_BIGINT if sql_type.is_integer else MAX_WHOLE
        if high - low >= MAX_SOURCE or max(abs(low), abs(high)) > furthest:
            return None
        kind = sql_type if sql_type.is_integer else SqlType.BIGINT
        relation: Relation = Series((self.fields.new(kind),), low, high, None)
        if kind is not sql_type:
            scale = 0 if sql_type is SqlType.NUMERIC else None
            number = Cast(Column(relation.fields[0]), sql_type, scale)
            relation = Project(relation, (self.fields.new(sql_type),), (number,))
        return self._with_null(Source(relation, max(0, high - low + 1), limits=(low, high)), nulls)

    def moments(
        self, first: date | datetime, last: date | datetime, unit: str, sql_type: SqlType, nulls: bool
    ) -> Source | None:
        """The first instants of every year, quarter, month, day or hour, or None if there are too many."""
        start, stop = truncated(first, unit), truncated(last, unit)
        size = series_length(start, stop, unit.upper())
        if size > MAX_SOURCE:
            return None
        series = Series((self.fields.new(sql_type),), start, stop, unit.upper())
        limits = (start, stop) if sql_type is SqlType.DATE and unit == "day" else None
        return self._with_null(Source(series, size, limits=limits), nulls)

    def rows(self, relation: Relation, fields: tuple[Field, ...]) -> tuple[Source, tuple[Field, ...]]:
        """Some fields of a public or released relation under new fields, so that it can appear in FROM twice."""
        renewed = tuple(self.fields.new(field.type) for field in fields)
        return Source(Project(relation, renewed, tuple(map(Column, fields))), _most_rows(relation)), renewed

    def with_absent(self, relation: Relation) -> Relation:
        """The rows, and a row of NULLs of just their types."""
        marker = self.fields.new(SqlType.BOOLEAN)
        marks = Values((marker,), ((TRUE,), (Literal(None, SqlType.BOOLEAN),)))
        # The mark that is NULL matches no row.
        joined = Join("left", marks, relation, Column(marker))
        return Project(joined, relation.fields, tuple(map(Column, relation.fields)))

    def _with_null(self, source: Source, nulls: bool) -> Source:
        if not nulls:
            return source
        size = None if source.size is None else source.size + 1
        return replace(source, relation=self.with_absent(source.relation), size=size)

    def _from_table(self, place: tuple[str, str], sql_type: SqlType, nulls: bool) -> Source:
        table = self.catalog.policy.table(place[0])
        column = table.column(place[1]) if table is not None else None
        if table is None or column is None:
            raise TypeError("the policy loader has found the table and its column")
        field = self.fields.new(column.type)
        present = Filter(Scan(table, (column,), (field,)), negated(is_null(Column(field))))
        value: Expr = Column(field) if column.type is sql_type else Cast(Column(field), sql_type)
        listed = Project(present, (self.fields.new(sql_type),), (value,))
        return self._with_null(Source(Distinct(listed), None), nulls)


def _most_rows(relation: Relation) -> int | None:
    """How many rows a public relation has at the most, for all contents of the tables."""
    match relation:
        case Values():
            return len(relation.rows)
        case Series():
            return series_length(relation.start, relation.stop, relation.unit)
        case Release():
            return _most_rows(relation.aggregate)
        case Aggregate():
            return 1 if not relation.keys else None
        case Sort():
            limits = [size for size in (relation.limit, _most_rows(relation.input)) if size is not None]
            return min(limits, default=None)
        case Filter() | Project() | Distinct():
            return _most_rows(relation.input)
    return None


def _plain(value: object, sql_type: SqlType) -> Value:
    if isinstance(value, Fraction):
        return int(value) if sql_type.is_integer else Decimal(value.numerator) / Decimal(value.denominator)
    if not isinstance(value, bool | int | str | date | datetime):
        raise TypeError(f"no domain of {type(value).__name__}")
    return value
