"""Differencing: two large groups that differ in one person; a tracker where the small group may not be asked for."""

from tests.attacks.arena import TARGET, Arena, Comparison, number
from tests.attacks.naive import Ask


def guess(ask: Ask) -> bool:
    """The individual tracker of Denning, Denning & Schwartz (1979): pad the question, then take the padding away."""
    padded = number(ask, f"SELECT COUNT(*) FROM people WHERE age < 60 OR ({TARGET})")
    padding = number(ask, "SELECT COUNT(*) FROM people WHERE age < 60")
    return padded - padding > 0.5


def compare(arena: Arena) -> Comparison:
    return arena.game("differencing, trackers", guess, naive={"smallest": 10}, query=0.25)


def test_differencing(arena: Arena) -> None:
    compare(arena).check()
