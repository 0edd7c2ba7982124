"""Totals only grow, and those at an order of Rényi divergence are kept from when a budget asks for it."""

from fractions import Fraction

import pytest

from dpsql.privacy.accounting import Spent, renyi
from dpsql.privacy.cost import Event, Mechanism, Sensitivity

ONE_CELL = Sensitivity(1, 1, 1, 1)
LAPLACE = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(1))
GAUSSIAN = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(2))
SELECTION = Event(Mechanism.SELECTION, ONE_CELL, Fraction(1, 10), Fraction(1, 10**9))
TWO, FOUR = Fraction(2), Fraction(4)


def test_an_order_is_kept_from_a_bound_on_what_was_before() -> None:
    before = Spent.zero().add([LAPLACE])
    assert before.at(TWO) == 2 * before.rho
    kept = before.keeping(TWO)
    after = kept.add([LAPLACE]).at(TWO)
    alone = renyi(LAPLACE, TWO)
    assert after is not None
    assert alone is not None
    assert 0 <= after - 2 * before.rho - alone <= Fraction(1, 10**30)
    assert kept.keeping(TWO) == kept


def test_what_has_a_delta_has_no_divergence() -> None:
    assert Spent.zero().add([SELECTION]).at(TWO) is None
    assert Spent.zero().keeping(TWO).add([SELECTION]).at(TWO) is None
    assert Spent.zero().keeping(TWO).add([LAPLACE, SELECTION]).add([LAPLACE]).at(TWO) is None


def test_noise_without_an_epsilon_has_no_square_of_one() -> None:
    """Under `advanced` it would otherwise be free."""
    for spent in (
        Spent.zero().add([LAPLACE, GAUSSIAN]),
        Spent.zero().add([GAUSSIAN]).merge(Spent.zero().add([LAPLACE])),
    ):
        assert (spent.squares, spent.basic_epsilon, spent.pure_epsilon) == (None, None, None)
        assert spent.rho == Fraction(3, 4)


def test_merged_totals_know_the_orders_of_both() -> None:
    one, other = Spent.zero().keeping(TWO).add([LAPLACE]), Spent.zero().keeping(FOUR).add([GAUSSIAN])
    merged = one.merge(other)
    assert [order for order, _ in merged.renyi] == [TWO, FOUR]
    assert merged.at(TWO) == (one.at(TWO) or 0) + 2 * other.rho
    assert merged.at(FOUR) == 4 * one.rho + (other.at(FOUR) or 0)
    assert merged.merge(Spent.zero().add([SELECTION])).at(TWO) is None
    assert (merged.pure_epsilon, merged.rho) == (None, one.rho + other.rho)


def test_cleared_totals_keep_their_orders() -> None:
    cleared = Spent.zero().keeping(TWO).add([LAPLACE, SELECTION]).cleared()
    assert cleared == Spent.zero().keeping(TWO)
    assert cleared.at(TWO) == 0


@pytest.mark.parametrize("events", [[], [LAPLACE], [GAUSSIAN, SELECTION]])
def test_nothing_added_changes_nothing(events: list[Event]) -> None:
    spent = Spent.zero().keeping(TWO).add(events)
    assert spent.add([]) == spent
    assert spent.merge(Spent.zero().keeping(TWO)) == spent
