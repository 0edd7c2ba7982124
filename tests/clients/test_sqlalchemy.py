"""SQLAlchemy 2 over four drivers, and pandas on top of it."""

from collections.abc import Iterator
from typing import Any

import pandas
import pytest
import sqlalchemy
from sqlalchemy import func, select

from tests.clients.conftest import CODES, COUNTS, ELDERS
from tests.wire.conftest import RunningServer


@pytest.fixture(params=["psycopg", "psycopg2", "pg8000"])
def engine(request: pytest.FixtureRequest, gateway: RunningServer) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(gateway.dsn.replace("postgresql:", f"postgresql+{request.param}:"))
    yield engine
    engine.dispose()


def test_tables_are_reflected_and_asked(engine: sqlalchemy.Engine, counts: list[Any]) -> None:
    known = sqlalchemy.MetaData()
    known.reflect(engine, only=["patients", "visits"])
    patients, visits = known.tables["patients"], known.tables["visits"]
    assert [column.name for column in patients.primary_key] == ["patient_id"]
    assert [key.column.table.name for key in visits.foreign_keys] == ["patients"]
    counted = select(patients.c.sex, func.count().label("n")).group_by(patients.c.sex).order_by(patients.c.sex)
    with engine.connect() as connection:
        assert [tuple(row) for row in connection.execute(counted)] == counts


def test_a_table_is_inspected(engine: sqlalchemy.Engine) -> None:
    inspector = sqlalchemy.inspect(engine)
    assert {"patients", "visits", "prescriptions", "doctors", "icd10"} == set(inspector.get_table_names())
    columns = inspector.get_columns("patients")
    assert [column["name"] for column in columns] == ["patient_id", "age", "sex", "city", "weight"]
    assert columns[1]["comment"] == "years; between 0 and 110"


def test_isolation_and_nested_transactions(engine: sqlalchemy.Engine) -> None:
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        assert connection.get_isolation_level() == "SERIALIZABLE"
        with connection.begin_nested() as inner:
            with pytest.raises(sqlalchemy.exc.DBAPIError):
                connection.execute(sqlalchemy.text("SELECT nothing"))
            inner.rollback()
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1


def test_pandas_reads(engine: sqlalchemy.Engine, counts: list[Any], elders: int, codes: list[str]) -> None:
    frame = pandas.read_sql(COUNTS, engine)
    assert list(frame["n"]) == [count for _, count in counts]
    asked = sqlalchemy.text(ELDERS.replace("60", ":age"))
    assert pandas.read_sql(asked, engine, params={"age": 60}).to_dict("list") == {"n": [elders]}
    assert sorted(pandas.read_sql_table("icd10", engine)["code"]) == codes
    chunks = pandas.read_sql(CODES, engine.execution_options(stream_results=True), chunksize=7)
    assert [code for chunk in chunks for code in chunk["code"]] == codes
