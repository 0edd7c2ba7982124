"""Where the policy says so, rows that are asked for are made up of bounds and domains: the database is never asked."""

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from dpsql.backends import Backend
from dpsql.compiler.scope.preview import _value
from dpsql.errors import Error, InvalidPolicy
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from dpsql.policy import PolicyColumn, load_policy
from dpsql.sqltypes import SqlType
from tests.conftest import open_engine
from tests.wire.catalog.conftest import SilentBackend

POLICY = """
version = 1
[dataset]
name = "clinic"
url = "duckdb:///clinic.duckdb"
privacy_unit = "patient"
budget = { epsilon = 20, delta = 1e-6 }
preview = "synthetic"
[roles.analyst]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.1, delta = 1e-9 }
[tables.patients]
unit_key = "patient_id"
max_rows = 1
[tables.patients.columns]
age = { type = "integer", lower = 0, upper = 110 }
sex = { type = "text", values = ["F", "M", "X"] }
city = { type = "text" }
weight = { type = "double", lower = 1, upper = 300, step = 0.5 }
[tables.visits]
unit_key = "patient_id"
max_rows = 50
max_groups = 10
max_rows_per_group = 5
[tables.visits.columns]
cost = { type = "decimal", lower = 0, upper = 5000, step = 0.01 }
visited_on = { type = "date", lower = 2020-01-01, upper = 2026-12-31 }
duration_min = { type = "integer", values = [15, 30, 45] }
[tables.doctors]
public = true
[tables.doctors.columns]
doctor_id = { type = "integer" }
"""


@pytest.fixture(scope="module")
def silent(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine whose database must not be asked."""
    path = clinic_policy.with_name("previews.toml")
    path.write_text(POLICY, encoding="utf-8")
    backend = cast(Backend, SilentBackend(path))
    engine = open_engine(path, tmp_path_factory.mktemp("previews") / "ledger.sqlite", backend=backend)
    yield engine
    engine.close()
    engine.ledger.close()


@pytest.fixture
def session(silent: Engine) -> Iterator[Session]:
    """A session in which nothing may be charged."""
    yield Session(silent, "ana")
    assert silent.ledger.budget("ana", silent.policy).charges == 0


def run(session: Session, sql: str) -> Result:
    (statement,) = session.parse(sql)
    described = session.describe(statement)
    result = session.execute(statement)
    assert described.columns == result.columns
    return result


def column(result: Result, name: str) -> list[Any]:
    (place,) = [at for at, column in enumerate(result.columns or ()) if column.name == name]
    return [row[place] for row in result.rows]


def test_rows_are_of_bounds_and_domains_and_said_to_be(session: Session) -> None:
    run(session, "SET dpsql.notices = off")
    patients = run(session, "SELECT * FROM patients")
    assert len(patients.rows) == 100
    assert [notice.message for notice in patients.notices] == [
        "these rows are synthetic: rows of protected tables are not shown"
    ]
    ages, weights = column(patients, "age"), column(patients, "weight")
    assert (min(ages), max(ages), min(weights), max(weights)) == (0, 110, 1, 300)
    assert set(column(patients, "sex")) == {"F", "M", "X"}
    assert set(column(patients, "city")) == {None}
    assert all(weight * 2 == int(weight * 2) for weight in weights)
    visits = run(session, "SELECT * FROM visits")
    costs, days = column(visits, "cost"), column(visits, "visited_on")
    assert (min(costs), max(costs)) == (Decimal(0), Decimal(5000))
    assert (min(days), max(days)) == (date(2020, 1, 1), date(2026, 12, 31))
    assert set(column(visits, "duration_min")) == {15, 30, 45}
    assert run(session, "SELECT * FROM visits").rows == visits.rows


@pytest.mark.parametrize("setting", ["dpsql.intervals = on", "dpsql.target_error = 5", "dpsql.epsilon = 0.5"])
def test_no_setting_hides_that_they_are_made_up(session: Session, setting: str) -> None:
    run(session, f"SET {setting}")
    shown = run(session, "SELECT age FROM patients")
    assert [notice.message[:24] for notice in shown.notices] == ["these rows are synthetic"]


def test_they_are_filtered_ordered_and_limited(session: Session) -> None:
    old = run(
        session, "SELECT age AS a, age + 1 AS b FROM patients WHERE age > 50 AND sex = 'F' ORDER BY a DESC LIMIT 7"
    )
    assert len(old.rows) == 7
    assert column(old, "a") == sorted(column(old, "a"), reverse=True)
    assert [a + 1 for a in column(old, "a")] == column(old, "b") and min(column(old, "a")) > 50
    assert len(run(session, "SELECT * FROM (SELECT sex FROM patients) AS virtual_table LIMIT 1000").rows) == 100
    assert len(run(session, "SELECT sex FROM patients ORDER BY 1 OFFSET 98").rows) == 2
    assert set(column(run(session, "SELECT patient_id FROM visits LIMIT 3"), "patient_id")) == {None}


@pytest.mark.parametrize("sql", ["SELECT * FROM visits LIMIT 0", "SELECT * FROM visits WHERE 1 = 0", "SELECT 1"])
def test_what_shows_no_rows_needs_no_word_about_them(session: Session, sql: str) -> None:
    assert run(session, sql).notices == ()


@pytest.mark.parametrize(
    "sql",
    [
        *("SELECT COUNT(*) FROM (SELECT * FROM patients LIMIT 100) t", "SELECT nothing FROM patients LIMIT 5"),
        *("SELECT p.age FROM patients p JOIN visits v USING (patient_id) LIMIT 5", "(SELECT * FROM patients) LIMIT 5"),
        *("SELECT patient_id, COUNT(*) FROM visits GROUP BY patient_id LIMIT 5",),
        *("SELECT age FROM patients WHERE EXISTS (SELECT 1 FROM doctors) LIMIT 5",),
        *("SELECT ROW_NUMBER() OVER (PARTITION BY patient_id ORDER BY cost) FROM visits LIMIT 5",),
        *("SELECT age FROM patients UNION ALL SELECT age FROM patients",),
    ],
)
def test_what_is_more_than_rows_of_one_table_is_refused_as_ever(session: Session, sql: str) -> None:
    with pytest.raises(Error):
        run(session, sql)


def test_counts_are_counts_of_the_data(clinic_policy: Path, tmp_path: Path) -> None:
    path = clinic_policy.with_name("previews.toml")
    path.write_text(POLICY, encoding="utf-8")
    engine = open_engine(path, tmp_path / "ledger.sqlite")
    (count,) = run(Session(engine, "ana"), "SELECT COUNT(*) FROM patients").rows[0]
    engine.close()
    engine.ledger.close()
    assert cast(int, count) > 300


def test_other_types(tmp_path: Path) -> None:
    flag = PolicyColumn("a", SqlType.BOOLEAN)
    assert {_value(flag, SqlType.BOOLEAN, place).value for place in range(4)} == {True, False}
    moment = PolicyColumn("a", SqlType.TIMESTAMP, datetime(2020, 1, 1), datetime(2020, 1, 2))
    assert _value(moment, SqlType.TIMESTAMP, 99).value == datetime(2020, 1, 2)
    with pytest.raises(InvalidPolicy, match="none of refuse, synthetic"):
        (tmp_path / "p.toml").write_text(POLICY.replace('"synthetic"', '"real"'), encoding="utf-8")
        load_policy(tmp_path / "p.toml")
