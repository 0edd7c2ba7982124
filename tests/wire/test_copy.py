"""Rows as COPY writes them: PostgreSQL's bytes, in every format; and copies and cursors of real clients."""

from collections.abc import Callable

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import CopyStatement
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import ResultColumn
from dpsql.gateway.session import Session
from dpsql.sqltypes import SqlType
from dpsql.wire.copyformat import copy_rows, format_code
from dpsql.wire.messages.backend import CommandComplete, DataRow, ErrorResponse, PortalSuspended
from dpsql.wire.messages.frontend import Bind, Execute, Parse, Query, Sync
from tests.wire.conftest import RunningServer
from tests.wire.rawclient import RawClient

COLUMNS = (ResultColumn("a,b", SqlType.TEXT), ResultColumn("n", SqlType.INTEGER), ResultColumn('q"', SqlType.TEXT))
TEXTS = (
    st.none()
    | st.text(st.sampled_from("\\\t\n\r\b\f\v,;|\"'!?.Nxé \\"), max_size=6)
    | st.sampled_from(["\\.", "", "\\N"])
)
ROWS = st.lists(st.tuples(TEXTS, st.none() | st.integers(-(2**31), 2**31 - 1), TEXTS), max_size=4)
OPTIONS = (
    "",
    "(HEADER)",
    "(DELIMITER '|', NULL 'x')",
    "(FORMAT csv)",
    "(FORMAT csv, HEADER, DELIMITER ';', QUOTE '''', ESCAPE '!', NULL 'x')",
    "(FORMAT csv, FORCE_QUOTE *)",
    "(FORMAT csv, FORCE_QUOTE (n))",
    "(FORMAT binary)",
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_bytes_are_those_of_postgres(
    postgres: psycopg.Connection, options: str, rows: list[tuple[object, ...]]
) -> None:
    with postgres.transaction(force_rollback=True):
        postgres.execute('CREATE TEMPORARY TABLE t (place serial, "a,b" text, n integer, "q""" text)')
        with postgres.cursor() as cursor:
            cursor.executemany('INSERT INTO t ("a,b", n, "q""") VALUES (%s, %s, %s)', rows)
            copied = sql.SQL('COPY (SELECT "a,b", n, "q""" FROM t ORDER BY place) TO STDOUT ') + sql.SQL(options)
            with cursor.copy(copied) as copy:
                theirs = [bytes(data) for data in copy]
    (read,) = parse(f"COPY (SELECT 1) TO STDOUT {options}".rstrip())
    assert isinstance(read, CopyStatement)
    assert list(copy_rows(read.options, COLUMNS, rows)) == theirs
    assert format_code(read.options) == ("binary" in options)


def test_alone_on_a_line_the_end_mark_is_quoted(postgres: psycopg.Connection) -> None:
    (read,) = parse("COPY (SELECT 1) TO STDOUT (FORMAT csv)")
    assert isinstance(read, CopyStatement)
    ours = list(copy_rows(read.options, COLUMNS[:1], [("\\.",), ("\\",)]))
    with postgres.cursor() as cursor, cursor.copy(r"COPY (VALUES ('\.'), ('\')) TO STDOUT (FORMAT csv)") as copy:
        assert ours == [bytes(data) for data in copy]


@pytest.fixture
def gateway(engine: Engine, serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(open_session=lambda user, _database: Session(engine, user))


COUNTS = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"


def test_psycopg_copies(gateway: RunningServer) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        rows = cursor.execute(COUNTS).fetchall()
        with cursor.copy(f"COPY ({COUNTS}) TO STDOUT") as copy:
            assert [row for row in copy.rows()] == [(sex, str(count)) for sex, count in rows]
        with cursor.copy(f"COPY ({COUNTS}) TO STDOUT (FORMAT binary)") as copy:
            copy.set_types(["text", "int8"])
            assert [row for row in copy.rows()] == rows
        with pytest.raises(psycopg.errors.InsufficientPrivilege), cursor.copy("COPY patients TO STDOUT") as copy:
            list(copy)
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]


def test_psycopg_server_cursors(gateway: RunningServer) -> None:
    with psycopg.connect(gateway.dsn) as connection:
        with connection.cursor(name="srv", scrollable=True) as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT n FROM generate_series(1, 5) AS s (n) WHERE n < %s", [6])
            assert cursor.fetchmany(2) == [(1,), (2,)]
            cursor.scroll(1)
            assert cursor.fetchone() == (4,)
            cursor.scroll(0, mode="absolute")
            assert [row for row in cursor] == [(number,) for number in range(1, 6)]
        with connection.cursor(name="held", withhold=True) as held:
            held.execute(COUNTS)
            connection.commit()
            assert len(held.fetchall()) == 4
        connection.execute("PREPARE p (integer) AS SELECT $1 + 1")
        assert connection.execute("EXECUTE p (41)").fetchone() == (42,)
        assert connection.execute("DEALLOCATE p").statusmessage == "DEALLOCATE"


def test_a_portal_is_a_cursor(gateway: RunningServer) -> None:
    """As asyncpg does it: a named portal is moved in by SQL, before anything was executed."""
    series = b"SELECT n FROM generate_series(1, 5) AS s (n)"
    with RawClient(gateway.port) as client:
        client.log_in(user="ana", database="clinic")
        client.ask(Query(b"BEGIN"))
        client.ask(Parse(b"s", series, ()), Bind(b"f", b"s", (), (), ()), Bind(b"n", b"s", (), (), ()), Sync())
        client.ask(Parse(b"e", b"SET a = 1", ()), Sync())
        assert CommandComplete("MOVE 2") in client.ask(Query(b"MOVE FORWARD 2 f"))
        replies = client.ask(Execute(b"f", 2), Sync())
        assert replies[:3] == [DataRow((b"3",)), DataRow((b"4",)), PortalSuspended()]
        replies = client.ask(Query(b"FETCH BACKWARD ALL FROM f"))
        assert [reply.values for reply in replies if isinstance(reply, DataRow)] == [(b"3",), (b"2",), (b"1",)]
        assert CommandComplete("CLOSE CURSOR") in client.ask(Query(b"CLOSE f"))
        client.ask(Parse(b"b", b"BEGIN", ()), Bind(b"b", b"b", (), (), ()), Sync())
        (refusal,) = (reply for reply in client.ask(Query(b"MOVE b")) if isinstance(reply, ErrorResponse))
        assert refusal.sqlstate == "34000"
