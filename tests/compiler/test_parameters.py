"""Parameters whose types were declared: the answer has the type that Describe told."""

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import DatatypeMismatch, InvalidParameter, InvalidText, NumberOutOfRange
from dpsql.policy import load_policy
from dpsql.privacy.exponential_mechanism import Rank
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


@pytest.mark.parametrize(
    ("value", "declared", "type_"),
    [
        (5, None, SqlType.INTEGER),
        (5, SqlType.SMALLINT, SqlType.SMALLINT),
        (5, SqlType.INTEGER, SqlType.INTEGER),
        (5, SqlType.BIGINT, SqlType.BIGINT),
        (5, SqlType.DOUBLE, SqlType.DOUBLE),
        (5, SqlType.REAL, SqlType.REAL),
        (5, SqlType.NUMERIC, SqlType.NUMERIC),
        (1.5, SqlType.NUMERIC, SqlType.NUMERIC),
        (Decimal("1.5"), SqlType.DOUBLE, SqlType.DOUBLE),
        (Decimal("1.5"), SqlType.NUMERIC, SqlType.NUMERIC),
        ("5", SqlType.INTEGER, SqlType.INTEGER),
        ("5", SqlType.TEXT, SqlType.TEXT),
        ("2024-02-29", SqlType.DATE, SqlType.DATE),
        (None, SqlType.BIGINT, SqlType.BIGINT),
        (True, SqlType.BOOLEAN, SqlType.BOOLEAN),
    ],
)
def test_the_declared_type_is_the_columns(
    planner: Planner, value: object, declared: SqlType | None, type_: SqlType
) -> None:
    query = planner.bind("SELECT $1 AS v", [value], [declared])
    assert [column.type for column in query.columns] == [type_]


@pytest.mark.parametrize(
    ("value", "declared"),
    [(40_000, SqlType.SMALLINT), (2**31, SqlType.INTEGER), ("99999", SqlType.SMALLINT), (10**40, SqlType.NUMERIC)],
)
def test_values_out_of_the_declared_range(planner: Planner, value: object, declared: SqlType) -> None:
    with pytest.raises(NumberOutOfRange):
        planner.bind("SELECT $1 AS v", [value], [declared])


def test_values_that_are_not_of_the_declared_type(planner: Planner) -> None:
    with pytest.raises(InvalidText):
        planner.bind("SELECT $1", ["x"], [SqlType.DATE])
    with pytest.raises(DatatypeMismatch):
        planner.bind("SELECT COUNT(*) FROM patients WHERE age > $1", [True], [SqlType.INTEGER])
    with pytest.raises(DatatypeMismatch):
        planner.bind("SELECT $1", [5], [SqlType.TEXT])


def test_limits_of_a_histogram_that_are_not_known_yet_are_described(planner: Planner) -> None:
    sql = "SELECT HISTOGRAM(age, $1, $2, $3) AS h FROM patients"
    described, bound = planner.describe(sql), planner.bind(sql, [0, 100, 10], [None] * 3)
    assert described.parameters == (SqlType.DOUBLE, SqlType.DOUBLE, SqlType.INTEGER)
    assert described.columns == (("h", SqlType.BIGINT.array),) == tuple((c.name, c.type) for c in bound.columns)


def test_a_fraction_that_is_not_known_yet_is_described(planner: Planner) -> None:
    sql = "SELECT PERCENTILE_DISC($1) WITHIN GROUP (ORDER BY age) FROM patients"
    described = planner.describe(sql)
    bound = planner.bind(sql, ["0.25"], [None])
    assert described.parameters == (SqlType.DOUBLE,)
    assert described.columns == tuple((column.name, column.type) for column in bound.columns)
    assert bound.releases[0].primitives[0].primitive.rank == Rank.quantile(Fraction(1, 4))


def test_several_fractions_are_an_array_by_their_type_or_value(planner: Planner) -> None:
    for written, types in (("$1", [None]), ("$1", [SqlType.ARRAY]), ("$1::float8[]", [None])):
        sql = f"SELECT PERCENTILE_DISC({written}) WITHIN GROUP (ORDER BY age) FROM patients"
        bound = planner.bind(sql, [[0.75, 0.25, 0.75]], types)
        assert [column.type for column in bound.columns] == [SqlType.INTEGER_ARRAY]
        ranks = [planned.primitive.rank for planned in bound.releases[0].primitives]
        assert ranks == [Rank.quantile(Fraction(3, 4)), Rank.quantile(Fraction(1, 4))]
    assert planner.describe(sql).columns == (("percentile_disc", SqlType.INTEGER_ARRAY),)
    scalar = planner.bind(sql.replace("::float8[]", ""), [0.75], [None])
    assert [column.type for column in scalar.columns] == [SqlType.INTEGER]


@pytest.mark.parametrize("value", ["NaN", "-1", 2])
def test_a_fraction_lies_between_0_and_1(planner: Planner, value: object) -> None:
    with pytest.raises((InvalidParameter, NumberOutOfRange), match=r"between 0 and 1|a finite number"):
        planner.bind("SELECT PERCENTILE_CONT($1) WITHIN GROUP (ORDER BY age) FROM patients", [value], [None])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT $1,$2",
        "SELECT $1::int,$2::int",
        "SELECT COUNT(*) FROM doctors WHERE doctor_id IN ($1,$2)",
        "SELECT COALESCE($1,$2)",
        "SELECT $1+$2*$1",
        "VALUES ($1,$2),($2,$1)",
        "SELECT $$a$$, $1, $2",
        "SELECT $of$ $1,$2 $of$, $1, $2",
        "SELECT a$1, $1,$2 FROM (VALUES (1)) AS t (a$1)",
    ],
)
def test_parameters_stand_close_together(planner: Planner, sql: str) -> None:
    assert planner.bind(sql, (1, 2), ()).columns


def test_texts_between_dollar_signs_keep_what_looks_like_parameters(planner: Planner) -> None:
    (column,) = planner.compile("SELECT $of$ $1,$2 $of$ AS text").columns
    assert column.type is SqlType.TEXT
