"""SQLAlchemy 2 over four drivers to the gateway and over dpsql:// in process, and pandas on top of each."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pandas
import pytest
import sqlalchemy
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from dpsql.gateway.engine import Engine
from dpsql.sqltypes import Span
from tests.clients.conftest import CODES, COUNTS, ELDERS, ROW, ROWS, VALUES
from tests.wire.conftest import RunningServer

Ask = Callable[[Callable[[Connection], Any]], Any]


def in_process(clinic: Engine) -> str:
    policy = clinic.policy.path
    return f"dpsql:///{policy}?user=ana&ledger=sqlite:///{policy.with_name('ledger.sqlite')}"


def over_asyncpg(dsn: str, work: Callable[[Connection], Any]) -> Any:
    async def asked() -> Any:
        engine = create_async_engine(dsn.replace("postgresql:", "postgresql+asyncpg:"))
        async with engine.connect() as connection:
            found = await connection.run_sync(work)
        await engine.dispose()
        return found

    return asyncio.run(asked())


@pytest.fixture(params=["psycopg", "psycopg2", "pg8000", "asyncpg", "dpsql"])
def ask(request: pytest.FixtureRequest, gateway: RunningServer, clinic: Engine) -> Iterator[Ask]:
    """A function that lets another work on a connection of each kind."""
    if request.param == "asyncpg":
        yield lambda work: over_asyncpg(gateway.dsn, work)
        return
    dsn = gateway.dsn.replace("postgresql:", f"postgresql+{request.param}:")
    engine = sqlalchemy.create_engine(in_process(clinic) if request.param == "dpsql" else dsn)

    def asked(work: Callable[[Connection], Any]) -> Any:
        with engine.connect() as connection:
            return work(connection)

    yield asked
    engine.dispose()


def test_tables_are_reflected_and_asked(ask: Ask, counts: list[Any]) -> None:
    def work(connection: Connection) -> None:
        known = sqlalchemy.MetaData()
        known.reflect(connection, only=["patients", "visits"])
        patients, visits = known.tables["patients"], known.tables["visits"]
        assert [column.name for column in patients.primary_key] == ["patient_id"]
        assert [key.column.table.name for key in visits.foreign_keys] == ["patients"]
        counted = select(patients.c.sex, func.count().label("n")).group_by(patients.c.sex).order_by(patients.c.sex)
        assert [tuple(row) for row in connection.execute(counted)] == counts
        elders = counted.where(patients.c.age.between(60, 80), patients.c.sex.in_(["F", "M"])).limit(2)
        assert [row.sex for row in connection.execute(elders)] == ["F", "M"]

    ask(work)


def inspected(connection: Connection) -> dict[str, str]:
    """Everything that reflection tells, as it prints."""
    inspector = sqlalchemy.inspect(connection)
    several = ("columns", "pk_constraint", "foreign_keys", "indexes", "unique_constraints", "check_constraints")
    found = {what: getattr(inspector, f"get_multi_{what}")() for what in (*several, "table_comment")} | {
        "schemas": inspector.get_schema_names(),
        "default schema": inspector.default_schema_name,
        "tables": inspector.get_table_names(),
        "views": inspector.get_view_names("dpsql"),
        "columns of a view": inspector.get_columns("budget", "dpsql"),
        "which there are": [inspector.has_table(name) for name in ("patients", "secrets")],
        "version": connection.dialect.server_version_info,
    }
    return {what: repr(told) for what, told in found.items()}


@pytest.fixture(scope="module")
def expected(gateway: RunningServer) -> dict[str, str]:
    """What is told over psycopg."""
    engine = sqlalchemy.create_engine(gateway.dsn.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        found = inspected(connection)
    engine.dispose()
    return found


def test_everything_is_inspected_alike(ask: Ask, expected: dict[str, str]) -> None:
    assert ask(inspected) == expected


def test_a_table_is_inspected(ask: Ask) -> None:
    def work(connection: Connection) -> None:
        inspector = sqlalchemy.inspect(connection)
        assert {"patients", "visits", "prescriptions", "doctors", "icd10"} == set(inspector.get_table_names())
        columns = inspector.get_columns("patients")
        assert [column["name"] for column in columns] == ["patient_id", "age", "sex", "city", "weight"]
        assert columns[1]["comment"] == "years; between 0 and 110"
        assert inspector.get_table_comment("patients") == {"text": "One row per patient; unit key patient_id"}
        assert inspector.get_foreign_keys("prescriptions")[0]["referred_table"] == "visits"

    ask(work)


def _alike(value: object) -> object:
    """A value as all drivers give it where no type is declared: for psycopg2 a UUID is a text."""
    return str(value) if isinstance(value, UUID) else Span.of(value) if isinstance(value, timedelta) else value


def test_values(ask: Ask) -> None:
    """Of every type, read by name and bound: what goes in as a date or a number comes out as one."""

    def work(connection: Connection) -> None:
        (row,) = connection.execute(sqlalchemy.text(VALUES.replace("::", r"\:\:")))
        assert [_alike(value) for value in row] == [_alike(value) for value in ROW]
        for value in ROW:
            assert connection.execute(select(sqlalchemy.literal(value))).scalar() == value

    ask(work)


def test_isolation_and_nested_transactions(ask: Ask) -> None:
    def nested(connection: Connection) -> None:
        connection.execution_options(isolation_level="SERIALIZABLE")
        assert connection.get_isolation_level() == "SERIALIZABLE"
        with connection.begin_nested() as inner:
            with pytest.raises(DBAPIError):
                connection.execute(sqlalchemy.text("SELECT nothing"))
            inner.rollback()
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1

    def automatic(connection: Connection) -> None:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(DBAPIError):
            connection.execute(sqlalchemy.text("SELECT nothing"))
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1

    ask(nested)
    ask(automatic)


def test_refusals(ask: Ask) -> None:
    def work(connection: Connection) -> None:
        with pytest.raises(DBAPIError) as refused:
            connection.execute(sqlalchemy.text(ROWS))
        assert "rows of protected tables are not shown" in str(refused.value)
        assert not refused.value.connection_invalidated

    ask(work)


def test_pandas_reads(ask: Ask, counts: list[Any], elders: int, codes: list[str]) -> None:
    def work(connection: Connection) -> None:
        frame = pandas.read_sql(COUNTS, connection)
        assert list(frame["n"]) == [count for _, count in counts]
        asked = sqlalchemy.text(ELDERS.replace("60", ":age"))
        assert pandas.read_sql(asked, connection, params={"age": 60}).to_dict("list") == {"n": [elders]}
        assert sorted(pandas.read_sql_table("icd10", connection)["code"]) == codes
        chunks = pandas.read_sql(CODES, connection.execution_options(stream_results=True), chunksize=7)
        assert [code for chunk in chunks for code in chunk["code"]] == codes

    ask(work)
