"""Poison: rows with the most awkward values of every SQL type, and expressions of the accepted grammar over them.

Whatever an expression is, no row may make the engine fail: an engine that fails over one person's rows tells of them.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dpsql.compiler.dialects.postgres import Postgres
from tests.compiler.test_edges import EDGES
from tests.strategies.queries import (
    BOOL,
    CONSTANTS,
    DATE,
    FLOAT,
    FORMS,
    INT,
    NUMERIC,
    SPAN,
    STAMP,
    TEXT,
    TIME,
    UUID,
    ZONED,
    Columns,
)

COLUMNS: Columns = {
    **{INT: ("n", "big", "small"), FLOAT: ("x", "r"), NUMERIC: ("price", "huge", "bare"), TEXT: ("word",)},
    **{BOOL: ("ok",), DATE: ("day",), STAMP: ("moment",), ZONED: ("zoned",), UUID: ("tag",), TIME: ("clock",)},
    SPAN: ("span",),
}
TYPES = {
    **{"n": "integer", "big": "bigint", "small": "smallint", "x": "double precision", "r": "real", "ok": "boolean"},
    **{"price": "numeric(10, 3)", "huge": "numeric(38, 0)", "bare": "numeric(38, 10)", "word": "text", "day": "date"},
    **{"moment": "timestamp", "zoned": "timestamptz", "clock": "time", "tag": "uuid", "span": "interval"},
}
"""The columns' types, in words that both engines know."""
POLICY = """
version = 1
[dataset]
name = "poison"
url = "{url}"
schema = "main"
privacy_unit = "person"
reply_quantum = "0 ms"
budget = {{ epsilon = 10000, delta = 1e-2 }}
[roles.analyst]
budget = {{ epsilon = 10000, delta = 1e-2 }}
query = {{ epsilon = 0.01, delta = 1e-9, max_epsilon = 10 }}
[tables.oddities]
unit_key = "person"
max_rows = 1000
max_groups = 100
max_rows_per_group = 100
[tables.oddities.columns]
n = {{ type = "integer" }}
big = {{ type = "bigint" }}
small = {{ type = "smallint" }}
x = {{ type = "double" }}
r = {{ type = "real" }}
price = {{ type = "numeric" }}
huge = {{ type = "numeric" }}
bare = {{ type = "numeric" }}
word = {{ type = "text" }}
ok = {{ type = "boolean" }}
day = {{ type = "date" }}
moment = {{ type = "timestamp" }}
zoned = {{ type = "timestamptz" }}
clock = {{ type = "time" }}
tag = {{ type = "uuid" }}
span = {{ type = "interval" }}
"""
"""No column has bounds: no guard may count on them."""

_EVERYWHERE = EDGES | {
    "huge": ["9" * 38, "-" + "9" * 38, "0", "1", "-1", "9223372036854775808", "170141183460469231731687303715884105"],
    "bare": ["9" * 28 + ".9999999999", "-" + "9" * 28 + ".5", "0.0000000001", "-0.0000000001", "0", "0.5", "1e27"],
    "span": [
        *("1 microsecond", "-1 microsecond", "59 minutes 59.999999 seconds", "0 seconds", "1 day", "-1 month"),
        *("19999 years 11 months", "-20000 years", "8000000 days", "-8000000 days", "200000000 hours"),
        *("-240000 months 8000000 days -199999999 hours", "1 month -30 days 23:59:59.999999"),
        *("170000000 years", "-170000000 years", "2147483647 days", "2400000000 hours", "-2400000000 hours"),
    ],
}
_ONLY: dict[str, dict[str, list[str]]] = {
    "duckdb": {
        "day": ["5881580-07-10", "5877642-06-25 (BC)"],
        "moment": ["294247-01-10 04:00:54.775806", "290308-12-22 (BC) 00:00:00"],
        "zoned": ["294247-01-10 04:00:54.775806+00", "290308-12-22 (BC) 00:00:00+00"],
        "word": ["é\0"],
        "clock": ["24:00:00"],
    },
    "postgresql": {
        "day": ["5874897-12-31", "4713-01-01 BC"],
        "moment": ["294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC", "0001-12-31 23:59:59.999999 BC"],
        "zoned": ["294276-12-31 23:59:59.999999+00", "4713-06-01 00:00:00+00 BC", "10000-01-01 00:00:00+00"],
        "price": ["NaN"],
        "huge": ["NaN"],
        "bare": ["NaN", "Infinity", "-Infinity", "1e1000", "-1e1000", "1e-1000"],
        "clock": ["24:00:00"],
    },
}
"""Values that one engine alone has a place for."""
_ONLY["parquet"] = _ONLY["duckdb"]
_ONLY["spark"] = {}
TABLE = "oddities"
ROWS = 160
TARGET = 3
SEED = 20261122
_ORDINARY = {
    **{"n": "7", "big": "8", "small": "9", "x": "1.5", "r": "2.5", "price": "3.5", "huge": "4", "bare": "5.5"},
    **{"word": "soup", "ok": "true", "day": "2024-01-02", "moment": "2024-01-02 03:04:05", "clock": "12:00:00"},
    **{"zoned": "2024-01-02 03:04:05+00", "tag": "00000000-0000-0000-0000-00000000000a", "span": "1 day 02:00:00"},
}

_EXTREME: dict[str, tuple[str, ...]] = {
    INT: ("(-2147483648)", "32768", "CAST('-9223372036854775808' AS bigint)"),
    FLOAT: (
        *(f"CAST('{text}' AS float8)" for text in ("1e308", "-1e308", "5e-324", "1e12", "6e-13", "1e-200", "1e16")),
        *("0.1::float8", "1::float8", "(-0.0)::float8"),
    ),
    NUMERIC: ("0.000000000001", "123456789012345678901234567.89", "-0.5"),
    TEXT: ("'2024-02-29'", "'1e400'", "'9999-12-31 23:59:59'", "'é'", "' '"),
    DATE: ("DATE '0001-01-01'",),
    STAMP: ("TIMESTAMP '9999-12-31 00:00:00'",),
    ZONED: ("TIMESTAMPTZ '0001-01-01 00:00:00+00'",),
    TIME: ("TIME '23:59:59.999999'", "TIME '00:00'"),
    SPAN: (
        *("INTERVAL '59 minutes'", "INTERVAL '1 microsecond'", "INTERVAL '-1 day'", "INTERVAL '20000 years'"),
        *("INTERVAL '200000000 hours'", "INTERVAL '8000000 days'", "INTERVAL '0'"),
    ),
}
"""Constants beside those that other tests draw."""


def statements(engine: str, *, present: bool) -> list[str]:
    """SQL that makes the table: with ordinary rows of others, and where the target is present, with its poison."""
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    made = ["CREATE SCHEMA IF NOT EXISTS main", "SET TimeZone = 'UTC'"]
    made.append(f"CREATE TABLE main.{TABLE} (person integer, {columns})")
    if engine == "postgresql":
        made.append(f"ALTER TABLE main.{TABLE} ALTER COLUMN bare TYPE numeric")
    made += [_insert(person, [_ORDINARY[name] for name in TYPES]) for person in (1, 2)]
    return [*made, *_poison(engine)] if present else made


def _poison(engine: str) -> Iterator[str]:
    """Every value stands in some row of the target, beside any others."""
    chance = random.Random(SEED)
    known = {name: [*_EVERYWHERE[name], *_ONLY[engine].get(name, ())] for name in TYPES}
    if engine == "parquet":
        known["span"] = [span for span in known["span"] if "-" not in span]  # it has no negative intervals
    for index in range(ROWS):
        yield _insert(
            TARGET,
            [
                values[index] if index < len(values) else None if chance.random() < 0.04 else chance.choice(values)
                for values in known.values()
            ],
        )


def _insert(person: int, row: Sequence[str | None]) -> str:

    def constant(text: str) -> str:
        quoted = Postgres.quote_text(text.removesuffix("\0"))
        return f"{quoted} || chr(0)" if text.endswith("\0") else quoted

    constants = ("NULL" if text is None else constant(text) for text in row)
    return f"INSERT INTO main.{TABLE} VALUES ({person}, {', '.join(constants)})"


@dataclass(frozen=True)
class Part:
    """An expression, and the kind of its type."""

    kind: str
    sql: str


def nested(chance: random.Random, kind: str, depth: int) -> str:
    """An expression of a kind; one of depth 0 is a column or a constant."""
    if depth == 0 or chance.random() < 0.15:
        known = [*COLUMNS[kind] * 4, *CONSTANTS[kind], *_EXTREME.get(kind, ())]
        return chance.choice(known)
    form, kinds = chance.choice(FORMS[kind])
    return form.format(*(nested(chance, inner, depth - 1) for inner in kinds))


def every_form() -> list[Part]:
    """Each form of the grammar once, over columns."""
    return [
        Part(kind, form.format(*_columns(kinds, number)))
        for kind, forms in FORMS.items()
        for number, (form, kinds) in enumerate(forms)
    ]


def scaled_intervals() -> list[Part]:
    """Intervals times and divided by numbers: every extreme interval by a column, and every extreme number."""
    pairs = [(span, column) for span in _EXTREME[SPAN] for kind in (INT, FLOAT) for column in COLUMNS[kind][:2]]
    pairs += [("span", factor) for kind in _NUMBERS for factor in _EXTREME[kind]]
    return [Part(SPAN, f"({span} {sign} {factor})") for span, factor in pairs for sign in "*/"]


def extremes() -> list[Part]:
    """Each form of several operands with each extreme constant for each of them, beside columns."""
    found = []
    for kind, forms in FORMS.items():
        for number, (form, kinds) in enumerate(forms):
            for place, of in enumerate(kinds if len(kinds) > 1 else ()):
                for constant in _EXTREME.get(of, ()):
                    operands = _columns(kinds, number)
                    operands[place] = constant
                    found.append(Part(kind, form.format(*operands)))
    return found


def _columns(kinds: Sequence[str], number: int) -> list[str]:
    """Columns of some kinds; another number takes others."""
    return [COLUMNS[kind][(number + place) % len(COLUMNS[kind])] for place, kind in enumerate(kinds)]


def parts(chance: random.Random, count: int) -> list[Part]:
    """Expressions of every kind, mostly three forms deep."""
    kinds = [chance.choice((*FORMS, SPAN, SPAN, STAMP)) for _ in range(count)]
    return [Part(kind, nested(chance, kind, chance.choice((1, 2, 3, 3, 4)))) for kind in kinds]


_NUMBERS = (INT, FLOAT, NUMERIC)


def _within(part: Part) -> str:
    """A number within bounds, which a sum needs."""
    return f"LEAST(GREATEST({part.sql}, -10), 10.5)"


def _count(part: Part) -> str:
    if part.kind in _NUMBERS:
        return f"SUM({_within(part)})"
    return f"COUNT(*) FILTER (WHERE {part.sql})" if part.kind == BOOL else f"COUNT({part.sql})"


def _plain(asked: Sequence[Part]) -> str:
    return f"SELECT {', '.join(map(_count, asked))} FROM {TABLE}"


def _presence(asked: Sequence[Part]) -> str:
    return f"SELECT {', '.join(f'COUNT({part.sql})' for part in asked)} FROM {TABLE}"


def _per_person(asked: Sequence[Part]) -> str:
    """What each person's values come to."""
    calls = []
    for number, part in enumerate(asked):
        name = ("MIN", "MAX", "COUNT", "SUM", "AVG")[len(part.sql) % 5]
        if part.kind in (BOOL, SPAN):
            name = "COUNT"
        elif part.kind not in _NUMBERS and name in ("SUM", "AVG"):
            name = "MIN"
        argument = _within(part) if name in ("SUM", "AVG") else part.sql
        calls.append(f"{name}({argument}) AS a{number}")
    counted = ", ".join(f"COUNT(a{number})" for number in range(len(asked)))
    return f"SELECT {counted} FROM (SELECT person, {', '.join(calls)} FROM {TABLE} GROUP BY person) AS s"


def _windows(asked: Sequence[Part]) -> str:
    """What each row's place among its person's rows comes to."""
    calls = []
    for number, part in enumerate(asked):
        name = ("SUM", "AVG", "MIN", "LAG", "COUNT")[len(part.sql) % 5] if part.kind in _NUMBERS else "LAG"
        argument = _within(part) if name in ("SUM", "AVG") else part.sql
        calls.append(f"{name}({argument}) OVER (PARTITION BY person ORDER BY big, n) AS a{number}")
    counted = ", ".join(f"COUNT(a{number})" for number in range(len(asked)))
    return f"SELECT {counted} FROM (SELECT person, {', '.join(calls)} FROM {TABLE}) AS s"


def _filtered(asked: Sequence[Part]) -> str:
    """Conditions that a planner may put into any order."""
    terms = (part.sql if part.kind == BOOL else f"({part.sql}) IS NOT NULL" for part in asked)
    return f"SELECT COUNT(*) FROM {TABLE} WHERE {' OR '.join(f'({term})' for term in terms)}"


def _distinct(asked: Sequence[Part]) -> str:
    told = [part for part in asked if part.kind not in (FLOAT, SPAN)][:2]
    return f"SELECT {', '.join(f'COUNT(DISTINCT {part.sql})' for part in told) or 'COUNT(*)'} FROM {TABLE}"


def _grouped(asked: Sequence[Part]) -> str:
    """Groups by one of the expressions; of what is public its values are listed."""
    keys = [part.sql for part in asked if part.kind not in (FLOAT, SPAN)]
    return f"SELECT {keys[0]}, COUNT(*) FROM {TABLE} GROUP BY 1" if keys else _plain(asked)


Shape = Callable[[Sequence[Part]], str]
SHAPES: tuple[Shape, ...] = (_plain, _presence, _per_person, _windows, _filtered, _distinct, _grouped)
