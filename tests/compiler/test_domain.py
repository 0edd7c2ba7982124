"""Group keys: which are public, and all their values; the others pass a selection."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from dpsql.engine import Engine
from dpsql.session import Session
from tests.compiler.plans import changed_policy
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
    (statement,) = session.parse(f"SELECT {key}, COUNT(*) FROM {table} WHERE {where} GROUP BY {key}")
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
    ("patients", "coalesce(city = 'Berlin', FALSE)", "TRUE", [False, True, None]),
    ("patients", "coalesce(CASE WHEN city = 'B' THEN 1 END, 2)", "TRUE", [1, 2, None]),
    ("patients", "city LIKE 'B%'", "TRUE", [False, True, None]),
    ("patients", "weight > 70", "TRUE", [False, True, None]),
    ("patients", "least(length(city), 5)", "TRUE", [*range(6), None]),
    ("patients", "greatest(least(FLOOR(weight / 50)::int, 3), 0)", "TRUE", [0, 1, 2, 3, None]),
    ("patients", "FLOOR(weight / 50)::int", "TRUE", [*range(7), None]),
    ("patients", "1", "TRUE", [1]),
    ("prescriptions", "boxes", "TRUE", [*range(11), None]),
    ("visits", "EXTRACT(YEAR FROM visited_on)", "TRUE", [*range(2020, 2027), None]),
    ("visits", "EXTRACT(MONTH FROM visited_on)", "TRUE", [*range(1, 13), None]),
    ("visits", "EXTRACT(DOW FROM visited_on)", "TRUE", [*range(7), None]),
    ("visits", "visited_on", "TRUE", [*days(date(2020, 1, 1), date(2026, 12, 31)), None]),
    ("visits", "visited_on", "visited_on >= '2026-12-30'", days(date(2026, 12, 30), date(2026, 12, 31))),
    ("visits", "visited_on + 1", "visited_on >= '2026-12-30'", days(date(2026, 12, 31), date(2027, 1, 1))),
    ("visits", "DATE_TRUNC('year', visited_on)", "TRUE", [*(datetime(y, 1, 1) for y in range(2020, 2027)), None]),
    (
        "visits",
        "DATE_TRUNC('quarter', visited_on)",
        "visited_on < '2020-07-01'",
        [datetime(2020, 1, 1), datetime(2020, 4, 1)],
    ),
    (
        "visits",
        "DATE_TRUNC('month', visited_on)::date",
        "visited_on < '2020-03-01'",
        [date(2020, 1, 1), date(2020, 2, 1)],
    ),
]

PRIVATE = [
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
    (
        "DATE_TRUNC('day', moment)",
        "TRUE",
        [datetime(2024, 2, 28), datetime(2024, 2, 29), datetime(2024, 3, 1), datetime(2024, 3, 2), None],
    ),
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
]


@pytest.mark.parametrize(("key", "where", "values"), BOUNDED)
def test_keys_of_many_types(analyst: Session, key: str, where: str, values: list[object]) -> None:
    assert groups(analyst, key, "events", where) == (values, False)


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
    many = keys not in ("age, boxes",)
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
