"""Interval analysis: the limits that a sum is clamped to follow from column bounds, the expression and WHERE.

That the limits hold every value is what tests/fixtures/accepted.sql shows: a value cut off would change a sum there.
"""

from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.compiler.ir.nodes import Grid
from dpsql.errors import PolicyViolation, UnsupportedQuery
from dpsql.policy import load_policy
from tests.compiler.plans import Planner, changed_policy

F = Fraction


@pytest.fixture(scope="module")
def clinic(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


@pytest.fixture(scope="module")
def german(german_policy: Path) -> Planner:
    return Planner(load_policy(german_policy))


def grid(planner: Planner, sql: str) -> Grid:
    (release,) = planner.compile(sql).releases
    found = release.primitives[0].primitive.grid
    assert found is not None
    return found


def limits(planner: Planner, sql: str) -> tuple[float, float]:
    found = grid(planner, sql)
    return float(found.lower * found.step), float(found.upper * found.step)


PATIENTS = [
    ("age", 0, 110),
    ("(age)", 0, 110),
    ("weight", 1, 300),
    ("-age", -110, 0),
    ("- (-age)", 0, 110),
    ("-weight", -300, -1),
    ("age + 1", 1, 111),
    ("age - 10", -10, 100),
    ("10 - age", -100, 10),
    ("age + weight", 1, 410),
    ("age - weight", -300, 109),
    ("age * 2", 0, 220),
    ("age * -2", -220, 0),
    ("age * age", 0, 12100),
    ("(age - 50) * (age - 50)", -3000, 3600),
    ("weight * 0.5", F(1, 2), 150),
    ("age / 2", 0, 55),
    ("age / -2", -55, 0),
    ("weight / 2", F(1, 2), 150),
    ("300 / weight", 1, 300),
    ("age / 3", 0, 36),
    ("100.0 / (age - 5)", -100, 100),
    ("100 / age", 0, 100),
    ("weight / (age + 10)", F(1, 120), 30),
    ("weight / nullif(age - 200, 0)", F(-300, 90), F(-1, 200)),
    ("weight / (-5 - age)", -60, F(-1, 115)),
    ("(age + 5) / 10", 0, 11),
    ("(age - 50) / 20", -2, 3),
    ("age % 7", 0, 7),
    ("(age - 50) % 7", -7, 7),
    ("age % -7", 0, 7),
    ("abs(age - 50)", 0, 60),
    ("abs(age + 5)", 5, 115),
    ("abs(-age - 5)", 5, 115),
    ("abs(weight)", 1, 300),
    ("floor(weight)", 1, 300),
    ("ceil(weight + 0.5)", 1, 301),
    ("trunc(weight - 0.5)", 0, 300),
    ("round(weight + 0.5)", 1, 301),
    ("round(weight, 1)", 1, 300),
    ("floor(age)", 0, 110),
    ("coalesce(age, 200)", 0, 200),
    ("coalesce(age, -5)", -5, 110),
    ("nullif(age, 5)", 0, 110),
    ("least(age, 50)", 0, 50),
    ("greatest(age, 50)", 50, 110),
    ("least(weight, age)", 0, 300),
    ("greatest(weight, age)", 0, 300),
    ("greatest(least(length(city), 20), 3)", 3, 20),
    ("least(length(city), 9)", 0, 9),
    ("least(strpos(city, 'a'), 9)", 0, 9),
    ("least(greatest(sqrt(age), 0), 11)", 0, 11),
    ("least(greatest(power(age, 2), -5), 1000)", -5, 1000),
    ("least(greatest(length(city) / 0, 1), 2)", 1, 2),
    ("sign(weight)", -1, 1),
    ("5", 5, 5),
    ("1.5", F(3, 2), F(3, 2)),
    ("(age > 5)::int", 0, 1),
    ("CAST(weight AS int)", 1, 300),
    ("CAST(weight + 0.5 AS int)", 1, 301),
    ("CAST(age AS double precision)", 0, 110),
    ("age::numeric(10, 2)", 0, 110),
    ("CASE WHEN age > 50 THEN age ELSE 0 END", 0, 110),
    ("CASE WHEN age > 50 THEN age END", 51, 110),
    ("CASE WHEN age > 50 THEN 2 WHEN age > 20 THEN 3 ELSE NULL END", 2, 3),
    ("CASE WHEN age < 50 THEN age ELSE 50 END", 0, 50),
    ("CASE sex WHEN 'F' THEN 1 ELSE 0 END", 0, 1),
    ("ln(weight)", 0, 5.70379),
    ("log10(weight)", 0, 2.47713),
    ("sqrt(age)", 0, 10.4881),
    ("cbrt(age - 110)", -4.79142, 0),
    ("power(age, 2)", 0, 12100),
    ("(age - 10) ^ 2", 0, 10000),
    ("power(weight, 0.5)", 1, 17.3206),
    ("power(2, age / 11)", 1, 1024.01),
    ("CASE WHEN age > 50 THEN 50 ELSE age END", 0, 50),
    ("CASE WHEN age < 10 THEN 10 WHEN age >= 90 THEN 90 ELSE age END", 10, 90),
    ("CASE WHEN age > 50 OR age <= 5 THEN 6 ELSE age END", 6, 50),
    ("CASE WHEN age > 50 AND sex = 'F' THEN 0 ELSE age END", 0, 110),
    ("CASE WHEN sex = 'F' THEN 0 ELSE age END", 0, 110),
    ("greatest(CASE WHEN age > 50 THEN 1 END, 0)", 0, 1),
    ("least(CASE WHEN age > 50 THEN 1 END, 5::int)", 1, 5),
    ("power(0.5, age / 55)", F(1, 4), 1),
    ("power(weight, -1)", F(1, 300), 1),
    ("power(weight, (age - 55) / 55)", F(1, 300), 300.003),
    ("exp(age / 110.0)", 1, 2.71829),
    ("weight / nullif(age, 0)", 1 / 110, 300),
    ("nullif(age, 110)", 0, 109),
    ("nullif(age, 50)", 0, 110),
    ("nullif(weight, 300)", 1, 300),
    ("nullif(age, age)", 0, 110),
    ("nullif(least(age, 0), 0)", 0, 0),
    ("age / 100.0", 0, 1.1),
    ("CAST(age / 100.0 AS numeric(5, 1))", 0, 1.1),
]

WHERE = [
    ("age > 18", 19, 110),
    ("age >= 18", 18, 110),
    ("age < 18", 0, 17),
    ("age <= 18", 0, 18),
    ("18 < age", 19, 110),
    ("18 >= age", 0, 18),
    ("age = 30", 30, 30),
    ("30 = age", 30, 30),
    ("age <> 30", 0, 110),
    ("age BETWEEN 20 AND 30", 20, 30),
    ("age BETWEEN 30 AND 20", 30, 110),
    ("age BETWEEN weight AND 30", 0, 30),
    ("30 BETWEEN age AND 200", 0, 30),
    ("NOT age > 18", 0, 18),
    ("NOT (age < 18 OR age >= 65 OR sex = 'F')", 18, 64),
    ("age > 18 AND age < 65", 19, 64),
    ("age > 18 AND (sex = 'F' AND age < 65)", 19, 64),
    ("age > 18 OR sex = 'F'", 0, 110),
    ("age > 200", 0, 110),
    ("age > -5", 0, 110),
    ("age > 18.5", 19, 110),
    ("age > NULL", 0, 110),
    ("age > weight", 0, 110),
    ("age + 1 > 18", 0, 110),
    ("age::bigint > 18", 19, 110),
    ("age > 18.5", 19, 110),
    ("age + 0.5 > 18", 0, 110),
    ("age::text > '18'", 0, 110),
    ("sex = 'F'", 0, 110),
    ("TRUE", 0, 110),
    ("age IN (20, 30)", 20, 30),
    ("age IN (30, 20, NULL)", 20, 30),
    ("age = 20 OR age = 30", 20, 30),
    ("age NOT IN (20, 30)", 0, 110),
    ("age IN (NULL)", 0, 110),
    ("age IS NOT NULL", 0, 110),
]


@pytest.mark.parametrize(("expression", "lower", "upper"), PATIENTS)
def test_expressions(clinic: Planner, expression: str, lower: Fraction, upper: Fraction) -> None:
    found = limits(clinic, f"SELECT SUM({expression}) FROM patients")
    assert found == pytest.approx((float(lower), float(upper)), abs=1e-3)


@pytest.mark.parametrize(("condition", "lower", "upper"), WHERE)
def test_conditions_narrow(clinic: Planner, condition: str, lower: int, upper: int) -> None:
    assert limits(clinic, f"SELECT SUM(age) FROM patients WHERE {condition}") == (lower, upper)
    assert limits(clinic, f"SELECT AVG(age) FILTER (WHERE {condition}) FROM patients") == (lower, upper)
    assert limits(clinic, f"SELECT SUM(CASE WHEN {condition} THEN age END) FROM patients") == (lower, upper)


def test_subqueries_hand_their_bounds_on(clinic: Planner) -> None:
    inner = "SELECT age * 2 AS twice, weight AS w FROM patients WHERE age < 50"
    assert limits(clinic, f"SELECT SUM(twice) FROM ({inner}) AS t") == (0, 98)
    assert limits(clinic, f"SELECT SUM(twice) FROM ({inner}) AS t WHERE twice > 10") == (11, 98)
    assert limits(clinic, f"WITH t AS ({inner}) SELECT AVG(twice + 1) FROM t") == (1, 99)
    # A condition on an expression, as one on a column.
    assert limits(clinic, "SELECT SUM(age * 2) FROM patients WHERE 2 * age BETWEEN 10 AND 99.5") == (10, 99)
    assert limits(clinic, f"SELECT SUM(twice + 1) FROM ({inner}) AS t WHERE twice IN (10, 20)") == (11, 21)
    assert limits(clinic, "SELECT SUM(age * 2) FROM patients WHERE age * 3 > 10") == (0, 220)
    # One on a rounded number tells of that; the number itself may be larger.
    assert limits(clinic, "SELECT SUM(weight) FROM patients WHERE weight::int = 70") == (1, 300)
    assert limits(clinic, "SELECT SUM(weight) FROM patients WHERE weight::numeric(10, 0) <= 70") == (1, 300)
    assert limits(clinic, "SELECT SUM(weight::int) FROM patients WHERE weight::int = 70") == (70, 70)
    assert limits(clinic, "SELECT SUM(age) FROM patients WHERE age::numeric <= 70 AND age::float8 > 5") == (
        6,
        70,
    )
    # The column's own grid comes along as well.
    assert grid(clinic, f"SELECT SUM(w) FROM ({inner}) AS t WHERE w > 5").step == F(1, 10)
    assert grid(clinic, "SELECT SUM(weight) FROM patients").step == F(1, 10)


@pytest.mark.parametrize(
    ("sql", "lower", "upper"),
    [
        ("SELECT SUM(EXTRACT(MONTH FROM visited_on)) FROM visits", 1, 12),
        ("SELECT SUM(EXTRACT(DOW FROM visited_on)) FROM visits", 0, 6),
        ("SELECT SUM(EXTRACT(YEAR FROM visited_on)) FROM visits", 2020, 2026),
        ("SELECT SUM(EXTRACT(YEAR FROM visited_on + duration_min * 10000)) FROM visits", 2020, 9999),
        ("SELECT SUM(EXTRACT(YEAR FROM visited_on - duration_min * 10000)) FROM visits", 1, 2026),
        ("SELECT SUM(v.n) FROM visits, (VALUES (5), (NULL), (1.5)) AS v (n)", F(3, 2), 5),
        (
            "SELECT SUM(v.d - DATE '2024-01-01') FROM visits, (VALUES (DATE '2024-01-03'), ('2024-02-01')) AS v (d)",
            2,
            31,
        ),
        ("SELECT SUM(v.n::int) FROM visits, (VALUES ('1'), ('2')) AS v (n)", None, None),
        ("SELECT SUM(s.n * 2) FROM visits, generate_series(2, 4) AS s (n)", 4, 8),
        (
            "SELECT SUM(d::date - DATE '2024-01-01') FROM visits, "
            "generate_series(DATE '2024-01-01', '2024-03-01', '1 month') d",
            -2,
            62,
        ),
        ("SELECT SUM(MAKE_DATE(EXTRACT(YEAR FROM visited_on)::int, 3, 1) - DATE '2020-01-01') FROM visits", 0, 2556),
        ("SELECT SUM(MAKE_DATE(duration_min, 3, 1) - DATE '0001-01-01') FROM visits", 0, 175316),
        ("SELECT SUM(DATE '9999-12-31' - MAKE_DATE(duration_min + 9999, 1, 1)) FROM visits", 0, 364),
        ("SELECT SUM(DATE '9999-12-31' - MAKE_DATE(duration_min + 10000, 1, 1)) FROM visits", None, None),
        ("SELECT SUM(MAKE_DATE(-1 - duration_min, 1, 1) - DATE '2020-01-01') FROM visits", None, None),
        ("SELECT SUM(cost) FROM visits", 0, 5000),
        ("SELECT SUM(doctor_id % 5) FROM visits", -5, 5),
        ("SELECT SUM(boxes) FROM prescriptions", 0, 10),
        ("SELECT SUM(least(visited_on - DATE '2020-01-01', 5000) * 0) FROM visits WHERE FALSE", 0, 0),
        ("SELECT SUM(visited_on - DATE '2020-01-01') FROM visits", 0, 2556),
        ("SELECT SUM(DATE '2020-01-01' - visited_on::timestamp::date) FROM visits", -2556, 0),
        ("SELECT SUM(EXTRACT(YEAR FROM AGE(DATE '2030-01-01', visited_on))) FROM visits", 3, 11),
        ("SELECT SUM(EXTRACT(MONTH FROM AGE(DATE '2030-01-01', visited_on))) FROM visits", 0, 11),
        ("SELECT SUM(EXTRACT(MONTH FROM AGE(visited_on, DATE '2030-01-01'))) FROM visits", -11, 11),
        ("SELECT SUM(EXTRACT(DAY FROM AGE(DATE '2030-01-01', visited_on))) FROM visits", 1096, 3654),
        ("SELECT SUM(EXTRACT(EPOCH FROM TIMESTAMP '2030-01-01' - visited_on) / 86400) FROM visits", 1096, 3654),
        ("SELECT SUM(EXTRACT(HOUR FROM AGE(DATE '2030-01-01', visited_on))) FROM visits", None, None),
        ("SELECT SUM(visited_on + 1 - DATE '2020-01-01') FROM visits", 1, 2557),
        ("SELECT SUM(visited_on - duration_min - DATE '2020-01-01') FROM visits", -480, 2556),
        ("SELECT SUM(GREATEST(visited_on, DATE '2026-12-30') - DATE '2026-12-31') FROM visits", -1, 0),
        ("SELECT SUM((visited_on + TIME '12:00')::date - DATE '2020-01-01') FROM visits", 0, 2557),
        ("SELECT SUM(visited_on::timestamptz::date - DATE '2020-01-01') FROM visits", -2, 2558),
        ("SELECT SUM(EXTRACT(EPOCH FROM visited_on) / 86400) FROM visits", 18262, 20818),
        ("SELECT SUM(EXTRACT(YEAR FROM t)) FROM visits, (VALUES (TIMESTAMPTZ '2024-12-31 23:30Z')) v(t)", 2024, 2025),
        ("SELECT SUM((visited_on + INTERVAL '1 month')::date - DATE '2020-01-01') FROM visits", None, None),
    ],
)
def test_other_tables(clinic: Planner, sql: str, lower: int | None, upper: int | None) -> None:
    if lower is None:
        with pytest.raises(PolicyViolation):
            clinic.compile(sql)
    else:
        assert limits(clinic, sql) == (lower, upper)


@pytest.mark.parametrize(("column", "lower", "upper"), [("female", 0, 1), ("edlevel", 1, 4), ("year", 1984, 1988)])
def test_a_domain_of_numbers_bounds_them(german: Planner, column: str, lower: int, upper: int) -> None:
    assert limits(german, f"SELECT SUM({column}) FROM rwm5yr") == (lower, upper)


@pytest.mark.parametrize(
    "expression",
    [
        *("tan(age)", "ln(length(city))", "ln(weight - 50)", "power(age, weight)", "power(age - 5, 3)", "age ^ -1"),
        *("length(city)", "strpos(city, 'a')", "age / 0", "age / (weight - 5)", "age % length(city)", "city::int"),
        *("age * length(city)", "age + length(city)", "- length(city)", "abs(length(city))", "abs(city::int)"),
        *("coalesce(age, length(city))", "greatest(length(city), 0)", "least(city::int, 5)", "floor(ln(age))"),
        *("CASE WHEN age > 5 THEN length(city) ELSE 0 END", "nullif(length(city), 5)", "round(tan(age), 2)"),
        *("length(city) / 2", "CAST(length(city) AS double precision)", "CAST(ln(age) AS int)", "NULL::int"),
    ],
)
def test_what_has_no_bounds_is_not_summed(clinic: Planner, expression: str) -> None:
    for function in ("SUM", "AVG"):
        with pytest.raises(PolicyViolation, match="needs bounds") as caught:
            clinic.compile(f"SELECT {function}({expression}) FROM patients")
        assert caught.value.hint is not None
        assert f"{function}(LEAST(GREATEST(" in caught.value.hint


def test_the_refusal_names_the_column(clinic: Planner) -> None:
    with pytest.raises(PolicyViolation) as caught:
        clinic.compile("SELECT SUM(d) FROM (SELECT doctor_id AS d, cost FROM visits WHERE cost > 5) AS t WHERE d > 3")
    assert caught.value.message == 'SUM needs bounds, and column "doctor_id" has none'
    assert caught.value.hint is not None
    assert "SELECT SUM(LEAST(GREATEST(d, 0), 100)) FROM" in caught.value.hint
    assert caught.value.hint.endswith(" WHERE d > 3")


@pytest.mark.parametrize(
    ("expression", "step"),
    [
        ("age", 1),
        ("age * 2", 1),
        ("weight", F(1, 10)),
        ("weight + 0", F(1, 10_000)),
        ("weight * 1000000", 100),
        ("weight / 1000000", F(1, 10**10)),
        ("weight * 0", F(1, 10**6)),
        ("weight * 0 + 2", F(1, 10**6)),
    ],
)
def test_steps(clinic: Planner, expression: str, step: Fraction) -> None:
    assert grid(clinic, f"SELECT SUM({expression}) FROM patients").step == step


def test_a_step_may_be_finer_than_a_decimal(wide_policy: Path) -> None:
    changes = {
        'price = { type = "numeric", lower = -1000, upper = 1000, step = 0.001 }': 'price = { type = "numeric", '
        "lower = 0, upper = 0.0001, step = 0.00000000000000001 }"
    }
    with changed_policy(wide_policy, "fine", changes) as policy:
        planner = Planner(load_policy(policy))
    assert grid(planner, "SELECT SUM(price) FROM events").step == F(1, 10**17)


def test_limits_of_buckets_are_constants_of_their_own_value(clinic: Planner) -> None:
    """A conversion that keeps the number is one; one that rounds it would be another number."""
    sql = "SELECT WIDTH_BUCKET(cost, CAST({} AS {}), 100, 5), COUNT(*) FROM visits GROUP BY 1"
    assert clinic.compile(sql.format("0.5", "float8")).releases
    with pytest.raises(UnsupportedQuery, match="the bounds of WIDTH_BUCKET must be constants"):
        clinic.compile(sql.format("0.5", "integer"))
