"""At the edges of types PostgreSQL raises no error, and gives what DuckDB gives; constants are no exception."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import duckdb
import pytest

from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.ir.functions import MAX_SCANNED
from dpsql.gateway.session import Session
from dpsql.policy.engines import DUCKDB, POSTGRES
from tests.compiler.test_expressions import EXPRESSIONS
from tests.conftest import silent_engine
from tests.copies import copied
from tests.postgres import Connection, OwnServer

POLICY = """
version = 1
[dataset]
name = "edges"
url = "{url}"
schema = "main"
privacy_unit = "person"
budget = {{ epsilon = 1, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 1, delta = 1e-3 }}
query = {{ epsilon = 1, max_epsilon = 1 }}
[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
[tables.samples]
public = true
[tables.samples.columns]
id = {{ type = "integer" }}
n = {{ type = "integer" }}
big = {{ type = "bigint" }}
small = {{ type = "smallint" }}
x = {{ type = "double" }}
r = {{ type = "real" }}
price = {{ type = "numeric" }}
word = {{ type = "text" }}
ok = {{ type = "boolean" }}
day = {{ type = "date" }}
moment = {{ type = "timestamp" }}
zoned = {{ type = "timestamptz" }}
clock = {{ type = "time" }}
tag = {{ type = "uuid" }}
"""
COLUMNS = """id INTEGER, n INTEGER, big BIGINT, small SMALLINT, x DOUBLE, r REAL, price NUMERIC(10, 3), word VARCHAR,
    ok BOOLEAN, day DATE, moment TIMESTAMP, zoned TIMESTAMPTZ, clock TIME, tag UUID"""
_FLOATS = [
    "NaN",
    "inf",
    "-inf",
    "0.0",
    "-0.0",
    "-1.0",
    "0.5",
    "2.5",
    "0.1",
    "1e15",
    "9007199254740995",
    "1e22",
    "60.0",
    "60.5",
    "709.9",
]
EDGES: dict[str, list[str]] = {
    "n": ["-2147483648", "2147483647", "0", "1", "-1", "5", "46341", "65536"],
    "big": ["-9223372036854775808", "9223372036854775807", "0", "1", "-1", "3037000500", "4294967296"],
    "small": ["-32768", "32767", "0", "1", "-1", "7", "10", "12"],
    "x": [
        *_FLOATS,
        *("1.7976931348623157e308", "-1.7976931348623157e308", "8.98846567431158e307", "1e308", "1e154", "-745.2"),
        *("5e-324", "-5e-324", "2.2250738585072014e-308", "1e-310", "1e-200", "9.2233720368547758e18"),
    ],
    "r": ["NaN", "inf", "-inf", "3.4028234e38", "-3.4028234e38", "1e-45", "0.0", "-0.0", "1.5"],
    "price": ["9999999.999", "-9999999.999", "0.000", "0.001", "-0.001", "1.000", "0.500", "2.675"],
    "word": [
        *("", "a" * 20_000, "é%_" * 5_000, "日本", "İıé", "\x01", "\\1 \\& %s", "now", "today", "NaN", "Infinity"),
        *("2024-02-30", "2023-02-29", "0000-01-01", "9999-12-31", "9999-12-31 23:59:59.999999", "0001-01-01"),
        *("10000-01-01", "2024-2-9", "2024-02-29T12:13", "2024-02-29 24:00:00", "2024-02-29 25:00", "infinity"),
        *(
            "24:00:00",
            "23:59:60",
            "12:30:61",
            "1:02",
            "1e400",
            "-1e308",
            "1e-400",
            "5e-324",
            "9" * 60,
            "1." + "0" * 150,
        ),
        *("2147483648", "-32769", "0x1F", "1_000", "1.", ".5", ".", "-", "+", "12", " 12 ", "\t7\v", "1e5", "1e+3"),
        *("true", " yes ", "{00000000-0000-0000-0000-000000000001}", "0" * 31 + "1", "0000-0000", "1e99999", "-0"),
    ],
    "ok": ["true", "false"],
    "day": ["infinity", "-infinity", "0001-01-01", "9999-12-31", "2024-02-29", "0001-12-31", "1900-02-28"],
    "moment": [
        *("infinity", "-infinity", "0001-01-01 00:00:00", "9999-12-31 00:00:00", "9999-12-31 23:59:59.999999"),
        *("9999-12-30 23:59:59.999999", "0004-02-29 23:59:59.999999", "1969-12-31 23:59:59.999999"),
    ],
    "zoned": ["infinity", "-infinity", "0001-01-01 00:00:00+00", "9999-12-31 00:00:00+00", "2024-03-31 01:30:00+00"],
    "clock": ["00:00:00", "23:59:59.999999", "12:00:00.000001"],
    "tag": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
}
ROWS = 120

Rows = list[tuple[object, ...]]
Answers = Callable[[tuple[str, ...]], Rows]
BEYOND = (
    "(1000, 1, 1, 1, 1, 1, 1, 'x', true, '5874897-12-31', '294276-12-31 23:59:59', '294276-12-30 00:00+00', '24:00')",
    "(1001, 1, 1, 1, 1, 1, 1, 'x', true, '4713-01-01 BC', '4713-01-01 BC', '4713-06-01 00:00+00 BC', '24:00')",
    "(1002, 1, 1, 1, 1, 1, 'NaN', '', true, '0001-12-31 BC', '0001-12-31 23:59:59 BC', '10000-01-01 00:00+00', NULL)",
)
"""Rows that DuckDB has no place for."""


def words(text: str) -> list[str]:
    return text.split()


_WHOLE = ("n", "big", "small")
_NUMBERS = ("x", "r", "price", "n", "(x * 2)", "(-x)", "(x / 3)", "(x - x)", "0::float8")
_OF_FLOATS = words("sqrt cbrt exp ln log10 floor ceil round trunc sign abs degrees radians")
_OF_ANGLES = words("sin cos tan cot asin acos atan sinh cosh tanh asinh acosh atanh")
_MOMENTS = ("day", "moment", "zoned")
_PARTS = words("year decade century millennium week isoyear dow doy quarter month day epoch")
_UNITS = words("millennium century decade year quarter month week day hour minute second milliseconds")
_SPANS = (
    *("INTERVAL '59 minutes'", "INTERVAL '59.999999 seconds'", "INTERVAL '1 microsecond'", "INTERVAL '0'"),
    *("INTERVAL '20000 years'", "INTERVAL '8000000 days'", "INTERVAL '-200000000 hours'", "AGE(moment)"),
)
_FACTORS = tuple(
    f"(CASE WHEN n > 0 THEN CAST('{each}' AS float8) ELSE 1 END)" for each in ("1e12", "6e-13", "5e-324", "1e308")
)
_TYPES = words("smallint integer bigint numeric(20,3) float8 text")
ALIKE = [
    *(str(each.ours) for each in EXPRESSIONS),
    *(f"{a} {sign} {b}" for a, b, sign in product(_WHOLE, (*_WHOLE, "0", "-1"), "+-*/%&|#")),
    *(f"{name}({a})" for a, name in product(_WHOLE, ("abs", "-", "~"))),
    *(f"{name}({a}, {b})" for a, b, name in product(_WHOLE, _WHOLE, ("gcd", "lcm"))),
    *(f"{a} {sign} {b}" for a, b, sign in product(_NUMBERS, _NUMBERS, "+-*/^")),
    *(f"{name}({a})" for a, name in product(("x", "r", "price", "(x * x)", "n"), (*_OF_FLOATS, *_OF_ANGLES))),
    *(f"{name}({a}, {b})" for a, b, name in product(_NUMBERS, _NUMBERS, ("log", "atan2", "power"))),
    *(f"{a}::{kind}" for a, kind in product((*_WHOLE, "x", "price"), _TYPES)),
    *(f"word::{kind}" for kind in (*_TYPES, "boolean", "date", "timestamp", "time", "uuid", "varchar(3)", "char(2)")),
    *(f"{a} {sign} {b}" for a, sign, b in product(_MOMENTS, "+-", ("INTERVAL '1 day'", "INTERVAL '-9000 years'"))),
    *(f"{a} {sign} {b}" for a, sign, b in product(("day", "moment"), "+-", ("INTERVAL '1 day' * x", "age(moment)"))),
    *(f"extract({part} FROM {a})" for part, a in product(_PARTS, _MOMENTS)),
    *(f"date_trunc('{unit}', {a})" for unit, a in product(_UNITS, _MOMENTS)),
    *("day + n", "day - n", "day - day", "moment - moment", "zoned - zoned", "day + clock", "clock - clock"),
    *("make_date(n, small, 1)", "make_date(small, n, n)", "make_time(small, n, x)", "make_time(10, small, x)"),
    *(
        "make_time(10, 7, x)",
        "make_timestamp(2024, 1, 1, 1, 1, x)",
        "make_timestamp(n, small, 1, 1, 1, x)",
        "to_timestamp(x)",
        "to_timestamp(n)",
        "zoned::timestamp",
        "zoned::time",
    ),
    *("width_bucket(x, -1e30, 1, 5)", "width_bucket(x, -1, 1, 100000)", "moment::time", "moment::timestamptz"),
    *("date_bin('15 minutes', moment, TIMESTAMP '2001-01-01')", "date_bin('9 days', zoned, TIMESTAMPTZ '9999-01-01')"),
    *(f"{name}(word)" for name in words("lower upper initcap reverse md5 length octet_length ascii btrim")),
    *("left(word, n)", "substr(word, n)", "substring(word, n, n)", "repeat(word, 10000)", "repeat(word, n)"),
    *("lpad(word, 10000, 'xy')", "make_interval(n % 99, n % 99, 1, n % 99, n % 99, n % 99)"),
    *(
        "word BETWEEN '' AND 'b'",
        "word || word",
        "concat(word, word, x, n)",
        "concat_ws(word, word, word)",
        "split_part(word, 'a', -3)",
    ),
    *("replace(word, 'a', 'bbbbbbbb')", "regexp_replace(word, '(a)', '<\\1\\&>', 'g')", "translate(word, 'a%', 'b')"),
    *("regexp_substr(word, '[a-z](b?)')", "word SIMILAR TO '%a_'", "word ILIKE '_A%'", "word ~ '^[[:alpha:]]+$'"),
    *("to_char(x, '9990.99')", "to_char(x, '999999999999999')", "to_char(big, '999999999999')"),
    *("to_date(word, 'YYYY-MM-DD')", "to_timestamp(word, 'YYYY-MM-DD HH24:MI:SS')", "to_date(word, 'Mon DD YYYY')"),
    *("round(x::numeric, 2)", "round(price, -3)", "x::numeric(38, 0)", "trunc(x, 2)", "round(n, -5)", "x::text"),
]
"""Expressions that both engines give the same for."""
TOTAL = [
    *(f"mod({a}, {b})" for a, b in product(_NUMBERS, _NUMBERS)),
    *("right(word, n)", "zoned + age(moment)", "clock + INTERVAL '100000 years'", "clock + INTERVAL '1 month' * n"),
    *(
        f"{a} {sign} {b}"
        for a, sign, b in product(
            (*_MOMENTS, "clock"),
            "+-",
            (
                *("INTERVAL '70000000 months -2100000000 days'", "-(INTERVAL '178000000 years')", "age(zoned)"),
                *("INTERVAL '1 month' * n", "INTERVAL '1 second' / x", "(moment - TIMESTAMP '2000-01-01') * x"),
            ),
        )
    ),
    *(f"{a} {sign} {b}" for a, sign, b in product(_SPANS, "*/", (*_NUMBERS, "big", *_FACTORS))),
    *(f"{a} {sign} {b}" for a, b, sign in product(_SPANS, _SPANS, "+-")),
    *("-(INTERVAL '59 minutes' * x)", "AGE(moment) * x / price", "clock + INTERVAL '59 minutes' * x"),
    *("(INTERVAL '1 day' * n + INTERVAL '2000000000 days') IS NULL", "moment AT TIME ZONE 'Asia/Kolkata'"),
    *("extract(year FROM INTERVAL '1 month' * n)", "extract(epoch FROM INTERVAL '1 hour' * x)"),
    *("day - moment", "age(zoned, moment)", "zoned AT TIME ZONE 'America/New_York'", "to_char(day, 'YYYY IYYY DDD')"),
]
"""Expressions of which one engine gives fewer values."""
AT_ONCE = 40


def rows() -> Iterator[list[str | None]]:
    random_ = random.Random(20261120)
    longest = max(map(len, EDGES.values()))
    for index in range(ROWS):
        everywhere = [
            values[index % len(values)] if index < longest else random_.choice(values) for values in EDGES.values()
        ]
        yield [str(index), *(None if index >= longest and random_.random() < 0.05 else each for each in everywhere)]


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("edges") / "edges.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE TABLE people (id INTEGER)")
        connection.execute(f"CREATE TABLE samples ({COLUMNS})")
        connection.executemany(f"INSERT INTO samples VALUES ({', '.join('?' * (len(EDGES) + 1))})", list(rows()))
    return file


def session(url: str, folder: Path) -> Iterator[Session]:
    policy = folder / "edges.toml"
    policy.write_text(POLICY.format(url=url), encoding="utf-8")
    with silent_engine(policy, folder) as engine:
        yield Session(engine, "ana")


@pytest.fixture(scope="module")
def duck(edges: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    yield from session(f"duckdb:///{edges}", tmp_path_factory.mktemp("duck"))


@pytest.fixture(scope="module")
def ducks_answer(duck: Session) -> Answers:
    """What DuckDB makes of expressions: asked once, and compared with each version of PostgreSQL."""
    return cache(lambda expressions: run(duck, expressions, f"id < {ROWS}"))


@pytest.fixture(scope="module")
def elephant(edges: Path, each_postgres: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with copied(edges, each_postgres) as url:
        database = url.rpartition("dbname=")[2].partition("&")[0]
        names = "id, n, big, small, x, r, price, word, ok, day, moment, zoned, clock"
        each_postgres.run(
            "SET TimeZone = 'UTC'", f"INSERT INTO main.samples ({names}) VALUES {', '.join(BEYOND)}", database=database
        )
        yield from session(url, tmp_path_factory.mktemp("elephant"))


def run(session: Session, expressions: Sequence[str], condition: str) -> Rows:
    (statement,) = session.parse(f"SELECT {', '.join(expressions)} FROM samples WHERE {condition} ORDER BY id")
    return list(session.execute(statement).rows)


def batches(expressions: list[str]) -> list[list[str]]:
    known = list(dict.fromkeys(expressions))
    return [known[start : start + AT_ONCE] for start in range(0, len(known), AT_ONCE)]


@pytest.mark.parametrize("batch", batches(ALIKE), ids=lambda batch: batch[0])
def test_engines_agree_at_the_edges(batch: list[str], ducks_answer: Answers, elephant: Session) -> None:
    theirs, mine = ducks_answer(tuple(batch)), run(elephant, batch, f"id < {ROWS}")
    differences = [
        f"row {row}: {expression}: {b!r}, not {a!r}"
        for row, (one, other) in enumerate(zip(theirs, mine, strict=True))
        for expression, a, b in zip(batch, one, other, strict=True)
        if not agree(a, b)
    ]
    assert not differences, "\n".join(differences[:20])
    assert len(run(elephant, batch, f"id >= {ROWS}")) == len(BEYOND)


@pytest.mark.parametrize("batch", batches(TOTAL), ids=lambda batch: batch[0])
def test_nothing_raises_an_error_at_the_edges(batch: list[str], elephant: Session) -> None:
    assert len(run(elephant, batch, "true")) == ROWS + len(BEYOND)


LONG = f"repeat('É', {MAX_SCANNED}) || ' 1 '"
SEEN = {
    "lower": f"= repeat('é', {MAX_SCANNED})",
    "upper": f"= repeat('É', {MAX_SCANNED})",
    **dict.fromkeys(("trim", "ltrim", "rtrim"), f"= repeat('É', {MAX_SCANNED})"),
    "translate": f"= repeat('E', {MAX_SCANNED})",
    "like_pattern": "= false",
    "text_to_boolean": "IS NULL",
}
"""What functions make of a text that is longer than they see: PostgreSQL itself fails at some hundred million."""


@pytest.mark.parametrize("function", SEEN)
def test_no_function_sees_all_of_a_text_without_end(function: str, postgres: Connection) -> None:
    constants = {"translate": ["'É'", "'E'"], "like_pattern": ["'1'"]}.get(function, ["' '"])
    for engine, connection in ((DUCKDB, duckdb), (POSTGRES, postgres)):
        value = DIALECTS[engine].functions[function].template.format(f"({LONG})", *constants)
        asked = f"SELECT {value} {SEEN[function]}"
        assert connection.execute(asked).fetchall() == [(True,)], engine


def agree(theirs: object, mine: object) -> bool:
    if isinstance(theirs, float) and isinstance(mine, float):
        both_tiny = max(abs(theirs), abs(mine)) < 1e-307  # PostgreSQL's EXP and POWER give no denormal numbers
        return both_tiny or (
            math.isclose(theirs, mine, rel_tol=1e-12) and math.copysign(1, theirs) == math.copysign(1, mine)
        )
    # Powers may end a little before the greatest number does.
    at_the_end = isinstance(theirs, float) and mine is None and abs(theirs) > 1.79e308
    return at_the_end or (type(theirs) is type(mine) and theirs == mine)
