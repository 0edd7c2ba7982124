"""Timing: one person has a million rows, and the time that an answer takes tells whether they are there.

`reply_quantum` in the policy pads replies to a multiple of it: the classifier is blind then, as long as every answer
takes less. Without it the same classifier sees, which is outside of the guarantee: docs/guarantee.md says so.
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import psycopg

from tests.attacks.arena import Arena, Comparison, Verdict
from tests.attacks.naive import Ask, Rows
from tests.wire.conftest import RunningServer

MILLION = """
    INSERT INTO visits SELECT 1000, 100, 0, 0, 0, 'Nowhere ' || i, DATE '2024-01-01', TIMESTAMP '2024-01-01'
    FROM range(1000000) r (i)
"""
QUESTION = "SELECT COUNT(*) FROM visits WHERE MD5(note) <> '{number}'"
TIMES = 20
TELLING = 0.9
"""An area that a classifier which sees nothing reaches less than once in a hundred thousand times."""
TERMS = {"epsilon": 900, "query": 0.1, "data": "million"}


def area(with_target: Sequence[float], without: Sequence[float]) -> float:
    """Under the curve of all threshold rules: how often the answer about the target's database takes longer."""
    pairs = [(slow > fast) + (slow == fast) / 2 for slow in with_target for fast in without]
    return sum(pairs) / len(pairs)


def seconds(with_target: Ask, without: Ask) -> tuple[list[float], list[float]]:
    """What answers take, in turns."""

    def taken(ask: Ask, number: int) -> float:
        begun = time.perf_counter()
        ask(QUESTION.format(number=number))
        return time.perf_counter() - begun

    pairs = [(taken(with_target, number), taken(without, number)) for number in range(-1, TIMES)][1:]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def over_the_wire(arena: Arena, quantum: int) -> tuple[list[float], list[float]]:
    """What answers of two gateways take, on sockets."""
    with ExitStack() as held:
        asks = []
        for present in (True, False):
            session = arena.session(present, **TERMS, quantum=quantum)
            server = RunningServer(open_session=lambda *_, session=session: session)
            held.callback(server.close)
            connection = held.enter_context(psycopg.connect(server.dsn, autocommit=True))
            asks.append(partial(_rows, connection))
        return seconds(*asks)


def _rows(connection: psycopg.Connection, sql: str) -> Rows:
    return connection.execute(sql.encode()).fetchall()


def compare(arena: Arena) -> Comparison:
    arena.add("million", MILLION)
    naive = area(*seconds(arena.naive(True, "million").ask, arena.naive(False, "million").ask))
    unpadded = over_the_wire(arena, 0)
    quantum = math.ceil(max(map(max, unpadded)) * 20) * 100
    padded = area(*over_the_wire(arena, quantum))
    return Comparison(
        "timing of answers",
        Verdict(f"AUC {naive:.2f}", naive > TELLING),
        Verdict(f"AUC {padded:.2f} (reply_quantum 0: {area(*unpadded):.2f})", abs(padded - 0.5) > TELLING - 0.5),
    )


def test_nothing_is_told_by_replies_that_come_at_one_time() -> None:
    """No clock here: what the attack measures is `make attack`'s, padding that of tests/test_response_padding.py."""
    assert area([0.4, 0.4], [0.4, 0.4]) == 0.5
    assert area([0.2, 0.3], [0.01, 0.1]) == 1
