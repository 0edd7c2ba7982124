"""The heart, below the SQL: errors of the engine, its files, its threads and the order of rows tell of no row."""

from pathlib import Path

import duckdb
import pytest

from dpsql.backends import Cancellation, DuckDBBackend
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.policy import load_policy
from tests.strategies.data import Database
from tests.strategies.distance import assert_same
from tests.strategies.world import CONSTANTS as MEANINGS
from tests.strategies.world import SETTINGS, Survey, policy_file, survey_file
from tests.test_neighbours import CASES, CROWD, GREEDY, cells, release_of

# Errors tell of rows too


STATISTICS = (
    "SELECT COUNT(*) FILTER (WHERE CASE WHEN age = 107 THEN 'a' END <> 'b') FROM people",
    "SELECT CASE WHEN city = 'zz' THEN 'a' END <> 'b', COUNT(*) FROM people GROUP BY 1",
    "SELECT EXTRACT(isoyear FROM born), COUNT(*) FROM people GROUP BY 1",
    "SELECT EXTRACT(week FROM born), DATE_TRUNC('week', born), COUNT(*) FROM people GROUP BY 1, 2",
)


@pytest.mark.parametrize("sql", STATISTICS)
@pytest.mark.parametrize("born", ["DATE '5877642-06-25 (BC)'", "DATE '2000-01-01'", "'infinity'"])
def test_statistics_of_the_engine_raise_no_error(survey: Survey, sql: str, born: str) -> None:
    for age in (5, 107, 200):
        survey.fill({})
        survey.memory.execute(f"INSERT INTO people (pid, age, city, born) VALUES (1, {age}, 'a', {born})")
        survey.fetch(survey.compile(sql).releases)


@pytest.mark.parametrize("lower", [0, 2**50 - 2])
def test_sums_of_many_great_values_do_not_overflow(tmp_path: Path, lower: int) -> None:
    path = tmp_path / "great.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (u INTEGER PRIMARY KEY, b BIGINT)")
        connection.execute("INSERT INTO t SELECT i, 9223372036854775807 FROM range(20000) r(i)")
    policy = tmp_path / "great.toml"
    policy.write_text(
        f"""
        version = 1
        [dataset]
        name = "great"
        url = "duckdb:///great.duckdb"
        privacy_unit = "unit"
        budget = {{ epsilon = 10, delta = 1e-6 }}
        [roles.analyst]
        budget = {{ epsilon = 10, delta = 1e-6 }}
        query = {{ epsilon = 1 , delta = 1e-9, max_epsilon = 1 }}
        [tables.t]
        unit_key = "u"
        max_rows = 1
        [tables.t.columns]
        b = {{ type = "bigint", lower = {lower}, upper = {2**50} }}
        """,
        encoding="utf-8",
    )
    loaded = load_policy(policy)
    backend = DuckDBBackend(str(path), loaded)
    statement = QueryStatement("SELECT AVG(b), SUM(b), COUNT(*) FROM t")
    query = compile_query(statement, Catalog(loaded, backend.schema, loaded.roles[0]), SETTINGS, MEANINGS)
    found = backend.fetch(dict(enumerate(query.releases)), (), Cancellation()).releases[0]
    backend.close()
    assert [20000] in [cell.tolist() for cell in found.cells] and len(found.cells) >= 3


# The engine itself: files, threads, physical order


def test_a_file_gives_the_cells_of_memory(survey: Survey, tmp_path: Path) -> None:
    plans = [release_of(survey, sql) for sql in CASES]
    expected = cells(survey, plans, CROWD.tables())
    survey_file(tmp_path, CROWD.shuffled(3).tables())
    policy = load_policy(policy_file(tmp_path, "add_remove"))
    backend = DuckDBBackend(str(tmp_path / "survey.duckdb"), policy)
    found = backend.fetch(dict(enumerate(plans)), (), Cancellation())
    backend.close()
    for index, left in enumerate(expected):
        assert_same(left, found.releases[index])


def test_threads_and_physical_order_change_nothing(survey: Survey) -> None:
    plans = [release_of(survey, sql) for sql in CASES if "FROM visits" in sql]
    many = """
        CREATE OR REPLACE TABLE visits AS SELECT * REPLACE (CAST(v AS INTEGER) AS pid, 'v' || v AS visit_id,
            CAST(hash(v) % 7000 AS DOUBLE) / 3 AS ratio, CAST(hash(v) % 11 AS BIGINT) AS n,
            CAST(hash(v) % 5000 AS DECIMAL(12, 2)) / 100 AS cost, 'note ' || (hash(v) % 5000) AS note)
        FROM (SELECT visits.*, r.v % 40000 AS v FROM (SELECT * FROM visits LIMIT 1) visits, range(150000) r(v))
        ORDER BY {order}
    """
    found = []
    for threads, order in ((1, "v"), (4, "hash(v)")):
        survey.fill({}, threads)
        survey.memory.execute(GREEDY)
        survey.memory.execute(many.format(order=order))
        found.append(survey.fetch(plans))
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


def test_public_groups_come_in_one_order(survey: Survey) -> None:
    planned = release_of(survey, "SELECT flag, kind, COUNT(*) FROM visits GROUP BY flag, kind")
    orders = []
    for database in (CROWD, CROWD.shuffled(5), Database(())):
        (found,) = cells(survey, [planned], database.tables(), 2)
        orders.append([list(key) for key in found.keys])
    assert orders[0] == orders[1] == orders[2]


def test_plans_do_not_depend_on_rows(survey: Survey) -> None:
    def plan() -> list[CompiledQuery]:
        return [survey.compile(sql) for sql in CASES]

    survey.fill({})
    empty = plan()
    survey.fill(CROWD.tables())
    assert plan() == empty
