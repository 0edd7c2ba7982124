"""ADBC: whole results as Arrow, by COPY in binary; tables and their schemas from the catalog."""

from collections.abc import Iterator
from typing import Any

import adbc_driver_postgresql.dbapi
import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROW, ROWS, VALUES
from tests.wire.conftest import RunningServer


@pytest.fixture
def connection(gateway: RunningServer) -> Iterator[Any]:
    with adbc_driver_postgresql.dbapi.connect(gateway.dsn) as connection:
        yield connection


def arrow(connection: Any, sql: str, values: tuple[object, ...] = ()) -> dict[str, list[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        found: dict[str, list[Any]] = cursor.fetch_arrow_table().to_pydict()
        return found


def test_queries(connection: Any, counts: list[Any], elders: int, codes: list[str]) -> None:
    table = arrow(connection, COUNTS)
    assert list(zip(table["sex"], table["n"], strict=True)) == counts
    assert arrow(connection, CODES) == {"code": codes}
    counted = "SELECT COUNT(*) AS n FROM patients WHERE age > $1 AND sex = $2"
    assert arrow(connection, counted, (60, "F")) == {"n": [elders]}


def test_values(connection: Any) -> None:
    read = {name: value for name, (value,) in arrow(connection, VALUES).items()}
    for (name, ours), value in zip(read.items(), ROW, strict=True):
        if name == "numeric":  # the driver gives text: Arrow's decimals have one scale for all
            assert ours == str(value)
        elif name == "interval":
            assert (ours.days, ours.nanoseconds) == (1, 7_384_000_000_000)
        elif name == "uuid":
            assert ours in (value.bytes, value)  # type: ignore[union-attr]
        else:
            assert ours == value


def test_tables_and_schemas(connection: Any) -> None:
    (database,) = connection.adbc_get_objects(depth="all", catalog_filter="clinic").read_all().to_pylist()
    schemas = {schema["db_schema_name"]: schema["db_schema_tables"] for schema in database["catalog_db_schemas"]}
    (patients,) = (table for table in schemas["public"] if table["table_name"] == "patients")
    columns = {column["column_name"]: column["ordinal_position"] for column in patients["table_columns"]}
    assert columns == {"patient_id": 1, "age": 2, "sex": 3, "city": 4, "weight": 5}
    assert connection.adbc_get_table_schema("patients").names == ["patient_id", "age", "sex", "city", "weight"]
    with connection.cursor() as cursor:
        assert cursor.adbc_execute_schema(COUNTS).names == ["sex", "n"]


def test_errors(connection: Any) -> None:
    with pytest.raises(adbc_driver_postgresql.dbapi.ProgrammingError, match="42501") as refused:
        arrow(connection, ROWS)
    assert HINT in str(refused.value)
    connection.rollback()
    assert arrow(connection, "SELECT 1 AS one") == {"one": [1]}
