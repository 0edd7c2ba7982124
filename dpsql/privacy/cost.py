"""How far one unit can move a vector of exact cells, how primitives share a query's price, and what each costs.

Rule 1: cells are integers on a grid, so every sensitivity is an integer and nothing is rounded.
Rule 2: privacy numbers are exact fractions; an irrational cost is rounded up.
Rule 3: an event describes its primitive completely, and the meaning of its fields never changes: any accountant,
present or future, can price it from its fields.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpsql.errors import InvalidParameter
from dpsql.privacy.conversion import (
    check_delta,
    check_epsilon,
    check_exact,
    check_whole,
    read_exact,
    reading,
    rho_to_epsilon,
)


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
            raise InvalidParameter(
                f"{self} is not a sensitivity", hint="l0 must be at least 1, and the norms must not be negative."
            )


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
        raise InvalidParameter(
            f"invalid number of groups per unit: {l0}", hint="Use l0 = 1 without groups, and at least 1 with groups."
        )
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
        raise InvalidParameter(
            f"invalid number of groups per unit: {l0}", hint="Use l0 = 1 without groups, and at least 1 with groups."
        )
    if not 1 <= per_cell <= rows:
        raise InvalidParameter(f"of {rows} rows there cannot be {per_cell} in one group")
    row = cell_sensitivity(adjacency, l0=1, lower=lower, upper=upper, grouped=grouped)
    squared = rows * per_cell * row.l2_squared
    return Sensitivity(l0=l0 * row.l0, linf=per_cell * row.linf, l1=rows * row.l1, l2_squared=squared)


ZERO = Fraction(0)


class Accountant(enum.Enum):
    """How a budget adds up its queries: ε, (ε, δ) by sums or by squares, ρ, or the Rényi divergence at one order."""

    PURE = "pure"
    BASIC = "basic"
    ADVANCED = "advanced"
    ZCDP = "zcdp"
    RDP = "rdp"

    @property
    def shares_rho(self) -> bool:
        """Whether a price is ρ = ε²/2, shared as such; else it is ε."""
        return self in (Accountant.ZCDP, Accountant.RDP)

    @property
    def converts(self) -> bool:
        """Whether Gaussian noise counts as (ε, δ), one primitive at a time."""
        return self in (Accountant.BASIC, Accountant.ADVANCED)

    @property
    def selects(self) -> bool:
        """Whether there is a δ to select groups with.

        Rényi composition knows no δ beside the divergence: its approximate form is not proved as a filter.
        """
        return self not in (Accountant.PURE, Accountant.RDP)


class Mechanism(enum.Enum):
    """The kinds of noisy primitive. THRESHOLD is the δ that cutting off an already released primitive costs.

    EXPONENTIAL and PERMUTE_AND_FLIP choose one of several candidates in each group, by losses that are their vector.
    """

    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"
    SELECTION = "selection"
    THRESHOLD = "threshold"
    EXPONENTIAL = "exponential"
    PERMUTE_AND_FLIP = "permute and flip"


@dataclass(frozen=True, slots=True)
class Price:
    """What one query asks of a budget, in the budget's currency; δ is a ceiling, and `pure` and `rdp` spend none."""

    accountant: Accountant
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_exact(self.delta)
        if self.delta != 0:
            check_delta(self.delta)

    @property
    def rho(self) -> Fraction:
        """The price in zCDP, ε²/2, under zcdp and rdp; 0 under the others."""
        return self.epsilon**2 / 2 if self.accountant.shares_rho else ZERO


@dataclass(frozen=True, slots=True)
class Share:
    """One primitive's part of a price.

    Attributes:
        accountant: The currency.
        epsilon: The part of ε; 0 under zcdp and rdp.
        rho: The part of ρ; 0 under the others.
        delta: The part of δ: for selection, or for a Gaussian under basic and advanced.
    """

    accountant: Accountant
    epsilon: Fraction
    rho: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        check_exact(self.epsilon, self.rho, self.delta)
        spent, unused = (self.rho, self.epsilon) if self.accountant.shares_rho else (self.epsilon, self.rho)
        if spent <= 0 or unused != 0 or not 0 <= self.delta < 1:
            raise InvalidParameter(f"{self} is not a share", hint="A share is positive, in its accountant's currency.")


def split(
    price: Price, weights: Sequence[Fraction], delta_weights: Sequence[Fraction] | None = None
) -> tuple[Share, ...]:
    """Return one share a weight; together they are exactly the price (without δ under pure and rdp).

    Args:
        price: What is to be shared.
        weights: Positive; parts of ε, or of ρ under zcdp and rdp.
        delta_weights: Not negative, one a share; parts of δ. All 0: no share gets any. By default as the weights.
    """
    parts = weights if delta_weights is None else delta_weights
    check_exact(*weights, *parts)
    if not weights or min(weights) <= 0 or len(parts) != len(weights) or min(parts) < 0:
        raise InvalidParameter("a price is shared by positive weights, one a primitive")
    total, total_parts = sum(weights, ZERO), sum(parts, ZERO)
    delta = price.delta / total_parts if price.accountant.selects and total_parts > 0 else ZERO
    epsilon = ZERO if price.accountant.shares_rho else price.epsilon
    return tuple(
        Share(price.accountant, epsilon * weight / total, price.rho * weight / total, delta * part)
        for weight, part in zip(weights, parts, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Event:
    """One noisy primitive that ran, or may have run.

    Attributes:
        mechanism: Its kind.
        sensitivity: Of the vector it noised. For selection and threshold, of the unit counts; its l0 counts every
            group that one neighbouring step may touch (twice max_groups under substitute). exponential, permute and
            flip: of the vector, choice by choice, of how far the loss of any candidate moves. What all losses of a
            choice move by together does not count: neither mechanism sees it.
        scale: laplace: b, with P[z] ∝ exp(−|z|/b). gaussian: σ², with P[z] ∝ exp(−z²/2σ²). selection: the ε′ of
            one group. threshold: 0. exponential: b, with P[candidate] ∝ exp(−loss/b). permute and flip: b, with
            P[candidate passes] = exp(−(loss − least loss)/b).
        delta: selection, threshold: δ over all l0 groups. Else 0.
        conversion_delta: gaussian under basic and advanced: the δ at which its ρ counts as (ε, δ). Else 0.
    """

    mechanism: Mechanism
    sensitivity: Sensitivity
    scale: Fraction
    delta: Fraction = ZERO
    conversion_delta: Fraction = ZERO

    def __post_init__(self) -> None:
        check_exact(self.scale, self.delta, self.conversion_delta)
        has_scale = self.mechanism is not Mechanism.THRESHOLD
        has_delta = self.mechanism in (Mechanism.SELECTION, Mechanism.THRESHOLD)
        converts = self.mechanism is Mechanism.GAUSSIAN and self.conversion_delta > 0
        valid = (
            (self.scale > 0 if has_scale else self.scale == 0)
            and (0 < self.delta < 1 if has_delta else self.delta == 0)
            and (self.conversion_delta < 1 if converts else self.conversion_delta == 0)
        )
        if not valid:
            raise InvalidParameter(f"{self} is not a noisy primitive")

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values; fractions are "p/q" strings, so nothing is rounded."""
        return {
            "mechanism": self.mechanism.value,
            "l0": self.sensitivity.l0,
            "linf": self.sensitivity.linf,
            "l1": self.sensitivity.l1,
            "l2_squared": self.sensitivity.l2_squared,
            "scale": str(self.scale),
            "delta": str(self.delta),
            "conversion_delta": str(self.conversion_delta),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Event":
        """Return the event that to_json wrote."""
        with reading("an event"):
            return cls(
                mechanism=Mechanism(fields["mechanism"]),
                sensitivity=Sensitivity(fields["l0"], fields["linf"], fields["l1"], fields["l2_squared"]),
                scale=read_exact(fields["scale"]),
                delta=read_exact(fields["delta"]),
                conversion_delta=read_exact(fields["conversion_delta"]),
            )


@dataclass(frozen=True, slots=True)
class Loss:
    """What an event costs in each currency.

    Attributes:
        epsilon: Pure ε, but for `delta`; None if the event is not pure.
        rho: zCDP, but for `delta`.
        delta: The probability that selection goes wrong.
        basic_epsilon: ε of the event as (ε, δ)-DP; None if it was not calibrated for it.
        basic_delta: δ of the event as (ε, δ)-DP.
    """

    epsilon: Fraction | None
    rho: Fraction
    delta: Fraction
    basic_epsilon: Fraction | None
    basic_delta: Fraction


@lru_cache(maxsize=4096)
def loss(event: Event) -> Loss:
    """Return the cost of the event.

    Guarantee:
        laplace: ε = L1/b; ρ = L2²/2b², cell by cell from ε-DP to ε²/2-zCDP.
        gaussian: ρ = L2²/2σ².
        selection: ε = l0·ε′; ρ = l0·ε′²/2, both but for δ.
        threshold: δ.
        exponential: ε = 2·L1/b; ρ = L2²/2b²: in each group it is of bounded range ε_g = 2Δ/b, so (ε_g²/8)-zCDP.
        permute and flip: ε = 2·L1/b; ρ = 2·L2²/b²: in each group from ε_g-DP to (ε_g²/2)-zCDP.
    Assumes: the sensitivity holds for the policy's adjacency; noise is independent from cell to cell.
    Reference: Bun & Steinke 2016, propositions 1.4 and 1.6, section 8 (approximate zCDP); Canonne, Kamath &
        Steinke 2020, theorem 4, for the discrete Gaussian; McSherry & Talwar 2007 and Cesar & Rogers 2021
        for the exponential mechanism; McKenna & Sheldon 2020, theorem 1, for permute and flip.
    """
    sensitivity = event.sensitivity
    if event.mechanism is Mechanism.EXPONENTIAL:
        epsilon = 2 * sensitivity.l1 / event.scale
        return Loss(epsilon, sensitivity.l2_squared / (2 * event.scale**2), ZERO, epsilon, ZERO)
    if event.mechanism is Mechanism.PERMUTE_AND_FLIP:
        epsilon = 2 * sensitivity.l1 / event.scale
        return Loss(epsilon, 2 * sensitivity.l2_squared / event.scale**2, ZERO, epsilon, ZERO)
    if event.mechanism is Mechanism.LAPLACE:
        epsilon = sensitivity.l1 / event.scale
        return Loss(epsilon, sensitivity.l2_squared / (2 * event.scale**2), ZERO, epsilon, ZERO)
    if event.mechanism is Mechanism.GAUSSIAN:
        rho = sensitivity.l2_squared / (2 * event.scale)
        converted = rho_to_epsilon(rho, event.conversion_delta) if event.conversion_delta else None
        return Loss(None, rho, ZERO, converted, event.conversion_delta)
    epsilon = sensitivity.l0 * event.scale
    return Loss(epsilon, epsilon * event.scale / 2, event.delta, epsilon, event.delta)


_BITS = 16


def proportions(accountant: Accountant, weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return positive parts for which Σ wᵢ·vᵢ is least, to within 2⁻¹⁶ of a part, where vᵢ is the variance of a share.

    Whatever the proportions are, shares add up to the price. They are exact, and follow from the plan alone.

    Guarantee: noise of variance vᵢ = c/sᵢ (zcdp, rdp: a share sᵢ of ρ) is shared out by √wᵢ, noise of variance c/sᵢ²
        (pure, basic, advanced: a share of ε) by ∛wᵢ. For Σsᵢ = 1, Cauchy-Schwarz gives Σ wᵢ/sᵢ ≥ (Σ√wᵢ)², and
        Hölder's inequality Σ wᵢ/sᵢ² ≥ (Σ∛wᵢ)³; both are equalities there, and nowhere else.
    Assumes: nothing of privacy: the guarantee is that of the shares, whatever they are.
    Reference: Li, Hay, Rastogi, Miklau & McGregor 2010, on budgets for sets of queries; the proof is the line above.

    Args:
        accountant: The currency.
        weights: How much the variance of each primitive matters, for noise that is scaled to a sensitivity of 1.
    """
    check_exact(*weights)
    if not weights or min(weights) <= 0:
        raise InvalidParameter("weights must be positive", hint="Leave out primitives without noise.")
    root = _square_root if accountant.shares_rho else _cube_root
    return tuple(Fraction(max(1, root(weight)), 1 << _BITS) for weight in weights)


def _square_root(value: Fraction) -> int:
    """√value in units of 2⁻¹⁶, rounded down."""
    return math.isqrt((value.numerator << 2 * _BITS) // value.denominator)


def _cube_root(value: Fraction) -> int:
    """∛value in units of 2⁻¹⁶, rounded down, by bisection."""
    cube = (value.numerator << 3 * _BITS) // value.denominator
    low, high = 0, 1 << (cube.bit_length() // 3 + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**3 <= cube else (low, middle)
    return low
