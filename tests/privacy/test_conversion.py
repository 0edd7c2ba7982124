"""Conversions between ρ and (ε, δ): figures, directions of rounding, agreement with OpenDP, ends of the range."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import InvalidParameter
from dpsql.privacy import conversion
from dpsql.privacy.conversion import DOWN, UP, decimal, epsilon_to_rho, exp, ln, rho_to_epsilon, root_down, root_up

EPSILONS = (
    st.integers(-12, 6)
    .flatmap(lambda power: st.fractions(1, 9, max_denominator=999).map(lambda f: f * Fraction(10) ** power))
    .filter(lambda epsilon: epsilon <= 10**6)
)
DELTAS = st.one_of(
    st.integers(-30, -1).map(lambda power: Fraction(10) ** power),
    st.fractions(Fraction(1, 10**20), 1 - Fraction(1, 10**20)).filter(lambda delta: Fraction(1, 10**30) <= delta < 1),
)


def best_epsilon(rho: float, delta: float) -> float:
    """Return ε(ρ, δ) by a scan of orders: a slow second opinion."""
    orders = [1 + math.exp(step / 500) for step in range(-5000, 20000)]
    log = math.log(1 / delta)
    return min(order * rho + (log - math.log(order)) / (order - 1) + math.log1p(-1 / order) for order in orders)


def test_the_figures_of_a_budget_of_five() -> None:
    assert round(float(epsilon_to_rho(Fraction(5), Fraction(1, 10**6))), 3) == 0.463
    assert round(float(epsilon_to_rho(Fraction(5), Fraction(1, 2 * 10**6))), 3) == 0.442


@pytest.mark.parametrize("rho", [0.0001, 0.005, 0.1, 1.0, 20.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 0.01])
def test_epsilon_is_the_best_order_rounded_up(rho: float, delta: float) -> None:
    found = float(rho_to_epsilon(Fraction(rho), Fraction(delta)))
    assert found == pytest.approx(max(0, best_epsilon(rho, delta)), rel=1e-5)


def exact_epsilon(rho: Fraction, delta: Fraction) -> Decimal:
    """Return ε(ρ, δ) to about 100 digits, at the order where ρ(α−1)² + ln α = ln(1/δ)."""
    with localcontext(prec=120):
        r, log = Decimal(rho.numerator) / rho.denominator, (Decimal(delta.denominator) / delta.numerator).ln()
        low, high = Decimal(0), 1 / (Decimal(delta.numerator) / delta.denominator)
        for _ in range(420):
            a = (low + high) / 2
            low, high = (a, high) if r * a * a + (1 + a).ln() < log else (low, a)
        return (1 + a) * r + (log - (1 + a).ln()) / a + (a / (1 + a)).ln()


@pytest.mark.parametrize("rho", [Fraction(1, 3 * 10**6), Fraction(1, 200), Fraction(7, 3), Fraction(10**7, 3)])
@pytest.mark.parametrize("delta", [Fraction(1, 3 * 10**20), Fraction(1, 10**6), Fraction(2, 7)])
def test_epsilon_is_never_below_the_exact_value(rho: Fraction, delta: Fraction) -> None:
    found = rho_to_epsilon(rho, delta)
    exact = max(Decimal(0), exact_epsilon(rho, delta))
    with localcontext(prec=120):
        excess = Decimal(found.numerator) / found.denominator - exact
    assert 0 <= excess <= Decimal("1e-24") + exact * Decimal("1e-24")


@pytest.mark.parametrize("scale", [0.7, 3.0, 10.0, 100.0])
def test_epsilon_agrees_with_opendp(scale: float) -> None:
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    measurement = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=scale))
    curve = measurement.map(1.0)  # type: ignore[no-untyped-call]
    rho = 1 / (2 * Fraction(scale) ** 2)
    assert float(rho_to_epsilon(rho, Fraction(1, 10**6))) == pytest.approx(curve.epsilon(1e-6), rel=1e-6)


@settings(max_examples=200, deadline=None)
@given(EPSILONS, DELTAS)
def test_rho_converts_back_below_epsilon_and_is_nearly_the_largest(epsilon: Fraction, delta: Fraction) -> None:
    rho = epsilon_to_rho(epsilon, delta)
    assert rho > 0
    assert rho_to_epsilon(rho, delta) <= epsilon
    # An ε much below 1e-9 moves ρ by less than the 15 digits that are kept.
    assert epsilon < Fraction(1, 10**6) or rho_to_epsilon(rho * (1 + Fraction(1, 10**6)), delta) > epsilon


def test_rho_shrinks_until_it_converts_back(monkeypatch: pytest.MonkeyPatch) -> None:
    conversion._epsilon_to_rho.cache_clear()
    honest = epsilon_to_rho(Fraction(3), Fraction(1, 10**5))
    conversion._epsilon_to_rho.cache_clear()
    answers = iter([Fraction(4), Fraction(2)])
    monkeypatch.setattr("dpsql.privacy.conversion.rho_to_epsilon", lambda rho, delta: next(answers))
    assert epsilon_to_rho(Fraction(3), Fraction(1, 10**5)) == honest * (10**12 - 1) / 10**12
    conversion._epsilon_to_rho.cache_clear()


def test_nothing_spent_is_nothing_lost() -> None:
    assert rho_to_epsilon(Fraction(0), Fraction(1, 10**6)) == 0
    assert rho_to_epsilon(Fraction(1, 10**40), Fraction(1, 2)) == 0


@pytest.mark.parametrize(
    "wrong", [Fraction(0), Fraction(-1), Fraction(10) ** 308, Fraction(1, 10**400), Fraction(1e-320)]
)
def test_what_is_out_of_range_is_refused(wrong: Fraction) -> None:
    with pytest.raises(InvalidParameter):
        epsilon_to_rho(wrong, Fraction(1, 10**6))
    with pytest.raises(InvalidParameter):
        epsilon_to_rho(Fraction(1), wrong)
    with pytest.raises(InvalidParameter):
        rho_to_epsilon(Fraction(1), wrong)


@pytest.mark.parametrize("rho", [Fraction(-1), Fraction(10) ** 308])
def test_a_rho_out_of_range_is_refused(rho: Fraction) -> None:
    with pytest.raises(InvalidParameter):
        rho_to_epsilon(rho, Fraction(1, 10**6))


@given(st.fractions(Fraction(1, 10**9), 10**9))
def test_logarithm_and_exponential_are_bounded_on_both_sides(value: Fraction) -> None:
    with localcontext(prec=90):
        true_log = (Decimal(value.numerator) / Decimal(value.denominator)).ln()
        assert ln(decimal(value, DOWN), DOWN) < true_log < ln(decimal(value, UP), UP)
        small = value / 10**9
        true_exp = (Decimal(small.numerator) / Decimal(small.denominator)).exp()
        assert exp(decimal(small, DOWN), DOWN) < true_exp < exp(decimal(small, UP), UP)


@given(st.fractions(Fraction(1, 10**30), 10**40))
def test_roots_are_bounded_on_both_sides(value: Fraction) -> None:
    low, high = root_down(value), root_up(value)
    assert low**2 <= value <= high**2
    assert high - low <= high / 2**60


def test_rational_roots_are_exact() -> None:
    assert root_down(Fraction(100, 9)) == root_up(Fraction(100, 9)) == Fraction(10, 3)
