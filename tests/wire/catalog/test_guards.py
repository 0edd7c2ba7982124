"""What the catalog must never do: show what a role may not see, ask the engine, charge, or reach outside."""

from contextlib import closing
from datetime import date
from pathlib import Path

import duckdb
import pytest

from dpsql.catalog import engine, memory_limit
from dpsql.catalog.catalog import Catalogs
from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import (
    CardinalityViolation,
    Error,
    InvalidParameter,
    InvalidSyntax,
    InvalidText,
    LimitExceeded,
    QueryCanceled,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedObject,
    UndefinedParameter,
    UndefinedTable,
    UnknownDatabase,
    UnsupportedQuery,
)
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.wire.databases import Databases
from tests.conftest import MakeEngine
from tests.wire.catalog.shops import Visitors, shop_policy

TABLES = """
    SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1
"""


def test_a_role_sees_its_tables_only(tmp_path: Path) -> None:
    clerk = Visitors(shop_policy(tmp_path), "clerk")
    try:
        assert [name for (name,) in clerk.rows(TABLES)] == ["hr.departments", "sales.orders"]
        told = [
            clerk.rows("SELECT attname FROM pg_attribute"),
            clerk.rows("SELECT conname, confrelid FROM pg_constraint"),
            clerk.rows("SELECT description FROM pg_description"),
            clerk.rows("SELECT typname FROM pg_type"),
            clerk.rows("SELECT table_name, column_name FROM information_schema.columns"),
        ]
        for hidden in ("customers", "salary", "employees", "order_totals", "order_id"):
            assert hidden not in str(told)
        with pytest.raises(UndefinedTable):
            clerk.rows("SELECT 'sales.customers'::regclass")
        assert clerk.rows("SELECT to_regclass('sales.customers')") == [(None,)]
    finally:
        clerk.close()


@pytest.mark.parametrize(
    ("sent", "at"),
    [
        ("SELECT relname FROM pg_class WHERE relname = $1", 46),
        ("SELECT set_config('DateStyle', $2, false)", 32),
        ("SELECT 1 FROM pg_class WHERE false AND relname = $65535", 50),
    ],
)
def test_a_placeholder_without_a_value_is_refused(shop: Visitors, sent: str, at: int) -> None:
    with pytest.raises(UndefinedParameter, match=r"there is no parameter \$") as refused:
        shop.rows(sent)
    assert (refused.value.sqlstate, refused.value.position) == ("42P02", at)


def test_errors_say_where_in_the_text_that_was_sent(shop: Visitors) -> None:
    sent = "SELECT 1; /* of a client */ SELECT nosuch FROM pg_class"
    last = parse(sent)[-1]
    assert isinstance(last, QueryStatement)
    with pytest.raises(UndefinedColumn) as caught:
        shop.catalog.describe(last, (), shop.context())
    assert caught.value.position == sent.index("nosuch") + 1


def test_moments_are_printed_by_the_patterns_of_the_table_alone(shop: Visitors) -> None:
    for form, error in (("RN", UnsupportedQuery), ('DD "of" CC', UnsupportedQuery), ("Y" * 101, LimitExceeded)):
        with pytest.raises(error, match="format"):
            shop.rows(f"SELECT to_char(now(), '{form}'), 1::oid")


def test_what_is_no_type_of_values_is_no_cast(shop: Visitors) -> None:
    for name in ("trigger", "record", "nosuch"):
        with pytest.raises(UndefinedFunction):
            shop.rows(f"SELECT {name}('x'), 1::oid")


def test_oids_are_the_same_for_all_roles(shop: Visitors, tmp_path: Path) -> None:
    clerk = Visitors(shop_policy(tmp_path), "clerk")
    try:
        sql = "SELECT 'sales.orders'::regclass::oid, 'sales'::regnamespace::oid"
        assert clerk.rows(sql) == shop.rows(sql)
        assert all(isinstance(oid, int) and oid >= 16384 for oid in shop.rows(sql)[0])
    finally:
        clerk.close()


def test_nothing_is_charged_and_the_engine_is_not_asked(silent_engine: Engine, catalogs: Catalogs) -> None:
    session = Session(silent_engine, "ana", catalogs.provider("clinic", "ana"))
    before = silent_engine.ledger.budget("ana", silent_engine.policy)
    for sql in (TABLES, "SELECT version()", "SELECT COUNT(*) FROM information_schema.columns", "TABLE pg_type"):
        if not sql.startswith("TABLE"):
            (statement,) = session.parse(sql)
            session.describe(statement)
            assert session.execute(statement).answer is None
    assert silent_engine.ledger.budget("ana", silent_engine.policy) == before
    assert list(silent_engine.ledger.releases("ana", "clinic")) == []


def test_no_sizes_no_counts_no_statistics(shop: Visitors) -> None:
    assert shop.rows("SELECT DISTINCT reltuples, relpages, relfilenode FROM pg_class") == [(-1.0, 0, 0)]
    sizes = "pg_relation_size('sales.orders'), pg_total_relation_size('sales.orders'), pg_table_size('sales.orders')"
    assert shop.rows(f"SELECT {sizes}") == [(None, None, None)]
    for empty in (
        "pg_stats",
        "pg_statistic",
        "pg_stat_user_tables",
        "pg_stat_activity",
        "pg_locks",
        "pg_hba_file_rules",
    ):
        assert shop.rows(f"SELECT * FROM {empty}") == []


def test_what_is_the_engines_is_not_the_catalogs(shop: Visitors) -> None:
    for sql in ("SELECT COUNT(*) FROM sales.orders", "SELECT 1 + 1", "SELECT upper('a')", "SELECT * FROM dpsql.budget"):
        assert shop.describe(sql) is None


@pytest.mark.parametrize("table", ["sales.orders", "dpsql.budget"])
def test_relations_of_both_kinds_do_not_mix(shop: Visitors, table: str) -> None:
    with pytest.raises(UnsupportedQuery) as raised:
        shop.describe(f"SELECT COUNT(*) FROM {table}, pg_catalog.pg_class")
    assert raised.value.hint


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT * FROM pg_catalog.nosuch", UndefinedTable),
        ("SELECT * FROM pg_nosuch", UndefinedTable),
        ("SELECT x.oid FROM pg_class c", UndefinedTable),
        ("SELECT nosuch FROM pg_class", UndefinedColumn),
        ("SELECT c.nosuch FROM pg_class c", UndefinedColumn),
        ("SELECT pg_nosuch(1) FROM pg_class", UndefinedFunction),
        ("SELECT relname + 1 FROM pg_class", UndefinedFunction),
        ("SELECT 'nosuch'::regclass", UndefinedTable),
        ("SELECT relname::regclass FROM pg_catalog.pg_class WHERE relname = 'orders'", UndefinedTable),
        ("SELECT current_setting('no.such')", UndefinedObject),
        ("SELECT 'x'::oid", InvalidText),
        ("SELECT (SELECT oid FROM pg_class) FROM pg_am", CardinalityViolation),
        ("SELECT oid FROM pg_class UNION SELECT oid, relname FROM pg_class", InvalidSyntax),
        ("SELECT read_text(relname) FROM pg_class", UndefinedFunction),
        ("SELECT * FROM pg_class, read_csv('/etc/passwd')", UndefinedFunction),
        ('SELECT * FROM pg_class, "duckdb_settings"()', UndefinedFunction),
        ("SELECT * FROM information_schema.duckdb_tables", UndefinedTable),
        ("SELECT getvariable(relname) FROM pg_class", UndefinedFunction),
    ],
)
def test_errors_are_those_of_postgresql(shop: Visitors, sql: str, error: type[Error]) -> None:
    with pytest.raises(error):
        shop.rows(sql)
    assert shop.rows("SELECT 'pg_class'::regclass::oid") == [(1259,)]


def test_positions_may_begin_with_zeros(shop: Visitors) -> None:
    ordered = "SELECT typname FROM pg_type GROUP BY 1 ORDER BY {}"
    assert shop.rows(ordered.format("000000000001")) == shop.rows(ordered.format("1"))
    for clause in ("GROUP BY", "ORDER BY"):
        for position in ("0", "00000000199", "9" * 5000):
            with pytest.raises(InvalidSyntax, match=f"position {position} is not in select list"):
                shop.rows(f"SELECT typname FROM pg_type {clause} {position}")


def test_names_cannot_leave_their_quotes(shop: Visitors) -> None:
    name = 'x"; DROP TABLE "pg_catalog.pg_class"; --\''
    quoted = name.replace('"', '""')
    assert shop.rows(f'SELECT oid AS "{quoted}" FROM pg_am AS "{quoted}" WHERE "{quoted}".oid = 2') == [(2,)]
    text = name.replace("'", "''")
    assert shop.rows(f"SELECT '{text}'::name, $1::text", name) == [(name, name)]


def test_the_catalogs_engine_is_locked(shop: Visitors) -> None:
    engine = shop.catalog._role.engine._database  # what the translator never writes, tried beneath it
    for sql in (
        "SET threads = 2",
        "SELECT * FROM read_text('/etc/passwd')",
        "ATTACH '/tmp/x.duckdb'",
        "INSTALL httpfs",
    ):
        with pytest.raises(duckdb.Error):
            engine.execute(sql)


def test_describing_changes_nothing(shop: Visitors) -> None:
    sql = "SELECT set_config('application_name', 'told', false)"
    shop.settings.set("application_name", None)  # the shop is the module's, and other tests have named it
    assert shop.describe(sql) is not None and shop.settings.show("application_name") == ""
    assert shop.rows(sql) == [("told",)]
    assert shop.settings.show("application_name") == "told"


def test_comments_tell_bounds_and_domains(shop: Visitors) -> None:
    sql = "SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attname = $1 AND attrelid = $2::regclass"
    assert shop.rows(sql, "region", "sales.customers") == [("one of APAC, EU, US",)]
    assert shop.rows(sql, "birth", "sales.customers") == [("between 1900-01-01 and 2030-01-01",)]
    assert shop.rows("SELECT obj_description('sales.customers'::regclass)") == [("One row per customer; unit key id",)]


def test_keys_lead_to_the_unit(shop: Visitors) -> None:
    sql = """
        SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid > 16384 ORDER BY 1, 2
    """
    assert shop.rows(sql) == [
        ("sales.customers", "PRIMARY KEY (id)"),
        ("sales.items", "FOREIGN KEY (order_id) REFERENCES sales.orders(id)"),
        ("sales.orders", "FOREIGN KEY (customer_id) REFERENCES sales.customers(id)"),
        ("sales.orders", "PRIMARY KEY (id)"),
    ]


def test_json_that_nests_too_deep_is_refused(shop: Visitors) -> None:
    for depth in (900, 100_000):
        with pytest.raises((LimitExceeded, InvalidText)):
            shop.rows(f"SELECT '{'[' * depth}{']' * depth}'::jsonb")


def _nested(before: str, inside: str, after: str, depth: int) -> str:
    return before * depth + inside + after * depth


LONG = "repeat('x', 100000)"
DOUBLED = "WITH RECURSIVE t AS (SELECT 1 AS n, {0} AS s UNION ALL SELECT n + 1, {1} FROM t WHERE n < 40) "
SHORT_AND_LARGE = [
    "SELECT 1::oid, " + _nested("nullif(", "1", ", 2)", 25),
    "SELECT 1::oid, " + _nested("array_dims(ARRAY[", "1", "])", 18),
    f"SELECT 1::oid, {_nested('nullif(', '1', ', 2)', 13)} IN ({', '.join(['1'] * 200)})",
    f"SELECT 1::oid, length(repeat({LONG}, 1000))",
    f"SELECT 1::oid, length(repeat({LONG}, 15) || repeat({LONG}, 15))",
    f"SELECT 1::oid, length(concat({', '.join([LONG] * 70)}))",
    f"SELECT 1::oid, length(concat_ws({LONG}, {', '.join(['1'] * 70)}))",
    f"SELECT 1::oid, length(replace({LONG}, 'x', {LONG}))",
    f"SELECT 1::oid, length(regexp_replace({LONG}, 'x', {LONG}, 'g'))",
    f"SELECT 1::oid, length(format('{'%1$s' * 70}', {LONG}))",
    f"SELECT length(array_to_string(ARRAY(SELECT oid FROM pg_type), {LONG}))",
    f"SELECT cardinality(string_to_array(repeat({LONG}, 5), NULL)), 1::oid",
    f"SELECT cardinality(regexp_split_to_array({LONG} || oid, '')) FROM pg_type",
    "SELECT length(" + _nested("quote_literal(", "chr(39)", ")", 27) + "), 1::oid",
    "SELECT length(" + _nested("to_json(", "chr(34)", "::text)::text", 27) + "), 1::oid",
    DOUBLED.format("'x'", "s || s") + "SELECT max(length(s)) FROM t, pg_am",
    DOUBLED.format("ARRAY[1]", "s || s") + "SELECT max(cardinality(s)) FROM t, pg_am",
    DOUBLED.format("ARRAY[1]", "array_cat(s, s)") + "SELECT max(cardinality(s)) FROM t, pg_am",
    f"SELECT '{'x' * 50_000}', oid FROM pg_type",
    f"SELECT max(length('{'x' * 200}' || g)) FROM pg_am, generate_series(1, 90000) AS g",
    "SELECT count(g) FROM pg_type, LATERAL generate_series(1, 90000 + length(typname)) AS g",
    "SELECT " + "*, " * 100 + "1 FROM pg_class",
    "SELECT 1::oid, " + " || ".join(["ARRAY[1]"] * 500),
]


@pytest.mark.parametrize("sql", SHORT_AND_LARGE, ids=[sql[:60] for sql in SHORT_AND_LARGE])
def test_a_short_query_takes_no_great_room(shop: Visitors, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "MOST", 2**20 * 4)
    with pytest.raises(LimitExceeded):
        shop.run(sql)


def test_a_query_that_is_written_too_long_is_not_called_another_query(shop: Visitors) -> None:
    with pytest.raises(LimitExceeded, match=r"^the query is too long or repeats too much$"):
        shop.run(SHORT_AND_LARGE[0])


def test_series_are_limited(shop: Visitors) -> None:
    with pytest.raises(InvalidParameter, match="at most 100,000 rows"):
        shop.run("SELECT count(g) FROM pg_am, generate_series(1, 100002) AS g")


def test_queries_are_limited_in_time(shop: Visitors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STATEMENT_SECONDS", 0.1)
    with pytest.raises(QueryCanceled):
        shop.run("SELECT count(*) FROM pg_type a, pg_type b, pg_type c WHERE length(a.typname || b.typname) > c.oid")


def test_what_a_query_took_is_free_for_the_next(shop: Visitors) -> None:
    for _ in range(3):
        assert shop.rows(f"SELECT length(repeat({LONG}, 300)), 1::oid") == [(30_000_000, 1)]


def test_chains_of_arrays_and_texts_are_as_in_postgresql(shop: Visitors) -> None:
    chain = " || ".join(f"ARRAY[{number}]" for number in range(40))
    assert shop.rows(f"SELECT {chain}, 1::oid") == [(list(range(40)), 1)]
    assert shop.rows("SELECT NULL::int[] || ARRAY[1], ARRAY[1] || NULL::int[], NULL::int[] || NULL::int[]") == [
        ([1], [1], None)
    ]
    assert shop.rows("SELECT concat('a', NULL, 1), concat_ws('-', 'a', NULL, 'b'), concat_ws(NULL, 'a'), 1::oid") == [
        ("a1", "a-b", None, 1)
    ]
    assert shop.rows("SELECT 'a' || 1, 1.5::float8 || 'a', 'a' || NULL, 'a''b' || 2, 1::oid") == [
        ("a1", "1.5a", None, "a'b2", 1)
    ]
    assert shop.rows("SELECT replace('aXa', 'a', 'bb'), replace('a', '', 'x'), repeat('ab', -1), 1::oid") == [
        ("bbXbb", "a", "", 1)
    ]
    assert shop.rows("SELECT count(*) FROM (SELECT relkind FROM pg_class GROUP BY 1, 1, relkind) AS t") == [(3,)]


def test_postgres_is_the_first_database_that_a_user_may_open(make_engine: MakeEngine, clinic_policy: Path) -> None:
    with closing(Databases({"clinic": make_engine(clinic_policy)})) as databases:
        assert databases.chosen("postgres", "ana") == "clinic"
        assert databases.chosen("third", "ana") == "third"
        with pytest.raises(UnknownDatabase, match='database "postgres" does not exist'):
            databases.chosen("postgres", "nobody")


def test_set_config_over_rows_changes_nothing(shop: Visitors) -> None:
    with pytest.raises(UnsupportedQuery, match="set_config takes constants"):
        shop.run("SELECT set_config(name, 'me', false) FROM pg_settings WHERE name = 'application_name'")


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT 'infinity'::date FROM pg_class", "date"),
        ("SELECT relname, '-infinity'::timestamptz FROM pg_class", "timestamptz"),
        ("SELECT '{2026-01-01,infinity}'::date[]", "date"),
        ("SELECT ARRAY['infinity'::timestamp]", "timestamp"),
    ],
)
def test_infinite_dates_are_refused_and_not_shown_as_others(tmp_path: Path, sql: str, name: str) -> None:
    """Python has no value for them, and DuckDB gives its last or first one."""
    clerk = Visitors(shop_policy(tmp_path), "clerk")
    try:
        with pytest.raises(UnsupportedQuery, match=f"an infinite {name} cannot be shown") as refused:
            clerk.rows(sql)
        assert refused.value.hint == f"Show it as text: 'infinity'::{name}::text"
        assert clerk.rows("SELECT '{2026-01-01,NULL}'::date[], NULL::date[], NULL::date") == [
            ([date(2026, 1, 1), None], None, None)
        ]
    finally:
        clerk.close()
