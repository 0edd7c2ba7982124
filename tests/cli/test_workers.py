"""A gateway of two worker processes: what clients share is one, whichever worker serves them."""

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest

from dpsql.ledger import open_ledger
from dpsql.wire.messages.backend import AuthenticationSASLContinue, ErrorResponse
from dpsql.wire.messages.frontend import CancelRequest, SASLInitialResponse
from dpsql.wire.scram import PLAIN
from tests.cli.conftest import Program, Run
from tests.cli.test_operation import change, presented, probe, reload
from tests.cli.test_serve import WIRE, Start, connect
from tests.postgres import Server, url_of
from tests.waiting import HANG_SECONDS, wait_for
from tests.wire.rawclient import RawClient

COUNT = "SELECT COUNT(*) FROM patients"
LONG = "SELECT COUNT(*) FROM " + ", ".join(f"icd10 {name}" for name in "abcdefgh")
"""It would take hours."""
WORKERS = 2
AT_ONCE = 5
"""Failed logins of one user from one address that may wait."""


@pytest.fixture(params=["sqlite"])
def ledger(request: pytest.FixtureRequest, run: Run, policy: Path) -> Iterator[str]:
    """Return a ledger in which ana and ben have a password."""
    with ExitStack() as stack:
        url = f"sqlite:///{policy.parent / 'ledger.sqlite'}"
        if request.param == "postgres":
            server: Server = request.getfixturevalue("postgres_server")
            url = url_of(server.url, dbname=stack.enter_context(server.database()))
        for user in ("ana", "ben"):
            run("user", "add", user, "--role", "analyst", "--ledger", url, stdin="secret\n")
        yield url


both_ledgers = pytest.mark.parametrize(
    "ledger", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture
def gateway(policy: Path, ledger: str, start: Start) -> Iterator[Program]:
    program = serve(policy, ledger, start)
    yield program
    assert program.stop() == 0
    assert not any("Traceback" in line for line in program.err)
    assert not workers(program)


def serve(policy: Path, ledger: str, start: Start, *options: object) -> Program:
    program = start(
        "serve", policy, "--port", 0, "--ledger", ledger, "--workers", WORKERS, "--metrics-port", 0, *options
    )
    assert program.port, "it listens by now"
    return program


def workers(program: Program) -> list[int]:
    """The worker processes, in the order in which they were started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            mine = f"PPid:\t{program.process.pid}\n" in (folder / "status").read_text()
            if mine and b"dpsql.cli.worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


def clients_of(process: int) -> int:
    """How many clients are connected to a process."""
    found = {os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")}
    with open("/proc/net/tcp") as table:
        inodes = {line.split()[9] for line in table.readlines()[1:] if line.split()[3] == "01"}
    return sum(f"socket:[{inode}]" in found for inode in inodes)


def metric(program: Program, name: str) -> float:
    lines = probe(program, "metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def records(ledger: str, kind: str) -> list[dict[str, object]]:
    """The records of a kind, of a chain that holds."""
    with closing(open_ledger(ledger, make=False)) as opened:
        assert opened.verify().ok
        return [dict(record) for record in opened.export() if record["kind"] == kind]


@both_ledgers
def test_clients_are_shared_out_and_counted_together(gateway: Program, ledger: str) -> None:
    assert probe(gateway, "readyz") == (200, "ready\n")
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(gateway)) for _ in range(6)]
        assert [clients_of(process) for process in workers(gateway)] == [3, 3]
        assert metric(gateway, "dpsql_sessions") == metric(gateway, "dpsql_clients") == 6
        # What one worker was charged for, the others give again.
        assert len({connection.execute(COUNT).fetchone() for connection in connections}) == 1
        asked = [connection.execute(f"{COUNT} WHERE age > {40 + n}") for n, connection in enumerate(connections)]
        assert all(cursor.rowcount == 1 for cursor in asked)
        # One that goes makes room at its worker.
        connections[0].close()
        wait_for(lambda: metric(gateway, "dpsql_clients") == 5)
        stack.enter_context(connect(gateway))
        assert [clients_of(process) for process in workers(gateway)] == [3, 3]
    assert metric(gateway, "dpsql_logins_total") == 7
    assert metric(gateway, "dpsql_statements_total") == 12
    assert metric(gateway, "dpsql_workers") == WORKERS
    assert metric(gateway, "dpsql_accepting") == metric(gateway, "dpsql_ledger_up") == 1
    assert metric(gateway, "dpsql_engine_up") == metric(gateway, "dpsql_build_info") == 1
    assert len(records(ledger, "charge")) == 7


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
        guessers = guess_until_refused(gateway, stack)
        unanswered = {guesser for guesser in guessers if not select.select([guesser.socket], [], [], 0)[0]}
        assert len(unanswered) <= AT_ONCE
        assert all(clients_of(process) for process in workers(gateway))
        # The last ones may be heard before the others are judged, and are refused when they guess.
        states = [guesser.fatal().sqlstate for guesser in guessers]
        assert set(states) <= {"28P01", "53300"} and states.count("28P01") >= AT_ONCE
    with connect(gateway) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_failed_logins_of_a_dead_worker_wait_no_more(policy: Path, ledger: str, start: Start) -> None:
    program = serve(policy, ledger, start)
    with ExitStack() as stack:
        guess_until_refused(program, stack)
        for process in workers(program):
            os.kill(process, signal.SIGKILL)
        wait_for(lambda: metric(program, "dpsql_worker_failures_total") == metric(program, "dpsql_workers") == WORKERS)
        with connect(program) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert program.stop() == 0


def guess_until_refused(program: Program, stack: ExitStack) -> list[RawClient]:
    """Guess at a password until a further client is not heard; return who has guessed."""
    guessers: list[RawClient] = []
    while True:
        client = stack.enter_context(RawClient(program.port))
        client.start()
        if isinstance(client.peek(), ErrorResponse):
            return guessers
        client.prove(password="wrong")
        guessers.append(client)
        assert len(guessers) < 10 * AT_ONCE


def test_unknown_users_look_alike_at_all_workers(policy: Path, start: Start) -> None:
    """A known user has one salt, whichever worker is asked: of a new ledger without records, too, others have one."""
    program = serve(policy, f"sqlite:///{policy.parent / 'new.sqlite'}", start, "--init-ledger")

    def salt() -> bytes:
        with RawClient(program.port) as client:
            client.start(user="nobody")
            client.receive()
            client.send(SASLInitialResponse(PLAIN, b"n,,n=,r=clientnonce"))
            challenge = client.receive()
            assert isinstance(challenge, AuthenticationSASLContinue)
            return challenge.data.split(b",")[1]

    assert len({salt() for _ in range(2 * WORKERS)}) == 1
    assert program.stop() == 0


def test_a_cancel_request_finds_its_statement_at_another_worker(gateway: Program) -> None:
    with connect(gateway) as connection, ThreadPoolExecutor(1) as pool:
        first, second = (clients_of(process) for process in workers(gateway))
        assert (first, second) in {(1, 0), (0, 1)}, "the next one is for the other"
        asked = pool.submit(connection.execute, LONG)
        wait_for(lambda: metric(gateway, "dpsql_calls_running") == 1)
        with RawClient(gateway.port) as wrong:
            wrong.send(CancelRequest(connection.info.backend_pid, b"0000"))
            wrong.until_end()
        assert not asked.done()
        connection.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            asked.result(HANG_SECONDS)


@pytest.mark.parametrize("told", ["the parent", "all processes"])
def test_what_runs_when_the_gateway_is_stopped_is_answered(policy: Path, ledger: str, start: Start, told: str) -> None:
    change(policy, 'reply_quantum = "0 ms"', 'reply_quantum = "4000 ms"')
    program = serve(policy, ledger, start, "--grace", HANG_SECONDS)
    queries = [f"{COUNT} WHERE age > {number}" for number in range(2)]
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        connections = [stack.enter_context(connect(program)) for _ in queries]
        asked = [pool.submit(each.execute, sql) for each, sql in zip(connections, queries, strict=True)]
        wait_for(lambda: metric(program, "dpsql_calls_running") == len(queries))
        for process in workers(program) if told == "all processes" else ():
            os.kill(process, signal.SIGTERM)
        program.process.send_signal(signal.SIGTERM)
        answers = [each.result(HANG_SECONDS).fetchone() for each in asked]
    assert program.end() == 0
    again = serve(policy, ledger, start)
    with connect(again) as connection:
        assert [connection.execute(sql).fetchone() for sql in queries] == answers
    assert again.stop() == 0
    assert len(records(ledger, "charge")) == len(queries)


def test_policies_are_loaded_by_all_workers_or_by_none(policy: Path, ledger: str, start: Start) -> None:
    certificate, key = policy.parent / "server.crt", policy.parent / "server.key"
    for name in ("server", "renewed"):
        for file in (certificate, key):
            file.write_bytes((WIRE / f"{name}{file.suffix}").read_bytes())
        if name == "server":
            program = serve(policy, ledger, start, "--tls-cert", certificate, "--tls-key", key)
            old = presented(program)
    with connect(program, sslmode="require") as one, connect(program, sslmode="require") as two:
        both = (one, two)
        change(policy, "max_epsilon = 1.0", "max_epsilon = 0.25")
        assert reload(program).endswith("INFO the policies were reloaded")
        assert old not in {presented(program) for _ in range(WORKERS)}
        assert [refuses(connection, "0.3") for connection in both] == [True, True]

        change(policy, "max_epsilon = 0.25", "max_epsilon = 0.5")
        process = workers(program)[1]
        limits = resource.prlimit(process, resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        assert "the policies are unchanged: " in reload(program)
        resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
        assert [refuses(connection, "0.3") for connection in both] == [True, True]

        # Another worker begins with the policies that are served, and not with those of the files.
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: metric(program, "dpsql_worker_failures_total") == 1 and metric(program, "dpsql_workers") == 2)
        with connect(program, sslmode="require") as third, connect(program, sslmode="require") as fourth:
            assert [refuses(connection, "0.3") for connection in (third, fourth)] == [True, True]
            assert reload(program).endswith("INFO the policies were reloaded")
            assert [refuses(connection, "0.3") for connection in (third, fourth)] == [False, False]
    metrics = probe(program, "metrics")[1]
    assert 'dpsql_policy_reloads_total{outcome="00000"} 2.0\n' in metrics
    assert metric(program, "dpsql_policy_reloads_total") == 3
    assert program.stop() == 0


def test_a_worker_that_does_not_load_new_policies_in_time_leaves_them_unchanged(policy: Path, ledger: str) -> None:
    program = altered("workers._LOAD_SECONDS = 1.0", policy, ledger)
    with connect(program) as one, connect(program) as two:
        stopped = workers(program)[1]
        os.kill(stopped, signal.SIGSTOP)
        change(policy, "max_epsilon = 1.0", "max_epsilon = 0.25")
        said = reload(program)
        os.kill(stopped, signal.SIGCONT)
        assert said.endswith("the policies are unchanged: a worker took more than 1 seconds to load them")
        assert [refuses(connection, "0.3") for connection in (one, two)] == [False, False]
        assert reload(program).endswith("INFO the policies were reloaded"), "what it loaded late was dropped before"
        assert [refuses(connection, "0.3") for connection in (one, two)] == [True, True]
    assert program.stop() == 0


def test_workers_that_do_not_serve_new_policies_in_time_are_replaced(policy: Path, ledger: str) -> None:
    code = "from tests.faults.victims import work_and_adopt_nothing as work; work({}, {})  # dpsql.cli.worker"
    program = altered(f"workers._ADOPT_SECONDS = 1.0; workers._CODE = {code!r}", policy, ledger)
    change(policy, "max_epsilon = 1.0", "max_epsilon = 0.25")
    assert reload(program).endswith("INFO the policies were reloaded")
    wait_for(lambda: metric(program, "dpsql_worker_failures_total") == 2 and metric(program, "dpsql_workers") == 2)
    with connect(program) as one, connect(program) as two:
        assert [refuses(connection, "0.3") for connection in (one, two)] == [True, True]
    assert program.stop() == 0


def refuses(connection: "psycopg.Connection[tuple[object, ...]]", epsilon: str) -> bool:
    try:
        connection.execute(f"SET dpsql.epsilon = {epsilon}")
    except psycopg.errors.InvalidParameterValue:
        return True
    return False


HANGING = """workers._CODE = "from tests.faults.victims import work_and_hang; work_and_hang({}, {})  # dpsql.cli.worker"
"""
"""Workers read private rows for ever."""


def altered(change: str, policy: Path, ledger: str) -> Program:
    """Start a gateway in whose parent `workers` is changed, and wait until it listens."""
    code = f"import sys; from dpsql.cli import main, workers; {change}\nmain(sys.argv[1:])"
    options = ["--port", "0", "--ledger", ledger, "--workers", str(WORKERS), "--metrics-port", "0"]
    options += ["--user-connections", "6"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(policy), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    program = Program(process)
    program.listen()
    assert program.port, "it listens by now"
    return program


@both_ledgers
def test_a_worker_that_is_killed_is_replaced_and_its_reads_are_one_failure(policy: Path, ledger: str) -> None:
    program = altered(HANGING, policy, ledger)
    with ThreadPoolExecutor() as pool, ExitStack() as stack, ExitStack() as first:
        first.callback(program.stop, signal.SIGKILL)  # else nothing ends what reads for ever
        connections = [stack.enter_context(connect(program))]
        victim, other = sorted(workers(program), key=clients_of, reverse=True)
        connections += [stack.enter_context(connect(program)) for _ in range(5)]
        assert clients_of(victim) == clients_of(other) == 3
        known = metric(program, "dpsql_logins_total")
        of_victim, of_other = connections[::2], connections[1]
        asked = [pool.submit(each.execute, f"{COUNT} WHERE age > {n}") for n, each in enumerate(of_victim)]
        wait_for(lambda: program.out.count("reading") == 3)
        os.kill(victim, signal.SIGKILL)
        for each in asked:
            with pytest.raises(psycopg.OperationalError):
                each.result(HANG_SECONDS)
        program.wait_for(program.err, f"process {victim}, ended with status -9: another one is started")
        wait_for(lambda: metric(program, "dpsql_workers") == WORKERS)
        assert victim not in workers(program) and other in workers(program)
        assert metric(program, "dpsql_logins_total") >= known, "what it counted counts on"
        assert metric(program, "dpsql_worker_failures_total") == 1
        # All places of the user are taken by the dead, until somebody asks.
        of_other.execute("SET dpsql.epsilon = 0.9")  # after a failure, cheap queries are refused
        last = pool.submit(of_other.execute, f"{COUNT} WHERE age > 70")
        wait_for(lambda: program.out.count("reading") == 4 or last.done())
        assert not last.done(), last.exception()
        # The places of its clients are free, too, and the new one takes its part.
        more = [stack.enter_context(connect(program)) for _ in range(3)]
        assert [each.execute("SELECT 1").fetchone() for each in more] == [(1,)] * 3
        assert all(clients_of(each) == 3 for each in workers(program))
    (lost,) = records(ledger, "read.lost")
    assert len(records(ledger, "charge")) == 4, lost


def test_workers_end_with_their_parent(policy: Path, ledger: str, start: Start) -> None:
    program = serve(policy, ledger, start)
    processes = workers(program)
    with connect(program) as connection:
        connection.execute("SELECT 1")
        assert program.stop(signal.SIGKILL) == -signal.SIGKILL
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))


def test_nothing_secret_is_in_arguments_or_environment_of_workers(gateway: Program) -> None:
    def environment(process: int) -> set[bytes]:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        return {variable for variable in variables if not variable.startswith(b"PYTHONPATH=")}

    for process in workers(gateway):
        assert environment(process) == environment(gateway.process.pid)
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        assert words[1:3] == [b"-P", b"-c"] and words[3].startswith(b"from dpsql.cli.worker import work; work(")


def test_what_hinders_all_workers_is_told_once(policy: Path, ledger: str, start: Start) -> None:
    (policy.parent / "clinic.duckdb").unlink()
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--workers", WORKERS)
    assert program.end() == 1
    assert sum("there is no file" in line for line in program.err) == 1
    assert not workers(program)


def test_a_port_in_use_is_told(gateway: Program, policy: Path, ledger: str, start: Start) -> None:
    second = start("serve", policy, "--port", gateway.port, "--ledger", ledger, "--workers", WORKERS)
    assert second.end() == 1
    assert any("cannot listen on" in line for line in second.err)


def test_systems_without_what_workers_need_are_told_so(
    policy: Path, ledger: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    refused = run("serve", policy, "--ledger", ledger, "--workers", WORKERS, status=2)
    assert "--workers above 1 needs Linux" in refused.output
