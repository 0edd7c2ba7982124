"""What was spent: running totals in every currency, which only grow.

Rule: each charge is rounded up to a multiple of 10⁻³⁰ in each currency, so that the totals stay short.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpsql.privacy.cost import ZERO, Event, loss
from dpsql.privacy.exact import read_exact, reading
from dpsql.privacy.renyi import renyi

GRID = 10**30


@dataclass(frozen=True, slots=True)
class Spent:
    """Running totals in every currency.

    Attributes:
        pure_epsilon: Σε but for selection's δ; None once a charge was not pure.
        rho: Σρ.
        delta: Σδ of selection.
        basic_epsilon: Σε of (ε, δ)-DP charges; None once one was not calibrated for it.
        basic_delta: Σδ of (ε, δ)-DP charges.
        squares: Σε² of (ε, δ)-DP primitives; None once one was not calibrated for it.
        renyi: Σ of Rényi divergences at each order that a budget was created with; None once a charge had a δ.
    """

    pure_epsilon: Fraction | None
    rho: Fraction
    delta: Fraction
    basic_epsilon: Fraction | None
    basic_delta: Fraction
    squares: Fraction | None
    renyi: tuple[tuple[Fraction, Fraction | None], ...] = ()

    @classmethod
    def zero(cls) -> "Spent":
        """Return the totals of a fresh budget."""
        return cls(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO)

    def add(self, events: Iterable[Event]) -> "Spent":
        """Return the totals with one more charge."""
        charged = tuple(events)
        losses = [loss(event) for event in charged]
        return Spent(
            _add(self.pure_epsilon, (cost.epsilon for cost in losses)),
            self.rho + up(sum((cost.rho for cost in losses), ZERO)),
            self.delta + up(sum((cost.delta for cost in losses), ZERO)),
            _add(self.basic_epsilon, (cost.basic_epsilon for cost in losses)),
            self.basic_delta + up(sum((cost.basic_delta for cost in losses), ZERO)),
            _add(self.squares, (None if cost.basic_epsilon is None else cost.basic_epsilon**2 for cost in losses)),
            tuple((order, _add(total, (renyi(event, order) for event in charged))) for order, total in self.renyi),
        )

    def merge(self, other: "Spent") -> "Spent":
        """Return the sum of two totals; what either cannot express in a currency, the sum cannot."""
        orders = sorted({order for order, _ in (*self.renyi, *other.renyi)})
        return Spent(
            _sum(self.pure_epsilon, other.pure_epsilon),
            self.rho + other.rho,
            self.delta + other.delta,
            _sum(self.basic_epsilon, other.basic_epsilon),
            self.basic_delta + other.basic_delta,
            _sum(self.squares, other.squares),
            tuple((order, _sum(self.at(order), other.at(order))) for order in orders),
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
        return {
            "pure_epsilon": _text(self.pure_epsilon),
            "rho": str(self.rho),
            "delta": str(self.delta),
            "basic_epsilon": _text(self.basic_epsilon),
            "basic_delta": str(self.basic_delta),
            "squares": _text(self.squares),
            "renyi": {str(order): _text(total) for order, total in self.renyi},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Spent":
        """Return the totals that to_json wrote."""
        with reading("totals"):
            return cls(
                _number(fields["pure_epsilon"]),
                read_exact(fields["rho"]),
                read_exact(fields["delta"]),
                _number(fields["basic_epsilon"]),
                read_exact(fields["basic_delta"]),
                _number(fields["squares"]),
                tuple(sorted((read_exact(order), _number(total)) for order, total in fields["renyi"].items())),
            )


def up(value: Fraction) -> Fraction:
    """Return the value rounded up to the grid of totals."""
    return Fraction(-(-value.numerator * GRID // value.denominator), GRID)


def down(value: Fraction) -> Fraction:
    """Return the value rounded down to the grid of totals."""
    return Fraction(value.numerator * GRID // value.denominator, GRID)


def _add(total: Fraction | None, costs: Iterable[Fraction | None]) -> Fraction | None:
    """Add one charge, rounded up as a whole, to a total."""
    charge = ZERO
    for cost in costs:
        if cost is None:
            return None
        charge += cost
    return None if total is None else total + up(charge)


def _sum(one: Fraction | None, other: Fraction | None) -> Fraction | None:
    return None if one is None or other is None else one + other


def _text(value: Fraction | None) -> str | None:
    return None if value is None else str(value)


def _number(text: str | None) -> Fraction | None:
    return None if text is None else read_exact(text)
