"""SIGTERM while a query runs: it ends or is called off, nothing begins after it, and what was charged stays charged."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import psycopg
import pytest

from dpsql.backends import Cancellation, DuckDBBackend, ExactRows
from dpsql.cli import main
from tests.faults.forks import SECONDS, Fork, Forks
from tests.faults.victims import connect, port_of
from tests.faults.world import charges, new_ledger, question, write_policy

Fetch = Callable[..., ExactRows]
Answer = object
"""Rows, or the error in their place."""


def serve_and_wait(policy: str, ledger: str, grace: float, stubborn: bool = False) -> None:
    """Be `dpsql serve`; a read of private rows waits for a line, or until it is called off unless it is stubborn."""

    def waiting(fetch: Fetch) -> Fetch:
        @wraps(fetch)
        def waited(
            backend: DuckDBBackend, releases: object, public: object, cancellation: Cancellation, *more: object
        ) -> ExactRows:
            heard = SimpleQueue[str]()
            Thread(target=lambda: heard.put(input()), daemon=True).start()
            print("reading", flush=True)
            while heard.empty() and (stubborn or not cancellation.is_cancelled):
                time.sleep(0.01)
            return fetch(backend, releases, public, cancellation, *more)

        return waited

    DuckDBBackend.fetch = waiting(DuckDBBackend.fetch)  # type: ignore[method-assign]
    main(["serve", policy, "--port", "0", "--ledger", f"sqlite:///{ledger}", "--grace", str(grace)])


class World:
    """A gateway, and a client that asks one question after the other."""

    def __init__(self, forks: Forks, clinic_file: Path, folder: Path, grace: float) -> None:
        self.policy = write_policy(folder / "stop.toml", clinic_file, answers=10)
        self.ledger = new_ledger(folder / "ledger.sqlite")
        self.gateway: Fork = forks.start(
            "tests.test_faults_stop:serve_and_wait", self.policy, folder / "ledger.sqlite", grace
        )
        self.port = port_of(self.gateway)
        self.answers: list[Answer] = []

    def ask(self) -> None:
        with connect(self.port) as connection:
            for number in range(2):
                try:
                    self.answers.append(connection.execute(question(number)).fetchall())
                except psycopg.Error as error:
                    self.answers.append(error)

    @contextmanager
    def told_to_stop(self) -> Iterator[None]:
        """The gateway is told while it reads; at the end the client has both of its answers."""
        client = Thread(target=self.ask)
        client.start()
        self.gateway.line_with("reading")
        os.kill(self.gateway.pid, signal.SIGTERM)
        self.gateway.line_with("stopping")
        yield
        client.join(SECONDS)
        assert len(self.answers) == 2
        assert charges(self.ledger, self.policy) == [question(0)]
        self.ledger.close()


def test_a_query_that_runs_is_answered_and_none_after_it(forks: Forks, clinic_file: Path, tmp_path: Path) -> None:
    world = World(forks, clinic_file, tmp_path, grace=SECONDS)
    with world.told_to_stop():
        # Who has come before the socket is closed, and waits to be accepted, is cut off by the system.
        with pytest.raises(psycopg.OperationalError, match=r"refused|closed the connection|reset"):
            connect(world.port)
        world.gateway.tell()
    assert isinstance(world.answers[0], list)
    assert isinstance(world.answers[1], psycopg.OperationalError)
    assert world.gateway.end() == 0


def test_a_query_that_outlasts_the_grace_is_called_off(forks: Forks, clinic_file: Path, tmp_path: Path) -> None:
    world = World(forks, clinic_file, tmp_path, grace=0)
    with world.told_to_stop():
        pass
    assert isinstance(world.answers[0], psycopg.errors.QueryCanceled)
    assert world.gateway.end() == 0


def test_a_query_that_ignores_its_cancel_does_not_hold_up_the_end(clinic_file: Path, tmp_path: Path) -> None:
    """In a program of its own: a fork leaves without waiting for its threads, and a program does not."""
    policy = write_policy(tmp_path / "stop.toml", clinic_file, answers=10)
    new_ledger(tmp_path / "ledger.sqlite").close()
    serve = f"serve_and_wait({str(policy)!r}, {str(tmp_path / 'ledger.sqlite')!r}, 0, True)"
    code = f"from tests.test_faults_stop import serve_and_wait; {serve}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as gateway:
        assert gateway.stdout is not None
        assert gateway.stderr is not None
        told = next(line for line in gateway.stderr if "listening on" in line)
        with connect(int(told.rpartition(":")[2])) as connection, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(connection.execute, question(0))
            assert gateway.stdout.readline() == "reading\n"
            gateway.terminate()
            with pytest.raises(psycopg.OperationalError):
                asked.result(SECONDS)
        assert gateway.wait(SECONDS) == 1
        assert "a statement did not end in time" in gateway.stderr.read()


def test_a_second_signal_ends_the_gateway_whatever_runs(forks: Forks, clinic_file: Path, tmp_path: Path) -> None:
    world = World(forks, clinic_file, tmp_path, grace=SECONDS)
    with world.told_to_stop():
        assert world.gateway.stop(signal.SIGTERM) == -signal.SIGTERM
    assert isinstance(world.answers[0], psycopg.OperationalError)
