"""What a user may learn of failures: few queries fail, however many are asked at once, and wherever.

The engine is made to fail on a query that is true of the person sought, as a flaw of an engine would make it.
"""

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import psycopg
import pytest

from dpsql.backends import Cancellation, DuckDBBackend
from dpsql.backends.backend import NO_INPUTS, ExactRows, Inputs, Take
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import BackendFailure, DatabaseUnavailable, Error, PolicyViolation
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import Ledger, SqliteLedger, open_ledger
from dpsql.ledger.postgres import PostgresLedger
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import load_policy
from tests.conftest import MakeEngine
from tests.faults.forks import Fork, Forks
from tests.faults.victims import GATHERING, connect, port_of
from tests.faults.world import question, with_passwords, write_policy

FIRST, INCOME, LAST = 7_000_000, 7_000_009, 7_000_030
"""Where it is sought, and what is: no other number of the SQL is as large."""

MANY = 14
"""So many queries are asked at once."""


class Leaking(DuckDBBackend):
    """An engine that fails where a query names the income of the person sought.

    Attributes:
        together: Reads wait for each other, as far as they come, and all of them fail; None to answer at once.
    """

    together: Barrier | None = None

    def fetch(
        self,
        releases: Mapping[int, PlannedRelease],
        public: tuple[PublicRead, ...],
        cancellation: Cancellation,
        inputs: Inputs = NO_INPUTS,
        take: Take | None = None,
        share: MemoryShare | None = None,
    ) -> ExactRows:
        if self.together is not None:
            with suppress(BrokenBarrierError):
                self.together.wait(GATHERING)
            raise BackendFailure
        if any(str(INCOME) in planned.sql for planned in releases.values()):
            raise BackendFailure
        return super().fetch(releases, public, cancellation, inputs, take, share)


@pytest.fixture
def backend(clinic_policy: Path) -> Iterator[Leaking]:
    loaded = load_policy(clinic_policy)
    opened = Leaking(loaded.dataset.url.partition("://")[2], loaded)
    yield opened
    opened.close()


@pytest.fixture
def engine(make_engine: MakeEngine, clinic_policy: Path, backend: Leaking) -> Engine:
    return make_engine(clinic_policy, backend=backend)


def ask(session: Session, sql: str) -> str:
    """Ask, and return how it ended."""
    try:
        for statement in session.parse(sql):
            session.execute(statement)
    except Error as error:
        return type(error).__name__
    return "answered"


def search(session: Session, epsilon: str) -> Counter[str]:
    """Ask of each income whether it is that of the person sought, until one is; tell how many ended how."""
    ask(session, f"SET dpsql.epsilon = {epsilon}")
    ended: Counter[str] = Counter()
    for income in range(FIRST, LAST):
        ended[ask(session, f"SELECT COUNT(*) FROM patients WHERE age <> {income}")] += 1
        if ended[BackendFailure.__name__]:
            break
    return ended


def test_a_unary_search_is_not_to_be_had_for_nothing(engine: Engine) -> None:
    session = Session(engine, "ana")
    assert search(session, "0.001") == {"PolicyViolation": LAST - FIRST}
    assert engine.ledger.history() == []


def test_after_a_failure_questions_are_dear(engine: Engine) -> None:
    session = Session(engine, "ana")
    assert search(session, "0.01") == {"answered": INCOME - FIRST, "BackendFailure": 1}
    assert search(session, "0.1") == {"PolicyViolation": LAST - FIRST}
    ended = search(session, "0.206")
    assert set(ended) <= {"answered", "BudgetExhausted", "BackendFailure", "PolicyViolation"}
    assert ended["answered"] <= 20
    assert sum("7000" in record.sql for record in engine.ledger.history()) <= INCOME - FIRST + 1 + 20
    # Others ask as before.
    assert ask(Session(engine, "ben"), "SELECT COUNT(*) FROM patients") == "answered"


def test_three_of_many_queries_at_once_fail(engine: Engine, backend: Leaking) -> None:
    backend.together = Barrier(MANY)
    sessions = [Session(engine, "ana") for _ in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        queries = (f"SELECT COUNT(*) FROM patients WHERE age > {number}" for number in range(MANY))
        ended = Counter(pool.map(ask, sessions, queries))
    assert ended == {"BackendFailure": 3, "PolicyViolation": MANY - 3}
    account = engine.ledger.account("ana")
    assert account is not None and account.frozen
    assert len(engine.ledger.history()) == 3
    assert engine.ledger.verify().ok


def test_many_queries_at_once_are_all_answered(engine: Engine) -> None:
    """As dashboards ask them: three are read at a time, the others wait."""
    sessions = [Session(engine, "ana") for _ in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        queries = (f"SELECT COUNT(*) FROM patients WHERE age > {number}" for number in range(MANY))
        assert Counter(pool.map(ask, sessions, queries)) == {"answered": MANY}


def test_a_server_that_cannot_be_reached_is_no_failure_of_the_user(
    engine: Engine, backend: Leaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> ExactRows:
        raise DatabaseUnavailable("connection refused")

    session = Session(engine, "ana")
    with monkeypatch.context() as patch:
        patch.setattr(backend, "fetch", unreachable)
        for number in range(4):
            assert ask(session, f"SELECT COUNT(*) FROM patients WHERE age > {number}") == "BackendFailure"
    assert len(engine.ledger.history()) == 4
    assert ask(session, "SELECT COUNT(*) FROM patients WHERE age > 0") == "answered"


# Gateways


@pytest.fixture
def policy(clinic_file: Path, tmp_path: Path) -> Path:
    return write_policy(tmp_path / "clinic.toml", clinic_file, answers=100)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the ledger is."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_places")[0])
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with closing(with_passwords(open_ledger(url))) as opened:
        yield opened


def outcome(connection: "psycopg.Connection[tuple[object, ...]]", sql: str) -> str | None:
    """Ask, and return the SQLSTATE of how it ended."""
    try:
        connection.execute(sql.encode())
    except psycopg.Error as error:
        return error.sqlstate or type(error).__name__
    return "00000"


@pytest.mark.parametrize("gateways", [1, 2])
def test_three_of_many_queries_fail_over_all_gateways(
    forks: Forks, policy: Path, url: str, ledger: Ledger, gateways: int
) -> None:
    running = [forks.start("tests.faults.victims:serve_and_fail", policy, url, MANY) for _ in range(gateways)]
    ports = [port_of(gateway) for gateway in running]
    clients = [connect(ports[number % gateways]) for number in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        ended = Counter(pool.map(outcome, clients, map(question, range(MANY))))
    for client in clients:
        client.close()
    assert ended == {BackendFailure.sqlstate: 3, PolicyViolation.sqlstate: MANY - 3}
    account = ledger.account("ana")
    assert account is not None and account.frozen
    assert ledger.verify().ok
    assert [gateway.stop(signal.SIGTERM) for gateway in running] == [0] * gateways


def killed(forks: Forks, policy: Path, url: str, reads: int) -> None:
    """Let a gateway die by kill -9 while it reads for so many queries."""
    gateway: Fork = forks.start("tests.faults.victims:serve_and_hang", policy, url)
    port = port_of(gateway)
    clients = [connect(port) for _ in range(reads)]
    with ThreadPoolExecutor(reads) as pool:
        ended = [pool.submit(outcome, *each) for each in zip(clients, map(question, range(reads)), strict=True)]
        for _ in range(reads):
            gateway.line_with("reading")
        gateway.stop()
        assert BackendFailure.sqlstate not in {each.result() for each in ended}
    for client in clients:
        client.close()


def test_a_user_goes_on_at_once_when_a_gateway_was_killed(forks: Forks, policy: Path, url: str, ledger: Ledger) -> None:
    killed(forks, policy, url, 3)
    gateway = forks.start("tests.faults.victims:serve", policy, url)
    with connect(gateway) as client:
        client.execute("SET statement_timeout = '60s'")  # its reads would have been open for minutes
        client.execute("SET dpsql.epsilon = 0.5")
        assert outcome(client, question(10)) == "00000"
        client.execute("SET dpsql.epsilon = 0.1")
        assert outcome(client, question(11)) == PolicyViolation.sqlstate, "one has failed"
    assert gateway.stop(signal.SIGTERM) == 0
    kinds = [record["kind"] for record in ledger.export()]
    assert kinds.count("read.lost") == 1
    assert ledger.verify().ok


def test_a_gateway_that_is_killed_leaves_its_reads_open_and_then_one_failure(
    forks: Forks, policy: Path, url: str, ledger: Ledger
) -> None:
    killed(forks, policy, url, 2)
    # One place is left, and enough for one query after another.
    gateway = forks.start("tests.faults.victims:serve", policy, url)
    with connect(gateway) as client:
        assert {outcome(client, question(number)) for number in range(10, 15)} == {"00000"}
    assert gateway.stop(signal.SIGTERM) == 0
    later = datetime.now(UTC) + timedelta(minutes=7)
    after = (
        SqliteLedger(Path(url.removeprefix("sqlite:///")), clock=lambda: later)
        if url.startswith("sqlite")
        else PostgresLedger(url, clock=lambda: later)
    )
    loaded = load_policy(policy)
    with closing(after), closing(DuckDBBackend(loaded.dataset.url.partition("://")[2], loaded)) as backend:
        session = Session(Engine(loaded, after, backend), "ana")
        assert ask(session, "SET dpsql.epsilon = 0.5; " + question(20)) == "answered"
        assert ask(session, "SET dpsql.epsilon = 0.1; " + question(21)) == "PolicyViolation"  # one has failed
        kinds = [record["kind"] for record in after.export()]
        assert kinds.count("read.lost") == 1
        account = after.account("ana")
        assert account is not None and not account.frozen
        assert after.verify().ok


def test_a_gateway_that_is_stopped_leaves_no_read_open(forks: Forks, policy: Path, url: str, ledger: Ledger) -> None:
    gateway = forks.start("tests.faults.victims:serve", policy, url)
    with connect(gateway) as client:
        assert {outcome(client, question(number)) for number in range(3)} == {"00000"}
        assert gateway.stop(signal.SIGTERM) == 0
    charged = {record["seq"] for record in ledger.export() if record["kind"] == "charge"}
    assert {record["body"]["ends"] for record in ledger.export() if record["kind"] == "release.stored"} == charged
