"""The dialect of dpsql:// URLs: what the URL says, transactions, the pool, and what is told of prices."""

import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import create_engine, event, func, select, text
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.exc import ArgumentError, DBAPIError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.ext.automap import automap_base

import dpsql
from dpsql.ledger import open_ledger
from dpsql.policy import load_policy
from dpsql.sqlalchemy import DpsqlDialect

COUNT = text("SELECT COUNT(*) FROM patients WHERE age > :age")


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


@pytest.fixture
def engine(clinic_policy: Path, ledger: str) -> Iterator[sqlalchemy.Engine]:
    engine = create_engine(f"dpsql:///{clinic_policy}?user=ana&ledger={ledger}")
    yield engine
    engine.dispose()


def spent(policy: Path, ledger: str) -> tuple[int, float]:
    """How often user ana was charged, and how much epsilon is left of 5."""
    opened = open_ledger(ledger)
    try:
        return len(opened.history("ana")), float(opened.budget("ana", load_policy(policy)).remaining.epsilon)
    finally:
        opened.close()


# URLs


def test_the_entry_point_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["sqlalchemy.dialects"] == {"dpsql": "dpsql.sqlalchemy:DpsqlDialect"}
    assert sqlalchemy.make_url("dpsql:///clinic.toml").get_dialect() is DpsqlDialect


def test_options_are_those_of_connect(clinic_policy: Path, ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clinic_policy.parent)
    options = f"user=ben&role=analyst&ledger={ledger}&epsilon=0.2&delta=1e-9&mechanism=laplace&target_error=50"
    engine = create_engine(f"dpsql:///{clinic_policy.name}?{options}")
    monkeypatch.chdir("/")  # the path is that of when the engine was made
    with engine.connect() as connection:
        names = ("epsilon", "delta", "mechanism", "target_error")
        assert [connection.scalar(text(f"SHOW dpsql.{name}")) for name in names] == [
            "0.2",
            "0.000000001",
            "laplace",
            "50",
        ]
        assert connection.scalar(select(func.current_user())) == "ben"
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dpsql://?user=ana", "path and no host"),
        ("dpsql://host/clinic.toml?user=ana", "path and no host"),
        ("dpsql://ana:secret@/clinic.toml", "path and no host"),
        ("dpsql:///clinic.toml", "names no user"),
        ("dpsql:///clinic.toml?user=ana&user=ben", "given twice"),
        ("dpsql:///clinic.toml?user=ana&password=x", 'no option "password"'),
    ],
)
def test_urls_that_say_something_else(url: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        create_engine(url)


# Statements


def test_values_are_bound_and_statements_cached(engine: sqlalchemy.Engine) -> None:
    patients = sqlalchemy.table("patients", sqlalchemy.column("age"), sqlalchemy.column("sex"))
    seen: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append((args[2], args[3])))
    with engine.connect() as connection:
        for sex in ("F", "M'; --"):
            result = connection.execute(select(func.count()).where(patients.c.sex == sex).select_from(patients))
            assert isinstance(result.scalar(), int)
            hit = result.context.cache_hit
        assert hit is CacheStats.CACHE_HIT
    statements, values = zip(*seen[-2:], strict=True)
    assert len(set(statements)) == 1
    assert values == ({"sex_1": "F"}, {"sex_1": "M'; --"})


def test_percent_signs(engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 'a%', 7 % 4").one() == ("a%", 3)
        assert connection.execute(text("SELECT 'a%', 7 % :by"), {"by": 4}).one() == ("a%", 3)
        assert connection.scalar(select(sqlalchemy.literal(7) % 4)) == 3
        assert connection.exec_driver_sql("SELECT 'a%%', %(x)s", {"x": 1}).one() == ("a%", 1)


def test_intervals(engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        for kind in (sqlalchemy.Interval, sqlalchemy.dialects.postgresql.INTERVAL):
            typed = text("SELECT INTERVAL '1 day 2 s' AS a, INTERVAL '1 month' AS b, NULL::interval AS c")
            row = connection.execute(typed.columns(a=kind, b=kind, c=kind)).one()
            assert (row.a, str(row.b), row.c) == (timedelta(days=1, seconds=2), "1 mon", None)


def test_errors_keep_what_dpsql_says(engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(ProgrammingError) as refused:
            connection.execute(text("SELECT * FROM patients"))
        assert isinstance(refused.value.orig, dpsql.ProgrammingError)
        assert refused.value.orig.sqlstate == "42501"
        assert refused.value.orig.hint == "Aggregate them. Write: SELECT COUNT(*) FROM patients"
        assert not refused.value.connection_invalidated
        with pytest.raises(InternalError, match="current transaction is aborted"):
            connection.execute(text("SELECT 1"))
        connection.rollback()
        with pytest.raises(OperationalError, match="budget") as exhausted:
            connection.execute(text("SET dpsql.epsilon = 1"))
            for age in range(100):
                connection.execute(COUNT, {"age": age})
        assert exhausted.value.orig is not None and exhausted.value.orig.sqlstate == "53400"  # type: ignore[attr-defined]


# Transactions


def test_settings_are_the_transactions(engine: sqlalchemy.Engine) -> None:
    show = text("SHOW dpsql.epsilon")
    with engine.connect() as connection:
        before = connection.scalar(show)
        connection.execute(text("SET LOCAL dpsql.epsilon = 0.3"))
        assert connection.scalar(show) == "0.3"
        connection.rollback()
        assert connection.scalar(show) == before
        with connection.begin_nested():
            connection.execute(text("SET dpsql.epsilon = 0.2"))
        connection.commit()
        assert connection.scalar(show) == "0.2"
    with pytest.raises(ProgrammingError), engine.begin() as connection:
        connection.execute(text("SET dpsql.epsilon = 0.4"))
        connection.execute(text("SELECT nothing"))
    with engine.begin() as connection:
        assert connection.scalar(show) == "0.2"


def test_autocommit_begins_nothing(engine: sqlalchemy.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver: Any = connection.connection.driver_connection
        connection.execute(text("SELECT 1"))
        assert driver.session.transaction == "I"
        assert engine.dialect.detect_autocommit_setting(driver)
    with engine.connect() as connection:
        again: Any = connection.connection.driver_connection
        assert again is driver
        connection.execute(text("SELECT 1"))
        assert driver.session.transaction == "T"
        assert not engine.dialect.detect_autocommit_setting(driver)
    with pytest.raises(ArgumentError, match="READ UNCOMMITTED"):
        engine.connect().execution_options(isolation_level="CHAOS")


# The pool


def test_connections_share_one_budget(engine: sqlalchemy.Engine, clinic_policy: Path, ledger: str) -> None:
    with engine.connect() as one, engine.connect() as other:
        assert one.connection.driver_connection is not other.connection.driver_connection
        answer = one.scalar(COUNT, {"age": 40})
        assert other.scalar(COUNT, {"age": 40}) == answer
        charges, left = spent(clinic_policy, ledger)
        assert charges == 1
        assert 4.9 < left < 5


def test_threads_never_spend_more_than_the_budget(clinic_policy: Path, ledger: str) -> None:
    engine = create_engine(
        f"dpsql:///{clinic_policy}?user=ana&ledger={ledger}&epsilon=0.5", pool_size=3, max_overflow=0
    )

    def ask(age: int) -> bool:
        with engine.connect() as connection:
            try:
                connection.execute(COUNT, {"age": age}).one()
            except OperationalError as error:
                assert "budget" in str(error.orig)
                return False
            return True

    with ThreadPoolExecutor(6) as threads:
        answered = sum(threads.map(ask, range(20)))
    engine.dispose()
    charges, left = spent(clinic_policy, ledger)
    assert charges == answered
    assert 0 < answered < 20
    assert 0 <= left < 2
    opened = open_ledger(ledger)
    assert opened.verify().ok
    opened.close()


def test_dispose_closes_and_a_closed_connection_is_replaced(clinic_policy: Path, ledger: str) -> None:
    engine = create_engine(f"dpsql:///{clinic_policy}?user=ana&ledger={ledger}", pool_pre_ping=True)
    with engine.connect() as connection:
        first: Any = connection.connection.driver_connection
        first.close()
        with pytest.raises(DBAPIError) as lost:
            connection.execute(text("SELECT 1"))
        assert lost.value.connection_invalidated
    with engine.connect() as connection:
        second: Any = connection.connection.driver_connection
    second.close()
    with engine.connect() as connection:
        third: Any = connection.connection.driver_connection
        assert connection.scalar(text("SELECT 1")) == 1
    assert len({id(each) for each in (first, second, third)}) == 3
    engine.dispose()
    assert third.closed


# What an answer cost


def test_releases_are_told(engine: sqlalchemy.Engine, clinic_policy: Path, ledger: str) -> None:
    told: list[dpsql.ReleaseReport] = []

    @event.listens_for(engine, "after_cursor_execute")
    def tell(_connection: Any, cursor: dpsql.Cursor, *_: Any) -> None:
        if cursor.release is not None:
            told.append(cursor.release)

    with engine.connect() as connection:
        sqlalchemy.inspect(connection).get_columns("patients")
        assert told == [] and spent(clinic_policy, ledger)[0] == 0
        result = connection.execute(COUNT, {"age": 40})
        release = result.cursor.release
        assert release.cost["epsilon"] == pytest.approx(0.1)
        result.all()
        connection.execute(COUNT, {"age": 40})
    assert [each.reused for each in told] == [False, True]
    assert told[0] == release


def test_automap(engine: sqlalchemy.Engine) -> None:
    base: Any = automap_base()
    base.prepare(autoload_with=engine)
    patient, visit = base.classes.patients, base.classes.visits
    assert visit.patients.property.mapper.class_ is patient
    with sqlalchemy.orm.Session(engine) as session:
        visits: Callable[..., Any] = session.query(func.count(visit.doctor_id)).join(visit.patients).filter
        assert isinstance(visits(patient.age > 30).scalar(), int)
