"""Transactions, savepoints and the settings in them: step by step what PostgreSQL says of the same commands."""

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import CharacteristicsStatement, TransactionStatement
from dpsql.errors import Error, InvalidSyntax, LimitExceeded, UnsupportedQuery
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.gateway.transactions import MAX_SAVEPOINTS

MODES = st.sampled_from(
    [
        *("", "ISOLATION LEVEL SERIALIZABLE", "ISOLATION LEVEL REPEATABLE READ, READ ONLY", "READ ONLY NOT DEFERRABLE"),
        *("isolation level read uncommitted deferrable", "DEFERRABLE"),
    ]
)
COMMANDS = st.one_of(
    st.builds("BEGIN {}".format, MODES),
    st.builds("START TRANSACTION {}".format, MODES),
    st.builds("SET TRANSACTION {}".format, MODES.filter(bool)),
    st.builds("SET SESSION CHARACTERISTICS AS TRANSACTION {}".format, MODES.filter(bool)),
    st.builds("{} {}".format, st.sampled_from(["COMMIT", "END", "ROLLBACK", "ABORT"]), st.sampled_from(["", "WORK"])),
    st.builds("{} AND CHAIN".format, st.sampled_from(["COMMIT", "ROLLBACK TRANSACTION"])),
    st.builds(
        "{} {}".format, st.sampled_from(["SAVEPOINT", "RELEASE", "ROLLBACK TO SAVEPOINT"]), st.sampled_from("ab")
    ),
    st.builds("SET {} application_name = {}".format, st.sampled_from(["", "LOCAL"]), st.sampled_from(["x", "DEFAULT"])),
    st.builds("SET {} application_name = {}".format, st.sampled_from(["", "LOCAL"]), st.sampled_from(["y", "z"])),
    st.sampled_from(["SELECT 1", "SELECT nothing", "SHOW application_name", "RESET ALL"]),
    st.sampled_from(["SET transaction_isolation = 'serializable'", "SET default_transaction_isolation = 'wrong'"]),
)
SHOWN = ("application_name", "transaction_isolation", "transaction_deferrable", "default_transaction_isolation")
STATUS = {"IDLE": "I", "INTRANS": "T", "INERROR": "E"}
# PostgreSQL sets a transaction's modes only before its first query, and then looks at nothing else; dpsql has no
# snapshots that a level would tell apart, and takes them at any time.
TOO_LATE = {"25001"}


@pytest.fixture
def other(postgres: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """The connection to PostgreSQL, handed on as it was."""
    yield postgres
    for sql in (b"ROLLBACK", b"RESET ALL", b"SET timezone = UTC"):
        postgres.execute(sql)


def ours(session: Session, sql: str) -> tuple[str, str]:
    try:
        (statement,) = session.parse(sql)
        return session.execute(statement).tag, session.transaction
    except Error as error:
        session.fail()
        return error.sqlstate, session.transaction


def theirs(connection: psycopg.Connection, sql: str) -> tuple[str, str]:
    try:
        outcome = connection.execute(sql.encode(), prepare=False).statusmessage or ""
    except psycopg.Error as error:
        outcome = error.sqlstate or ""
    return outcome, STATUS[connection.info.transaction_status.name]


def shown(session: Session) -> list[str]:
    found = []
    for name in SHOWN:
        (statement,) = session.parse(f"SHOW {name}")
        found.append(str(session.execute(statement).rows[0][0]))
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(COMMANDS, max_size=14))
@example(["BEGIN", "SET LOCAL application_name = y", "SET application_name = z", "COMMIT"])
@example(["BEGIN", "SET application_name = z", "SET LOCAL application_name = DEFAULT", "SAVEPOINT a", "COMMIT"])
@example(["BEGIN", "SAVEPOINT a", "SAVEPOINT b", "RELEASE a", "ROLLBACK TO SAVEPOINT b"])
@example(["BEGIN", "SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO SAVEPOINT a", "RELEASE a", "SELECT nothing", "COMMIT"])
@example(["BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT nothing", "ROLLBACK TRANSACTION AND CHAIN", "RESET ALL"])
@example(["BEGIN", "SAVEPOINT a", "SET application_name = y", "SAVEPOINT a", "SET application_name = z",
          "ROLLBACK TO SAVEPOINT a", "RELEASE a", "ROLLBACK TO SAVEPOINT a"])  # fmt: skip
def test_transactions_go_as_in_postgresql(wide_engine: Engine, other: psycopg.Connection, commands: list[str]) -> None:
    session = Session(wide_engine, "ana")
    for sql in ("ROLLBACK", "RESET ALL"):
        other.execute(sql.encode())
    for sql in commands:
        outcome = theirs(other, sql)
        if outcome[0] in TOO_LATE:
            break
        assert ours(session, sql) == outcome, sql
        if session.transaction != "E":
            assert shown(session) == [theirs_shown(other, name) for name in SHOWN], sql


def theirs_shown(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute(f"SHOW {name}".encode()).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(
    "sql",
    [
        *("BEGIN WORK READ", "START", "BEGIN ISOLATION LEVEL NONE", "COMMIT NOW", "ABORT TO s", "ROLLBACK TO"),
        *("SAVEPOINT", "RELEASE 'a'", "SET TRANSACTION", "SET TRANSACTION READ ONLY,", "COMMIT AND", "SAVEPOINT a b"),
    ],
)
def test_what_is_not_a_command_is_a_syntax_error_there_too(other: psycopg.Connection, sql: str) -> None:
    with pytest.raises(InvalidSyntax):
        parse(sql)
    with pytest.raises(psycopg.errors.SyntaxError):
        other.execute(sql.encode())


def test_commands_are_read() -> None:
    (read, *others) = parse("START TRANSACTION ISOLATION LEVEL SERIALIZABLE READ WRITE; COMMIT AND NO CHAIN; END")
    assert isinstance(read, TransactionStatement)
    assert read.modes == (("isolation", "serializable"), ("read_only", "off"))
    assert [(one.action, one.chain) for one in others if isinstance(one, TransactionStatement)] == [
        ("commit", False),
        ("commit", False),
    ]
    (named,) = parse('ROLLBACK WORK TO SAVEPOINT "A b"')
    assert isinstance(named, TransactionStatement) and (named.action, named.name) == ("rollback to", "A b")
    (local,) = parse("SET LOCAL TRANSACTION READ ONLY")
    assert isinstance(local, CharacteristicsStatement) and not local.session


@pytest.mark.parametrize("sql", ["COMMIT PREPARED 'a'", "ROLLBACK PREPARED 'a'", "SET TRANSACTION SNAPSHOT 'a'"])
def test_what_is_not_there_is_refused(sql: str) -> None:
    with pytest.raises(UnsupportedQuery):
        parse(sql)


def test_every_transaction_is_read_only(wide_engine: Engine) -> None:
    session = Session(wide_engine, "ana")
    assert ours(session, "BEGIN READ WRITE") == ("BEGIN", "T")
    (statement,) = session.parse("SHOW transaction_read_only")
    assert session.execute(statement).rows[0] == ("on",)


def test_savepoints_are_limited(wide_engine: Engine) -> None:
    session = Session(wide_engine, "ana")
    ours(session, "BEGIN")
    for number in range(MAX_SAVEPOINTS):
        assert ours(session, f"SAVEPOINT s{number}") == ("SAVEPOINT", "T")
    assert ours(session, "SAVEPOINT more") == (LimitExceeded.sqlstate, "E")


def test_what_failed_before_undoes_nothing_of_the_next(wide_engine: Engine) -> None:
    session = Session(wide_engine, "ana")
    session.fail()  # as when a text cannot be parsed: nothing had begun
    session.begin_implicit()
    (statement,) = session.parse("SET DateStyle = 'German'")
    session.execute(statement)
    session.end_implicit()
    assert session.output_settings["DateStyle"].startswith("German")


def test_the_time_is_that_of_the_beginning(wide_engine: Engine) -> None:
    session = Session(wide_engine, "ana")

    def told(sql: str) -> object:
        (statement,) = session.parse(sql)
        return session.execute(statement).rows[0][0]

    def time() -> object:
        return told("SELECT now()")

    assert time() != time()
    for end in ("COMMIT", "ROLLBACK"):
        ours(session, "BEGIN")
        begun = time()
        ours(session, "SAVEPOINT a")
        assert begun == time() == told("SELECT CURRENT_TIMESTAMP")
        ours(session, end)
        assert time() != begun
    ours(session, "BEGIN")
    begun = time()
    ours(session, "COMMIT AND CHAIN")
    later = time()
    assert begun != later == time()
    ours(session, "ROLLBACK")
    session.begin_implicit(several=True)
    begun = time()
    ours(session, "BEGIN")
    assert begun == time()
    session.end_implicit()
    assert begun == time()
    ours(session, "COMMIT")
    assert begun != time()
