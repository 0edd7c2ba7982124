"""What was spent: running totals in every currency, which only grow.

Rule: each charge is rounded up to a multiple of 10⁻³⁰ in each currency, so that the totals stay short, and are kept and
added as whole numbers of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd
from typing import Any

from dpsql.privacy.cost import ZERO, Event, loss
from dpsql.privacy.exact import read_exact, reading
from dpsql.privacy.renyi import renyi

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
        """Σε but for selection's δ; None once a charge was not pure."""
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
