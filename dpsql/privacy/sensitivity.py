"""How far one privacy unit can move a vector of exact integer cells.

Rule 1: cells are integers on a grid, so every sensitivity is an integer and nothing is rounded.
"""

import enum
from dataclasses import dataclass

from dpsql.errors import InvalidParameter
from dpsql.privacy.exact import check_whole


class Adjacency(enum.Enum):
    """What makes two databases neighbours: one unit added or removed, or one unit replaced by another."""

    ADD_REMOVE = "add_remove"
    SUBSTITUTE = "substitute"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Upper bounds on the difference of two neighbours' cell vectors, in grid units.

    Attributes:
        l0: Number of cells that differ.
        linf: Largest difference of one cell.
        l1: Sum of absolute differences.
        l2_squared: Sum of squared differences.
    """

    l0: int
    linf: int
    l1: int
    l2_squared: int

    def __post_init__(self) -> None:
        check_whole(self.l0, self.linf, self.l1, self.l2_squared)
        if self.l0 < 1 or min(self.linf, self.l1, self.l2_squared) < 0:
            raise InvalidParameter(f"{self} is not a sensitivity", hint="l0 is at least 1, the norms are not negative")


def cell_sensitivity(adjacency: Adjacency, *, l0: int, lower: int, upper: int, grouped: bool = True) -> Sensitivity:
    """Return the sensitivity of cells to which one unit adds a value in [lower, upper], or nothing.

    Guarantee: with M = max(|lower|, |upper|) and W = max(upper, 0) - min(lower, 0) (nothing counts as 0),
        add_remove: at most l0 cells move, each by at most M: L∞ = M, L1 = l0·M, L2² = l0·M².
        substitute: the old unit leaves l0 cells and the new one enters l0, the same or others. A shared cell
        moves by at most W, two separate ones by M each, and M ≤ W ≤ 2M: 2·l0 cells, L∞ = W, L1 = 2·l0·M,
        L2² = l0·max(W², 2M²).
        substitute, ungrouped: there is one cell, so it is shared: L∞ = L1 = W, L2² = W².
    Assumes: the contributions are bounded in SQL, cell by cell; the cell is the plain sum over units.
    Reference: Dwork & Roth 2014, definition 3.1, applied to one unit's contribution; the substitute cases by
        the triangle inequality cell by cell.

    Args:
        adjacency: The policy's neighbouring relation.
        l0: Number of groups that one unit may touch (before the factor 2 of substitute).
        lower: Least value that one unit adds to a cell it touches.
        upper: Greatest such value.
        grouped: False if the query has one cell, whoever is in it.
    """
    check_whole(l0, lower, upper)
    if l0 < 1 or (not grouped and l0 != 1):
        raise InvalidParameter(f"a unit cannot touch {l0} groups here", hint="l0 is at least 1, and 1 if ungrouped")
    if lower > upper:
        raise InvalidParameter(f"the bounds [{lower}, {upper}] are empty")
    largest = max(abs(lower), abs(upper))
    if adjacency is Adjacency.ADD_REMOVE:
        return Sensitivity(l0=l0, linf=largest, l1=l0 * largest, l2_squared=l0 * largest**2)
    width = max(upper, 0) - min(lower, 0)
    if not grouped:
        return Sensitivity(l0=1, linf=width, l1=width, l2_squared=width**2)
    return Sensitivity(l0=2 * l0, linf=width, l1=2 * l0 * largest, l2_squared=l0 * max(width**2, 2 * largest**2))


def row_sensitivity(
    adjacency: Adjacency, *, l0: int, rows: int, per_cell: int, lower: int, upper: int, grouped: bool = True
) -> Sensitivity:
    """Return the sensitivity of cells to which one unit adds rows, bounded over all of the cells together.

    Guarantee: with R = rows, c = per_cell, and M and W as for `cell_sensitivity`, what a unit adds to a cell lies in
        [m·lower, m·upper] or is 0, where m ≤ c in each cell and Σm ≤ R.
        add_remove: at most l0 cells move, each by at most m·M: L∞ = c·M, L1 = R·M, and L2² = M²·Σm² ≤ R·c·M².
        substitute: 2·l0 cells, L∞ = c·W, L1 = 2·R·M. With x = m/c of the old unit and y of the new one, the square of
        a cell's greatest move is convex in x and in y, so it is no more than the function that is linear in each and
        agrees with it at 0 and 1: there it is 0, at most c²M² where one of them is 0, and c²W². These are no more than
        c²·max(W², 2M²)·(x + y)/2, and Σ(x + y) ≤ 2R/c: L2² = R·c·max(W², 2M²).
        substitute, ungrouped: there is one cell, so it is shared: L∞ = L1 = c·W, L2² = c²·W².
    Assumes: the engine keeps to R and c, by a constraint or in SQL; each row is in one cell; its value is clamped.
    Reference: McSherry 2009 (PINQ) for rows under a bound; Wilson et al. 2020, section 3, for a unit's rows and groups.

    Args:
        adjacency: The policy's neighbouring relation.
        l0: Number of cells that the rows of one unit may lie in (before the factor 2 of substitute).
        rows: Rows of one unit in all cells together.
        per_cell: Rows of one unit in one cell; no more than `rows`.
        lower: Least value that one row adds to a cell.
        upper: Greatest such value.
        grouped: False if the query has one cell, whoever is in it; then `rows` and `per_cell` are equal.
    """
    check_whole(l0, rows, per_cell)
    if l0 < 1 or (not grouped and (l0 != 1 or rows != per_cell)):
        raise InvalidParameter(f"a unit cannot touch {l0} groups here", hint="l0 is at least 1, and 1 if ungrouped")
    if not 1 <= per_cell <= rows:
        raise InvalidParameter(f"of {rows} rows there cannot be {per_cell} in one group")
    row = cell_sensitivity(adjacency, l0=1, lower=lower, upper=upper, grouped=grouped)
    squared = rows * per_cell * row.l2_squared
    return Sensitivity(l0=l0 * row.l0, linf=per_cell * row.linf, l1=rows * row.l1, l2_squared=squared)
