"""Composed expressions, aggregates of public rows, and counts of protected rows have PostgreSQL's values and types.

PostgreSQL raises errors where dpsql gives NULL by design; such expressions are left out, and so are those that dpsql
refuses.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.errors import Error
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from tests.compiler.test_accepted import assert_same, is_same
from tests.examples import LONG
from tests.postgres import Server
from tests.strategies.queries import BOOL, CONSTANTS, DATE, FLOAT, FORMS, INT, NUMERIC, STAMP, TEXT, TIME, UUID, ZONED
from tests.world import postgres_oracle

SEED = 20261123
ROUNDS = 20_000 if LONG else 500
COLUMNS = {
    INT: ("n", "small", "id"),
    FLOAT: ("x", "r"),
    NUMERIC: ("price",),
    TEXT: ("word",),
    BOOL: ("ok",),
    DATE: ("day",),
    STAMP: ("moment",),
    ZONED: ("zoned",),
    UUID: ("tag",),
    TIME: ("clock",),
}
PROTECTED = COLUMNS | {INT: ("n", "small", "person")}
AGGREGATES = (
    *("COUNT({0})", "MIN({0})", "MAX({0})", "COUNT(DISTINCT {0})", "ARRAY_AGG({0} ORDER BY id)", "COUNT(*)"),
    "COUNT(*) FILTER (WHERE ({0}) IS NULL)",
)
WINDOWS = ("MIN({0})", "COUNT({0})", "LAG({0})", "LAST_VALUE({0})", "COUNT(*) FILTER (WHERE ({0}) IS NULL)")
KNOWN = re.compile(
    r"""
    1e300 | SINH | COSH | COT | ATANH                     # infinities are NULL
    | 9999-12-31 | 0001-01-01.*-\ INTERVAL | MAKE_DATE\(CAST\(- # and so are moments outside the years 1 to 9999
    | 0001-01-01.*(AGE\(|AT\ TIME\ ZONE) | AGE\(.*0001-01-01  # or before the year 1
    | 178956970\ years | 2562047788\ hours                # and what is moved by the longest intervals
    | <<\ 5                                               # and integers that do not fit
    | 0::float8\ [*/]\ -                                  # -0 is 0
    | -\ INTERVAL\ '1\ month\ 2\ days\ 03:00'            # hours are taken from an instant before months
    | 'decade'.*0001-01-01                                # a decade begins before the year 1
    | TO_DATE | TO_TIMESTAMP                              # texts that lack parts of the format, or have more
    | (moment|zoned|TIMESTAMP).*\ AS\ text\)+\ AS\ time\)  # nor are times read of texts with a day
    | (zoned|TIMESTAMPTZ).*\ AS\ text\)+\ AS\ (date|timestamp)  # nor are texts with an offset read
    | \bchar\(                                            # blanks that fill a char
    | ,\ 10000\)                                          # long texts are cut
    """,
    re.VERBOSE,
)
"""Where dpsql differs, as docs/sql.md tells."""


def expression(random_: random.Random, kind: str, depth: int, columns: Mapping[str, tuple[str, ...]] = COLUMNS) -> str:
    """An expression of a kind, of so many forms within one another at the most."""
    if depth == 0 or not FORMS.get(kind):
        return random_.choice(columns.get(kind, ()) * 3 + CONSTANTS[kind])
    form, kinds = random_.choice(FORMS[kind])
    return form.format(*(expression(random_, each, random_.randint(0, depth - 1), columns) for each in kinds))


def drawn(random_: random.Random) -> str:
    """A query for an expression of each row, or for an aggregate or a window function of one."""
    composed = expression(random_, random_.choice(list(COLUMNS)), 2)
    chance = random_.random()
    if chance < 0.15:
        return f"SELECT {random_.choice(AGGREGATES).format(composed)} FROM samples"
    if chance < 0.3:
        composed = f"{random_.choice(WINDOWS).format(composed)} OVER (ORDER BY id)"
    return f"SELECT {composed} FROM samples ORDER BY id"


def drawn_protected(random_: random.Random) -> str:
    """A query that counts or adds up protected rows: by a key, where a condition holds, or person by person."""

    def part(kind: str = "") -> str:
        return expression(random_, kind or random_.choice(list(PROTECTED)), 2, PROTECTED)

    number = part(random_.choice((INT, FLOAT, NUMERIC)))
    whole = random_.choice((f"ROUND({number})", f"CAST({number} AS integer)", f"ABS({number})", number))
    held = f"COALESCE(SUM(LEAST(GREATEST({number}, -100), 100)), 0)"  # for a sum of no rows is 0
    function = random_.choice(("MIN", "MAX", "COUNT"))
    first = f"ROW_NUMBER() OVER (PARTITION BY person ORDER BY {part(random_.choice((INT, TEXT, DATE)))}, n, word, x)"
    # Public groups without rows, which PostgreSQL has not, are left out.
    return random_.choice(
        (
            f"SELECT {part()} AS k, COUNT(*) FROM events GROUP BY 1 HAVING COUNT(*) > 0",
            f"SELECT COUNT(*) FROM events WHERE {part(BOOL)}",
            f"SELECT {held} FROM events WHERE {whole} {random_.choice(('= 2', '< 3', 'BETWEEN -3 AND 2.5', '>= 1'))}",
            f"SELECT COUNT(DISTINCT {part()}), COUNT({part()}) FROM events",
            f"SELECT COUNT(v) FROM (SELECT person, {function}({part()}) AS v FROM events GROUP BY person) AS t",
            f"SELECT COUNT(v) FROM (SELECT {part()} AS v, {first} AS r FROM events) AS t WHERE r = 1",
        )
    )


@pytest.fixture(scope="module")
def oracle(
    wide_policy: Path, postgres_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with postgres_oracle(
        wide_policy.with_suffix(".duckdb"), tmp_path_factory.mktemp("oracle"), postgres_server
    ) as connection:
        connection.autocommit = True
        yield connection


def compared(
    engine: Engine, oracle: psycopg.Connection[tuple[Any, ...]], queries: Iterable[str]
) -> Iterator[tuple[str, Result, tuple[list[tuple[Any, ...]], list[int]]]]:
    """Yield each query that both answer, the answer, and PostgreSQL's rows with the OIDs of their types."""
    session = Session(engine, "ana")
    for sql in queries:
        truth = rows(oracle, sql)
        if truth is None or KNOWN.search(sql):
            continue
        (statement,) = session.parse(sql)
        try:
            result = session.execute(statement)
        except Error:
            continue
        assert [column.type.oid for column in result.columns or ()] == truth[1], sql
        yield sql, result, truth


def test_composed(wide_engine: Engine, oracle: psycopg.Connection[tuple[Any, ...]]) -> None:
    random_ = random.Random(SEED)
    count = 0
    for sql, result, (truth, _) in compared(wide_engine, oracle, (drawn(random_) for _ in range(ROUNDS))):
        count += 1
        found, theirs = [value for (value,) in result.rows], [value for (value,) in truth]
        assert is_alike(found, theirs), f"{sql}: {found} is not {theirs}"
    # The test has power: two thirds of what is drawn are answered by both.
    assert count > 0.65 * ROUNDS


def test_composed_of_protected_rows(wide_engine: Engine, oracle: psycopg.Connection[tuple[Any, ...]]) -> None:
    random_ = random.Random(SEED)
    count = 0
    for sql, result, (truth, _) in compared(
        wide_engine, oracle, (drawn_protected(random_) for _ in range(ROUNDS // 5))
    ):
        count += 1
        # Sums are of values on a grid.
        assert_same(list(result.rows), truth, 3e-3 if "SUM(" in sql else 1e-9, ordered=False)
    assert count > 0.55 * ROUNDS // 5


def rows(oracle: psycopg.Connection[tuple[Any, ...]], sql: str) -> tuple[list[tuple[Any, ...]], list[int]] | None:
    """PostgreSQL's rows and the OIDs of their types; None where that is an error, or a moment that Python has not."""
    try:
        with psycopg.RawCursor(oracle) as cursor:
            found = cursor.execute(sql.encode()).fetchall()
            return found, [column.type_code for column in cursor.description or ()]
    except psycopg.Error:
        return None


def is_alike(mine: object, theirs: object) -> bool:
    """True of equal values of one type."""
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(is_alike, mine, theirs))
    return is_same(mine, theirs, 1e-9)
