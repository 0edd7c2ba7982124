"""Each engine has every function of the allow-list; what one has not is refused; sizes of numbers are never guessed."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.dialect import spelled
from dpsql.compiler.dialects.postgres_guards import FULL, magnitude, stays_normal
from dpsql.compiler.ir.functions import FUNCTIONS, JSON_FUNCTIONS, Spelling, table, usages
from dpsql.compiler.ir.nodes import Call, Case, Cast, Column, Expr, Field, Grid, Literal
from dpsql.compiler.ir.schema import EngineColumn
from dpsql.errors import UnsupportedQuery
from dpsql.policy import load_policy
from dpsql.policy.engines import DUCKDB, ENGINES, POSTGRES, S3, SPARK
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner
from tests.engines import HOSTS, Host, PostgresHost


@pytest.fixture(scope="module")
def elephant(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy), POSTGRES)


def test_every_engine_has_a_dialect_of_its_own() -> None:
    assert set(DIALECTS) == set(ENGINES.values())
    # Objects are read as Parquet files are: tests/backends/test_object_store.py. Spark has tests/test_spark.py.
    elsewhere = {S3, SPARK}
    hosted = {engine.schemes[0] for engine in DIALECTS if engine not in elsewhere}
    assert hosted == set(HOSTS), "an engine that no suite runs on"
    assert set(DIALECTS[DUCKDB].functions) == set(FUNCTIONS) | {"beginning"}
    assert set(FUNCTIONS) < set(DIALECTS[POSTGRES].functions)  # which has some by type besides


def test_a_function_stands_in_the_table_once() -> None:
    md5 = FUNCTIONS["md5"]
    with pytest.raises(ValueError, match='"md5" is in the table twice'):
        table(*FUNCTIONS.values(), md5)
    with pytest.raises(ValueError, match='"ascii" is in the table twice'):
        usages(*FUNCTIONS.values(), replace(md5, name="md6", usages=("ASCII(text)",)))


def test_a_spelling_that_engines_share_stands_in_the_table_alone() -> None:
    assert spelled({"md5": Spelling("md5_of({0})")})["md5"].template == "md5_of({0})"
    with pytest.raises(ValueError, match='"md5" is spelled as in the table of functions'):
        spelled({"md5": Spelling("md5({all})")})


def test_a_cte_that_is_named_twice_is_computed_once(host: Host) -> None:
    """Bounds compare two readings of one. A lazy one is computed twice, so plans do tell."""
    dialect = DIALECTS[POSTGRES if isinstance(host, PostgresHost) else DUCKDB]
    assert dialect.computes_ctes_once
    scans = {}
    with host.session() as run:
        for lazy in (False, True):
            step = dialect.cte(
                "step", "SELECT x, count(*) AS n FROM generate_series(1, 9) AS s(x) GROUP BY x", lazy=lazy
            )
            plan = run(f"EXPLAIN WITH {step} SELECT a.n FROM step AS a JOIN step AS b ON a.x = b.x WHERE a.n < 5")
            scans[lazy] = str(plan).casefold().count("generate_series")
    assert scans[True] == 2 * scans[False] > 0


# Full joins

JOINED = "SELECT COUNT(*) FROM doctors AS a FULL JOIN doctors AS b ON {on}"


@pytest.mark.parametrize(
    "on", ["a.doctor_id = b.doctor_id", "b.city = a.city AND a.doctor_id < 3", "a.doctor_id + 1 = b.doctor_id"]
)
def test_a_full_join_on_an_equation(elephant: Planner, on: str) -> None:
    assert elephant.compile(JOINED.format(on=on)).public_reads


def test_duckdb_has_no_subquery_in_the_condition_of_a_lateral_outer_join(
    elephant: Planner, clinic_policy: Path
) -> None:
    sql = (
        "SELECT COUNT(*) FROM patients p LEFT JOIN LATERAL (SELECT v.cost FROM visits v WHERE v.patient_id = "
        "p.patient_id) x ON p.age IN (SELECT doctor_id FROM doctors)"
    )
    with pytest.raises(UnsupportedQuery, match="without subqueries"):
        Planner(load_policy(clinic_policy)).compile(sql)
    assert elephant.compile(sql).releases


@pytest.mark.parametrize("on", ["a.doctor_id < b.doctor_id", "a.doctor_id = 3", "a.doctor_id = a.doctor_id", "true"])
def test_a_full_join_on_anything_else_is_refused(elephant: Planner, clinic_policy: Path, on: str) -> None:
    with pytest.raises(UnsupportedQuery, match="FULL JOIN is only supported"):
        elephant.compile(JOINED.format(on=on))
    assert Planner(load_policy(clinic_policy)).compile(JOINED.format(on=on)).public_reads


# Sizes

N = Cast(Column(Field(1, SqlType.INTEGER)), SqlType.DOUBLE)
PRICE = Cast(Column(Field(2, SqlType.NUMERIC)), SqlType.DOUBLE)
X = Column(Field(3, SqlType.DOUBLE))
HALF, NONE = Literal(Decimal("0.5"), SqlType.DOUBLE), Literal(None, SqlType.DOUBLE)


def of(function: str, *arguments: Expr) -> Call:
    return Call(function, arguments, SqlType.DOUBLE)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (N, (0, 31)),
        (PRICE, (-130, 130)),
        (X, FULL),
        (HALF, (-1, 0)),
        (NONE, (0, 0)),
        (of("add", N, HALF), (-54, 32)),
        (of("multiply", N, HALF), (-2, 32)),
        (of("divide", N, PRICE), (-131, 162)),
        (of("floor", PRICE), (0, 131)),
        (of("coalesce", N, HALF), (-1, 31)),
        (of("ln", N), FULL),
        (of("multiply", X, X), FULL),
        (Case(((Literal(True, SqlType.BOOLEAN), N),), HALF, SqlType.DOUBLE), (-1, 31)),
        (Literal("?", SqlType.TEXT), (0, 0)),
    ],
)
def test_sizes_follow_from_types_and_constants(expression: Expr, found: tuple[int, int]) -> None:
    assert magnitude(expression) == found


def test_only_what_surely_fits_has_no_guard() -> None:
    assert stays_normal(of("multiply", N, PRICE))
    assert stays_normal(of("add", PRICE, PRICE))
    assert not stays_normal(of("add", X, N))
    assert not stays_normal(of("multiply", X, HALF))  # it may vanish
    assert not stays_normal(of("divide", N, X))


# Constants and grids


def test_constants_of_no_type_have_no_words() -> None:
    for dialect in DIALECTS.values():
        with pytest.raises(TypeError):
            dialect.constant(object(), SqlType.TEXT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("1 months -2 days -3723000004 microseconds", "1 months -2 days -1 hours -2 minutes -3.000004 seconds"),
        ("240001 months 0 days 0 microseconds", None),
        ("0 months 8000001 days 0 microseconds", None),
        ("0 months 0 days 9000000000000000000 microseconds", None),
    ],
)
def test_an_interval_is_written_in_fields_that_every_version_reads(text: str, constant: str | None) -> None:
    found = DIALECTS[POSTGRES].constant(text, SqlType.INTERVAL)
    assert found == (f"CAST('{constant}' AS interval)" if constant is not None else "CAST(NULL AS interval)")


def test_a_wide_step_cannot_make_a_small_number_vanish() -> None:
    dialect = DIALECTS[POSTGRES]
    assert "1e-200" in dialect.on_grid("x", SqlType.DOUBLE, Grid(Fraction(10), 0, 10))
    assert "1e-200" not in dialect.on_grid("x", SqlType.DOUBLE, Grid(Fraction(1, 10), 0, 10))
    assert dialect.off_grid("x", Grid(Fraction(10), 0, 10)) == "CAST(x AS float8) * 10"


# Columns of another type than the policy says

NAMES = {SqlType.DATE: "date", SqlType.TIMESTAMP: "timestamp without time zone", SqlType.TEXT: "citext"}


@pytest.mark.parametrize(
    ("source", "target", "parts"),
    [
        # Beyond what a timestamp can be, a date is NULL before it is converted.
        (SqlType.DATE, SqlType.TIMESTAMP, ["date '11000-01-01'", "AS timestamp)", "timestamp '9999-12-31 00:00:00"]),
        (SqlType.TIMESTAMP, SqlType.DATE, ["timestamp '4000-01-01 BC'", "AS date)", "date '10000-01-01'"]),
        (SqlType.TEXT, SqlType.TEXT, ['lower(left(CAST("c" AS text), 100000) COLLATE "default") COLLATE "C"']),
    ],
)
def test_a_column_is_converted_within_the_limits_of_both_types(
    source: SqlType, target: SqlType, parts: list[str]
) -> None:
    found = DIALECTS[POSTGRES].canonical('"c"', EngineColumn(NAMES[source], source, not_null=False), target)
    assert all(part in found for part in parts)


@pytest.mark.parametrize("target", [SqlType.TEXT, SqlType.ARRAY, SqlType.INTEGER_ARRAY])
def test_what_is_kept_as_text_is_compared_byte_by_byte(target: SqlType) -> None:
    column = EngineColumn("any", target, not_null=False)
    assert DIALECTS[POSTGRES].stored_type(column, target) == 'text COLLATE "C"'


def test_a_constant_factor_is_where_the_planner_knows_its_size() -> None:
    for constant in (HALF, Cast(Literal(2, SqlType.INTEGER), SqlType.DOUBLE)):
        assert DIALECTS[POSTGRES].adapted(of("multiply", constant, X)) == of("multiply", X, constant)


def test_no_engine_with_private_rows_puts_values_together() -> None:
    """Were a rule above to miss such a call, its SQL would still not be written."""
    text = Literal("x", SqlType.TEXT)
    for dialect in DIALECTS.values():
        with pytest.raises(UnsupportedQuery, match="STRING_AGG is not supported over rows of protected tables"):
            dialect.collected("string_agg", "x, ','", "")
        for name in sorted(JSON_FUNCTIONS):
            with pytest.raises(UnsupportedQuery, match="JSON is not supported over rows of protected tables"):
                dialect.spelling(Call(name, (text,), SqlType.JSON))
