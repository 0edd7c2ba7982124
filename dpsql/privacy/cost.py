"""What a query asks for, how its primitives share it, and what each noisy primitive costs.

Rule 1: privacy numbers are exact fractions; a cost that is irrational is rounded up.
Rule 2: an event documents its primitive completely, and the meaning of its fields never changes: any accountant,
today's or a tighter one to come, prices it from the fields alone.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpsql.errors import InvalidParameter
from dpsql.privacy.conversion import check_delta, check_epsilon, rho_to_epsilon
from dpsql.privacy.exact import check_exact, read_exact, reading
from dpsql.privacy.sensitivity import Sensitivity

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
            raise InvalidParameter(f"{self} is not a share", hint="a share is positive, in its accountant's currency")


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
    """Return what the event costs.

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
        raise InvalidParameter("weights are positive", hint="leave out what has no noise")
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
