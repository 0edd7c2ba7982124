"""Attacks that worked once: each is refused, or gives no more than it pays for."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dpsql.backends import Cancellation
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import (
    Error,
    InvalidSyntax,
    LimitExceeded,
    QueryCanceled,
    UndefinedColumn,
    UnsupportedQuery,
)
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from dpsql.sqltypes import SqlType
from tests.conftest import Lend, MakeEngine
from tests.waiting import HANG_SECONDS


def run(session: Session, sql: str) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement)


def spent(engine: Engine) -> float:
    return float(engine.ledger.budget("ana", engine.policy).spent.rho)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT COUNT(city) OVER (ORDER BY age) FROM patients",
        "SELECT DISTINCT MAX(age) OVER (PARTITION BY sex ORDER BY weight) FROM patients",
        "SELECT COUNT(*) FROM (SELECT COUNT(*) OVER (ORDER BY age) AS n FROM patients) t WHERE n > 499",
        "SELECT COUNT(*) FROM (SELECT ROW_NUMBER() OVER (ORDER BY age) AS r FROM patients) t WHERE r <= 10",
    ],
)
def test_a_window_over_rows_of_all_is_refused(session: Session, engine: Engine, sql: str) -> None:
    with pytest.raises(UnsupportedQuery, match="window"):
        run(session, sql)
    assert spent(engine) == 0


@pytest.mark.parametrize(
    ("sql", "releases"),
    [
        ("SELECT COUNT(*) FROM (SELECT COUNT(*) OVER () AS n FROM patients) t WHERE n > 499", 2),
        ("SELECT SUM(w) FROM (SELECT weight - AVG(weight) OVER (PARTITION BY sex) AS w FROM patients) t", 2),
    ],
)
def test_what_all_rows_are_compared_with_is_released(session: Session, engine: Engine, sql: str, releases: int) -> None:
    """One more patient would change the value of every row, if it had no noise."""
    answer = run(session, sql).answer
    assert answer is not None
    assert len(answer.query.releases) == releases
    assert spent(engine) > 0


def test_the_same_question_twice_in_one_query_has_one_answer_and_one_price(session: Session, engine: Engine) -> None:
    names = [f"a{i}" for i in range(8)]
    ctes = ", ".join(f"{name} AS (SELECT COUNT(*) AS c FROM patients)" for name in names)
    (row,) = run(session, f"WITH {ctes} SELECT {', '.join(f'{n}.c' for n in names)} FROM {', '.join(names)}").rows
    assert len(set(row)) == 1
    assert spent(engine) == pytest.approx(0.005)


def test_averaging_over_spellings_gives_one_answer_at_one_price(session: Session, engine: Engine) -> None:
    spellings = [
        "SELECT COUNT(*) FROM visits v JOIN patients p USING (patient_id) WHERE p.age > 40 "
        "AND v.cost BETWEEN 10 AND 20",
        "SELECT COUNT(1) FROM patients a, visits b WHERE a.patient_id = b.patient_id AND 40.0 < age AND 1 = 1 "
        "AND NOT (b.cost < 10 OR 20 < b.cost)",
        "WITH old AS (SELECT patient_id AS who FROM patients WHERE NOT age <= 40) SELECT n FROM (SELECT COUNT(*) AS n "
        "FROM visits JOIN old ON who = patient_id WHERE 20 >= cost AND cost >= 10.00) t",
    ]
    answers = {run(session, sql).rows for sql in spellings * 3}
    assert len(answers) == 1
    assert spent(engine) == pytest.approx(0.005)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM (SELECT patient_id AS p FROM visits) s WHERE p = 17",
        "SELECT SUM(LEAST(GREATEST(p, 0), 10000)) FROM (SELECT patient_id AS p FROM patients) s",
        "SELECT q % 5, COUNT(*) FROM (SELECT p + 0 AS q FROM (SELECT patient_id AS p FROM visits) s) t GROUP BY 1",
    ],
)
def test_a_hidden_unit_key_stays_hidden_in_subqueries(session: Session, sql: str) -> None:
    with pytest.raises(UndefinedColumn, match=r"unit key|this key"):
        run(session, sql)


def test_a_hidden_unit_key_may_be_counted_through_a_subquery(session: Session) -> None:
    rows = run(session, "SELECT COUNT(DISTINCT p) FROM (SELECT patient_id AS p FROM visits) s").rows
    assert len(rows) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + ", ".join(f"COUNT(DISTINCT doctor_id + {i})" for i in range(9)) + " FROM visits",
        "SELECT a.code FROM icd10 a, icd10 b, icd10 c, icd10 d, icd10 e",
        "WITH r AS (SELECT visited_on, COUNT(*) AS n FROM visits GROUP BY 1) SELECT * FROM r a, r b",
        "SELECT COUNT(*) FROM visits WHERE REPLACE(city, 'a', '" + "b" * 101 + "') = 'x'",
    ],
)
def test_work_without_end_is_refused(make_engine: MakeEngine, clinic_policy: Path, lend: Lend, sql: str) -> None:
    """Whatever engine has the rows: what is released is put together in the gateway's own."""
    with pytest.raises(LimitExceeded):
        run(Session(make_engine(clinic_policy, backend=lend(clinic_policy)), "ana"), sql)


def test_with_that_doubles_is_refused_in_time(session: Session, engine: Engine) -> None:
    ctes = ["a0 AS (SELECT COUNT(*) AS c FROM patients)"]
    ctes += [f"a{i + 1} AS (SELECT x.c FROM a{i} x, a{i} y)" for i in range(20)]
    with pytest.raises(UnsupportedQuery, match="subqueries"):
        run(session, f"WITH {', '.join(ctes)} SELECT * FROM a20")
    assert spent(engine) == 0


def test_whoever_waits_for_a_release_can_be_cancelled(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ask the same; the second waits for the first, and waits no longer than it wants."""
    settings = session._settings.query(engine.now(), "ana")
    query = engine.compile("ana", QueryStatement("SELECT COUNT(*) FROM visits"), settings)
    lock_of, came = engine._lock_of, threading.Event()
    monkeypatch.setattr(engine, "_lock_of", lambda key: came.set() or lock_of(key))  # type: ignore[func-returns-value]
    lock = lock_of(query.releases[0].key)
    lock.acquire()
    cancellation = Cancellation()
    failed: list[Error] = []

    def ask() -> None:
        try:
            engine.execute("ana", query, cancellation)
        except Error as error:
            failed.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert came.wait(HANG_SECONDS)
    cancellation.cancel()
    waiting.join(HANG_SECONDS)
    assert not waiting.is_alive()
    lock.release()
    assert [type(error) for error in failed] == [QueryCanceled]
    assert spent(engine) == 0


def test_a_declared_parameter_gives_the_column_that_was_described(session: Session) -> None:
    (statement,) = session.parse("SELECT age / $1 AS d, COUNT(*) FROM patients GROUP BY 1")
    described = session.describe(statement, [SqlType.BIGINT])
    result = session.execute(statement, [10], described.parameters)
    assert described.columns == result.columns


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda s: run(s, "SELECT COUNT(*) FROM patients ORDER BY 0000000019"), InvalidSyntax),
        (lambda s: run(s, "SELECT COUNT(*) FROM patients GROUP BY 'sex'"), InvalidSyntax),
        (lambda s: run(s, "SELECT 1 FROM patients HAVING true"), UnsupportedQuery),
        (
            lambda s: run(
                s,
                "SELECT SUM(k) OVER (ORDER BY k ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW "
                "EXCLUDE CURRENT ROW) FROM (VALUES (1)) v (k)",
            ),
            UnsupportedQuery,
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    session: Session, change: Callable[[Session], Result], error: type[Error]
) -> None:
    with pytest.raises(error):
        change(session)


def test_set_local_ends_with_its_transaction(session: Session) -> None:
    run(session, "BEGIN")
    run(session, "SET LOCAL dpsql.epsilon = 0.9")
    assert run(session, "SHOW dpsql.epsilon").rows == [("0.9",)]
    run(session, "COMMIT")
    assert run(session, "SHOW dpsql.epsilon").rows == [("0.1",)]
    run(session, "BEGIN")
    run(session, "SAVEPOINT here")
    run(session, "SET dpsql.epsilon = 0.9")
    run(session, "ROLLBACK TO SAVEPOINT here")
    run(session, "COMMIT")
    assert run(session, "SHOW dpsql.epsilon").rows == [("0.1",)]
