"""Reports on histories: figures by hand, never below the exact laws, and a dash where a method says nothing."""

import math
import sys
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.privacy.accounting import Limit, Spent, admits, create_limit
from dpsql.privacy.conversion import rho_to_epsilon
from dpsql.privacy.cost import Accountant, Event, Mechanism, Sensitivity
from dpsql.privacy.reports import ANALYSES, Analysis, Dash, epsilon_of_group, gate, history
from tests.privacy import laws

ZERO, TENTH, HALF = Fraction(0), Fraction(1, 10), Fraction(1, 2)
MICRO, NANO = Fraction(1, 10**6), Fraction(1, 10**9)
ONE_CELL = Sensitivity(1, 1, 1, 1)
LAPLACE = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(10))  # ε = 0.1
FINE = Event(Mechanism.LAPLACE, Sensitivity(1, 10**4, 10**4, 10**8), Fraction(10**5))  # ε = 0.1 in 10,000 steps
GAUSSIAN = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(200))
IN_PAIRS = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(200), ZERO, NANO)
SELECTION = Event(Mechanism.SELECTION, ONE_CELL, TENTH, NANO)
THRESHOLD = Event(Mechanism.THRESHOLD, ONE_CELL, ZERO, NANO)

NAMES = [analysis.name for analysis in ANALYSES]
BY_NAME = dict(zip(NAMES, ANALYSES, strict=True))
FORMS = ("notes, ε√(8k ln(1/δ′))", "notes, 2ε√(2k ln(1/δ′))")
OF_EPSILON = NAMES[: NAMES.index("zCDP")]
each = pytest.mark.parametrize("analysis", ANALYSES, ids=NAMES)


def epsilon(name: str, events: list[Event], delta: Fraction = MICRO) -> float:
    found = BY_NAME[name].epsilon(history(events), delta)
    assert isinstance(found, Fraction), found
    return float(found)


FIGURES = {
    "basic": (1, 10, 100),
    "notes, ε√(8k ln(1/δ′))": (3.325, 10.51, 33.25),
    "notes, 2ε√(2k ln(1/δ′))": (3.325, 10.51, 33.25),
    "notes, ε√(2k ln(1/δ)) + kε²": (1.762, 6.257, 26.62),
    "Dwork-Rothblum-Vadhan": (1.767, 6.308, 27.14),
    "Whitehouse et al.": (1.712, 5.757, 21.62),
    "Kairouz-Oh-Viswanath": (0.9994, 4.775, 19.34),
    "zCDP": (1.472, 5.222, 20.55),
    "RDP, best order": (0.9994, 5.073, 20.46),
    "PLD": (0.9994, 4.775, 19.34),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_of_counts(name: str) -> None:
    for times, expected in zip((10, 100, 1000), FIGURES[name], strict=True):
        assert epsilon(name, [LAPLACE] * times) == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize(
    ("name", "expected"), [("RDP, best order", (0.9990, 4.985, 20.04)), ("PLD", (0.9990, 4.693, 18.95))]
)
def test_sums_of_many_steps_lose_less_where_the_law_matters(name: str, expected: tuple[float, ...]) -> None:
    for times, figure in zip((10, 100, 1000), expected, strict=True):
        assert epsilon(name, [FINE] * times) == pytest.approx(figure, rel=5e-4)


def test_the_formulas_by_hand() -> None:
    events = [Event(Mechanism.LAPLACE, ONE_CELL, Fraction(scale)) for scale in (2, 4, 4, 10)]
    log, squares = math.log(1e6), 0.25 + 2 / 16 + 0.01
    root = math.sqrt(2 * log * squares)
    by_hand = {
        "basic": 1.1,
        "notes, ε√(8k ln(1/δ′))": 2 * root,
        "notes, 2ε√(2k ln(1/δ′))": 2 * root,
        "notes, ε√(2k ln(1/δ)) + kε²": root + squares,
        "Dwork-Rothblum-Vadhan": root + sum(e * math.expm1(e) for e in (0.5, 0.25, 0.25, 0.1)),
        "Whitehouse et al.": root + squares / 2,
        "zCDP": float(rho_to_epsilon(Fraction(squares) / 2, MICRO)),
    }
    for name, expected in by_hand.items():
        assert epsilon(name, events) == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=4), st.sampled_from([MICRO, Fraction(1, 3)]))
def test_numbers_are_rounded_up_and_hardly(scales: list[int], delta: Fraction) -> None:
    ran = history(Event(Mechanism.LAPLACE, ONE_CELL, Fraction(scale, 1000)) for scale in scales if scale > 10)
    with localcontext(prec=120):
        losses = [Decimal(1000) / scale for scale in scales if scale > 10]
        log, squares = -(Decimal(delta.numerator) / delta.denominator).ln(), sum((e * e for e in losses), Decimal(0))
        root = (2 * log * squares).sqrt()
        exact = {
            "notes, ε√(8k ln(1/δ′))": 2 * root,
            "notes, 2ε√(2k ln(1/δ′))": 2 * root,
            "notes, ε√(2k ln(1/δ)) + kε²": root + squares,
            "Dwork-Rothblum-Vadhan": root + sum((e * (e.exp() - 1) for e in losses), Decimal(0)),
            "Whitehouse et al.": root + squares / 2,
        }
        for name, least in exact.items():
            found = BY_NAME[name].epsilon(ran, delta)
            if isinstance(found, Fraction):
                excess = Decimal(found.numerator) / found.denominator - least
                assert -Decimal("1e-100") <= excess <= least * Decimal("1e-15") + Decimal("1e-25")


SMALL = st.sampled_from(
    [(Event(Mechanism.LAPLACE, ONE_CELL, Fraction(scale)), laws.laplace_loss(1, scale)) for scale in (2, 5, 20)]
    + [(Event(Mechanism.LAPLACE, Sensitivity(1, 3, 3, 9), Fraction(10)), laws.laplace_loss(3, 10))]
    + [(Event(Mechanism.SELECTION, ONE_CELL, HALF, NANO), laws.selection_loss(0.5))]
    + [
        (
            Event(Mechanism.LAPLACE, Sensitivity(2, 2, 4, 8), Fraction(10)),
            laws.composed([laws.laplace_loss(2, 10)] * 2),
        )
    ]
)


@each
@settings(deadline=None, max_examples=25)
@given(st.lists(SMALL, min_size=1, max_size=6), st.sampled_from([MICRO, Fraction(1, 100)]))
def test_no_report_is_below_the_truth(analysis: Analysis, ran: list[tuple[Event, laws.Loss]], delta: Fraction) -> None:
    found = analysis.epsilon(history(event for event, _ in ran), delta)
    law = laws.composed(one for _, one in ran)
    spent = sum(event.delta for event, _ in ran)
    if isinstance(found, Fraction):
        assert laws.delta_of(law, float(found) + 1e-9) <= float(delta - spent) * (1 + 1e-6)
    else:
        assert "not valid here" in found.reason


@each
@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.sampled_from([MICRO, Fraction(1, 100)]), st.integers(2, 3))
def test_no_report_on_a_group_is_below_the_truth(analysis: Analysis, times: int, delta: Fraction, units: int) -> None:
    """The units move one cell together, or one each: both are exact laws of shifted noise."""
    found = epsilon_of_group(analysis, [LAPLACE] * times, delta, units)
    assert isinstance(found, Fraction)
    together, apart = laws.laplace_loss(units, 10), laws.composed([laws.laplace_loss(1, 10)] * units)
    for one in (together, apart):
        assert laws.delta_of(laws.composed([one] * times), float(found) + 1e-9) <= float(delta) * (1 + 1e-6)


@pytest.mark.parametrize("analysis", ANALYSES[-3:], ids=NAMES[-3:])
@pytest.mark.parametrize("variance", [4, 30])
def test_no_report_on_gaussian_noise_is_below_the_truth(analysis: Analysis, variance: int) -> None:
    event = Event(Mechanism.GAUSSIAN, Sensitivity(1, 2, 2, 4), Fraction(variance))
    found = analysis.epsilon(history([event] * 3), MICRO)
    assert isinstance(found, Fraction)
    law = laws.composed([laws.gaussian_loss(2, variance)] * 3)
    assert laws.delta_of(law, float(found)) <= 1e-6
    assert float(found) <= laws.epsilon_of(law, 1e-6) * 1.2


@each
def test_more_queries_lose_more_and_more_delta_less(analysis: Analysis) -> None:
    events = [LAPLACE, SELECTION, FINE]
    longer = [
        float(found)
        for n in (1, 3, 10, 40)
        if isinstance(found := analysis.epsilon(history(events * n), MICRO), Fraction)
    ]
    assert longer == sorted(longer)
    assert len(longer) == 4
    wider = [analysis.epsilon(history(events * 10), delta) for delta in (Fraction(1, 10**7), MICRO, Fraction(1, 1000))]
    for less, more in pairwise(wider):
        assert isinstance(less, Fraction)
        assert isinstance(more, Fraction)
        assert less >= more


@each
def test_order_does_not_matter(analysis: Analysis) -> None:
    events = [LAPLACE, SELECTION, LAPLACE, FINE]
    assert analysis.epsilon(history(events), MICRO) == analysis.epsilon(history(reversed(events)), MICRO)


@each
def test_nothing_asked_is_nothing_lost(analysis: Analysis) -> None:
    unmoved = Event(Mechanism.LAPLACE, Sensitivity(1, 0, 0, 0), Fraction(1))
    for events in ([], [THRESHOLD], [unmoved]):
        assert analysis.epsilon(history(events), MICRO) == 0


def reason(name: str, events: list[Event], delta: Fraction = MICRO) -> str:
    found = BY_NAME[name].epsilon(history(events), delta)
    assert isinstance(found, Dash), found
    return found.reason


@pytest.mark.parametrize("name", OF_EPSILON)
def test_gaussian_noise_without_an_epsilon_is_a_dash(name: str) -> None:
    assert reason(name, [LAPLACE, GAUSSIAN]) == "this Gaussian noise has no epsilon of its own"
    loss = rho_to_epsilon(Fraction(1, 400), NANO)
    if name == "basic":
        assert BY_NAME[name].epsilon(history([LAPLACE, IN_PAIRS, IN_PAIRS]), MICRO) == TENTH + 2 * loss
    else:
        assert epsilon(name, [LAPLACE, IN_PAIRS]) > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_delta_of_what_ran_is_taken_off_first(name: str) -> None:
    for spending in (SELECTION, THRESHOLD) if name not in OF_EPSILON else (SELECTION, THRESHOLD, IN_PAIRS):
        too_much = [spending] * 1001
        assert reason(name, too_much) == "the mechanisms leave too little of this delta"
        if name == "basic":
            assert epsilon(name, [spending] * 1000) >= 0
        else:
            assert reason(name, [spending] * 1000) == "the mechanisms leave too little of this delta"
    less = Fraction(1, 2) * MICRO
    with_keys = epsilon(name, [LAPLACE] * 40 + [THRESHOLD] * 500)
    assert with_keys == pytest.approx(epsilon(name, [LAPLACE] * 40, less), rel=1e-9)
    assert name == "basic" or with_keys > epsilon(name, [LAPLACE] * 40)


@pytest.mark.parametrize("name", NAMES)
def test_without_delta_sums_alone_say_something(name: str) -> None:
    if name == "basic":
        assert epsilon(name, [LAPLACE] * 3, ZERO) == 0.3
        assert reason(name, [LAPLACE, SELECTION], ZERO) == "the mechanisms leave too little of this delta"
    else:
        assert reason(name, [LAPLACE], ZERO) == "needs a delta of 1e-30 at least"


def test_the_forms_without_a_square_end_where_they_are_false() -> None:
    """At ε = 1/2 and 10,000 queries they say 526; what randomized response loses on average is 1,224."""
    half = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(2))
    last = int(8 * math.log(1e6) / 0.25)
    for name in FORMS:
        assert epsilon(name, [half] * last) >= epsilon("Whitehouse et al.", [half] * last)
        assert reason(name, [half] * (last + 1)).startswith("not valid here")
    formula = math.sqrt(8 * math.log(1e6) * 10_000 * 0.25)
    assert formula < 530
    assert 10_000 / 2 * math.tanh(1 / 4) > 1200
    assert reason("Kairouz-Oh-Viswanath", [half] * 10_000) == "the loss exceeds what floats can represent"
    assert epsilon("notes, ε√(2k ln(1/δ)) + kε²", [half] * 10_000) > 1300


def test_a_large_epsilon_has_no_advanced_composition() -> None:
    large = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(1, 64))
    assert epsilon("Dwork-Rothblum-Vadhan", [large]) > math.exp(63)
    assert reason("Dwork-Rothblum-Vadhan", [Event(Mechanism.LAPLACE, Sensitivity(1, 2, 2, 4), Fraction(1, 64))]) == (
        "not useful with an epsilon above 100"
    )
    assert reason("Kairouz-Oh-Viswanath", [large]) == "the loss exceeds what floats can represent"


def test_floats_carry_only_so_much() -> None:
    assert reason("PLD", [LAPLACE], Fraction(1, 10**11)) == "floats cannot represent this delta"
    large = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(1, 64))
    assert epsilon("PLD", [large] * 6) > 100
    assert reason("PLD", [large] * 7) == "the loss exceeds what floats can represent"


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld.privacy_loss_distribution", None)
    odd = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(123, 7))  # not composed before
    for name in ("PLD", "Kairouz-Oh-Viswanath"):
        assert reason(name, [odd]) == 'pip install "dpsql[reports]"'


def test_the_best_order_is_no_worse_than_others_and_infinity_is_one() -> None:
    for times in (1, 30, 3000):
        assert epsilon("RDP, best order", [GAUSSIAN] * times) == pytest.approx(
            epsilon("zCDP", [GAUSSIAN] * times), rel=1e-3
        )
    assert epsilon("RDP, best order", [LAPLACE], Fraction(1, 10**30)) == 0.1
    assert epsilon("RDP, best order", [LAPLACE], HALF) == 0
    assert epsilon("RDP, best order", [LAPLACE, GAUSSIAN]) < 2


def test_pure_noise_loses_so_many_times_as_much_to_a_group() -> None:
    for units in (1, 2, 7):
        found = epsilon_of_group(BY_NAME["basic"], [LAPLACE, FINE], MICRO, units)
        assert found == 2 * units * TENTH
        squared = epsilon_of_group(BY_NAME["zCDP"], [LAPLACE, GAUSSIAN], MICRO, units)
        assert squared == rho_to_epsilon(units**2 * Fraction(3, 400), MICRO)


def test_more_than_rho_can_be_is_a_dash() -> None:
    large = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(1, 64))
    assert epsilon_of_group(BY_NAME["zCDP"], [large], MICRO, 10**6) == Dash("rho is out of range")
    assert epsilon_of_group(BY_NAME["basic"], [large], MICRO, 10**6) == 64 * 10**6
    in_pairs = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(1, 1000), ZERO, NANO)
    assert epsilon_of_group(BY_NAME["basic"], [in_pairs], MICRO, 10**6) == Dash("rho is out of range")


def test_the_delta_of_a_selection_grows_with_a_group() -> None:
    found = epsilon_of_group(BY_NAME["basic"], [SELECTION] * 3, MICRO, 2)
    assert found == 6 * TENTH
    grown = 1e-9 * (math.exp(0.2) - 1) / (math.exp(0.1) - 1)
    assert float(history([SELECTION], 2).delta or 0) == pytest.approx(grown, rel=1e-12)
    assert isinstance(epsilon_of_group(BY_NAME["basic"], [SELECTION], NANO, 2), Dash)


@pytest.mark.parametrize("units", [2, 5])
def test_groups_that_a_selection_keeps_are_bounded_however_units_share_them(units: int) -> None:
    wide = Event(Mechanism.SELECTION, Sensitivity(3, 1, 3, 3), HALF, NANO)
    for name in ("RDP, best order", "PLD", "zCDP"):
        found = epsilon_of_group(BY_NAME[name], [wide], Fraction(1, 1000), units)
        assert isinstance(found, Fraction)
        together = laws.composed([laws.selection_loss(0.5 * units)] * 3)
        apart = laws.composed([laws.selection_loss(0.5)] * 3 * units)
        for law in (together, apart):
            assert laws.delta_of(law, float(found)) <= 1e-3
    ((response, times),) = history([wide], units).noise.items()
    assert (response.sensitivity.l0, response.sensitivity.l1, times) == (3 * units, 3, 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_threshold_is_cautious_about_groups(name: str) -> None:
    ran = [LAPLACE] * 10 + [THRESHOLD]
    assert history(ran, 2).delta is None
    assert BY_NAME[name].epsilon(history(ran, 2), MICRO) == Dash("the delta of a threshold is known for one unit only")
    one, two = (epsilon_of_group(BY_NAME[name], ran, MICRO, units) for units in (1, 2))
    assert isinstance(one, Fraction)
    assert isinstance(two, Fraction)
    assert two >= 2 * one
    parts = [MICRO / 2**halvings for halvings in range(10)]
    allowed = [part for part in parts if BY_NAME[name].epsilon(history(ran), part) == two / 2]
    assert float(min(allowed)) * (1 + math.exp(two / 2)) <= 1e-6
    far = epsilon_of_group(BY_NAME[name], ran, MICRO, 40)
    assert far == Dash("the delta of thresholds grows too fast with so many units")
    never = epsilon_of_group(BY_NAME[name], [THRESHOLD] * 1001, MICRO, 2)
    assert never == Dash("the mechanisms leave too little of this delta")


def spend(limit: Limit, event: Event, times: int) -> Spent:
    spent = Spent.zero().keeping(limit.order) if limit.order else Spent.zero()
    for _ in range(times):
        spent = spent.add([event])
    return spent


@pytest.mark.parametrize(
    ("accountant", "event"),
    [
        (Accountant.PURE, LAPLACE),
        (Accountant.BASIC, LAPLACE),
        (Accountant.ADVANCED, LAPLACE),
        (Accountant.ZCDP, LAPLACE),
        (Accountant.ZCDP, GAUSSIAN),
        (Accountant.RDP, LAPLACE),
    ],
)
def test_the_gate_is_where_its_own_count_passes_epsilon(accountant: Accountant, event: Event) -> None:
    delta = ZERO if accountant is Accountant.PURE else MICRO
    limit = create_limit(accountant, Fraction(2), delta, HALF)
    fits = next(n for n in range(1, 1000) if not admits(limit, spend(limit, event, n + 1)))
    assert gate(limit, spend(limit, event, 0)) == 0
    counted = [gate(limit, spend(limit, event, n)) for n in (fits, fits + 1)]
    assert isinstance(counted[0], Fraction)
    assert isinstance(counted[1], Fraction)
    assert counted[0] <= 2 + NANO
    assert counted[1] > 2


def test_what_a_gate_cannot_price_is_a_dash() -> None:
    pure = create_limit(Accountant.PURE, Fraction(2), ZERO, HALF)
    assert gate(pure, spend(pure, GAUSSIAN, 1)) == Dash("some of the history has no price under pure")
