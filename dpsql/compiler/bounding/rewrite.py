"""rewrite: one aggregation of protected rows into a tree of steps in which every unit's contribution is bounded.

Rule 1: a unit's contribution depends only on the multiset of its own rows: counts, exact integer sums, and an order by
a keyed hash of values and then by the values. Codes are never hashed, because they depend on other units' values.
Rule 2: a step is left out only if the engine's schema, or the number of public groups, makes it unnecessary.

A prepared table already has few rows per unit, so its cells are totals over rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpsql.compiler.bounding import steps
from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.functions import MAX_TEXT, beginning
from dpsql.compiler.ir.nodes import Column, Expr, Field, Grid, Protected, Relation
from dpsql.compiler.ir.primitives import Contribution, Primitive, PrimitiveKind
from dpsql.compiler.ir.schema import StoredGrid
from dpsql.compiler.ir.walk import in_double


@dataclass(frozen=True)
class Bounding:
    """One aggregation, and the steps that it does not need.

    Attributes:
        protected: The rows.
        keys: Group keys.
        primitives: The cells, in order.
        contribution: What one unit may contribute.
        domain: All public key combinations, or None where keys are private.
        fine: True where most rows have a group of their own, so that groups are ranked before rows are summed.
        counts_units: True where groups are selected by their units. Elsewhere, nobody asks for them, and where rows are
            limited over all groups they are not counted.
        again: True where the rows may be read several times.
        stored: Of a prepared table, the fields whose values are on their grid, and within its limits, already.
    """

    protected: Protected
    keys: tuple[Expr, ...]
    primitives: tuple[Primitive, ...]
    contribution: Contribution
    domain: Relation | None
    fine: bool
    counts_units: bool
    again: bool
    stored: Mapping[Field, StoredGrid] = field(default_factory=dict)

    @property
    def reads_nobody(self) -> bool:
        """Whether only public keys are selected, which are listed without a protected row."""
        return not self.primitives and not self.counts_units and self.domain is not None


def rewrite(bounding: Bounding, leaves: Mapping[Relation, Leaf]) -> steps.BoundedQuery:
    """Return the tree whose rows are: keys as text, the number of units if asked for, then one bigint a primitive.

    Rows of public keys come in key order; those of private keys in any order, for only some of them will be kept.

    Args:
        bounding: The aggregation.
        leaves: The relations in it that are read from an input, or from a prepared table.
    """
    domain, lists = bounding.domain, bounding.contribution.lists
    enumeration = steps.Enumeration(domain, bounding.keys, lists) if domain is not None else None
    totals = None if bounding.reads_nobody else _Rewrite(bounding).totals()
    return steps.BoundedQuery(totals, enumeration, tuple(leaves.items()))


class _Rewrite:
    def __init__(self, bounding: Bounding) -> None:
        self._b = bounding
        self._bounds = bounding.contribution
        self._primitives = bounding.primitives
        self._rows = steps.Rows(
            bounding.protected.relation,
            bounding.protected.unit,
            tuple(map(self._key, bounding.keys)),
            tuple(value for primitive in self._primitives for value in self._brought(primitive)),
            self._bounds.one_row,
        )

    def totals(self) -> steps.Totals:
        """The totals over protected rows."""
        if self._bounds.copied:
            units = steps.Units.DISTINCT if self._b.counts_units else steps.Units.NONE
            return steps.Totals(self._rows, units, tuple(map(self._row_cell, self._primitives)))
        if self._bounds.one_row:
            return steps.Totals(self._rows, steps.Units.ROWS, tuple(map(self._row_cell, self._primitives)))
        few = self._few()
        rows: steps.RowStep = self._rows
        if few is not None:
            rows = steps.RowsOfMany(self._rows, few.rows)
        elif self._ranks_rows:
            rows = steps.GroupSampling(self._rows, self._bounds.groups_per_unit)
        kept = self._kept(rows)
        # Units are counted only if their groups are limited, and no rows are added up apart from their units.
        limited = few is None and (self._bounds.rows_per_unit is None or self._b.counts_units)
        cells = tuple(self._cell(primitive, rows, kept) for primitive in self._primitives)
        return steps.Totals(kept, steps.Units.ROWS if limited else steps.Units.NONE, cells, few)

    # What each row brings

    def _key(self, key: Expr) -> Expr:
        """A group's key; private keys are cut to a length of which many can be read at once."""
        return beginning(key, MAX_TEXT) if self._b.domain is None and key.type.is_text else key

    def _brought(self, primitive: Primitive) -> tuple[steps.Value, ...]:
        value, condition = self._value(primitive), self._condition(primitive)
        return tuple(each for each in (value, condition) if each is not None)

    def _value(self, primitive: Primitive) -> steps.Value | None:
        """The argument of a count; a grid value is NULL exactly if its argument is, so one column serves both."""
        if primitive.argument is None:
            return None
        if primitive.grid is not None:
            return self._number(primitive)
        on_grid = (each for each in self._primitives if each.grid is not None and each.argument == primitive.argument)
        beside = next((each for each in on_grid if not each.factors), None)
        if beside is not None and primitive.kind is not PrimitiveKind.DISTINCT:
            return self._number(beside)
        return steps.Plain(primitive.argument)

    def _number(self, primitive: Primitive) -> steps.OnGrid | steps.Product:
        """The argument on its grid; a product multiplies the distances from two centres."""
        if primitive.argument is None or primitive.grid is None:
            raise TypeError("a sum has an argument and a grid")
        if primitive.factors:
            one, other = (self._on_grid(each.argument, each.grid) for each in primitive.factors)
            return steps.Product((one, other))
        return self._on_grid(primitive.argument, primitive.grid)

    def _on_grid(self, argument: Expr, grid: Grid) -> steps.OnGrid:
        stored = self._b.stored.get(argument.field) if isinstance(argument, Column) else None
        if isinstance(argument, Column) and stored is not None and stored.grid == grid:
            return steps.Prepared(argument.field, grid)
        return steps.Clamped(in_double(argument), grid)

    def _condition(self, primitive: Primitive) -> steps.Plain | None:
        return None if primitive.filter is None else steps.Plain(primitive.filter)

    def _count(self, primitive: Primitive) -> steps.Count:
        return steps.Count(self._value(primitive), self._condition(primitive))

    def _sum(self, primitive: Primitive) -> steps.Sum:
        return steps.Sum(self._number(primitive), self._condition(primitive))

    # Units with several rows

    def _few(self) -> steps.RowsOfFew | None:
        """What units add that have at most as many rows as the limit, per group or in total; all their rows count.

        None where not just one limit of rows decides that. Where nothing is grouped, it pays if values are sampled: all
        else takes one step of adding up rows by their units.
        """
        bounds, most = self._bounds, self._bounds.rows_per_unit
        if most is None and not self._b.keys and any(map(_tells_values_apart, self._primitives)):
            most = bounds.rows_per_group
        if most is None or bounds.rows_per_group < most or bounds.ranked or self._b.counts_units:
            return None
        if not self._b.again or any(self._limit(each) not in (None, most) for each in self._primitives):
            return None
        return steps.RowsOfFew(self._rows, most, tuple(map(self._of_few, self._primitives)))

    def _of_few(self, primitive: Primitive) -> steps.RowCount | steps.RowSum | steps.RowValues | None:
        """What units with few rows add to one cell: no row of these units is dropped."""
        if primitive.sampled:
            return None
        if _tells_values_apart(primitive):
            return steps.RowValues(self._told_apart(primitive), self._condition(primitive))
        return self._row_total(primitive)

    @property
    def _ranks_rows(self) -> bool:
        """True where rows are ranked by their groups; else groups are, once their rows are summed."""
        return self._bounds.ranked and self._b.fine and self._bounds.lists is None

    def _kept(self, rows: steps.RowStep) -> steps.GroupSampling | steps.Clamp:
        """What each unit adds to the groups that it keeps, which are chosen after its rows are summed."""
        bounds, sums = self._bounds, steps.UnitSums(rows)
        samples = bounds.ranked and not self._ranks_rows
        amounts = tuple(
            None if _tells_values_apart(primitive) else self._amount(primitive) for primitive in self._primitives
        )
        if bounds.rows_per_unit is None:
            added = steps.Clamp(sums, amounts)
            return steps.GroupSampling(added, bounds.groups_per_unit, bounds.lists) if samples else added
        limited = steps.RowLimit(sums, bounds.rows_per_group)
        groups = steps.GroupSampling(limited, bounds.groups_per_unit, bounds.lists) if samples else limited
        return steps.Clamp(steps.RowSampling(groups, bounds.rows_per_unit), amounts)

    def _limit(self, primitive: Primitive) -> int | None:
        """The limit of rows per unit and group; None for a share of a limit over all groups."""
        return primitive.cap if self._bounds.rows_per_unit is None or primitive.counts_units else None

    def _amount(self, primitive: Primitive) -> steps.Amount:
        """What one unit adds to one cell, clamped to the primitive's range."""
        if primitive.sampled:
            return steps.SampledRows(self._count(primitive), self._limit(primitive))
        if primitive.kind is PrimitiveKind.COUNT or primitive.grid is None:
            return steps.CountedRows(self._count(primitive), self._limit(primitive))
        if primitive.kind is PrimitiveKind.SUM:
            lower, upper = min(primitive.grid.lower, 0), max(primitive.grid.upper, 0)
            return steps.ClampedSum(self._sum(primitive), self._limit(primitive), lower, upper)
        return steps.ScaledSum(self._sum(primitive), self._limit(primitive), primitive.grid)

    # Cells

    def _cell(self, primitive: Primitive, rows: steps.RowStep, kept: steps.GroupSampling | steps.Clamp) -> steps.Cell:
        """A total of the units' amounts, or of values sampled from each unit in each group."""
        if not _tells_values_apart(primitive):
            return steps.UnitTotal()
        value, condition, is_distinct = self._told_apart(primitive), self._condition(primitive), primitive.rank is None
        chosen = steps.ValueSampling(rows, kept, value, condition, self._limit(primitive), is_distinct)
        return self._distinct(primitive, chosen) if is_distinct else steps.Histogram(chosen, value, condition)

    def _row_cell(self, primitive: Primitive) -> steps.Cell:
        """A total over rows, where a unit has few rows."""
        if primitive.rank is not None:
            return steps.Histogram(self._rows, self._told_apart(primitive), self._condition(primitive))
        if primitive.counts_units and self._bounds.copied and self._bounds.rows_per_group > 1:
            return steps.UnitCount(self._value(primitive), self._condition(primitive))
        return self._distinct(primitive, self._rows) if primitive.kind.is_distinct else self._row_total(primitive)

    def _row_total(self, primitive: Primitive) -> steps.RowCount | steps.RowSum:
        """A count or a sum over rows."""
        if primitive.kind is PrimitiveKind.COUNT:
            return steps.RowCount(self._count(primitive))
        centre = primitive.grid.centre if primitive.grid is not None and primitive.kind is PrimitiveKind.MEAN else None
        return steps.RowSum(self._sum(primitive), centre)

    def _distinct(self, primitive: Primitive, source: steps.Rows | steps.ValueSampling) -> steps.DistinctTotal:
        grid = primitive.grid
        total = None if primitive.kind is PrimitiveKind.DISTINCT else self._number(primitive)
        centre = grid.centre if grid is not None and primitive.kind is PrimitiveKind.DISTINCT_MEAN else None
        return steps.DistinctTotal(source, self._told_apart(primitive), self._condition(primitive), total, centre)

    def _told_apart(self, primitive: Primitive) -> steps.Value:
        """The value; for sums of squares, the number before squaring, because two numbers can have one square."""
        if primitive.factors:
            return self._on_grid(primitive.factors[0].argument, primitive.factors[0].grid)
        value = self._value(primitive)
        if value is None:
            raise TypeError("values are told apart by an argument")
        return value


def _tells_values_apart(primitive: Primitive) -> bool:
    """Whether a cell is not summed unit by unit."""
    return primitive.rank is not None or primitive.kind.is_distinct
