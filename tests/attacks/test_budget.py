"""Budget: sixteen different questions at the same moment, where one is paid for."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dpsql.gateway.session import Session
from tests.attacks.arena import EPSILON, Arena, Comparison, Verdict, asking
from tests.attacks.naive import Ask, Refused

AT_ONCE = 16
TRIES = 5
Connect = Callable[[], Ask]
"""Another connection of the same user."""


def raced(connect: Connect) -> int:
    """How many questions are answered."""
    start = threading.Barrier(AT_ONCE)

    def is_answered(number: int) -> bool:
        ask = connect()
        start.wait()
        try:
            ask(f"SELECT COUNT(*) FROM people AS a JOIN visits AS b ON a.person = b.person WHERE b.cost > {number}")
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(is_answered, range(AT_ONCE)))


def compare(arena: Arena) -> Comparison:
    def naive() -> Connect:
        gateway = arena.naive(True, scale=2, queries=1)
        return lambda: gateway.ask

    def dpsql() -> Connect:
        user = arena.session(True, query=EPSILON).user
        return lambda: asking(Session(arena.engine(True, query=EPSILON), user))

    def verdict(user: Callable[[], Connect]) -> Verdict:
        most = max(raced(user()) for _ in range(TRIES))
        return Verdict(f"{most} answers for the price of 1", most > 1)

    return Comparison("budget race", verdict(naive), verdict(dpsql))


def test_budget_race(arena: Arena) -> None:
    compare(arena).check()
