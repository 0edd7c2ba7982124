"""The SQL for Spark, and what is refused by name; both without a server."""

import re
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.compiler.dialects.spark import Spark
from dpsql.compiler.ir.functions import FUNCTIONS
from dpsql.compiler.ir.nodes import AggregateCall, Call, Column, Field, Frame, Grid, Literal, Window
from dpsql.compiler.ir.schema import EngineColumn
from dpsql.errors import InvalidText, UnsupportedQuery
from dpsql.policy import load_policy
from dpsql.policy.engines import SPARK
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner

DIALECT = Spark()
X, S = Column(Field(1, SqlType.DOUBLE)), Column(Field(2, SqlType.TEXT))


@pytest.fixture(scope="module")
def spark(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy), SPARK)


REFUSED = {
    "SELECT COUNT(*) FROM patients WHERE WIDTH_BUCKET(weight, 0, 100, 5) = 2": "width_bucket",
    "SELECT COUNT(*) FROM patients WHERE city ~ '^B'": "regexp_like",
    "SELECT COUNT(*) FROM patients WHERE city LIKE 'B%r%n'": "LIKE with % between other characters",
    "SELECT COUNT(*) FROM patients WHERE age > (SELECT AVG(age) FROM patients)": "a subquery that is used as one value",
    "SELECT COUNT(*) FROM patients WHERE city IN (SELECT city FROM visits GROUP BY city)": "with other results",
    "SELECT SUM(x.cost) FROM patients p, LATERAL (SELECT v.cost FROM visits v WHERE v.patient_id = p.patient_id "
    "ORDER BY v.cost LIMIT 3) x": "LATERAL",
    "SELECT COUNT(*) FROM patients p JOIN visits v ON v.patient_id = p.patient_id AND EXISTS (SELECT 1 FROM visits w "
    "WHERE w.patient_id = p.patient_id AND w.cost > v.cost)": "a subquery in the condition of a join",
    "SELECT COUNT(*) FROM patients p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.patient_id = p.patient_id "
    "OFFSET 3)": "LIMIT, OFFSET or a window function in a subquery that names outer columns",
    "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM doctors d WHERE (SELECT COUNT(*) FROM doctors e WHERE "
    "e.doctor_id = v.doctor_id) = 1)": "a subquery within a subquery that names columns outside both",
    "SELECT COUNT(*) FROM (SELECT LAG(cost) OVER (PARTITION BY patient_id ORDER BY visited_on) AS s FROM visits) t "
    "WHERE s > 5": "LAG",
    "SELECT COUNT(*) FROM patients WHERE CAST(weight AS numeric(5, 1))::text = '70.0'": "a cast of numeric to text",
    "SELECT COUNT(*) FROM visits WHERE visited_on + INTERVAL '1 day' > now()": "this arithmetic of dates",
    "SELECT COUNT(*) FROM visits WHERE CAST(city AS timestamp) > now()": "a cast of text to this type",
    "SELECT COUNT(*) FROM visits WHERE DATE_TRUNC('decade', visited_on) > now()": "DATE_TRUNC to this unit",
    "SELECT COUNT(*) FROM visits WHERE SUBSTRING(city, 1, 2) = 'Be'": "SUBSTRING",
    "SELECT COUNT(*) FROM visits WHERE CAST(cost::double precision AS text) = '7'": "a cast of this type to text",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_spark_is_not_asked_is_refused_by_name(spark: Planner, sql: str) -> None:
    with pytest.raises(UnsupportedQuery, match="is not supported where Spark holds the data") as refused:
        spark.compile(sql)
    assert REFUSED[sql].lower() in refused.value.message.lower()


def test_no_key_is_believed(spark: Planner) -> None:
    """A unit's rows are limited in SQL where DuckDB and PostgreSQL enforce that there is one."""
    (release,) = spark.compile("SELECT COUNT(*) FROM patients").releases
    assert not release.contribution.one_row and "least(a0, 1)" in release.sql


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        ("SELECT city, COUNT(*), SUM(cost) FROM visits GROUP BY city", {"max_rows": "3"}),
        ("SELECT city, AVG(cost) FROM visits GROUP BY city", {"max_groups": "2"}),
        ("SELECT visited_on, city, COUNT(*) FROM visits GROUP BY 1, 2", {}),
    ],
)
def test_bounds_compare_no_two_scans(spark: Planner, sql: str, changes: dict[str, str]) -> None:
    """The table, and each step that is made of it, is named once: another scan of it may find other rows."""
    (release,) = spark.compile(sql, **changes).releases
    assert release.sql.count("`visits`") == 1
    for step in ("rows", "summed", "per_unit", "ranked", "kept", "running", "shared", "bounded"):
        assert release.sql.count(f"FROM {step}") + release.sql.count(f"JOIN {step}") <= 1, step


def test_no_order_is_left_open(spark: Planner) -> None:
    """Values of a list are sorted, and numbers follow the keys: what is computed again must come out the same."""
    (release,) = spark.compile("SELECT sex, MEDIAN(age) FROM patients GROUP BY sex").releases
    assert "array_sort(collect_list(struct(v AS v, m AS n)))" in release.sql
    assert DIALECT.numbered("", ["k0", "k1"]) == "row_number() OVER ( ORDER BY k0 NULLS LAST, k1 NULLS LAST)"
    assert DIALECT.numbered("PARTITION BY unit", ()) == "row_number() OVER (PARTITION BY unit ORDER BY 1)"


def test_what_reaches_spark_in_no_query_is_refused_too() -> None:
    frame = Frame("GROUPS", -1, 0)
    with pytest.raises(UnsupportedQuery, match="GROUPS in a frame is not supported where Spark"):
        DIALECT.check_call(Window("sum", (), (), (), frame, SqlType.BIGINT))
    with pytest.raises(UnsupportedQuery, match="UNNEST of arrays is not supported where Spark"):
        DIALECT.elements(["x"], False)


def test_sums_are_decimals() -> None:
    assert DIALECT.total("x") == "sum(CAST(x AS DECIMAL(38,0)))"
    assert DIALECT.total("x", distinct=True) == "sum(DISTINCT CAST(x AS DECIMAL(38,0)))"


def test_every_refused_function_has_a_name() -> None:
    """By default it is called arithmetic of moments, and that is what it is."""
    unnamed = {name for name, each in FUNCTIONS.items() if not each.usages and name not in DIALECT.functions}
    arithmetic = {name for name in unnamed if re.search("moment|time_|times|interval|date_at", name)} - {"time_text"}
    for name in unnamed - {"like"}:
        with pytest.raises(UnsupportedQuery) as refused:
            DIALECT.spelling(Call(name, (), SqlType.TEXT))
        assert ("arithmetic of dates" in refused.value.message) == (name in arithmetic), name


def test_spark_has_a_part_of_the_allow_list() -> None:
    adapted = {"small_divide", "big_divide", "beginning", "ends_with", "contains"}
    zoned = {name for name in DIALECT.functions if name.startswith("zoned_")}
    assert set(DIALECT.functions) - adapted - zoned < set(FUNCTIONS)


@pytest.mark.parametrize(
    ("pattern", "form", "text"),
    [
        ("a_b", "eq", "a_b"),
        ("a%", "starts_with", "a"),
        ("%a", "ends_with", "a"),
        ("%a%", "contains", "a"),
        ("%", "contains", ""),
        ("", "eq", ""),
    ],
)
def test_like_is_told_by_the_ends_of_its_pattern(pattern: str, form: str, text: str) -> None:
    found = DIALECT.adapted(Call("like", (S, Literal(pattern, SqlType.TEXT)), SqlType.BOOLEAN))
    assert (found.function, found.arguments[1]) == (form, Literal(text, SqlType.TEXT))


@pytest.mark.parametrize(
    ("value", "sql_type", "written"),
    [
        (None, SqlType.INTEGER, "CAST(NULL AS INT)"),
        (True, SqlType.BOOLEAN, "TRUE"),
        (-0.0, SqlType.DOUBLE, "CAST('0.0' AS DOUBLE)"),
        (7, SqlType.BIGINT, "CAST('7' AS BIGINT)"),
        (Decimal("1.50"), SqlType.NUMERIC, "CAST('1.50' AS DECIMAL(38,15))"),
        (Decimal("1e-60"), SqlType.NUMERIC, "CAST('1E-60' AS DOUBLE)"),
        (date(2024, 1, 2), SqlType.DATE, "CAST('2024-01-02' AS DATE)"),
        ("it's \\", SqlType.TEXT, "'it\\'s \\\\'"),
    ],
)
def test_constants(value: object, sql_type: SqlType, written: str) -> None:
    assert DIALECT.constant(value, sql_type) == written  # type: ignore[arg-type]


@pytest.mark.parametrize("sql_type", [SqlType.INTERVAL, SqlType.TIME, SqlType.UUID, SqlType.BYTEA, SqlType.ARRAY])
def test_types_that_spark_is_not_asked_for(sql_type: SqlType) -> None:
    with pytest.raises(UnsupportedQuery, match=r"the type .* is not supported where Spark"):
        DIALECT.constant("x", sql_type)
    with pytest.raises(UnsupportedQuery, match="an array is not supported where Spark"):
        DIALECT.array("x")


@pytest.mark.parametrize(
    ("source", "target", "scale", "written"),
    [
        (
            *(SqlType.DOUBLE, SqlType.NUMERIC, 2),
            "try_cast(try_cast(format_string('%.14e', x) AS DECIMAL(38,2)) AS DECIMAL(38,15))",
        ),
        (SqlType.NUMERIC, SqlType.NUMERIC, None, "try_cast(x AS DECIMAL(38,15))"),
        (SqlType.DOUBLE, SqlType.INTEGER, None, "try_cast(rint(x) AS INT)"),
        (SqlType.NUMERIC, SqlType.BIGINT, None, "try_cast(round(x, 0) AS BIGINT)"),
        (SqlType.TEXT, SqlType.DATE, None, "try_cast(x AS DATE)"),
    ],
)
def test_casts_give_null_where_nothing_fits(source: SqlType, target: SqlType, scale: int | None, written: str) -> None:
    assert DIALECT.cast("x", source, target, scale) == written


@pytest.mark.parametrize(
    ("type_name", "sql_type", "target", "written"),
    [
        ("string", SqlType.TEXT, SqlType.TEXT, "try_validate_utf8(c COLLATE UTF8_BINARY)"),
        ("int", SqlType.INTEGER, SqlType.TEXT, "try_validate_utf8(CAST(c AS STRING) COLLATE UTF8_BINARY)"),
        ("int", SqlType.INTEGER, SqlType.INTEGER, "c"),
        ("tinyint", SqlType.SMALLINT, SqlType.SMALLINT, "try_cast(c AS SMALLINT)"),
        ("decimal(38,15)", SqlType.NUMERIC, SqlType.NUMERIC, "c"),
        ("decimal(5,2)", SqlType.NUMERIC, SqlType.NUMERIC, "try_cast(c AS DECIMAL(38,15))"),
        ("float", SqlType.REAL, SqlType.REAL, "CASE WHEN abs(try_cast(c AS DOUBLE)) <= 1.7976931348623157E308D"),
        ("date", SqlType.DATE, SqlType.DATE, "CASE WHEN c BETWEEN DATE'0001-01-01' AND DATE'9999-12-31' THEN c END"),
    ],
)
def test_columns_are_canonical(type_name: str, sql_type: SqlType, target: SqlType, written: str) -> None:
    assert DIALECT.canonical("c", EngineColumn(type_name, sql_type, not_null=False), target).startswith(written)


def test_json_is_only_tested_for_null() -> None:
    column = EngineColumn("string", SqlType.TEXT, not_null=False)
    assert DIALECT.limited("c", column, SqlType.JSON).startswith("CASE WHEN c IS NOT NULL THEN ")


def test_grids_and_groups() -> None:
    grid = Grid(Fraction(1), 0, 9)
    assert DIALECT.grid_type(grid) == "BIGINT"
    assert "least(greatest(x, CAST(0 AS BIGINT)), CAST(9 AS BIGINT))" in DIALECT.on_grid("x", SqlType.INTEGER, grid)
    assert "signum" in DIALECT.on_grid("x", SqlType.DOUBLE, replace(grid, step=Fraction(1, 3)))
    assert DIALECT.keyed_hash([("a", SqlType.TEXT)], 5) == "xxhash64(CAST(5 AS BIGINT), a, a IS NULL)"
    assert DIALECT.as_text("x", SqlType.TIMESTAMPTZ).endswith("|| '+00'")
    assert DIALECT.series(1, 3, None) == "(SELECT id AS s FROM range(1, 4)) AS g"
    assert "INTERVAL 3 MONTH" in DIALECT.series(date(2024, 1, 1), date(2024, 12, 31), "QUARTER")


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_floats_are_not_added_up(function: str) -> None:
    with pytest.raises(UnsupportedQuery, match="numbers without declared bounds"):
        DIALECT.aggregate(AggregateCall(function, X, False, None, SqlType.DOUBLE), "x", "")


@pytest.mark.parametrize(
    ("function", "grid", "written"),
    [
        ("min", None, "min(x)"),
        ("sum", None, "try_cast(sum(CAST(x AS DECIMAL(38,0))) AS BIGINT)"),
        ("avg", None, "try_divide(CAST(sum(CAST(x AS DECIMAL(38,0))) AS DOUBLE), count(x))"),
        ("sum", Grid(Fraction(1), 0, 9), "CAST(sum(CAST(x AS DECIMAL(38,0))) AS DOUBLE)"),
    ],
)
def test_aggregates_of_one_unit(function: str, grid: Grid | None, written: str) -> None:
    call = AggregateCall(function, Column(Field(3, SqlType.INTEGER)), False, None, SqlType.BIGINT, grid)
    assert DIALECT.aggregate(call, "x", "") == written


def test_calls_by_their_types() -> None:
    moment, number = Column(Field(4, SqlType.TIMESTAMPTZ)), Column(Field(3, SqlType.SMALLINT))
    cut = Call("date_trunc_day", (moment,), SqlType.TIMESTAMPTZ)
    assert DIALECT.adapted(cut).function == "zoned_date_trunc_day"
    local = replace(cut, arguments=(Column(Field(4, SqlType.TIMESTAMP)),), type=SqlType.TIMESTAMP)
    assert DIALECT.adapted(local).function == "date_trunc_day"
    seconds = replace(cut, function="extract_epoch", type=SqlType.DOUBLE)
    assert DIALECT.adapted(seconds).function == "zoned_extract_epoch"
    assert DIALECT.adapted(Call("int_divide", (number, number), SqlType.SMALLINT)).function == "small_divide"


def test_what_is_not_written() -> None:
    with pytest.raises(UnsupportedQuery, match="CORR is not supported"):
        DIALECT.pairs("corr", "x", "y", "")
    with pytest.raises(TypeError):
        DIALECT.with_names("x", [])
    with pytest.raises(TypeError):
        DIALECT.adapted(Call("like", (S, S), SqlType.BOOLEAN))
    assert DIALECT.wide(5) == "CAST(5 AS DECIMAL(38,0))"


@pytest.mark.parametrize("text", ["\0", "\ud800"])
def test_what_sql_cannot_hold(text: str) -> None:
    with pytest.raises(InvalidText):
        Spark.quote_name(text)
