"""psycopg2: parameters written into the text, server cursors, COPY, sessions, errors."""

import io
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg2
import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROW, ROWS, VALUES
from tests.wire.conftest import RunningServer


@pytest.fixture
def connection(gateway: RunningServer) -> Iterator[Any]:
    connection = psycopg2.connect(gateway.dsn)
    yield connection
    connection.close()


def ask(connection: Any, sql: str, *values: object) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def test_queries(connection: Any, counts: list[Any], elders: int) -> None:
    # psycopg2 has no uuid of its own accord: it gives the text.
    assert ask(connection, VALUES) == [tuple(str(value) if isinstance(value, UUID) else value for value in ROW)]
    assert ask(connection, COUNTS) == counts
    assert "free, your earlier release" in connection.notices[-1]
    assert ask(connection, "SELECT COUNT(*) FROM patients WHERE age > %s AND sex = %s", 60, "F") == [(elders,)]
    assert ask(connection, "SELECT COUNT(*) FROM icd10 WHERE code IN %s", ("A09", "C50")) == [(2,)]
    assert ask(connection, "SELECT COUNT(*) FROM icd10 WHERE code = ANY(%s)", ["A09", "C50"]) == [(2,)]
    assert ask(connection, "SELECT COUNT(*) FROM icd10 WHERE code = ANY(%s)", []) == [(0,)]


def test_server_cursors(connection: Any, codes: list[str]) -> None:
    with connection.cursor("forth") as cursor:
        cursor.itersize = 7
        cursor.execute(CODES)
        assert [code for (code,) in cursor] == codes


def test_copy(connection: Any, codes: list[str]) -> None:
    target = io.StringIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(f"COPY ({CODES}) TO STDOUT WITH CSV HEADER", target)
    assert target.getvalue().splitlines() == ["code", *codes]


def test_errors_and_transactions(connection: Any) -> None:
    with pytest.raises(psycopg2.errors.InsufficientPrivilege) as refused:
        ask(connection, ROWS)
    assert refused.value.diag.message_hint == HINT
    with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
        ask(connection, "SELECT 1")
    connection.rollback()
    assert ask(connection, "SELECT 1") == [(1,)]


def test_sessions(connection: Any) -> None:
    connection.set_session(isolation_level="SERIALIZABLE", readonly=True, deferrable=True)
    assert ask(connection, "SHOW transaction_isolation") == [("serializable",)]
    connection.rollback()
    connection.set_session(isolation_level="DEFAULT", autocommit=True)
    assert ask(connection, "SHOW transaction_isolation") == [("read committed",)]
