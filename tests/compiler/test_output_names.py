"""A column without an alias has the name PostgreSQL gives it (each was asked of PostgreSQL 18)."""

from pathlib import Path

import pytest

from dpsql.gateway.session import Session

NAMES = {
    "age": "age",
    "(age)": "age",
    "patients.age": "age",
    '"age"': "age",
    "1": "?column?",
    "'x'": "?column?",
    "NULL": "?column?",
    "TRUE": "?column?",
    "-age": "?column?",
    "age + 1": "?column?",
    "NOT TRUE": "?column?",
    "age > 1 AND TRUE": "?column?",
    "age IS NULL": "?column?",
    "age IN (1, 2)": "?column?",
    "age BETWEEN 1 AND 2": "?column?",
    "sex LIKE 'a'": "?column?",
    "sex || 'a'": "?column?",
    "age ^ 2": "?column?",
    "(DATE '2024-01-01', DATE '2024-02-01') OVERLAPS (DATE '2024-01-15', DATE '2024-03-01')": "overlaps",
    "age::text": "age",
    "CAST(age AS bigint)": "age",
    "'x'::text": "text",
    "'x'::varchar": "varchar",
    "1::int": "int4",
    "CAST(1 AS integer)": "int4",
    "1::smallint": "int2",
    "1::bigint": "int8",
    "1::real": "float4",
    "1::double precision": "float8",
    "1::numeric(5, 2)": "numeric",
    "'1'::decimal(5, 2)": "numeric",
    "'t'::boolean": "bool",
    "'2024-01-01'::date": "date",
    "'2024-01-01'::timestamp": "timestamp",
    "'2024-01-01 00:00:00+00'::timestamptz": "timestamptz",
    "'12:00'::time": "time",
    "DATE '2024-01-01'": "date",
    "TIMESTAMP '2024-01-01'": "timestamp",
    "upper(sex)": "upper",
    "UPPER(sex)": "upper",
    "upper(sex)::text": "upper",
    "abs(age)": "abs",
    "power(age, 2)": "power",
    "pow(age, 2)": "pow",
    "ceil(weight)": "ceil",
    "ceiling(weight)": "ceiling",
    "floor(weight)": "floor",
    "round(weight)": "round",
    "trunc(weight)": "trunc",
    "sign(weight)": "sign",
    "sqrt(weight)": "sqrt",
    "exp(weight)": "exp",
    "ln(weight)": "ln",
    "log(weight)": "log",
    "length(sex)": "length",
    "char_length(sex)": "char_length",
    "character_length(sex)": "character_length",
    "reverse(sex)": "reverse",
    "left(sex, 1)": "left",
    "right(sex, 1)": "right",
    "substring(sex, 1)": "substring",
    "substring(sex FROM 1 FOR 1)": "substring",
    "substr(sex, 1)": "substr",
    "trim(sex)": "btrim",
    "trim(BOTH 'a' FROM sex)": "btrim",
    "trim(LEADING 'a' FROM sex)": "ltrim",
    "trim(TRAILING 'a' FROM sex)": "rtrim",
    "btrim(sex)": "btrim",
    "ltrim(sex)": "ltrim",
    "rtrim(sex)": "rtrim",
    "replace(sex, 'a', 'b')": "replace",
    "position('a' IN sex)": "position",
    "strpos(sex, 'a')": "strpos",
    "starts_with(sex, 'a')": "starts_with",
    "sex ^@ 'a'": "?column?",
    "|/ age": "?column?",
    "now() AT TIME ZONE 'UTC'": "timezone",
    "INTERVAL '1 day'": "interval",
    "age(now())": "age",
    "sex ~ 'a'": "?column?",
    "sex SIMILAR TO 'a'": "?column?",
    "sex LIKE 'a' ESCAPE '#'": "?column?",
    "to_char(age, '999')": "to_char",
    "overlay(sex PLACING 'a' FROM 1)": "overlay",
    "date_part('year', now())": "date_part",
    "make_interval(days => 1)": "make_interval",
    "localtime": "localtime",
    "concat(sex, 'a')": "concat",
    "coalesce(age, 1)": "coalesce",
    "nullif(age, 1)": "nullif",
    "greatest(age, 1)": "greatest",
    "least(age, 1)": "least",
    "CASE WHEN TRUE THEN 1 END": "case",
    "CASE WHEN TRUE THEN 1 ELSE 2 END": "case",
    "CASE WHEN TRUE THEN 1 ELSE age END": "age",
    "EXTRACT(year FROM now())": "extract",
    "date_trunc('year', now())": "date_trunc",
    "now()": "now",
    "CURRENT_TIMESTAMP": "current_timestamp",
    "CURRENT_DATE": "current_date",
    "LOCALTIMESTAMP": "localtimestamp",
    "CURRENT_USER": "current_user",
    "SESSION_USER": "session_user",
    "CURRENT_CATALOG": "current_catalog",
    "CURRENT_SCHEMA": "current_schema",
    "current_database()": "current_database",
    "version()": "version",
}

AGGREGATES = {
    "COUNT(*)": "count",
    "SUM(age)": "sum",
    "AVG(age)": "avg",
    "COUNT(*) FILTER (WHERE age > 5)": "count",
    "COUNT(*) + 1": "?column?",
    "(COUNT(*))": "count",
    "-COUNT(*)": "?column?",
    "COUNT(*)::text": "count",
    "ROUND(AVG(age))": "round",
    "SUM(COUNT(*)) OVER ()": "sum",
    "ROW_NUMBER() OVER (ORDER BY COUNT(*))": "row_number",
    "LAG(COUNT(*)) OVER ()": "lag",
    "DENSE_RANK() OVER (ORDER BY COUNT(*))": "dense_rank",
}


def name_of(session: Session, sql: str) -> str:
    (statement,) = session.parse(sql)
    columns = session.describe(statement).columns
    assert columns is not None
    assert len(columns) == 1
    return columns[0].name


@pytest.fixture
def each_clinic(clinic_policy: Path) -> Path:
    """One will do: a name is made whatever the engine."""
    return clinic_policy


@pytest.mark.parametrize(("expression", "name"), NAMES.items())
def test_names_of_expressions(session: Session, expression: str, name: str) -> None:
    assert (
        name_of(session, f"SELECT {expression} FROM (SELECT 1 AS age, 'x' AS sex, 1.5 AS weight) AS patients") == name
    )


@pytest.mark.parametrize(("expression", "name"), AGGREGATES.items())
def test_names_of_aggregates(session: Session, expression: str, name: str) -> None:
    assert name_of(session, f"SELECT {expression} FROM patients") == name
