"""Spending in every currency, and the gates that keep it within fixed limits.

Rule 1: each gate is a valid privacy filter for adaptive, concurrent queries. A tighter conversion may be reported, but
is never used to admit a charge.
Rule 2: limits round down. Values that are fixed when a budget is created are never computed again.
Rule 3: each charge is rounded up to a multiple of 10⁻³⁰ in each currency. So totals stay short, and are stored and
added as integers in this unit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import gcd, isqrt
from typing import Any, assert_never

from dpsql.errors import InvalidParameter
from dpsql.privacy.conversion import (
    DOWN,
    UP,
    best_order,
    check_delta,
    check_epsilon,
    check_exact,
    check_whole,
    decimal,
    epsilon_to_rho,
    exp,
    ln,
    order_offset,
    read_exact,
    reading,
    rho_to_epsilon,
    root_up,
)
from dpsql.privacy.cost import ZERO, Accountant, Event, Mechanism, loss

LEAST_ORDER, MOST_ORDER = 1 + Fraction(1, 10**12), Fraction(10**15)


def check_order(order: Fraction) -> None:
    """Refuse an order that is not above 1, by 10⁻¹² at least, and at most 10¹⁵."""
    check_exact(order)
    if not LEAST_ORDER <= order <= MOST_ORDER:
        raise InvalidParameter("the order is out of range", hint="Use an order above 1, such as 16.")


@lru_cache(maxsize=4096)
def renyi(event: Event, order: Fraction) -> Fraction | None:
    """Return a bound on the Rényi divergence of order α that the event may cause; None if it has a δ.

    Guarantee:
        gaussian: αL2²/2σ². laplace: the cells' mechanisms are (Δ/b)-DP with |Δ| ≤ L∞ and Σ|Δ| ≤ L1, so
        (L1/L∞)·f(L∞/b), where f(ε) is the divergence of randomized response, the worst of all ε-DP mechanisms; or
        αL2²/2b² if that is less. exponential: αL2²/2b². permute and flip: 2αL2²/b².
    Assumes: the sensitivity holds for the policy's adjacency; noise is independent from cell to cell. f(ε)/ε grows
        with ε (y·tanh y − ln cosh y does), so cells of L∞ each are the worst that L1 allows.
    Reference: Mironov 2017, proposition 5; Kairouz, Oh & Viswanath 2015, theorem 2.4 with the data-processing
        inequality; Canonne, Kamath & Steinke 2020, theorem 4.
    """
    check_order(order)
    if event.mechanism in (Mechanism.SELECTION, Mechanism.THRESHOLD):
        return None
    by_rho = order * loss(event).rho
    sensitivity = event.sensitivity
    if event.mechanism is not Mechanism.LAPLACE or sensitivity.linf == 0:
        return by_rho
    cells = Fraction(sensitivity.l1, sensitivity.linf)
    return min(by_rho, cells * randomized_response(sensitivity.linf / event.scale, order))


def randomized_response(epsilon: Fraction, order: Fraction) -> Fraction:
    """Return the Rényi divergence of ε-DP randomized response, rounded up.

    It is ln(cosh((α−½)ε)/cosh(ε/2))/(α−1), here as ε + (ln(1 + e^(−(2α−1)ε)) − ln(1 + e^−ε))/(α−1), which no ε
    overflows.
    """
    tail = ln(UP.add(1, exp(UP.minus(decimal((2 * order - 1) * epsilon, DOWN)), UP)), UP)
    head = ln(DOWN.add(1, exp(DOWN.minus(decimal(epsilon, UP)), DOWN)), DOWN)
    return min(epsilon, max(ZERO, epsilon + Fraction(UP.subtract(tail, head)) / (order - 1)))


GRID = 10**30


@dataclass(frozen=True, slots=True)
class Spent:
    """Running totals in every currency.

    Attributes:
        units: The totals that the properties name, in their order, as multiples of 10⁻³⁰.
        renyi: Σ of Rényi divergences at each order that a budget was created with; None once a charge had a δ.
    """

    units: tuple[int | None, int, int, int | None, int, int | None]
    renyi: tuple[tuple[Fraction, Fraction | None], ...] = ()

    @property
    def pure_epsilon(self) -> Fraction | None:
        """Σε without the δ of selections; None after a charge that is not pure."""
        return _fraction(self.units[0])

    @property
    def rho(self) -> Fraction:
        """Σρ."""
        return Fraction(self.units[1], GRID)

    @property
    def delta(self) -> Fraction:
        """Σδ of selection."""
        return Fraction(self.units[2], GRID)

    @property
    def basic_epsilon(self) -> Fraction | None:
        """Σε of (ε, δ)-DP charges; None once one was not calibrated for it."""
        return _fraction(self.units[3])

    @property
    def basic_delta(self) -> Fraction:
        """Σδ of (ε, δ)-DP charges."""
        return Fraction(self.units[4], GRID)

    @property
    def squares(self) -> Fraction | None:
        """Σε² of (ε, δ)-DP primitives; None once one was not calibrated for it."""
        return _fraction(self.units[5])

    @classmethod
    def zero(cls) -> "Spent":
        """Return the totals of a fresh budget."""
        return cls((0, 0, 0, 0, 0, 0))

    def add(self, events: Iterable[Event]) -> "Spent":
        """Return the totals with one more charge."""
        charged = tuple(events)
        losses = [loss(event) for event in charged]
        charge = (
            _units(cost.epsilon for cost in losses),
            _up(sum((cost.rho for cost in losses), ZERO)),
            _up(sum((cost.delta for cost in losses), ZERO)),
            _units(cost.basic_epsilon for cost in losses),
            _up(sum((cost.basic_delta for cost in losses), ZERO)),
            _units(None if cost.basic_epsilon is None else cost.basic_epsilon**2 for cost in losses),
        )
        orders = ((order, _units(renyi(event, order) for event in charged)) for order, _ in self.renyi)
        return self.merge(Spent(charge, tuple((order, _fraction(units)) for order, units in orders)))

    def merge(self, other: "Spent") -> "Spent":
        """Return the sum of two totals; what either cannot express in a currency, the sum cannot."""
        pure, rho, delta, basic, basic_delta, squares = self.units
        more_pure, more_rho, more_delta, more_basic, more_basic_delta, more_squares = other.units
        orders = {order for order, _ in (*self.renyi, *other.renyi)}
        return Spent(
            (
                None if pure is None or more_pure is None else pure + more_pure,
                rho + more_rho,
                delta + more_delta,
                None if basic is None or more_basic is None else basic + more_basic,
                basic_delta + more_basic_delta,
                None if squares is None or more_squares is None else squares + more_squares,
            ),
            tuple((order, _sum(self.at(order), other.at(order))) for order in sorted(orders)),
        )

    def at(self, order: Fraction) -> Fraction | None:
        """Return the total at an order: as it was kept, or else α·Σρ, which bounds it; None where there is a δ."""
        kept = dict(self.renyi)
        if order in kept:
            return kept[order]
        return order * self.rho if self.delta == 0 else None

    def keeping(self, order: Fraction) -> "Spent":
        """Return the totals with one at this order, kept from now on."""
        return replace(self, renyi=tuple(sorted({**dict(self.renyi), order: self.at(order)}.items())))

    def cleared(self) -> "Spent":
        """Return totals of nothing, kept at the same orders."""
        return replace(Spent.zero(), renyi=tuple((order, ZERO) for order, _ in self.renyi))

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values; fractions are "p/q" strings."""
        pure, rho, delta, basic, basic_delta, squares = map(_text, self.units)
        return {
            "pure_epsilon": pure,
            "rho": rho,
            "delta": delta,
            "basic_epsilon": basic,
            "basic_delta": basic_delta,
            "squares": squares,
            "renyi": {str(order): None if total is None else str(total) for order, total in self.renyi},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Spent":
        """Return the totals that to_json wrote."""
        with reading("totals"):
            orders = fields["renyi"].items()
            return cls(
                (
                    _number(fields["pure_epsilon"]),
                    _whole(fields["rho"]),
                    _whole(fields["delta"]),
                    _number(fields["basic_epsilon"]),
                    _whole(fields["basic_delta"]),
                    _number(fields["squares"]),
                ),
                tuple(sorted((read_exact(o), None if total is None else read_exact(total)) for o, total in orders)),
            )


def up(value: Fraction) -> Fraction:
    """Return the value rounded up to the grid of totals."""
    return Fraction(_up(value), GRID)


def down(value: Fraction) -> Fraction:
    """Return the value rounded down to the grid of totals."""
    return Fraction(value.numerator * GRID // value.denominator, GRID)


def _up(value: Fraction) -> int:
    """Return a charge in multiples of the grid, rounded up."""
    return -(-value.numerator * GRID // value.denominator)


def _units(costs: Iterable[Fraction | None]) -> int | None:
    """Return one charge, rounded up as a whole; None if a part of it has no price."""
    charge = ZERO
    for cost in costs:
        if cost is None:
            return None
        charge += cost
    return _up(charge)


def _fraction(units: int | None) -> Fraction | None:
    return None if units is None else Fraction(units, GRID)


def _sum(one: Fraction | None, other: Fraction | None) -> Fraction | None:
    return None if one is None or other is None else one + other


def _text(units: int | None) -> str | None:
    """Return what a fraction of so many multiples of the grid is written as."""
    if units is None:
        return None
    common = gcd(units, GRID)
    return str(units // common) if common == GRID else f"{units // common}/{GRID // common}"


def _number(text: object) -> int | None:
    return None if text is None else _whole(text)


def _whole(text: object) -> int:
    units = read_exact(text) * GRID
    if units.denominator != 1:
        raise ValueError(f"{text} is no total")
    return units.numerator


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
    "repeats",
    "rho_to_epsilon",
    "standalone",
]


@dataclass(frozen=True, slots=True)
class Limit:
    """What a budget may spend, fixed when it is created.

    Attributes:
        accountant: How it adds up.
        epsilon: The ε that was asked for.
        delta_conversion: The δ at which Σε², ρ or the Rényi divergence counts as (ε, δ); 0 under pure and basic.
        delta_selection: What the queries themselves may spend: selection, and under basic and advanced Gaussians.
        capacity: What the total may reach: Σε under pure and basic, Σε² under advanced, ρ* under zcdp, the
            divergence under rdp.
        order: rdp: the order of the divergence. Else 0.
    """

    accountant: Accountant
    epsilon: Fraction
    delta_conversion: Fraction
    delta_selection: Fraction
    capacity: Fraction
    order: Fraction = ZERO

    @property
    def delta(self) -> Fraction:
        """The whole δ of the guarantee."""
        return self.delta_conversion + self.delta_selection

    def total(self, spent: Spent) -> Fraction | None:
        """Return the part of the capacity that is spent; None if it has no price here."""
        match self.accountant:
            case Accountant.PURE:
                return spent.pure_epsilon
            case Accountant.BASIC:
                return spent.basic_epsilon
            case Accountant.ADVANCED:
                return spent.squares
            case Accountant.ZCDP:
                return spent.rho
            case Accountant.RDP:
                return spent.at(self.order)
            case _:
                assert_never(self.accountant)

    def total_delta(self, spent: Spent) -> Fraction:
        """Return the part of delta_selection that is spent."""
        return spent.basic_delta if self.accountant.converts else spent.delta

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values; fractions are "p/q" strings."""
        return {
            "accountant": self.accountant.value,
            "epsilon": str(self.epsilon),
            "delta_conversion": str(self.delta_conversion),
            "delta_selection": str(self.delta_selection),
            "capacity": str(self.capacity),
            "order": str(self.order),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Limit":
        """Return the limit that to_json wrote, today's or that of ledgers of layout 1, which named ρ* alone."""
        with reading("a limit"):
            accountant = Accountant(fields["accountant"])
            former = fields["rho"] if accountant is Accountant.ZCDP and "rho" in fields else fields["epsilon"]
            return cls(
                accountant,
                read_exact(fields["epsilon"]),
                read_exact(fields["delta_conversion"]),
                read_exact(fields["delta_selection"]),
                read_exact(fields.get("capacity", former)),
                read_exact(fields.get("order", "0")),
            )


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a budget, in the user's words: a gauge, not a gate."""

    epsilon: Fraction
    delta: Fraction


def create_limit(
    accountant: Accountant, epsilon: Fraction, delta: Fraction, selection_share: Fraction, order: Fraction = ZERO
) -> Limit:
    """Return the limit whose gate keeps everything it admits together (ε, δ)-DP.

    Guarantee: with δ = δ_conv + δ_sel,
        pure: (ε, 0). basic: (ε, δ), all of it δ_sel.
        advanced: √(2 ln(1/δ_conv)·S) + S/2 ≤ ε for the capacity S of Σε², so (ε, δ_conv); with Σδ ≤ δ_sel (ε, δ).
        zcdp: the capacity ρ* is the largest ρ that is (ε, δ_conv)-DP; with approximate zCDP's δ ≤ δ_sel (ε, δ).
        rdp: the capacity is ε − ln(1/(αδ))/(α−1) − ln(1−1/α) at the order α, so (ε, δ).
        Each is rounded down.
    Assumes: the split of δ and the order are fixed here, once: solving them anew as one goes is not a filter.
    Reference: Rogers et al. 2016 (basic); Whitehouse, Ramdas, Rogers & Wu 2023, theorem 1 (advanced, approximate
        zcdp); Feldman & Zrnic 2021, theorem 4.5 (rdp); Canonne, Kamath & Steinke 2020, proposition 12.

    Args:
        accountant: How charges add up.
        epsilon: The whole ε.
        delta: The whole δ; 0 in pure.
        selection_share: advanced, zcdp: the part of δ, below 1, that queries may spend. Not used by the others.
        order: rdp: the order that the budget was created with; 0 to choose the best one for Gaussian noise.
    """
    check_epsilon(epsilon)
    check_exact(delta, selection_share, order)
    if not 0 <= selection_share < 1:
        raise InvalidParameter("selection_share is out of range", hint="Use a number from 0 up to, not including, 1.")
    if accountant is Accountant.PURE:
        if delta != 0:
            raise InvalidParameter("the pure accountant has no delta", hint='Set delta = 0, or accountant = "zcdp".')
        return Limit(accountant, epsilon, ZERO, ZERO, epsilon)
    if accountant is Accountant.BASIC:
        if delta != 0:
            check_delta(delta)
        return Limit(accountant, epsilon, ZERO, delta, epsilon)
    check_delta(delta)
    if accountant is Accountant.RDP:
        return _rdp_limit(epsilon, delta, order)
    selection = delta * selection_share
    conversion = delta - selection
    check_delta(conversion)
    capacity = _squares if accountant is Accountant.ADVANCED else epsilon_to_rho
    return Limit(accountant, epsilon, conversion, selection, capacity(epsilon, conversion))


def _squares(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest S, rounded down, with √(2LS) + S/2 ≤ ε and L = ln(1/δ): √S = 2ε/(√(2L + 2ε) + √(2L))."""
    twice = 2 * Fraction(UP.minus(ln(decimal(delta, DOWN), DOWN)))
    return down((2 * epsilon / (root_up(twice + 2 * epsilon) + root_up(twice))) ** 2)


def _rdp_limit(epsilon: Fraction, delta: Fraction, order: Fraction) -> Limit:
    order = order or best_order(epsilon, delta)
    check_order(order)
    capacity = down(epsilon - order_offset(order, delta))
    if capacity <= 0:
        raise InvalidParameter(
            f"epsilon {float(epsilon):g} is too small for a budget of order {float(order):g}",
            hint='Raise its epsilon or delta, or use accountant = "zcdp".',
        )
    return Limit(Accountant.RDP, epsilon, delta, ZERO, capacity, order)


def admits(limit: Limit, spent: Spent) -> bool:
    """Tell whether the totals, the new charge included, stay within the limit.

    Guarantee:
        pure: Σε ≤ ε, and no δ. basic: Σε ≤ ε and Σδ ≤ δ. advanced: Σε² within its capacity and Σδ ≤ δ_sel.
        rdp: the divergences at the one order within the capacity, and no δ.
        zcdp: Σδ ≤ δ_sel, and Σρ ≤ ρ* or, where every part is pure but for selection, Σε ≤ ε: histories that end
        under Σε lose at most ε surely, and the others are histories of the zCDP filter, so either clause may admit.
    Assumes: the totals are of every charge against this limit; test and append are one transaction.
    Reference: Rogers et al. 2016 (pure, basic); Whitehouse et al. 2023, theorem 1 (advanced), and its section on
        approximate zCDP; Feldman & Zrnic 2021, theorem 4.5 (rdp).
    """
    return repeats(limit, spent, 1) and limit.total_delta(spent) <= limit.delta_selection


def repeats(limit: Limit, spent: Spent, times: int) -> bool:
    """Tell whether a limit of which nothing is spent covers so many charges that cost this, whatever their δ.

    Guarantee: if it covers no n + 1 of any of a user's charges, the gate admits at most n of them together. Each clause
        of the gate is a bound on a sum; each charge takes more than the (n + 1)th part of it.
    """
    total, pure = limit.total(spent), spent.pure_epsilon
    if total is not None and times * total <= limit.capacity:
        return True
    return limit.accountant is Accountant.ZCDP and pure is not None and times * pure <= limit.epsilon


def asked_epsilon(limit: Limit, asked: Spent) -> Fraction:
    """Return a price as the ε of one query in the limit's currency; 0 if it has none there."""
    if limit.accountant is Accountant.PURE:
        return asked.pure_epsilon or Fraction(0)
    if limit.accountant.converts:
        return asked.basic_epsilon or Fraction(0)
    return _grid_root(2 * asked.rho)  # a price of ε is ρ = ε²/2


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
    # What is left is cut to the grid first: a charge is rounded up to it.
    left = down(_left(limit.total(spent), limit.capacity))
    if limit.accountant in (Accountant.PURE, Accountant.BASIC):
        return left
    if limit.accountant is Accountant.ADVANCED:
        return _grid_root(left)  # a query of one primitive squares all of its ε; of more, less
    if limit.accountant is Accountant.RDP:
        left = down(left / limit.order)  # a charge of ρ diverges by αρ at the most
    by_rho = _grid_root(2 * left)  # a price of ε is ρ = ε²/2
    if not pure_ratio or limit.accountant is Accountant.RDP:
        return by_rho
    return max(by_rho, down(down(_left(spent.pure_epsilon, limit.epsilon)) / pure_ratio))


def _grid_root(value: Fraction) -> Fraction:
    """Return the root of a multiple of the grid, rounded down."""
    return Fraction(isqrt(int(value * GRID)), isqrt(GRID))


def remaining(limit: Limit, spent: Spent) -> Remaining:
    """Return what is left, rounded down: the share of the capacity that is left, expressed as that share of ε.

    ε(ρ) is not additive, so ε minus "ε spent" would shrink by a different amount for the same query each time.
    The share is additive, starts at ε and ends at 0; zcdp's pure clause counts where it leaves more.
    """
    epsilon = down(limit.epsilon * _left(limit.total(spent), limit.capacity) / limit.capacity)
    if limit.accountant is Accountant.ZCDP:
        epsilon = max(epsilon, _left(spent.pure_epsilon, limit.epsilon))
    return Remaining(epsilon, _left(limit.total_delta(spent), limit.delta_selection))


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
        clause). The others, and zcdp with selection: (kε, δ(e^{kε} − 1)/(e^ε − 1)).
    Assumes: nothing of the kinds of selection. The threshold of Gaussian noise is not ε-bounded group by group, so
        its δ may grow faster than that of an (ε′, δ′)-DP selection; the whole budget's (ε, δ) bounds both.
    Reference: Vadhan 2017, lemma 2.2, with the geometric sum kept; Bun & Steinke 2016, proposition 1.9.
    """
    check_whole(k)
    if not 1 <= k <= 10**6:
        raise InvalidParameter("the size of a group is out of range", hint="Use a number from 1 to 1000000.")
    if limit.accountant is Accountant.ZCDP and limit.delta_selection == 0:
        epsilon = rho_to_epsilon(k * k * limit.capacity, limit.delta_conversion)
        return max(epsilon, k * limit.epsilon), limit.delta_conversion
    return k * limit.epsilon, grown_delta(limit.epsilon, limit.delta, k)


def grown_delta(epsilon: Fraction, delta: Fraction, k: int) -> Fraction:
    """Return the δ, rounded up and at most 1, with which k units together have kε where one unit has (ε, δ)."""
    if delta == 0 or k == 1:
        return delta
    if (k - 1) * epsilon > 100:
        return Fraction(1)
    # δ(e^{kε} − 1)/(e^ε − 1) is at most δ·k·e^{(k−1)ε}; the sum of k powers is that fraction without cancellation.
    step = exp(decimal(epsilon, UP), UP)
    total, power = Decimal(0), Decimal(1)
    for _ in range(k):
        total, power = UP.add(total, power), UP.multiply(power, step)
    return min(Fraction(1), up(delta * Fraction(total)))


def _left(total: Fraction | None, limit: Fraction) -> Fraction:
    return ZERO if total is None else max(ZERO, limit - total)
