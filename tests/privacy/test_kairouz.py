"""Optimal composition against the binomial law itself, in fractions of which only e^ε is rounded."""

import math
from collections.abc import Mapping
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.privacy.cost import Event, Mechanism, Sensitivity
from dpsql.privacy.reports import Dash, History, kairouz_oh_viswanath
from tests.privacy.laws import composed, delta_of, selection_loss

MICRO = Fraction(1, 10**6)
SMALL = st.fractions(Fraction(1, 50), 2, max_denominator=1000)
DELTAS = st.sampled_from([Fraction(1, 10**9), MICRO, Fraction(1, 1000), Fraction(1, 10)])


def optimal(epsilons: Mapping[Fraction, int], delta: Fraction) -> Fraction:
    """Return the report on mechanisms of these ε, that move three cells so that nothing but ε is known of them."""
    cells = Sensitivity(3, 1, 3, 3)
    noise = {Event(Mechanism.LAPLACE, cells, 3 / epsilon): times for epsilon, times in epsilons.items()}
    found = kairouz_oh_viswanath(History(noise, Fraction(0)), delta)
    assert isinstance(found, Fraction), found
    return found


def exact_delta(base: Fraction, times: int, power: Fraction) -> Fraction:
    """Return δ at e^ε̃ = power for mechanisms with e^ε = base, in exact arithmetic."""
    weights = [comb(times, lies) * (base ** (times - lies) - power * base**lies) for lies in range(times + 1)]
    return sum((max(weight, Fraction(0)) for weight in weights), Fraction(0)) / (1 + base) ** times


@pytest.mark.parametrize("times", [1, 2, 3, 7, 30, 200])
@pytest.mark.parametrize("base", [Fraction(11, 10), Fraction(2)])
@pytest.mark.parametrize("delta", [Fraction(1, 10**9), MICRO, Fraction(1, 5)])
def test_it_is_the_least_epsilon_of_the_exact_law(times: int, base: Fraction, delta: Fraction) -> None:
    found = optimal({Fraction(math.log(base)): times}, delta)
    above, below = Fraction(math.exp(found)), Fraction(math.exp(found * Fraction(998, 1000) - Fraction(1, 10**5)))
    assert exact_delta(base, times, above) <= delta * (1 + MICRO)
    assert found <= MICRO or exact_delta(base, times, max(Fraction(1), below)) > delta


def test_what_delta_covers_alone_loses_nothing() -> None:
    assert optimal({Fraction(1, 10**7): 3}, MICRO) <= MICRO
    assert optimal({Fraction(1, 10): 1}, Fraction(1, 2)) <= MICRO


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(SMALL, st.integers(1, 3), min_size=1, max_size=4), DELTAS)
def test_different_mechanisms_are_never_said_to_lose_too_little(
    epsilons: Mapping[Fraction, int], delta: Fraction
) -> None:
    law = composed(selection_loss(float(epsilon)) for epsilon, times in epsilons.items() for _ in range(times))
    found = optimal(epsilons, delta)
    assert delta_of(law, float(found) + 1e-8) <= float(delta) * (1 + 1e-6)
    assert found <= sum(epsilon * times for epsilon, times in epsilons.items()) + Fraction(1, 10**20)


def test_almost_equal_mechanisms_are_not_taken_for_one_large_one() -> None:
    alike = optimal({Fraction(1, 10): 100}, MICRO)
    assert alike * Fraction(99, 100) < optimal({Fraction(1, 10): 99, Fraction(99, 1000): 1}, MICRO) <= alike


def test_beyond_floats_it_says_so() -> None:
    event = Event(Mechanism.LAPLACE, Sensitivity(1, 1, 1, 1), Fraction(1, 10**3))
    assert isinstance(kairouz_oh_viswanath(History({event: 3}, Fraction(0)), MICRO), Dash)
    assert isinstance(kairouz_oh_viswanath(History({event: 3}, Fraction(0)), Fraction(1, 10**12)), Dash)
