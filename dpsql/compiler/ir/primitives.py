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
    """One integer for each group: the sum over units of a value clamped to [lower, upper].

    Attributes:
        kind: COUNT: rows of the unit (where `argument` is not NULL), at most `cap`. SUM: grid values of the unit,
            clamped. MEAN: the same scaled to min(rows, cap) rows and measured from the grid's centre. DISTINCT:
            values that no other unit has, at most `cap`; DISTINCT_SUM and DISTINCT_MEAN: the sum of such values, from 0
            or from the grid's centre, or of their squares. RANK: the frequency of each grid value, at most `cap`
            rows of a unit; its sensitivity is the change of a value's loss.
        argument: The counted or summed expression; None counts rows.
        filter: Only rows for which it is true count.
        cap: The bound of one unit's rows in one group.
        grid: The grid of the argument, for sums and means, and for distinct values that are compared on it.
        factors: For a MEAN of products: the two factors; the first one is the argument.
        rank: For RANK: the requested rank.
        places: For cells that select groups: the places of these.
        sampled: For COUNT: only rows of units with dropped rows count.
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
        """True if it counts all rows, whatever their values."""
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
        """The expected share of a cell's bound that a dropped row takes away; None if the cell is no total of rows.

        The values are unknown: they are assumed to be half of the bound, and symmetric around a centre.
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
        """Return the mechanism that noises the cells.

        Args:
            contribution: The contribution bounds of one unit.
            adjacency: The neighbouring relation.
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
    """The contribution bounds of one unit in one aggregation; SQL enforces all of them.

    Attributes:
        grouped: False if there is one cell for all rows.
        groups_per_unit: The bound of its groups; for top-k, of the lists that it may occur in.
        rows_per_group: The bound of its rows in one group.
        rows_per_unit: The bound of its rows in all groups together, if SQL enforces one; else None.
        one_group: True if the unit determines the keys: all of its rows are in one group, or its groups in one list.
        one_row: True if the engine's schema, or the SQL below, allows one row per unit only.
        ranked: True if SQL samples this many of a unit's groups; else it cannot have more groups.
        copied: True if the rows are read from a prepared table: then `rows_per_unit` bounds all groups together.
        lists: For top-k: the places of the keys for whose values there is a list of groups each; () for one list, of
            which a unit may touch every group. None if cells are released.
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
