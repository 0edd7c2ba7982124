"""Injection: what one lexer takes for a comment or a string, and the other for SQL; and statements of other kinds."""

import json

from tests.attacks.arena import SECRET, Arena, Comparison, Verdict
from tests.attacks.naive import Ask, Refused

SMUGGLED = (
    "SELECT city FROM people -- COUNT(*)",
    "SELECT city FROM people /* COUNT(*) */",
    "SELECT city FROM people /* /* COUNT(*) */ */",
    "SELECT COUNT(*) FROM people; SELECT city, 'COUNT(*)' FROM people",
    "SELECT 'COUNT(' || city FROM people",
    "SELECT $$COUNT($$ || city FROM people",
    "SELECT $a$COUNT($a$ || city FROM people",
    "SELECT E'\\'COUNT(*)' || city FROM people",
    "SELECT 'a\\' || city || ' COUNT(*) \\'b' FROM people",
    "SELECT U&'\\0043OUNT(*)' || city FROM people --COUNT(",
    'SELECT city AS "COUNT(*)" FROM people',
    'SELECT U&"\\0063ity" FROM people -- COUNT(*)',
    "SELECT COUNT(*)::text FROM people UNION ALL SELECT city FROM people",
    "SELECT MAX(city) FROM people GROUP BY person",
    "SELECT STRING_AGG(city, ',') || COUNT(*) FROM people",
    "SELECT ARRAY_AGG(city) FROM people HAVING COUNT(*) > 0",
    "SELECT (SELECT city FROM people WHERE age = 108), COUNT(*) FROM people",
    "SELECT COUNT(CAST(city AS integer)) FROM people WHERE age = 108",
    "SELECT COUNT(error(city)) FROM people WHERE age = 108",
    "WITH t AS (SELECT city FROM people) SELECT t.city, 'count(' FROM t",
    "SELECT COUNT(*), city FROM people GROUP BY city, person",
    "SELECT FIRST(city ORDER BY age DESC), COUNT(*) FROM people",
    "SELECT city, COUNT(*) OVER () FROM people",
    "SELECT MODE(city), MIN(age) FROM people WHERE age = 108",
    "FROM people SELECT city, 'COUNT('",
    "TABLE people -- COUNT(*)",
    "SELECT COLUMNS(*), COUNT(*) FROM people GROUP BY ALL",
    "EXPLAIN ANALYZE SELECT city FROM people -- COUNT(*)",
    "SUMMARIZE SELECT city FROM people WHERE age = 108 -- COUNT(*)",
    "PREPARE q AS SELECT city FROM people /* COUNT(*) */; EXECUTE q",
    "DECLARE c CURSOR WITH HOLD FOR SELECT city FROM people; FETCH ALL FROM c -- COUNT(*)",
    "SELECT COUNT(*) FROM people WHERE city = 'x' UNION ALL SELECT city FROM people --'",
    'SELECT COUNT(*) AS "a"" FROM people; SELECT city FROM people --" FROM people',
    'SELECT COUNT(*) AS "x", city FROM people --" FROM people',
)


def smuggled(ask: Ask) -> list[str]:
    """The texts whose answer, or refusal, shows what is true of the target alone."""
    return [sql for sql in SMUGGLED if SECRET in shown(ask, sql)]


def shown(ask: Ask, sql: str) -> str:
    try:
        return str(ask(sql))
    except Refused as refused:
        return str(refused)


def verdict(ask: Ask) -> Verdict:
    found = smuggled(ask)
    return Verdict(f"{len(found)} of {len(SMUGGLED)} texts show a row", bool(found))


def compare(arena: Arena) -> Comparison:
    # A budget for all of them, so that none is refused for its price.
    return Comparison(
        "SQL injection, lexers", verdict(arena.naive(True).ask), verdict(arena.dpsql(True, epsilon=900, query=0.5))
    )


def test_injection(arena: Arena) -> None:
    compare(arena).check()


def test_engine_sql_has_no_text_of_the_query(arena: Arena) -> None:
    """It is generated: a text in it is a literal of one form, whatever form it was written in; and no comment is."""
    ask = arena.dpsql(True)
    forms = ("'it''s; --'", "$$it's; --$$", "$q$it's; --$q$", "E'it\\'s; --'", "E'\\x69t\\u0027s; --'")
    engine_sql = set()
    for text in forms:
        ((told,),) = ask(f"EXPLAIN (FORMAT JSON) SELECT COUNT(*) /* ; */ FROM people WHERE city = {text} -- 'x")
        engine_sql |= {*json.loads(str(told))["engine_sql"]}
    (sql,) = engine_sql
    assert "= 'it''s; --')" in sql
    assert not any(mark in sql for mark in ("/*", "$", "\\", "'x"))
