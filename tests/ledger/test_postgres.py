"""The ledger in PostgreSQL: the chain that SQLite has, one writer at a time, no answer without a durable charge."""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from types import FrameType

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.errors import BudgetExhausted, InvalidParameter, LedgerUnavailable
from dpsql.ledger import Charge, Noted, open_ledger
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.postgres import PostgresLedger, migrate_database
from dpsql.ledger.postgres_connection import SCHEMA, WRITE, PostgresConnection
from dpsql.ledger.postgres_schema import _expected, altered, tables
from dpsql.ledger.schema import APPLICATION_ID, DERIVED_TABLES, VERSION
from dpsql.ledger.transaction import Transaction
from tests.faults.forks import SECONDS, Forks
from tests.ledger.test_group_commit import asks, recorded, together
from tests.ledger.test_memory import ACTS, Act, Forgetful, done
from tests.ledger.world import (
    ROOT,
    SQL,
    Clock,
    budget,
    charge_only,
    laplace,
    opened,
    peopled,
    policy,
    request,
    requests,
    tamper,
)
from tests.postgres import OwnServer, Server, url_of
from tests.waiting import HANG_SECONDS, wait_for

POLICY = policy()
HUNDRED = policy(budget(1), budget(1))
PROCESSES, SESSIONS = 4, 32
CENT = Fraction(1, 100)


@pytest.fixture
def url(postgres_ledgers: list[str]) -> str:
    """A database with an empty ledger, whose schema is restored by whoever alters it."""
    return postgres_ledgers[0]


@pytest.fixture
def bare(postgres_places: list[str]) -> str:
    """A database without a ledger."""
    return postgres_places[0]


@pytest.fixture
def ledger(url: str, clock: Clock) -> Iterator[PostgresLedger]:
    made = peopled(PostgresLedger(url, clock=clock))
    yield made
    made.close()


def refusal(url: str, *, make: bool = True) -> str:
    with pytest.raises(LedgerUnavailable) as error:
        PostgresLedger(url, make=make)
    assert error.value.hint
    return f"{error.value.message}; {error.value.hint}"


def ask(ledger: Ledger, key: object, user: str = "ana") -> Charge:
    return charge_only(ledger, user, POLICY, [request(key, laplace(CENT))], sql=SQL)


def sessions_in_a_process(url: str, name: int) -> None:
    """Let 32 sessions ask until the budget is spent; print each charge that one was told of."""
    ledger = PostgresLedger(url)
    start = threading.Barrier(SESSIONS)

    def session(number: int) -> None:
        start.wait(SECONDS)
        for turn in range(10**6):
            key = f"{name}-{number}-{turn}"
            try:
                charge_only(ledger, "ana", HUNDRED, [request(key, laplace(CENT))], sql=SQL)
            except BudgetExhausted:
                return
            sys.stdout.write(f"{key}\n")  # in one piece, as print does not
            sys.stdout.flush()

    print("ready", flush=True)
    input()
    with ThreadPoolExecutor(SESSIONS) as pool:
        list(pool.map(session, range(SESSIONS)))


def test_processes_cannot_overspend_and_one_that_is_killed_holds_nobody_up(forks: Forks, url: str) -> None:
    peopled(PostgresLedger(url)).close()
    racers = [forks.start(f"{__name__}:sessions_in_a_process", url, name) for name in range(PROCESSES)]
    assert [racer.line() for racer in racers] == ["ready"] * PROCESSES
    for racer in racers:
        racer.tell()
    killed, *others = racers
    told = [killed.line()]
    killed.stop()
    told += [line for racer in others for line in racer.rest().split()]
    assert [racer.end() for racer in others] == [0] * (PROCESSES - 1)
    with closing(PostgresLedger(url)) as ledger:
        charged = recorded(ledger)
        assert len(charged) == len(set(charged)) == 100
        assert len(told) == len(set(told))
        assert set(told) <= set(charged)
        assert {key for key in set(charged) - set(told) if not key.startswith("0-")} == set()
        assert ledger.budget("ana", HUNDRED).spent.pure_epsilon == ledger.cap(HUNDRED).spent.pure_epsilon == 1
        assert ledger.verify().ok


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ACTS, st.sampled_from([0, 0, 0, 1, 24, 500]), st.booleans()), max_size=15))
def test_two_gateways_leave_the_chain_that_sqlite_does(
    bare: str, tmp_path: Path, acts: list[tuple[Act, int, bool]]
) -> None:
    """Against a ledger in a file that remembers nothing."""
    clock = Clock()
    path = tmp_path / "forgetful.sqlite"
    path.unlink(missing_ok=True)
    tamper(bare, "DROP SCHEMA IF EXISTS dpsql_ledger CASCADE")
    with (
        closing(PostgresLedger(bare, clock=clock)) as one,
        closing(PostgresLedger(bare, clock=clock)) as other,
        closing(peopled(Forgetful(path, clock=clock))) as expected,
    ):
        peopled(one)
        for act, hours, elsewhere in acts:
            clock.now += timedelta(hours=hours)
            assert done(act, other if elsewhere else one) == done(act, expected)
        assert list(one.export()) == list(expected.export())
        assert one.accounts() == expected.accounts()
        assert one.verify() == expected.verify()


def test_two_gateways_share_answers(ledger: PostgresLedger, url: str, clock: Clock) -> None:
    with closing(PostgresLedger(url, clock=clock)) as other:
        (made,) = ask(ledger, "a").releases
        assert made.payload is None
        ledger.store(made.release_id, b"\0cells\xff")
        again = ask(other, "a")
        assert (again.free, again.releases[0].payload) == (True, b"\0cells\xff")
        handed = ask(other, "a", "ben")
        assert (handed.price.pure_epsilon, handed.releases[0].payload) == (CENT, b"\0cells\xff")
        assert ledger.held("ben", POLICY, [request("a", laplace(CENT))]) == (True,)
        assert ledger.cap(POLICY).spent.pure_epsilon == CENT
    assert ledger.verify().ok


def test_gateways_that_begin_a_ledger_at_once_share_it(bare: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        ledgers = list(pool.map(lambda _: PostgresLedger(bare), range(6)))
    peopled(ledgers[0])
    assert [len(each.accounts()) for each in ledgers] == [2] * 6
    for each in ledgers:
        each.close()


def end_sessions(ledger: PostgresLedger) -> int:
    """End all sessions of the database but this one; give how many there were."""
    with psycopg.connect(ledger._storage._url, autocommit=True) as connection:
        query = (
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            b"WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return len(connection.execute(query).fetchall())


def test_a_connection_that_was_lost_between_two_charges_is_made_anew(ledger: PostgresLedger) -> None:
    for key in ("a", "b"):
        ask(ledger, key)
        assert ledger.budget("ana", POLICY).charges
        assert end_sessions(ledger) == 2
    assert ask(ledger, "c").spent.pure_epsilon == 3 * CENT
    assert ledger.budget("ana", POLICY).charges == 3
    assert ledger.verify().ok


def loses(ledger: PostgresLedger) -> Callable[[], Charge]:
    return lambda: ledger._grouped(lambda transaction: transaction.one("SELECT pg_terminate_backend(pg_backend_pid())"))


def test_a_connection_that_is_lost_in_a_charge_fails_all_that_share_its_commit(ledger: PostgresLedger) -> None:
    before = list(ledger.export())
    outcomes = together(ledger, asks(ledger, "a"), loses(ledger), asks(ledger, "b"))
    assert [type(each) for each in outcomes] == [LedgerUnavailable] * 3
    assert all("before anything was written" in str(each) for each in outcomes)
    assert list(ledger.export()) == before
    assert asks(ledger, "b")()
    assert ledger.verify().ok


@contextmanager
def at_commit(url: str, act: str) -> Iterator[None]:
    """Have the server do something at each commit."""
    tamper(
        url,
        f"CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {act} RETURN NULL; END$$",
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON records DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION at_commit()",
    )
    try:
        yield
    finally:
        tamper(url, "DROP TRIGGER at_commit ON records", "DROP FUNCTION at_commit()")  # waits for what is under way


def test_a_connection_that_is_lost_in_a_commit_leaves_a_doubt(ledger: PostgresLedger, url: str) -> None:
    ask(ledger, "a")
    before = list(ledger.export())
    end = "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(9);"
    with at_commit(url, end):
        outcomes = together(ledger, asks(ledger, "b"), asks(ledger, "c"), asks(ledger, "d", Fraction(2)))
        assert [type(each) for each in outcomes] == [LedgerUnavailable] * 3  # the refusal too: it may be for no reason
        assert all("may be in the ledger" in str(each) for each in outcomes)
        with pytest.raises(LedgerUnavailable, match="may be in the ledger"):
            ledger.add_account("eve", "analyst")
    assert list(ledger.export()) == before
    assert ask(ledger, "b").spent.pure_epsilon == 2 * CENT
    assert ledger.verify().ok


def test_a_notice_at_a_commit_is_no_doubt(ledger: PostgresLedger, url: str) -> None:
    with at_commit(url, "RAISE NOTICE 'by the way';"):
        assert ask(ledger, "a")


def test_a_commit_that_the_server_refuses_wrote_nothing(ledger: PostgresLedger, url: str) -> None:
    before = list(ledger.export())
    with at_commit(url, "RAISE 'not now';"), pytest.raises(LedgerUnavailable) as error:
        ask(ledger, "b")
    assert "may be in the ledger" not in error.value.message
    assert list(ledger.export()) == before


def test_a_transaction_that_the_server_has_given_up_is_not_taken_for_committed(ledger: PostgresLedger) -> None:
    """PostgreSQL answers COMMIT with ROLLBACK, and no error."""
    with pytest.raises(LedgerUnavailable) as error, ledger._writing() as transaction:
        transaction.append("account.frozen", {"name": "ana"})
        with pytest.raises(psycopg.Error):
            transaction.one("SELECT 1 / 0")
    assert "may be in the ledger" not in error.value.message
    account = ledger.account("ana")
    assert account is not None
    assert not account.frozen
    assert ledger.verify().ok


class Alarm(BaseException):
    """Stands for KeyboardInterrupt, wherever the main thread is."""


@contextmanager
def alarm(url: str) -> Iterator[None]:
    """Interrupt what is done as soon as the server sleeps."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Alarm

    def wait_and_ring() -> None:
        asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        with psycopg.connect(url, autocommit=True) as connection:
            wait_for(lambda: connection.execute(asleep).fetchone() is not None)
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, ring)
    waiter = threading.Thread(target=wait_and_ring)
    waiter.start()
    try:
        with pytest.raises(Alarm):
            yield
    finally:
        waiter.join()
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_in_a_statement_leaves_nothing(ledger: PostgresLedger, url: str) -> None:
    before = list(ledger.export())

    def interrupted(transaction: Transaction) -> None:
        transaction.append("account.frozen", {"name": "ana"})
        transaction.one("SELECT pg_sleep(3)")

    with alarm(url):
        ledger._grouped(interrupted)
    assert list(ledger.export()) == before
    assert ask(ledger, "a")
    assert ledger.verify().ok


def test_an_interrupt_in_a_commit_leaves_what_the_server_makes_of_it(ledger: PostgresLedger, url: str) -> None:
    with at_commit(url, "PERFORM pg_sleep(2);"), alarm(url):
        ask(ledger, "a")
    assert ask(ledger, "b").spent.pure_epsilon == 2 * CENT  # it stands
    assert recorded(ledger) == ["a", "b"]
    assert ledger.verify().ok


def test_a_ledger_that_another_gateway_makes_meanwhile_is_used(bare: str) -> None:
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    tamper(bare, f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    with psycopg.connect(bare) as other, ThreadPoolExecutor(1) as threads:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [APPLICATION_ID])
        opening = threads.submit(PostgresLedger, bare)
        wait_for(lambda: other.execute(waits).fetchone() == (1,))
        other.execute(f"CREATE SCHEMA {SCHEMA}; SET LOCAL search_path = {SCHEMA}; {tables()}".encode())
        other.commit()
        with closing(opening.result(HANG_SECONDS)) as ledger:
            assert ledger.verify().ok


@contextmanager
def own_ledger(server: OwnServer) -> Iterator[PostgresLedger]:
    with server.database() as name, closing(peopled(PostgresLedger(url_of(server.url, dbname=name)))) as ledger:
        yield ledger


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_charge_that_no_standby_has_is_in_doubt(each_postgres: OwnServer, end: str) -> None:
    """The server itself has committed it by then, and would only warn."""
    with own_ledger(each_postgres) as ledger, ThreadPoolExecutor(1) as pool:
        ask(ledger, "a")
        each_postgres.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        try:
            wait_for(lambda: each_postgres.run("SHOW synchronous_standby_names") == [("nobody",)])
            charge: Future[Charge] = pool.submit(ask, ledger, "b")
            wait_for(
                lambda: bool(each_postgres.run(f"SELECT {end}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
            )
            with pytest.raises(LedgerUnavailable, match="may be in the ledger"):
                charge.result(SECONDS)
        finally:
            each_postgres.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
            wait_for(lambda: each_postgres.run("SHOW synchronous_standby_names") == [("",)])
        assert ask(ledger, "c").spent.pure_epsilon == 3 * CENT  # it stands
        assert recorded(ledger) == ["a", "b", "c"]
        assert ledger.verify().ok


def test_a_server_that_crashes_loses_no_charge_and_is_found_again(each_postgres: OwnServer) -> None:
    with own_ledger(each_postgres) as ledger:
        ended = threading.Event()
        told: list[str] = []

        def charge_until_the_end(name: int) -> None:
            for turn in range(10**6):
                if ended.is_set():
                    return
                try:
                    charge_only(
                        ledger, "ana", policy(budget(10)), [request(f"{name}-{turn}", laplace(CENT / 100))], sql=SQL
                    )
                    told.append(f"{name}-{turn}")
                except LedgerUnavailable:
                    ended.wait(0.01)

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(charge_until_the_end, name) for name in range(4)]
            try:
                wait_for(lambda: len(told) > 20)
                each_postgres.crash()
                with pytest.raises(LedgerUnavailable, match="cannot be reached"):
                    ledger.accounts()
                each_postgres.start()
                before = len(told)
                wait_for(lambda: len(told) > before + 20)
            finally:
                ended.set()
            for future in futures:
                future.result(SECONDS)
        charged = recorded(ledger)
        assert len(charged) == len(set(charged))
        assert set(told) <= set(charged)
        assert ledger.verify().ok


def test_a_server_whose_commits_are_not_durable_is_refused(each_postgres: OwnServer) -> None:
    with own_ledger(each_postgres) as ledger:
        each_postgres.run("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        try:
            wait_for(lambda: each_postgres.run("SHOW fsync") == [("off",)])
            with pytest.raises(LedgerUnavailable, match="fsync = off"):
                ask(ledger, "a")
            assert "ALTER SYSTEM SET fsync = on" in refusal(ledger._storage._url)
        finally:
            each_postgres.run("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
        wait_for(lambda: each_postgres.run("SHOW fsync") == [("on",)])
        assert ask(ledger, "a")


def test_what_a_transaction_rests_on_is_set_in_it(ledger: PostgresLedger, url: str) -> None:
    """Whatever the role's defaults are."""
    role, name = psycopg.conninfo.conninfo_to_dict(url)["user"], psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    defaults = ("synchronous_commit = off", "search_path = nowhere", "default_transaction_isolation = serializable")
    tamper(url, *(f"ALTER ROLE {role} IN DATABASE {name} SET {each}" for each in defaults))
    try:
        with closing(PostgresLedger(url)) as other, other._writing() as transaction:
            names = ("synchronous_commit", "search_path", "transaction_isolation", "lock_timeout")
            values = [transaction.one("SELECT current_setting(?)", each)[0] for each in names]
        assert values == ["on", "dpsql_ledger, pg_temp", "read committed", "30s"]
    finally:
        tamper(url, f"ALTER ROLE {role} IN DATABASE {name} RESET ALL")


def hasty(patch: pytest.MonkeyPatch) -> None:
    """Wait for others a moment only."""
    patch.setattr("dpsql.ledger.postgres.WRITE", WRITE.replace("30s", "100ms"))


def test_a_ledger_that_another_gateway_holds_is_unavailable(
    ledger: PostgresLedger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PostgresLedger(url)) as other, other._writing():
        hasty(monkeypatch)
        with pytest.raises(LedgerUnavailable, match="lock") as error:
            ask(ledger, "a")
        assert "Another gateway" in str(error.value.hint)
        assert "Another gateway" in refusal(url)
        assert ledger.budget("ana", POLICY).charges == 0  # reading waits for nobody
    assert ask(ledger, "a")


def test_a_gateway_that_stands_still_in_a_charge_does_not_hold_the_ledger(
    ledger: PostgresLedger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PostgresLedger(url)) as other:
        hasty(monkeypatch)
        with (
            pytest.raises(LedgerUnavailable, match=r"idle for too long|cannot be reached"),
            other._writing() as transaction,
        ):
            transaction.append("account.frozen", {"name": "ana"})
            monkeypatch.undo()
            assert ask(ledger, "a")
            transaction.one("SELECT 1")
    assert recorded(ledger) == ["a"]
    assert ledger.verify().ok


def test_a_url_that_cannot_be_used_is_told_without_its_password(url: str, postgres_server: Server) -> None:
    with pytest.raises(InvalidParameter, match="cannot read") as error:
        open_ledger("postgresql://owner:se%zzcret@host/ledger")
    assert "cret" not in f"{error.value.message}{error.value.hint}"
    assert "cannot be reached" in refusal(url_of(url, port="1", password="secret"))
    for parameters in ({"dbname": "none such"}, {"user": "nobody"}, {"host": "/none"}):
        told = refusal(url_of(url, **{"password": "secret"} | parameters))
        assert "secret" not in told
        assert "cannot be reached" in told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (psycopg.errors.DiskFull(), "disk is full.*Make room"),
        (psycopg.errors.AdminShutdown(), "cannot be reached.*psql"),
        (psycopg.errors.TooManyConnections(), "cannot be reached.*psql"),
        (psycopg.errors.QueryCanceled(), "took too long.*Another gateway"),
        (psycopg.errors.UniqueViolation("Key (name)=(ana)"), r"UniqueViolation \(23505\).*log"),
    ],
)
def test_what_the_server_refuses_is_told_without_its_own_words(
    ledger: PostgresLedger, error: psycopg.Error, told: str
) -> None:
    found = ledger._storage.unavailable(error)
    assert re.search(told, f"{found.message} {found.hint}")
    assert "ana" not in found.message


def test_there_is_no_ledger_unless_one_is_to_be_made(bare: str) -> None:
    assert "there is no ledger" in refusal(bare, make=False)
    PostgresLedger(bare).close()
    PostgresLedger(bare, make=False).close()


def test_a_schema_of_that_name_that_is_empty_is_taken_and_another_is_refused(bare: str) -> None:
    tamper(bare, "CREATE SCHEMA dpsql_ledger", "CREATE TABLE dpsql_ledger.orders (id int)")
    assert "something other than a ledger" in refusal(bare)
    tamper(bare, "DROP TABLE dpsql_ledger.orders")
    PostgresLedger(bare).close()


@pytest.mark.parametrize(("version", "hint"), [(VERSION - 1, "dpsql ledger migrate"), (VERSION + 1, "Upgrade dpsql")])
def test_another_layout_is_refused_at_the_start_and_in_use(
    ledger: PostgresLedger, url: str, version: int, hint: str
) -> None:
    tamper(url, f"UPDATE layout SET version = {version}")
    assert hint in refusal(url)
    for act in (lambda: ask(ledger, "a"), ledger.accounts, ledger.verify):
        with pytest.raises(LedgerUnavailable, match=f"has layout {version}"):
            act()
    tamper(url, "DELETE FROM layout")
    assert "has layout 0" in refusal(url)


def test_a_ledger_of_layout_2_is_migrated_with_all_that_was_spent(
    ledger: PostgresLedger, url: str, clock: Clock
) -> None:
    ask(ledger, "a")
    ledger.record_failure("ben", ["x"])
    before, spent = list(ledger.export()), ledger.cap(POLICY).spent
    tamper(url, "DROP TABLE reads", "UPDATE layout SET version = 2")
    assert "dpsql ledger migrate" in refusal(url)
    done = migrate_database(url)
    assert done is not None
    assert (done[0], done[1].ok, done[1].records) == (2, True, len(before))
    assert migrate_database(url) is None
    with closing(PostgresLedger(url, clock=clock)) as after:
        assert list(after.export()) == before
        assert after.cap(POLICY).spent == spent
        ask(after, "b")
        assert after.verify().ok


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE layout SET version = 1", "no ledger of layout 1"),
        ("DELETE FROM layout", "no ledger of layout 0"),
        ("UPDATE accounts SET failures = 7", "and is unchanged"),
        ("DROP TABLE layout", "UndefinedTable"),
    ],
)
def test_what_is_not_whole_is_not_migrated(bare: str, statement: str, told: str) -> None:
    peopled(PostgresLedger(bare)).close()
    tamper(bare, "DROP TABLE reads", "UPDATE layout SET version = 2", statement)
    with pytest.raises(LedgerUnavailable, match=told):
        migrate_database(bare)


def test_a_database_of_another_encoding_is_refused(postgres_server: Server) -> None:
    name = "dpsql_ledger_in_ascii"
    postgres_server.run(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        assert "not UTF8" in refusal(url_of(postgres_server.url, dbname=name))
    finally:
        postgres_server.run(f"DROP DATABASE {name} WITH (FORCE)")


ALTERED = [
    "ALTER TABLE budgets ADD COLUMN more text",
    "ALTER TABLE budgets ALTER COLUMN spent DROP NOT NULL",
    "ALTER TABLE budgets ALTER COLUMN charges TYPE integer",
    "ALTER TABLE budgets ALTER COLUMN spent SET DEFAULT 'x'",
    'ALTER TABLE accounts ALTER COLUMN name TYPE text COLLATE "POSIX"',
    "ALTER TABLE records SET UNLOGGED",
    "ALTER TABLE records DROP CONSTRAINT records_pkey",
    "ALTER TABLE records DISABLE TRIGGER records_keep",
    "DROP TRIGGER records_follow ON records",
    "CREATE OR REPLACE FUNCTION records_follow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$",
    "DROP INDEX releases_held",
    "CREATE UNIQUE INDEX more ON records (hash)",
    "ALTER TABLE freezes ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE freezes ADD CHECK (scope <> 'all')",
    "CREATE RULE nothing AS ON INSERT TO freezes DO INSTEAD NOTHING",
    "CREATE TABLE more (id int)",
    "CREATE VIEW more AS SELECT 1",
    *(f"DROP TABLE {table}" for table in (*DERIVED_TABLES, "payloads", "verifiers")),
]


@pytest.mark.parametrize("statement", ALTERED)
def test_an_altered_schema_is_found(url: str, statement: str) -> None:
    with closing(PostgresConnection(url)) as connection:
        connection.begin(WRITE)
        assert altered(connection) == []
        connection.execute(statement)
        assert "was altered, added or removed" in altered(connection)[0]
        connection.rollback()


def test_an_altered_schema_is_refused_and_proves_nothing(ledger: PostgresLedger, url: str) -> None:
    tamper(url, "ALTER TABLE records DISABLE TRIGGER records_keep")
    try:
        assert "trigger records_keep was altered" in refusal(url)
        report = ledger.verify()
        assert not report.ok
        assert report.records == 0
    finally:
        tamper(url, "ALTER TABLE records ENABLE TRIGGER records_keep")
    assert ledger.verify().ok


def test_every_table_column_and_key_is_looked_at(ledger: PostgresLedger, url: str) -> None:
    """None is left out of what is expected, so none of what PostgreSQL tells of a new ledger is."""
    kinds = [kind for kind, *_ in _expected()]
    assert (kinds.count("table"), kinds.count("trigger")) == (len(DERIVED_TABLES) + 4, 2)
    assert ledger.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET body = '{}' WHERE seq = 1",
        "DELETE FROM records",
        "TRUNCATE records",
        "INSERT INTO records VALUES (1, '', '', '', '', '') ON CONFLICT (seq) DO UPDATE SET body = ''",
        "INSERT INTO records VALUES (0, '', '', '', '', '')",
    ],
)
def test_records_only_grow(ledger: PostgresLedger, url: str, statement: str) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        tamper(url, statement)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE records SET body = replace(body, 'ana', 'bob') WHERE seq = 1", "record 1 was changed"),
        ("DELETE FROM records WHERE seq = 2", "record 2 is missing"),
        ("UPDATE budgets SET spent = replace(spent, '1/100', '1/1000')", "budgets holds"),
        ("UPDATE accounts SET removed = 1", "accounts holds"),
        ("UPDATE payloads SET payload = 'other'", "is not what was stored"),
        ("DELETE FROM payloads", "is not what was stored"),
        ("INSERT INTO verifiers VALUES ('ana', 'mine')", "verifier of"),
        ("INSERT INTO quarantine VALUES ('a')", "quarantine holds"),
        ("DELETE FROM records WHERE seq = (SELECT max(seq) FROM records)", "which the records do not say"),
    ],
)
def test_what_was_changed_past_the_ledger_is_found(
    ledger: PostgresLedger, url: str, statement: str, found: str
) -> None:
    ledger.store(ask(ledger, "a").releases[0].release_id, b"cells")
    assert ledger.verify().ok
    tamper(url, f"SET session_replication_role = replica; {statement}")
    report = ledger.verify()
    assert any(found in problem for problem in report.problems), report.problems


def test_records_that_were_lost_are_told_by_the_noted_head(
    ledger: PostgresLedger, postgres_ledgers: list[str], clock: Clock
) -> None:
    """As by a failover to a standby that lagged behind."""
    ask(ledger, "a")
    noted = ledger.verify()
    ask(ledger, "b")
    later = ledger.verify()
    assert ledger.verify(Noted(noted.head, noted.records)).ok
    with closing(peopled(PostgresLedger(postgres_ledgers[1], clock=clock))) as behind:
        ask(behind, "a")
        assert behind.verify(Noted(noted.head, noted.records)).ok
        assert not behind.verify(Noted(later.head, later.records)).ok


def grants() -> list[str]:
    """The GRANTs of the gateway's role, from the documentation."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    return re.findall(r"^((?:GRANT|REVOKE) .*(?:dpsql_ledger).*);", text, re.MULTILINE)


@pytest.fixture
def gateway(bare: str, postgres_server: Server, ledger_databases: list[str]) -> Iterator[str]:
    """The URL of a role that has what the documentation grants on a ledger that is another's."""
    assert len(grants()) == 4
    peopled(PostgresLedger(bare)).close()
    given = (text.replace("dpsql_gateway", "{reader}") for text in grants())
    with postgres_server.reader(ledger_databases[0], *given) as url:
        yield url


def test_the_documented_rights_are_enough_and_let_no_record_be_changed(gateway: str) -> None:
    with closing(opened(gateway)) as ledger:
        (release,) = ask(ledger, "a").releases
        ledger.store(release.release_id, b"cells")
        ledger.record_failure("ben", ["x"])
        ledger.set_group("ana", "team")
        ledger.remove_account("ben")
        assert ledger.verify().ok
    for statement in ("UPDATE records SET body = ''", "DELETE FROM records", "TRUNCATE records", "DROP TABLE records"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            tamper(gateway, statement)


def test_a_role_that_lacks_a_right_is_refused_with_the_grant(gateway: str, bare: str) -> None:
    role = psycopg.conninfo.conninfo_to_dict(gateway)["user"]
    tamper(bare, f"REVOKE INSERT ON freezes FROM {role}")
    assert "GRANT INSERT ON dpsql_ledger.freezes" in refusal(gateway)
    tamper(bare, f"REVOKE UPDATE ON layout FROM {role}")
    assert "GRANT USAGE ON SCHEMA dpsql_ledger" in refusal(gateway)
    tamper(bare, "DROP SCHEMA dpsql_ledger CASCADE")
    assert "GRANT USAGE ON SCHEMA dpsql_ledger" in refusal(gateway)  # it may not make one


def test_texts_that_postgres_cannot_hold_are_refused(ledger: PostgresLedger) -> None:
    with pytest.raises(LedgerUnavailable):
        ledger.account("ana\0")
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql="SELECT '\0\ud800'")
    assert ledger.history()[0].sql == "SELECT '\0\ud800'"
    assert ledger.verify().ok


def test_a_closed_ledger_says_so(url: str) -> None:
    ledger = peopled(PostgresLedger(url))
    ledger.close()
    for act in (ledger.accounts, lambda: ask(ledger, "a")):
        with pytest.raises(LedgerUnavailable, match="is closed"):
            act()
