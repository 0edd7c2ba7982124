"""Group keys: a group that only one person is in names that person."""

from tests.attacks.arena import OTHERS, Arena, Comparison, Verdict, beats
from tests.attacks.naive import Ask

DELTA = 0.01
QUESTION = "SELECT CAST(pay AS text) AS name, COUNT(*) FROM people GROUP BY 1"
"""No two people earn the same."""


def verdict(ask: Ask, times: int, note: str = "") -> Verdict:
    """Each of the groups may be shown with a probability of δ."""
    shown = sum(len(ask(QUESTION)) for _ in range(times))
    people = (OTHERS + 1) * times
    return Verdict(f"{shown / people:.1%} of people named{note}", beats(shown, people, DELTA))


def compare(arena: Arena) -> Comparison:
    times = 8 if arena.thorough else 1
    dpsql = arena.dpsql(True, epsilon=900, delta=0.09, query_delta=DELTA)
    note = f" (bound {DELTA:.1%})"
    return Comparison("group keys", verdict(arena.naive(True, scale=2).ask, times), verdict(dpsql, times, note))


def test_group_keys(arena: Arena) -> None:
    compare(arena).check()
