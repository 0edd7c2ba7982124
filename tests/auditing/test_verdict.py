"""What is no noisy cell must be equal; what cells are cut into, and what is looked at."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from dpsql.auditing.claims import Claim
from dpsql.auditing.verdict import Seen, Trials, digits, judge
from dpsql.gateway.release import ReleasedCells
from dpsql.privacy.accounting import Spent, create_limit
from dpsql.privacy.cost import Accountant, Event, Mechanism, Sensitivity

ONE = Sensitivity(1, 1, 1, 1)
PRICE = Spent.zero().add([Event(Mechanism.LAPLACE, ONE, Fraction(1))])
LIMIT = create_limit(Accountant.BASIC, Fraction(9), Fraction(1, 10), Fraction(0))
SEEN = Seen(("column", "notice"), ((0, 5), (1, 7)), PRICE, (), LIMIT)
EACH = Trials(((0,), (1,)))


def faults(one: Seen, other: Seen, trials: Trials = EACH) -> tuple[str, ...]:
    return judge("x", "laplace", trials, ([one] * 4, [other] * 4), 1e-6).faults


def test_equal_sides_have_no_fault() -> None:
    assert faults(SEEN, SEEN) == ()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replace(SEEN, frame=("column", "another notice")), "notices, columns or errors differ between the neighbours"),
        (replace(SEEN, price=Spent.zero()), "the price differs between the neighbours"),
        (replace(SEEN, rows=((0, 5), (2, 7))), "public keys differ between the neighbours"),
        (replace(SEEN, refusal="not now"), "the query is refused: not now"),
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
    found = judge("x", "laplace", EACH, (sides, sides), 1e-6)
    assert found.faults == ("the price of the same query changes",)


def test_a_class_that_is_never_charged_is_told() -> None:
    free = replace(SEEN, limit=None, price=Spent.zero())
    assert faults(free, free) == ("no charge",)


def test_a_claim_of_nothing_is_refuted_by_any_difference() -> None:
    one, other = ([replace(SEEN, rows=((value,),))] * 100 for value in (1, 2))
    found = judge("x", "laplace", Trials(), (one, other), 1e-6, Claim(0.0, 0.0))
    assert not found.holds
    assert found.bound.trials == 75


def cells(*columns: list[int], keys: tuple[list[str], ...] = ()) -> ReleasedCells:
    return ReleasedCells(
        tuple(np.array(key, dtype=object) for key in keys), tuple(np.array(column) for column in columns)
    )


def test_released_cells_are_cut_by_the_keys_of_units() -> None:
    trials = Trials(((0, 1), (2, 3)))
    first = cells([20, 10, 5], [2, 1, 0], keys=(["0", "1", "3"],))
    found = trials.released([replace(SEEN, released=(first, cells([8], keys=(["2"],))))])
    assert found.shape == (1, 2, 2, 3)
    assert np.array_equal(found[0, 0], [[20, 2, np.nan], [10, 1, np.nan]], equal_nan=True)
    assert np.array_equal(found[0, 1], [[np.nan, np.nan, 8], [5, 0, np.nan]], equal_nan=True)


def test_private_groups_are_there_or_not() -> None:
    trials = Trials((("a",), ("b",)), public=False)
    found = trials.released([replace(SEEN, released=(cells(keys=(["b"],)),))])
    assert np.array_equal(found[0, :, 0], np.array([[np.nan], [1.0]]), equal_nan=True)


def test_a_release_may_have_no_group() -> None:
    trials = Trials((("a",), ("b",)), public=False)
    found = trials.released([replace(SEEN, released=(cells(keys=([],)), cells([], keys=([],))))])
    assert found.shape == (1, 2, 1, 3)
    assert np.isnan(found).all()


def test_rows_are_cut_too_and_texts_are_told_apart() -> None:
    found = Trials(((0,), (1,))).rows([replace(SEEN, rows=((1, "b", None), (0, "a", 0.5)))])
    assert found.shape == (1, 2, 1, 4)
    assert np.array_equal(found[0, 0, 0, 1:], np.array([0.5, 0, 1]))
    assert found[0, 0, 0, 0] != found[0, 1, 0, 0]
    assert np.isnan(found[0, 1, 0, 1])


def test_a_side_that_shows_no_group_is_compared_too() -> None:
    trials = Trials(((0,), (1,)), public=False)
    some, none = [replace(SEEN, rows=rows) for rows in (((0, 5), (1, 7)), ())]
    assert trials.rows([none, some]).shape == (2, 2, 1, 2)
    found = judge("x", "laplace", trials, ([some] * 200, [none] * 200), 1e-6)
    assert found.bound.least > 1


def test_whole_results_are_trials() -> None:
    seen = [replace(SEEN, rows=((value,),), released=(cells([value]),)) for value in (1, 2)]
    assert Trials().rows(seen)[:, 0, 0, 0].tolist() == [1, 2]
    assert Trials().released(seen)[:, 0, 0, 0].tolist() == [1, 2]
    assert Trials().rows([replace(SEEN, rows=())]).shape == (1, 1, 1, 0)


def test_a_transcript_is_seen_side_by_side() -> None:
    both = SEEN.beside(replace(SEEN, rows=((0, 6), (1, 8))))
    assert both.rows == ((0, 5, 6), (1, 7, 8))
    assert both.price == PRICE.merge(PRICE)


def test_digits_of_floating_point_noise_are_seen() -> None:
    of = {3: 0, 0.75: 2, Decimal("0.5"): 1, 2.0**-70: 70, None: 0, float("nan"): 0, Decimal("Infinity"): 0}
    assert [digits(cell) for cell in of] == [*of.values()]


def test_what_is_no_number_is_a_text() -> None:
    found = Trials().rows([replace(SEEN, rows=((Decimal("Infinity"), Decimal("1.5")),))])
    assert found[0, 0, 0].tolist()[1:] == [1.5, 0, 1]
