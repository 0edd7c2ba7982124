"""psycopg 3: text and binary, parameters, pipeline, server cursors, COPY, transactions, async."""

import asyncio
from typing import Any

import psycopg
import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROW, ROWS, VALUES
from tests.wire.conftest import RunningServer

ELDERS = "SELECT COUNT(*) AS n FROM patients WHERE age > %s AND sex = %s"


@pytest.mark.parametrize("binary", [False, True])
def test_values_in_both_formats(gateway: RunningServer, counts: list[Any], elders: int, binary: bool) -> None:
    with psycopg.connect(gateway.dsn) as connection, connection.cursor(binary=binary) as cursor:
        assert cursor.execute(VALUES).fetchall() == [ROW]
        assert cursor.execute(COUNTS).fetchall() == counts
        assert cursor.execute(ELDERS, (60, "F"), prepare=True).fetchall() == [(elders,)]


def test_lists(gateway: RunningServer, codes: list[str]) -> None:
    with psycopg.connect(gateway.dsn) as connection:
        for sql, found in (("code = ANY(%s)", 2), ("code <> ALL(%s)", len(codes) - 2)):
            row = connection.execute(f"SELECT COUNT(*) FROM icd10 WHERE {sql}", (codes[:2],)).fetchone()
            assert row == (found,)
        numbered = "SELECT COUNT(*) FROM doctors WHERE doctor_id = ANY(%b)"
        assert connection.execute(numbered, ([1, 2, None],), binary=True).fetchone() == (2,)


@pytest.mark.parametrize("binary", [False, True])
def test_quantiles_are_lists_of_numbers(gateway: RunningServer, binary: bool) -> None:
    sql = "SELECT PERCENTILE_CONT(%s) WITHIN GROUP (ORDER BY doctor_id), PERCENTILE_DISC(ARRAY[0.1, 0.9]) "
    with psycopg.connect(gateway.dsn) as connection, connection.cursor(binary=binary) as cursor:
        row = cursor.execute(f"{sql} WITHIN GROUP (ORDER BY doctor_id) FROM doctors", ([0.25, 0.5],)).fetchone()
        private = cursor.execute("SELECT PERCENTILE_CONT(%s) WITHIN GROUP (ORDER BY age) FROM patients", ([0.25, 0.5],))
        least, middle = private.fetchone()[0]  # type: ignore[index]
    assert row == ([50.75, 100.5], [20, 180]) and 0 <= least <= middle <= 110
    assert [[type(value) for value in values] for values in row] == [[float] * 2, [int] * 2]


def test_a_pipeline(gateway: RunningServer, counts: list[Any]) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as connection, connection.pipeline() as pipeline:
        cursors = [connection.execute("SELECT %s::integer", (number,)) for number in range(5)]
        counted = connection.execute(COUNTS)
        assert [cursor.fetchall() for cursor in cursors] == [[(number,)] for number in range(5)]
        assert counted.fetchall() == counts
        pipeline.sync()


def test_an_error_in_a_pipeline_ends_at_the_next_sync(gateway: RunningServer) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.pipeline():
            connection.execute(ROWS)
            connection.execute("SELECT 1")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_server_cursors(gateway: RunningServer, codes: list[str]) -> None:
    with psycopg.connect(gateway.dsn) as connection:
        with connection.cursor("forth") as cursor:
            cursor.itersize = 7
            assert [code for (code,) in cursor.execute(CODES)] == codes
        with connection.cursor("held", scrollable=True, withhold=True) as cursor:
            cursor.execute(CODES)
            connection.commit()
            cursor.scroll(len(codes) - 1)
            assert cursor.fetchall() == [(codes[-1],)]


@pytest.mark.parametrize("options", ["", "(FORMAT csv, HEADER)", "(FORMAT binary)"])
def test_copy(gateway: RunningServer, codes: list[str], options: str) -> None:
    sql = f"COPY ({CODES}) TO STDOUT {options}"
    with psycopg.connect(gateway.dsn) as connection, connection.cursor().copy(sql) as copy:
        if "binary" in options:
            copy.set_types(["text"])
            assert [code for (code,) in copy.rows()] == codes
        else:
            lines = b"".join(map(bytes, copy)).decode().splitlines()
            assert lines == ["code"] * ("HEADER" in options) + codes


def test_transactions_and_errors(gateway: RunningServer, counts: list[Any]) -> None:
    notices: list[str] = []
    with psycopg.connect(gateway.dsn) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused, connection.transaction():
            connection.execute(ROWS)
        assert refused.value.diag.message_hint == HINT
        with connection.transaction():
            with pytest.raises(psycopg.errors.UndefinedColumn), connection.transaction():
                connection.execute("SELECT nothing FROM patients")
            assert connection.execute(COUNTS).fetchall() == counts
    assert notices[-1].startswith("price: free, your earlier release; remaining: epsilon")


def test_settings_of_the_connection(gateway: RunningServer) -> None:
    with psycopg.connect(gateway.dsn, options="-c dpsql.epsilon=0.2 -c TimeZone=Europe/Paris") as connection:
        assert connection.execute("SHOW dpsql.epsilon").fetchone() == ("0.2",)
        assert connection.info.parameter_status("TimeZone") == "Europe/Paris"
        connection.execute("SET TIME ZONE 'Asia/Tokyo'")
        assert connection.info.parameter_status("TimeZone") == "Asia/Tokyo"
        connection.rollback()
        assert connection.info.parameter_status("TimeZone") == "Europe/Paris"


def test_async(gateway: RunningServer, counts: list[Any], codes: list[str]) -> None:
    async def ask() -> tuple[list[Any], list[Any]]:
        async with await psycopg.AsyncConnection.connect(gateway.dsn) as connection:
            counted = await (await connection.execute(COUNTS)).fetchall()
            async with connection.cursor("c") as cursor:
                await cursor.execute(CODES)
                return counted, [code async for (code,) in cursor]

    assert asyncio.run(ask()) == (counts, codes)
