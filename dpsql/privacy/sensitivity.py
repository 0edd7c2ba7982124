"""How far one privacy unit can move a vector of exact integer cells.

Rule 1: cells are integers on a grid, so every sensitivity is an integer and nothing is rounded.
"""

import enum
from dataclasses import dataclass, replace

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


def row_sensitivity(adjacency: Adjacency, *, l0: int, lower: int, upper: int, grouped: bool = True) -> Sensitivity:
    """Return the sensitivity of cells to which one unit adds rows, bounded over all of the cells together.

    Guarantee: with M and W as for `cell_sensitivity`, and R rows of which each adds a value in [lower/R, upper/R], or
        nothing, to one of the cells, what a unit adds is R times a mean of vectors that have one cell other than 0: it
        lies in the convex hull of all vectors with lower, upper or 0 in one cell and 0 in the others. Norms are convex,
        so they are greatest at such corners.
        add_remove: at most l0 cells move, L∞ = L1 = M, L2² = M².
        substitute: corners of the old unit and of the new one share their cell, which moves by W, or have two, which
        move by M each: 2·l0 cells, L∞ = W, L1 = 2M, L2² = max(W², 2M²), where M ≤ W ≤ 2M.
        substitute, ungrouped: there is one cell, so it is shared: L∞ = L1 = W, L2² = W².
    Assumes: no unit has more than R rows, wherever they lie, as a constraint of the engine says; each is in one cell;
        its value is clamped in SQL.
    Reference: McSherry 2009 (PINQ) for rows under a bound; Rockafellar 1970, theorem 32.2, for a convex function's
        greatest value.

    Args:
        adjacency: The policy's neighbouring relation.
        l0: Number of cells that the rows of one unit may lie in (before the factor 2 of substitute).
        lower: Least value that one unit adds to all cells together.
        upper: Greatest such value.
        grouped: False if the query has one cell, whoever is in it.
    """
    corner = cell_sensitivity(adjacency, l0=1, lower=lower, upper=upper, grouped=grouped)
    check_whole(l0)
    if l0 < 1 or (not grouped and l0 != 1):
        raise InvalidParameter(f"a unit cannot touch {l0} groups here", hint="l0 is at least 1, and 1 if ungrouped")
    return replace(corner, l0=l0 * corner.l0)
