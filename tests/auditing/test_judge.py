"""What is no noisy cell must be equal; what cells are cut into, and what is looked at."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from dpsql.auditing.judge import Seen, Trials, claimed, features, judge
from dpsql.privacy.cost import Accountant, Event, Mechanism
from dpsql.privacy.sensitivity import Sensitivity
from dpsql.privacy.totals import Spent

ONE = Sensitivity(1, 1, 1, 1)
PRICE = Spent.zero().add([Event(Mechanism.LAPLACE, ONE, Fraction(1))])
SEEN = Seen(("column", "notice"), ((0, 5), (1, 7)), PRICE)
EACH = Trials(((0,), (1,)))


def faults(one: Seen, other: Seen, trials: Trials = EACH) -> tuple[str, ...]:
    return judge("x", "laplace", Accountant.BASIC, trials, ([one] * 4, [other] * 4), 1e-6).faults


def test_equal_sides_have_no_fault() -> None:
    assert faults(SEEN, SEEN) == ()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replace(SEEN, frame=("column", "another notice")), "what comes beside the rows differs"),
        (replace(SEEN, price=Spent.zero()), "the price differs"),
        (replace(SEEN, rows=((0, 5), (2, 7))), "public keys differ"),
        (replace(SEEN, refusal="not now"), "it is not answered: not now"),
    ],
)
def test_what_differs_is_told(other: Seen, told: str) -> None:
    assert told in faults(SEEN, other)
    assert told in faults(other, SEEN)


def test_private_keys_may_differ() -> None:
    other = replace(SEEN, rows=((0, 5), (2, 7)))
    assert faults(SEEN, other, Trials(((0,), (1,)), public=False)) == ()


def test_a_price_that_changes_is_told() -> None:
    sides = [SEEN, SEEN, SEEN, replace(SEEN, price=Spent.zero())]
    found = judge("x", "laplace", Accountant.BASIC, EACH, (sides, sides), 1e-6)
    assert found.faults == ("the price of one question changes",)


def test_a_claim_of_nothing_is_refuted_by_any_difference() -> None:
    one, other = ([replace(SEEN, rows=((value,),))] * 100 for value in (1, 2))
    none = (Fraction(0), Fraction(0))
    found = judge("x", "laplace", Accountant.BASIC, Trials(), (one, other), 1e-6, none)
    assert not found.holds
    assert found.bound.trials == 50


def test_charges_are_read_as_the_budget_reads_them() -> None:
    assert claimed(PRICE, Accountant.BASIC) == (Fraction(1), Fraction(0))
    assert claimed(PRICE, Accountant.ZCDP) == (Fraction(1), Fraction(0))  # Laplace noise is pure in any budget
    gaussian = Spent.zero().add([Event(Mechanism.GAUSSIAN, ONE, Fraction(1))])
    epsilon, delta = claimed(gaussian, Accountant.ZCDP)
    assert 1.5 < epsilon < 2.1
    assert delta == Fraction(1, 20)


def test_trials_are_cut_by_the_keys_of_units() -> None:
    found = Trials(((0, 1), (2, 3))).outcomes([[(1, 10), (0, 20), (3, 5)]])
    assert found.trials == 2
    assert found.of("cell 0.0") == [20, None]
    assert found.of("cell 1.0") == [10, 5]
    assert found.of("sum 0") == [30, None]
    assert found.of("contrast 0") == [10, None]
    assert found.of("groups") == [2, 1]
    assert found.of("nowhere") == (None, None)


def test_whole_results_are_trials() -> None:
    found = Trials().outcomes([[(1,)], [(2,)]])
    assert found.of("cell 0.0") == [1, 2]


def test_digits_of_floating_point_noise_are_seen() -> None:
    cells = {3: 0, 0.75: 2, Decimal("0.5"): 1, 2.0**-70: 70, None: 0}
    assert [features([(cell,)])["digits 0"] for cell in cells] == [*cells.values()]


def test_what_is_no_number_is_a_text() -> None:
    found = features([(float("nan"), Decimal("Infinity"))])
    assert (found["cell 0.0"], found["cell 0.1"], found["digits 0"]) == ("nan", "Infinity", 0)
