"""Canceling: ask what takes for ever only where the target is, see whether it does, and call it off.

Time is outside of the guarantee: the attacker learns that bit. It has been paid for like an answer, so such bits are
as few as answers are. A time limit, a lost connection and a killed client call a question off in the same way.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from dpsql.session import Session
from tests.attacks.arena import EPSILON, Arena, Comparison, Verdict, asking
from tests.attacks.naive import Ask, Refused

QUESTION = (
    "SELECT COUNT(*) FROM visits AS a JOIN visits AS b ON a.person = b.person "
    "JOIN visits AS c ON a.person = c.person JOIN visits AS d ON a.person = d.person WHERE a.cost + d.cost > {number}"
)
TIMES = 4


IsReading = Callable[[], bool]


@dataclass(frozen=True)
class Client:
    """One who asks, can call off what was asked, and sees when it is under way: `watch` is called before."""

    ask: Ask
    watch: Callable[[], IsReading]
    cancel: Callable[[], None]


def called_off(client: Client) -> int:
    """How many questions were called off while private rows were read, until there was no budget for more."""
    for number in range(TIMES):
        done = threading.Event()
        caller = threading.Thread(target=_call_off, args=(client, client.watch(), done))
        caller.start()
        try:
            client.ask(QUESTION.format(number=number))
        except Refused as refused:
            if "budget" in str(refused):
                return number
        finally:
            done.set()
            caller.join()
    return TIMES


def _call_off(client: Client, is_reading: IsReading, done: threading.Event) -> None:
    while not done.wait(0.02):
        if is_reading():
            client.cancel()


def compare(arena: Arena) -> Comparison:
    gateway = arena.naive(True, queries=1)
    naive = Client(gateway.ask, lambda: lambda: gateway.running is not None, gateway.cancel)

    session = arena.session(True, query=EPSILON)
    onlooker = asking(Session(arena.engine(True, query=EPSILON), session.user))

    def watch() -> IsReading:
        """A charge is seen in another session before the first private row is read."""
        before = onlooker("SELECT epsilon_spent FROM dpsql.budget")
        return lambda: onlooker("SELECT epsilon_spent FROM dpsql.budget") != before

    def verdict(client: Client) -> Verdict:
        times = called_off(client)
        return Verdict(f"{times} of {TIMES} called off for the price of 1", times > 1)

    return Comparison("canceling, time-outs", verdict(naive), verdict(Client(asking(session), watch, session.cancel)))


def test_canceling(arena: Arena) -> None:
    compare(arena).check()
