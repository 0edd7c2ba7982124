"""NULL units: rows that are nobody's come with the target, and no bound on a person's rows is a bound on them."""

from tests.attacks.arena import Arena, Comparison, number
from tests.attacks.naive import Ask


def guess(ask: Ask) -> bool:
    return number(ask, "SELECT COUNT(*) FROM visits WHERE cost = 77 AND note = 'of nobody'") > 50


def compare(arena: Arena) -> Comparison:
    return arena.game("NULL units", guess, naive={"scale": 2})


def test_null_units(arena: Arena) -> None:
    compare(arena).check()
