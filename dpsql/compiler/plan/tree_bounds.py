"""tree_bounds: what a tree of steps reads, and how much one unit can add to each cell, derived from the tables upwards.

Rule 1: an unknown table, relation, step, value or cell is refused, and so is a missing limit: every match is closed.
Rule 2: nothing here shares code with rewrite, printer or pricing, and no SQL is read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

from dpsql.compiler.bounding.steps import (
    BoundedQuery,
    Cell,
    Clamp,
    Clamped,
    ClampedSum,
    CountedRows,
    DistinctTotal,
    GroupSampling,
    Histogram,
    Plain,
    Prepared,
    Product,
    RowCount,
    RowLimit,
    Rows,
    RowSampling,
    RowsOfFew,
    RowsOfMany,
    RowSum,
    RowValues,
    SampledRows,
    ScaledSum,
    Step,
    UnitCount,
    Units,
    UnitSums,
    UnitTotal,
    Value,
    ValueSampling,
)
from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.nodes import (
    Aggregate,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Project,
    Relation,
    Scan,
    Series,
    SetOperation,
    Sort,
    UnitScan,
    UnitWindows,
    Unnest,
    Values,
)
from dpsql.compiler.ir.primitives import Primitive
from dpsql.compiler.ir.schema import InputTable, PreparedSource, PreparedTable
from dpsql.compiler.ir.walk import inputs, relations_in
from dpsql.compiler.plan.agreement import TwoRows
from dpsql.compiler.plan.belonging import Owners
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import GuaranteeMismatch
from dpsql.policy import Table

Leaves = Mapping[Relation, Leaf]
Reading = Table | PreparedTable
"""A source of rows: a table of the policy, or a prepared table."""


@dataclass(frozen=True)
class Moves:
    """What one unit may add to a cell in all groups.

    Attributes:
        groups: The number of groups in which it adds something; for top-k, the number of lists of groups.
        lower: The least that it adds in one of them, at most 0.
        upper: The most that it adds in one of them, at least 0.
        full: The sum over all groups, as a multiple of the most in one group.
    """

    groups: int
    lower: int
    upper: int
    full: Fraction

    def within(self, other: "Moves") -> bool:
        """Whether the other one allows at least as much."""
        return (
            self.groups <= other.groups
            and self.full <= other.full
            and other.lower <= self.lower
            and self.upper <= other.upper
        )

    def either(self, other: "Moves") -> "Moves":
        """The smallest bound that allows what this one or the other allows."""
        return Moves(
            max(self.groups, other.groups),
            min(self.lower, other.lower),
            max(self.upper, other.upper),
            max(self.full, other.full),
        )


def _refuse(why: str) -> NoReturn:
    raise GuaranteeMismatch(why)


# Tables


def readings(relations: Iterable[Relation], catalog: Catalog, leaves: Leaves) -> Iterator[Reading]:
    """Yield the tables that are read, once per read; inputs are omitted, because they are released.

    Raises:
        GuaranteeMismatch: A relation or a table is unknown.
    """
    waiting = list(relations)
    while waiting:
        relation = waiting.pop()
        if leaves and relation in leaves:
            yield from _leaf(leaves[relation], catalog)
            continue
        match relation:
            case Scan():
                yield _table(relation.table, catalog, public=True)
            case UnitScan():
                yield _table(relation.table, catalog, public=False)
            case Values() | Series() | Unnest():
                pass
            case Filter() | Project() | Aggregate() | UnitWindows() | Join() | Distinct() | SetOperation() | Sort():
                waiting += inputs(relation)
            case _:
                _refuse("unknown kind of relation")


def _table(table: Table, catalog: Catalog, *, public: bool) -> Table:
    if table != catalog.policy.table(table.name) or table.public is not public:
        _refuse("unknown table")
    return table


def _leaf(leaf: Leaf, catalog: Catalog) -> Iterator[Reading]:
    if isinstance(leaf.table, InputTable):
        return
    copies = [copy for copy in catalog.schema.copies.values() if not isinstance(copy, str)]
    found = [copy for copy in copies if isinstance(leaf.table, PreparedSource) and leaf.table.path == copy.path]
    if not found:
        _refuse("unknown table")
    yield from found


def is_protected(reading: Reading) -> bool:
    """Whether a table has rows of units."""
    return isinstance(reading, PreparedTable) or not reading.public


# Trees


class Tree:
    """A statement with totals over protected rows.

    Attributes:
        keys: The number of group keys.
        rows: The rows of all totals.
        readings: The tables that the rows are read from.
        lists: For top-k, the keys that identify a list of groups; None for other statements.
    """

    def __init__(self, statement: BoundedQuery, catalog: Catalog, listed: int | None) -> None:
        """Read a statement.

        Args:
            statement: The statement.
            catalog: The policy, and the engine's schema.
            listed: The limit for the number of public groups, or of lists of groups; None if it is not checked.

        Raises:
            GuaranteeMismatch: It has no totals, or a part of it is unknown.
        """
        if statement.totals is None:
            _refuse("the tree reads no protected rows")
        self._totals, self._enumeration = statement.totals, statement.enumeration
        self._catalog, self._leaves, self._listed = catalog, dict(statement.leaves), listed
        self.rows = _beneath(self._totals.source)
        self.keys = len(self.rows.keys)
        self.lists = self._enumeration.lists if self._enumeration is not None else None
        self.readings = tuple(self._read_by_rows())
        self._owners = Owners(catalog.schema, self._leaves)
        self._check_owners()
        self._few = self._told_apart(_read_apart(self._totals.source))
        lists = [self._enumeration.relation] if self._enumeration is not None else []
        if any(map(is_protected, readings(lists, catalog, self._leaves))):
            _refuse("public groups would be listed from a protected table")

    @property
    def private_keys(self) -> bool:
        """True if the groups depend on data."""
        return self.keys > 0 and self._enumeration is None

    @property
    def copies(self) -> list[PreparedTable]:
        """The prepared tables that rows are read from."""
        return [each for each in self.readings if isinstance(each, PreparedTable)]

    @property
    def min_units(self) -> int:
        """The largest min_units of the tables that rows are read from, or that prepared tables are made from."""
        copied = [name for name, copy in self._catalog.schema.copies.items() if copy in self.copies]
        tables = [*self.readings, *map(self._catalog.policy.table, copied)]
        return max((each.min_units for each in tables if isinstance(each, Table)), default=1)

    def _read_by_rows(self) -> Iterator[Reading]:
        expressions = [*self.rows.keys, *(each for value in self.rows.values for each in _expressions(value))]
        subqueries = [relation for expression in expressions for relation in relations_in(expression)]
        yield from readings([self.rows.relation, *subqueries], self._catalog, self._leaves)

    def _check_owners(self) -> None:
        """Check that each row belongs to the stated unit, and that a unit has one row where that is stated."""
        rows, found = self.rows, self._owners.of(self.rows.relation)
        if found is None or rows.unit not in found.units:
            _refuse("rows are bounded per another key than their unit")
        if rows.one_row and not found.once:
            _refuse("a unit can have several rows where the plan allows one")
        self._owners.check((*rows.keys, *(each for value in rows.values for each in _expressions(value))), found)

    def _told_apart(self, many: RowsOfMany | None) -> RowsOfFew | None:
        """The step for units with few rows; it must read the same rows and cover just the units that totals omit."""
        few, tables = self._totals.few, [each for each in self.readings if isinstance(each, Table)]
        if (few is None) != (many is None):
            _refuse("some units would be omitted or counted twice")
        if few is None or many is None:
            return None
        if (few.input, few.rows) != (many.input, many.rows) or few.input != self.rows:
            _refuse("some units would be omitted or counted twice")
        if len(tables) < len(self.readings) or not all(self._catalog.schema.tables[t.name].is_stored for t in tables):
            _refuse("rows that can differ from read to read are read several times")
        if self._totals.units is not Units.NONE or len(few.cells) != len(self._totals.cells):
            _refuse("units with few rows would not be counted")
        return few

    # Rows and groups of a unit

    def _unit_rows(self, rows: Rows) -> int | None:
        """The number of rows of a unit over all groups; None if it is not bounded."""
        if rows != self.rows:
            _refuse("a total is computed from other rows")
        if rows.one_row:
            return 1
        protected = [each for each in self.readings if is_protected(each)]
        if len(protected) != 1 or not isinstance(protected[0], PreparedTable):
            return None
        return protected[0].rows_per_unit if self._keeps_rows(rows.relation) else None

    def _keeps_rows(self, relation: Relation) -> bool:
        """Whether each row of a prepared table gives at most one row, and there are no other rows."""
        if relation in self._leaves:
            return isinstance(self._leaves[relation].table, PreparedSource)
        match relation:
            case Filter() | Project():
                return self._keeps_rows(relation.input)
            case Join():
                copied = self._keeps_rows(relation.left)
                other = relation.right if copied else relation.left
                kinds = ("inner", "cross", "matched", "left" if copied else "right")
                conditions = () if relation.condition is None else (relation.condition,)
                once = self._owners.matches_once(other, conditions, frozenset(other.fields))
                return relation.kind in kinds and once and (copied or self._keeps_rows(relation.right))
            case _:
                return False

    def groups(self, step: Step) -> int | None:
        """The number of groups or lists of a unit; None if it is not bounded."""
        match step:
            case Rows():
                listed = self._listed if self._enumeration is not None else None
                return _least(self._unit_rows(step), listed, 1 if self._in_one_group(step) else None)
            case GroupSampling():
                if step.lists != self.lists:
                    _refuse("a unit keeps other lists of groups than top-k selects from")
                return _least(step.groups, self.groups(step.input))
            case RowsOfMany() | UnitSums() | RowLimit() | RowSampling() | Clamp():
                return self.groups(step.input)
            case _:
                _refuse("unknown kind of step")

    def _in_one_group(self, rows: Rows) -> bool:
        """Whether all rows of a unit have equal keys; for top-k, equal keys of lists."""
        places = range(self.keys) if self.lists is None else self.lists
        two, unit = TwoRows(self._catalog, self._is_copy), frozenset({rows.unit})
        return all(two.agree_on(rows.keys[place], rows.relation, unit) for place in places)

    def _is_copy(self, relation: Relation) -> bool:
        leaf = self._leaves.get(relation) if self._leaves else None
        return leaf is not None and isinstance(leaf.table, PreparedSource)

    def counted_groups(self) -> int:
        """The number of groups in which a unit is counted, once in each.

        Raises:
            GuaranteeMismatch: The number is not bounded, or a unit counts several times in a group.
        """
        source, units = self._totals.source, self._totals.units
        match source:
            case Clamp() | GroupSampling(input=Clamp()):
                once = units is Units.ROWS
            case Rows():
                once = units is Units.DISTINCT or (units is Units.ROWS and self._unit_rows(source) == 1)
            case _:
                once = False
        groups = self.groups(source)
        if not once or groups is None:
            _refuse("private groups are selected, but the groups of one unit are not limited")
        return groups

    # What a unit adds

    def moves(self, primitives: Sequence[Primitive]) -> list[Moves]:
        """What a unit may add to each cell; for a histogram, how much it changes the loss of a value.

        Raises:
            GuaranteeMismatch: It is not bounded.
        """
        cells = self._totals.cells
        if len(primitives) != len(cells):
            _refuse("the cells of the tree differ from those that get noise")
        moves = [
            self._moves(place, cell, primitive)
            for place, (cell, primitive) in enumerate(zip(cells, primitives, strict=True))
        ]
        if self._few is None:
            return moves
        added = [
            self._added(self._few, place, cell, primitive)
            for place, (cell, primitive) in enumerate(zip(cells, primitives, strict=True))
        ]
        return [moved.either(other) for moved, other in zip(moves, added, strict=True)]

    def _added(self, few: RowsOfFew, place: int, cell: Cell, primitive: Primitive) -> Moves:
        """What a unit with few rows may add to a cell."""
        match few.cells[place]:
            case None:
                ends = (0, 0)
            case RowCount():
                ends = (0, 1)
            case RowSum() as summed:
                ends = self._measured(summed.sum.value, summed.centre)
            case RowValues() as values if isinstance(cell, DistinctTotal | Histogram):
                self._check_beside(cell.source, values)
                ends = self._of_one_value(cell, primitive)
            case _:
                _refuse("unknown kind of cell")
        return _moves(_least(few.rows, self.groups(few.input)), few.rows * ends[0], few.rows * ends[1], Fraction(1))

    def _check_beside(self, source: Rows | ValueSampling, values: RowValues) -> None:
        """Check that values of units with few rows come beside the same values of the other units, and of no more."""
        if not isinstance(source, ValueSampling) or _read_apart(source.kept) != _read_apart(self._totals.source):
            _refuse("some units would be omitted or counted twice")
        if RowValues(source.value, source.condition) != values:
            _refuse("units with few rows would add other values")

    def _moves(self, place: int, cell: Cell, primitive: Primitive) -> Moves:
        if isinstance(cell, Histogram) != (primitive.rank is not None):
            _refuse("a choice by rank and a noisy sum do not fit together")
        match cell:
            case UnitTotal():
                return self._unit_total(place)
            case RowCount():
                return self._of_rows((0, 1))
            case RowSum():
                return self._of_rows(self._measured(cell.sum.value, cell.centre))
            case UnitCount():
                return self._in_groups(self._few_rows(), 0, 1)
            case DistinctTotal() | Histogram():
                ends = self._of_one_value(cell, primitive)
                return self._of_values(cell.source, ends, distinct=isinstance(cell, DistinctTotal))
            case _:
                _refuse("unknown kind of cell")

    def _of_one_value(self, cell: DistinctTotal | Histogram, primitive: Primitive) -> tuple[int, int]:
        """The least and the most that one value of a unit adds."""
        value = _value_of(cell)
        if isinstance(cell, Histogram):
            rank, grid = primitive.rank, primitive.grid
            if rank is None or grid is None or self._value_range(value) != (grid.lower, grid.upper):
                _refuse("a value is chosen from another grid than the plan says")
            return -rank.above, rank.below
        total = cell.total
        if set(total.factors if isinstance(total, Product) else (total or value,)) != {value}:
            _refuse("the sum is over other values than the distinct ones")
        return (0, 1) if total is None else self._measured(total, cell.centre)

    def _unit_total(self, place: int) -> Moves:
        match self._totals.source:
            case Clamp() as step:
                pass
            case GroupSampling(input=Clamp() as step):
                pass
            case _:
                _refuse("a summed value is not clamped")
        amount = step.amounts[place] if place < len(step.amounts) else None
        match amount:
            case CountedRows() | SampledRows():
                ends = (0, 1)
            case ClampedSum():
                ends = (amount.lower, amount.upper)
            case ScaledSum():
                ends = (amount.grid.lower - amount.grid.centre, amount.grid.upper - amount.grid.centre)
            case _:
                _refuse("a summed value is not clamped")
        return self._in_each(self._totals.source, step, amount.rows, ends)

    def _of_values(self, source: Rows | ValueSampling, ends: tuple[int, int], *, distinct: bool) -> Moves:
        match source:
            case Rows():
                if self._unit_rows(source) != 1:
                    _refuse("the number of distinct values of one unit is not limited")
                return self._in_groups(source, *ends)
            case ValueSampling():
                if source.distinct is not distinct:
                    _refuse("distinct values are chosen by another expression than the one that is summed")
                step = source.kept.input if isinstance(source.kept, GroupSampling) else source.kept
                if isinstance(step, Rows | GroupSampling):
                    _refuse("a unit has several rows per group, so its distinct values would count several times")
                return self._in_each(source.kept, step, source.rows, ends)
            case _:
                _refuse("unknown kind of step")

    def _in_each(self, source: Step, step: Step, rows: int | None, ends: tuple[int, int]) -> Moves:
        """The bound for `rows` rows per group, or for a limited number in all groups; `ends` bound what a row adds."""
        if rows is not None:
            return self._in_groups(source, rows * ends[0], rows * ends[1])
        in_each, in_all = self._shares(step)
        groups = _least(self.groups(source), in_all)
        return _moves(groups, in_each * ends[0], in_each * ends[1], Fraction(in_all, in_each))

    def _shares(self, step: Step) -> tuple[int, int]:
        """The limits of a unit's rows in one group and in all groups."""
        sampling = step.input if isinstance(step, Clamp) else None
        if isinstance(sampling, RowSampling):
            limit = sampling.input.input if isinstance(sampling.input, GroupSampling) else sampling.input
            if isinstance(limit, RowLimit):
                return limit.rows, sampling.rows
        _refuse("the rows of a unit are not limited over all groups")

    def _few_rows(self) -> Rows:
        """The rows that are added up without being put together by unit."""
        if not isinstance(self._totals.source, Rows):
            _refuse("summed rows are not bounded")
        return self._totals.source

    def _of_rows(self, ends: tuple[int, int]) -> Moves:
        source = self._few_rows()
        rows = self._unit_rows(source)
        if rows is None:
            _refuse("summed rows are not bounded")
        return _moves(self.groups(source), rows * ends[0], rows * ends[1], Fraction(1))

    def _in_groups(self, source: Step, lower: int, upper: int) -> Moves:
        groups = self.groups(source)
        return _moves(groups, lower, upper, Fraction(groups or 0))

    # Values

    def _measured(self, value: Value, centre: int | None) -> tuple[int, int]:
        lower, upper = self._value_range(value)
        return lower - (centre or 0), upper - (centre or 0)

    def _value_range(self, value: Value) -> tuple[int, int]:
        """The least and the greatest that a value can be."""
        match value:
            case Clamped():
                return value.grid.lower, value.grid.upper
            case Prepared():
                self._check_prepared(value)
                return value.grid.lower, value.grid.upper
            case Product():
                return self._product_range(value)
            case _:
                _refuse("a summed value is not clamped")

    def _product_range(self, product: Product) -> tuple[int, int]:
        one, other = product.factors
        sides = [[end - each.grid.centre for end in self._value_range(each)] for each in product.factors]
        if one == other:
            return 0, max(end**2 for end in sides[0])
        ends = [left * right for left in sides[0] for right in sides[1]]
        return min(ends), max(ends)

    def _check_prepared(self, value: Prepared) -> None:
        """Check that a value that is not clamped again is a column that the prepared table has on the same grid."""
        grids = {stored.name: stored.grid for copy in self.copies for stored in copy.grids}
        name = self._column_of(self.rows.relation, value.field)
        if name is None or grids.get(name) != value.grid:
            _refuse("the values of a prepared table are on another grid than the noise")

    def _column_of(self, relation: Relation, field: Field) -> str | None:
        """The column of the prepared table whose unchanged values a field has; None if there is none."""
        match relation:
            case UnitScan():
                names = dict(zip(relation.column_fields, relation.columns, strict=True))
                return names[field].name if relation in self._leaves and field in names else None
            case Filter():
                return self._column_of(relation.input, field)
            case Project():
                given = dict(zip(relation.fields, relation.expressions, strict=True)).get(field)
                return self._column_of(relation.input, given.field) if isinstance(given, Column) else None
            case Join():
                return self._column_of(relation.left, field) or self._column_of(relation.right, field)
            case _:
                return None


def _value_of(cell: DistinctTotal | Histogram) -> Value:
    """The value whose distinct values are counted, from the sampling step or from the rows."""
    return cell.source.value if isinstance(cell.source, ValueSampling) else cell.value


def _moves(groups: int | None, lower: int, upper: int, full: Fraction) -> Moves:
    if groups is None:
        _refuse("the groups of one unit are not bounded")
    return Moves(groups, min(lower, 0), max(upper, 0), full)


def _beneath(step: Step) -> Rows:
    """The rows that a step reads."""
    while not isinstance(step, Rows):
        if not isinstance(step, RowsOfMany | GroupSampling | UnitSums | RowLimit | RowSampling | Clamp):
            _refuse("unknown kind of step")
        step = step.input
    return step


def _read_apart(step: Step) -> RowsOfMany | None:
    """The step below this one that reads only units with many rows; None if there is none."""
    while not isinstance(step, Rows | RowsOfMany):
        step = step.input
    return step if isinstance(step, RowsOfMany) else None


def _expressions(value: Value) -> tuple[Expr, ...]:
    match value:
        case Plain() | Clamped():
            return (value.expression,)
        case Prepared():
            return ()
        case Product():
            return tuple(each for factor in value.factors for each in _expressions(factor))
        case _:
            _refuse("unknown kind of value")


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
