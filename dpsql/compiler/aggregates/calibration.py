"""calibration: counts raised by the share of rows that bounding drops, and intervals that allow for what it drops.

Let X be a released cell, B the sum of X over all n groups, W the wide total, and s², s_W² the variances of the noise of
X and W. Then W/B is how many rows there are for each that is counted, with variance v = (s_W² + (W/B)²·n·s²)/B². It is
used only where B > 5·√n·s and W/B - 1 > 1.96·√v, and then shrunk: r = 1 + (1 - v/(W/B - 1)²)·(W/B - 1). Where W is too
noisy to tell, or nothing is dropped, r is 1 and nothing is changed.

Guarantee: all of it is post-processing of released cells.
Assumes: rows that bounding drops are spread over groups as those that count are; how far they may be otherwise is what
    an interval allows for, |r·X - X|. Nothing else is known of a group whose rows are those of few units.
Reference: Särndal, Swensson & Wretman, Model Assisted Survey Sampling, 1992, chapter 7, for estimates by ratio; Stein
    1956 for the shrinkage.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dpsql.compiler.aggregates.base import Drawn
from dpsql.privacy.cell_mechanism import added

_NORMAL_95 = 1.96
_LEAST_TOTAL = 5
"""A total is divided by where it is so many times its standard error."""


@dataclass(frozen=True)
class Calibration:
    """A cell of counts, or of sums of one sign, beside its wide total.

    Attributes:
        columns: What is computed first.
        raised: The name of r·X.
        limits: Those of the interval, in grid units.
    """

    columns: Mapping[str, str]
    raised: str
    limits: tuple[str, str]


def calibration(cell: int, drawn: Drawn, prefix: str) -> Calibration | None:
    """How a cell is calibrated; None where it has no wide total.

    The low limit is that of the noise alone, for bounding only drops rows. The high limit is the lower of two: that of
    the raised cell with its allowance, and that of a group which has all rows that are dropped anywhere.

    Args:
        cell: The cell.
        drawn: What was drawn for the cells.
        prefix: What the names of columns begin with.
    """
    wide = drawn.wide.get(cell)
    if wide is None:
        return None
    x, width = f"CAST(p{cell} AS DOUBLE)", repr(drawn.widths[cell])
    of_cell, of_wide = added(drawn.noises[cell]).stderr ** 2, added(wide.noise).stderr ** 2
    b, w, n, e, v, r, c, low, high = (f"{prefix}{name}" for name in ("b", "w", "n", "e", "v", "r", "c", "low", "high"))
    of_all = f"{n} * {of_cell!r}"
    raised_variance = (
        f"{r} * {r} * {of_cell!r} * (1 - 2 * {x} / {b}) + pow({x} / {b}, 2) * ({of_wide!r} + {r} * {r} * {of_all})"
    )
    columns = {
        b: f"sum({x}) OVER ()",
        n: "count(*) OVER ()",
        w: f"(SELECT CAST(p{wide.cell} AS DOUBLE) FROM {wide.table})",
        e: f"CASE WHEN {b} > {_LEAST_TOTAL} * sqrt({of_all}) THEN {w} / {b} ELSE 1 END",
        v: f"({of_wide!r} + {e} * {e} * {of_all}) / ({b} * {b})",
        r: f"CASE WHEN {e} - 1 > {_NORMAL_95} * sqrt({v}) THEN {e} - {v} / ({e} - 1) ELSE 1 END",
        c: f"{r} * {x}",
        low: f"least({x} - {width}, {c})",
        high: f"CASE WHEN {r} > 1 THEN greatest({x} + {width}, {c}, least("
        f"{c} + abs({c} - {x}) + {_NORMAL_95} * sqrt(greatest({raised_variance}, 0)), "
        f"{x} + {width} + greatest({w} - {b} + {_NORMAL_95} * sqrt({of_wide!r} + {of_all}), 0)"
        f")) ELSE {x} + {width} END",
    }
    return Calibration(columns, c, (low, high))
