"""A gateway of two worker processes: what clients share is one, whichever worker serves them."""

import os
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from dpsql.ledger import SqliteLedger
from dpsql.wire.messages.backend import ErrorResponse
from dpsql.wire.messages.frontend import CancelRequest
from tests.cli.conftest import Program, Run
from tests.cli.test_operation import change, probe, reload
from tests.cli.test_serve import Start, connect
from tests.waiting import HANG_SECONDS, wait_for
from tests.wire.rawclient import RawClient

COUNT = "SELECT COUNT(*) FROM patients"
LONG = "SELECT COUNT(*) FROM " + ", ".join(f"icd10 {name}" for name in "abcdefgh")
"""It would take hours."""


@pytest.fixture
def ledger(run: Run, policy: Path) -> str:
    """Return a ledger in which ana and ben have a password."""
    url = f"sqlite:///{policy.parent / 'ledger.sqlite'}"
    for user in ("ana", "ben"):
        run("user", "add", user, "--role", "analyst", "--ledger", url, stdin="secret\n")
    return url


@pytest.fixture
def gateway(policy: Path, ledger: str, start: Start) -> Iterator[Program]:
    program = serve(policy, ledger, start)
    assert program.port, "it listens by now"
    yield program
    assert program.stop() == 0
    assert not any("Traceback" in line for line in program.err)


def serve(policy: Path, ledger: str, start: Start, *options: object) -> Program:
    return start("serve", policy, "--port", 0, "--ledger", ledger, "--workers", 2, "--metrics-port", 0, *options)


def workers(program: Program) -> list[int]:
    """Return the process numbers of the workers."""
    assert program.port, "it listens by now"
    line = program.wait_for(program.err, "workers: ")
    return [int(part.rpartition(" ")[2].rstrip('"}')) for part in line.partition("workers: ")[2].split(", ")]


def clients_of(process: int) -> int:
    """Return how many established connections a process has, other than to its parent."""
    found = {os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")}
    with open("/proc/net/tcp") as table:
        inodes = {line.split()[9] for line in table.readlines()[1:] if line.split()[3] == "01"}
    return sum(f"socket:[{inode}]" in found for inode in inodes)


def metric(program: Program, name: str) -> float:
    lines = probe(program, "metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def test_clients_are_shared_out_and_counted_together(gateway: Program, ledger: str) -> None:
    assert probe(gateway, "readyz") == (200, "ready\n")
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(gateway)) for _ in range(6)]
        assert [clients_of(process) for process in workers(gateway)] == [3, 3]
        assert metric(gateway, "dpsql_sessions") == metric(gateway, "dpsql_clients") == 6
        # What one worker was charged for, the others give again.
        answers = {connection.execute(COUNT).fetchone() for connection in connections}
        assert len(answers) == 1
        by_age = [connection.execute(f"{COUNT} WHERE age > {40 + n}") for n, connection in enumerate(connections)]
        assert all(cursor.rowcount == 1 for cursor in by_age)
        # One that goes makes room where it was.
        connections[0].close()
        wait_for(lambda: metric(gateway, "dpsql_clients") == 5)
        stack.enter_context(connect(gateway))
        assert [clients_of(process) for process in workers(gateway)] == [3, 3]
    assert metric(gateway, "dpsql_logins_total") == 7
    assert metric(gateway, "dpsql_statements_total") == 12
    assert metric(gateway, "dpsql_accepting") == metric(gateway, "dpsql_ledger_up") == 1
    assert charged(ledger) == 7


def test_places_are_those_of_all_workers(policy: Path, ledger: str, start: Start) -> None:
    program = serve(policy, ledger, start, "--user-connections", 3, "--max-connections", 4)
    with connect(program), connect(program), connect(program) as third:
        with pytest.raises(psycopg.OperationalError, match='too many connections for role "ana"'):
            connect(program)
        with connect(program, user="ben"), pytest.raises(psycopg.OperationalError, match="too many clients already"):
            connect(program, user="ben")
        third.close()
        wait_for(lambda: metric(program, "dpsql_sessions") == 2)
        with connect(program) as again:
            assert again.execute("SELECT 1").fetchone() == (1,)
    assert program.stop() == 0


def test_a_rate_is_that_of_all_workers(policy: Path, ledger: str, start: Start) -> None:
    program = serve(policy, ledger, start, "--user-rate", 3)
    with connect(program) as one, connect(program) as two:
        for connection in (one, two, one):
            connection.execute(COUNT)
        for connection in (one, two):
            with pytest.raises(psycopg.errors.InsufficientResources, match="too many statements"):
                connection.execute(COUNT)
    assert program.stop() == 0


def test_failed_logins_at_all_workers_wait_together(gateway: Program) -> None:
    with ExitStack() as stack:
        guessers = [stack.enter_context(RawClient(gateway.port)) for _ in range(5)]
        for guesser in guessers:
            guesser.start()
            guesser.prove(password="wrong")
        # As many wait as may of one user: at neither worker there are so many.
        wait_for(lambda: isinstance(greeted(gateway), ErrorResponse))
        assert {guesser.fatal().sqlstate for guesser in guessers} == {"28P01"}
    with connect(gateway) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def greeted(program: Program) -> object:
    """Return the first message that a further client gets."""
    with RawClient(program.port) as client:
        client.start()
        return client.receive()


def test_a_cancel_request_finds_its_statement_at_another_worker(gateway: Program) -> None:
    with connect(gateway) as connection, ThreadPoolExecutor(1) as pool:
        one, other = workers(gateway)
        assert (clients_of(one), clients_of(other)) == (1, 0)  # the next one is for the other
        asked = pool.submit(connection.execute, LONG)
        wait_for(lambda: metric(gateway, "dpsql_calls_running") == 1)
        with RawClient(gateway.port) as wrong:
            wrong.send(CancelRequest(connection.info.backend_pid, b"0000"))
            wrong.until_end()
        assert not asked.done()
        connection.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            asked.result(HANG_SECONDS)


def test_what_runs_when_the_gateway_is_stopped_is_answered(policy: Path, ledger: str, start: Start) -> None:
    change(policy, 'reply_quantum = "0 ms"', 'reply_quantum = "4000 ms"')
    program = serve(policy, ledger, start, "--grace", HANG_SECONDS)
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        connections = [stack.enter_context(connect(program)) for _ in range(2)]
        asked = [
            pool.submit(connection.execute, f"{COUNT} WHERE age > {number}")
            for number, connection in enumerate(connections)
        ]
        wait_for(lambda: metric(program, "dpsql_calls_running") == 2)
        program.process.send_signal(signal.SIGTERM)
        assert [each.result(HANG_SECONDS).rowcount for each in asked] == [1, 1]
    assert program.end() == 0
    assert charged(ledger) == 2


def test_policies_are_loaded_by_all_workers_or_by_none(policy: Path, ledger: str, start: Start) -> None:
    program = serve(policy, ledger, start)
    with connect(program) as one, connect(program) as two:
        change(policy, "max_epsilon = 1.0", "max_epsilon = 0.25")
        assert reload(program).endswith("INFO the policies were reloaded")
        for connection in (one, two):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connection.execute("SET dpsql.epsilon = 0.3")
        change(policy, "max_epsilon = 0.25", "max_epsilon = 0.5")
        process = workers(program)[1]
        limits = resource.prlimit(process, resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        assert "the policies are unchanged: " in reload(program)
        resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
        for connection in (one, two):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connection.execute("SET dpsql.epsilon = 0.3")
        assert reload(program).endswith("INFO the policies were reloaded")
        for connection in (one, two):
            connection.execute("SET dpsql.epsilon = 0.3")
    lines = probe(program, "metrics")[1].splitlines()
    assert 'dpsql_policy_reloads_total{outcome="00000"} 2.0' in lines
    assert metric(program, "dpsql_policy_reloads_total") == 3
    assert program.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_worker_that_ends_ends_the_gateway_and_no_charge_is_lost(
    policy: Path, ledger: str, start: Start, number: signal.Signals
) -> None:
    program = serve(policy, ledger, start)
    queries = [f"{COUNT} WHERE age > {each}" for each in range(4)]
    with connect(program) as one, connect(program) as two:
        told = [
            connection.execute(sql).fetchone() for sql, connection in zip(queries, (one, two, one, two), strict=True)
        ]
        victim, other = workers(program)
        os.kill(victim, number)
        assert program.end() == 1
        with pytest.raises(psycopg.OperationalError):
            two.execute(COUNT)
    assert any(f"worker process {victim} ended" in line for line in program.err)
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)
    assert charged(ledger) == 4
    again = serve(policy, ledger, start)
    with connect(again) as connection:
        assert [connection.execute(sql).fetchone() for sql in queries] == told
    assert again.stop() == 0
    assert charged(ledger) == 4


def test_workers_end_with_their_parent(policy: Path, ledger: str, start: Start) -> None:
    program = serve(policy, ledger, start)
    processes = workers(program)
    with connect(program) as connection:
        connection.execute("SELECT 1")
        assert program.stop(signal.SIGKILL) == -signal.SIGKILL
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))


def test_what_hinders_a_worker_is_told_once(policy: Path, ledger: str, start: Start) -> None:
    (policy.parent / "clinic.duckdb").unlink()
    program = serve(policy, ledger, start)
    assert program.end() == 1
    assert sum("there is no file" in line for line in program.err) == 1


def test_a_port_in_use_is_told(gateway: Program, policy: Path, ledger: str, start: Start) -> None:
    second = start("serve", policy, "--port", gateway.port, "--ledger", ledger, "--workers", 2)
    assert second.end() == 1
    assert any("cannot listen on" in line for line in second.err)


def charged(ledger: str) -> int:
    """Return how many charges there are, in one chain that holds."""
    with closing(SqliteLedger(Path(ledger.removeprefix("sqlite:///")), make=False)) as opened:
        assert opened.verify().ok
        return sum(record["kind"] == "charge" for record in opened.export())
