"""The Rényi divergence of discrete Laplace noise, against sums over the law itself."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.privacy.accounting import randomized_response
from dpsql.privacy.reports import laplace_divergence
from tests.privacy.laws import laplace_loss

ORDERS = (Fraction(101, 100), Fraction(3, 2), Fraction(4), Fraction(50))


def summed(steps: int, scale: int, order: float) -> float:
    """ln(E_P[e^((α−1)·loss)])/(α−1), term by term."""
    law = laplace_loss(steps, scale)
    top = max(law)
    return top + math.log(math.fsum(p * math.exp((order - 1) * (loss - top)) for loss, p in law.items())) / (order - 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scale", [1, 3, 10])
@pytest.mark.parametrize("steps", [1, 2, 5, 30])
def test_it_is_the_sum_over_the_integers(steps: int, scale: int, order: Fraction) -> None:
    found = float(laplace_divergence(steps, Fraction(scale), order))
    assert found == pytest.approx(summed(steps, scale, float(order)), rel=1e-8)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.fractions(Fraction(1, 64), 10**6), st.sampled_from(ORDERS))
def test_many_steps_lose_less_than_randomized_response_and_convexly(
    steps: int, scale: Fraction, order: Fraction
) -> None:
    found = laplace_divergence(steps, scale, order)
    assert 0 < found <= randomized_response(steps / scale, order) * (1 + Fraction(1, 10**40))
    twice = laplace_divergence(2 * steps, scale, order)
    assert 2 * found <= twice * (1 + Fraction(1, 10**20))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.fractions(Fraction(1, 64), 10**6), st.sampled_from(ORDERS))
def test_it_is_rounded_up_and_hardly(steps: int, scale: Fraction, order: Fraction) -> None:
    found = laplace_divergence(steps, scale, order)
    with localcontext(prec=150, Emin=-(10**9), Emax=10**9):
        b, a = (Decimal(value.numerator) / value.denominator for value in (scale, order))
        q = (-1 / b).exp()
        middle = sum((q ** (a * z + (1 - a) * (steps - z)) for z in range(1, steps)), Decimal(0))
        ends = (q ** ((1 - a) * steps) + q ** (a * steps)) / (1 - q)
        exact = ((1 - q) / (1 + q) * (ends + middle)).ln() / (a - 1)
        excess = Decimal(found.numerator) / found.denominator - exact
        assert -Decimal("1e-100") <= excess <= Decimal("1e-40")


def test_one_step_is_randomized_response() -> None:
    for order in ORDERS:
        one, response = laplace_divergence(1, Fraction(7), order), randomized_response(Fraction(1, 7), order)
        assert abs(one - response) < Fraction(1, 10**45)


def test_a_fine_grid_is_continuous_laplace_noise() -> None:
    found = laplace_divergence(10**9, Fraction(2 * 10**9), Fraction(3))
    continuous = math.log(3 / 5 * math.exp(2 / 2) + 2 / 5 * math.exp(-3 / 2)) / 2
    assert float(found) == pytest.approx(continuous, rel=1e-9)


def test_it_is_never_more_than_the_largest_loss() -> None:
    assert laplace_divergence(5, Fraction(1, 64), Fraction(10**9)) <= 320
    assert float(laplace_divergence(5, Fraction(1), Fraction(10**9))) == pytest.approx(5, abs=1e-6)
