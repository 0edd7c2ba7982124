"""calibration: cells raised by what bounding drops, and intervals that allow for what it may drop otherwise.

Let X be a released count, or a sum of values that are not negative, B its total over all groups, W the wide total, and
s², s_B², s_W² the variances of their noise. Then W/B is how much there is for each that is counted, with variance
v = (s_W² + (W/B)²·s_B²)/B². It is used only where it `is_told` apart from noise, B > 5·s_B and W/B - 1 > 1.96·√v, and
then shrunk: r = 1 + (1 - v/(W/B - 1)²)·(W/B - 1). Where W is too noisy to tell, or nothing is dropped, r is 1 and
nothing is changed.

Rows are dropped of units that have many. Y counts, in each group, the rows of such units. With h = ΣY/ΣX, a group's own
part of what is dropped is u = (r - 1)·(Y/h - X), with variance ν = (r - 1)²·(s_Y²/h² + s²). It is taken for a normal
number with the variance τ²·X², where τ² = (mean of u² - ν)/(mean of X²); so λ·u is believed of it, with
λ = τ²X²/(τ²X² + ν). The calibrated cell is C = r·X + λ·u.

Guarantee: all of it is post-processing of released cells.
Assumes: rows that bounding drops are spread over groups as those that count are: where Y is known, those of the units
    of whose rows some are dropped. For how far they may be otherwise, an interval allows for half of λ·u, and for a
    quarter of (r - 1)·X where Y is known or the answer has no groups; else for all of (r - 1)·X. The quarter was chosen
    on the demo's clinic, and is no bound. docs/accuracy.md has what these parts were measured on.
Reference: Särndal, Swensson & Wretman, Model Assisted Survey Sampling, 1992, chapter 7, for estimates by ratio; Efron &
    Morris, Stein's Estimation Rule and Its Competitors, JASA 1973, for the shrinkage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from dpsql.compiler.aggregates.base import Drawn, TotalCell
from dpsql.privacy.conversion import NORMAL_95
from dpsql.privacy.exponential_mechanism import CellMechanism
from dpsql.privacy.mechanisms import added

# SQL over the cell {x}, which has noise of variance {of_x} and of half a width {width}.
_GROUPS = {"b": "sum({x}) OVER ()", "of_b": "count(*) OVER () * {of_x}"}
_CLEAR = 5
"""A total beyond so many standard deviations of its noise is no noise."""
_RATIO = {
    "e": f"CASE WHEN {{b}} > {_CLEAR} * sqrt({{of_b}}) THEN {{w}} / {{b}} ELSE 1 END",
    "v": "({of_w} + {e} * {e} * {of_b}) / ({b} * {b})",
    "r": f"CASE WHEN {{e}} - 1 > {NORMAL_95} * sqrt({{v}}) THEN {{e}} - {{v}} / ({{e}} - 1) ELSE 1 END",
}
_IS_TOLD = " AND ".join(f"sum({{{cell}}}) OVER () > {_CLEAR} * sqrt(count(*) OVER () * {{of_{cell}}})" for cell in "xy")
_OWN_PART = {
    "h": f"CASE WHEN {_IS_TOLD} THEN sum({{y}}) OVER () / sum({{x}}) OVER () END",
    "u": "coalesce(({r} - 1) * ({y} / {h} - {x}), 0)",
    "nu": "coalesce(({r} - 1) * ({r} - 1) * ({of_y} / ({h} * {h}) + {of_x}), 0)",
    "size": "pow(greatest({x}, 0), 2)",
    "tau": "greatest(avg({u} * {u}) OVER () - {nu}, 0) / nullif(avg({size}) OVER (), 0)",
    "l": "CASE WHEN {tau} * {size} > 0 THEN {tau} * {size} / ({tau} * {size} + {nu}) ELSE 0 END",
}
_NO_OWN_PART = {"u": "0", "nu": "0", "l": "0"}
_RAISED = {
    "c": "{r} * {x} + {l} * {u}",
    "p": "{x} / {b}",
    "of_c": "{r} * {r} * {of_x} * (1 - 2 * {p} * {within}) + {p} * {p} * ({of_w} + {r} * {r} * {of_b})",
    "half": f"{NORMAL_95} * sqrt(greatest({{of_c}}, 0) + {{l}} * {{nu}}) "
    "+ 0.5 * abs({l} * {u}) + {allowed} * ({r} - 1) * abs({x})",
    "all": f"greatest({{w}} - {{b}} + {NORMAL_95} * sqrt({{of_w}} + {{of_b}}), 0)",
    "least": "{x} - {width}",
    "low": "CASE WHEN {r} > 1 THEN least({c}, greatest({c} - {half}, {least})) ELSE {least} END",
    "high": "CASE WHEN {r} > 1 THEN greatest({c}, {x}, least({c} + {half}, {x} + {width} + {all})) "
    "ELSE {x} + {width} END",
}


def is_told(bounded: float, of_bounded: float, wide: float, of_wide: float) -> bool:
    """Whether a total lacks more of its wide total than noise makes of nothing; `_RATIO` is 1 where not.

    Args:
        bounded: The total.
        of_bounded: The variance of its noise.
        wide: The wide total.
        of_wide: The variance of its noise.
    """
    if bounded <= _CLEAR * sqrt(of_bounded):
        return False
    ratio = wide / bounded
    return ratio - 1 > NORMAL_95 * sqrt(of_wide + ratio**2 * of_bounded) / bounded


@dataclass(frozen=True)
class Cell:
    """A quantity to be calibrated: a released cell, or an expression of several.

    Attributes:
        value: Its SQL, of type DOUBLE.
        variance: The variance of its noise.
        width: Half the width of a 95 % interval of its noise.
    """

    value: str
    variance: float
    width: float


@dataclass(frozen=True)
class Calibration:
    """A calibrated cell of counts, or of sums of one sign, with a wide total.

    Attributes:
        columns: Intermediate columns.
        kept: SQL of X.
        ratio: The name of r.
        raised: The name of C.
        least: The name of X minus the half width of its noise: a lower limit of X, and of C if it is narrower.
        low: The name of the lower limit of C.
        high: The name of the upper limit of both.
    """

    columns: Mapping[str, str]
    kept: str
    ratio: str
    raised: str
    least: str
    low: str
    high: str


def calibration(cell: int, drawn: Drawn, prefix: str, whole: Cell | None = None) -> Calibration | None:
    """Return the calibration of a cell; None if it has no wide total.

    Bounding only drops rows. So, apart from noise, the truth is at least X, and at most X plus everything that
    was dropped anywhere. The interval is the one around C, or this one if it is narrower.

    Args:
        cell: The cell.
        drawn: The noise of the cells.
        prefix: The prefix of column names.
        whole: The quantity whose total is known, if it is not the cell itself.
    """
    totals = drawn.totals.get(cell)
    if totals is None:
        return None
    whole = whole or Cell(f"CAST(p{cell} AS DOUBLE)", variance_of(drawn.noises[cell]), drawn.widths[cell])
    given = {
        "x": whole.value,
        "of_x": repr(whole.variance),
        "width": repr(whole.width),
        "of_w": repr(variance_of(totals.wide.noise)),
        "within": "1" if totals.bounded is None else "0",  # where its noise is in the total, too
        "allowed": "0.25" if totals.ungrouped or totals.sampled is not None else "1",
    }
    columns = dict(_GROUPS)
    if totals.bounded is not None:
        columns = {"b": _read(totals.bounded), "of_b": repr(variance_of(totals.bounded.noise))}
    columns |= {"w": _read(totals.wide)} | _RATIO
    if totals.sampled is not None:
        given |= {"y": f"CAST(p{totals.sampled} AS DOUBLE)", "of_y": repr(variance_of(drawn.noises[totals.sampled]))}
    columns |= (_NO_OWN_PART if totals.sampled is None else _OWN_PART) | _RAISED
    names = {name: f"{prefix}{name}" for name in columns}
    written = {names[name]: text.format(**given, **names) for name, text in columns.items()}
    return Calibration(written, whole.value, *(names[name] for name in ("r", "c", "least", "low", "high")))


def variance_of(noise: CellMechanism) -> float:
    """The variance of the noise of a cell."""
    return added(noise).stderr ** 2


def _read(total: TotalCell) -> str:
    return f"(SELECT CAST(p{total.cell} AS DOUBLE) FROM {total.table})"
