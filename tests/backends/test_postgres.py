"""PostgreSQL as the engine: read only, bounded, cancellable; typed failures that tell nothing; back after a restart."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpsql.backends import (
    Backend,
    Cancellation,
    ExactCells,
    PublicRows,
    open_backend,
    postgres,
)
from dpsql.backends import backend as backend_module
from dpsql.backends.postgres import PostgresBackend
from dpsql.backends.postgres_connections import MAX_CONNECTIONS
from dpsql.compiler.bounding.steps import BoundedQuery, PrintedQuery
from dpsql.compiler.ir.nodes import Grid, Values
from dpsql.compiler.ir.primitives import UNITS, Contribution, Primitive, PrimitiveKind
from dpsql.compiler.plan.pricing import PlannedPrimitive
from dpsql.compiler.plan.query_plan import PlannedInput, PlannedRelease, PublicRead
from dpsql.errors import (
    BackendFailure,
    CardinalityViolation,
    DatabaseUnavailable,
    InvalidPolicy,
    LimitExceeded,
    QueryCanceled,
    UnsupportedQuery,
)
from dpsql.limits.result_memory import READ
from dpsql.policy import load_policy
from dpsql.policy.engines import POSTGRES
from dpsql.privacy.exponential_mechanism import Rank
from dpsql.sqltypes import SqlType
from tests.backends.test_fetching import CutAfterFirst
from tests.compiler.trees import with_sql
from tests.postgres import PASSWORD as SECRET
from tests.postgres import OwnServer, Server, role_of, url_of
from tests.waiting import HANG_SECONDS, wait_for

TABLES = (
    """
    CREATE TABLE people (id int PRIMARY KEY, born date, city text NOT NULL, note text);
    INSERT INTO people SELECT i, DATE '2000-01-01' + i, 'city ' || i % 3, 'of 4711' FROM generate_series(1, 30) AS i;
    CREATE SCHEMA "Other Sales";
    CREATE TABLE "Other Sales"."Big ""Orders" ("Order Id" int, person int, amount numeric(10, 2));
    INSERT INTO "Other Sales"."Big ""Orders" SELECT i, i % 30, i FROM generate_series(1, 100) AS i;
    CREATE TABLE colours (name text PRIMARY KEY);
    INSERT INTO colours VALUES ('red'), ('green');
    CREATE VIEW poisoned AS SELECT id, 1 / (id - id) AS a FROM people;
    """,
)
POLICY = """
version = 1
[dataset]
name = "people"
url = "{url}"
privacy_unit = "person"
timezone = "Europe/Berlin"
budget = {{ epsilon = 100, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 100, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
born = {{ type = "date" }}
city = {{ type = "text" }}
[tables.'Other Sales.Big "Orders']
unit_key = "person"
max_rows = 10
[tables.'Other Sales.Big "Orders'.columns]
"Order Id" = {{ type = "integer" }}
[tables.poisoned]
unit_key = "id"
max_rows = 1
columns = {{ a = {{ type = "integer" }} }}
[tables.colours]
public = true
columns = {{ name = {{ type = "text" }} }}
"""
GRANTS = (
    "GRANT SELECT (id, born, city) ON people TO {reader}",
    "GRANT SELECT ON poisoned, colours TO {reader}",
    'GRANT USAGE ON SCHEMA "Other Sales" TO {reader}',
    'GRANT SELECT ON ALL TABLES IN SCHEMA "Other Sales" TO {reader}',
)


def write_policy(folder: Path, url: str, **changes: str) -> Path:
    path = folder / "people.toml"
    text = POLICY.format(url=url)
    for before, after in changes.items():
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def people(server: Server) -> Iterator[str]:
    """A database with a role that may read just what the policy needs; gives the role's URL."""
    with server.database(*TABLES) as name, server.reader(name, *GRANTS) as url:
        yield url


@pytest.fixture(scope="module")
def url(postgres_server: Server) -> Iterator[str]:
    with people(postgres_server) as found:
        yield found


@pytest.fixture
def backend(url: str, tmp_path: Path) -> Iterator[PostgresBackend]:
    opened = open_backend(load_policy(write_policy(tmp_path, url)))
    assert isinstance(opened, PostgresBackend)
    yield opened
    opened.close()


def release(sql: str, *, keys: int = 0, inputs: tuple[PlannedInput, ...] = ()) -> PlannedRelease:
    """A release of two cells with SQL of the test's own, in which tables stand by their names in engine SQL."""
    primitive = PlannedPrimitive(UNITS, None)  # type: ignore[arg-type]
    query = PrintedQuery(BoundedQuery(None, None, ()), sql)
    return PlannedRelease(query, inputs, keys, (primitive,), None, None, None, False, 1, sql)  # type: ignore[arg-type]


def public(sql: str, width: int = 1) -> PublicRead:
    return PublicRead("q0", Values((), ((),)), sql, width)


def fetched(backend: Backend, planned: PlannedRelease, *inputs: PublicRows) -> ExactCells:
    return backend.fetch({0: planned}, (), Cancellation(), {0: inputs}).releases[0]


def read(backend: Backend, sql: str, width: int = 1) -> PublicRows:
    return backend.fetch({}, (public(sql, width),), Cancellation()).public[sql]


RANK = Primitive(PrimitiveKind.RANK, None, None, 1, Grid(Fraction(1), 0, 9), rank=Rank.least())
COUNT = release('SELECT count(*) AS units, coalesce(sum("id"), 0) AS p0 FROM "2.people"')


def sessions(server: Server, url: str) -> list[str]:
    """What the sessions of a role do."""
    role = role_of(url)
    rows = server.run(f"SELECT query FROM pg_stat_activity WHERE usename = '{role}' AND state <> 'idle'")
    return [row[0] for row in rows]


# What is read


def test_the_schema_is_that_of_the_tables_needed(backend: PostgresBackend) -> None:
    assert backend.schema.engine is POSTGRES
    people = backend.schema.tables["people"]
    assert set(people.columns) == {"id", "born", "city"}
    assert people.is_unique(frozenset({"id"}))
    assert [table.path for table in backend.schema.tables.values()] == [
        ('0.Big "Orders',),
        ("1.colours",),
        ("2.people",),
        ("3.poisoned",),
    ]


def test_a_role_that_may_only_select_some_columns_suffices(backend: PostgresBackend) -> None:
    cells = fetched(backend, release('SELECT count(*) AS units, coalesce(sum("id"), 0) AS p0 FROM "2.people"'))
    assert (cells.units.tolist(), cells.cells[0].tolist()) == ([30], [465])
    orders = release('SELECT count(DISTINCT person) AS units, count("Order Id") AS p0 FROM "0.Big ""Orders"')
    backend.check((orders,), (), Cancellation())
    assert fetched(backend, orders).units.tolist() == [30]


def test_keys_are_texts_and_cells_bigints_in_the_order_of_the_sql(backend: PostgresBackend) -> None:
    by_city = 'SELECT city AS k0, count(*) AS units, sum(id) AS p0 FROM "2.people" GROUP BY 1'
    more = f"SELECT * FROM ({by_city}) AS a UNION ALL SELECT NULL, 7, -3 ORDER BY 1 DESC NULLS LAST"
    cells = fetched(backend, release(more, keys=1))
    assert cells.keys[0].tolist() == ["city 2", "city 1", "city 0", None]
    assert cells.units.tolist() == [10, 10, 10, 7]
    assert cells.cells[0].tolist() == [155, 145, 165, -3]
    assert [column.dtype.name for column in (*cells.keys, cells.units, *cells.cells)] == ["object", "int64", "int64"]


def test_rows_of_a_unit_are_brought_together_by_sorting_where_nothing_else_is_grouped(backend: PostgresBackend) -> None:
    hashes = "CAST(CAST(current_setting('enable_hashagg') AS boolean) AS integer)::bigint"
    for _ in range(2):  # one connection: what is set for one query is not for the next
        assert fetched(backend, release(f"SELECT {hashes} AS units, 0::bigint AS p0")).units.tolist() == [0]
        by_key = release(f"SELECT 'a' AS k0, {hashes} AS units, 0::bigint AS p0", keys=1)
        assert fetched(backend, by_key).units.tolist() == [1]


def test_a_second_process_may_read_an_index(backend: PostgresBackend) -> None:
    cost = "CAST(1000 * CAST(current_setting('parallel_tuple_cost') AS numeric) AS bigint)"
    assert fetched(backend, release(f"SELECT {cost} AS units, 0::bigint AS p0")).units.tolist() == [10]


def test_a_hundred_thousand_groups(backend: PostgresBackend) -> None:
    sql = "SELECT 'k' || i AS k0, i AS units, -i AS p0 FROM generate_series(100000::bigint, 1, -1) AS i ORDER BY i DESC"
    cells = fetched(backend, release(sql, keys=1))
    assert cells.keys[0][:2].tolist() == ["k100000", "k99999"]
    assert cells.units.tolist() == list(range(100_000, 0, -1))
    assert cells.cells[0].sum() == -5_000_050_000


@pytest.mark.parametrize("primitives", [(UNITS,), (UNITS, RANK)])
def test_private_groups_and_ranks_come_in_blocks(
    backend: PostgresBackend, primitives: tuple[Primitive, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One array of all would fail at a gigabyte, to which a single person's keys may add the last byte."""
    monkeypatch.setattr("dpsql.backends.backend.BLOCK_BYTES", 80_000)
    cells = "i AS p0" if len(primitives) == 1 else "i AS p0, i || ':1' AS p1"
    sql = f"SELECT nullif('k' || i, 'k3') AS k0, i AS units, {cells} FROM generate_series(7::bigint, 1, -1) AS i"
    planned = replace(
        release(sql, keys=1),
        primitives=tuple(PlannedPrimitive(primitive, None) for primitive in primitives),  # type: ignore[arg-type]
        private_keys=True,
        contribution=Contribution(grouped=True, groups_per_unit=1, rows_per_group=1, one_row=True),
    )
    read: list[int] = []
    run = postgres._run

    def counted(*given: Any) -> Iterator[tuple[Any, ...]]:
        for row in run(*given):
            read.append(row[0])
            yield row

    monkeypatch.setattr(postgres, "_run", counted)
    found = fetched(backend, planned)
    assert read == ([2, 2, 2, 1] if len(primitives) == 1 else [1] * 7)
    assert found.keys[0].tolist() == ["k7", "k6", "k5", "k4", None, "k2", "k1"]
    assert found.units.tolist() == found.cells[0].tolist() == [7, 6, 5, 4, 3, 2, 1]
    assert [cell.tolist()[:2] for cell in found.cells[1:]] == [["7:1", "6:1"]] * (len(primitives) - 1)
    backend.check((planned,), (), Cancellation())
    assert fetched(backend, with_sql(planned, f"SELECT * FROM ({sql}) AS a WHERE false")).units.tolist() == []


def test_the_server_holds_one_block_at_a_time(postgres_server: Server, backend: PostgresBackend) -> None:
    sql = "SELECT 'k' || i AS k0, i AS units FROM generate_series(1::bigint, 100000) AS i"
    statement = backend._statement(sql, ["k0", "units"], size=1000).decode()
    plan = "\n".join(row[0] for row in postgres_server.run(f"EXPLAIN {statement}"))
    assert "GroupAggregate" in plan
    assert "HashAggregate" not in plan


def test_no_groups_and_no_rows(backend: PostgresBackend) -> None:
    cells = fetched(backend, release("SELECT 'a' AS k0, 1::bigint AS units, 1::bigint AS p0 WHERE false", keys=1))
    assert [len(column) for column in (*cells.keys, cells.units, *cells.cells)] == [0, 0, 0]
    assert cells.units.dtype.name == "int64"
    assert read(backend, "SELECT 'a' AS v0 WHERE false").count == 0


def test_public_rows(backend: PostgresBackend) -> None:
    rows = read(backend, """SELECT name AS v0, nullif(name, 'red') AS v1 FROM "1.colours" ORDER BY name""", 2)
    assert rows.count == 2
    assert [column.tolist() for column in rows.columns] == [["green", "red"], ["green", None]]
    assert read(backend, 'SELECT 1 AS one FROM "1.colours"', 0).count == 2


def test_inputs_are_parameters(backend: PostgresBackend) -> None:
    made = PlannedInput("input.0", "", (SqlType.TEXT, SqlType.INTEGER), False, (), ())
    bare = PlannedInput("input.1", "", (), False, (), ())
    sql = """SELECT v0 AS k0, coalesce(v1, '0')::bigint AS units, (SELECT count(*) FROM unnest($3::text[])) AS p0
        FROM unnest($1::text[], $2::text[]) AS i (v0, v1)"""
    planned = release(sql, keys=1, inputs=(made, bare))
    backend.check((planned,), (), Cancellation())
    rows = read(backend, "SELECT * FROM (VALUES ('a\"b\\', '7'), (NULL, NULL), ('%s $1 é', '8')) AS v (v0, v1)", 2)
    cells = fetched(backend, planned, rows, PublicRows((), 3))
    assert cells.keys[0].tolist() == ['a"b\\', None, "%s $1 é"]
    assert cells.units.tolist() == [7, 0, 8]
    assert cells.cells[0].tolist() == [3, 3, 3]


def test_inputs_that_public_groups_do_not_read(backend: PostgresBackend) -> None:
    """The server must be told the type of a parameter that stands nowhere."""
    made = PlannedInput("input.0", "", (SqlType.TEXT, SqlType.INTEGER), False, (), ())
    planned = release("SELECT 'a' AS k0, 0::bigint AS units, 1::bigint AS p0", keys=1, inputs=(made,))
    backend.check((planned,), (), Cancellation())
    assert fetched(backend, planned, PublicRows.empty(2)).keys[0].tolist() == ["a"]


def test_what_sql_means_does_not_hang_on_the_defaults_of_a_role(
    postgres_server: Server, url: str, tmp_path: Path
) -> None:
    role = role_of(url)
    hostile = {
        "search_path": '"Other Sales"',
        "DateStyle": "German",
        "IntervalStyle": "iso_8601",
        "TimeZone": "Asia/Tokyo",
        "extra_float_digits": "-15",
        "bytea_output": "escape",
        "standard_conforming_strings": "off",
        "transform_null_equals": "on",
        "default_transaction_isolation": "serializable",
        "client_encoding": "LATIN1",
        "statement_timeout": "1",
        "jit": "on",
    }
    changes = [f"ALTER ROLE {role} SET {name} = {value!r}" for name, value in hostile.items()]
    postgres_server.run(*(change.replace("'\"", '"').replace("\"'", '"') for change in changes))
    backend = open_backend(load_policy(write_policy(tmp_path, url)))
    try:
        sql = r"""SELECT concat_ws(' ', DATE '2024-02-01', '1 day'::interval, TIMESTAMPTZ '2024-02-01 12:00:00Z',
            0.1::float8 + 0.2, '\xff'::bytea, length('\\'), NULL = NULL, current_setting('search_path'), 'é',
            current_setting('jit'), current_setting('transaction_isolation'), pg_sleep(0.1)) AS v0"""
        values = "2024-02-01 1 day 2024-02-01 13:00:00+01 0.30000000000000004 \\xff 2 pg_catalog, pg_temp"
        assert read(backend, sql).columns[0].tolist() == [f"{values} é off read committed "]
    finally:
        backend.close()
        postgres_server.run(f"ALTER ROLE {role} RESET ALL")


# What is not to be


def test_nothing_is_written_though_the_role_might(postgres_server: Server, tmp_path: Path) -> None:
    with postgres_server.database(*TABLES) as name:
        backend = open_backend(load_policy(write_policy(tmp_path, url_of(postgres_server.url, dbname=name))))
        for sql in (
            "WITH gone AS (DELETE FROM public.people RETURNING 1) SELECT 'a' AS v0",
            "SELECT setval('public.counter', 7)::text AS v0",
            "SELECT nextval('public.counter')::text AS v0",
            "SELECT set_config('transaction_read_only', 'off', false) AS v0",
        ):
            postgres_server.run("CREATE SEQUENCE IF NOT EXISTS counter", database=name)
            with pytest.raises(BackendFailure):
                read(backend, sql)
            with pytest.raises(UnsupportedQuery):
                backend.check((), (public(sql),), Cancellation())
        assert postgres_server.run("SELECT count(*) FROM people", database=name) == [(30,)]
        backend.close()


def test_several_statements_are_none(backend: PostgresBackend) -> None:
    with pytest.raises(BackendFailure):
        read(backend, "SELECT 'a' AS v0) SELECT 1; COMMIT; SELECT (1")


def test_trying_a_query_reads_no_row(backend: PostgresBackend, caplog: pytest.LogCaptureFixture) -> None:
    poisoned = release('SELECT count(*) AS units, coalesce(sum(a), 0) AS p0 FROM "3.poisoned"')
    backend.check((poisoned,), (), Cancellation())
    with pytest.raises(BackendFailure):
        fetched(backend, poisoned)
    assert caplog.messages == ["engine query failed: DivisionByZero"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nothing AS v0",
        "SELECT 'a' AS v0 FROM public.nowhere",
        "SELECT (1 / 0)::text AS v0",
        "SELECT 'x'::int::text AS v0",
        "SELECT unnest(ARRAY[1]) AS v0",
        "SELECT 'a' AS v1",
        "SELECT",
    ],
)
def test_what_cannot_run_is_refused_before_a_charge(backend: PostgresBackend, sql: str) -> None:
    with pytest.raises((UnsupportedQuery, BackendFailure)) as caught:
        backend.check((), (public(sql),), Cancellation())
    assert isinstance(caught.value, UnsupportedQuery)
    assert "nothing was charged" in str(caught.value)
    # The next one is not the worse for it.
    backend.check((COUNT,), (), Cancellation())


@pytest.mark.parametrize("cell", ["NULL::bigint", "1.5", "5::int", "'x'", "1::numeric", "1 / (id - id)", "ARRAY[1]"])
def test_a_cell_that_is_no_bigint_is_a_failure(backend: PostgresBackend, cell: str) -> None:
    with pytest.raises(BackendFailure):
        fetched(backend, release(f'SELECT id::bigint AS units, {cell} AS p0 FROM "2.people"'))


@pytest.mark.parametrize("key", ["7::bigint", "ARRAY['a']", "DATE '2024-01-01'"])
def test_a_key_that_is_no_text_is_a_failure(backend: PostgresBackend, key: str) -> None:
    with pytest.raises(BackendFailure):
        fetched(backend, release(f"SELECT {key} AS k0, 1::bigint AS units, 1::bigint AS p0", keys=1))


def test_a_failure_tells_nothing_of_its_row(backend: PostgresBackend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sql = 'SELECT count(*) AS units, coalesce(max((city || id)::bigint), 0) AS p0 FROM "2.people"'
    backend.check((release(sql),), (), Cancellation())
    with pytest.raises(BackendFailure) as caught:
        fetched(backend, release(sql))
    assert str(caught.value) == BackendFailure.SENTENCE
    assert caught.value.__suppress_context__
    assert "city" not in caplog.text
    assert caplog.messages[-1] == "engine query failed: InvalidTextRepresentation"


def test_several_rows_for_one_value(backend: PostgresBackend) -> None:
    sql = 'SELECT (SELECT name FROM "1.colours") AS v0'
    backend.check((), (public(sql),), Cancellation())
    with pytest.raises(CardinalityViolation):
        read(backend, sql)
    protected = 'SELECT coalesce((SELECT id FROM "2.people"), 0)::bigint AS units, 1::bigint AS p0'
    backend.check((release(protected),), (), Cancellation())
    with pytest.raises(BackendFailure):
        fetched(backend, release(protected))
    with pytest.raises(CardinalityViolation):
        backend.check((), (public("SELECT (SELECT v FROM (VALUES ('a'), ('b')) AS v (v)) AS v0"),), Cancellation())


def test_too_many_public_rows(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "MAX_PUBLIC_ROWS", 100)
    sql = "SELECT i::text AS v0 FROM generate_series(1, {}) AS i, generate_series(1, 10) AS j"
    assert read(backend, sql.format(10)).count == 100
    with pytest.raises(LimitExceeded, match="more than 100 rows"):
        read(backend, sql.format(11))


def test_too_many_public_bytes(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are arrays, which engines write out as one text each."""
    monkeypatch.setattr(backend_module, "MAX_PUBLIC_BYTES", 1 << 20)
    sql = "SELECT array_to_json(array_fill(i, ARRAY[1000]))::text AS v0 FROM generate_series(1, {}) AS i"
    assert read(backend, sql.format(100)).count == 100
    before = READ.bytes
    with pytest.raises(LimitExceeded, match="what the query reads takes more than 1 MiB"):
        read(backend, sql.format(2000))
    assert READ.bytes == before
    assert read(backend, "SELECT FROM generate_series(1, 3)", width=0).count == 3


# Time


def test_a_cancel_reaches_the_server(postgres_server: Server, url: str, backend: PostgresBackend) -> None:
    cancellation = Cancellation()
    sleeping = release("SELECT length(pg_sleep(60)::text)::bigint AS units, 1::bigint AS p0")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(backend.fetch, {0: sleeping}, (), cancellation, {0: ()})
        wait_for(lambda: any("pg_sleep" in query for query in sessions(postgres_server, url)))
        cancellation.cancel()
        with pytest.raises(QueryCanceled):
            running.result(HANG_SECONDS)
    wait_for(lambda: not sessions(postgres_server, url))
    assert fetched(backend, COUNT).units.tolist() == [30]
    with pytest.raises(QueryCanceled):
        backend.fetch({0: COUNT}, (), cancellation, {0: ()})
    with pytest.raises(QueryCanceled):
        backend.check((COUNT,), (), cancellation)


def test_statements_are_limited_in_time(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "STATEMENT_SECONDS", 0.2)
    monkeypatch.setattr(postgres, "CHECK_SECONDS", 0.2)
    with pytest.raises(QueryCanceled):
        fetched(backend, release("SELECT length(pg_sleep(60)::text)::bigint AS units, 1::bigint AS p0"))
    with pytest.raises(QueryCanceled):
        backend.check((), (public("SELECT pg_sleep(60)::text AS v0"),), Cancellation())


def test_connections_are_shared_by_more_threads_than_there_are(
    postgres_server: Server, url: str, backend: PostgresBackend
) -> None:
    napping = release('SELECT length(pg_sleep(0.05)::text)::bigint AS units, count(*) AS p0 FROM "2.people"')
    most = []
    with ThreadPoolExecutor(3 * MAX_CONNECTIONS) as pool:
        results = [pool.submit(fetched, backend, napping) for _ in range(3 * MAX_CONNECTIONS)]
        most.append(len(sessions(postgres_server, url)))
        assert {result.result(HANG_SECONDS).cells[0].tolist()[0] for result in results} == {30}
    assert max(most) <= MAX_CONNECTIONS
    role = role_of(url)
    (count,) = postgres_server.run(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'")[0]
    assert 1 <= count <= MAX_CONNECTIONS
    backend.close()
    wait_for(lambda: postgres_server.run(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'") == [(0,)])


def test_who_waits_for_a_connection_can_be_cancelled(backend: PostgresBackend) -> None:
    sleeping = release("SELECT length(pg_sleep(60)::text)::bigint AS units, 1::bigint AS p0")
    with ThreadPoolExecutor(MAX_CONNECTIONS + 1) as pool:
        busy = [Cancellation() for _ in range(MAX_CONNECTIONS)]
        results = [pool.submit(backend.fetch, {0: sleeping}, (), held, {0: ()}) for held in busy]
        wait_for(lambda: backend._connections._free._value == 0)
        waiting = Cancellation()
        late = pool.submit(backend.fetch, {0: COUNT}, (), waiting, {0: ()})
        waiting.cancel()
        with pytest.raises(QueryCanceled):
            late.result(HANG_SECONDS)
        for held in busy:
            held.cancel()
        for result in results:
            with pytest.raises(QueryCanceled):
                result.result(HANG_SECONDS)


# Servers that go and come


def test_a_connection_that_died_idle_is_replaced(postgres_server: Server, url: str, backend: PostgresBackend) -> None:
    assert fetched(backend, COUNT).units.tolist() == [30]
    role = role_of(url)
    ended = postgres_server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
    assert ended
    assert fetched(backend, COUNT).units.tolist() == [30]


def test_a_session_that_is_ended_while_it_reads_is_a_failure(
    postgres_server: Server, url: str, backend: PostgresBackend, caplog: pytest.LogCaptureFixture
) -> None:
    role = role_of(url)
    with ThreadPoolExecutor(1) as pool:
        sleeping = release("SELECT length(pg_sleep(60)::text)::bigint AS units, 1::bigint AS p0")
        running = pool.submit(fetched, backend, sleeping)
        wait_for(lambda: any("pg_sleep" in query for query in sessions(postgres_server, url)))
        postgres_server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
        with pytest.raises(BackendFailure):
            running.result(HANG_SECONDS)
    assert caplog.messages == ["engine query failed: AdminShutdown"]
    assert fetched(backend, COUNT).units.tolist() == [30]


def test_a_server_that_is_gone_before_the_second_query_is_a_failure(postgres_server: Server, tmp_path: Path) -> None:
    with people(postgres_server) as url:
        backend = open_backend(load_policy(write_policy(tmp_path, url)))
        role = role_of(url)
        cut = CutAfterFirst(
            lambda: postgres_server.run(
                f"ALTER ROLE {role} NOLOGIN",
                f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'",
            )
        )
        with pytest.raises(BackendFailure):
            backend.fetch({0: COUNT, 1: COUNT}, (), cut)
        with pytest.raises(DatabaseUnavailable):
            backend.fetch({0: COUNT}, (), Cancellation())
        backend.close()


def test_a_server_that_goes_and_comes_back(
    each_postgres: OwnServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with people(each_postgres) as url:
        policy = load_policy(write_policy(tmp_path, url))
        backend = open_backend(policy)
        backend.check((COUNT,), (), Cancellation())
        assert fetched(backend, COUNT).units.tolist() == [30]
        each_postgres.crash()
        try:
            with pytest.raises(DatabaseUnavailable) as refused:
                backend.check((COUNT,), (), Cancellation())
            assert "nothing was charged" in str(refused.value)
            with pytest.raises(DatabaseUnavailable):  # to the user it is a failure like others
                fetched(backend, COUNT)
            with pytest.raises(InvalidPolicy) as caught:
                open_backend(policy)
            assert str(caught.value) == "dataset.url: the socket does not exist"
            assert caught.value.hint is not None
        finally:
            each_postgres.start()
        backend.check((COUNT,), (), Cancellation())
        assert fetched(backend, COUNT).units.tolist() == [30]
        backend.close()
    assert SECRET not in caplog.text


# A schema that changes


def test_a_fact_that_is_gone_is_noticed_before_anything_leaves(postgres_server: Server, tmp_path: Path) -> None:
    with postgres_server.database(*TABLES) as name:
        backend = open_backend(load_policy(write_policy(tmp_path, url_of(postgres_server.url, dbname=name))))
        backend.check((COUNT,), (), Cancellation())
        postgres_server.run("ALTER TABLE people ADD further int", "CREATE INDEX ON people (city)", database=name)
        assert fetched(backend, COUNT).units.tolist() == [30]
        postgres_server.run("ALTER TABLE people DROP CONSTRAINT people_pkey", database=name)
        with pytest.raises(BackendFailure):
            fetched(backend, COUNT)
        with pytest.raises(DatabaseUnavailable, match="have changed"):
            backend.check((COUNT,), (), Cancellation())
        postgres_server.run("ALTER TABLE people ADD PRIMARY KEY (id)", database=name)
        backend.check((COUNT,), (), Cancellation())
        assert fetched(backend, COUNT).units.tolist() == [30]
        for change, back in (
            ("ALTER TABLE people ALTER city DROP NOT NULL", "ALTER TABLE people ALTER city SET NOT NULL"),
            ("ALTER TABLE people ALTER city TYPE varchar(9)", "ALTER TABLE people ALTER city TYPE text"),
            ("ALTER TABLE people RENAME TO persons", "ALTER TABLE persons RENAME TO people"),
            ("CREATE TABLE young () INHERITS (people)", "DROP TABLE young"),
        ):
            postgres_server.run(change, database=name)
            with pytest.raises(BackendFailure):
                fetched(backend, COUNT)
            postgres_server.run(back, database=name)
            assert fetched(backend, COUNT).units.tolist() == [30]
        # What was never tried is looked at before a charge.
        postgres_server.run("ALTER TABLE people DROP CONSTRAINT people_pkey", database=name)
        with pytest.raises(DatabaseUnavailable, match="have changed"):
            backend.check((with_sql(COUNT, COUNT.sql + " WHERE true"),), (), Cancellation())
        backend.close()


# Opening


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"password": "wrong-" + SECRET, "host": "127.0.0.1", "port": "1"}, "connection refused"),
        ({"host": "/nowhere"}, "the socket does not exist"),
        ({"host": "no-host.invalid"}, "the host name cannot be resolved"),
        ({"dbname": "no such database"}, "the server has no such database"),
        ({"user": "nobody in particular"}, "the server has no such role, or it may not log in"),
        ({"sslmode": "require", "host": "127.0.0.1"}, None),
        ({"port": "no number"}, None),
    ],
)
def test_a_server_that_cannot_be_reached_is_told_with_a_mend(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, parameters: dict[str, str], told: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(InvalidPolicy) as caught:
        open_backend(load_policy(write_policy(tmp_path, url_of(url, **parameters).replace("+", "%20"))))
    assert told is None or str(caught.value) == f"dataset.url: {told}"
    assert str(caught.value).startswith("dataset.url: ")
    assert caught.value.hint
    assert SECRET not in f"{caught.value.message} {caught.value.hint} {caught.value.detail} {caplog.text}"


@pytest.mark.parametrize(
    "url",
    [f"postgresql://reader:{SECRET}@host:bad port/db", f"postgresql://h/db?{SECRET}=1", f"postgresql://[{SECRET}"],
)
def test_a_url_that_is_none_is_told_without_showing_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        open_backend(load_policy(write_policy(tmp_path, url)))
    assert caught.value.hint
    assert SECRET not in f"{caught.value.message} {caught.value.hint}"


def test_a_password_that_splits_a_url_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        open_backend(load_policy(write_policy(tmp_path, f"postgresql://reader:a@{SECRET}/x@host/db")))
    assert SECRET.lower() not in f"{caught.value.message} {caught.value.hint}".lower()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("tables.people", "tables.persons", 'the database has no table "public.persons"'),
        ('born = { type = "date" }', 'height = { type = "integer" }', 'no column "height"'),
        ('born = { type = "date" }', 'born = { type = "integer" }', "the database's type is date, not integer"),
        ('unit_key = "person"', 'unit_key = "nobody"', 'no column "nobody"'),
        (
            'born = { type = "date" }',
            'note = { type = "text" }',
            'the role may not read column "note" of public.people',
        ),
    ],
)
def test_a_policy_that_does_not_fit(url: str, tmp_path: Path, before: str, after: str, told: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        open_backend(load_policy(write_policy(tmp_path, url, **{before: after})))
    assert told in str(caught.value)
    assert caught.value.hint


def test_a_unit_must_have_one_spelling(postgres_server: Server, tmp_path: Path) -> None:
    loose = (
        'CREATE COLLATION loose FROM "C"',
        "SET allow_system_table_mods = on",
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'",
        "CREATE TABLE members (name text COLLATE loose)",
    )
    before = (
        POLICY[POLICY.index("[tables.people]") : POLICY.index("[tables.'Other")].replace("{{", "{").replace("}}", "}")
    )
    changes = {before: '[tables.members]\nunit_key = "name"\nmax_rows = 1\n'}
    with postgres_server.database(*TABLES, *loose) as name:
        policy = load_policy(write_policy(tmp_path, url_of(postgres_server.url, dbname=name), **changes))
        with pytest.raises(InvalidPolicy, match=r'tables\.members\.unit_key: "name" of "members" is text: with'):
            open_backend(policy)


def test_an_encoding_other_than_utf8_is_refused(postgres_server: Server, tmp_path: Path) -> None:
    with postgres_server.database() as name:
        other = f"{name}_latin"
        postgres_server.run(f"CREATE DATABASE {other} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
        try:
            with pytest.raises(InvalidPolicy, match="encoding is LATIN1, not UTF8"):
                open_backend(load_policy(write_policy(tmp_path, url_of(postgres_server.url, dbname=other))))
        finally:
            postgres_server.run(f"DROP DATABASE {other} WITH (FORCE)")


def test_a_server_of_unknown_version_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "VERSIONS", range(8, 10))
    with pytest.raises(InvalidPolicy) as caught:
        open_backend(load_policy(write_policy(tmp_path, url)))
    assert "the server is PostgreSQL 1" in str(caught.value)
    assert caught.value.hint == "dpsql knows PostgreSQL 8 to 9."
