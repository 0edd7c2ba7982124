"""How the catalog reads queries: what the parser would rename, reorder or drop is as PostgreSQL has it."""

import pytest

import dpsql.compiler.sql.parse as parse_module
from dpsql.catalog import reading
from dpsql.catalog.catalog import catalog_query
from dpsql.catalog.reading import read_query
from dpsql.errors import Error, InvalidSyntax, LimitExceeded, UndefinedFunction
from tests.wire.catalog.shops import Visitors


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT amname AS select, lock.oid FROM pg_am lock WHERE oid = 2", [("heap", 2)]),
        ('SELECT t.select, t."table" FROM (SELECT 1::oid AS select, 2 AS "table") AS t', [(1, 2)]),
        ("SELECT '{\"a\": {\"b\": \"c\"}}'::json -> 'a' ->> 'b' = 'c', 1::oid", [(True, 1)]),
        ("SELECT (ARRAY[7, 8])[1 + 1], (ARRAY[7, 8])[1], 1::oid", [(8, 7, 1)]),
        ("SELECT string_agg(DISTINCT x, ',' ORDER BY x DESC), 1::oid FROM (VALUES ('a'), ('b')) AS v(x)", [("b,a", 1)]),
        (
            "SELECT position('b' IN 'abc'), substring('abc' FOR 2), trim(LEADING 'x' FROM 'xa'), 1::oid",
            [(2, "ab", "a", 1)],
        ),
        (
            "SELECT NULL::bool IS UNKNOWN, NOT NULL::bool IS NOT UNKNOWN, 1 = 2 IS NULL, 1::oid",
            [(True, True, False, 1)],
        ),
        (
            "SELECT oid FROM pg_am WHERE amname NOT LIKE 'h!%%' ESCAPE '!' AND amname !~ '^[^h]' AND oid = ANY ('{2}')",
            [(2,)],
        ),
        ("SELECT 1::oid WHERE 1 IS NOT DISTINCT FROM 1 AND 2 BETWEEN SYMMETRIC 3 AND 1 AND 5 NOT IN (6, 7)", [(1,)]),
        ("SELECT 1::oid WHERE 2 IN (VALUES (1), (2)) AND 3 = ANY (VALUES (3)) AND 4 IN ((SELECT 4 LIMIT 1))", [(1,)]),
        (
            "SELECT ARRAY(VALUES (1)), ARRAY(SELECT 2), ARRAY[(SELECT 3)], (SELECT 4 OFFSET 0), 1::oid",
            [([1], [2], [3], 4, 1)],
        ),
        ("((SELECT 1::oid) LIMIT 1) UNION ALL (SELECT 2 LIMIT 1 OFFSET 0) ORDER BY 1 OFFSET 1", [(2,)]),
        ("SELECT - - 5, - - - 5, + 5, 1., .5::float8, 1::oid", [(5, -5, 5, 1, 0.5, 1)]),
        ("SELECT 1::oid UNION SELECT 2::oid INTERSECT SELECT 3::oid", [(1,)]),
        ("SELECT 'a' 'b', E'a\\tb', b'101'::text, $$user$$, 1::oid", [("ab", "a\tb", "101", "user", 1)]),
        (
            "SELECT current_user, user, current_schema IS NULL, 'user', 1::oid AS user",
            [("analyst", "analyst", False, "user", 1)],
        ),
        (
            "SELECT count(d.*), count(*) FROM pg_am a LEFT JOIN pg_type d ON d.oid = a.oid + 14 WHERE a.oid = 2",
            [(1, 1)],
        ),
        ("SELECT count(d.*), count(*) FROM pg_am a LEFT JOIN pg_type d ON d.oid = 0 WHERE a.oid = 2", [(0, 1)]),
        (
            "SELECT a.oid, t.oid FROM pg_am a LEFT JOIN pg_type t ON EXISTS (SELECT 1 FROM pg_am b WHERE b.oid = a.oid"
            " AND t.oid = b.oid + 14) WHERE a.oid IN (2, 403) ORDER BY 1",
            [(2, 16), (403, None)],
        ),
        (
            "SELECT ARRAY(SELECT amname FROM pg_am WHERE oid = ANY (v.a)), 0 = ANY (v.a), 2 <> ALL (v.a), "
            "NULL::oid = ANY (v.a), 0 <> ALL (v.a) FROM (VALUES (ARRAY[2, NULL]::oid[])) AS v(a)",
            [(["heap"], None, False, None, None)],
        ),
        (
            "SELECT 1 = ANY ('{}'::int[]), NULL <> ALL ('{}'::int[]), 2 = ANY (SELECT oid FROM pg_am)",
            [(False, True, True)],
        ),
        (
            "SELECT interval '1' day = '1 day'::interval, extract(year FROM date '2024-01-02'), 'abc'::bpchar, "
            "interval '1-2' year to month = '14 months'::interval, '[1]'::json -> 'a', 1::oid",
            [(True, 2024, "abc", True, None, 1)],
        ),
    ],
)
def test_queries_mean_what_they_mean_to_postgresql(shop: Visitors, sql: str, rows: list[tuple[object, ...]]) -> None:
    assert shop.rows(sql) == rows


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("SELECT amname FROM pg_am FOR UPDATE", "amname"),
        ("SELECT 1 FROM pg_am TABLESAMPLE system (1)", "1"),
        ("SELECT relkind FROM pg_class GROUP BY GROUPING SETS ((relkind), ())", "relkind"),
        ("SELECT * FROM pg_am a JOIN pg_am b", ""),
        ("SELECT amname SIMILAR TO 'h' FROM pg_am", "amname"),
        ("SELECT oid IS JSON FROM pg_am", "oid"),
        ("SELECT oid::varchar(max) FROM pg_am", "oid"),
        ("SELECT {'a': 1} FROM pg_am", "1"),
        ("SELECT * EXCEPT (oid) FROM pg_am", "*"),
        ("SELECT make_date(year => 1) FROM pg_am", "1"),
        ("SELECT sum(oid) OVER (ORDER BY oid ROWS BETWEEN oid PRECEDING AND CURRENT ROW) FROM pg_am", "oid"),
        ("SELECT sum(oid) OVER (ORDER BY oid ROWS 1.5 PRECEDING) FROM pg_am", "1.5"),
        ("SELECT sum(oid) OVER (ORDER BY oid ROWS 'x' PRECEDING) FROM pg_am", "'x'"),
        ("SELECT amname[1, 2] FROM pg_am", "amname"),
        ("SELECT oid, FROM pg_am", ","),
        ("SELECT oid FROM pg_am ORDER BY oid FETCH FIRST ROW WITH TIES", "oid"),
        ("SELECT 1_0x FROM pg_am LIMIT 1e", "1"),
        ("SELECT a.x FROM pg_am AS a(x int)", "x"),
        ("SELECT * FROM pg_am, (SELECT 1) AS t, current_date + 1", "+"),
    ],
)
def test_what_is_not_known_is_refused(shop: Visitors, sql: str, word: str) -> None:
    with pytest.raises(InvalidSyntax) as refused:
        shop.describe(sql)
    assert refused.value.position is not None
    assert sql[refused.value.position - 1 :].startswith(word)


@pytest.mark.parametrize(
    "sql", ["SELECT sum(oid) OVER (ROWS)", "SELECT CAST(oid AS array)", "SELECT count(ORDER BY 1, 2)"]
)
def test_a_tree_of_another_shape_is_a_syntax_error(shop: Visitors, sql: str) -> None:
    with pytest.raises(InvalidSyntax):
        shop.describe(f"{sql} FROM pg_am")


@pytest.mark.parametrize(
    ("sql", "sign"),
    [
        ("SELECT count(*) * 2, relname + 1 FROM pg_class", "+"),
        ("SELECT NULL::int[] || ARRAY[1], relname % 2 FROM pg_class", "%"),
        ("SELECT (relname) -> 'a' FROM pg_class", "->"),
        ("SELECT 1 OPERATOR(pg_catalog.=) 1, - relname FROM pg_class", "- "),
    ],
)
def test_an_operator_that_does_not_exist_is_shown_where_it_stands(shop: Visitors, sql: str, sign: str) -> None:
    with pytest.raises(UndefinedFunction, match="operator does not exist") as refused:
        shop.rows(sql)
    assert refused.value.position == sql.index(sign) + 1


def test_a_query_that_is_too_complex_is_nobodys() -> None:
    for sql in ("SELECT 1::oid" + " || 'x'" * 200, "SELECT " + "ARRAY[" * 40 + "1" + "]" * 40):
        with pytest.raises(LimitExceeded):
            catalog_query(sql, frozenset())


def test_a_text_that_is_not_closed_is_left_to_others() -> None:
    assert catalog_query("SELECT 'pg_class", frozenset()) is None
    with pytest.raises(Error):
        catalog_query("SELECT oid, FROM pg_class", frozenset())


def test_long_queries_of_the_catalog_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def trial(text: str) -> bool:
        tried.append(text)
        return False

    monkeypatch.setattr(parse_module, "_trial", trial)
    sql = "SELECT oid FROM pg_class WHERE " + " OR ".join(f"oid = {number}" for number in range(7000, 7050))
    with pytest.raises(LimitExceeded, match="too long to parse"):
        read_query(sql)
    assert tried == [sql]
    monkeypatch.setattr(parse_module, "_trial", lambda _: True)
    read_query(sql)


def test_trees_of_long_texts_are_not_kept() -> None:
    reading._kept.cache_clear()
    read_query("SELECT 1")
    read_query("SELECT '" + "x" * 6000 + "'")
    assert reading._kept.cache_info().currsize == 1
    assert read_query("SELECT 1") is read_query("SELECT 1")
