"""steps: contribution bounding as a tree. Each step states what it bounds; a total refers to the step that it reads.

Rule 1: each step refers to the step that it reads, so a total can be traced down to the tables.
Rule 2: nothing here is SQL. The printer writes a tree as SQL of an engine; `verify` reads only the tree.

Terms: a unit is in a group if one of its rows has the group's keys. `rows` limits the rows of one unit in one group;
None means the unit's share of its sampled rows in that group, which `RowSampling` computes.
"""

import enum
import math
from dataclasses import dataclass
from typing import Final

from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.nodes import Expr, Field, Grid, Relation

# Values of a row

PIECE: Final = 2**18
"""The most distinct values of a long histogram in one row of an engine's answer."""
PIECES: Final = 64
"""The most pieces of that size in one row.

With 41 characters per value, it stays below the gigabyte at which PostgreSQL fails.
"""


@dataclass(frozen=True)
class Plain:
    """The value of an expression, which is not bounded."""

    expression: Expr


@dataclass(frozen=True)
class Clamped:
    """A number on its grid.

    Guarantee: it is NULL, or a whole number in [grid.lower, grid.upper].
    """

    expression: Expr
    grid: Grid


@dataclass(frozen=True)
class Prepared:
    """A number that a prepared table has on its grid.

    Guarantee: as of `Clamped`, by a constraint of the prepared table.
    Assumes: `field` is a column of the prepared table that is on this grid.
    """

    field: Field
    grid: Grid


@dataclass(frozen=True)
class Product:
    """The product of two numbers, each measured from the centre of its grid.

    Guarantee: it is NULL, or between the least and the greatest product of the ends of both grids.
    """

    factors: "tuple[OnGrid, OnGrid]"


OnGrid = Clamped | Prepared
Value = Plain | OnGrid | Product


@dataclass(frozen=True)
class Count:
    """The number of rows that meet a condition and have a non-NULL value; None for any value, or for no condition."""

    value: Value | None
    condition: Plain | None


@dataclass(frozen=True)
class Sum:
    """The exact sum of the values of rows that meet a condition; 0 without such rows."""

    value: OnGrid | Product
    condition: Plain | None


# What one unit adds to one cell


@dataclass(frozen=True)
class CountedRows:
    """Guarantee: a unit adds 0 to `rows`."""

    count: Count
    rows: int | None


@dataclass(frozen=True)
class SampledRows:
    """The rows that count of a unit with dropped rows; 0 for other units.

    Guarantee: a unit adds 0 to `rows`.
    Reference: as a count with a condition on the unit's own rows; Wilson et al., PoPETs 2020, section 3.
    """

    count: Count
    rows: int | None


@dataclass(frozen=True)
class ClampedSum:
    """Guarantee: a unit adds a number in [rows * lower, rows * upper], where lower <= 0 <= upper."""

    sum: Sum
    rows: int | None
    lower: int
    upper: int


@dataclass(frozen=True)
class ScaledSum:
    """A sum of c = min(n, rows) of n rows: theirs where n <= rows, else rows/n of it, less c times the grid's centre.

    Guarantee: a unit adds a number in [rows * (grid.lower - centre), rows * (grid.upper - centre)].
    Reference: Wilson et al., Differentially Private SQL with Bounded User Contribution, PoPETs 2020, for sums that are
        measured from the centre of their bounds.
    """

    sum: Sum
    rows: int | None
    grid: Grid


Amount = CountedRows | SampledRows | ClampedSum | ScaledSum


# Steps


@dataclass(frozen=True)
class Rows:
    """The rows, with their unit, the keys of their group, and the values for the cells.

    Guarantee: each row belongs to one unit. A unit has one row where `one_row`, and no more than a prepared table has
        where `relation` reads one; else as many as it likes.
    Assumes: `one_row` follows from a unique key of the engine, or from a step beneath that leaves a unit one row.
    """

    relation: Relation
    unit: Field
    keys: tuple[Expr, ...]
    values: tuple[Value, ...]
    one_row: bool


@dataclass(frozen=True)
class GroupSampling:
    """The rows of the groups that each unit keeps, or of the lists of groups, chosen by keyed hash.

    Attributes:
        input: Rows, or what each unit adds to each group.
        groups: How many groups or lists a unit keeps.
        lists: The places of the keys that tell lists of groups apart; None where single groups are kept.

    Guarantee: a unit is in at most `groups` groups, or lists. Which ones is a function of its own rows alone.
    Reference: Wilson et al., Differentially Private SQL with Bounded User Contribution, PoPETs 2020, section 3.
    """

    input: "Step"
    groups: int
    lists: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RowsOfMany:
    """The rows of the units that have more than `rows` of them.

    Guarantee: all rows of a unit are there, or none.
    Assumes: every read of `input` in one statement finds the same rows.
    Reference: docs/mechanisms.md, "Units whose rows all count".
    """

    input: Rows
    rows: int


RowStep = Rows | RowsOfMany | GroupSampling


@dataclass(frozen=True)
class UnitSums:
    """Counts and exact sums of each unit in each group.

    Guarantee: a unit has one row in each group that it is in.
    """

    input: RowStep


@dataclass(frozen=True)
class RowLimit:
    """How many rows n of a unit may count in a group, before rows are limited over all groups.

    Guarantee: 1 <= n <= rows.
    """

    input: UnitSums
    rows: int


@dataclass(frozen=True)
class RowSampling:
    """A share m of n rows in each group, so that they are few enough in all groups together, by systematic sampling.

    Guarantee: 0 <= m <= n in each group, and the sum of m over the groups of a unit is at most `rows`.
    Assumes: it reads a `RowLimit`.
    Reference: Madow & Madow, On the Theory of Systematic Sampling, Annals of Mathematical Statistics 1944.
    """

    input: RowLimit | GroupSampling
    rows: int


@dataclass(frozen=True)
class Clamp:
    """What each unit adds to the cells of its groups: one amount per cell, None for cells computed elsewhere.

    Guarantee: each amount is within its own bounds.
    Assumes: it reads `UnitSums`, or `RowSampling` where amounts have shares of rows.
    """

    input: UnitSums | RowSampling
    amounts: tuple[Amount | None, ...]


@dataclass(frozen=True)
class ValueSampling:
    """Values that each unit brings to the groups that it keeps, chosen by keyed hash of unit and value.

    Attributes:
        input: The rows that have the values.
        kept: The groups that each unit keeps.
        value: The value; rows where it is NULL are left out.
        condition: The condition that rows meet.
        rows: How many values a unit brings to a group.
        distinct: True where rows of one value count once.

    Guarantee: a unit brings at most `rows` values to each group that it is in by `kept`, and none to other groups.
    """

    input: RowStep
    kept: GroupSampling | Clamp
    value: Value
    condition: Plain | None
    rows: int | None
    distinct: bool


Step = RowStep | UnitSums | RowLimit | RowSampling | Clamp


# Cells


@dataclass(frozen=True)
class UnitTotal:
    """The sum over units of their amounts for this cell. Assumes: the totals read a `Clamp`."""


@dataclass(frozen=True)
class RowCount:
    """A count of rows. Assumes: the totals read rows, where a unit has few rows."""

    count: Count


@dataclass(frozen=True)
class RowSum:
    """A sum over rows, less `centre` for each of them. Assumes: the totals read rows, where a unit has few rows."""

    sum: Sum
    centre: int | None


@dataclass(frozen=True)
class UnitCount:
    """The number of units with a row that meets a condition. Assumes: the totals read rows; units have few rows."""

    value: Value | None
    condition: Plain | None


@dataclass(frozen=True)
class DistinctTotal:
    """Distinct values, counted or added up.

    Attributes:
        source: Where the values are: rows of which a unit has one, or chosen values.
        value: The value.
        condition: The condition that rows meet.
        total: What is added up of each value: the value, or its squared distance from a centre. None where values are
            counted.
        centre: What is taken off each number that is added up.

    Assumes: no two units bring one value.
    """

    source: Rows | ValueSampling
    value: Value
    condition: Plain | None
    total: OnGrid | Product | None
    centre: int | None


@dataclass(frozen=True)
class Histogram:
    """The number of rows of each value; a value is chosen from them by its rank.

    Attributes:
        source: Where the values are: rows of which a unit has one, or chosen values.
        value: The value.
        condition: The condition that rows meet.
    """

    source: Rows | ValueSampling
    value: Value
    condition: Plain | None

    @property
    def size(self) -> float:
        """How many distinct values there can be."""
        grid = self.value.grid if isinstance(self.value, OnGrid) else None
        return math.inf if grid is None else grid.upper - grid.lower + 1


Cell = UnitTotal | RowCount | RowSum | UnitCount | DistinctTotal | Histogram


class Units(enum.Enum):
    """How the units of a group are counted."""

    ROWS = "a row is a unit"
    DISTINCT = "distinct units"
    NONE = "nobody asks"


@dataclass(frozen=True)
class RowValues:
    """The values of units with few rows, which are not sampled.

    A `ValueSampling` chooses the values of the other units.

    Assumes: the rows belong to units all of whose rows count.

    Attributes:
        value: The value; rows where it is NULL are left out.
        condition: The condition that rows meet.
    """

    value: Value
    condition: Plain | None


@dataclass(frozen=True)
class RowsOfFew:
    """What units with at most `rows` rows add; no limit drops any of their rows.

    Attributes:
        input: The rows.
        rows: How many rows of a unit there may be.
        cells: What is added to each cell, in order; None where it is nothing.

    Guarantee: a unit adds what `rows` rows do in all groups together, or nothing where it has more.
    Assumes: as `RowsOfMany`.
    Reference: as `RowSampling`, of which this is the case that samples nothing.
    """

    input: Rows
    rows: int
    cells: tuple[RowCount | RowSum | RowValues | None, ...]


@dataclass(frozen=True)
class Totals:
    """The cells of every group.

    Attributes:
        source: What is added up.
        units: How units are counted over `source`.
        cells: The cells, in order.
        few: What is added to the cells for units with few rows, where `source` is made of the rows of the others.

    Guarantee: a total is clamped to ±2^62, which moves neighbours no further apart. A unit adds by `source` or by
        `few`, never by both.
    """

    source: Step
    units: Units
    cells: tuple[Cell, ...]
    few: RowsOfFew | None = None


@dataclass(frozen=True)
class Enumeration:
    """The public groups: groups without units are included, and other groups are not.

    Attributes:
        relation: The groups, with one field a key.
        keys: The keys.
        lists: As of `GroupSampling`.

    Guarantee: no group is there but those of `relation`.
    """

    relation: Relation
    keys: tuple[Expr, ...]
    lists: tuple[int, ...] | None = None


@dataclass(frozen=True)
class BoundedQuery:
    """One bounded engine query: keys as text, the number of units, one bigint a cell.

    Attributes:
        totals: What is asked of protected rows; None where public groups are listed.
        enumeration: The public groups; None where groups are private, or where there are none.
        leaves: Relations in the tree that are read from an input, or from a prepared table.
    """

    totals: Totals | None
    enumeration: Enumeration | None
    leaves: tuple[tuple[Relation, Leaf], ...]

    @property
    def in_pieces(self) -> bool:
        """Whether a group can have several rows; a further column, `piece`, is 0 in the first of them."""
        cells = self.totals.cells if self.totals is not None else ()
        return sum(cell.size for cell in cells if isinstance(cell, Histogram)) > PIECES * PIECE

    @property
    def repeated(self) -> dict[int, int]:
        """By place, the histograms that also occur at an earlier place: they are read there only."""
        cells = self.totals.cells if self.totals is not None else ()
        firsts = ((place, cells.index(cell)) for place, cell in enumerate(cells) if isinstance(cell, Histogram))
        return {place: first for place, first in firsts if place != first}


@dataclass(frozen=True)
class PrintedQuery:
    """A bounded query as engine SQL. Only `printer` makes one, so the SQL is that of the tree.

    Attributes:
        tree: What is read, and how it is bounded.
        sql: The same as engine SQL.
    """

    tree: BoundedQuery
    sql: str
