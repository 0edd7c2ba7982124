"""Killing: let the gateway die once it has read private rows, and ask its successor the next question.

Whoever can provoke a crash, or waits for one, must not find each new gateway with the budget of the first.
"""

import sys
from functools import partial
from pathlib import Path

import duckdb
import psycopg

from tests.attacks.arena import Arena, Comparison, Verdict
from tests.attacks.naive import NaiveGateway, Refused
from tests.faults.forks import Fork
from tests.faults.reads import Notes
from tests.faults.victims import POINTS, connect, die
from tests.faults.world import charges, new_ledger, question, write_policy

LIVES = 2
DEATHS = tuple(POINTS)[tuple(POINTS).index("charged") :]
"""Where a gateway may die after the charge."""
QUICK = ("read",)
PATIENTS = (
    "CREATE TABLE patients AS SELECT i AS patient_id, i % 90 AS age, 'F' AS sex, 70.0 AS weight FROM range(99) r (i)"
)


def naive_and_die(data: str, notes: str) -> None:
    """Be a naive gateway that counts in memory, answer a question, and die."""
    gateway = NaiveGateway(Path(data), queries=1)
    sql = sys.stdin.readline().strip()
    try:
        answer = gateway.ask(sql)
    except Refused:
        return
    Notes(Path(notes)).add(sql)
    print(answer, flush=True)
    die()


def ask_naive(gateway: Fork, sql: str) -> None:
    gateway.tell(sql)
    gateway.line()


def ask_dpsql(gateway: Fork, sql: str) -> None:
    try:
        with connect(gateway) as connection:
            connection.execute(sql.encode())
    except psycopg.OperationalError:  # it is dead, or the budget spent
        return


def naive(arena: Arena, data: Path) -> int:
    """How often private rows are read for one who may ask one question."""
    notes = Notes(arena.folder / "naive.reads")
    for number in range(LIVES):
        gateway = arena.forks.start("tests.attacks.test_killing:naive_and_die", data, notes.path)
        ask_naive(gateway, question(number))
        gateway.stop()
    return len(notes.lines())


def dpsql(arena: Arena, data: Path, point: str) -> int:
    """The same, where each gateway dies at a point of its first answer."""
    folder = arena.folder / point
    folder.mkdir()
    notes, policy = Notes(folder / "reads"), write_policy(folder / "kill.toml", data, answers=1)
    ledger = new_ledger(folder / "ledger.sqlite")
    live = partial(arena.forks.start, "tests.faults.victims:serve_and_die", policy, folder / "ledger.sqlite")
    for number in range(LIVES):
        gateway = live(notes.path, point)
        ask_dpsql(gateway, question(number))
        gateway.stop()
    assert charges(ledger, policy) == [question(0)]
    ledger.close()
    return len(notes.lines())


def compare(arena: Arena) -> Comparison:
    data = arena.folder / "patients.duckdb"
    with duckdb.connect(str(data)) as database:
        database.execute(PATIENTS)

    def verdict(reads: int) -> Verdict:
        return Verdict(f"rows read {reads} times for the price of 1", reads > 1)

    points = DEATHS if arena.thorough else QUICK
    return Comparison("kill -9", verdict(naive(arena, data)), verdict(max(dpsql(arena, data, at) for at in points)))


def test_killing(arena: Arena) -> None:
    compare(arena).check()
