"""Polars: over ADBC and the drivers of Python, and over dpsql in process; over connectorx see test_connectorx.py."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import polars
import psycopg
import pytest
import sqlalchemy

import dpsql
from dpsql.gateway.engine import Engine
from tests.clients.conftest import CODES, COUNTS, HINT, ROWS
from tests.wire.conftest import RunningServer

TYPES = """
    SELECT true AS bool, 42 AS int4, 5000000000 AS int8, 1.50 AS numeric, 0.5::real AS float4, 1e20::float8 AS float8,
        'naïve' AS text, date '2024-02-29' AS date, time '12:30:01.5' AS time, NULL::text AS nothing,
        timestamp '2024-02-29 12:30:00.5' AS timestamp, timestamptz '2024-02-29 12:30:00+02' AS timestamptz
"""
VALUES = (
    *(True, 42, 5_000_000_000, Decimal("1.50"), 0.5, 1e20, "naïve", date(2024, 2, 29), time(12, 30, 1, 500_000), None),
    *(datetime(2024, 2, 29, 12, 30, 0, 500_000), datetime(2024, 2, 29, 10, 30, tzinfo=UTC)),
)


def rows(frame: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = frame.rows()
    return found


def test_reads_by_url(gateway: RunningServer, counts: list[Any], codes: list[str], elders: int) -> None:
    def read(sql: str, **options: Any) -> list[tuple[Any, ...]]:
        return rows(polars.read_database_uri(sql, gateway.dsn, engine="adbc", **options))

    assert read(COUNTS) == counts
    assert read(CODES) == [(code,) for code in codes]
    (values,) = read(TYPES)
    # The driver gives a numeric as text: Arrow's decimals have one scale for all rows.
    assert [Decimal(value) if at == 3 else value for at, value in enumerate(values)] == list(VALUES)
    asked = "SELECT COUNT(*) AS n FROM patients WHERE age > $1 AND sex = $2"
    assert read(asked, execute_options={"parameters": [60, "F"]}) == [(elders,)]


def test_reads_by_connection(gateway: RunningServer, clinic: Engine, counts: list[Any], codes: list[str]) -> None:
    ledger = clinic.policy.path.with_name("ledger.sqlite")
    engine = sqlalchemy.create_engine(gateway.dsn.replace("postgresql:", "postgresql+psycopg:"))
    with (
        psycopg.connect(gateway.dsn) as over_the_wire,
        dpsql.connect(clinic.policy.path, user="ana", ledger=f"sqlite:///{ledger}") as in_process,
        engine.connect() as connection,
    ):
        for opened in (over_the_wire, in_process, connection):
            assert rows(polars.read_database(COUNTS, opened)) == counts
            assert rows(polars.read_database(TYPES, opened)) == [VALUES]
        batches = polars.read_database(CODES, connection, iter_batches=True, batch_size=7)
        assert [code for batch in batches for (code,) in rows(batch)] == codes
        with pytest.raises(dpsql.ProgrammingError) as refused:
            polars.read_database(ROWS, in_process)
        assert refused.value.hint == HINT
    engine.dispose()
