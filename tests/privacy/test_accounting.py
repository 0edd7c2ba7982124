"""Limits, totals and the gate: admitted up to the limit, never one step beyond."""

import json
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import InvalidParameter
from dpsql.privacy.accounting import (
    Limit,
    Remaining,
    Spent,
    admits,
    affordable_epsilon,
    create_limit,
    epsilon_to_rho,
    group_privacy,
    remaining,
    rho_to_epsilon,
    standalone,
)
from dpsql.privacy.cost import Accountant, Event, Mechanism, Price, Sensitivity, loss, split
from dpsql.privacy.mechanisms import gaussian, laplace
from dpsql.privacy.selection import truncated_geometric

ZERO = Fraction(0)
HALF = Fraction(1, 2)
TENTH = Fraction(1, 10)
MILLIONTH = Fraction(1, 10**6)
BILLIONTH = Fraction(1, 10**9)
ONE_CELL = Sensitivity(1, 1, 1, 1)
CENT_RHO = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(100))  # ρ = 0.005
LAPLACE_TENTH = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(10))  # ε = 0.1
SELECTION = Event(Mechanism.SELECTION, ONE_CELL, TENTH, BILLIONTH)
THRESHOLD = Event(Mechanism.THRESHOLD, ONE_CELL, ZERO, BILLIONTH)

PURE = create_limit(Accountant.PURE, Fraction(1), ZERO, HALF)
BASIC = create_limit(Accountant.BASIC, Fraction(1), MILLIONTH, HALF)
ZCDP = create_limit(Accountant.ZCDP, Fraction(5), MILLIONTH, HALF)
ADVANCED = create_limit(Accountant.ADVANCED, Fraction(5), MILLIONTH, HALF)
RDP = create_limit(Accountant.RDP, Fraction(5), MILLIONTH, HALF)
WHOLE = create_limit(Accountant.ZCDP, Fraction(5), MILLIONTH, ZERO)
RHO_ONE = Limit(Accountant.ZCDP, Fraction(8), BILLIONTH, BILLIONTH, Fraction(1))


def spend(*events: Event, times: int = 1) -> Spent:
    spent = Spent.zero()
    for _ in range(times):
        spent = spent.add(events)
    return spent


def test_limits_of_zcdp_split_delta_once() -> None:
    assert (ZCDP.delta_conversion, ZCDP.delta_selection, ZCDP.delta) == (MILLIONTH / 2, MILLIONTH / 2, MILLIONTH)
    assert round(float(ZCDP.capacity), 3) == 0.442
    assert round(float(WHOLE.capacity), 3) == 0.463
    assert rho_to_epsilon(ZCDP.capacity, ZCDP.delta_conversion) <= 5


def test_limits_of_the_other_currencies() -> None:
    assert Limit(Accountant.PURE, Fraction(1), ZERO, ZERO, Fraction(1)) == PURE
    assert Limit(Accountant.BASIC, Fraction(1), ZERO, MILLIONTH, Fraction(1)) == BASIC
    assert create_limit(Accountant.BASIC, Fraction(1), ZERO, HALF).delta == 0


@pytest.mark.parametrize("accountant", Accountant)
@pytest.mark.parametrize("wrong", [ZERO, Fraction(-1), Fraction(10) ** 308, Fraction(1, 10**400)])
def test_an_epsilon_out_of_range_is_refused(accountant: Accountant, wrong: Fraction) -> None:
    with pytest.raises(InvalidParameter):
        create_limit(accountant, wrong, ZERO if accountant is Accountant.PURE else MILLIONTH, HALF)


@pytest.mark.parametrize("accountant", Accountant)
@pytest.mark.parametrize("wrong", [Fraction(1), Fraction(-1), Fraction(10) ** 308, Fraction(1, 10**400)])
def test_a_delta_out_of_range_is_refused(accountant: Accountant, wrong: Fraction) -> None:
    with pytest.raises(InvalidParameter):
        create_limit(accountant, Fraction(1), wrong, HALF)


def test_zcdp_needs_a_delta_to_convert_at() -> None:
    for delta, part in ((ZERO, HALF), (MILLIONTH, Fraction(1)), (MILLIONTH, Fraction(-1)), (Fraction(1, 10**30), HALF)):
        with pytest.raises(InvalidParameter):
            create_limit(Accountant.ZCDP, Fraction(1), delta, part)


def test_the_two_hundredth_charge_fits_and_the_next_does_not() -> None:
    spent = spend(CENT_RHO, times=199)
    assert admits(RHO_ONE, spent.add([CENT_RHO]))
    assert not admits(RHO_ONE, spend(CENT_RHO, times=201))
    assert spend(CENT_RHO, times=200).rho == 1


def test_thirds_of_a_charge_are_rounded_together() -> None:
    price = Price(Accountant.ZCDP, TENTH, ZERO)
    thirds = [gaussian(ONE_CELL, share).event for share in split(price, [Fraction(1)] * 3)]
    assert spend(*thirds, times=200).rho == 1


def test_totals_stay_short_and_round_up() -> None:
    spent = spend(Event(Mechanism.LAPLACE, ONE_CELL, Fraction(3**80, 2**120)), SELECTION, times=3)
    assert spent.pure_epsilon is not None
    assert 10**30 % spent.pure_epsilon.denominator == 10**30 % spent.rho.denominator == 0
    exact = 3 * (loss(SELECTION).rho + Fraction(2**240, 2 * 3**160))
    assert exact < spent.rho <= exact + Fraction(3, 10**30)


def test_totals_add_every_currency() -> None:
    in_basic = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(100), ZERO, BILLIONTH)
    spent = spend(LAPLACE_TENTH, SELECTION, THRESHOLD)
    assert (spent.pure_epsilon, spent.rho, spent.delta) == (2 * TENTH, TENTH**2, 2 * BILLIONTH)
    assert (spent.basic_epsilon, spent.basic_delta) == (2 * TENTH, 2 * BILLIONTH)
    mixed = spent.add([in_basic])
    assert mixed.pure_epsilon is None
    assert mixed.basic_epsilon == pytest.approx(0.2 + float(rho_to_epsilon(Fraction(1, 200), BILLIONTH)))
    assert mixed.basic_delta == 3 * BILLIONTH
    assert mixed.add([CENT_RHO]).basic_epsilon is None
    assert mixed.add([CENT_RHO]).add([LAPLACE_TENTH]).basic_epsilon is None


@pytest.mark.parametrize("events", [[], [LAPLACE_TENTH, SELECTION], [CENT_RHO]])
def test_limits_and_totals_survive_json(events: list[Event]) -> None:
    spent = spend(*events)
    assert Spent.from_json(json.loads(json.dumps(spent.to_json()))) == spent
    assert Spent.from_json(json.loads(json.dumps(spent.keeping(RDP.order).to_json()))) == spent.keeping(RDP.order)
    for limit in (PURE, BASIC, ADVANCED, ZCDP, RDP):
        assert Limit.from_json(json.loads(json.dumps(limit.to_json()))) == limit


def test_pure_admits_pure_charges_only() -> None:
    assert admits(PURE, spend(LAPLACE_TENTH, times=10))
    assert not admits(PURE, spend(LAPLACE_TENTH, times=11))
    assert not admits(PURE, spend(SELECTION))
    assert not admits(PURE, spend(CENT_RHO))


def test_basic_counts_epsilon_and_delta() -> None:
    assert admits(BASIC, spend(SELECTION, times=10))
    assert not admits(BASIC, spend(SELECTION, times=11))
    assert admits(BASIC, spend(THRESHOLD, times=1000))
    assert not admits(BASIC, spend(THRESHOLD, times=1001))
    assert not admits(BASIC, spend(CENT_RHO))


def test_zcdp_counts_the_delta_of_selection_in_both_clauses() -> None:
    assert admits(ZCDP, spend(THRESHOLD, times=500))
    assert not admits(ZCDP, spend(THRESHOLD, times=501))
    assert not admits(ZCDP, spend(THRESHOLD, CENT_RHO, times=501))


def test_a_small_zcdp_budget_answers_pure_queries_up_to_its_epsilon() -> None:
    small = create_limit(Accountant.ZCDP, TENTH, MILLIONTH, HALF)
    assert small.capacity < loss(LAPLACE_TENTH).rho
    assert admits(small, spend(LAPLACE_TENTH))
    assert not admits(small, spend(LAPLACE_TENTH, times=2))
    assert not admits(small, spend(CENT_RHO))
    assert admits(small, spend(Event(Mechanism.GAUSSIAN, ONE_CELL, 1 / (2 * small.capacity))))


@pytest.mark.parametrize("limit", [PURE, BASIC])
def test_what_is_affordable_fits_and_no_more(limit: Limit) -> None:
    spent = spend(LAPLACE_TENTH, times=3)
    epsilon = affordable_epsilon(limit, spent)
    assert epsilon == Fraction(7, 10)
    assert admits(limit, spent.add([Event(Mechanism.LAPLACE, ONE_CELL, 1 / epsilon)]))
    assert affordable_epsilon(limit, spend(CENT_RHO)) == 0


@settings(deadline=None)
@given(st.integers(0, 88))
def test_what_is_affordable_in_zcdp_fits_and_no_more(times: int) -> None:
    spent = spend(CENT_RHO, times=times)
    epsilon = affordable_epsilon(ZCDP, spent)
    bigger = epsilon * (1 + Fraction(1, 10**9))
    for asked, fits in ((epsilon, True), (bigger, False)):
        (share,) = split(Price(Accountant.ZCDP, asked, ZERO), [Fraction(1)])
        assert admits(ZCDP, spent.add([gaussian(ONE_CELL, share).event])) is fits


def test_what_is_affordable_by_the_pure_clause() -> None:
    small = create_limit(Accountant.ZCDP, TENTH, MILLIONTH, HALF)
    assert affordable_epsilon(small, Spent.zero()) < TENTH
    assert affordable_epsilon(small, Spent.zero(), pure_ratio=Fraction(1)) == TENTH
    third = affordable_epsilon(small, Spent.zero(), pure_ratio=Fraction(3))
    assert 0 < TENTH / 3 - third <= Fraction(1, 10**30)
    assert affordable_epsilon(small, spend(CENT_RHO), pure_ratio=Fraction(1)) == 0
    assert affordable_epsilon(small, Spent.zero(), pure_ratio=ZERO) < TENTH


def test_nothing_is_affordable_without_the_delta() -> None:
    assert affordable_epsilon(ZCDP, Spent.zero(), selection_delta=MILLIONTH / 2) > 0
    assert affordable_epsilon(ZCDP, Spent.zero(), selection_delta=MILLIONTH) == 0


def test_what_remains_in_each_currency() -> None:
    spent = spend(SELECTION, times=2)
    assert remaining(PURE, spent) == Remaining(Fraction(8, 10), ZERO)
    assert remaining(BASIC, spent) == Remaining(Fraction(8, 10), MILLIONTH - 2 * BILLIONTH)
    assert remaining(ZCDP, Spent.zero()) == Remaining(Fraction(5), MILLIONTH / 2)
    assert remaining(ZCDP, spend(SELECTION, times=9999)) == Remaining(ZERO, ZERO)


def test_what_remains_in_zcdp_shrinks_by_the_same_for_each_query() -> None:
    left = [float(remaining(ZCDP, spend(CENT_RHO, times=times)).epsilon) for times in range(4)]
    steps = [before - after for before, after in pairwise(left)]
    assert steps == pytest.approx([5 * 0.005 / float(ZCDP.capacity)] * 3)


def test_a_release_alone() -> None:
    pure = spend(LAPLACE_TENTH, SELECTION)
    assert standalone(pure, MILLIONTH) == (2 * TENTH, BILLIONTH)
    noisy = spend(CENT_RHO, THRESHOLD)
    assert standalone(noisy, MILLIONTH) == (rho_to_epsilon(Fraction(1, 200), MILLIONTH), MILLIONTH + BILLIONTH)
    many = spend(LAPLACE_TENTH, times=1000)
    assert standalone(many, MILLIONTH)[0] < 100


def test_group_privacy_of_pure_and_of_one() -> None:
    assert group_privacy(PURE, 3) == (Fraction(3), ZERO)
    assert group_privacy(BASIC, 1) == (Fraction(1), MILLIONTH)
    assert group_privacy(ZCDP, 1) == (Fraction(5), MILLIONTH)


def test_group_privacy_of_basic_sums_the_powers() -> None:
    epsilon, delta = group_privacy(BASIC, 3)
    assert epsilon == 3
    assert float(delta) == pytest.approx(1e-6 * (1 + 2.718281828459045 + 7.38905609893065), rel=1e-12)
    assert group_privacy(BASIC, 40)[1] == 1
    assert group_privacy(BASIC, 10**6) == (Fraction(10**6), Fraction(1))


def test_group_privacy_of_zcdp_without_selection_squares_the_size() -> None:
    assert group_privacy(WHOLE, 2) == (rho_to_epsilon(4 * WHOLE.capacity, MILLIONTH), MILLIONTH)
    assert group_privacy(WHOLE, 2)[0] > 10
    loose = Limit(Accountant.ZCDP, Fraction(5), MILLIONTH, ZERO, BILLIONTH)
    assert group_privacy(loose, 2) == (Fraction(10), MILLIONTH)


@pytest.mark.parametrize("size", [0, -1, 10**6 + 1])
def test_the_size_of_a_group_is_bounded(size: int) -> None:
    with pytest.raises(InvalidParameter):
        group_privacy(PURE, size)


@settings(deadline=None)
@given(
    st.sampled_from([PURE, BASIC, ADVANCED, ZCDP, RDP]),
    st.lists(st.fractions(Fraction(1, 20), 1, max_denominator=10**6), min_size=1, max_size=5),
    st.fractions(Fraction(1, 20), 1, max_denominator=10**6),
)
def test_a_query_spends_no_more_than_its_price(limit: Limit, weights: list[Fraction], epsilon: Fraction) -> None:
    price = Price(limit.accountant, epsilon, BILLIONTH)
    shares = split(price, weights, [Fraction(1)] + [ZERO] * (len(weights) - 1))
    wide = Sensitivity(6, 7, 30, 210)
    events = [laplace(wide, share).event for share in shares]
    if limit.accountant.selects:
        events[0] = truncated_geometric(3, shares[0]).events[0]
    spent = spend(*events)
    if limit.accountant.shares_rho:
        assert spent.rho <= price.rho + Fraction(1, 10**30)
    else:
        assert spent.basic_epsilon is not None
        assert spent.basic_epsilon <= price.epsilon + Fraction(1, 10**30)
    assert spent.delta <= price.delta


def test_the_conversions_are_offered_here() -> None:
    assert rho_to_epsilon(epsilon_to_rho(Fraction(1), MILLIONTH), MILLIONTH) <= 1


def test_limits_of_layout_1_are_read() -> None:
    fields = {"epsilon": "5", "delta_conversion": "1/2000000", "delta_selection": "1/2000000", "rho": "2/5"}
    assert Limit.from_json({**fields, "accountant": "zcdp"}).capacity == Fraction(2, 5)
    assert Limit.from_json({**fields, "accountant": "basic", "rho": "0"}).capacity == 5


HOW_MANY = [
    # (8, 1e-6), all of δ to conversion and half of it, at a standard deviation of √200 ≈ 14.14 for each count.
    (Accountant.BASIC, ZERO, LAPLACE_TENTH, 80),
    (Accountant.ADVANCED, ZERO, LAPLACE_TENTH, 181),
    (Accountant.ADVANCED, HALF, LAPLACE_TENTH, 174),
    (Accountant.ZCDP, ZERO, LAPLACE_TENTH, 210),
    (Accountant.ZCDP, HALF, LAPLACE_TENTH, 201),
    (Accountant.ZCDP, ZERO, Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(200)), 420),
    (Accountant.ZCDP, HALF, Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(200)), 403),
    (Accountant.RDP, ZERO, LAPLACE_TENTH, 215),
    (Accountant.RDP, ZERO, Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(200)), 420),
]


@pytest.mark.parametrize(("accountant", "share", "event", "fits"), HOW_MANY)
def test_how_many_queries_fit(accountant: Accountant, share: Fraction, event: Event, fits: int) -> None:
    limit = create_limit(accountant, Fraction(8), MILLIONTH, share)
    fresh = Spent.zero().keeping(limit.order) if limit.order else Spent.zero()
    spent = fresh
    for _ in range(fits):
        spent = spent.add([event])
    assert admits(limit, spent)
    assert not admits(limit, spent.add([event]))


@settings(deadline=None)
@given(st.fractions(Fraction(1, 10**6), 10**6), st.fractions(Fraction(1, 10**12), Fraction(999, 1000)))
def test_the_capacity_of_advanced_is_the_theorems_from_below(epsilon: Fraction, delta: Fraction) -> None:
    limit = create_limit(Accountant.ADVANCED, epsilon, delta, ZERO)
    with localcontext(prec=80):
        total, log = Decimal(limit.capacity.numerator) / limit.capacity.denominator, -_decimal(delta).ln()
        used = (2 * log * total).sqrt() + total / 2
        assert _decimal(epsilon) * (1 - Decimal("1e-8")) - Decimal("1e-14") < used <= _decimal(epsilon)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / value.denominator


def test_advanced_counts_squares_and_its_share_of_delta() -> None:
    assert spend(LAPLACE_TENTH, LAPLACE_TENTH, SELECTION).squares == 3 * TENTH**2
    assert admits(ADVANCED, spend(THRESHOLD, times=500))
    assert not admits(ADVANCED, spend(THRESHOLD, times=501))
    assert not admits(ADVANCED, spend(CENT_RHO))  # not calibrated to (ε, δ)
    in_pairs = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(100), ZERO, BILLIONTH)
    assert admits(ADVANCED, spend(in_pairs))
    assert not admits(ADVANCED, spend(in_pairs, times=501))


def test_the_order_of_rdp_is_that_of_its_creation() -> None:
    assert RDP.delta_selection == 0
    assert create_limit(Accountant.RDP, Fraction(9), MILLIONTH, ZERO, RDP.order).order == RDP.order
    assert create_limit(Accountant.RDP, Fraction(9), MILLIONTH, ZERO).order != RDP.order
    with pytest.raises(InvalidParameter, match="is too small for a budget of order"):
        create_limit(Accountant.RDP, TENTH, MILLIONTH, ZERO, RDP.order)


def test_rdp_admits_nothing_with_a_delta() -> None:
    assert admits(RDP, Spent.zero().keeping(RDP.order).add([LAPLACE_TENTH, CENT_RHO]))
    assert not admits(RDP, Spent.zero().keeping(RDP.order).add([SELECTION]))
    assert not admits(RDP, spend(THRESHOLD))


@pytest.mark.parametrize("limit", [ADVANCED, RDP])
def test_what_is_affordable_by_squares_fits(limit: Limit) -> None:
    spent = spend(LAPLACE_TENTH, times=3)
    epsilon = affordable_epsilon(limit, spent, pure_ratio=Fraction(1))
    assert epsilon > TENTH
    assert admits(limit, spent.add([Event(Mechanism.LAPLACE, ONE_CELL, 1 / epsilon)]))
    if limit is ADVANCED:  # a Rényi divergence of Laplace noise is less than the bound by ρ
        assert not admits(limit, spent.add([Event(Mechanism.LAPLACE, ONE_CELL, 1 / (epsilon + BILLIONTH))]))
    left = remaining(limit, spent)
    assert 0 < left.epsilon < 5
    assert left.delta == limit.delta_selection


def test_group_privacy_of_the_whole_guarantee() -> None:
    assert group_privacy(RDP, 1) == group_privacy(ADVANCED, 1) == (Fraction(5), MILLIONTH)
    assert group_privacy(ADVANCED, 2)[0] == 10
