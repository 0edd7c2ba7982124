"""Group keys: which are public, and all their values; the others pass a selection."""

import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from dpsql.compiler.ir.nodes import (
    Call,
    Cast,
    Column,
    Distinct,
    Exists,
    Expr,
    Field,
    Filter,
    Literal,
    Project,
    Relation,
    Sort,
    UnitScan,
)
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.values.domain import enumerate_keys
from dpsql.compiler.values.lineage import MAX_CONDITIONS, MAX_EQUATIONS, propagated
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner, changed_policy
from tests.conftest import open_engine, silence_noise

LIMITS = "lower = 2024-02-28T22:00:00{}, upper = 2024-03-02T01:00:00{}"
TAGS = '"00000000-0000-0000-0000-000000000002", "00000000-0000-0000-0000-0000000000aa"'
CHANGES = {
    'moment = { type = "timestamp" }': f'moment = {{ type = "timestamp", {LIMITS.format("", "")} }}',
    'zoned = { type = "timestamptz" }': f'zoned = {{ type = "timestamptz", {LIMITS.format("Z", "Z")} }}',
    'tag = { type = "uuid" }\n\n[tables.icd10]': f'tag = {{ type = "uuid", values = [{TAGS}] }}\n\n[tables.icd10]',
    '"integer", lower = -2147483648, upper = 2147483647': '"integer", values = [7, -7, 12]',
    '"date", lower = 2020-01-01, upper = 2030-12-31': '"date", values = [2024-02-29, 2031-01-01]',
    '"numeric", lower = -1000, upper = 1000, step = 0.001': '"numeric", values = [0.001, 7.125]',
    '"bigint", lower = -1000000000000, upper = 1000000000000': '"bigint", values_from = "samples.n"',
    'icd = { type = "text" }': 'icd = { type = "text", values_from = "icd10.code", nullable = false }',
    'doctor_id = { type = "integer", values_from': 'doctor_id = { type = "bigint", values_from',
}


@pytest.fixture(scope="module")
def analyst(wide_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Ana on the wide world, where some columns have domains; without noise."""
    with changed_policy(wide_policy, "keys", CHANGES) as policy, pytest.MonkeyPatch.context() as patch:
        silence_noise(patch)
        engine = open_engine(policy, tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
        yield Session(engine, "ana")
        engine.close()
        engine.ledger.close()


@pytest.fixture(scope="module")
def clinician(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Ana on the demo clinic, without noise, and with a price that the threshold of private keys is low at."""
    changes = {
        "epsilon = 5, delta = 1e-6": "epsilon = 5000, delta = 1e-3",
        "epsilon = 20, delta": "epsilon = 5000, delta",
    }
    with changed_policy(clinic_policy, "rich", changes) as policy, pytest.MonkeyPatch.context() as patch:
        silence_noise(patch)
        engine: Engine = open_engine(policy, tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
        yield Session(engine, "ana")
        engine.close()
        engine.ledger.close()


def groups(session: Session, key: str, table: str, where: str = "TRUE") -> tuple[list[object], bool]:
    """The groups of a query, and whether they are private."""
    (statement,) = session.parse(f"SELECT {key}, COUNT(*) FROM {table} WHERE {where} GROUP BY 1")
    result = session.execute(statement)
    assert result.answer is not None
    return [row[0] for row in result.rows], result.answer.query.releases[0].private_keys


def days(first: date, last: date) -> list[date]:
    return [first + timedelta(i) for i in range((last - first).days + 1)]


PUBLIC = [
    ("patients", "sex", "TRUE", ["F", "M", "X", None]),
    ("patients", "lower(sex)", "TRUE", ["f", "m", "x", None]),
    ("patients", "sex = 'F'", "TRUE", [False, True, None]),
    ("patients", "sex IS NULL", "TRUE", [False, True]),
    ("patients", "coalesce(sex, '?')", "TRUE", ["?", "F", "M", "X"]),
    ("patients", "sex", "sex <> 'X'", ["F", "M"]),
    ("patients", "sex", "sex = 'Q'", []),
    ("patients", "sex", "sex IS NULL", [None]),
    ("patients", "sex", "age > 200", ["F", "M", "X", None]),
    ("patients", "length(sex)", "TRUE", [1, None]),
    ("patients", "age", "TRUE", [*range(111), None]),
    ("patients", "age", "age BETWEEN 20 AND 29", [*range(20, 30)]),
    ("patients", "age / 10", "TRUE", [*range(12), None]),
    ("patients", "age / 10 * 10", "TRUE", [*range(0, 120, 10), None]),
    ("patients", "age % 2", "TRUE", [0, 1, None]),
    ("patients", "age >= 65", "TRUE", [False, True, None]),
    ("patients", "CAST(age AS text)", "age < 3", ["0", "1", "2"]),
    ("patients", "CASE WHEN age < 18 THEN 'c' ELSE 'a' END", "TRUE", ["a", "c"]),
    ("patients", "CASE WHEN age < 18 THEN sex END", "sex = 'F'", ["F", None]),
    ("patients", "CASE WHEN city = 'Berlin' THEN 'b' ELSE 'o' END", "TRUE", ["b", "o"]),
    ("patients", "CASE WHEN city = 'Berlin' THEN 'b' END", "TRUE", ["b", None]),
    ("patients", "CASE WHEN city = 'Berlin' THEN sex ELSE 'o' END", "TRUE", ["F", "M", "X", "o", None]),
    ("patients", "coalesce(city = 'Berlin', FALSE)", "TRUE", [False, True]),
    ("patients", "coalesce(CASE WHEN city = 'B' THEN 1 END, 2)", "TRUE", [1, 2]),
    ("patients", "city LIKE 'B%'", "TRUE", [False, True, None]),
    ("patients", "weight > 70", "TRUE", [False, True, None]),
    ("patients", "least(length(city), 5)", "TRUE", [*range(6), None]),
    ("patients", "greatest(least(FLOOR(weight / 50)::int, 3), 0)", "TRUE", [0, 1, 2, 3]),
    ("patients", "FLOOR(weight / 50)::int", "TRUE", [*range(7), None]),
    ("patients", "1", "TRUE", [1]),
    ("prescriptions", "boxes", "TRUE", [*range(11), None]),
    ("visits", "EXTRACT(YEAR FROM visited_on)", "TRUE", [*range(2020, 2027), None]),
    ("visits", "EXTRACT(MONTH FROM visited_on)", "TRUE", [*range(1, 13), None]),
    ("visits", "EXTRACT(DOW FROM visited_on)", "TRUE", [*range(7), None]),
    ("visits", "visited_on", "TRUE", [*days(date(2020, 1, 1), date(2026, 12, 31)), None]),
    ("visits", "visited_on", "visited_on >= '2026-12-30'", days(date(2026, 12, 30), date(2026, 12, 31))),
    ("visits", "visited_on + 1", "visited_on >= '2026-12-30'", days(date(2026, 12, 31), date(2027, 1, 1))),
    (
        "visits",
        "DATE_TRUNC('year', visited_on)",
        "TRUE",
        [*(datetime(y, 1, 1, tzinfo=UTC) for y in range(2020, 2027)), None],
    ),
    (
        "visits",
        "DATE_TRUNC('quarter', visited_on)",
        "visited_on < '2020-07-01'",
        [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 4, 1, tzinfo=UTC)],
    ),
    (
        "visits",
        "DATE_TRUNC('month', visited_on)::date",
        "visited_on < '2020-03-01'",
        [date(2020, 1, 1), date(2020, 2, 1)],
    ),
]

PUBLIC += [
    ("patients", "FLOOR(weight / 100) * 100", "TRUE", [0.0, 100.0, 200.0, 300.0, None]),
    ("patients", "FLOOR(age / 50.0) * -50", "TRUE", [-100.0, -50.0, 0.0, None]),
    ("patients", "-CEIL(-(weight - 1) / 100)", "TRUE", [0.0, 1.0, 2.0, None]),
    ("patients", "ROUND(weight / 100) * 100", "weight < 200", [0.0, 100.0, 200.0, None]),
    ("patients", "TRUNC((weight - 150) / 100)", "TRUE", [-1.0, 0.0, 1.0, None]),
    ("patients", "ROUND(ABS(weight - 200) / 100)", "TRUE", [0.0, 1.0, 2.0, None]),
    ("patients", "CEIL(ABS(weight - 200) / 100) = 2", "TRUE", [False, True, None]),
    ("patients", "FLOOR(COALESCE(weight * 1, 5) / 200)", "TRUE", [0.0, 1.0, None]),
    ("patients", "CASE WHEN FLOOR(weight / 100) * 100 > 100 THEN 'much' ELSE 'little' END", "TRUE", ["little", "much"]),
    ("patients", "city IS NULL", "TRUE", [False, True]),
    ("patients", "weight > 70 OR city = 'B'", "TRUE", [False, True, None]),
    ("patients", "city", "city IN ('Berlin', 'Nowhere')", ["Berlin", "Nowhere"]),
    ("patients", "city", "'Berlin' = city", ["Berlin"]),
    ("patients", "city", "city = NULL", []),
    ("patients", "upper(city)", "city = 'Berlin' OR city = 'Bonn'", ["BERLIN", "BONN"]),
    ("patients", "upper(city)", "upper(city) = 'BONN' AND city LIKE 'B%'", ["BONN"]),
    ("patients", "city", "city IN ('Berlin', 'Bonn') AND city < 'Bf'", ["Berlin"]),
    ("patients", "city", "city IN (SELECT city FROM doctors WHERE city < 'C')", ["Berlin", "Bremen"]),
    ("patients", "city", "city = (SELECT MAX(city) FROM doctors)", ["Stuttgart"]),
    ("patients", "city", "(SELECT MIN(city) FROM doctors) = city", ["Berlin"]),
    ("patients", "age", "age IN (SELECT doctor_id FROM doctors WHERE doctor_id < 4)", [1, 2, 3]),
    ("patients", "age", "age > 107", [108, 109, 110]),
    ("patients", "age", "EXISTS (SELECT 1 FROM doctors AS d WHERE d.doctor_id = patients.age)", [*range(111), None]),
    (
        "patients AS p",
        "EXISTS (SELECT 1 FROM visits AS v WHERE v.patient_id = p.patient_id)",
        "TRUE",
        [False, True],
    ),
    (
        "patients AS p",
        "CASE WHEN p.patient_id IN (SELECT patient_id FROM visits) THEN sex ELSE 'none' END",
        "sex = 'F'",
        ["F", "none"],
    ),
    (
        "patients AS p",
        "LEAST((SELECT COUNT(*) FROM visits AS v WHERE v.patient_id = p.patient_id), 2)",
        "TRUE",
        [0, 1, 2],
    ),
    ("visits", "EXTRACT(YEAR FROM visited_on) * 100 + EXTRACT(MONTH FROM visited_on)", "visited_on < '2020-04-01'",
     [202001, 202002, 202003]),
    ("visits", "visited_on::date", "visited_on > '2026-12-29'", days(date(2026, 12, 30), date(2026, 12, 31))),
]  # fmt: skip

PRIVATE = [
    ("patients", "FLOOR(TAN(weight / 50))"),
    ("patients", "FLOOR(weight * 1000)"),
    ("patients", "FLOOR(weight / (age - 50))"),
    ("patients", "ROUND(weight::numeric, 1)"),
    ("patients", "city"),
    ("patients", "upper(city)"),
    ("patients", "length(city)"),
    ("patients", "coalesce(city, 'none')"),
    ("patients", "CASE WHEN age > 50 THEN city ELSE 'young' END"),
    ("patients", "weight::numeric(10, 1)"),
    ("patients", "city || sex"),
    ("prescriptions", "drug"),
]


@pytest.mark.parametrize(("table", "key", "where", "values"), PUBLIC)
def test_public_keys(clinician: Session, table: str, key: str, where: str, values: list[object]) -> None:
    assert groups(clinician, key, table, where) == (values, False)


@pytest.mark.parametrize(("table", "key"), PRIVATE)
def test_private_keys(clinician: Session, table: str, key: str) -> None:
    found, private = groups(clinician, key, table)
    assert private
    assert found


DAYS = [datetime(2024, 2, 28), datetime(2024, 2, 29), datetime(2024, 3, 1), datetime(2024, 3, 2)]
BOUNDED = [
    ("n", "TRUE", [-7, 7, 12, None]),
    ("n + 1", "TRUE", [-6, 8, 13, None]),
    ("ok", "TRUE", [False, True, None]),
    ("NOT ok", "TRUE", [False, True, None]),
    ("day", "TRUE", [date(2024, 2, 29), date(2031, 1, 1), None]),
    ("price", "TRUE", [Decimal("0.001"), Decimal("7.125"), None]),
    ("tag", "TRUE", [UUID(int=2), UUID(int=0xAA), None]),
    ("big", "TRUE", [*sorted([0, 7, -7, 2147483647, -2147483648, 3, 2, 1, -1, 5, 6]), None]),
    ("small", "small BETWEEN -2 AND 2", [-2, -1, 0, 1, 2]),
    ("DATE_TRUNC('day', moment)", "TRUE", [*DAYS, None]),
    ("DATE_TRUNC('month', moment)", "TRUE", [datetime(2024, 2, 1), datetime(2024, 3, 1), None]),
    ("DATE_TRUNC('quarter', moment)", "TRUE", [datetime(2024, 1, 1), None]),
    ("DATE_TRUNC('year', moment)::date", "TRUE", [date(2024, 1, 1), None]),
    ("DATE_TRUNC('week', moment)", "TRUE", [datetime(2024, 2, 26), None]),
    (
        "DATE_TRUNC('hour', moment)",
        "TRUE",
        [*(datetime(2024, 2, 28, 22) + timedelta(hours=h) for h in range(52)), None],
    ),
    ("EXTRACT(YEAR FROM moment)", "TRUE", [2024, None]),
    ("EXTRACT(YEAR FROM moment + INTERVAL '1 day')", "TRUE", [*range(1, 10_000), None]),
    ("EXTRACT(HOUR FROM moment)", "TRUE", [*range(24), None]),
    ("moment::date", "moment < '2024-03-01'", [date(2024, 2, 28), date(2024, 2, 29)]),
    ("moment::date", "moment BETWEEN '2024-02-29' AND '2024-02-29 10:00'", [date(2024, 2, 29)]),
    ("DATE_TRUNC('day', moment)", "moment > DATE '2024-03-01'", [datetime(2024, 3, 1), datetime(2024, 3, 2)]),
    ("DATE_TRUNC('day', moment)", "moment > DATE '2024-03-01' OR ok", [*DAYS, None]),
    ("DATE_TRUNC('day', moment)", "moment >= TO_TIMESTAMP('2024-03-01 00:00:00.0', 'YYYY-MM-DD HH24:MI:SS.US')",
     [datetime(2024, 3, 1), datetime(2024, 3, 2)]),
    ("DATE_TRUNC('day', moment)", "moment < TIMESTAMPTZ '2024-02-29 01:00+01'", [datetime(2024, 2, 28)]),
    ("DATE_TRUNC('day', moment)", "TO_TIMESTAMP('2024-02', 'YYYY-MM') > moment", []),
    ("DATE_TRUNC('day', moment)", "moment < zoned", [*DAYS, None]),
    ("DATE_TRUNC('day', moment)", "moment < TO_TIMESTAMP(word, 'YYYY-MM')", [*DAYS, None]),
    ("DATE_TRUNC('day', moment)", "'2024-02-29' = moment", [datetime(2024, 2, 29)]),
    ("DATE_TRUNC('day', moment)", "moment > '9999-12-31 23:59:59.999999' AND moment < '2024-02-29'",
     [datetime(2024, 2, 28)]),
    ("moment", "moment IN ('2024-02-29', '2024-03-01 10:00')", [datetime(2024, 2, 29), datetime(2024, 3, 1, 10)]),
    ("EXTRACT(HOUR FROM zoned)", "TRUE", [*range(24), None]),
    ("day", "day > '2024-02-29'", [date(2031, 1, 1)]),
    ("DATE_TRUNC('day', moment)", "EXTRACT(YEAR FROM moment) < 2024 AND EXTRACT(HOUR FROM moment) = 5", []),
    ("EXTRACT(YEAR FROM moment) * 100 + EXTRACT(MONTH FROM moment)", "TRUE", [202402, 202403, None]),
    ("n + small", "small = 1", [-6, 8, 13, None]),
    ("word", "word IN ('a', NULL)", ["a"]),
    ("clock", "clock = '12:00'", [time(12)]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "where", "values"), BOUNDED)
def test_keys_of_many_types(analyst: Session, key: str, where: str, values: list[object]) -> None:
    assert groups(analyst, key, "events", where) == (values, False)


def test_rows_that_are_kept_without_a_match_have_no_moment(analyst: Session) -> None:
    """A condition beneath an outer join says nothing of the public rows that are listed whoever matches."""
    late = "(SELECT n, moment FROM events WHERE moment > '2024-03-01') AS e ON e.n = s.n GROUP BY 1"
    listed, _ = keys_of(analyst, f"SELECT DATE_TRUNC('day', e.moment), COUNT(e.n) FROM samples AS s LEFT JOIN {late}")
    assert listed == [(datetime(2024, 3, 1),), (datetime(2024, 3, 2),), (None,)]
    listed, _ = keys_of(analyst, f"SELECT DATE_TRUNC('day', e.moment), COUNT(e.n) FROM samples AS s JOIN {late}")
    assert listed == [(datetime(2024, 3, 1),), (datetime(2024, 3, 2),)]


def test_names_of_months_are_read_by_the_engine(clinic_policy: Path) -> None:
    """What they are would follow the locale of this process."""
    planner = Planner(load_policy(clinic_policy))
    sql = "SELECT COUNT(*) FROM visits WHERE visited_on > TO_DATE('{}', '{}')"
    (named,) = planner.compile(sql.format("05 Dec 2020", "DD Mon YYYY")).releases
    (numbered,) = planner.compile(sql.format("05/12/2020", "DD/MM/YYYY")).releases
    assert "05 Dec 2020" in named.sql
    assert "2020-12-05" in numbered.sql


def test_an_instant_is_no_time_of_the_clock_but_in_utc(wide_policy: Path, tmp_path: Path) -> None:
    """Where it is the evening of the 28th by UTC, in Berlin the 29th has begun."""
    change = {"[dataset]": '[dataset]\ntimezone = "Europe/Berlin"'}
    until = "moment < TIMESTAMPTZ '2024-02-29 12:00+00' AND moment >= TIMESTAMPTZ '2024-02-29 11:00+00'"
    shutil.copy(wide_policy.with_suffix(".duckdb"), tmp_path)  # a file that is open is open in one zone
    own = Path(shutil.copy(wide_policy, tmp_path))
    with changed_policy(own, "berlin", change) as policy:
        engine = open_engine(policy, tmp_path / "ledger.sqlite")
        session = Session(engine, "ana")
        (statement,) = session.parse(f"SELECT moment FROM samples WHERE {until}")
        assert session.execute(statement).rows == ((datetime(2024, 2, 29, 12, 34, 56),),)
        engine.close()
        engine.ledger.close()


@pytest.mark.parametrize(
    "key",
    ["moment", "zoned", "DATE_TRUNC('day', zoned)", "clock", "word", "moment + INTERVAL '1 day'",
     "EXTRACT(YEAR FROM moment + INTERVAL '1 day') + length(word)"],
)  # fmt: skip
def test_private_keys_of_many_types(analyst: Session, key: str) -> None:
    assert groups(analyst, key, "events")[1]


def test_a_public_table_is_the_domain(clinician: Session, analyst: Session) -> None:
    (statement,) = analyst.parse("SELECT code FROM icd10 ORDER BY code")
    codes = [str(row[0]) for row in analyst.execute(statement).rows]
    assert groups(clinician, "icd", "visits") == ([*codes, None], False)
    # Of a column that is never NULL there is no such group.
    assert groups(analyst, "icd", "visits") == (codes, False)
    assert groups(clinician, "left(icd, 1)", "visits") == ([*sorted({code[0] for code in codes}), None], False)
    assert groups(clinician, "doctor_id", "visits") == ([*range(1, 201), None], False)
    # The declared type need not be that of the public column.
    assert groups(analyst, "doctor_id", "visits") == ([*range(1, 201), None], False)


def test_rows_outside_the_domain_are_dropped(analyst: Session) -> None:
    def total(sql: str) -> int:
        (statement,) = analyst.parse(sql)
        return sum(row[0] for row in analyst.execute(statement).rows)  # type: ignore[misc]

    known = total("SELECT COUNT(*) FROM visits WHERE icd <> 'U99'")
    assert total("SELECT COUNT(*) FROM visits GROUP BY icd") == known
    assert known < total("SELECT COUNT(*) FROM visits")


def keys_of(session: Session, sql: str) -> tuple[list[tuple[object, ...]], int]:
    """The groups of a query whose keys are public, without its last column, and how many a unit may touch."""
    (statement,) = session.parse(sql)
    result = session.execute(statement)
    assert result.answer is not None
    release = result.answer.query.releases[-1]
    assert not release.private_keys
    return [row[:-1] for row in result.rows], release.contribution.groups_per_unit


def rows_of(session: Session, sql: str) -> list[tuple[object, ...]]:
    (statement,) = session.parse(sql)
    return list(session.execute(statement).rows)


SAME_ROWS = [
    # The whole public row is the source: pairs are those there are.
    ("SELECT i.code, i.title, COUNT(*) FROM visits AS v JOIN icd10 AS i ON v.icd = i.code GROUP BY 1, 2",
     "SELECT code, title FROM icd10"),
    # A protected column that equals a public one has its values, in whatever clause it is said.
    ("SELECT v.icd, i.title, COUNT(*) FROM visits AS v JOIN icd10 AS i ON v.icd = i.code GROUP BY 1, 2",
     "SELECT code, title FROM icd10"),
    ("SELECT v.city, d.specialty, COUNT(*) FROM visits AS v, doctors AS d WHERE d.city = v.city GROUP BY 1, 2",
     "SELECT DISTINCT city, specialty FROM doctors WHERE city IS NOT NULL"),
    ("SELECT upper(v.city), COUNT(*) FROM visits AS v JOIN doctors AS d ON d.city = v.city GROUP BY 1",
     "SELECT DISTINCT upper(city) FROM doctors WHERE city IS NOT NULL"),
    ("SELECT v.city, COUNT(*) FROM visits AS v JOIN doctors AS d ON upper(d.city) = v.city GROUP BY 1",
     "SELECT DISTINCT upper(city) FROM doctors WHERE city IS NOT NULL"),
    ("SELECT p.city, COUNT(*) FROM patients AS p JOIN doctors AS d ON d.doctor_id = length(p.city) AND p.city = d.city "
     "GROUP BY 1", "SELECT DISTINCT city FROM doctors WHERE doctor_id = length(city)"),
    # Keys that are listed together stand among others in any order.
    ("SELECT i.title, p.sex, v.icd, COUNT(*) FROM visits AS v JOIN patients AS p USING (patient_id) "
     "JOIN icd10 AS i ON i.code = v.icd WHERE p.sex < 'M' GROUP BY 1, 2, 3", "SELECT title, 'F', code FROM icd10"),
    # Conditions on what is joined apply, through equations too.
    ("SELECT i.title, COUNT(*) FROM visits AS v JOIN icd10 AS i ON v.icd = i.code AND i.title < 'B' GROUP BY 1",
     "SELECT title FROM icd10 WHERE title < 'B'"),
    ("SELECT i.title, COUNT(*) FROM visits AS v JOIN icd10 AS i ON v.icd = i.code WHERE v.icd < 'D' GROUP BY 1",
     "SELECT title FROM icd10 WHERE code < 'D'"),
    ("SELECT d.city, e.specialty, COUNT(*) FROM visits AS v JOIN doctors AS d USING (doctor_id) "
     "JOIN doctors AS e ON e.doctor_id = d.doctor_id + 1 GROUP BY 1, 2",
     "SELECT DISTINCT d.city, e.specialty FROM doctors AS d JOIN doctors AS e ON e.doctor_id = d.doctor_id + 1"),
    ("SELECT d.city, COUNT(*) FROM visits AS v JOIN doctors AS d USING (doctor_id) "
     "JOIN icd10 AS i ON length(i.title) = d.doctor_id AND i.code < 'D' GROUP BY 1",
     "SELECT DISTINCT d.city FROM doctors AS d JOIN icd10 AS i ON length(i.title) = d.doctor_id AND i.code < 'D'"),
    ("SELECT p.age, t.name, COUNT(*) FROM patients AS p JOIN (VALUES ('a', 0, 1), ('b', 9, 9)) AS t(name, low, high) "
     "ON p.age BETWEEN t.low AND t.high GROUP BY 1, 2", "VALUES (0, 'a'), (1, 'a'), (9, 'b')"),
    ("SELECT g.day, COUNT(*) FROM (VALUES (DATE '2024-02-29'), (DATE '2031-01-01')) AS g(day) "
     "JOIN visits AS v ON v.visited_on = g.day GROUP BY 1", "VALUES (DATE '2024-02-29'), (DATE '2031-01-01')"),
    # Public rows that are looked up: NULL only where there is none.
    ("SELECT v.icd, i.title, COUNT(*) FROM visits AS v LEFT JOIN icd10 AS i ON v.icd = i.code GROUP BY 1, 2",
     "SELECT code, title FROM icd10 UNION ALL SELECT NULL, NULL"),
    ("SELECT i.title, COUNT(*) FROM visits AS v LEFT JOIN icd10 AS i ON v.icd = i.code AND v.city = 'B' GROUP BY 1",
     "SELECT title FROM icd10 UNION ALL SELECT NULL"),
    ("SELECT d.city, e.specialty, COUNT(*) FROM doctors AS e RIGHT JOIN "
     "(SELECT d.doctor_id AS id, d.city, v.patient_id FROM visits AS v LEFT JOIN doctors AS d USING (doctor_id)) AS d "
     "ON e.doctor_id = d.id GROUP BY 1, 2",
     "SELECT DISTINCT city, specialty FROM doctors UNION ALL SELECT NULL, NULL"),
    ("SELECT i.title, COUNT(*) FROM visits AS v LEFT JOIN icd10 AS i ON v.icd = i.code AND EXISTS "
     "(SELECT 1 FROM doctors AS d WHERE d.doctor_id = v.doctor_id) WHERE i.code < 'D' GROUP BY 1",
     "SELECT title FROM icd10 WHERE code < 'D'"),
    # Public rows that are kept are groups, whatever is asked of the rows that match them.
    ("SELECT i.code, COUNT(v.icd) FROM icd10 AS i LEFT JOIN visits AS v ON v.icd = i.code AND i.title < 'B' GROUP BY 1",
     "SELECT code FROM icd10"),
    ("SELECT i.code, COUNT(v.icd) FROM icd10 AS i LEFT JOIN (SELECT icd, city FROM visits WHERE icd < 'D' AND city = "
     "'Berlin') AS v ON v.icd = i.code GROUP BY 1", "SELECT code FROM icd10"),
    # Rows of the same unit, each by itself.
    ("SELECT a.sex, b.sex, COUNT(*) FROM patients AS a JOIN patients AS b USING (patient_id) WHERE a.sex <> 'X' AND "
     "b.sex = 'F' GROUP BY 1, 2", "VALUES ('F', 'F'), ('M', 'F')"),
    ("SELECT a.city, b.city, COUNT(*) FROM patients AS a JOIN visits AS b ON a.patient_id = b.patient_id AND "
     "a.city = b.city WHERE b.city IN ('Bonn', 'Berlin') GROUP BY 1, 2",
     "VALUES ('Berlin', 'Berlin'), ('Bonn', 'Bonn')"),
    ("SELECT p.sex, v.boxes, COUNT(*) FROM patients AS p LEFT JOIN (SELECT patient_id, duration_min AS boxes "
     "FROM visits WHERE duration_min < 2) AS v USING (patient_id) WHERE p.sex = 'F' GROUP BY 1, 2",
     "VALUES ('F', 0), ('F', 1), ('F', NULL)"),
    ("SELECT p.sex, q.sex, COUNT(*) FROM (SELECT patient_id, sex FROM patients WHERE sex = 'F') AS p FULL JOIN "
     "(SELECT patient_id, sex FROM patients WHERE sex = 'M') AS q ON p.patient_id = q.patient_id GROUP BY 1, 2",
     "VALUES ('F', 'M'), ('F', NULL), (NULL, 'M'), (NULL, NULL)"),
    # What is computed unit by unit.
    ("SELECT n, sex, COUNT(*) FROM (SELECT patient_id, sex, COUNT(*) AS n FROM visits JOIN patients USING (patient_id) "
     "WHERE sex <> 'X' GROUP BY patient_id, sex) AS t WHERE n < 3 GROUP BY 1, 2",
     "VALUES (1, 'F'), (1, 'M'), (2, 'F'), (2, 'M')"),
    ("SELECT n, COUNT(*) FROM (SELECT ROW_NUMBER() OVER (PARTITION BY patient_id ORDER BY visited_on) AS n "
     "FROM visits) AS t WHERE n <= 2 GROUP BY 1", "VALUES (1), (2)"),
    ("SELECT first, COUNT(*) FROM (SELECT patient_id, MIN(visited_on) AS first FROM visits GROUP BY 1) AS t "
     "WHERE first < '2020-01-03' GROUP BY 1", "VALUES (DATE '2020-01-01'), (DATE '2020-01-02')"),
    ("SELECT sex, last, COUNT(*) FROM (SELECT sex, FIRST_VALUE(sex) OVER (PARTITION BY patient_id ORDER BY age) "
     "AS last FROM patients WHERE sex = 'F') AS t GROUP BY 1, 2", "VALUES ('F', 'F'), ('F', NULL)"),
    ("SELECT n > 3, COUNT(*) FROM (SELECT patient_id, LAG(duration_min, 1, 7) OVER (PARTITION BY patient_id ORDER BY "
     "visited_on) AS n FROM visits WHERE duration_min < 5) AS t GROUP BY 1", "VALUES (FALSE), (TRUE), (NULL)"),
    ("SELECT p.sex, COUNT(*) FROM patients AS p LEFT JOIN visits AS v USING (patient_id) GROUP BY 1",
     "VALUES ('F'), ('M'), ('X'), (NULL)"),
    ("SELECT icd, sex, COUNT(*) FROM (SELECT a.patient_id, b.icd, b.sex FROM visits AS a LEFT JOIN (SELECT "
     "c.patient_id, d.icd, p.sex FROM patients AS c LEFT JOIN visits AS d USING (patient_id) LEFT JOIN patients AS p "
     "USING (patient_id)) AS b USING (patient_id)) AS t WHERE icd < 'C' AND sex = 'F' GROUP BY 1, 2",
     "VALUES ('A09', 'F')"),
    # Keys of one source need not stand side by side.
    ("SELECT i.code, p.sex, i.title, COUNT(*) FROM visits AS v JOIN icd10 AS i ON v.icd = i.code JOIN patients AS p "
     "USING (patient_id) WHERE p.sex = 'F' GROUP BY 1, 2, 3", "SELECT code, 'F', title FROM icd10"),
    # Unions.
    ("SELECT k, COUNT(*) FROM (SELECT sex AS k FROM patients WHERE sex <> 'X' UNION ALL SELECT left(icd, 1) "
     "FROM visits WHERE icd < 'C') AS t WHERE k <> 'F' GROUP BY 1", "VALUES ('A'), ('M')"),
    ("SELECT k, j, COUNT(*) FROM (SELECT patient_id, sex AS k, 1 AS j FROM patients WHERE sex = 'M' UNION ALL "
     "SELECT patient_id, 'z', 2 FROM visits) AS t GROUP BY 1, 2", "VALUES ('M', 1), ('z', 2)"),
    # Of a union too, keys are listed apart where there are too many pairs of what they are computed from.
    ("SELECT duration_min > 470, EXTRACT(YEAR FROM visited_on), COUNT(*) FROM (SELECT patient_id, duration_min, "
     "visited_on FROM visits WHERE visited_on < '2026-01-01' UNION ALL SELECT patient_id, age, NULL::date FROM "
     "patients) AS t WHERE visited_on > '2023-01-01' GROUP BY 1, 2",
     "SELECT * FROM (VALUES (FALSE), (TRUE), (NULL)) AS a(y) CROSS JOIN (VALUES (2023), (2024), (2025)) AS b(d)"),
    ("SELECT CASE WHEN duration_min > 470 THEN EXTRACT(YEAR FROM visited_on) ELSE 0 END, COUNT(*) FROM (SELECT "
     "patient_id, duration_min, visited_on FROM visits UNION ALL SELECT patient_id, age, NULL::date FROM patients) "
     "AS t WHERE visited_on > '2026-01-01' GROUP BY 1", "VALUES (0), (2026)"),
    # A constant that has more digits than a numeric which is computed.
    ("SELECT CASE WHEN duration_min > 470 THEN EXTRACT(YEAR FROM visited_on) ELSE 0.12345678901234567 END, COUNT(*) "
     "FROM (SELECT patient_id, duration_min, visited_on FROM visits UNION ALL SELECT patient_id, age, NULL::date FROM "
     "patients) AS t WHERE visited_on > '2026-01-01' GROUP BY 1", "VALUES (0.123456789012346), (2026)"),
    # Branches, too many conditions for all their combinations to be tried.
    ("SELECT CASE " + " ".join(f"WHEN weight < {n} THEN {'sex' if n == 50 else repr(str(n))}" for n in range(50, 65))
     + " END, COUNT(*) FROM patients WHERE sex = 'F' GROUP BY 1",
     "VALUES " + ", ".join(f"('{n}')" for n in range(51, 65)) + ", ('F'), (NULL)"),
    ("SELECT COALESCE(CASE " + " ".join(f"WHEN weight < {n} THEN sex" for n in range(50, 65))
     + " END, '?'), COUNT(*) FROM patients WHERE sex = 'F' GROUP BY 1", "VALUES ('?'), ('F'), (NULL)"),
    ("SELECT CASE " + " ".join(f"WHEN weight < {n} THEN sex" for n in range(50, 65))
     + " ELSE lower(sex) END, COUNT(*) FROM patients WHERE sex = 'F' GROUP BY 1", "VALUES ('F'), ('f')"),
    # More rows than are tried: keys are listed apart, and what is joined is left out.
    ("SELECT EXTRACT(YEAR FROM visited_on), duration_min / 300, COUNT(*) FROM visits WHERE visited_on < '2022-01-01' "
     "AND EXTRACT(DOY FROM visited_on) < duration_min GROUP BY 1, 2",
     "SELECT * FROM (VALUES (2020), (2021)) AS a(y) CROSS JOIN (VALUES (0), (1), (NULL)) AS b(d)"),
    ("SELECT v.doctor_id, COUNT(*) FROM visits AS v JOIN (SELECT n, n + 1 AS m FROM generate_series(5, 50000) AS g(n)) "
     "AS t ON t.n = v.doctor_id AND t.m > 9 GROUP BY 1", "SELECT doctor_id FROM doctors WHERE doctor_id > 8"),
    # Released rows are as good as a table.
    ("WITH top AS (SELECT sex AS s, COUNT(*) AS n FROM patients WHERE sex <> 'X' GROUP BY 1 ORDER BY n DESC, s "
     "LIMIT 2) SELECT s, COUNT(*) FROM patients JOIN top ON top.s = sex GROUP BY 1", "VALUES ('F'), ('M')"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "listed"), SAME_ROWS)
def test_keys_of_joined_rows(clinician: Session, sql: str, listed: str) -> None:
    found, _ = keys_of(clinician, sql)
    assert len(found) == len(set(found))
    assert set(found) == set(rows_of(clinician, listed))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT v.city, COUNT(*) FROM visits AS v JOIN icd10 AS i ON v.icd = i.code GROUP BY 1",
        # Outer joins say nothing of the rows that match none.
        "SELECT v.city, COUNT(*) FROM visits AS v LEFT JOIN doctors AS d ON d.city = v.city GROUP BY 1",
        "SELECT v.city, COUNT(*) FROM patients AS p LEFT JOIN visits AS v ON p.patient_id = v.patient_id GROUP BY 1",
        "SELECT k, COUNT(*) FROM (SELECT sex AS k FROM patients UNION ALL SELECT city FROM visits) AS t GROUP BY 1",
        "SELECT first, COUNT(*) FROM (SELECT patient_id, MIN(city) AS first FROM visits GROUP BY 1) AS t GROUP BY 1",
        "SELECT CASE WHEN v.cost > 5 THEN v.city ELSE d.city END, COUNT(*) FROM visits AS v JOIN doctors AS d "
        "USING (doctor_id) GROUP BY 1",
        # Numbers are equal under more than one spelling.
        "SELECT p.weight::numeric(9, 1), COUNT(*) FROM patients AS p JOIN (VALUES (70.0)) AS t(w) ON p.weight = t.w "
        "GROUP BY 1",
        "SELECT t.k, COUNT(*) FROM patients AS p CROSS JOIN LATERAL (VALUES (p.city)) AS t(k) GROUP BY 1",
    ],
)
def test_private_keys_of_joined_rows(clinician: Session, sql: str) -> None:
    (statement,) = clinician.parse(sql)
    result = clinician.execute(statement)
    assert result.answer is not None
    assert result.answer.query.releases[0].private_keys


SIZES = [
    ("SELECT EXTRACT(YEAR FROM visited_on), COUNT(*) FROM visits GROUP BY 1", 8),
    ("SELECT DATE_TRUNC('quarter', visited_on), COUNT(*) FROM visits WHERE visited_on >= '2025-11-30' GROUP BY 1", 5),
    ("SELECT EXTRACT(MONTH FROM visited_on), DATE_TRUNC('month', visited_on), COUNT(*) FROM visits "
     "WHERE visited_on BETWEEN '2024-11-01' AND '2025-01-31' GROUP BY 1, 2", 3),
    ("SELECT visited_on, COUNT(*) FROM visits WHERE visited_on BETWEEN '2024-02-28' AND '2024-03-01' GROUP BY 1", 3),
    ("SELECT visited_on::text, COUNT(*) FROM visits WHERE DATE '2020-01-03' > visited_on GROUP BY 1", 2),
    ("SELECT duration_min::text, COUNT(*) FROM visits WHERE duration_min IN (7, 8, 9) GROUP BY 1", 3),
    ("SELECT duration_min::text, COUNT(*) FROM visits WHERE duration_min < 4 GROUP BY 1", 4),
    ("SELECT duration_min::text, COUNT(*) FROM visits WHERE duration_min > 478 GROUP BY 1", 2),
    ("SELECT duration_min::text, COUNT(*) FROM visits WHERE COALESCE(duration_min, 1) > 478 GROUP BY 1", 50),
    ("SELECT duration_min / 200, COUNT(*) FROM visits GROUP BY 1", 4),
    ("SELECT icd, COUNT(*) FROM visits WHERE icd = 'A09' GROUP BY 1", 1),
    ("SELECT icd, COUNT(*) FROM visits WHERE icd > 'R' GROUP BY 1", 50),
    ("SELECT icd > 'R', cost > 5, COUNT(*) FROM visits GROUP BY 1, 2", 9),
    ("SELECT d.doctor_id, COUNT(*) FROM visits AS v JOIN doctors AS d USING (doctor_id) WHERE doctor_id < 4 GROUP BY 1",
     50),
    ("SELECT d.doctor_id, COUNT(*) FROM visits AS v JOIN doctors AS d USING (doctor_id) WHERE doctor_id IN (2, 3) "
     "GROUP BY 1", 2),
    ("SELECT t.name, COUNT(*) FROM visits AS v LEFT JOIN (VALUES ('a', 'A09'), ('b', 'C50')) AS t(name, code) "
     "ON v.icd = t.code GROUP BY 1", 3),
    ("SELECT t.n, COUNT(*) FROM visits AS v JOIN (SELECT doctor_id AS n FROM doctors ORDER BY 1 LIMIT 3) AS t "
     "ON t.n = v.doctor_id GROUP BY 1", 3),
    ("SELECT t.n, v.cost > 5, COUNT(*) FROM visits AS v CROSS JOIN (SELECT COUNT(*) AS n FROM doctors) AS t "
     "GROUP BY 1, 2", 3),
    ("SELECT t.n, v.cost > 5, COUNT(*) FROM visits AS v CROSS JOIN (SELECT COUNT(*) AS n FROM patients) AS t "
     "GROUP BY 1, 2", 3),
    ("SELECT g.day, COUNT(*) FROM generate_series(DATE '2024-01-01', DATE '2024-03-01', INTERVAL '1 month') AS g(day) "
     "JOIN visits AS v ON DATE_TRUNC('month', v.visited_on) = g.day GROUP BY 1", 3),
    ("SELECT g.n, COUNT(*) FROM generate_series(1, 4) AS g(n) JOIN visits AS v ON v.doctor_id = g.n GROUP BY 1", 4),
    ("SELECT 1, COUNT(*) FROM visits GROUP BY 1", 1),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "most"), SIZES)
def test_a_unit_touches_no_more_groups_than_there_are(clinician: Session, sql: str, most: int) -> None:
    found, touched = keys_of(clinician, sql)
    assert touched == most
    assert most == 50 or len(found) <= most


def test_a_long_time_is_listed_by_the_parts_asked_for(wide_policy: Path) -> None:
    """Two hundred years have too many hours for one list of them, but neither years nor hours of the day."""
    where = "moment BETWEEN '1800-01-01' AND '2000-01-01'"
    planner = Planner(load_policy(wide_policy))
    for keys, private in (
        ("DATE_TRUNC('year', moment)", False),
        ("EXTRACT(HOUR FROM moment), DATE_TRUNC('year', moment)", False),
        ("DATE_TRUNC('hour', moment)", True),
    ):
        (release,) = planner.compile(f"SELECT {keys}, COUNT(*) FROM events WHERE {where} GROUP BY {keys}").releases
        assert release.private_keys is private


def test_many_equations(clinic_policy: Path) -> None:
    """Each of so many costs time: those beyond a limit are passed over, and the key is private."""
    planner = Planner(load_policy(clinic_policy))
    for number, private in ((10, False), (MAX_EQUATIONS + 1, True)):
        equations = " AND ".join(f"left(p.city, {n}) = d.city" for n in range(101, number + 101))
        key = f"left(p.city, {number + 100})"  # the last by its label
        sql = f"SELECT {key}, COUNT(*) FROM patients AS p, doctors AS d WHERE {equations} GROUP BY 1"
        (release,) = planner.compile(sql).releases
        assert release.private_keys is private


def test_conditions_that_follow_from_others() -> None:
    first, second, third = (Column(Field(number, SqlType.INTEGER)) for number in range(3))
    wide = Column(Field(3, SqlType.BIGINT))

    def call(name: str, *arguments: Expr) -> Expr:
        return Call(name, arguments, SqlType.BOOLEAN)

    equal = (call("eq", first, second), call("eq", Cast(second, SqlType.BIGINT), wide))
    least = call("gt", first, Literal(5, SqlType.INTEGER))
    narrowed = call("gt", Cast(wide, SqlType.INTEGER), Literal(5, SqlType.INTEGER))
    assert propagated((*equal, least)) == (*equal, least, call("gt", second, Literal(5, SqlType.INTEGER)), narrowed)
    assert propagated((least, call("lt", first, third))) == (least, call("lt", first, third))
    many = tuple(call("gt", first, Literal(n, SqlType.INTEGER)) for n in range(MAX_CONDITIONS - 2))
    assert len(propagated((*equal, *many))) == MAX_CONDITIONS


def test_what_outgrows_the_query_is_private(clinic_policy: Path) -> None:
    """An expression doubled at every step is not written out; nor is a condition, and the domain is only larger."""
    catalog, fields = Planner(load_policy(clinic_policy)).catalog, Fields()
    table = catalog.policy.table("patients")
    assert table is not None
    sex = table.column("sex")
    assert sex is not None
    key, unit = fields.new(SqlType.TEXT), fields.new(SqlType.INTEGER)
    relation: Relation = UnitScan(table, (sex,), (key,), unit)
    found = enumerate_keys((Column(key),), relation, catalog, fields)
    assert found is not None and found[1] == 4
    relation = Sort(Distinct(relation), (key, unit), (), None, 0)
    found = enumerate_keys((Column(key),), relation, catalog, fields)
    assert found is not None and found[1] == 4
    for _ in range(20):
        field = fields.new(SqlType.TEXT)
        doubled = Call("concat", (Column(relation.fields[0]), Column(relation.fields[0])), SqlType.TEXT)
        kept = fields.new(SqlType.TEXT)
        same = Column(relation.fields[-2] if isinstance(relation, Project) else key)
        relation = Project(relation, (field, kept, unit), (doubled, same, Column(unit)))
    large = Column(relation.fields[0])
    assert enumerate_keys((large,), relation, catalog, fields) is None
    assert enumerate_keys((Call("concat", (large, large), SqlType.TEXT),), relation, catalog, fields) is None
    for condition in (Call("eq", (large, Literal("F", SqlType.TEXT)), SqlType.BOOLEAN), Exists(relation)):
        filtered = Filter(relation, Call("and", (condition, condition), SqlType.BOOLEAN))
        found = enumerate_keys((Column(relation.fields[1]),), filtered, catalog, fields)
        assert found is not None and found[1] == 4
    assert enumerate_keys((), relation, catalog, fields) is None


def test_equal_queries_list_equal_domains(clinic_policy: Path) -> None:
    planner = Planner(load_policy(clinic_policy))
    for sql, _ in SAME_ROWS:
        assert planner.compile(sql).releases[-1].sql == planner.compile(sql).releases[-1].sql


def test_wide_totals_list_no_keys_of_joined_public_rows(clinic_policy: Path) -> None:
    """Each row has a listed key where the list is made of the joined rows, and only there."""
    with changed_policy(clinic_policy, "joined", {"delta = 1e-9": "delta = 1e-9, wide_share = 0.1"}) as path:
        planner = Planner(load_policy(path))
    for key, is_listed in (("d.specialty", False), ("v.doctor_id", True)):
        sql = f"SELECT {key}, COUNT(*) FROM visits v JOIN doctors d USING (doctor_id) GROUP BY {key}"
        _, total = planner.compile(sql).releases
        assert ("IN (SELECT DISTINCT" in total.sql) is is_listed


def test_combinations(clinician: Session) -> None:
    (statement,) = clinician.parse("SELECT sex, age >= 65, COUNT(*) FROM patients GROUP BY sex, age >= 65")
    result = clinician.execute(statement)
    assert [row[:2] for row in result.rows] == [(s, o) for s in ("F", "M", "X", None) for o in (False, True, None)]
    (statement,) = clinician.parse("SELECT sex, city, COUNT(*) FROM patients GROUP BY sex, city")
    result = clinician.execute(statement)
    assert result.answer is not None
    assert result.answer.query.releases[0].private_keys
    assert 20 < len(result.rows) < 4 * 250


@pytest.mark.parametrize(
    "keys", ["age, boxes", "age, weight::int, sex", "visited_on, duration_min", "duration_min, age_of"]
)
def test_too_many_combinations_are_private(clinician: Session, keys: str) -> None:
    """Beyond 100,000 groups only those that somebody is in are looked at."""
    tables = {
        "visited_on": "visits",
        "duration_min": "(SELECT duration_min, duration_min * 3 AS age_of FROM visits) AS v",
    }
    table = tables.get(keys.split(",")[0], "(SELECT age, age AS boxes, weight, sex FROM patients) AS p")
    (statement,) = clinician.parse(f"SELECT {keys}, COUNT(*) FROM {table} GROUP BY {keys}")
    result = clinician.execute(statement)
    assert result.answer is not None
    many = keys not in ("age, boxes", "duration_min, age_of")
    assert result.answer.query.releases[0].private_keys == many


def test_domains_of_public_tables_count_towards_the_limit(clinician: Session) -> None:
    """The product of days, doctors and diagnoses has 20 million combinations: it is not enumerated."""
    (statement,) = clinician.parse(
        "EXPLAIN SELECT visited_on, doctor_id, icd, COUNT(*) FROM visits GROUP BY visited_on, doctor_id, icd"
    )
    lines = "\n".join(str(row[0]) for row in clinician.execute(statement).rows)
    assert "private keys: a group of" in lines


def test_keys_through_subqueries(clinician: Session) -> None:
    table = "(SELECT sex AS s, age / 50 AS half FROM patients WHERE age < 100) AS t"
    assert groups(clinician, "s", table, "s <> 'X'") == (["F", "M"], False)
    assert groups(clinician, "half", table) == ([0, 1], False)


def test_distinct_lists_the_domain(clinician: Session) -> None:
    (statement,) = clinician.parse("SELECT DISTINCT sex FROM patients")
    result = clinician.execute(statement)
    assert result.rows == (("F",), ("M",), ("X",), (None,))
