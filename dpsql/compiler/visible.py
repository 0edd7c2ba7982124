"""visible: how much the noise of each part is seen in a query's columns, from policy and plan alone.

A column's error is measured by what the policy says of its size: of a count, by the number of rows n; of a sum, by n
times the middle of the range or half its width, whichever is larger; of a mean, by half the range. Each weight is that
of a part's noise, scaled to the part's own sensitivity, in the sum over columns of squared errors, times n².

Rule: a weight is never made of data; where little is known of the values, cells weigh alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from dpsql.compiler.ir import Grid
from dpsql.compiler.outputs import MeanOutput, Output, RanksOutput, ResponseOutput, SumOutput, TruthOutput
from dpsql.compiler.parts import Part
from dpsql.compiler.spreads import SpreadOutput

_ALIKE = Fraction(1)
_OFF_CENTRE = Fraction(1, 3)
"""The mean square of a mean's distance from the centre, in half ranges, if it may lie anywhere."""
_BARELY = Fraction(1, 10**6)
"""Of noise that a column does not show: whatever is drawn has a share."""


def weights(parts: Sequence[Part], outputs: Iterable[Output]) -> tuple[Fraction, ...]:
    """How much the variance of each part's noise matters, over all columns that are made of it; equal ones are one."""
    total = [Fraction(0)] * len(parts)
    for output in dict.fromkeys(outputs):
        for cell, weight in _seen(output, parts).items():
            total[cell] += weight
    return tuple(total)


def _seen(output: Output, parts: Sequence[Part]) -> Mapping[int, Fraction]:
    """How much one column shows of the noise of its cells."""
    match output:
        case MeanOutput():
            # sum/n moves by noise/n, and by m/n where the count moves by 1: m is the mean, from the centre.
            return {output.sum_cell: _ALIKE, output.count_cell: _OFF_CENTRE}
        case SumOutput():
            grid = parts[output.cell].grid
            return {output.cell: _of_sum(grid) if grid is not None else _ALIKE}
        case ResponseOutput():
            # c - q·N, or c/N, which is at most 1; q is 0 where all answers are true.
            of_total = _ALIKE if output.is_share else max(output.response.lie**2, _BARELY)
            return {output.cell: _ALIKE, output.total_cell: of_total}
        case SpreadOutput():
            moments = (output.y, output.x, output.yy, output.xx, output.xy)
            return dict.fromkeys((output.count_cell, *(each.cell for each in moments if each is not None)), _ALIKE)
        case RanksOutput():
            return dict.fromkeys(output.cells, _ALIKE)
        case TruthOutput():
            return {output.cell: _ALIKE, output.other_cell: _ALIKE}
        case _:
            return {output.cell: _ALIKE}


def _of_sum(grid: Grid) -> Fraction:
    """From 1 to 4: the square of the largest value over the size that values have by the policy."""
    largest = max(abs(grid.lower), abs(grid.upper))
    size = Fraction(max(abs(grid.lower + grid.upper), grid.upper - grid.lower), 2)
    return (largest / size) ** 2 if size else _ALIKE
