"""primitives: the exact cells that an aggregation needs, what one unit may add to each, and the noise of each.

Rule: a primitive's range is what its SQL enforces, by clamping; policy bounds only choose it.
"""

import enum
from dataclasses import dataclass
from fractions import Fraction

from dpsql.compiler.ir.nodes import Expr, Grid
from dpsql.privacy.cost import Adjacency, Sensitivity, Share, cell_sensitivity, row_sensitivity
from dpsql.privacy.exponential_mechanism import CellMechanism, Places, Rank, picking, rank_choice, top_k_sensitivity
from dpsql.privacy.mechanisms import best, gaussian, laplace

MAX_CELL = 2**62 - 1
"""The greatest released cell: cells are clamped to ± this number when they are released and when they are derived."""
_ADDED = {"auto": best, "laplace": laplace, "gaussian": gaussian}


class PrimitiveKind(enum.Enum):
    """What a cell adds up over the units: rows, grid values, or distinct values."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    DISTINCT = "distinct"
    DISTINCT_SUM = "distinct sum"
    DISTINCT_MEAN = "distinct mean"
    RANK = "rank"

    @property
    def is_distinct(self) -> bool:
        """True where a value that several rows have counts once."""
        return self in (PrimitiveKind.DISTINCT, PrimitiveKind.DISTINCT_SUM, PrimitiveKind.DISTINCT_MEAN)


_ROW_WEIGHTS = {
    PrimitiveKind.COUNT: Fraction(1),
    PrimitiveKind.SUM: Fraction(1, 2),
    PrimitiveKind.MEAN: Fraction(0),
}


@dataclass(frozen=True)
class Factor:
    """A number in a product, which is measured from the centre of its grid."""

    argument: Expr
    grid: Grid

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest distance from the centre."""
        return self.grid.lower - self.grid.centre, self.grid.upper - self.grid.centre


@dataclass(frozen=True)
class Primitive:
    """One integer a group: the sum over units of a value clamped to [lower, upper].

    Attributes:
        kind: COUNT: rows of the unit (where `argument` is not NULL), `cap` at most. SUM: grid values of the unit,
            clamped. MEAN: the same scaled to min(rows, cap) rows and measured from the grid's centre. DISTINCT:
            values no other unit brings, `cap` at most; DISTINCT_SUM and DISTINCT_MEAN: such values added up, from 0
            or from the grid's centre, or the squares of such values. RANK: how often there is each grid value, `cap`
            rows of a unit at most; what it adds is what it moves the loss of a value by.
        argument: What is counted or summed; None counts rows.
        filter: Rows for which it is not true add nothing.
        cap: Rows of one unit that count in one group.
        grid: The grid of the argument, for sums and means, and for distinct values that are told apart on it.
        factors: For a MEAN of products: the two numbers, of which the first is the argument.
        rank: For RANK: the rank of the value that is chosen.
        places: Where groups are picked by their cells: which.
        sampled: For COUNT: only rows of units of whose rows bounds leave some out.
    """

    kind: PrimitiveKind
    argument: Expr | None
    filter: Expr | None
    cap: int
    grid: Grid | None = None
    factors: tuple[Factor, ...] = ()
    rank: Rank | None = None
    places: Places | None = None
    sampled: bool = False

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The expressions that it is made of."""
        found = (self.argument, self.filter, *(factor.argument for factor in self.factors))
        return tuple(each for each in found if each is not None)

    @property
    def counts_units(self) -> bool:
        """True where a unit counts once in a group, however many rows it has."""
        return self.kind is PrimitiveKind.COUNT and self.cap == 1

    @property
    def counts_all_rows(self) -> bool:
        """True where it counts rows, whatever is in them."""
        return self.kind is PrimitiveKind.COUNT and self.cap > 1 and not self.operands and not self.sampled

    @property
    def sums_rows(self) -> bool:
        """True where rows that are bounded already can be added up one by one."""
        return not (self.kind.is_distinct or self.is_chosen)

    @property
    def sums_values(self) -> bool:
        """True where the values of a unit are added up, and then clamped together."""
        return self.kind is PrimitiveKind.SUM

    @property
    def row_weight(self) -> Fraction | None:
        """What a dropped row is expected to take from a cell, over the most that it may add; None of no total of rows.

        Of values nothing is known: they are thought half as large as they may be, and as far below a centre as above.
        """
        return _ROW_WEIGHTS.get(self.kind)

    @property
    def is_chosen(self) -> bool:
        """True where the mechanism chooses a value or a group; else it adds noise to the cell."""
        return self.rank is not None or self.places is not None

    @property
    def lower(self) -> int:
        """The least that one unit adds to a cell."""
        if self.rank is not None:
            return -self.cap * self.rank.above
        if self.grid is None or self.kind is PrimitiveKind.DISTINCT:
            return 0
        if self.kind in (PrimitiveKind.MEAN, PrimitiveKind.DISTINCT_MEAN):
            return self.cap * (self.grid.lower - self.grid.centre)
        return self.cap * min(self.grid.lower, 0)

    @property
    def upper(self) -> int:
        """The most that one unit adds to a cell."""
        if self.rank is not None:
            return self.cap * self.rank.below
        if self.grid is None or self.kind is PrimitiveKind.DISTINCT:
            return self.cap
        if self.kind in (PrimitiveKind.MEAN, PrimitiveKind.DISTINCT_MEAN):
            return self.cap * (self.grid.upper - self.grid.centre)
        return self.cap * max(self.grid.upper, 0)

    def noise(self, contribution: "Contribution", adjacency: Adjacency, share: Share, mechanism: str) -> CellMechanism:
        """What stands between its exact cells and the released ones.

        Args:
            contribution: What one unit may contribute.
            adjacency: What neighbours are.
            share: Its share of the price.
            mechanism: "auto", "laplace" or "gaussian", for cells that noise is added to.
        """
        if self.places is not None:
            touched = top_k_sensitivity(
                adjacency,
                self.places,
                lists=contribution.groups_per_unit,
                lower=self.lower,
                upper=self.upper,
                grouped=contribution.grouped,
            )
            return picking(touched, share, self.places)
        sensitivity = self.sensitivity(contribution, adjacency)
        if self.rank is not None and self.grid is not None:
            return rank_choice(sensitivity, share, self.rank, self.grid.lower, self.grid.upper)
        return _ADDED[mechanism](sensitivity, share)

    def sensitivity(self, contribution: "Contribution", adjacency: Adjacency) -> Sensitivity:
        """How far one unit moves its cells; rows may be limited over all groups together, units are in each."""
        groups, grouped = contribution.groups_per_unit, contribution.grouped
        rows = contribution.rows_per_group if contribution.copied else contribution.rows_per_unit
        if rows is None or self.counts_units:
            return cell_sensitivity(adjacency, l0=groups, lower=self.lower, upper=self.upper, grouped=grouped)
        return row_sensitivity(
            adjacency,
            l0=groups,
            rows=rows,
            per_cell=self.cap,
            lower=self.lower // self.cap,
            upper=self.upper // self.cap,
            grouped=grouped,
        )


UNITS = Primitive(PrimitiveKind.COUNT, None, None, 1)
"""The number of units; private groups are selected by it."""


@dataclass(frozen=True)
class Contribution:
    """What one unit may contribute to one aggregation; all of it is enforced in SQL.

    Attributes:
        grouped: False where there is one cell, whoever is in it.
        groups_per_unit: Groups it may touch; where groups are picked, lists that it may stand in.
        rows_per_group: Rows that count in one group.
        rows_per_unit: Rows that count in all groups together, where SQL limits them, too; None where it need not.
        one_group: True where the unit determines the keys: all of its rows are in one group, or its groups in one list.
        one_row: True where the engine's schema, or SQL beneath, lets a unit have one row only.
        ranked: True where SQL keeps that many of a unit's groups; else there are no more groups than that.
        copied: True where the rows are those of a bounded copy: then `max_rows` count in all groups together.
        lists: Where groups are picked: the keys, by their places, for each of whose values there is a list of groups to
            pick from; () for one list, of which a unit may touch every group. None where cells are shown.
    """

    grouped: bool
    groups_per_unit: int
    rows_per_group: int
    one_row: bool
    ranked: bool = False
    copied: bool = False
    lists: tuple[int, ...] | None = None
    rows_per_unit: int | None = None
    one_group: bool = False
