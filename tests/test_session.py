"""Statements of one user: settings, transactions, notices, parameters, system relations, cancel."""

import datetime
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dpsql.errors import (
    DatatypeMismatch,
    Error,
    FailedTransaction,
    InvalidParameter,
    InvalidText,
    PolicyViolation,
    QueryCanceled,
    UndefinedColumn,
    UndefinedObject,
    UndefinedParameter,
    UnknownSavepoint,
    UnknownStatement,
    UnsupportedQuery,
)
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Description, Result, ResultColumn
from dpsql.gateway.release import PostProcessor
from dpsql.gateway.session import Session
from dpsql.ledger import Charge, SqliteLedger
from dpsql.sqltypes import SqlType
from tests.conftest import MakeEngine
from tests.waiting import HANG_SECONDS

COUNT = "SELECT COUNT(*) FROM patients"


def run(session: Session, sql: str, *values: object) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement, values)


def shown(session: Session, name: str) -> object:
    return run(session, f"SHOW {name}").rows[0][0]


def test_a_stranger_gets_no_session(engine: Engine) -> None:
    with pytest.raises(PolicyViolation):
        Session(engine, "eve")


# Kinds of statements


@pytest.mark.parametrize(
    ("sql", "tag"),
    [
        ("", ""),
        (" ; ;; -- nothing", ""),
        ("SELECT 1", "SELECT 1"),
        ("SELECT sex, COUNT(*) FROM patients GROUP BY sex", "SELECT 4"),
        ("VALUES (1), (2)", "SELECT 2"),
        ("SET dpsql.epsilon = 0.2", "SET"),
        ("SET SESSION dpsql.epsilon = 0.2", "SET"),
        ("SET LOCAL dpsql.epsilon TO 0.2", "SET"),
        ("SET TIME ZONE 'UTC'", "SET"),
        ("SET NAMES 'UTF8'", "SET"),
        ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET"),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET"),
        ("RESET dpsql.epsilon", "RESET"),
        ("RESET ALL", "RESET"),
        ("SHOW dpsql.epsilon", "SHOW"),
        ("SHOW ALL", "SHOW"),
        ("SHOW TIME ZONE", "SHOW"),
        ("SHOW TRANSACTION ISOLATION LEVEL", "SHOW"),
        ("EXPLAIN SELECT COUNT(*) FROM patients", "EXPLAIN"),
        ("BEGIN", "BEGIN"),
        ("START TRANSACTION", "START TRANSACTION"),
        ("COMMIT", "COMMIT"),
        ("END", "COMMIT"),
        ("ROLLBACK", "ROLLBACK"),
        ("ABORT", "ROLLBACK"),
        ("DISCARD ALL", "DISCARD ALL"),
        ("DISCARD TEMP", "DISCARD TEMP"),
        ("DEALLOCATE ALL", "DEALLOCATE ALL"),
        ("DEALLOCATE PREPARE ALL", "DEALLOCATE ALL"),
    ],
)
def test_tags(session: Session, sql: str, tag: str) -> None:
    result = run(session, sql)
    if sql in ("COMMIT", "END", "ROLLBACK", "ABORT"):
        assert result.notices[0].sqlstate == "25P01"
    assert result.tag == tag
    returns_rows = tag.split(" ")[0] in ("SELECT", "SHOW", "EXPLAIN")
    assert (result.columns is not None) == returns_rows
    (statement,) = session.parse(sql)
    assert session.describe(statement).columns == result.columns


def test_a_text_is_split_into_its_statements(session: Session) -> None:
    statements = session.parse("BEGIN; SELECT 1 AS \"a;b\"; SELECT ';' -- ; \n; /* ; */ COMMIT;")
    assert [statement.sql for statement in statements] == [
        "BEGIN",
        'SELECT 1 AS "a;b"',
        "SELECT ';'",
        "COMMIT",
    ]


def test_explain_tells_price_error_and_plan_and_costs_nothing(engine: Engine, session: Session) -> None:
    result = run(session, "EXPLAIN SELECT sex, COUNT(*), AVG(age) FROM patients GROUP BY sex")
    text = "\n".join(str(row[0]) for row in result.rows)
    for part in (
        "Price: epsilon 0.1",
        "Remaining: epsilon 5 of 5",
        "Column sex",
        "± ",
        "engine SQL",
        "Post-processing",
    ):
        assert part in text
    assert result.columns == (ResultColumn("QUERY PLAN", SqlType.TEXT),)
    run(session, "SET dpsql.max_rows = 20")
    told = "Release 1: contribution bound: 20 rows per patient"
    for each in ("", ", 5 in each group"):
        for columns, of_groups in (("COUNT(*)", ""), ("COUNT(*), COUNT(DISTINCT patient_id)", ", in 10 groups")):
            explained = run(session, f"EXPLAIN SELECT icd, {columns} FROM visits GROUP BY icd")
            assert (f"{told}{each}{of_groups}",) in explained.rows
        run(session, "SET dpsql.max_rows_per_group = 5")
    histogram = run(session, "EXPLAIN SELECT HISTOGRAM(age, 0, 100, 2) FROM patients")
    assert "Column histogram (bigint[]): each count ± " in str(histogram.rows)
    assert "free, no private row is read" in str(run(session, "EXPLAIN SELECT COUNT(*) FROM doctors").rows)
    assert engine.ledger.history() == []


def test_deallocating_what_is_not_there(session: Session) -> None:
    for sql in ("DEALLOCATE p", "DEALLOCATE PREPARE p", 'DEALLOCATE "p q"'):
        with pytest.raises(UnknownStatement):
            run(session, sql)


# Describe


def test_describe_tells_types_and_charges_nothing(engine: Engine, session: Session) -> None:
    (statement,) = session.parse("SELECT sex, COUNT(*) AS n, AVG(weight) FROM patients WHERE age > $1 GROUP BY sex")
    assert session.describe(statement) == Description(
        (SqlType.INTEGER,),
        (
            ResultColumn("sex", SqlType.TEXT),
            ResultColumn("n", SqlType.BIGINT),
            ResultColumn("avg", SqlType.DOUBLE),
        ),
        elements=(None,),
    )
    assert engine.ledger.history() == []


@pytest.mark.parametrize(
    ("sql", "declared", "types"),
    [
        ("SELECT 1", (), ()),
        ("SELECT $1", (), (SqlType.TEXT,)),
        ("SELECT $1::int", (), (SqlType.INTEGER,)),
        ("SELECT $2::int", (), (SqlType.TEXT, SqlType.INTEGER)),
        ("SELECT $1 + 1", (), (SqlType.INTEGER,)),
        ("SELECT $1 + $2", (), (SqlType.DOUBLE, SqlType.DOUBLE)),
        ("SELECT abs($1)", (), (SqlType.DOUBLE,)),
        ("SELECT EXTRACT(year FROM $1)", (), (SqlType.TIMESTAMP,)),
        ("SELECT 'x' || $1", (), (SqlType.TEXT,)),
        ("SELECT COUNT(*) FROM visits WHERE visited_on > $1", (), (SqlType.DATE,)),
        ("SELECT COUNT(*) FROM visits WHERE visited_on BETWEEN $1 AND $2", (), (SqlType.DATE, SqlType.DATE)),
        ("SELECT COUNT(*) FROM visits WHERE cost > $1", (), (SqlType.NUMERIC,)),
        ("SELECT COUNT(*) FROM patients WHERE sex IN ($1, $2)", (), (SqlType.TEXT, SqlType.TEXT)),
        ("SELECT COUNT(*) FROM patients WHERE $1", (), (SqlType.BOOLEAN,)),
        ("SELECT COUNT(*) FROM patients WHERE age > $1", (SqlType.BIGINT,), (SqlType.BIGINT,)),
        ("SELECT COUNT(*) FROM patients WHERE age > $1", (None,), (SqlType.INTEGER,)),
        ("SELECT COUNT(*) FROM patients LIMIT $1", (), (SqlType.BIGINT,)),
        ("SELECT COUNT(*) FROM patients WHERE age > $1 OR age < $1", (), (SqlType.INTEGER,)),
        ("EXPLAIN SELECT COUNT(*) FROM patients WHERE age > $1", (), (SqlType.INTEGER,)),
    ],
)
def test_placeholders_have_the_type_of_their_place(
    session: Session, sql: str, declared: tuple[SqlType | None, ...], types: tuple[SqlType, ...]
) -> None:
    (statement,) = session.parse(sql)
    assert session.describe(statement, declared).parameters == types


def test_describe_refuses_what_executing_refuses(session: Session) -> None:
    (statement,) = session.parse("SELECT nothing FROM patients")
    with pytest.raises(UndefinedColumn):
        session.describe(statement)


# Parameters


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (True, SqlType.BOOLEAN),
        (5, SqlType.INTEGER),
        (-5, SqlType.INTEGER),
        (5_000_000_000, SqlType.BIGINT),
        (-5_000_000_000, SqlType.BIGINT),
        (2**70, SqlType.NUMERIC),
        (1.5, SqlType.DOUBLE),
        (-0.0, SqlType.DOUBLE),
        (Decimal("1.50"), SqlType.NUMERIC),
        (Decimal("-0.001"), SqlType.NUMERIC),
        (datetime.date(2024, 2, 29), SqlType.DATE),
        (datetime.datetime(2024, 2, 29, 12, 30, 0, 5), SqlType.TIMESTAMP),
        (datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC), SqlType.TIMESTAMPTZ),
        (datetime.time(12, 30), SqlType.TIME),
        (UUID(int=5), SqlType.UUID),
        ("it's; -- $1 \\ 'text'", SqlType.TEXT),
        (None, SqlType.TEXT),
    ],
)
def test_parameters_come_back_as_they_went_in(session: Session, value: object, type_: SqlType) -> None:
    result = run(session, "SELECT $1 AS v", value)
    assert result.columns == (ResultColumn("v", type_),)
    assert result.rows == ((value,),)


@pytest.mark.parametrize("value", [b"bytes", [1], {}, object(), 1j])
def test_parameters_of_other_python_types(session: Session, value: object) -> None:
    with pytest.raises(DatatypeMismatch) as caught:
        run(session, "SELECT $1", value)
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("sql", "value", "code"),
    [
        (f"{COUNT} WHERE age > $1", "abc", "22P02"),
        (f"{COUNT} WHERE age > $1", "9" * 20, "22003"),
        (f"{COUNT} WHERE age > $1", "9" * 12, "22003"),
        (f"{COUNT} WHERE age > $1", float("nan"), "22003"),
        (f"{COUNT} WHERE age > $1", float("inf"), "22003"),
        (f"{COUNT} WHERE age > $1", Decimal("NaN"), "22003"),
        (f"{COUNT} WHERE age > $1", Decimal("1e400"), "22003"),
        (f"{COUNT} WHERE age > $1", 10**40, "22003"),
        (f"{COUNT} WHERE sex = $1", "\x00", "22P02"),
        (f"{COUNT} WHERE sex = $1", "\ud800", "22P02"),
        (f"{COUNT} WHERE sex = $1", 5, "42804"),
        (f"{COUNT} LIMIT $1", -1, "22023"),
    ],
)
def test_parameters_that_do_not_fit(engine: Engine, session: Session, sql: str, value: object, code: str) -> None:
    with pytest.raises(Error) as caught:
        run(session, sql, value)
    assert caught.value.sqlstate == code
    assert engine.ledger.history() == []


def test_missing_and_superfluous_parameters(session: Session) -> None:
    with pytest.raises(UndefinedParameter):
        run(session, "SELECT $1, $2", 5)
    assert run(session, "SELECT $1::int", 5, 6).rows == ((5,),)


@pytest.mark.parametrize("value", ["F", "'; DROP TABLE patients; --", "' OR TRUE --", "\\"])
def test_parameters_are_values_never_text(session: Session, value: str) -> None:
    assert run(session, "SELECT $1 = 'F'", value).rows == ((value == "F",),)


# Settings


def test_set_show_and_reset(session: Session) -> None:
    assert shown(session, "dpsql.epsilon") == "0.1"
    run(session, "SET dpsql.epsilon = 0.25")
    assert shown(session, "dpsql.epsilon") == "0.25"
    assert shown(session, "DPSQL.Epsilon") == "0.25"
    run(session, "SET dpsql.epsilon TO DEFAULT")
    assert shown(session, "dpsql.epsilon") == "0.1"
    run(session, "SET dpsql.epsilon = '3e-1'")
    assert shown(session, "dpsql.epsilon") == "0.3"
    run(session, "RESET dpsql.epsilon")
    assert shown(session, "dpsql.epsilon") == "0.1"
    run(session, "SET dpsql.mechanism = 'gaussian'")
    run(session, "RESET ALL")
    assert shown(session, "dpsql.mechanism") == "auto"


def test_the_price_is_the_setting(engine: Engine, session: Session) -> None:
    run(session, "SET dpsql.epsilon = 0.2")
    result = run(session, COUNT)
    assert result.answer is not None
    assert result.answer.query.price is not None
    assert float(result.answer.query.price.epsilon) == 0.2
    assert "price: epsilon 0.2" in result.notices[0].message


def test_settings_that_clients_are_told_of(session: Session) -> None:
    assert run(session, "SET application_name = 'psql'").parameters == (("application_name", "psql"),)
    assert run(session, "SET application_name = 'psql'").parameters == ()
    assert run(session, "SET dpsql.epsilon = 0.2").parameters == ()
    assert run(session, "RESET ALL").parameters == (("application_name", ""),)
    run(session, "SET application_name = 'psql'")
    assert run(session, "DISCARD ALL").parameters == (("application_name", ""),)
    assert session.parameters["client_encoding"] == "UTF8"


def test_settings_from_the_connection(session: Session) -> None:
    session.configure("dpsql.epsilon", "0.3")
    assert shown(session, "dpsql.epsilon") == "0.3"
    with pytest.raises(InvalidParameter):
        session.configure("dpsql.epsilon", "3")
    with pytest.raises(UndefinedObject):
        session.configure("nothing", "3")
    assert session.user == "ana"
    assert session.reply_quantum == 0


def test_show_all_names_every_setting(session: Session) -> None:
    rows = {str(row[0]): row[1] for row in run(session, "SHOW ALL").rows}
    for name in rows:
        assert rows[name] == shown(session, name)
    assert {"dpsql.epsilon", "dpsql.reuse", "TimeZone", "server_version"} <= set(rows)


def test_intervals_add_columns(session: Session) -> None:
    sql = "SELECT sex, COUNT(*) AS n, AVG(age) AS age FROM patients GROUP BY sex ORDER BY sex"
    plain = run(session, sql)
    run(session, "SET dpsql.intervals = on")
    (statement,) = session.parse(sql)
    described = session.describe(statement)
    result = run(session, sql)
    assert result.columns is not None
    names = ["sex", "n", "n_low", "n_high", "age", "age_low", "age_high"]
    assert [column.name for column in result.columns] == names
    assert described.columns == result.columns
    # The same release: only what is said about it is new.
    assert result.answer is not None
    assert result.answer.reused
    for row, before in zip(result.rows, plain.rows, strict=True):
        sex, n, n_low, n_high, age, age_low, age_high = row
        assert (sex, n, age) == before
        assert float(str(n_low)) < float(str(n)) < float(str(n_high))
        if age is None:
            assert (age_low, age_high) == (None, None) and sex not in ("F", "M")
        else:
            assert float(str(age_low)) <= float(str(age)) <= float(str(age_high))


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT COUNT(*) AS n FROM patients HAVING COUNT(*) > 0", ["n", "n_low", "n_high"]),
        ("SELECT n FROM (SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex LIMIT 2) AS t", ["n", "n_low", "n_high"]),
        ("SELECT n + 1 AS m FROM (SELECT COUNT(*) AS n FROM patients) AS t", ["m", "m_low", "m_high"]),
        (
            "SELECT n + 1 AS m FROM (SELECT COUNT(*) AS n FROM patients) AS t ORDER BY m LIMIT 1",
            ["m", "m_low", "m_high"],
        ),
        ("SELECT COUNT(*) % 7 AS m FROM patients", ["m"]),
        ("SELECT sex FROM patients GROUP BY sex HAVING COUNT(*) > 0", ["sex"]),
        ("SELECT DISTINCT COUNT(*) AS n FROM patients GROUP BY sex", ["n", "n_low", "n_high"]),
        ("SELECT COUNT(*) AS n FROM patients UNION ALL SELECT COUNT(*) FROM visits", ["n", "n_low", "n_high"]),
        ("SELECT a.n FROM (SELECT COUNT(*) AS n FROM patients) a, doctors d LIMIT 1", ["n", "n_low", "n_high"]),
        (
            "SELECT RANK() OVER (ORDER BY COUNT(*)) AS r, COUNT(*) AS n FROM patients GROUP BY sex",
            ["r", "n", "n_low", "n_high"],
        ),
        ("SELECT COUNT(*) AS n FROM doctors", ["n"]),
        ("SELECT COUNT(*) + (SELECT MEDIAN(age) FROM patients) AS m FROM patients", ["m"]),
        ("SELECT MAX(n) + 1 AS m FROM (SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex) AS t", ["m"]),
        ("SELECT k + 1 AS m FROM (SELECT MAX(n) AS k FROM (SELECT COUNT(*) AS n FROM patients) AS t) AS u", ["m"]),
        ("SELECT COUNT(*) * 1.0 / doctor_id AS m FROM visits GROUP BY doctor_id", ["m", "m_low", "m_high"]),
        (
            "SELECT n * k AS m FROM (SELECT n, n AS k FROM (SELECT COUNT(*) AS n FROM patients) AS t) AS u",
            ["m", "m_low", "m_high"],
        ),
    ],
)
def test_intervals_stand_beside_noisy_columns_only(session: Session, sql: str, names: list[str]) -> None:
    run(session, "SET dpsql.intervals = on")
    (statement,) = session.parse(sql)
    result = session.execute(statement)
    assert result.columns is not None
    assert [column.name for column in result.columns] == names
    assert session.describe(statement).columns == result.columns


def test_explaining_as_an_object(engine: Engine, session: Session) -> None:
    for sql in (COUNT, f"EXPLAIN {COUNT}"):
        assert session.explain(session.parse(sql)[0]).spends.rho > 0
    with pytest.raises(UnsupportedQuery):
        session.explain(session.parse("SHOW ALL")[0])
    assert engine.ledger.history() == []


def test_narrower_bounds(session: Session) -> None:
    def cells(sql: str) -> tuple[int, int]:
        result = run(session, sql)
        assert result.answer is not None
        bounds = result.answer.query.releases[0].contribution
        return bounds.groups_per_unit, bounds.rows_per_group

    sql = "SELECT drug, COUNT(*) FROM prescriptions GROUP BY drug"
    assert cells(sql) == (40, 40)
    run(session, "SET dpsql.max_groups = 3")
    run(session, "SET dpsql.max_rows_per_group = 2")
    assert cells(sql) == (3, 2)
    run(session, "SET dpsql.max_groups = 1000000")
    run(session, "SET dpsql.max_rows_per_group = 1000000")
    assert cells(sql) == (40, 40)
    run(session, "SET dpsql.max_rows = 7")
    assert cells("SELECT COUNT(*) FROM visits") == (1, 7)
    run(session, "SET dpsql.max_rows = 7000")
    assert cells("SELECT COUNT(*) FROM visits") == (1, 50)


# Notices


def test_notices(session: Session, each_clinic: Path) -> None:
    sql = "SELECT icd, COUNT(*) AS n, AVG(cost) AS c FROM visits GROUP BY icd"
    first = run(session, sql)
    (notice,) = first.notices
    for part in ("price: epsilon 0.1 (rho 0.005)", "remaining: epsilon ", "of 5", "n ± ", " (95 %", "c"):
        assert part in notice.message
    assert notice.detail == ("contribution bound: 50 rows per patient; values are clamped to their declared bounds")
    again = run(session, sql)
    assert "price: free, your earlier release" in again.notices[0].message
    assert run(session, "SELECT COUNT(*) FROM visits").notices[0].detail == "contribution bound: 50 rows per patient"
    run(session, "SET dpsql.max_rows = 20")
    run(session, "SET dpsql.max_rows_per_group = 5")
    by_rows = "contribution bound: 20 rows per patient, 5 in each group"
    assert (
        run(session, f"{sql} ORDER BY n").notices[0].detail == f"{by_rows}; values are clamped to their declared bounds"
    )
    counted = run(session, "SELECT icd, COUNT(DISTINCT patient_id), COUNT(*) FROM visits GROUP BY icd")
    assert counted.notices[0].detail == f"{by_rows}, in 10 groups"
    # No file enforces that a patient has one row.
    is_of_files = "parquet:///" in each_clinic.read_text(encoding="utf-8")
    assert run(session, COUNT).notices[0].detail == ("contribution bound: 1 row per patient" if is_of_files else None)
    assert run(session, "SELECT COUNT(*) FROM doctors").notices == ()
    run(session, "SET dpsql.notices = off")
    assert run(session, f"{COUNT} WHERE age > 5").notices == ()


def test_another_users_release_is_not_announced(engine: Engine, session: Session) -> None:
    run(session, COUNT)
    (notice,) = run(Session(engine, "ben"), COUNT).notices
    assert "price: epsilon 0.1" in notice.message
    assert "free" not in notice.message


# System relations


def test_budget(session: Session) -> None:
    run(session, COUNT)
    result = run(session, "SELECT * FROM dpsql.budget")
    assert result.columns is not None
    row = dict(zip([column.name for column in result.columns], result.rows[0], strict=True))
    assert (row["scope"], row["accountant"], row["epsilon_limit"], row["queries"]) == ("user", "zcdp", 5.0, 1)
    assert isinstance(row["epsilon_remaining"], float)
    assert 4 < row["epsilon_remaining"] < 5
    assert isinstance(row["queries_that_fit"], int)
    assert 80 < row["queries_that_fit"] < 100
    assert isinstance(row["window_start"], datetime.datetime)
    assert result.answer is not None
    assert result.answer.charge is None


def test_releases(engine: Engine, session: Session) -> None:
    assert run(session, "SELECT * FROM dpsql.releases").rows == ()
    run(session, COUNT)
    run(session, COUNT)
    run(Session(engine, "ben"), f"{COUNT} WHERE age > 7")
    found = run(session, "SELECT query, reused, price, kept, epsilon, rho, delta FROM dpsql.releases")
    ((query, reused, price, kept, _, rho, delta),) = found.rows
    assert (query, reused, price, kept, delta) == (COUNT, 1, "epsilon 0.1", True, 0.0)
    assert rho == pytest.approx(0.005)
    run(session, "SELECT city, COUNT(*) FROM visits GROUP BY city")
    prices = run(session, "SELECT price FROM dpsql.releases ORDER BY release").rows
    assert prices[1] == ("epsilon 0.1, delta 1e-09",)


def test_columns(session: Session) -> None:
    rows = run(
        session,
        "SELECT column_name, data_type, status, lower, upper, domain, description FROM dpsql.columns "
        "WHERE table_name IN ('patients', 'visits') AND column_name IN ('age', 'sex', 'cost', 'icd', 'visited_on') "
        "ORDER BY table_name, column_name",
    ).rows
    assert rows == (
        ("age", "integer", "protected", "0", "110", None, "years"),
        ("sex", "text", "protected", None, None, "F, M, X", "One row per patient"),
        ("cost", "numeric", "protected", "0", "5000", None, "euros"),
        ("icd", "text", "protected", None, None, "icd10.code", "diagnosis"),
        (
            "visited_on",
            "date",
            "protected",
            "2020-01-01",
            "2026-12-31",
            None,
            "One row per visit of a patient to a doctor",
        ),
    )


def test_system_relations_join_and_aggregate(session: Session) -> None:
    sql = "SELECT status, COUNT(*) FROM dpsql.columns GROUP BY status ORDER BY status"
    assert run(session, sql).rows == (("protected", 13), ("public", 5))
    sql = "SELECT b.epsilon_limit, p.n > -1000000 FROM dpsql.budget AS b, (SELECT COUNT(*) AS n FROM patients) AS p"
    assert run(session, sql).rows == ((5.0, True),)


# Constants of a session


def test_words_of_the_session(session: Session) -> None:
    result = run(
        session, "SELECT CURRENT_USER, SESSION_USER, current_database(), CURRENT_CATALOG, CURRENT_SCHEMA, version()"
    )
    assert result.rows == (("ana", "ana", "clinic", "clinic", "public", "PostgreSQL 15.0 (dpsql)"),)


def test_now_is_one_moment(session: Session) -> None:
    now, today, local, same = run(
        session, "SELECT now(), CURRENT_DATE, LOCALTIMESTAMP, now() = CURRENT_TIMESTAMP FROM (SELECT 1 AS x) AS t"
    ).rows[0]
    assert isinstance(now, datetime.datetime)
    assert now.tzinfo is not None
    assert abs((datetime.datetime.now(datetime.UTC) - now).total_seconds()) < 60
    assert today == now.date()
    assert local == now.replace(tzinfo=None)
    assert same is True


# Transactions


def test_a_transaction_undoes_settings_and_no_charge(engine: Engine, session: Session) -> None:
    assert session.transaction == "I"
    assert run(session, "BEGIN").tag == "BEGIN"
    assert session.transaction == "T"
    assert run(session, "BEGIN").notices[0].sqlstate == "25001"
    run(session, "SET dpsql.epsilon = 0.3")
    run(session, "SET application_name = 'x'")
    run(session, COUNT)
    assert run(session, "ROLLBACK").parameters == (("application_name", ""),)
    assert session.transaction == "I"
    assert shown(session, "dpsql.epsilon") == "0.1"
    assert len(engine.ledger.history("ana")) == 1
    run(session, "BEGIN")
    run(session, "SET dpsql.epsilon = 0.3")
    assert run(session, "COMMIT").tag == "COMMIT"
    assert shown(session, "dpsql.epsilon") == "0.3"


def test_a_failed_transaction_answers_nothing_until_it_ends(session: Session) -> None:
    run(session, "BEGIN")
    run(session, "SET dpsql.epsilon = 0.3")
    with pytest.raises(UndefinedColumn):
        run(session, "SELECT nothing FROM patients")
    assert session.transaction == "E"
    for sql in (COUNT, "SHOW ALL", "SET dpsql.epsilon = 0.2", "BEGIN", "SAVEPOINT s"):
        with pytest.raises(FailedTransaction):
            run(session, sql)
        with pytest.raises(FailedTransaction):
            session.describe(session.parse(sql)[0])
    assert run(session, "").tag == ""
    assert session.transaction == "E"
    assert run(session, "COMMIT").tag == "ROLLBACK"
    assert session.transaction == "I"
    assert shown(session, "dpsql.epsilon") == "0.1"


def test_savepoints(session: Session) -> None:
    for sql in ("SAVEPOINT s", "RELEASE s", "ROLLBACK TO s"):
        with pytest.raises(Error) as caught:
            run(session, sql)
        assert caught.value.sqlstate == "25P01"
    run(session, "BEGIN")
    run(session, "SAVEPOINT s")
    with pytest.raises(UndefinedColumn):
        run(session, "SELECT nothing")
    assert run(session, "ROLLBACK TO SAVEPOINT s").tag == "ROLLBACK"
    assert session.transaction == "T"
    assert run(session, "RELEASE s").tag == "RELEASE"
    with pytest.raises(UnknownSavepoint):
        run(session, "ROLLBACK TO s")
    assert run(session, "COMMIT").tag == "ROLLBACK"


def test_the_wires_own_errors_fail_a_transaction(session: Session) -> None:
    session.fail()
    assert session.transaction == "I"
    run(session, "BEGIN")
    session.fail()
    assert session.transaction == "E"
    run(session, "ROLLBACK")
    with pytest.raises(InvalidText):
        run(session, "SELECT DATE 'x'")
    assert session.transaction == "I"


# Cancelling

SLOW = (
    "WITH a AS (SELECT COUNT(*) AS n FROM patients GROUP BY age) "
    "SELECT COUNT(*) FROM a AS u, a AS v, a AS w, a AS x, a AS y, a AS z WHERE u.n % 7 < z.n"
)
"""Post-processing that takes long; the release itself does not."""


@contextmanager
def once_it_has_read(act: Callable[[], None]) -> Iterator[None]:
    """Act from another thread once private rows are read, and answers are computed from noisy ones."""
    has_read, post_process = threading.Event(), PostProcessor.run

    def noted(self: PostProcessor, *arguments: Any, **named: Any) -> Any:
        has_read.set()
        return post_process(self, *arguments, **named)

    def wait() -> None:
        assert has_read.wait(HANG_SECONDS)
        act()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(PostProcessor, "run", noted)
        acted = pool.submit(wait)
        yield
        acted.result()


def test_cancelling_from_another_thread(engine: Engine, session: Session) -> None:
    session.cancel()  # nothing runs: nothing happens
    run(session, f"EXPLAIN {SLOW}")  # the process that parses it first has started
    with once_it_has_read(session.cancel), pytest.raises(QueryCanceled):
        run(session, SLOW)
    assert len(engine.ledger.history("ana")) == 1
    assert run(session, COUNT).tag == "SELECT 1"


def test_the_time_limit(engine: Engine, session: Session) -> None:
    run(session, "SET statement_timeout = '300ms'")
    with pytest.raises(QueryCanceled):
        run(session, SLOW)
    run(session, "SET statement_timeout = 0")
    assert run(session, COUNT).tag == "SELECT 1"


def test_a_limit_and_a_cancel_wait_for_the_end_of_the_quantum(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whether a query has ended by a moment of one's choice would tell what padding hides."""
    monkeypatch.setattr(Session, "reply_quantum", 600_000)
    charge = SqliteLedger.charge

    def charged(*arguments: Any, **named: Any) -> Charge:
        session.cancel()
        threading.Event().wait(0.05)  # past the time limit
        return charge(*arguments, **named)

    monkeypatch.setattr(SqliteLedger, "charge", charged)
    run(session, "SET statement_timeout = '1ms'")
    assert run(session, COUNT).tag == "SELECT 1"
    assert len(engine.ledger.history("ana")) == 1


def test_closing_cancels(session: Session) -> None:
    with once_it_has_read(session.close), pytest.raises(QueryCanceled):
        run(session, SLOW)


def test_sessions_do_not_share_settings(engine: Engine) -> None:
    one, other = Session(engine, "ana"), Session(engine, "ana")
    run(one, "SET dpsql.epsilon = 0.3")
    assert shown(other, "dpsql.epsilon") == "0.1"


def test_time_zones_of_the_dataset(make_engine: MakeEngine, clinic_policy: Path) -> None:
    berlin = clinic_policy.with_name("berlin.toml")
    berlin.write_text(clinic_policy.read_text(encoding="utf-8").replace('"UTC"', '"Europe/Berlin"'), encoding="utf-8")
    session = Session(make_engine(berlin), "ana")
    assert shown(session, "TimeZone") == "Europe/Berlin"
    sql = (
        "SELECT TIMESTAMPTZ '2024-07-01 00:30:00+02', DATE_TRUNC('day', TIMESTAMPTZ '2024-07-01 00:30:00+02'), "
        "EXTRACT(day FROM TIMESTAMPTZ '2024-06-30 22:30:00+00'), "
        "TIMESTAMPTZ '2024-07-01 00:30:00' = TIMESTAMPTZ '2024-06-30 22:30:00+00'"
    )
    moment, day, number, same = run(session, sql).rows[0]
    assert str(moment) == "2024-07-01 00:30:00+02:00"
    assert str(day) == "2024-07-01 00:00:00+02:00"
    assert number == 1
    # A moment written without a zone is of the dataset's zone.
    assert same is True


def test_a_policy_may_name_the_datasets_own_schema(make_engine: MakeEngine, clinic_policy: Path) -> None:
    policy = clinic_policy.with_name("own_schema.toml")
    text = clinic_policy.read_text(encoding="utf-8").replace("[tables.patients", '[tables."main.patients"')
    policy.write_text(text, encoding="utf-8")
    session = Session(make_engine(policy), "ana")
    for name in ("patients", "main.patients", "public.patients"):
        assert run(session, f"SELECT COUNT(*) FROM {name}").rows
