"""Partition selection: tables that satisfy (ε′, δ′) at every n, cut-offs by the exact tail, and what is kept."""

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import InvalidParameter, LimitExceeded, PolicyViolation
from dpsql.privacy import selection as module
from dpsql.privacy.cost import (
    Accountant,
    Adjacency,
    Event,
    Mechanism,
    Price,
    Sensitivity,
    Share,
    cell_sensitivity,
    loss,
    split,
)
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import (
    GaussianThreshold,
    Selection,
    TruncatedGeometric,
    gaussian_threshold,
    select,
    threshold_for,
    truncated_geometric,
    unit_counts,
)

ZERO = Fraction(0)
BILLIONTH = Fraction(1, 10**9)
ONE = 2**128
CASES = [
    (Fraction(1, 10), Fraction(1, 10**6), 1),
    (Fraction(1), Fraction(1, 10**9), 3),
    (Fraction(3, 7), Fraction(1, 100), 2),
    (Fraction(1, 1000), Fraction(1, 10), 1),
    (Fraction(5), Fraction(1, 10**20), 10),
    (Fraction(100), Fraction(1, 10**30), 1),
    (Fraction(1, 50), Fraction(9, 10), 1),
]


def below_exponential(epsilon: Fraction) -> Fraction:
    """Return a rational just below e^ε."""
    context = Context(prec=70, rounding=ROUND_FLOOR)
    power = context.divide(Decimal(epsilon.numerator), Decimal(epsilon.denominator)).exp(context)
    return Fraction(power) * (1 - Fraction(1, 10**60))


def share(accountant: Accountant, epsilon: Fraction, delta: Fraction) -> Share:
    return split(Price(accountant, epsilon, delta), [Fraction(1)])[0]


@pytest.mark.parametrize(("epsilon", "delta", "l0"), CASES)
def test_the_table_satisfies_the_inequalities_at_every_count(epsilon: Fraction, delta: Fraction, l0: int) -> None:
    table = TruncatedGeometric(l0, epsilon, delta).probabilities()
    assert table[0] == 0
    assert table[-1] == ONE
    growth, each = below_exponential(epsilon), delta / l0 * ONE
    for less, more in pairwise(table):
        assert less <= more
        assert more <= growth * less + each
        assert less <= growth * more + each
        assert ONE - more <= growth * (ONE - less) + each
        assert ONE - less <= growth * (ONE - more) + each


@pytest.mark.parametrize(("epsilon", "delta", "l0"), CASES)
def test_the_table_is_the_largest_but_for_rounding(epsilon: Fraction, delta: Fraction, l0: int) -> None:
    growth, each = math.exp(min(float(epsilon), 64.0)), float(delta / l0)
    expected = 0.0
    for value in TruncatedGeometric(l0, epsilon, delta).probabilities():
        assert value / ONE == pytest.approx(expected, rel=1e-6, abs=1e-300)
        expected = min(growth * expected + each, 1 - (1 - expected - each) / growth, 1)


def test_a_table_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TABLE", 50)
    with pytest.raises(LimitExceeded):
        TruncatedGeometric(1, Fraction(1, 1001), BILLIONTH)
    module._table.cache_clear()


def test_a_delta_too_small_for_the_table_is_refused() -> None:
    with pytest.raises(InvalidParameter):
        TruncatedGeometric(10**10, Fraction(1), Fraction(1, 10**30))


@pytest.mark.parametrize("build", [truncated_geometric, gaussian_threshold, select])
def test_a_pure_budget_has_no_selection(build: Callable[[int, Share], Selection]) -> None:
    with pytest.raises(PolicyViolation) as caught:
        build(1, share(Accountant.PURE, Fraction(1), BILLIONTH))
    assert "values" in (caught.value.hint or "")
    with pytest.raises(InvalidParameter):
        build(1, share(Accountant.ZCDP, Fraction(1), ZERO))


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([Accountant.BASIC, Accountant.ZCDP]),
    st.fractions(Fraction(1, 10), 20),
    st.fractions(Fraction(1, 10**15), Fraction(1, 2)),
    st.integers(1, 20),
)
def test_a_selection_costs_no_more_than_its_share(
    accountant: Accountant, epsilon: Fraction, delta: Fraction, l0: int
) -> None:
    asked = share(accountant, epsilon, delta)
    for chosen in (truncated_geometric(l0, asked), gaussian_threshold(l0, asked), select(l0, asked)):
        losses = [loss(event) for event in chosen.events]
        if accountant is Accountant.ZCDP:
            assert sum(cost.rho for cost in losses) <= asked.rho
            assert sum(cost.delta for cost in losses) <= delta
        else:
            assert sum(cost.basic_epsilon or 0 for cost in losses) <= epsilon
            assert sum(cost.basic_delta for cost in losses) <= delta


def test_events_of_a_selection() -> None:
    (event,) = truncated_geometric(2, share(Accountant.BASIC, Fraction(1), BILLIONTH)).events
    assert event == Event(Mechanism.SELECTION, unit_counts(2), Fraction(1, 2), BILLIONTH)
    noise, threshold = gaussian_threshold(2, share(Accountant.ZCDP, Fraction(1), BILLIONTH)).events
    assert noise == Event(Mechanism.GAUSSIAN, unit_counts(2), Fraction(2))
    assert threshold == Event(Mechanism.THRESHOLD, unit_counts(2), ZERO, BILLIONTH)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_unit_counts_are_cells_of_zero_or_one(adjacency: Adjacency) -> None:
    sensitivity = cell_sensitivity(adjacency, l0=3, lower=0, upper=1, grouped=True)
    assert sensitivity == unit_counts(sensitivity.l0)


def test_select_keeps_the_smaller_groups() -> None:
    small = select(1, share(Accountant.ZCDP, Fraction(1, 10), BILLIONTH))
    assert isinstance(small, GaussianThreshold)
    large = select(1, share(Accountant.BASIC, Fraction(2), Fraction(1, 100)))
    assert isinstance(large, TruncatedGeometric)
    for asked in (share(Accountant.ZCDP, Fraction(1, 10), BILLIONTH), share(Accountant.BASIC, Fraction(2), BILLIONTH)):
        least = min(truncated_geometric(1, asked).smallest_likely, gaussian_threshold(1, asked).smallest_likely)
        assert select(1, asked).smallest_likely == least


def test_select_falls_back_on_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TABLE", 2)
    assert isinstance(select(1, share(Accountant.BASIC, Fraction(1, 17), Fraction(1, 1001))), GaussianThreshold)
    module._table.cache_clear()


@pytest.mark.parametrize(
    "chosen",
    [
        truncated_geometric(1, share(Accountant.BASIC, Fraction(1), Fraction(1, 100))),
        gaussian_threshold(1, share(Accountant.ZCDP, Fraction(1), Fraction(1, 100))),
    ],
    ids=lambda chosen: type(chosen).__name__,
)
def test_half_of_the_smallest_likely_groups_are_kept(chosen: Selection) -> None:
    draws = 10_000
    slack = 6 * math.sqrt(draws) / 2  # six standard deviations: false alarms below 1e-8
    assert chosen.keep(np.full(draws, chosen.smallest_likely)).sum() >= draws / 2 - slack
    assert chosen.keep(np.full(draws, chosen.smallest_likely - 1)).sum() < draws / 2 + slack
    assert not chosen.keep(np.zeros(draws, dtype=np.int64)).any()
    assert not chosen.keep(np.full(draws, -5)).any()
    assert chosen.keep(np.full(draws, 2**62)).all()
    assert chosen.keep(np.zeros(0, dtype=np.int64)).size == 0


def test_a_wide_threshold_never_shows_a_group_without_units() -> None:
    noise = DiscreteGaussian(unit_counts(1), Fraction(10**6))
    chosen = GaussianThreshold(noise, threshold_for(noise, 1, Fraction(49, 100)))
    assert not chosen.keep(np.zeros(10_000, dtype=np.int64)).any()
    assert chosen.keep(np.ones(10_000, dtype=np.int64)).any()


@pytest.mark.statistical
def test_groups_are_kept_with_the_probability_of_the_table() -> None:
    """Each n within six standard deviations of π(n): false alarms below 1e-7 over the 14 counts."""
    chosen = TruncatedGeometric(1, Fraction(1), Fraction(1, 100))
    draws = 20_000
    for units, value in enumerate(chosen.probabilities()):
        p = value / ONE
        kept = int(chosen.keep(np.full(draws, units)).sum())
        assert abs(kept - draws * p) <= 6 * math.sqrt(draws * p * (1 - p))


@pytest.mark.parametrize(
    "noise",
    [
        DiscreteGaussian(unit_counts(4), Fraction(30)),
        DiscreteLaplace(unit_counts(4), Fraction(30)),
        DiscreteGaussian(Sensitivity(4, 5, 20, 100), Fraction(30)),
    ],
)
def test_a_threshold_lets_one_unit_pass_with_delta_at_most(noise: DiscreteGaussian | DiscreteLaplace) -> None:
    threshold = threshold_for(noise, 4, BILLIONTH)
    largest = noise.sensitivity.linf
    assert threshold.cutoff == largest + noise.tail(BILLIONTH / 4)
    assert threshold.event == Event(Mechanism.THRESHOLD, noise.sensitivity, ZERO, BILLIONTH)


def test_a_threshold_covers_all_groups_of_the_noise() -> None:
    noise = DiscreteGaussian(unit_counts(4), Fraction(30))
    assert threshold_for(noise, 8, BILLIONTH).cutoff > threshold_for(noise, 4, BILLIONTH).cutoff
    with pytest.raises(InvalidParameter):
        threshold_for(noise, 3, BILLIONTH)
