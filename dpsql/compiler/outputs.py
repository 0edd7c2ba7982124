"""outputs: the formulas that make an aggregate's value of its noisy cells."""

from dataclasses import dataclass
from fractions import Fraction

from dpsql.compiler.grids import decimal_places
from dpsql.compiler.ir import AggregateCall, Grid
from dpsql.compiler.spreads import SpreadOutput
from dpsql.policy import RandomizedResponse
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class CountOutput:
    """A cell as it is."""

    cell: int


@dataclass(frozen=True)
class SumOutput:
    """A cell times its step."""

    cell: int
    step: Fraction


@dataclass(frozen=True)
class MeanOutput:
    """(centre + sum / count) · step, within the grid's limits."""

    sum_cell: int
    count_cell: int
    grid: Grid


@dataclass(frozen=True)
class TruthOutput:
    """`decided` where there surely are units for it; the opposite where there surely are units for that; else NULL."""

    decided: bool
    cell: int
    other_cell: int


@dataclass(frozen=True)
class RankOutput:
    """A grid value that was chosen by its rank, times the step."""

    cell: int
    step: Fraction


@dataclass(frozen=True)
class RanksOutput:
    """An array of grid values that were chosen by their ranks, in order, times the step.

    Attributes:
        cells: The cells.
        places: Which of the values in ascending order each one is; equal ranks are one cell.
        step: What the values are multiples of.
    """

    cells: tuple[int, ...]
    places: tuple[int, ...]
    step: Fraction


@dataclass(frozen=True)
class ResponseOutput:
    """How many, or what share, of those who answered are truly of a value that so many named."""

    cell: int
    total_cell: int
    response: RandomizedResponse
    is_share: bool


@dataclass(frozen=True)
class GroupOutput:
    """How many are truly of the value of a group's randomized key, which so many named."""

    cell: int
    key: int
    response: RandomizedResponse


@dataclass(frozen=True)
class PlaceOutput:
    """The place of a group that was picked, 0 for others; scores are in steps."""

    cell: int
    step: Fraction


Output = (
    PlaceOutput
    | RankOutput
    | RanksOutput
    | CountOutput
    | SumOutput
    | MeanOutput
    | SpreadOutput
    | TruthOutput
    | ResponseOutput
    | GroupOutput
)


def output_type(call: AggregateCall, output: Output) -> SqlType:
    """The type of an aggregate's released value."""
    if isinstance(output, SumOutput | RankOutput) and call.type is SqlType.NUMERIC:
        return SqlType.NUMERIC if decimal_places(output.step) is not None else SqlType.DOUBLE
    return call.type
