"""Fan-out: a person with many rows, multiplied by a join with themselves, drowns the noise."""

from tests.attacks.arena import OTHERS, Arena, Comparison, number
from tests.attacks.naive import Ask

ROWS = 3
"""Visits of each of the others."""


def guess(ask: Ask) -> bool:
    joined = number(ask, "SELECT COUNT(*) FROM visits AS a JOIN visits AS b ON a.person = b.person")
    return joined > ROWS * ROWS * OTHERS + 5000


def compare(arena: Arena) -> Comparison:
    return arena.game("join fan-out, self-join", guess, naive={"scale": 2})


def test_fan_out(arena: Arena) -> None:
    compare(arena).check()
