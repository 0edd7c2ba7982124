"""Arrays after ANY and ALL mean what they mean to PostgreSQL: constructors, literals, casts, placeholders."""

import psycopg
import pytest
from psycopg import sql

from dpsql.compiler.expressions.arrays import MAX_ITEMS
from dpsql.errors import DatatypeMismatch, Error, InvalidText, LimitExceeded, UndefinedParameter, UnsupportedQuery
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.sqltypes import SqlType

WORDS = "SELECT COUNT(*) FROM (VALUES ('a'), ('b c'), (''), ('NULL'), ('q\"'), (NULL)) t (x) WHERE "
NUMBERS = "SELECT COUNT(*) FROM (VALUES (1), (2), (-3), (NULL)) t (x) WHERE "


def count(engine: Engine, text: str, *values: object, types: tuple[SqlType | None, ...] = ()) -> object:
    session = Session(engine, "ana")
    (statement,) = session.parse(text)
    return session.execute(statement, values, types).rows[0][0]


@pytest.mark.parametrize(
    "text",
    [
        *(WORDS + "x = ANY(ARRAY['a', 'b c'])", WORDS + "x = ANY('{a,\"b c\"}')", WORDS + "x = SOME('{ a , b c}')"),
        *(WORDS + "x <> ALL('{a,\"NULL\"}'::text[])", WORDS + "x <> ALL('{a,NULL}')", WORDS + "x = ANY('{null}')"),
        *(
            WORDS + "x = ANY('{}')",
            WORDS + "x <> ALL('{}')",
            WORDS + "x = ANY(' { } ')",
            WORDS + "x <> ALL(ARRAY['a'])",
        ),
        *(WORDS + r"""x = ANY('{"q\"", ""}')""", WORDS + "NOT x = ANY('{a}'::varchar[])", WORDS + "x = ANY('{\"\"}')"),
        *(NUMBERS + "x = ANY('{1, -3}')", NUMBERS + "x = ANY('{1,2}'::int[])", NUMBERS + "x <> ALL(ARRAY[1, NULL])"),
        *(NUMBERS + "x + 1 = ANY('{2}'::bigint[])", NUMBERS + "x = ANY(ARRAY[1, 2]::smallint[])"),
    ],
)
def test_as_in_postgresql(wide_engine: Engine, postgres: psycopg.Connection, text: str) -> None:
    row = postgres.execute(text.encode()).fetchone()
    assert row is not None
    assert count(wide_engine, text) == row[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((WORDS + "x = ANY({})", value) for value in (["a", None, "b c"], [], ["\\", "'"])),
        *((WORDS + "x <> ALL({})", value) for value in (["a"], [], [None], ["NULL"])),
        *((NUMBERS + "x = ANY({})", value) for value in ([1, 2], [-3, None], [])),
        *((NUMBERS + "x > ANY({})", value) for value in ([1, None], [-9], [])),
        *((NUMBERS + "NOT x = ALL({}::int[])", value) for value in ([1, None], [1], [])),
        *((NUMBERS + "x <> ALL({}::bigint[])", value) for value in ([1, 2**40], None)),
        (WORDS + "x = ANY({}::text[])", None),
    ],
)
def test_placeholders(wide_engine: Engine, postgres: psycopg.Connection, text: str, value: object) -> None:
    row = postgres.execute(sql.SQL(text).format(sql.Placeholder()), (value,)).fetchone()
    assert row is not None
    assert count(wide_engine, text.format("$1"), value) == row[0]
    assert count(wide_engine, text.format("$1"), value, types=(SqlType.ARRAY,)) == row[0]


def test_what_an_array_holds_is_inferred(wide_engine: Engine) -> None:
    session = Session(wide_engine, "ana")
    (statement,) = session.parse("SELECT COUNT(*) FROM events WHERE n = ANY($2) AND word <> ALL($1) AND day = $3")
    described = session.describe(statement, (None, SqlType.UNKNOWN))
    assert described.parameters == (SqlType.ARRAY, SqlType.ARRAY, SqlType.DATE)
    assert described.elements == (SqlType.TEXT, SqlType.INTEGER, None)
    (bare,) = session.parse("SELECT 1 WHERE NULL = ANY($1)")
    assert session.describe(bare).elements == (SqlType.TEXT,)


@pytest.mark.parametrize(
    ("text", "error", "values"),
    [
        *((WORDS + f"x = ANY('{written}')", InvalidText, ()) for written in ("a", "{a", "a}", "{a,}", "{a}}", "{{a}}")),
        *((NUMBERS + f"x = ANY('{written}')", InvalidText, ()) for written in ("{a}", "{1,x}")),
        (NUMBERS + "x = ANY($1)", DatatypeMismatch, ("1",)),
        (NUMBERS + "x = ANY($1)", UndefinedParameter, ()),
        (NUMBERS + "x = ANY($0)", UnsupportedQuery, ()),
        (NUMBERS + "x = ANY($65536)", UnsupportedQuery, ()),
        (NUMBERS + "x = $1048577", UnsupportedQuery, (1,)),
        (NUMBERS + "x = ANY(1)", UnsupportedQuery, ()),
        (NUMBERS + "x = ANY(1::int)", UnsupportedQuery, ()),
        (NUMBERS + "x = ANY((1)::int[])", UnsupportedQuery, ()),
        (NUMBERS + "x <> ALL(1, 2)", Error, ()),
        (NUMBERS + "nothing = ANY('{}')", Error, ()),
        (NUMBERS + "x = ANY($1)", LimitExceeded, ([1] * (MAX_ITEMS + 1),)),
        (NUMBERS + "x = ANY($1)", DatatypeMismatch, ([[1]],)),
    ],
)
def test_what_is_refused(wide_engine: Engine, text: str, error: type[Error], values: tuple[object, ...]) -> None:
    with pytest.raises(error):
        count(wide_engine, text, *values)
