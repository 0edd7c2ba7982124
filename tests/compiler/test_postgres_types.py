"""PostgreSQL's own types: each value has one spelling, what is none is NULL, and names may be anything."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from dpsql.errors import UnsupportedQuery
from dpsql.gateway.session import Session
from dpsql.sqltypes import Span
from tests.conftest import silent_engine
from tests.postgres import Server, url_of

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'Happy');
CREATE DOMAIN word AS text CHECK (value <> 'never');
CREATE DOMAIN cents AS numeric(12, 2);
CREATE COLLATION folded (provider = libc, locale = 'C');
CREATE SCHEMA "Odd";
CREATE TABLE "Odd"."The ""Odd"" One" (
    "Person Id" bpchar(8) NOT NULL, mood mood, word word, cents cents, bare numeric, wide numeric(60, 30),
    fixed char(5), "CamelCase" varchar(9), r real, span interval, js jsonb, items int[], tag uuid, ok boolean, day date,
    n int
);
INSERT INTO "Odd"."The ""Odd"" One" VALUES
    ('a', 'sad', 'one', 1.5, 1.50, 2.25, 'ab', 'Ab', 0.1, '1 mon 2 days 03:00', '{"a": 1}', '{1,2}',
        'ffffffff-0000-0000-0000-000000000001', true, '2024-01-01', 1),
    ('a', 'ok', 'two', 2.5, 1.5, 2.25, 'ab ', 'ab', 'NaN', '-1 years 2 days -03:00', '[]', '{}',
        '0fffffff-0000-0000-0000-000000000001', false, 'infinity', 2),
    ('b', 'Happy', '', 'NaN', 'NaN', 'NaN', '', ' ', 'Infinity', '170000000 years', NULL, NULL, NULL, NULL,
        '5000000-01-01', -2147483648),
    ('c', NULL, NULL, NULL, 'Infinity', '12345678901234567890123456789.5', NULL, NULL, '-0', '-100000 hours', NULL,
        NULL, '00000000-0000-0000-0000-000000000001', NULL, '4713-01-01 BC', 2147483647),
    ('d', NULL, NULL, NULL, 1e40, '0.12345678905', 'é', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE public.shelf AS TABLE "Odd"."The ""Odd"" One";
"""
COLUMNS = """
mood = { type = "text" }
word = { type = "text" }
cents = { type = "numeric", lower = 0, upper = 100, step = 0.01 }
bare = { type = "numeric", lower = 0, upper = 100, step = 100 }
wide = { type = "numeric" }
fixed = { type = "char" }
CamelCase = { type = "varchar" }
r = { type = "real", lower = 0, upper = 1, step = 0.1 }
span = { type = "interval" }
js = { type = "json" }
items = { type = "integer[]" }
tag = { type = "uuid" }
ok = { type = "boolean" }
day = { type = "date" }
n = { type = "integer", lower = -100000000, upper = 100000000 }
"""
POLICY = f"""
version = 1
[dataset]
name = "odd"
url = "URL"
privacy_unit = "person"
budget = {{ epsilon = 1000, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 1000, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.'Odd.The "Odd" One']
unit_key = "Person Id"
max_rows = 2
[tables.'Odd.The "Odd" One'.columns]
"Person Id" = {{ type = "char" }}
{COLUMNS}
[tables.shelf]
public = true
[tables.shelf.columns]
"Person Id" = {{ type = "char" }}
{COLUMNS}
"""
ODD = '"Odd"."The ""Odd"" One"'


@pytest.fixture(scope="module")
def analyst(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = tmp_path_factory.mktemp("odd")
    # Version 13 has no infinite numerics.
    tables = TABLES if postgres_server.version > 13 else TABLES.replace("'Infinity', '123", "'NaN', '123")
    with postgres_server.database("SET TimeZone = 'UTC'", tables) as name:
        policy = folder / "odd.toml"
        policy.write_text(POLICY.replace("URL", url_of(postgres_server.url, dbname=name)), encoding="utf-8")
        with silent_engine(policy, folder) as engine:
            yield Session(engine, "ana")


def run(session: Session, sql: str) -> list[tuple[object, ...]]:
    (statement,) = session.parse(sql)
    return list(session.execute(statement).rows)


SHOWN = [
    ("mood", ["sad", "ok", "Happy", None, None]),
    ("word", ["one", "two", "", None, None]),
    ("cents", [Decimal("1.50"), Decimal("2.50"), None, None, None]),
    ("bare", [Decimal("1.5"), Decimal("1.5"), None, None, None]),
    ("fixed", ["ab", "ab", "", None, "é"]),
    ('"CamelCase"', ["Ab", "ab", " ", None, None]),
    ("r", [pytest.approx(0.1), None, None, 0.0, None]),
    ("span", [Span(1, 2, 10_800_000_000), Span(-12, 2, -10_800_000_000), None, Span(0, 0, -360_000_000_000_000), None]),
    ("js IS NULL", [False, False, True, True, True]),
    ("items IS NULL", [False, False, True, True, True]),
    ("day", [date(2024, 1, 1), None, None, None, None]),
    ("n", [1, 2, -(2**31), 2**31 - 1, None]),
]


@pytest.mark.parametrize(("column", "values"), SHOWN, ids=lambda each: each if isinstance(each, str) else "")
def test_a_value_has_one_spelling(analyst: Session, column: str, values: list[object]) -> None:
    found = run(analyst, f'SELECT {column} FROM shelf ORDER BY "Person Id", n')
    assert [row[0] for row in found] == values


def test_a_numeric_without_digits_declared_has_fifteen(analyst: Session) -> None:
    found = run(analyst, 'SELECT wide FROM shelf ORDER BY "Person Id", n')
    assert [row[0] for row in found] == [Decimal("2.25"), Decimal("2.25"), None, None, Decimal("0.12345678905")]


def test_the_least_and_greatest_of_types_that_have_none(analyst: Session) -> None:
    assert run(analyst, "SELECT MIN(tag)::text, MAX(tag)::text, MIN(ok), MAX(ok) FROM shelf") == [
        ("00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-000000000001", False, True)
    ]


@pytest.mark.parametrize(
    ("column", "groups"),
    [
        ("mood", [("Happy", 1), ("ok", 1), ("sad", 1), (None, 2)]),
        ("fixed", [("", 1), ("ab", 1), ("é", 1), (None, 1)]),
        ("bare", [(Decimal("1.5"), 1), (None, 3)]),
        ("tag::text", None),
        ("day", [(date(2024, 1, 1), 1), (None, 4)]),
        ("ok", [(False, 1), (True, 1), (None, 3)]),
    ],
)
def test_groups_are_of_values_not_of_spellings(
    analyst: Session, column: str, groups: list[tuple[object, int]] | None
) -> None:
    found = run(analyst, f'SELECT {column}, COUNT(DISTINCT "Person Id") FROM {ODD} GROUP BY 1 ORDER BY 1')
    assert found == groups or (groups is None and len(found) == 4)


def test_sums_are_on_their_grids(analyst: Session) -> None:
    # 2147483647 and its negative are clamped; 1e-40 of a step is nothing; NaN and infinities are NULL.
    found = run(analyst, f"SELECT SUM(cents), SUM(bare), SUM(r), SUM(n), AVG(n), COUNT(bare) FROM {ODD}")
    assert found == [(Decimal("4.00"), Decimal(0), pytest.approx(0.1), 3, pytest.approx(0.75), 2)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM {odd} WHERE bare * '1e-300'::float8 * r > 0",
        "SELECT COUNT(*) FROM {odd} WHERE span + INTERVAL '1 day' > INTERVAL '0' AND day + span IS NULL",
        "SELECT SUM(n % 7), COUNT(n / n + n * n - n), SUM(n * 0.5) FROM {odd}",
        'SELECT AVG(m), SUM(s) FROM (SELECT "Person Id", AVG(n) AS m, SUM(r) AS s FROM {odd} GROUP BY 1) AS p',
    ],
)
def test_poison_raises_nothing(analyst: Session, sql: str) -> None:
    assert len(run(analyst, sql.format(odd=ODD))) == 1


def test_a_bin_is_not_wider_than_a_float_counts(analyst: Session) -> None:
    with pytest.raises(UnsupportedQuery, match="100,000 days"):
        run(analyst, "SELECT DATE_BIN('100001 days', day, TIMESTAMP '2001-01-01') FROM shelf")
