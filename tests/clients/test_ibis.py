"""ibis over its PostgreSQL backend: tables and their types, and expressions that it writes as SQL."""

from collections.abc import Iterator
from typing import Any

import ibis
import psycopg
import pytest
from ibis import _

from tests.wire.conftest import RunningServer


@pytest.fixture(scope="module")
def connection(gateway: RunningServer) -> Iterator[Any]:
    connection = ibis.connect(gateway.dsn)
    yield connection
    connection.disconnect()


def rows(expression: Any) -> list[tuple[Any, ...]]:
    """The rows through Arrow: ibis sets an option that pandas 3 warns of."""
    return [tuple(row.values()) for row in expression.to_pyarrow().to_pylist()]


def test_tables_and_types(connection: Any) -> None:
    assert connection.list_tables() == ["doctors", "icd10", "patients", "prescriptions", "visits"]
    assert {"public", "dpsql"} <= set(connection.list_databases())
    types = {name: str(kind) for name, kind in connection.table("visits").schema().items()}
    assert types == {
        **{"patient_id": "int32", "visit_id": "!int32", "doctor_id": "int32", "visited_on": "date"},
        **{"cost": "decimal", "duration_min": "int32", "icd": "string", "city": "string"},
    }
    assert "epsilon_remaining" in connection.table("budget", database="dpsql").columns


def test_groups(connection: Any, counts: list[Any]) -> None:
    patients = connection.table("patients")
    assert rows(patients.group_by("sex").agg(n=_.count()).order_by("sex")) == counts
    bands = patients.group_by(band=_.age.bucket([0, 20, 40, 60, 110])).agg(n=_.count()).order_by("band")
    assert [band for band, _n in rows(bands)][:4] == [0, 1, 2, 3]
    old = ibis.cases((_.age > 60, "old"), else_="young")
    assert {word for word, _n in rows(patients.mutate(old=old).group_by("old").agg(n=_.count()))} == {"old", "young"}


def test_joins_and_aggregates(connection: Any, elders: int) -> None:
    patients, visits = connection.table("patients"), connection.table("visits")
    assert patients.filter(_.age > 60, _.sex == "F").count().to_pyarrow().as_py() == elders
    joined = visits.join(patients, "patient_id").group_by("sex").agg(cost=_.cost.sum(), mean=_.duration_min.mean())
    assert {sex for sex, *_rest in rows(joined)} == {"F", "M", "X", None}
    months = visits.group_by(month=_.visited_on.truncate("M")).agg(n=_.count()).order_by("month").head(3)
    assert [str(month) for month, _n in rows(months)] == ["2020-01-01", "2020-02-01", "2020-03-01"]
    for number in (visits.patient_id.nunique(), patients.age.median(), patients.age.quantile(0.9), patients.age.std()):
        assert number.to_pyarrow().as_py() is not None


def test_public_tables(connection: Any, codes: list[str]) -> None:
    assert [code for (code,) in rows(connection.table("icd10").select("code").order_by("code"))] == codes


def test_what_is_refused(connection: Any) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r'Write: SELECT COUNT\(\*\) FROM "patients"'):
        connection.table("patients").to_pyarrow()
    # Without a schema, ibis makes a view to learn one.
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="CREATE is not supported"):
        connection.sql("SELECT COUNT(*) AS n FROM patients")
    told = connection.sql(
        "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex", schema={"sex": "string", "n": "int64"}
    )
    assert len(rows(told.filter(_.n > -1000))) == 4
