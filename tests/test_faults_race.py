"""A budget for ten answers gives ten, and ten reads of private rows, however many sessions and processes race."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpsql.errors import BudgetExhausted
from dpsql.gateway.session import Session
from dpsql.ledger import SqliteLedger
from dpsql.policy import load_policy
from tests.conftest import open_engine
from tests.faults.forks import SECONDS, Fork, Forks
from tests.faults.reads import Notes
from tests.faults.victims import note_reads
from tests.faults.world import charges, new_ledger, question, write_policy

PROCESSES = 8
THREADS = 32
"""In each process: 256 sessions in all."""

USERS = tuple("abcdefgh")
"""One for each process."""


def race(policy: str, ledger: str, notes: str, user: str, first: int | None) -> list[int]:
    """Let so many sessions ask at once; return the answers of those that were given one.

    Each session asks a query of its own, counted from `first`; without it, all ask the same.
    """
    rules = load_policy(Path(policy))
    note_reads(notes)
    engine = open_engine(rules, Path(ledger), ())
    start = threading.Barrier(THREADS)

    def ask(number: int) -> int | None:
        session = Session(engine, user)
        (statement,) = session.parse(question(0 if first is None else first + number))
        start.wait(SECONDS)
        try:
            ((count,),) = session.execute(statement).rows
        except BudgetExhausted:
            return None
        assert isinstance(count, int)
        return count

    print("ready", flush=True)
    input()
    with ThreadPoolExecutor(THREADS) as pool:
        return [count for count in pool.map(ask, range(THREADS)) if count is not None]


def run(racers: list[Fork]) -> list[int]:
    """Let the processes go at once; return all their answers."""
    assert [racer.line() for racer in racers] == ["ready"] * len(racers)
    for racer in racers:
        racer.tell()
    return [answer for racer in racers for answer in racer.result()]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    opened = new_ledger(tmp_path / "ledger.sqlite", ("ana", *USERS))
    yield opened
    opened.close()


@pytest.mark.parametrize("shared", [False, True], ids=["one user's budget", "the cap over all users"])
def test_ten_of_256_different_queries_are_answered(
    forks: Forks, ledger: SqliteLedger, clinic_file: Path, tmp_path: Path, shared: bool
) -> None:
    policy = write_policy(tmp_path / "ten.toml", clinic_file, answers=10, cap=10 if shared else 1000)
    notes = Notes(tmp_path / "notes")
    users = USERS if shared else ("ana",) * PROCESSES
    answers = run(
        [
            forks.start(
                "tests.test_faults_race:race", policy, tmp_path / "ledger.sqlite", notes.path, user, n * THREADS
            )
            for n, user in enumerate(users)
        ]
    )
    assert len(answers) == 10
    assert len(set(charges(ledger, policy, set(users)))) == 10
    assert len(set(notes.lines())) == len(notes.lines()) == 10


def test_the_same_query_is_answered_256_times_and_paid_once_a_process_at_most(
    forks: Forks, ledger: SqliteLedger, clinic_file: Path, tmp_path: Path
) -> None:
    """Processes do not wait for each other's releases, so each may make one; every answer is one that was paid."""
    policy = write_policy(tmp_path / "ten.toml", clinic_file, answers=10)
    notes = Notes(tmp_path / "notes")
    answers = run(
        [
            forks.start("tests.test_faults_race:race", policy, tmp_path / "ledger.sqlite", notes.path, "ana", None)
            for _ in range(PROCESSES)
        ]
    )
    assert len(answers) == PROCESSES * THREADS
    paid = len(charges(ledger, policy))
    assert 1 <= paid <= PROCESSES
    assert len(notes.lines()) == paid
    assert len(set(answers)) <= paid
