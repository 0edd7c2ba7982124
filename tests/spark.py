"""A Spark Connect server for tests, and DuckDB's tables in it: the same rows, as Parquet."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from dpsql.backends import Backend, Cancellation, open_backend
from dpsql.cli.clinic_spark import LocalServer, check_tools, local_server
from dpsql.compiler.dialects.spark import Spark
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import NotSupportedError
from dpsql.policy import load_policy
from tests.strategies.world import TABLES, Survey, create, policy_file

if TYPE_CHECKING:  # the client takes a second to import, and most tests need none
    from dpsql.backends.spark_sessions import Session

SECONDS: Final = 300
_TYPES: Final = {
    "INTEGER": "INT",
    "VARCHAR": "STRING",
    "HUGEINT": "DECIMAL(38,0)",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_LTZ",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    **dict.fromkeys(("UUID", "TIME", "INTERVAL"), "STRING"),
}
"""Spark's names of DuckDB's types, where they differ; STRING if Spark does not have the type."""
_COLLATED: Final = {("stays", "ward"): "STRING COLLATE UTF8_LCASE"}
_MISSING: Final = re.compile(r'^\w+ = \{ type = "(?:time|uuid|interval)".*\n', re.MULTILINE)
"""Columns of a policy whose types Spark does not have."""
_STORED: Final = {"HUGEINT": "DECIMAL(38,0)", **dict.fromkeys(("UUID", "TIME", "INTERVAL"), "VARCHAR")}
"""The types in which DuckDB writes columns to Parquet, where Spark could not read them otherwise."""

_QUICK: Final = {
    "spark.sql.adaptive.enabled": "false",
    # Compiling a query takes much longer than interpreting it for a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class SparkServer:
    """A local server with two workers."""

    def __init__(self, server: LocalServer, folder: Path) -> None:
        self._process = server.process
        self._folder = folder
        self._names = count()
        self.url = server.url
        self.place = server.place
        self.pid = server.process.pid

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(SECONDS)

    def kill_an_executor(self) -> bool:
        """Kill an executor of a cluster on this machine; return whether there was one."""
        told = ["ps", "-o", "pid=", "--ppid", str(self._process.pid)]
        found = subprocess.run(told, capture_output=True, text=True, check=False).stdout.split()
        for pid in found[:1]:
            os.kill(int(pid), signal.SIGKILL)
        return bool(found)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The server is there, but does not answer."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def schema(self) -> Iterator[str]:
        """A schema of its own."""
        name = f"made{next(self._names)}"
        self.run(f"CREATE SCHEMA {name}")
        yield name
        self.run(f"DROP SCHEMA {name} CASCADE")

    def files_of(self, schema: str, table: str) -> Path:
        """Where the files are of a table that Spark manages."""
        return self._folder / "warehouse" / f"{schema}.db" / table.lower()

    @contextmanager
    def session(self) -> Iterator["Session"]:
        """A session of the gateway's own settings, in UTC."""
        from dpsql.backends.spark_sessions import SparkSessions

        with SparkSessions(self.url, "UTC").session(Cancellation(), SECONDS) as session:
            yield session

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, and give the rows of the last."""
        with self.session() as session:
            found: list[tuple[Any, ...]] = []
            for statement in statements:
                found = [tuple(row) for row in session.sql(statement).collect()]
            return found


def needs_java() -> None:
    """Skip the test if Java is missing, which pip does not bring."""
    try:
        check_tools()
    except NotSupportedError as error:
        pytest.skip(error.message)


@contextmanager
def spark_server(folder: Path, master: str = "local[2]", settings: Mapping[str, str] = _QUICK) -> Iterator[SparkServer]:
    """A server that runs as long as the context lasts."""
    needs_java()
    with local_server(folder, master=master, settings=settings) as server:
        yield SparkServer(server, folder)


class SparkSurvey(Survey):
    """The policy over tables of Parquet that hold the rows of the database in memory."""

    def __init__(self, catalog: Catalog, backend: Backend, schema: str, server: SparkServer) -> None:
        super().__init__(catalog, backend, duckdb.connect(":memory:"))
        self.memory.execute("SET TimeZone = 'Europe/Berlin'")
        self._schema, self._server = schema, server

    def prepare(self) -> None:
        """Write the rows anew."""
        for table in TABLES:
            write_rows(self.memory, table, self._server.files_of(self._schema, table))

    def run(self, sql: str) -> None:
        """Run a statement of the owner's."""
        self._server.run(sql)

    def reason(self, release: PlannedRelease) -> str:
        """The engine's own words for why it fails, and its SQL."""
        return release.sql


Columns = list[tuple[str, str]]


def adapted_policy(text: str, url: str) -> str:
    """A policy over tables in the schema that a url ends in; without columns of types that Spark has not."""
    place, _, schema = url.partition("#")
    text = re.sub(r"^schema = .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^url = .*$", f'url = "{place}"\nschema = "{schema}"', text, flags=re.MULTILINE)
    return _MISSING.sub("", text)


@contextmanager
def served(file: Path, server: SparkServer) -> Iterator[str]:
    """The tables of a DuckDB file, in a schema of their own; gives the url with the schema behind #."""
    with tempfile.TemporaryDirectory(prefix="dpsql-spark-") as folder, server.schema() as schema:
        # DuckDB opens a file once in a process, or always with the same configuration.
        own = shutil.copy(file, folder)
        with duckdb.connect(own, read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            tables = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
            write_tables(connection, tables, server, schema)
        yield f"{server.url}#{schema}"


def columns_of(connection: duckdb.DuckDBPyConnection, table: str) -> Columns:
    """Names and types of a DuckDB table's columns."""
    listed = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = $1 ORDER BY column_index"
    return connection.execute(listed, [table]).fetchall()


def write_rows(connection: duckdb.DuckDBPyConnection, table: str, place: Path) -> None:
    """The rows of a DuckDB table in place of those of a Spark table, in types that Spark reads."""
    place.mkdir(parents=True, exist_ok=True)
    for file in place.iterdir():
        file.unlink()
    listed = ", ".join(
        f'TRY_CAST("{name}" AS {_STORED.get(kind, kind)}) AS "{name}"' for name, kind in columns_of(connection, table)
    )
    connection.execute(f"COPY (SELECT {listed} FROM {table}) TO '{place}/0.parquet' (FORMAT parquet)")


def write_tables(
    connection: duckdb.DuckDBPyConnection, tables: Iterable[str], server: SparkServer, schema: str
) -> None:
    """Make tables of DuckDB's in Spark, with their rows."""
    made = []
    for table in tables:
        kinds = {
            name: _COLLATED.get((table, name), _TYPES.get(kind, kind)) for name, kind in columns_of(connection, table)
        }
        listed = ", ".join(f"{Spark.quote_name(name)} {kind}" for name, kind in kinds.items())
        made.append(f"CREATE TABLE {schema}.{table} ({listed}) USING parquet")
    server.run(*made)
    for table in tables:
        write_rows(connection, table, server.files_of(schema, table))


@contextmanager
def open_spark_survey(
    server: SparkServer, folder: Path, adjacency: str, most: int | None = None
) -> Iterator[SparkSurvey]:
    """The survey in Spark, with `most` rows and groups of a unit in place of the policy's."""
    with server.schema() as schema:
        with duckdb.connect(":memory:") as connection:
            create(connection, {})
            write_tables(connection, TABLES, server, schema)
        path = policy_file(folder, adjacency, most)
        path.write_text(adapted_policy(path.read_text(encoding="utf-8"), f"{server.url}#{schema}"), encoding="utf-8")
        policy = load_policy(path)
        backend = open_backend(policy)
        survey = SparkSurvey(Catalog(policy, backend.schema, policy.roles[0]), backend, schema, server)
        yield survey
        survey.close()


def on_queries(patch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Change queries over tables just before the server gets them; what describes tables stays as it is."""
    from pyspark.sql.connect.session import SparkSession

    asked = SparkSession.sql

    def changed(session: SparkSession, statement: str, *arguments: Any, **options: Any) -> Any:
        statement = change(statement) if statement.startswith("WITH ") else statement
        return asked(session, statement, *arguments, **options)

    patch.setattr(SparkSession, "sql", changed)


# Scans that find different rows

_MENTION: Final = re.compile(r"\b(FROM|JOIN) (`[^`]+`|\w+)( AS \w+)?")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|`[^`]*`|[()]")


def scanned_apart(statement: str, few: int) -> str:
    """A statement in which every mention of a table is a scan of its own; each second one finds few rows.

    Spark writes a step out wherever it is named, so here the steps are written out, too. `few` is the first scan that
    finds few rows: 0 or 1.
    """
    (*named, (_, asked)), chosen = steps_of(statement)
    tables = dict(named)
    steps, answer = steps_of(asked)
    numbers = count()

    def scan(source: str) -> str:
        number = next(numbers)
        share = 1 if number % 2 == few else 6
        return f"SELECT * FROM ({source}) AS s WHERE pmod(xxhash64({number}, *), 7) < {share}"

    def written(text: str, known: int) -> str:
        """Text in which the tables, and the first steps, are written out."""
        bodies = dict(steps[:known])
        places = {name: place for place, (name, _) in enumerate(steps[:known])}

        def body(mention: re.Match[str]) -> str:
            word, name, alias = mention.groups()
            if name in bodies:
                return f"{word} ({written(bodies[name], places[name])}){alias or f' AS {name}'}"
            return f"{word} ({scan(tables[name])}){alias or f' AS {name}'}" if name in tables else mention[0]

        return _MENTION.sub(body, text)

    return f"WITH answer AS ({written(answer, len(steps))}) {chosen}"


def steps_of(sql: str) -> tuple[list[tuple[str, str]], str]:
    """The names and bodies of a statement's CTEs, and what is behind them."""
    steps, text = [], sql
    while text.startswith(("WITH ", ", ")):
        name, _, behind = text.removeprefix("WITH ").removeprefix(", ").partition(" AS (")
        depth = 1
        for found in _QUOTED.finditer(behind):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if depth == 0:
                steps.append((name, behind[: found.start()]))
                text = behind[found.end() :]
                break
    return steps, text.strip()
