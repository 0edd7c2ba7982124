"""Queries by which clients ask for columns: no rows, no charge, and nobody asks the database."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psycopg
import pytest

from dpsql.backends import Backend
from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import Error, PolicyViolation, UndefinedColumn, UnsupportedQuery
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from dpsql.sqltypes import SqlType
from tests.conftest import open_engine
from tests.wire.catalog.conftest import SilentBackend

VISITS = {
    "doctor_id": SqlType.INTEGER,
    "visited_on": SqlType.DATE,
    "cost": SqlType.NUMERIC,
    "duration_min": SqlType.INTEGER,
    "icd": SqlType.TEXT,
    "city": SqlType.TEXT,
}
COUNTED = {"sex": SqlType.TEXT, "n": SqlType.BIGINT}
COUNTS = "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex"


@pytest.fixture(scope="module")
def silent(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine whose database must not be asked."""
    backend = cast(Backend, SilentBackend(clinic_policy))
    engine = open_engine(clinic_policy, tmp_path_factory.mktemp("probes") / "ledger.sqlite", backend=backend)
    yield engine
    engine.close()
    engine.ledger.close()


@pytest.fixture
def session(silent: Engine) -> Iterator[Session]:
    """A session in which nothing may be charged."""
    yield Session(silent, "ana")
    assert silent.ledger.budget("ana", silent.policy).charges == 0


def run(session: Session, sql: str, *values: object) -> Result:
    (statement,) = session.parse(sql)
    described = session.describe(statement)
    result = session.execute(statement, values)
    assert described.columns == result.columns
    assert result.notices == ()
    return result


@pytest.mark.parametrize(
    "sql",
    [
        *(
            "SELECT * FROM visits LIMIT 0",
            "SELECT * FROM visits WHERE 1=0",
            "SELECT * FROM visits WHERE 1 <> 1 LIMIT 0",
        ),
        *("SELECT * FROM visits WHERE false", "SELECT * FROM visits WHERE NULL", "SELECT v.* FROM visits v LIMIT 0"),
        *("SELECT * FROM visits WHERE NOT true", "SELECT * FROM visits WHERE 'a' = 'b' AND cost > 5 LIMIT 10"),
        *("SELECT * FROM visits WHERE 1 > 2 OR (NOT (1 = 1) AND city = 'x') ORDER BY cost LIMIT 100 OFFSET 7",),
        *("SELECT * FROM (SELECT * FROM visits) AS virtual_table LIMIT 0", "(SELECT * FROM visits) LIMIT 0"),
        *("SELECT * FROM (SELECT * FROM visits WHERE 1=0) AS t", "SELECT * FROM (SELECT * FROM visits) t WHERE 0 = 1"),
        *("WITH q AS (SELECT * FROM visits) SELECT * FROM q LIMIT 0", "SELECT * FROM visits FETCH FIRST 0 ROWS ONLY"),
        *("SELECT v.* FROM visits v JOIN patients p USING (patient_id) WHERE 1 = 0",),
        *("SELECT v.* FROM visits v LEFT JOIN doctors d ON d.doctor_id = v.doctor_id WHERE false",),
        *("SELECT * FROM visits LIMIT 0 OFFSET 5", "SELECT * FROM visits WHERE 1 IN (2, 3)"),
        *("SELECT * FROM visits WHERE DATE '2024-01-01' <> DATE '2024-01-01' AND cost > 5",),
        *("SELECT * FROM visits WHERE 1 NOT IN (2, 1)", "SELECT * FROM visits WHERE 1 IN (2, NULL)"),
        *("SELECT DISTINCT * FROM visits LIMIT 0",),
    ],
)
def test_rows_of_protected_tables(session: Session, sql: str) -> None:
    result = run(session, sql)
    assert result.rows == [] or result.rows == ()
    assert {column.name: column.type for column in result.columns or ()} == VISITS


@pytest.mark.parametrize(
    "sql",
    [
        *(f"{COUNTS} LIMIT 0", f"SELECT * FROM ({COUNTS}) t LIMIT 0", f"SELECT * FROM ({COUNTS}) t WHERE 1 <> 1"),
        *(f"{COUNTS} HAVING 1 = 0", COUNTS.replace("GROUP", "WHERE 1 = 0 GROUP")),
        *(f"SELECT DISTINCT * FROM ({COUNTS}) t LIMIT 0",),
        *(f"WITH q AS ({COUNTS}) SELECT a.* FROM q a JOIN (SELECT 1 WHERE false) b ON true",),
        *(f"SELECT a.* FROM ({COUNTS} LIMIT 0) a LEFT JOIN ({COUNTS}) b USING (sex)",),
        *(f"SELECT a.* FROM ({COUNTS}) b RIGHT JOIN ({COUNTS} LIMIT 0) a USING (sex)",),
        *(f"SELECT a.* FROM ({COUNTS} LIMIT 0) b FULL JOIN ({COUNTS} LIMIT 0) a USING (sex)",),
    ],
)
def test_released_rows(session: Session, sql: str) -> None:
    result = run(session, sql)
    assert len(result.rows) == 0
    assert {column.name: column.type for column in result.columns or ()} == COUNTED


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT city FROM visits WHERE 1=0 UNION ALL SELECT city FROM patients LIMIT 0",
        "(SELECT city FROM visits LIMIT 0) UNION ALL (SELECT city FROM patients WHERE 1=0)",
    ],
)
def test_unions(session: Session, sql: str) -> None:
    result = run(session, sql)
    assert len(result.rows) == 0
    assert [(column.name, column.type) for column in result.columns or ()] == [("city", SqlType.TEXT)]


def test_public_tables_and_other_columns(session: Session) -> None:
    assert len(run(session, "SELECT * FROM doctors WHERE 1 = 0").rows) == 0
    found = run(session, "SELECT age + 1 AS x, 'a' AS a, patient_id FROM patients LIMIT 0")
    types = [column.type for column in found.columns or ()]
    assert types == [SqlType.INTEGER, SqlType.TEXT, SqlType.INTEGER]
    session.execute(session.parse("SET dpsql.intervals = on")[0])
    assert len(run(session, f"{COUNTS} LIMIT 0").columns or ()) == 4


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT nothing FROM visits LIMIT 0", UndefinedColumn),
        ("SELECT * FROM visits", PolicyViolation),
        ("SELECT * FROM visits ORDER BY cost LIMIT 100", UnsupportedQuery),
        ("SELECT * FROM visits WHERE 1 = 1 LIMIT 1", UnsupportedQuery),
        ("SELECT * FROM visits WHERE 1 = 0 OR city = 'x'", PolicyViolation),
        ("SELECT * FROM visits WHERE 1 IN (2, 1)", PolicyViolation),
        ("SELECT * FROM visits WHERE 1 NOT IN (2, 3)", PolicyViolation),
        ("SELECT * FROM visits WHERE city IN ('x', 'y') AND 1 = 1", PolicyViolation),
        ("SELECT * FROM visits WHERE NOT (city = 'x' AND 1 = 0)", PolicyViolation),
        ("SELECT * FROM visits UNION ALL SELECT * FROM visits WHERE 1 = 0", PolicyViolation),
        ("(SELECT * FROM visits) EXCEPT (SELECT * FROM visits LIMIT 0)", UnsupportedQuery),
        ("SELECT * FROM visits WHERE cost = 0 AND cost = 1", PolicyViolation),
        ("SELECT patient_id, COUNT(*) FROM visits GROUP BY patient_id", PolicyViolation),
    ],
)
def test_rows_that_there_might_be_are_refused_with_a_hint(session: Session, sql: str, error: type[Error]) -> None:
    with pytest.raises(error) as caught:
        run(session, sql)
    assert caught.value.hint


def test_a_value_that_is_not_known_yet_decides_nothing(session: Session) -> None:
    with pytest.raises(PolicyViolation):
        session.describe(session.parse("SELECT * FROM visits WHERE 1 = $1")[0])


def test_a_count_of_nothing_is_a_row_and_costs(engine: Engine) -> None:
    session = Session(engine, "ana")
    result = session.execute(session.parse("SELECT COUNT(*) FROM visits WHERE 1 = 0")[0])
    assert len(result.rows) == 1
    assert engine.ledger.budget("ana", engine.policy).charges == 1


def test_filter_boxes(engine: Engine) -> None:
    """The distinct values of a column: of a declared domain they are free, else selected as groups are."""
    session = Session(engine, "ana")
    free = session.execute(session.parse("SELECT DISTINCT sex FROM patients ORDER BY sex")[0])
    assert [row[0] for row in free.rows] == ["F", "M", "X", None]
    assert free.answer is not None and free.answer.cost is not None and free.answer.cost.free
    first = session.execute(session.parse("SELECT DISTINCT city FROM patients ORDER BY city")[0])
    again = session.execute(session.parse("SELECT city FROM patients GROUP BY city ORDER BY city")[0])
    assert first.rows == again.rows
    assert again.answer is not None and again.answer.reused


EMPTY = """
SELECT 1 AS a WHERE false
SELECT 1 AS a LIMIT 0
SELECT 1 AS a WHERE 1 > 2 OR NULL
SELECT 1 AS a WHERE NOT (1 = 1)
SELECT 1 AS a WHERE NOT NULL
SELECT 1 AS a WHERE 2 BETWEEN 3 AND 1
SELECT 1 AS a WHERE 1 = 1 AND 1 <= 1
SELECT COUNT(*) AS a WHERE 1 = 0
SELECT SUM(b) AS a FROM (SELECT 1 AS b WHERE 2 < 1) t GROUP BY b
SELECT COUNT(*) AS a FROM (SELECT 1 AS b LIMIT 0) t GROUP BY ROLLUP (b)
SELECT 1 AS a UNION SELECT 2 WHERE false
SELECT 1 AS a EXCEPT SELECT 1 WHERE 1 = 0
(SELECT 1 AS a LIMIT 0) EXCEPT SELECT 2
(SELECT 1 AS a LIMIT 0) INTERSECT SELECT 1
SELECT a FROM (SELECT 1 AS a) t LEFT JOIN (SELECT 2 AS b LIMIT 0) u ON true
SELECT b AS a FROM (SELECT 1 AS c LIMIT 0) t RIGHT JOIN (SELECT 2 AS b) u ON true
SELECT b AS a FROM (SELECT 1 AS c LIMIT 0) t FULL JOIN (SELECT 2 AS b) u ON true
SELECT b AS a FROM (SELECT 1 AS c LIMIT 0) t CROSS JOIN (SELECT 2 AS b) u
""".strip().splitlines()


@pytest.mark.parametrize("sql", EMPTY)
def test_what_is_taken_for_empty_is_empty_in_postgresql(
    wide_engine: Engine, postgres: psycopg.Connection, sql: str
) -> None:
    (statement,) = parse(sql)
    assert isinstance(statement, QueryStatement)
    session = Session(wide_engine, "ana")
    ours = session.execute(session.parse(sql)[0]).rows
    assert [tuple(row) for row in ours] == postgres.execute(sql.encode()).fetchall()
