"""Fan-out: a person with many rows, multiplied by a join with themselves, drowns the noise."""

from collections.abc import Callable

import pytest

from tests.attacks.arena import OTHERS, Arena, Comparison, number
from tests.attacks.naive import Ask

ROWS = 3
"""Visits of each of the others."""


def guess_by_rows(ask: Ask) -> bool:
    return number(ask, "SELECT COUNT(*) FROM visits") > ROWS * OTHERS + 50


def guess_by_self_join(ask: Ask) -> bool:
    joined = number(ask, "SELECT COUNT(*) FROM visits AS a JOIN visits AS b ON a.person = b.person")
    return joined > ROWS * ROWS * OTHERS + 5000


def guess_by_rows_of_nobody(ask: Ask) -> bool:
    """Rows without a person came with the target, and no bound on a person's rows is a bound on them."""
    return number(ask, "SELECT COUNT(*) FROM visits WHERE cost = 77") > 50


def compare(arena: Arena) -> Comparison:
    return arena.game("join fan-out, self-join", guess_by_self_join, naive={"scale": 2})


def test_self_join(arena: Arena) -> None:
    compare(arena).check()


@pytest.mark.parametrize("guess", [guess_by_rows, guess_by_rows_of_nobody])
def test_fan_out(arena: Arena, guess: Callable[[Ask], bool]) -> None:
    arena.game("fan-out", guess, naive={"scale": 2}).check()
