"""suggestion: searches bounds for a policy with one query over its tables, planned and priced like any other.

Rule 1: each unit contributes one value to each search: its greatest or least value, or its number of rows or groups. So
    one unit changes each rank by one, with any number of rows.
Rule 2: the search covers the whole grid of a type (numbers by magnitude, timestamps by month). Declarations of the
    policy do not narrow it, so a grid reveals nothing about the values.
Rule 3: the engine computes the grid cell of a value from that value only, and it is an integer within the grid for any
    value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir.conditions import is_null
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Cast,
    Column,
    Expr,
    Field,
    Join,
    Link,
    Literal,
    Project,
    Protected,
    Relation,
    Release,
    Released,
    SetOperation,
)
from dpsql.compiler.plan.compile import plan
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.scope.lowering import Fields, Lowered
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog, Tables
from dpsql.policy import Bound, Policy, PolicyColumn, Table
from dpsql.privacy.conversion import decimal
from dpsql.sqltypes import SqlType

_OCTAVE = 4
"""Cells for each factor of two: as exact as two digits are."""
_PER_LOG = 5.770780163555854
"""Cells for each factor of e: 4 / ln 2."""
_ROOTS = tuple(Fraction(2 ** (place / _OCTAVE)) for place in range(_OCTAVE))
_DIGITS = 2
_EXPONENTS = {
    SqlType.SMALLINT: (0, 15),
    SqlType.INTEGER: (0, 31),
    SqlType.BIGINT: (0, 63),
    SqlType.REAL: (-40, 128),
    SqlType.DOUBLE: (-40, 1024),
    SqlType.NUMERIC: (-40, 1024),
}
"""Sizes of numbers of each type lie between these powers of two; the first cell holds what is less, down to 0, and a
numeric beyond doubles has no cell."""


@dataclass(frozen=True)
class Magnitudes:
    """Cell 0 is 0; the others hold, on either side of it, numbers whose size is within one quarter of a factor of two.

    Reference: Wilson et al. 2020, section 5.1.1, for the search of bounds among signed powers of two.
    """

    type: SqlType

    @property
    def _first(self) -> int:
        """The quarter octave that cell 1 is."""
        return _EXPONENTS[self.type][0] * _OCTAVE

    @property
    def _cells(self) -> int:
        return _EXPONENTS[self.type][1] * _OCTAVE - self._first

    def cell(self, value: Expr) -> Expr:
        """The cell of a number; NULL for NULL."""
        number = value if value.type is SqlType.DOUBLE else Cast(value, SqlType.DOUBLE)
        side = Cast(_double("sign", number), SqlType.INTEGER)
        return Call("int_multiply", (side, self._size(_double("abs", number))), SqlType.INTEGER)

    def _size(self, number: Expr) -> Expr:
        """The cell of a number above 0; some cell for 0 and for NULL, which LEAST and GREATEST leave out."""
        octaves = _double("multiply", _double("ln", number), Literal(_PER_LOG, SqlType.DOUBLE))
        place = Cast(_double("floor", octaves), SqlType.INTEGER)
        moved = _integer("int_add", place, 1 - self._first)
        return _integer("greatest", _integer("least", moved, self._cells), 1)

    def lower(self, cell: int) -> Fraction:
        """A round number that no number of the cell is below."""
        return -self._greatest(-cell, 0) if cell < 0 else self._least(cell)

    def upper(self, cell: int) -> Fraction:
        """A round number that no number of the cell is above."""
        return -self._least(-cell) if cell < 0 else self._greatest(cell, 1)

    def _least(self, cell: int) -> Fraction:
        """A round number below the cell, or where it begins."""
        if cell == 0 or (cell == 1 and not self.type.is_integer):
            return Fraction(0)
        begins = _power(self._first + cell - 1)
        if self.type.is_integer:
            begins = Fraction(begins.__ceil__())
        return _round(begins, ROUND_FLOOR)

    def _greatest(self, cell: int, missing: int) -> Fraction:
        """A round number above the cell, within the type: its largest power of two, less the missing part."""
        if cell == 0:
            return Fraction(0)
        # What ends it may be in it, for logarithms are not exact.
        ends = _power(self._first + cell)
        if not self.type.is_integer:
            return _round(ends, ROUND_CEILING)
        most = 2 ** _EXPONENTS[self.type][1] - missing
        return min(_round(Fraction(ends.__floor__()), ROUND_CEILING), Fraction(most))


@dataclass(frozen=True)
class Months:
    """A cell is a calendar month, counted from the beginning of year 0; timestamptz is cut in the dataset's zone."""

    type: SqlType
    timezone: str

    def cell(self, value: Expr) -> Expr:
        """The month of a moment; NULL for NULL."""
        year, month = (Cast(Call(f"extract_{part}", (value,), SqlType.BIGINT), SqlType.INTEGER) for part in _PARTS)
        months = Call("int_multiply", (year, Literal(12, SqlType.INTEGER)), SqlType.INTEGER)
        return Call("int_add", (months, month), SqlType.INTEGER)

    def lower(self, cell: int) -> Bound:
        """The month's first moment."""
        return self._typed(_first_of(_within(cell)))

    def upper(self, cell: int) -> Bound:
        """The month's last day, or its last microsecond."""
        following = _first_of(_within(cell) + 1)
        return self._typed(following - (timedelta(days=1) if self.type is SqlType.DATE else timedelta(microseconds=1)))

    def _typed(self, moment: datetime) -> Bound:
        if self.type is SqlType.DATE:
            return moment.date()
        return moment.replace(tzinfo=ZoneInfo(self.timezone)).astimezone(UTC) if self._is_zoned else moment

    @property
    def _is_zoned(self) -> bool:
        return self.type is SqlType.TIMESTAMPTZ


_PARTS = ("year", "month")
SearchGrid = Magnitudes | Months


def search_grid(sql_type: SqlType, timezone: str) -> SearchGrid | None:
    """The grid of a type's values; None for a type that has no limits."""
    if sql_type in _EXPONENTS:
        return Magnitudes(sql_type)
    return Months(sql_type, timezone) if sql_type.is_moment else None


def _within(month: int) -> int:
    """A month; of those at the ends of time, the nearest that has limits in every zone."""
    return min(max(month, 2 * 12 + 1), 9998 * 12 + 12)


def _first_of(month: int) -> datetime:
    year, place = divmod(month - 1, 12)
    return datetime(year, place + 1, 1)


def _power(quarters: int) -> Fraction:
    octave, place = divmod(quarters, _OCTAVE)
    return Fraction(2) ** octave * _ROOTS[place]


def _round(number: Fraction, rounding: str) -> Fraction:
    """A number to two digits, upwards or downwards."""
    return Fraction(decimal(number, Context(prec=_DIGITS, rounding=rounding)))


def _double(function: str, *arguments: Expr) -> Expr:
    return Call(function, arguments, SqlType.DOUBLE)


def _integer(function: str, argument: Expr, constant: int) -> Expr:
    return Call(function, (argument, Literal(constant, SqlType.INTEGER)), SqlType.INTEGER)


_COUNTS = Magnitudes(SqlType.BIGINT)
MOST_ROWS = 2**62
"""Rows of one unit that are thought possible where it is asked how many there are."""
ROWS = AggregateCall("count", None, False, None, SqlType.BIGINT)
NO_VALUE = -(2**40)
"""The place that means no cell, because no row has a value; no grid has that many cells."""


@dataclass(frozen=True)
class Wanted:
    """What of a table a policy could limit.

    Attributes:
        table: A protected table.
        columns: The columns whose lower and upper are wanted.
        keys: The columns that rows are grouped by where groups are counted; one query groups by one of them.
        rows: Whether max_rows is wanted.
    """

    table: Table
    columns: tuple[PolicyColumn, ...]
    keys: tuple[PolicyColumn, ...]
    rows: bool


@dataclass(frozen=True)
class SearchedLimit:
    """A limit that is searched for.

    Attributes:
        table: Of which table.
        column: Of which column; None for the table as a whole.
        setting: lower, upper, max_rows, max_groups or max_rows_per_group.
        grid: What it is searched on.
    """

    table: Table
    column: PolicyColumn | None
    setting: str
    grid: SearchGrid

    def value(self, cell: int) -> Bound:
        """The limit that the chosen cell gives: around all that is in the cell."""
        return self.grid.lower(cell) if self.setting == "lower" else self.grid.upper(cell)


@dataclass(frozen=True)
class PlannedSearch:
    """A planned search: the query's columns are the cells of the limits, in order.

    Attributes:
        query: One row.
        limits: What its columns are.
    """

    query: CompiledQuery
    limits: tuple[SearchedLimit, ...]


@dataclass(frozen=True)
class ExactSearch:
    """The same without noise, over one relation, for the data owner only: SQL with one row of bigints."""

    sql: str
    names: tuple[str, ...]
    limits: tuple[SearchedLimit, ...]


@dataclass(frozen=True)
class _Cells:
    """One row per unit: the cells that it contributes, and the limit that each is for."""

    protected: Protected
    cells: tuple[tuple[SearchedLimit, Field], ...]


def plan_search(
    wanted: Sequence[Wanted], fraction: Decimal, catalog: Catalog, settings: QuerySettings, what: str
) -> PlannedSearch:
    """Plan the search of limits by the exponential mechanism.

    Guarantee: that of the query: each choice is a RankChoice over units, of which each has one cell.
    Assumes: nothing of the values; cells are total.
    Reference: RankChoice; Wilson et al. 2020 for one contribution a unit, on a grid
        that does not depend on data.

    Args:
        wanted: What is searched for.
        fraction: The part of the units that is not to have more rows or groups than the limit.
        catalog: The policy, with a role that sees every table and is charged as the cap is.
        settings: The price.
        what: What the search is called where a query has its text.
    """
    fields = Fields()
    found: list[tuple[SearchedLimit, Field]] = []
    relations: list[Relation] = []
    for cells in _all_cells(wanted, catalog, fields):
        calls = {fields.new(SqlType.INTEGER): _chosen(limit, cell, fraction) for limit, cell in cells.cells}
        aggregate = Aggregate(cells.protected.relation, (), (), tuple(calls), tuple(calls.values()))
        limits = tuple((fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE)) for _ in calls)
        relations.append(Release(cells.protected, aggregate, limits))
        found += zip((limit for limit, _ in cells.cells), calls, strict=True)
    whole = relations[0]
    for relation in relations[1:]:
        whole = Join("cross", whole, relation, None)
    columns = tuple((f"c{place}", field) for place, (_, field) in enumerate(found))
    query = plan(what, Lowered(Released(whole), columns), catalog, fields, settings)
    verify(query, catalog)
    return PlannedSearch(query, tuple(limit for limit, _ in found))


def exact_searches(wanted: Sequence[Wanted], catalog: Catalog) -> tuple[ExactSearch, ...]:
    """Write the search without noise: the extremes of the units' values."""
    fields, searches = Fields(), []
    renderer = Renderer(DIALECTS[catalog.schema.engine], catalog.schema, catalog.policy)
    for cells in _all_cells(wanted, catalog, fields):
        calls = {fields.new(SqlType.INTEGER): _extreme(limit, cell) for limit, cell in cells.cells}
        extremes = Aggregate(cells.protected.relation, (), (), tuple(calls), tuple(calls.values()))
        named = tuple(fields.new(SqlType.BIGINT) for _ in calls)
        nothing = Literal(NO_VALUE, SqlType.BIGINT)
        values = tuple(Call("coalesce", (Column(field), nothing), SqlType.BIGINT) for field in calls)
        sql = renderer.relation(Project(extremes, named, values), frozenset(named))
        limits = tuple(limit for limit, _ in cells.cells)
        searches.append(ExactSearch(sql, tuple(map(renderer.name, named)), limits))
    return tuple(searches)


def _chosen(limit: SearchedLimit, cell: Field, fraction: Decimal) -> AggregateCall:
    """Limits of values lie near the extremes, as near as the noise allows; those of counts at the part asked for."""
    if limit.column is not None:
        return _extreme(limit, cell)
    return AggregateCall("percentile_disc", Column(cell), False, None, SqlType.INTEGER, fractions=(fraction,))


def _extreme(limit: SearchedLimit, cell: Field) -> AggregateCall:
    return AggregateCall("min" if limit.setting == "lower" else "max", Column(cell), False, None, SqlType.INTEGER)


def _all_cells(wanted: Sequence[Wanted], catalog: Catalog, fields: Fields) -> list[_Cells]:
    found = []
    for each in wanted:
        builder = _Builder(each, catalog, fields)
        if each.columns or each.rows or each.keys:
            found.append(builder.values_and_counts())
        if each.keys:
            found.append(builder.rows_in_a_group())
    return found


@dataclass(frozen=True)
class _Builder:
    wanted: Wanted
    catalog: Catalog
    fields: Fields

    def values_and_counts(self) -> _Cells:
        """The greatest and the least value of each unit, and how many rows and groups it has."""
        rows, names = self._scan()
        calls: dict[Field, AggregateCall] = {}

        def per_unit(call: AggregateCall) -> Column:
            field = self.fields.new(call.type)
            calls[field] = call
            return Column(field)

        cells: list[tuple[SearchedLimit, Expr]] = []
        counts: dict[str, Expr] = {}
        for column in self.wanted.columns:
            grid = search_grid(column.type, self.catalog.policy.dataset.timezone)
            if grid is None:
                raise TypeError("a column with limits has a grid")
            cell = grid.cell(Column(names[column.name]))
            for setting, function in (("lower", "min"), ("upper", "max")):
                limit = SearchedLimit(self.wanted.table, column, setting, grid)
                cells.append((limit, per_unit(AggregateCall(function, cell, False, None, SqlType.INTEGER))))
        if self.wanted.rows:
            counts["max_rows"] = per_unit(ROWS)
        if self.wanted.keys:
            counts["max_groups"] = self._groups([names[key.name] for key in self.wanted.keys], per_unit)
        return self._cells(self._by_unit(rows, calls), cells, counts)

    def _groups(self, keys: Sequence[Field], per_unit: Callable[[AggregateCall], Column]) -> Expr:
        """The groups that a unit is in, by the key by which it is in most; NULL is a group too."""
        one = Literal(1, SqlType.BIGINT)
        numbers: list[Expr] = []
        for key in keys:
            distinct = per_unit(replace(ROWS, argument=Column(key), distinct=True))
            absent = per_unit(replace(ROWS, filter=is_null(Column(key))))
            null = Call("least", (absent, one), SqlType.BIGINT)
            numbers.append(Call("int_add", (distinct, null), SqlType.BIGINT))
        return numbers[0] if len(numbers) == 1 else Call("greatest", tuple(numbers), SqlType.BIGINT)

    def rows_in_a_group(self) -> _Cells:
        """The rows of each unit in that of its groups that has most of them, whichever key they are grouped by."""
        arms = [self._counted(key) for key in self.wanted.keys]
        relation: Relation = arms[0]
        for arm in arms[1:]:
            fields = tuple(self.fields.new(field.type) for field in arm.fields)
            relation = SetOperation("union", True, relation, arm, fields)
        unit, number = relation.fields
        most = self.fields.new(SqlType.BIGINT)
        calls = {most: AggregateCall("max", Column(number), False, None, SqlType.BIGINT)}
        by_unit = self._by_unit(_rows_of(relation, unit), calls)
        return self._cells(by_unit, [], {"max_rows_per_group": Column(most)})

    def _counted(self, key: PolicyColumn) -> Relation:
        """The unit and the number of rows of each group of one unit."""
        rows, names = self._scan()
        unit, value = self.fields.new(rows.unit.type), self.fields.new(key.type)
        number = self.fields.new(SqlType.BIGINT)
        keys = (Column(rows.unit), Column(names[key.name]))
        groups = Aggregate(rows.relation, (unit, value), keys, (number,), (ROWS,), MOST_ROWS)
        fields = self.fields.new(unit.type), self.fields.new(SqlType.BIGINT)
        return Project(groups, fields, (Column(unit), Column(number)))

    def _scan(self) -> tuple[Protected, dict[str, Field]]:
        """The table's rows with their unit, and its columns by name."""
        lowered = Tables(self.catalog, self.fields).find(None, self.wanted.table.name, None)
        if not isinstance(lowered.status, Protected):
            raise TypeError("rows of units are in protected tables")
        return lowered.status, dict(lowered.columns)

    def _by_unit(self, rows: Protected, calls: dict[Field, AggregateCall]) -> Protected:
        unit = self.fields.new(rows.unit.type)
        keys = (Column(rows.unit),)
        return _rows_of(Aggregate(rows.relation, (unit,), keys, tuple(calls), tuple(calls.values()), MOST_ROWS), unit)

    def _cells(
        self, by_unit: Protected, cells: Sequence[tuple[SearchedLimit, Expr]], counts: Mapping[str, Expr]
    ) -> _Cells:
        """The cells of units: those that there are, and those of counts, which are made first."""
        numbered, unit = self._projected(by_unit, [*(cell for _, cell in cells), *counts.values()])
        first, last = numbered.fields[1 : len(cells) + 1], numbered.fields[len(cells) + 1 :]
        found: list[tuple[SearchedLimit, Expr]] = [
            (limit, Column(f)) for (limit, _), f in zip(cells, first, strict=True)
        ]
        for setting, field in zip(counts, last, strict=True):
            found.append((SearchedLimit(self.wanted.table, None, setting, _COUNTS), _COUNTS.cell(Column(field))))
        relation, unit = self._projected(_rows_of(numbered, unit), [cell for _, cell in found])
        limits = (limit for limit, _ in found)
        return _Cells(_rows_of(relation, unit), tuple(zip(limits, relation.fields[1:], strict=True)))

    def _projected(self, rows: Protected, expressions: Sequence[Expr]) -> tuple[Project, Field]:
        """The unit and the expressions."""
        unit = self.fields.new(rows.unit.type)
        fields = tuple(self.fields.new(expression.type) for expression in expressions)
        return Project(rows.relation, (unit, *fields), (Column(rows.unit), *expressions)), unit


def _rows_of(relation: Relation, unit: Field) -> Protected:
    """Rows that are one a unit, or are made so next."""
    return Protected(relation, unit, 1, 1, 1, one_row=True, links=frozenset({Link((), (unit,))}))


def searchable(policy: Policy, table: Table, *, tighter: bool) -> Wanted:
    """What a policy could limit of a table: columns without limits, or all of them; rows and groups of a unit."""
    # Randomized answers are debiased in counts of units, and can be nothing else.
    columns = [each for each in table.columns if not leads_to_unit(table, each) and each.collected_by is None]
    limited = tuple(
        column
        for column in columns
        if search_grid(column.type, policy.dataset.timezone) is not None
        and not _has_domain(column)
        and (tighter or column.lower is None)
    )
    several = table.rows_per_unit != 1
    keys = tuple(column for column in columns if several and is_category(column))
    return Wanted(table, limited, keys, several)


def _has_domain(column: PolicyColumn) -> bool:
    return column.values is not None or column.values_from is not None


def leads_to_unit(table: Table, column: PolicyColumn) -> bool:
    """True for the unit's key, for the first columns of the path to it, and for keys within the unit."""
    begins = {here for via in table.unit_via for here, _ in via.on}
    return column.name in (table.unit_key, *table.within_unit) or column.name in begins


def is_category(column: PolicyColumn) -> bool:
    """True for common group keys: texts, booleans, dates, and columns with a domain."""
    grouped = column.type.is_text or column.type in (SqlType.BOOLEAN, SqlType.DATE)
    return grouped or _has_domain(column)


def positive(value: Bound) -> int:
    """A limit of a count: at least 1."""
    if not isinstance(value, Fraction):
        raise TypeError("a count is a number")
    return max(1, int(value))
