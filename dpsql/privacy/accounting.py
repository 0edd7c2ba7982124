"""Limits that never move, totals that only grow, and the gate between them.

Rule 1: each gate is a valid privacy filter for adaptive, concurrent queries; a tighter conversion may be reported,
never used to admit a charge.
Rule 2: totals round up, limits down.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import isqrt

from dpsql.errors import InvalidParameter
from dpsql.privacy.conversion import UP, check_delta, check_epsilon, decimal, epsilon_to_rho, exp, rho_to_epsilon
from dpsql.privacy.cost import ZERO, Accountant, Event, Loss, loss

__all__ = [
    "Accountant",
    "Limit",
    "Remaining",
    "Spent",
    "admits",
    "affordable_epsilon",
    "create_limit",
    "epsilon_to_rho",
    "group_privacy",
    "remaining",
    "rho_to_epsilon",
    "standalone",
]

_GRID = 10**30


@dataclass(frozen=True, slots=True)
class Limit:
    """What a budget may spend, fixed when it is created.

    Attributes:
        accountant: The currency.
        epsilon: The ε that was asked for.
        delta_conversion: zcdp: the δ at which ρ counts as (ε, δ). Else 0.
        delta_selection: zcdp: what selection may spend. basic: all of δ, selection and Gaussians alike. pure: 0.
        rho: zcdp: ρ*, what may be spent. Else 0.
    """

    accountant: Accountant
    epsilon: Fraction
    delta_conversion: Fraction
    delta_selection: Fraction
    rho: Fraction

    @property
    def delta(self) -> Fraction:
        """The whole δ of the guarantee."""
        return self.delta_conversion + self.delta_selection

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values; fractions are "p/q" strings."""
        return {
            "accountant": self.accountant.value,
            "epsilon": str(self.epsilon),
            "delta_conversion": str(self.delta_conversion),
            "delta_selection": str(self.delta_selection),
            "rho": str(self.rho),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> "Limit":
        """Return the limit that to_json wrote."""
        return cls(
            Accountant(fields["accountant"]),
            Fraction(str(fields["epsilon"])),
            Fraction(str(fields["delta_conversion"])),
            Fraction(str(fields["delta_selection"])),
            Fraction(str(fields["rho"])),
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """Running totals in every currency, each charge rounded up to a multiple of 10⁻³⁰ so that they stay short.

    Attributes:
        pure_epsilon: Σε but for selection's δ; None once a charge was not pure.
        rho: Σρ.
        delta: Σδ of selection.
        basic_epsilon: Σε in basic composition; None once a charge was not calibrated for it.
        basic_delta: Σδ in basic composition.
    """

    pure_epsilon: Fraction | None
    rho: Fraction
    delta: Fraction
    basic_epsilon: Fraction | None
    basic_delta: Fraction

    @classmethod
    def zero(cls) -> "Spent":
        """Return the totals of a fresh budget."""
        return cls(ZERO, ZERO, ZERO, ZERO, ZERO)

    def add(self, events: Iterable[Event]) -> "Spent":
        """Return the totals with one more charge."""
        charge = Spent.zero()
        for event in events:
            charge = charge._plus(loss(event))
        rounded = Loss(
            None if charge.pure_epsilon is None else _up(charge.pure_epsilon),
            _up(charge.rho),
            _up(charge.delta),
            None if charge.basic_epsilon is None else _up(charge.basic_epsilon),
            _up(charge.basic_delta),
        )
        return self._plus(rounded)

    def _plus(self, cost: Loss) -> "Spent":
        return Spent(
            _sum(self.pure_epsilon, cost.epsilon),
            self.rho + cost.rho,
            self.delta + cost.delta,
            _sum(self.basic_epsilon, cost.basic_epsilon),
            self.basic_delta + cost.basic_delta,
        )

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values; fractions are "p/q" strings."""
        return {
            "pure_epsilon": None if self.pure_epsilon is None else str(self.pure_epsilon),
            "rho": str(self.rho),
            "delta": str(self.delta),
            "basic_epsilon": None if self.basic_epsilon is None else str(self.basic_epsilon),
            "basic_delta": str(self.basic_delta),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> "Spent":
        """Return the totals that to_json wrote."""
        pure, basic = fields["pure_epsilon"], fields["basic_epsilon"]
        return cls(
            None if pure is None else Fraction(str(pure)),
            Fraction(str(fields["rho"])),
            Fraction(str(fields["delta"])),
            None if basic is None else Fraction(str(basic)),
            Fraction(str(fields["basic_delta"])),
        )


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a budget, in the user's words: a gauge, not a gate."""

    epsilon: Fraction
    delta: Fraction


def create_limit(accountant: Accountant, epsilon: Fraction, delta: Fraction, selection_share: Fraction) -> Limit:
    """Return the limit whose gate keeps everything it admits together (ε, δ)-DP.

    Guarantee:
        pure: (ε, 0). basic: (ε, δ). zcdp: δ = δ_conv + δ_sel, and ρ* is the largest ρ, rounded down, that is
        (ε, δ_conv)-DP; with approximate zCDP's δ ≤ δ_sel this is (ε, δ)-DP.
    Assumes: the split of δ is made here, once: solving it anew as one goes is not a filter.
    Reference: Feldman & Zrnic 2021 and Whitehouse et al. 2023 (filters for adaptive composition); Canonne, Kamath &
        Steinke 2020, corollary 13.

    Args:
        accountant: The currency.
        epsilon: The whole ε.
        delta: The whole δ; 0 in pure.
        selection_share: zcdp: the part of δ, below 1, for groups with private keys. Not used by the others.
    """
    check_epsilon(epsilon)
    if not 0 <= selection_share < 1:
        raise InvalidParameter("selection_share is out of range", hint="use a number from 0 up to, not including, 1")
    if accountant is Accountant.PURE:
        if delta != 0:
            raise InvalidParameter("the pure accountant has no delta", hint='set delta = 0, or accountant = "zcdp"')
        return Limit(accountant, epsilon, ZERO, ZERO, ZERO)
    if accountant is Accountant.BASIC:
        if delta != 0:
            check_delta(delta)
        return Limit(accountant, epsilon, ZERO, delta, ZERO)
    check_delta(delta)
    selection = delta * selection_share
    check_delta(delta - selection)
    return Limit(accountant, epsilon, delta - selection, selection, epsilon_to_rho(epsilon, delta - selection))


def admits(limit: Limit, spent: Spent) -> bool:
    """Tell whether the totals, the new charge included, stay within the limit.

    Guarantee:
        pure: Σε ≤ ε, and no δ. basic: Σε ≤ ε and Σδ ≤ δ. zcdp: Σδ ≤ δ_sel, and Σρ ≤ ρ* or, where every part is
        pure but for selection, Σε ≤ ε: histories that end under Σε lose at most ε surely, and the others are
        histories of the zCDP filter, so either clause may admit.
    Assumes: the totals are of every charge against this limit; test and append are one transaction.
    Reference: Rogers et al. 2016 (basic filter); Feldman & Zrnic 2021 (Rényi filter, at every order).
    """
    if limit.accountant is Accountant.PURE:
        return _within(spent.pure_epsilon, limit.epsilon) and spent.delta == 0
    if limit.accountant is Accountant.BASIC:
        return _within(spent.basic_epsilon, limit.epsilon) and spent.basic_delta <= limit.delta
    affordable = spent.rho <= limit.rho or _within(spent.pure_epsilon, limit.epsilon)
    return affordable and spent.delta <= limit.delta_selection


def affordable_epsilon(
    limit: Limit, spent: Spent, *, selection_delta: Fraction = ZERO, pure_ratio: Fraction | None = None
) -> Fraction:
    """Return the largest ε, rounded down, at which one more query surely fits; 0 if none does.

    Args:
        limit: The budget.
        spent: Its totals so far.
        selection_delta: The δ that the query asks for.
        pure_ratio: zcdp: the query's pure ε over the ε of its price, if it is pure; opens the gate's second clause.
    """
    if selection_delta > remaining(limit, spent).delta:
        return ZERO
    if limit.accountant is Accountant.PURE:
        return _down(_left(spent.pure_epsilon, limit.epsilon))
    if limit.accountant is Accountant.BASIC:
        return _down(_left(spent.basic_epsilon, limit.epsilon))
    # A price of ε is ρ = ε²/2, so ε = √(2ρ). What is left is cut to the grid first: a charge is rounded up to it.
    by_rho = Fraction(isqrt(int(2 * _down(_left(spent.rho, limit.rho)) * _GRID)), isqrt(_GRID))
    if not pure_ratio:
        return by_rho
    return max(by_rho, _down(_down(_left(spent.pure_epsilon, limit.epsilon)) / pure_ratio))


def remaining(limit: Limit, spent: Spent) -> Remaining:
    """Return what is left, rounded down; in zcdp the share of ρ* that is left, expressed as that share of ε.

    ε(ρ) is not additive, so ε minus "ε spent" would shrink by a different amount for the same query each time.
    The share is additive, starts at ε and ends at 0; the pure clause counts where it leaves more.
    """
    if limit.accountant is Accountant.PURE:
        return Remaining(_left(spent.pure_epsilon, limit.epsilon), ZERO)
    if limit.accountant is Accountant.BASIC:
        return Remaining(_left(spent.basic_epsilon, limit.epsilon), _left(spent.basic_delta, limit.delta))
    by_rho = limit.epsilon * _left(spent.rho, limit.rho) / limit.rho
    epsilon = max(_down(by_rho), _left(spent.pure_epsilon, limit.epsilon))
    return Remaining(epsilon, _left(spent.delta, limit.delta_selection))


def standalone(spent: Spent, delta_conversion: Fraction) -> tuple[Fraction, Fraction]:
    """Return a true (ε, δ) of the charges taken alone, rounded up: pure where that is less, else ρ at the given δ."""
    converted = rho_to_epsilon(spent.rho, delta_conversion)
    if spent.pure_epsilon is not None and spent.pure_epsilon <= converted:
        return spent.pure_epsilon, spent.delta
    return converted, delta_conversion + spent.delta


def group_privacy(limit: Limit, k: int) -> tuple[Fraction, Fraction]:
    """Return the (ε, δ), rounded up, that the whole budget guarantees to k privacy units together; δ = 1 is none.

    Guarantee:
        pure: (kε, 0). zcdp without selection: ρ becomes k²ρ*, converted at δ_conv, or kε if that is more (the pure
        clause). basic, and zcdp with selection: (kε, δ(e^{kε} − 1)/(e^ε − 1)).
    Assumes: nothing of the kinds of selection. The threshold of Gaussian noise is not ε-bounded group by group, so
        its δ may grow faster than that of an (ε′, δ′)-DP selection; the whole budget's (ε, δ) bounds both.
    Reference: Vadhan 2017, lemma 2.2, with the geometric sum kept; Bun & Steinke 2016, proposition 1.9.
    """
    if not 1 <= k <= 10**6:
        raise InvalidParameter("the size of a group is out of range", hint="use a number from 1 to 1000000")
    if limit.accountant is Accountant.ZCDP and limit.delta_selection == 0:
        epsilon = rho_to_epsilon(k * k * limit.rho, limit.delta_conversion)
        return max(epsilon, k * limit.epsilon), limit.delta_conversion
    return k * limit.epsilon, _grown_delta(limit.epsilon, limit.delta, k)


def _grown_delta(epsilon: Fraction, delta: Fraction, k: int) -> Fraction:
    if delta == 0 or k == 1:
        return delta
    if (k - 1) * epsilon > 100:
        return Fraction(1)
    # δ(e^{kε} − 1)/(e^ε − 1) is at most δ·k·e^{(k−1)ε}; the sum of k powers is that fraction without cancellation.
    step = exp(decimal(epsilon, UP), UP)
    total, power = Decimal(0), Decimal(1)
    for _ in range(k):
        total, power = UP.add(total, power), UP.multiply(power, step)
    return min(Fraction(1), _up(delta * Fraction(total)))


def _up(value: Fraction) -> Fraction:
    return Fraction(-(-value.numerator * _GRID // value.denominator), _GRID)


def _down(value: Fraction) -> Fraction:
    return Fraction(value.numerator * _GRID // value.denominator, _GRID)


def _sum(total: Fraction | None, cost: Fraction | None) -> Fraction | None:
    return None if total is None or cost is None else total + cost


def _within(total: Fraction | None, limit: Fraction) -> bool:
    return total is not None and total <= limit


def _left(total: Fraction | None, limit: Fraction) -> Fraction:
    return ZERO if total is None else max(ZERO, limit - total)
