"""parts: the exact cells that an aggregation needs, and what one unit may add to each.

Rule: a part's range is what its SQL enforces, by clamping; policy bounds only choose it.
"""

import enum
from dataclasses import dataclass

from dpsql.compiler.ir import Expr, Grid
from dpsql.privacy.choice import Rank
from dpsql.privacy.picking import Places


class PartKind(enum.Enum):
    """What a cell adds up over the units: rows, grid values, or distinct values."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    DISTINCT = "distinct"
    DISTINCT_SUM = "distinct sum"
    DISTINCT_MEAN = "distinct mean"
    RANK = "rank"
    CUT = "cut"

    @property
    def is_distinct(self) -> bool:
        """True where a value that several rows have counts once."""
        return self in (PartKind.DISTINCT, PartKind.DISTINCT_SUM, PartKind.DISTINCT_MEAN)


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
class Part:
    """One integer a group: the sum over units of a value clamped to [lower, upper].

    Attributes:
        kind: COUNT: rows of the unit (where `argument` is not NULL), `cap` at most. SUM: grid values of the unit,
            clamped. MEAN: the same scaled to min(rows, cap) rows and measured from the grid's centre. DISTINCT:
            values no other unit brings, `cap` at most; DISTINCT_SUM and DISTINCT_MEAN: such values added up, from 0
            or from the grid's centre. RANK: how often there is each grid value, `cap` rows of a unit at most; what it
            adds is what it moves the loss of a value by. CUT: 1 for a unit of whom bounding cut something, of its rows
            beyond `cap`, or in rows that pass the filter.
        argument: What is counted or summed; None counts rows.
        filter: Rows for which it is not true add nothing.
        cap: Rows of one unit that count in one group.
        grid: The grid of the argument, for sums and means, and for distinct values that are told apart on it.
        factors: For a MEAN of products: the two numbers, of which the first is the argument.
        rank: For RANK: the rank of the value that is chosen.
        places: Where groups are picked by their cells: which.
    """

    kind: PartKind
    argument: Expr | None
    filter: Expr | None
    cap: int
    grid: Grid | None = None
    factors: tuple[Factor, ...] = ()
    rank: Rank | None = None
    places: Places | None = None

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The expressions that it is made of."""
        found = (self.argument, self.filter, *(factor.argument for factor in self.factors))
        return tuple(each for each in found if each is not None)

    @property
    def counts_units(self) -> bool:
        """True where a unit counts once in a group, however many rows it has."""
        return self.kind is PartKind.CUT or (self.kind is PartKind.COUNT and self.cap == 1)

    @property
    def lower(self) -> int:
        """The least that one unit adds to a cell."""
        if self.rank is not None:
            return -self.cap * self.rank.above
        if self.grid is None or self.kind is PartKind.DISTINCT:
            return 0
        if self.kind in (PartKind.MEAN, PartKind.DISTINCT_MEAN):
            return self.cap * (self.grid.lower - self.grid.centre)
        return self.cap * min(self.grid.lower, 0)

    @property
    def upper(self) -> int:
        """The most that one unit adds to a cell."""
        if self.rank is not None:
            return self.cap * self.rank.below
        if self.kind is PartKind.CUT:
            return 1
        if self.grid is None or self.kind is PartKind.DISTINCT:
            return self.cap
        if self.kind in (PartKind.MEAN, PartKind.DISTINCT_MEAN):
            return self.cap * (self.grid.upper - self.grid.centre)
        return self.cap * max(self.grid.upper, 0)


UNITS = Part(PartKind.COUNT, None, None, 1)


@dataclass(frozen=True)
class Contribution:
    """What one unit may contribute to one aggregation; all of it is enforced in SQL.

    Attributes:
        grouped: False where there is one cell, whoever is in it.
        max_groups: Groups it may touch; where groups are picked, lists that it may stand in.
        max_rows: Rows that count in one group.
        all_rows: Rows that count in all groups together, where SQL limits them, too; None where it need not.
        one_row: True where the engine's schema, or SQL beneath, lets a unit have one row only.
        ranked: True where SQL keeps that many of a unit's groups; else there are no more groups than that.
        copied: True where the rows are those of a bounded copy: then `max_rows` count in all groups together.
        lists: Where groups are picked: the keys, by their places, for each of whose values there is a list of groups to
            pick from; () for one list, of which a unit may touch every group. None where cells are shown.
    """

    grouped: bool
    max_groups: int
    max_rows: int
    one_row: bool
    ranked: bool = False
    copied: bool = False
    lists: tuple[int, ...] | None = None
    all_rows: int | None = None
