"""Optimal composition against the binomial law itself, in fractions of which only e^ε is rounded."""

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.privacy.kairouz import heterogeneous, homogeneous
from tests.privacy.laws import composed, delta_of, selection_loss

MICRO = Fraction(1, 10**6)
SMALL = st.fractions(Fraction(1, 50), 2, max_denominator=1000)
DELTAS = st.sampled_from([Fraction(1, 10**9), MICRO, Fraction(1, 1000), Fraction(1, 10)])


def exact_delta(base: Fraction, times: int, power: Fraction) -> Fraction:
    """Return δ at e^ε̃ = power for mechanisms with e^ε = base, in exact arithmetic."""
    weights = [comb(times, lies) * (base ** (times - lies) - power * base**lies) for lies in range(times + 1)]
    return sum((max(weight, Fraction(0)) for weight in weights), Fraction(0)) / (1 + base) ** times


@pytest.mark.parametrize("times", [1, 2, 3, 7, 30, 200])
@pytest.mark.parametrize("base", [Fraction(11, 10), Fraction(2), Fraction(21)])
@pytest.mark.parametrize("delta", [Fraction(1, 10**12), MICRO, Fraction(1, 5)])
def test_it_is_the_least_epsilon_of_the_exact_law(times: int, base: Fraction, delta: Fraction) -> None:
    epsilon = Fraction(math.log(base))  # rounded to 1e-16 or so: δ is compared a little to either side
    found = homogeneous(epsilon, times, delta)
    above, below = (Fraction(math.exp(found * (1 + side) + side / 10)) for side in (Fraction(1, 10**12), -MICRO))
    assert exact_delta(base, times, above) <= delta * (1 + MICRO)
    assert found == 0 or exact_delta(base, times, max(Fraction(1), below)) > delta * (1 - MICRO)


@settings(deadline=None, max_examples=60)
@given(st.fractions(Fraction(1, 10**6), 3), st.integers(1, 60), DELTAS)
def test_it_is_rounded_up_and_hardly(epsilon: Fraction, times: int, delta: Fraction) -> None:
    found = homogeneous(epsilon, times, delta)
    with localcontext(prec=150):
        e, d = (Decimal(value.numerator) / value.denominator for value in (epsilon, delta))
        truth = 1 / (1 + (-e).exp())
        laws = [
            [comb(times, lies) * p ** (times - lies) * (1 - p) ** lies for lies in range((times + 1) // 2)]
            for p in (truth, 1 - truth)
        ]
        tails = [(sum(laws[0][: m + 1]), sum(laws[1][: m + 1])) for m in range(len(laws[0]))]
        least = max(Decimal(1), *((above - d) / below for above, below in tails)).ln()
        excess = Decimal(found.numerator) / found.denominator - least
        assert -Decimal("1e-100") <= excess <= Decimal("1e-45")


def test_what_delta_covers_alone_loses_nothing() -> None:
    assert homogeneous(Fraction(1, 10**7), 3, MICRO) == 0
    assert homogeneous(Fraction(1, 10), 1, Fraction(1, 2)) == 0


def test_it_is_at_most_the_sum() -> None:
    assert homogeneous(Fraction(10**6), 3, MICRO) <= 3 * 10**6
    assert homogeneous(Fraction(1, 10), 5, Fraction(1, 10**30)) <= Fraction(1, 2)


def test_the_figures_of_small_queries() -> None:
    tenth = Fraction(1, 10)
    assert [round(float(homogeneous(tenth, times, MICRO)), 3) for times in (10, 100, 1000)] == [0.999, 4.775, 19.345]


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(SMALL, st.integers(1, 3), min_size=1, max_size=4), DELTAS)
def test_different_mechanisms_are_never_said_to_lose_too_little(
    epsilons: Mapping[Fraction, int], delta: Fraction
) -> None:
    law = composed(selection_loss(float(epsilon)) for epsilon, times in epsilons.items() for _ in range(times))
    found = heterogeneous(epsilons, delta)
    assert delta_of(law, float(found) + 1e-8) <= float(delta) * (1 + 1e-6)
    assert found <= sum(epsilon * times for epsilon, times in epsilons.items()) + Fraction(1, 10**20)


def test_the_closed_forms_are_those_of_the_theorem() -> None:
    """Many small ε beside one large: neither the sum nor the largest ε is good."""
    epsilons = {Fraction(1, 50): 2000, Fraction(1): 1}
    found = float(heterogeneous(epsilons, Fraction(1, 100)))
    mean = 2000 / 50 * math.tanh(1 / 100) + math.tanh(1 / 2)
    squares = 2000 / 2500 + 1
    by_hand = [mean + math.sqrt(2 * squares * math.log(x)) for x in (100, math.e + math.sqrt(squares) * 100)]
    assert found == pytest.approx(min(by_hand), rel=1e-9)


def test_almost_equal_mechanisms_are_taken_for_equal() -> None:
    epsilons = {Fraction(1, 10): 99, Fraction(99, 1000): 1}
    assert heterogeneous(epsilons, MICRO) == homogeneous(Fraction(1, 10), 100, MICRO)


@given(SMALL, st.integers(1, 200), DELTAS)
@settings(deadline=None, max_examples=50)
def test_more_queries_and_less_delta_lose_more(epsilon: Fraction, times: int, delta: Fraction) -> None:
    found = homogeneous(epsilon, times, delta)
    slightly = Fraction(1, 10**40)
    assert found <= homogeneous(epsilon, times + 1, delta) + slightly
    assert found <= homogeneous(epsilon, times, delta / 2) + slightly
    assert found <= homogeneous(epsilon * 2, times, delta) + slightly
