"""Two gateways on one ledger spend one budget; one that dies does not hold up the other, one that stands robs none."""

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

import dpsql.ledger.sqlite
from dpsql.ledger import Ledger, open_ledger
from dpsql.ledger.postgres_connection import WRITE
from tests.faults.forks import Fork, Forks
from tests.faults.reads import Notes
from tests.faults.victims import act_at_commit, connect, note_reads, port_of, serve
from tests.faults.world import charges, question, with_passwords, write_policy
from tests.test_faults_disk import REFUSED

ANSWERS = 20
CLIENTS = 4
"""Of each gateway."""


@pytest.fixture
def policy(clinic_file: Path, tmp_path: Path) -> Path:
    return write_policy(tmp_path / "two.toml", clinic_file, answers=ANSWERS)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the ledger is."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_places")[0])
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    opened = with_passwords(open_ledger(url))
    yield opened
    opened.close()


def start(forks: Forks, policy: Path, url: str) -> Fork:
    return forks.start("tests.faults.victims:serve", policy, url)


def test_two_gateways_spend_one_budget(forks: Forks, policy: Path, url: str, ledger: Ledger) -> None:
    gateways = [start(forks, policy, url) for _ in range(2)]
    ports = [port_of(gateway) for gateway in gateways]
    numbers = itertools.count()
    together = threading.Barrier(2 * CLIENTS)

    def ask(port: int) -> dict[str, int]:
        answers = {}
        with connect(port) as connection:
            together.wait()
            with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
                for number in numbers:
                    ((count,),) = connection.execute(question(number)).fetchall()
                    answers[question(number)] = count
        return answers

    with ThreadPoolExecutor(2 * CLIENTS) as pool:
        told = [answer for answers in pool.map(ask, ports * CLIENTS) for answer in answers.items()]
    assert len(told) == ANSWERS
    assert sorted(charges(ledger, policy)) == sorted(dict(told))
    # What either made is given again by both, for nothing, and nothing else is.
    for port in ports:
        with connect(port) as connection:
            assert {sql: connection.execute(sql).fetchall() for sql, _ in told} == {sql: [(n,)] for sql, n in told}
            assert connection.execute("SELECT epsilon_remaining FROM dpsql.budget").fetchall() == [(0,)]
            with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
                connection.execute(question(next(numbers)))
    assert len(charges(ledger, policy)) == ANSWERS
    assert [gateway.stop(signal.SIGTERM) for gateway in gateways] == [0, 0]


def test_one_that_is_killed_within_a_charge_does_not_hold_up_the_other(
    forks: Forks, policy: Path, url: str, ledger: Ledger, tmp_path: Path
) -> None:
    """It dies while it alone may write."""
    notes = Notes(tmp_path / "notes")
    point = "the charge is to be committed"
    dying = forks.start("tests.faults.victims:serve_and_die", policy, url, notes.path, point)
    other = start(forks, policy, url)
    with connect(other) as connection:
        connection.execute(question(0))
        with connect(dying) as lost, pytest.raises(psycopg.OperationalError):
            lost.execute(question(1))
        connection.execute(question(1))
        connection.execute(question(2))
    assert dying.end() == -signal.SIGKILL
    assert notes.lines() == []
    assert charges(ledger, policy) == [question(number) for number in range(3)]


def serve_and_stand_still(policy: str, ledger: str) -> None:
    """Be `dpsql serve`, and stop, until told to go on, when the first charge is to be committed."""
    stops = iter([True])

    def stop() -> None:
        if next(stops, False):
            print("standing", flush=True)
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # else this thread may run on for a moment

    act_at_commit("charge", stop)
    serve(policy, ledger)


def serve_impatiently(policy: str, ledger: str, notes: str) -> None:
    """Be a `dpsql serve` that waits for others a moment only."""
    dpsql.ledger.sqlite.BUSY_SECONDS = 0.05  # type: ignore[assignment]
    soon = WRITE.replace("lock_timeout = '30s'", "lock_timeout = '50ms'")
    pytest.MonkeyPatch().setattr("dpsql.ledger.postgres.WRITE", soon)
    note_reads(notes)
    serve(policy, ledger)


def test_one_that_stands_still_within_a_charge_makes_the_other_refuse(
    forks: Forks, policy: Path, url: str, ledger: Ledger, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    standing = forks.start("tests.test_faults_gateways:serve_and_stand_still", policy, url)
    port = port_of(standing)  # it has opened the ledger: the impatient one need not wait for that
    other = forks.start("tests.test_faults_gateways:serve_impatiently", policy, url, notes.path)
    with connect(port) as slow, connect(other) as connection, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: slow.execute(question(0)).fetchall())
        assert standing.line_with("standing")
        try:
            with pytest.raises(psycopg.OperationalError) as refusal:
                connection.execute(question(1))
            assert refusal.value.sqlstate == REFUSED
            assert "the operator's log has the cause" in str(refusal.value.diag.message_hint)
            assert notes.lines() == []
        finally:
            os.kill(standing.pid, signal.SIGCONT)
        assert len(answer.result()) == 1
        connection.execute(question(1))
    assert len(notes.lines()) == 1
    assert charges(ledger, policy) == [question(0), question(1)]
