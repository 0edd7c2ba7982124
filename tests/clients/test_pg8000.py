"""pg8000: a driver without libpq, parameters in text, COPY into a stream, errors as fields."""

import io
from collections.abc import Iterator
from typing import Any

import pg8000.dbapi
import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROW, ROWS, VALUES
from tests.wire.conftest import RunningServer


@pytest.fixture
def connection(gateway: RunningServer) -> Iterator[Any]:
    connection = pg8000.dbapi.connect("ana", "127.0.0.1", "clinic", gateway.port, "secret")
    yield connection
    connection.close()


@pytest.fixture
def cursor(connection: Any) -> Any:
    return connection.cursor()


def ask(cursor: Any, sql: str, *values: object) -> list[Any]:
    cursor.execute(sql, values)
    return [tuple(row) for row in cursor.fetchall()]


def test_queries(cursor: Any, counts: list[Any], elders: int) -> None:
    assert ask(cursor, VALUES) == [ROW]
    assert ask(cursor, COUNTS) == counts
    assert ask(cursor, "SELECT COUNT(*) FROM patients WHERE age > %s AND sex = %s", 60, "F") == [(elders,)]
    assert ask(cursor, "SELECT %s::integer, %s::text", 7, None) == [(7, None)]


def test_copy(cursor: Any, codes: list[str]) -> None:
    target = io.BytesIO()
    cursor.execute(f"COPY ({CODES}) TO STDOUT", stream=target)
    assert target.getvalue().decode().splitlines() == codes


def test_errors(connection: Any, cursor: Any) -> None:
    with pytest.raises(pg8000.dbapi.DatabaseError) as refused:
        ask(cursor, ROWS)
    fields = refused.value.args[0]
    assert (fields["C"], fields["H"]) == ("42501", HINT)
    connection.rollback()
    assert ask(cursor, "SELECT 1") == [(1,)]
