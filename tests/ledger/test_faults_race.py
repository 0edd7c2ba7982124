"""A budget for exactly ten grants exactly ten, however many threads and processes race for it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import BudgetExhausted
from dpsql.ledger import SqliteLedger
from dpsql.ledger.ledger import Ledger
from dpsql.policy import Policy
from tests.faults.forks import SECONDS, Forks
from tests.ledger.world import SQL, Clock, budget, charge_only, new_ledger, policy, request

PROCESSES = 8
THREADS = 256
LIMITS = {
    "the user's budget": policy(budget(1)),
    "the cap over all users": policy(budget(20), budget(1)),
}


def race(ledger: Ledger, rules: Policy, name: object, threads: int) -> int:
    """Let so many threads ask at once, half of them for either user; return how many were granted."""
    start = threading.Barrier(threads)

    def ask(number: int) -> bool:
        start.wait(SECONDS)
        try:
            charge_only(ledger, _user(rules, number), rules, [request(f"{name} {number}")], sql=SQL)
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(ask, range(threads)))


def _user(rules: Policy, number: int) -> str:
    shared = rules.dataset.budget.epsilon < rules.roles[0].budget.epsilon
    return "ben" if shared and number % 2 else "ana"


def race_in_a_process(path: str, limit: str, name: int) -> int:
    ledger = SqliteLedger(Path(path), clock=Clock())
    print("ready", flush=True)
    input()
    return race(ledger, LIMITS[limit], name, THREADS // PROCESSES)


def holds(ledger: Ledger, rules: Policy) -> bool:
    """True if exactly ten were charged, and every total says so."""
    spent = [ledger.budget(user, rules).spent.pure_epsilon for user in ("ana", "ben")]
    return (
        ledger.verify().ok
        and len(ledger.history()) == 10
        and sum(filter(None, spent)) == ledger.cap(rules).spent.pure_epsilon == Fraction(1)
    )


@pytest.mark.parametrize("limit", LIMITS)
def test_threads_cannot_overspend(ledger: Ledger, limit: str) -> None:
    assert race(ledger, LIMITS[limit], "threads", THREADS) == 10
    assert holds(ledger, LIMITS[limit])


@pytest.mark.parametrize("limit", LIMITS)
def test_processes_full_of_threads_cannot_overspend(forks: Forks, tmp_path: Path, limit: str) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path).close()
    racers = [
        forks.start("tests.ledger.test_faults_race:race_in_a_process", path, limit, name) for name in range(PROCESSES)
    ]
    assert [racer.line() for racer in racers] == ["ready"] * PROCESSES
    for racer in racers:
        racer.tell()
    assert sum(int(racer.line()) for racer in racers) == 10
    assert [racer.end() for racer in racers] == [0] * PROCESSES
    ledger = SqliteLedger(path)
    assert holds(ledger, LIMITS[limit])
    ledger.close()
