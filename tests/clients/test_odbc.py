"""ODBC by psqlODBC and pyodbc: SQLTables and its like, parameters, cursors by DECLARE and FETCH, errors."""

from collections.abc import Iterator
from typing import Any

import pyodbc
import pytest

from tests.clients.conftest import CODES, COUNTS, ROWS, VALUES
from tests.clients.machine import odbc
from tests.wire.conftest import RunningServer


@pytest.fixture(params=["", "UseDeclareFetch=1;Fetch=7", "UseServerSidePrepare=0"])
def connection(request: pytest.FixtureRequest, gateway: RunningServer) -> Iterator[Any]:
    address = f"SERVER=127.0.0.1;PORT={gateway.port};DATABASE=clinic;UID=ana;PWD=secret"
    connection = pyodbc.connect(f"DRIVER={{{odbc()}}};{address};{request.param}")
    yield connection
    connection.close()


def ask(connection: Any, sql: str, *values: object) -> list[Any]:
    return [tuple(row) for row in connection.execute(sql, *values).fetchall()]


def test_queries(connection: Any, counts: list[Any], elders: int, codes: list[str]) -> None:
    assert ask(connection, COUNTS) == counts
    assert ask(connection, "SELECT COUNT(*) FROM patients WHERE age > ? AND sex = ?", 60, "F") == [(elders,)]
    assert [code for (code,) in ask(connection, CODES)] == codes
    ((*values, identity, nothing),) = ask(connection, VALUES)
    # ODBC has no zone and no such interval: the driver gives the zone's own time, and text.
    assert [str(value) for value in values[1:8]] == ["1", "42", "5000000000", "1.50", "0.5", "1e+20", "naïve"]
    assert [str(value) for value in values[9:]] == [
        *("2024-02-29", "12:30:01.500000", "2024-02-29 12:30:00.500000", "2024-02-29 10:30:00", "1 day 02:03:04"),
    ]
    assert (str(identity).lower(), nothing) == ("00000000-0000-0000-0000-000000000007", None)


def test_browsing(connection: Any) -> None:
    cursor = connection.cursor()
    tables = [row.table_name for row in cursor.tables(schema="public")]
    assert tables == ["doctors", "icd10", "patients", "prescriptions", "visits"]
    columns = [(row.column_name, row.type_name) for row in cursor.columns(table="patients")]
    assert columns == [("patient_id", "int4"), ("age", "int4"), ("sex", "text"), ("city", "text"), ("weight", "float8")]
    assert [row.column_name for row in cursor.primaryKeys("patients", schema="public")] == ["patient_id"]
    assert [row.pktable_name for row in cursor.foreignKeys(foreignTable="visits")] == ["patients"]
    assert [row.index_name for row in cursor.statistics("patients")] == ["patients_pkey"]
    assert len(cursor.getTypeInfo().fetchall()) > 10
    assert connection.getinfo(pyodbc.SQL_DBMS_NAME) == "PostgreSQL"


def test_errors_and_transactions(connection: Any) -> None:
    with pytest.raises(pyodbc.Error) as refused:
        ask(connection, ROWS)
    assert refused.value.args[0] == "42501"
    connection.rollback()
    assert ask(connection, "SELECT 1") == [(1,)]
    connection.commit()
