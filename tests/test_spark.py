"""Spark through Spark Connect: the same bounds and integers as elsewhere, and a typed error for each failure."""

import ast
import gc
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.backends import Cancellation, open_backend, spark, spark_sessions
from dpsql.backends.backend import Unreachable
from dpsql.backends.registry import read_outline
from dpsql.backends.spark import SparkBackend
from dpsql.backends.spark_sessions import SparkSessions, _Channel
from dpsql.cli.clinic_spark import _KEPT, local_server
from dpsql.cli.survey import survey as surveyed
from dpsql.compiler.dialects.spark import Spark
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import (
    BackendFailure,
    DatabaseUnavailable,
    Error,
    InvalidParameter,
    InvalidPolicy,
    QueryCanceled,
    UndefinedColumn,
    UnsupportedQuery,
)
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.gateway.settings import Settings
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.sqltypes import SqlType
from tests.attacks.arena import open_arena
from tests.attacks.test_errors import EVERY as ONE_OF
from tests.attacks.test_errors import expressions, on_engine
from tests.attacks.test_nested_errors import EVERY, QUESTIONS, Neighbours, Question, by_chance, forms, gateway, users
from tests.compiler.test_accepted import CASES as FIXTURES
from tests.compiler.test_accepted import asking_anew, price
from tests.compiler.test_accepted import assert_same as assert_same_rows
from tests.compiler.test_quoting import NAMES, TEXTS
from tests.conftest import closing_engine
from tests.engines import SparkHost
from tests.examples import LONG, profile
from tests.fixtures.load import Case
from tests.postgres import Server
from tests.spark import (
    SparkServer,
    SparkSurvey,
    adapted_policy,
    on_queries,
    open_spark_survey,
    scanned_apart,
    spark_server,
    steps_of,
)
from tests.strategies.data import REPLACEMENTS, Database, Row, databases
from tests.strategies.distance import assert_neighbours, vectors
from tests.strategies.poison import SEED
from tests.strategies.world import Survey, open_survey
from tests.test_neighbours import (
    ASKED,
    CASES,
    CROWD,
    ORDERS,
    UNIT,
    Order,
    accepted,
    greedy,
    is_replaced,
    leaves,
    simple_forms,
)
from tests.test_replay import assert_same_transcripts, some_rows
from tests.waiting import wait_for
from tests.world import WIDE_POLICY

pytestmark = pytest.mark.spark
WIDE = 400
"""More rows and groups than a unit of the crowd has, so no engine leaves any out."""


@pytest.fixture(scope="module")
def server(spark: SparkServer) -> SparkServer:
    return spark


@pytest.fixture(scope="module")
def survey(spark: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSurvey]:
    with open_spark_survey(spark, tmp_path_factory.mktemp("survey"), "add_remove") as opened:
        yield opened


@pytest.fixture(scope="module")
def substituted(spark: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSurvey]:
    with open_spark_survey(spark, tmp_path_factory.mktemp("survey"), "substitute") as opened:
        yield opened


def said(survey: Survey, cases: tuple[str, ...]) -> list[PlannedRelease]:
    """The releases of those queries that are written for Spark."""
    found: list[PlannedRelease] = []
    for sql in cases:
        try:
            found += survey.compile(sql).releases
        except UnsupportedQuery as error:
            assert "where Spark holds the data" in error.message, sql
        except Error:
            continue  # of columns that are not there, or keys that are not enforced
    return found


# Bounds


def one_of_each_form(plans: Iterable[PlannedRelease]) -> list[PlannedRelease]:
    """The first of the plans that bound a unit by the same steps; each plan takes Spark seconds."""
    forms: dict[tuple[str, ...], PlannedRelease] = {}
    for planned in plans:
        forms.setdefault(tuple(name for name, _ in steps_of(planned.sql)[0]), planned)
    return [*forms.values()]


def test_a_greedy_unit(survey: SparkSurvey) -> None:
    plans = said(survey, CASES)
    assert len(plans) > 80
    plans = plans if LONG else one_of_each_form(plans)
    for planned, left, right in zip(plans, *greedy(survey, plans), strict=True):
        assert_neighbours(planned, left, right)


SCANNED = (
    "SELECT day, COUNT(*), SUM(n), COUNT(cost) FROM visits GROUP BY day",
    "SELECT note, COUNT(*), SUM(cost), COUNT(DISTINCT day) FROM visits GROUP BY note",
    "SELECT note, PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY n), MAX(n), AVG(n) FROM visits GROUP BY note",
    "SELECT note, SUM(DISTINCT n), AVG(DISTINCT cost) FILTER (WHERE flag) FROM visits GROUP BY note",
    "SELECT kind, MODE() WITHIN GROUP (ORDER BY flag) FROM visits GROUP BY kind",
    "SELECT drug, COUNT(*), SUM(boxes), SUM(dose), AVG(dose) FROM lines GROUP BY drug",
    "SELECT COUNT(*), SUM(l.boxes) FROM visits v JOIN lines l ON l.visit_id = v.visit_id",
    "SELECT note, COUNT(*) FROM (SELECT pid, note FROM visits UNION ALL SELECT pid, ward FROM stays) t GROUP BY note",
    "SELECT COUNT(*) FROM people p WHERE NOT EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid)",
)


@pytest.mark.parametrize("few", [0, 1])
def test_bounds_hold_whatever_each_scan_finds(survey: SparkSurvey, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """A file may be replaced between two scans of a statement."""
    plans = [planned for sql in SCANNED for planned in survey.compile(sql).releases]
    on_queries(monkeypatch, lambda statement: scanned_apart(statement, few))
    for planned, left, right in zip(plans, *greedy(survey, plans), strict=True):
        assert_neighbours(planned, left, right)


@profile(2)
@given(database=databases(), unit=UNIT, asked=ASKED, order=ORDERS)
def test_a_unit_that_leaves(
    survey: SparkSurvey, database: Database, unit: int, asked: list[tuple[str, QuerySettings]], order: Order
) -> None:
    leaves(survey, accepted(survey, asked), database, unit, order)


@profile(2)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS, asked=ASKED)
def test_a_unit_that_another_replaces(
    substituted: SparkSurvey,
    database: Database,
    unit: int,
    others: tuple[Row, ...],
    asked: list[tuple[str, QuerySettings]],
) -> None:
    is_replaced(substituted, accepted(substituted, asked), database, database.replaced(unit, others))


def test_a_unit_with_many_rows_where_one_is_declared(survey: SparkSurvey) -> None:
    """Spark enforces no key."""
    plans = said(
        survey,
        (
            "SELECT COUNT(*), SUM(age), AVG(weight) FROM people",
            "SELECT sex, COUNT(*), SUM(v.n) FROM people JOIN visits v USING (pid) GROUP BY sex",
        ),
    )
    survey.fill({})
    survey.memory.execute("CREATE OR REPLACE TABLE people AS SELECT * FROM people")  # without its key
    survey.change(
        "INSERT INTO people SELECT 0, 50, ['F', 'M', 'X'][1 + i % 3], 'town', 70, -50, NULL, true, NULL "
        "FROM range(300) t(i); INSERT INTO visits (pid, n) SELECT 0, 9 FROM range(40)"
    )
    left = survey.fetch(plans)
    survey.change("DELETE FROM people; DELETE FROM visits")
    for planned, one, other in zip(plans, left, survey.fetch(plans), strict=True):
        assert vectors(one) != vectors(other), "the unit is there at all"
        assert_neighbours(planned, one, other)


# Values


SAME = (
    "SELECT COUNT(*), SUM(n), AVG(ratio), SUM(cost), AVG(f) FROM visits",
    "SELECT kind, COUNT(*), SUM(n) FROM visits GROUP BY kind",
    "SELECT note, COUNT(*), COUNT(DISTINCT day), SUM(DISTINCT n) FROM visits GROUP BY note",
    "SELECT sex, AVG(weight), COUNT(*) FILTER (WHERE age > 50) FROM people JOIN visits USING (pid) GROUP BY sex",
    "SELECT c, COUNT(*) FROM (SELECT pid, COUNT(*) AS c, SUM(n) AS s FROM visits GROUP BY pid) t GROUP BY c",
    "SELECT COUNT(*) FROM (SELECT pid, AVG(n) AS a, MIN(day) AS b FROM visits GROUP BY pid) t WHERE a > 4 AND b > "
    "DATE '2024-01-02'",
    "SELECT drug, COUNT(*), SUM(boxes) FROM lines GROUP BY drug",
    "SELECT COUNT(*) FROM people p WHERE NOT EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid)",
    "SELECT title, COUNT(*) FROM visits JOIN kinds ON kind = code GROUP BY title",
)


def test_engines_add_up_the_same_integers(
    server: SparkServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form that Spark has gives as many values as in DuckDB, and never fails, over all poison of the crowd."""
    forms: dict[str, list[str]] = {}
    for table, expression, _ in simple_forms():
        forms.setdefault(table, []).append(expression)
    opened = SparkSessions.session

    @contextmanager
    def compiling(*arguments: Any) -> Iterator[Any]:
        """Spark compiles these queries, as servers do by default; the other tests interpret them, which is faster."""
        with opened(*arguments) as session:
            session.conf.set("spark.sql.codegen.wholeStage", "true")
            session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
            yield session

    monkeypatch.setattr(SparkSessions, "session", compiling)
    theirs = open_survey(tmp_path_factory.mktemp("duckdb"), "add_remove", WIDE)
    with open_spark_survey(server, tmp_path_factory.mktemp("wide"), "add_remove", WIDE) as ours:
        can = {
            table: [each for each in listed if said(ours, (f"SELECT COUNT({each}) FROM {table}",))]
            for table, listed in forms.items()
        }
        assert sum(map(len, can.values())) > 100
        asked = [
            f"SELECT {', '.join(f'COUNT({each})' for each in listed[start : start + 12])} FROM {table}"
            for table, listed in can.items()
            for start in range(0, len(listed), 12)
        ]
        for one in (ours, theirs):
            one.fill(CROWD.tables())
        for sql in (*SAME, *asked):
            pairs = zip(ours.compile(sql).releases, theirs.compile(sql).releases, strict=True)
            for mine, other in pairs:
                (here,), (there,) = ours.fetch([mine]), theirs.fetch([other])
                # Units are counted where nobody asks for them by some engines alone.
                assert vectors(here)[1:] == vectors(there)[1:], sql
    theirs.close()


def test_the_owner_counts_the_same(spark_host: SparkHost, clinic_policy: Path, tmp_path: Path) -> None:
    """What `dpsql policy check --exact` tells of each table and of its columns."""
    with spark_host.clinic(clinic_policy.with_name("clinic.duckdb"), tmp_path) as path:
        here, there = (
            [(each.table.name, each.rows, each.units, each.findings) for each in surveyed(policy, open_backend(policy))]
            for policy in map(load_policy, (path, clinic_policy))
        )
    assert here == there and len(here) == 3
    assert {finding.what.partition(" ")[0] for _, _, _, findings in here for finding in findings} >= {"values", "rows"}


# The suites that hold for every engine


@pytest.fixture(scope="module")
def wides(
    wide_policy: Path, spark_host: SparkHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Engine, str]]:
    """The wide world on DuckDB and on Spark, without types that Spark does not have; and its schema there."""
    folders = [tmp_path_factory.mktemp(name) for name in ("duckdb", "spark")]
    file = wide_policy.with_suffix(".duckdb")
    shutil.copy(file, folders[0])
    with spark_host.serve(file) as url, ExitStack() as stack:
        on_spark = adapted_policy(WIDE_POLICY, url)
        schema = url.partition("#")[2]
        on_duckdb = on_spark.replace(f'"{url.partition("#")[0]}"', '"duckdb:///wide.duckdb"').replace(schema, "main")
        engines = []
        for folder, text in zip(folders, (on_duckdb, on_spark), strict=True):
            (folder / "wide.toml").write_text(text, encoding="utf-8")
            engines.append(stack.enter_context(closing_engine(folder / "wide.toml", folder)))
        yield engines[0], engines[1], schema


_WORD = re.compile(r"'[^']*'|([a-z_]\w*|::|[-+*/%<>=!~^&|#@]+)")


def with_new_words(cases: Iterable[Case]) -> list[Case]:
    """The cases with a word that no case before them has: a clause, a function, an operator, a type or a column."""
    found: set[str] = set()
    kept = []
    for case in cases:
        words = {*case.marks, *_WORD.findall(case.sql.lower())}
        if not words <= found:
            kept.append(case)
        found |= words
    return kept


@pytest.mark.parametrize("case", FIXTURES if LONG else with_new_words(FIXTURES), ids=str)
def test_accepted(case: Case, wides: tuple[Engine, Engine, str], no_noise: None) -> None:
    """What Spark answers has the columns, price and cells of DuckDB; the rest is refused by name."""
    there, here, schema = wides
    values = ast.literal_eval(case.marks.get("parameters", "[]"))
    theirs, ours = asking_anew(there), asking_anew(here)
    (statement,) = theirs.parse(case.sql)
    (own,) = ours.parse(case.sql.replace("main.", f"{schema}."))
    try:
        truth = theirs.execute(statement, values)
    except UndefinedColumn:
        return  # a column of a type that Spark does not have
    try:
        found = ours.execute(own, values)
    except UnsupportedQuery as error:
        assert "is not supported where Spark holds the data" in error.message, error
        return
    assert (found.columns, price(found)) == (truth.columns, price(truth))
    assert_same_rows(list(found.rows), list(truth.rows), 1e-14, "ordered" in case.marks)


def no_server() -> AbstractContextManager[Server]:
    raise AssertionError("no attack here is on PostgreSQL")


def test_error_oracle(spark_host: SparkHost, tmp_path: Path) -> None:
    """No function fails over the target's rows alone."""
    with open_arena(tmp_path, no_server, spark=spark_host) as arena:
        found = on_engine(arena, "spark", expressions()[::ONE_OF])
    assert not found.succeeded, found.text


def test_nested_error_oracle(spark_host: SparkHost, tmp_path: Path) -> None:
    """Of expressions within expressions that Spark has, none fails over the target's rows alone."""
    with open_arena(tmp_path, no_server, spark=spark_host) as arena:
        present, absent = (gateway(arena, "spark", there) for there in (True, False))
        asked = [*answerable(present, chain(forms(EVERY), by_chance(SEED, QUESTIONS)))]
        assert sum(len(parts) for _, parts in asked) > 100
        found = Neighbours(users(present), users(absent)).attacked(asked)
    assert not found.succeeded, found.text


def answerable(engine: Engine, questions: Iterable[Question]) -> Iterator[Question]:
    """Questions without the expressions that Spark's dialect refuses; many at once, for each question takes seconds."""
    settings = Settings(engine.policy, engine.policy.roles[0]).query(engine.now(), "ana")
    for shape, parts in questions:
        kept = []
        for part in parts:
            with suppress(Error):
                engine.compile("ana", QueryStatement(shape([part])), settings)
                kept.append(part)
        if kept:
            yield shape, kept


SCRIPT = (
    "SELECT sex, COUNT(*), AVG(age) FROM people GROUP BY sex",
    "SELECT city, COUNT(*) FROM people GROUP BY city ORDER BY 2 DESC, 1 LIMIT 3",
    "SELECT note, flag, SUM(cost) FROM visits GROUP BY note, flag",
    "SELECT PERCENTILE_CONT(ARRAY[0.75, 0.25]) WITHIN GROUP (ORDER BY n) FROM visits",
    "SELECT drug, COUNT(*), SUM(dose) / COUNT(*) FROM lines GROUP BY drug HAVING COUNT(*) > 100",
    "EXPLAIN SELECT note, AVG(cost) FROM visits GROUP BY note",
    "SELECT * FROM kinds ORDER BY code, title",
    "SELECT note FROM visits",
    "SELECT REVERSE(note), COUNT(*) FROM visits GROUP BY 1",
    "SELECT CAST(note AS integer), COUNT(*) FROM visits WHERE 1 / n > 0 GROUP BY 1",
    "SELECT scope, epsilon_spent, epsilon_remaining, delta_remaining, queries, queries_that_fit FROM dpsql.budget",
)


def test_neighbours_have_one_transcript(survey: SparkSurvey, tmp_path: Path) -> None:
    """With frozen outputs, a session tells nothing but what is released."""
    full = some_rows()
    lines = assert_same_transcripts(survey, full.shuffled(1), full.without(0), SCRIPT, tmp_path)
    assert sum(line.startswith("('SELECT") for line in lines) > 6


# Names and texts


@profile(20)
@given(texts=st.lists(TEXTS, min_size=1, max_size=30))
def test_a_text_comes_back_as_it_was(server: SparkServer, texts: list[str]) -> None:
    asked = [*texts, "${spark.app.name}", "${env:PATH}", "\\u0041"]
    quoted = ", ".join(f"{Spark.quote_text(text)} AS c{place}" for place, text in enumerate(asked))
    assert server.run(f"SELECT {quoted}") == [tuple(asked)]


@profile(20)
@given(names=st.lists(NAMES, min_size=1, max_size=10, unique_by=str.casefold), table=NAMES)
def test_a_name_comes_back_as_it_was(server: SparkServer, names: list[str], table: str) -> None:
    made = ", ".join(f"{number} AS {Spark.quote_name(name)}" for number, name in enumerate(names))
    read = ", ".join(Spark().quote_path((table, name)) for name in names)
    with server.session() as session:
        assert session.sql(f"SELECT {read} FROM (SELECT {made}) AS {Spark.quote_name(table)}").columns == names


# What goes wrong


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("spark://db.example.org/spark_catalog", "without a token exact cells would travel unencrypted"),
        ("spark://ana:pw@localhost/spark_catalog", "names a host, a port and a catalog"),
        ("spark://localhost:15002/", "names a host, a port and a catalog"),
        ("spark://localhost:15002/a`b", "names a host, a port and a catalog"),
        ("spark://localhost:x/spark_catalog", "cannot be read"),
        ("spark://localhost/spark_catalog?use_ssl=false", "takes token alone"),
    ],
)
def test_urls_that_are_refused(url: str, what: str) -> None:
    with pytest.raises(InvalidPolicy, match=what):
        SparkSessions(url, "UTC")


POLICY = """
version = 1
[dataset]
name = "small"
url = "{url}"
schema = "small"
privacy_unit = "person"
budget = {{ epsilon = 10, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 10, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-6, max_epsilon = 10 }}
[tables.rows]
unit_key = "id"
max_rows = 1
[tables.rows.columns]
x = {{ type = "integer", lower = 0, upper = 9 }}
"""
AGAIN = ("CREATE SCHEMA IF NOT EXISTS small", "DROP TABLE IF EXISTS small.rows")
MADE = "CREATE TABLE small.rows USING parquet AS SELECT CAST(id AS {id}) AS id, 1 AS x FROM {source}"


def small(server: SparkServer, folder: Path, url: str = "") -> Survey:
    """A table of one person's rows."""
    path = folder / "small.toml"
    path.write_text(POLICY.format(url=url or server.url), encoding="utf-8")
    policy = load_policy(path)
    backend = SparkBackend(policy.dataset.url, policy)
    return Survey(Catalog(policy, backend.schema, policy.roles[0]), backend, duckdb.connect(":memory:"))


def made(server: SparkServer, id: str = "BIGINT", source: str = "range(3)") -> None:
    server.run(*AGAIN, MADE.format(id=id, source=source))


def write_file(server: SparkServer, name: str, rows: str) -> Path:
    """Another program writes a file of the table."""
    file = server.files_of("small", "rows") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    duckdb.sql(f"COPY ({rows}) TO '{file}' (FORMAT parquet)")
    return file


def test_a_server_that_is_not_there(server: SparkServer, tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy, match="the server does not answer"):
        small(server, tmp_path, "spark://localhost:1/spark_catalog")


@pytest.mark.parametrize(
    ("id", "what"),
    [("STRING COLLATE UTF8_LCASE", "compare values differently"), ("DOUBLE", "compare values differently")],
)
def test_keys_that_spark_compares_otherwise(server: SparkServer, tmp_path: Path, id: str, what: str) -> None:
    made(server, id)
    with pytest.raises(InvalidPolicy, match=what):
        small(server, tmp_path)


def test_a_table_that_is_not_there(server: SparkServer, tmp_path: Path) -> None:
    server.run(*AGAIN)
    with pytest.raises(InvalidPolicy, match=r'the database has no table "small\.rows"'):
        small(server, tmp_path)


def test_a_table_that_is_altered(server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a charge it is told; once rows are read it counts as a failure, and no row of another type is read."""
    made(server)
    opened = small(server, tmp_path)
    query = opened.compile("SELECT COUNT(*) FROM rows")
    opened.backend.check(query.releases, (), Cancellation())
    (found,) = opened.fetch(query.releases)
    assert vectors(found)[1] == {(): 3}
    made(server, "STRING COLLATE UTF8_LCASE")
    with pytest.raises(DatabaseUnavailable, match="have changed"):
        opened.backend.check(query.releases, (), Cancellation())
    with pytest.raises(DatabaseUnavailable, match="have changed"):
        opened.backend.probe()
    asked: list[str] = []

    def kept(statement: str) -> str:
        asked.append(statement)
        return statement

    on_queries(monkeypatch, kept)
    with pytest.raises(BackendFailure):
        opened.fetch(query.releases)
    assert server.run(asked[0]) == [(0, 0)]


def test_a_query_that_takes_too_long(server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(server)
    opened = small(server, tmp_path)
    write_file(server, "many.parquet", "SELECT 1::BIGINT AS id, 1 AS x FROM range(100_000_000)")
    monkeypatch.setattr(spark, "STATEMENT_SECONDS", 1.0)
    with pytest.raises(QueryCanceled):
        opened.fetch(opened.compile("SELECT COUNT(*) FROM rows").releases)


def test_a_server_that_stops_answering(server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a query, before one, and when it is asked how it is: each ends, though no call is answered."""
    made(server)
    opened = small(server, tmp_path)
    planned = opened.compile("SELECT COUNT(*) FROM rows").releases
    for name in ("STATEMENT_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(spark, name, 1.0)
    monkeypatch.setattr(spark_sessions, "STOP_SECONDS", 1.0)
    with ExitStack() as stack:

        def stopped(statement: str) -> str:
            stack.enter_context(server.stopped())
            return statement

        with monkeypatch.context() as patch:
            on_queries(patch, stopped)
            with pytest.raises(QueryCanceled):
                opened.fetch(planned)
        with pytest.raises(QueryCanceled):
            opened.fetch(planned)
        with pytest.raises(DatabaseUnavailable):
            opened.backend.probe()
    monkeypatch.undo()  # a server that goes on may take longer than a second
    assert vectors(opened.fetch(planned)[0])[1] == {(): 3}


def test_a_file_that_cannot_be_read_is_a_failure_and_says_nothing(
    server: SparkServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither to the user nor to the log; pyspark would write there what the server says, which may quote a row."""
    made(server)
    opened = small(server, tmp_path)
    planned = opened.compile("SELECT COUNT(*) FROM rows").releases
    for file in server.files_of("small", "rows").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:40] + b"canary")
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    with pytest.raises(BackendFailure) as failed:
        opened.fetch(planned)
    assert str(failed.value) == BackendFailure.SENTENCE
    told = capfd.readouterr()
    assert "parquet" not in told.out + told.err


def test_queries_leave_no_thread_and_no_connection_behind(server: SparkServer, tmp_path: Path) -> None:
    """Neither those that are answered nor those that fail, although garbage is not collected meanwhile."""
    made(server)
    opened = small(server, tmp_path)
    planned = opened.compile("SELECT COUNT(*) FROM rows").releases

    def held() -> tuple[int, int]:
        """Threads, but for those that all queries share, and open files."""
        own = [each for each in threading.enumerate() if not each.name.startswith("dpsql-spark")]
        return len(own), len(os.listdir("/proc/self/fd"))

    def asked(times: int) -> None:
        for _ in range(times):
            opened.backend.check(planned, (), Cancellation())
            opened.fetch(planned)
            broken = write_file(server, "b.parquet", "SELECT 'a' AS id, 1 AS x")
            with pytest.raises(BackendFailure):
                opened.fetch(planned)
            broken.unlink()
        # Sessions are left in the background.
        wait_for(lambda: not any(name in str(threading.enumerate()) for name in ("(_release)", "(_abandon)")))

    gc.disable()
    try:
        asked(4)
        before = held()
        asked(12)
        # One thread or file left by each query would be as many as queries; the client itself may open a few more.
        wait_for(lambda: all(now - then < 12 for now, then in zip(held(), before, strict=True)))
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE VIEW small.rows AS SELECT 1L AS id, 1 AS x", "is a view; reading it could fail"),
        ("CREATE TABLE small.rows USING csv AS SELECT 1L AS id, 1 AS x", "is a table of csv files"),
        ("CREATE TABLE small.rows USING json AS SELECT 1L AS id, 1 AS x", "is a table of json files"),
        (
            "CREATE TABLE small.rows (id TIMESTAMP, x INT) USING parquet LOCATION '{folder}'",
            "in files or folders that Spark may not have written",
        ),
        (
            "CREATE TABLE small.rows (id BIGINT, x INT, y INT) USING parquet PARTITIONED BY (y) LOCATION '{folder}'",
            '"y" of "small.rows" is a column of type int in files or folders',
        ),
        (
            "CREATE TABLE small.rows (id DECIMAL(19, 2), x INT) USING parquet LOCATION '{folder}'",
            r'"id" of "small.rows" is a column of type decimal\(19,2\) in files or folders',
        ),
    ],
)
def test_tables_that_are_refused(server: SparkServer, tmp_path: Path, statement: str, what: str) -> None:
    """What may fail as it is read: SQL, text that is parsed, moments in other units, decimals of more digits."""
    kind = "VIEW" if "VIEW" in statement else "TABLE"
    made(server)
    server.run("DROP TABLE small.rows", statement.format(folder=tmp_path / "files"))
    with pytest.raises(InvalidPolicy, match=what) as refused:
        small(server, tmp_path)
    assert refused.value.hint is not None and "CREATE TABLE small.rows_copy USING parquet AS" in refused.value.hint
    server.run(f"DROP {kind} small.rows")


def test_a_folder_that_is_no_value_fails_once_it_is_read(server: SparkServer, tmp_path: Path) -> None:
    """Planning a query over the table would fail, too, before a charge: names of folders are values."""
    columns = "(id BIGINT, x INT) USING parquet PARTITIONED BY (x)"
    server.run(*AGAIN, f"CREATE TABLE small.rows {columns}", "INSERT INTO small.rows VALUES (1, 1)")
    opened = small(server, tmp_path)
    query = opened.compile("SELECT COUNT(*) FROM rows WHERE x > 0")
    write_file(server, "x=none/0.parquet", "SELECT 7::BIGINT AS id")
    server.run("MSCK REPAIR TABLE small.rows")
    opened.backend.check(query.releases, (), Cancellation())
    with pytest.raises(BackendFailure):
        opened.fetch(query.releases)


def test_a_table_that_cannot_be_resolved(server: SparkServer, tmp_path: Path) -> None:
    """Loading a policy resolves its tables. A table that may not be read fails in the same way."""
    made(server)
    for folder in ("a=1", "b=2"):
        write_file(server, f"{folder}/0.parquet", "SELECT 1::BIGINT AS id, 1 AS x")
    with pytest.raises(InvalidPolicy, match="the tables cannot be read") as refused:
        small(server, tmp_path)
    assert refused.value.hint == "The token's user needs SELECT on the tables of the policy."


def test_a_unit_in_wrong_buckets_is_bounded_once(server: SparkServer, tmp_path: Path) -> None:
    """Spark trusts that a file has the rows of the bucket in its name, unless buckets are turned off."""
    server.run(*AGAIN, "CREATE TABLE small.rows (id BIGINT, x INT) USING parquet CLUSTERED BY (id) INTO 4 BUCKETS")
    for bucket in range(4):
        write_file(server, f"part_{bucket:05}.parquet", "SELECT 7::BIGINT AS id, 1 AS x FROM range(9)")
    opened = small(server, tmp_path)
    assert vectors(opened.fetch(opened.compile("SELECT COUNT(*) FROM rows").releases)[0])[1] == {(): 1}


def test_a_table_that_becomes_a_view(server: SparkServer, tmp_path: Path) -> None:
    made(server)
    opened = small(server, tmp_path)
    query = opened.compile("SELECT COUNT(*) FROM rows")
    server.run("DROP TABLE small.rows", "CREATE VIEW small.rows AS SELECT 1L AS id, 1 AS x")
    with pytest.raises(DatabaseUnavailable, match="have changed"):
        opened.backend.check(query.releases, (), Cancellation())
    with pytest.raises(BackendFailure):
        opened.fetch(query.releases)
    server.run("DROP VIEW small.rows")


def test_what_is_not_read_costs_nothing_and_what_is_read_is_charged(server: SparkServer, tmp_path: Path) -> None:
    """A dropped table is told before the charge, and answered again once it is back. A broken file is charged."""
    made(server)
    small(server, tmp_path)
    with closing_engine(tmp_path / "small.toml", tmp_path) as engine:
        session = Session(engine, "ana")
        session.configure("dpsql.reuse", "off")
        (statement,) = session.parse("SELECT COUNT(*) FROM rows")

        def spent() -> Spent:
            return engine.ledger.budget("ana", engine.policy).spent

        session.execute(statement)
        price = spent()
        server.run("DROP TABLE small.rows")
        with pytest.raises(
            DatabaseUnavailable, match="have changed since the gateway was started; nothing was charged"
        ):
            session.execute(statement)
        assert spent() == price
        made(server)
        session.execute(statement)
        assert spent() == price.merge(price)
        write_file(server, "b.parquet", "SELECT 'a' AS id, 1 AS x")
        with pytest.raises(BackendFailure):
            session.execute(statement)
        assert spent() == price.merge(price).merge(price)


def test_a_server_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has the query, that is a failure over private rows; before, nobody's."""
    with spark_server(tmp_path) as dying:
        made(dying)
        opened = small(dying, tmp_path)
        planned = opened.compile("SELECT COUNT(*) FROM rows").releases

        def killed(statement: str) -> str:
            dying.kill()
            return statement

        on_queries(monkeypatch, killed)
        with pytest.raises(BackendFailure):
            opened.fetch(planned)
        with pytest.raises(DatabaseUnavailable):
            opened.fetch(planned)
        with pytest.raises(DatabaseUnavailable):
            opened.backend.probe()


def test_an_executor_that_is_killed_changes_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark computes anew what was lost, within one charge."""
    settings = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    with spark_server(tmp_path, "local-cluster[2,1,512]", settings) as cluster:
        made(cluster, source="range(300000)")
        opened = small(cluster, tmp_path)
        planned = opened.compile("SELECT COUNT(*), SUM(x) FROM rows").releases
        before = opened.fetch(planned)

        def killing(statement: str) -> str:
            assert cluster.kill_an_executor()
            return statement

        on_queries(monkeypatch, killing)
        (after,) = opened.fetch(planned)
        assert vectors(after) == vectors(before[0])


def test_a_file_that_is_added_is_read(server: SparkServer, tmp_path: Path) -> None:
    """No list of files is remembered: bounds hold whatever a query finds."""
    made(server)
    opened = small(server, tmp_path)
    planned = opened.compile("SELECT COUNT(*) FROM rows").releases
    assert vectors(opened.fetch(planned)[0])[1] == {(): 3}
    server.run(
        "INSERT INTO small.rows SELECT id + 10, 1 FROM range(2)", "INSERT INTO small.rows SELECT 1, 1 FROM range(9)"
    )
    assert vectors(opened.fetch(planned)[0])[1] == {(): 5}


def test_a_file_with_another_schema_is_a_failure(server: SparkServer, tmp_path: Path) -> None:
    made(server)
    opened = small(server, tmp_path)
    planned = opened.compile("SELECT COUNT(*) FROM rows").releases
    write_file(server, "b.parquet", "SELECT 'a' AS id, 1 AS x")
    with pytest.raises(BackendFailure):
        opened.fetch(planned)


def test_the_outline_of_a_catalog(server: SparkServer) -> None:
    made(server)
    server.run("ALTER TABLE small.rows ALTER COLUMN x COMMENT 'how many'")
    found = read_outline(server.url)
    table = found.table(("small", "rows"))
    assert found.url == f"{server.place}?token=${{SPARK_TOKEN}}"
    assert [(each.name, each.type, each.comment) for each in table.columns] == [
        ("id", SqlType.BIGINT, None),
        ("x", SqlType.INTEGER, "how many"),
    ]
    with pytest.raises(InvalidParameter, match="the server does not answer"):
        read_outline("spark://localhost:1/spark_catalog")


@pytest.mark.parametrize("name", ["spark.sql.legacy.sizeOfNull", "spark.sql.ansi.relationPrecedence"])
def test_settings_that_are_not_known(server: SparkServer, name: str) -> None:
    """A server that has other settings by which SQL means something else is not asked anything."""
    with server.session() as session:
        session.conf.set(name, "true")
        with pytest.raises(Unreachable, match=f"the server keeps {name} = true"):
            SparkSessions(server.url, "UTC")._pin(session)


@pytest.mark.parametrize("token", ["", "?token=wrong"])
def test_a_local_server_answers_only_who_has_its_token(server: SparkServer, token: str) -> None:
    """Every user of the machine reaches its port, and who is answered can run code."""
    with (
        pytest.raises(Unreachable, match="not to this token"),
        SparkSessions(server.place + token, "UTC").session(Cancellation(), 60),
    ):
        pass


def test_a_local_server_gets_no_other_variables_than_it_uses(server: SparkServer) -> None:
    found = Path(f"/proc/{server.pid}/environ").read_text(encoding="utf-8").split("\0")
    names = {variable.partition("=")[0] for variable in found}
    assert {"PATH", "SPARK_CONNECT_AUTHENTICATE_TOKEN"} <= names
    assert not {"PYTEST_CURRENT_TEST", "SPARK_TOKEN"} & names
    assert _KEPT.fullmatch("SPARK_TOKEN") is None
    command = Path(f"/proc/{server.pid}/cmdline").read_text(encoding="utf-8")
    assert "SparkConnectServer" in command and server.url.partition("token=")[2] not in command


def test_a_local_server_listens_where_it_was_told(server: SparkServer, tmp_path: Path) -> None:
    """Whoever else has the port must not be told the token. The cause is told, for the log may be removed."""
    port = int(server.place.partition("localhost:")[2].partition("/")[0])
    with pytest.raises(InvalidParameter, match="does not start") as refused, local_server(tmp_path, port):
        pass
    assert refused.value.hint is not None and f"Failed to bind to address /127.0.0.1:{port}" in refused.value.hint


def test_a_token_goes_to_this_machine_or_through_tls() -> None:
    def channel(place: str) -> tuple[str, bool]:
        sessions = SparkSessions(f"spark://{place}/spark_catalog?token=a%3Bb", "UTC")
        built = _Channel(sessions._target)
        assert built.token == "a;b"
        return built.endpoint, built.use_ssl

    assert channel("localhost:5") == ("127.0.0.1:5", False)
    assert channel("127.0.0.1:5") == ("127.0.0.1:5", True)
    assert channel("localhost.example.org:5") == ("localhost.example.org:5", True)
    assert channel("db.example.org") == ("db.example.org:15002", True)


def test_a_setting_that_the_server_does_not_take(server: SparkServer) -> None:
    with pytest.raises(Unreachable), SparkSessions(server.url, "Nowhere/Atall").session(Cancellation(), 60):
        pass
