"""A Spark Connect server for tests, and the survey in it: the same rows, as Parquet."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

import duckdb

from dpsql.backends import Cancellation
from dpsql.backends.spark import SparkBackend
from dpsql.backends.spark_sessions import Session, SparkSessions
from dpsql.compiler.dialects.spark import Spark
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.policy import load_policy
from tests.strategies.world import TABLES, Survey, create, policy_file

CATALOG: Final = "spark_catalog"
SECONDS: Final = 300
_TYPES: Final = {
    "INTEGER": "INT",
    "VARCHAR": "STRING",
    "HUGEINT": "DECIMAL(38,0)",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_LTZ",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    "UUID": "STRING",
    "TIME": "STRING",
}
"""Spark's types, by those of DuckDB that it calls otherwise or has not."""
_COLLATED: Final = {("stays", "ward"): "STRING COLLATE UTF8_LCASE"}
_NONE: Final = ("tag", "clock")
"""Columns of the policy whose types Spark has not."""


class SparkServer:
    """A local server with two workers."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._names = count()
        self.url = f"spark://localhost:{port}/{CATALOG}"
        self._sessions = SparkSessions(self.url, "UTC")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(SECONDS)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It is there, and answers nothing."""
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
    def session(self) -> Iterator[Session]:
        """A session of the gateway's own settings, in UTC."""
        with self._sessions.session(Cancellation(), SECONDS) as session:
            yield session

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, and give the rows of the last."""
        with self.session() as session:
            found: list[tuple[Any, ...]] = []
            for statement in statements:
                found = [tuple(row) for row in session.sql(statement).collect()]
            return found


@contextmanager
def spark_server(folder: Path) -> Iterator[SparkServer]:
    """A server that runs as long as the context lasts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise RuntimeError("pip install 'pyspark[connect]'")
    home = Path(found.origin).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    words = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        _wait(process, port, folder / "server.log")
        yield SparkServer(port, process, folder)
    finally:
        process.terminate()
        process.wait(SECONDS)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until something listens, or the server ends."""
    for _ in range(SECONDS * 10):
        if process.poll() is not None:
            raise RuntimeError(log.read_text(encoding="utf-8")[-2000:])
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the Spark Connect server does not start")


class SparkSurvey(Survey):
    """The policy over tables of Parquet that hold the rows of the database in memory."""

    def __init__(self, catalog: Catalog, backend: SparkBackend, schema: str, server: SparkServer) -> None:
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


def columns_of(connection: duckdb.DuckDBPyConnection, table: str) -> Columns:
    """Names and types of a DuckDB table's columns."""
    listed = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = $1 ORDER BY column_index"
    return connection.execute(listed, [table]).fetchall()


def write_rows(connection: duckdb.DuckDBPyConnection, table: str, place: Path) -> None:
    """The rows of a DuckDB table in place of those of a Spark table, in types that Spark reads."""
    place.mkdir(parents=True, exist_ok=True)
    for file in place.iterdir():
        file.unlink()
    stored = {"HUGEINT": "DECIMAL(38,0)", "UUID": "VARCHAR", "TIME": "VARCHAR"}
    listed = ", ".join(
        f'TRY_CAST("{name}" AS {stored.get(kind, kind)}) AS "{name}"' for name, kind in columns_of(connection, table)
    )
    connection.execute(f"COPY (SELECT {listed} FROM {table}) TO '{place}/0.parquet' (FORMAT parquet)")


def write_tables(
    connection: duckdb.DuckDBPyConnection, tables: Iterable[str], server: SparkServer, schema: str
) -> None:
    """Make tables of DuckDB's in Spark, with their rows."""
    made = []
    for table in tables:
        kinds = {name: _COLLATED.get((table, name), _TYPES.get(kind, kind)) for name, kind in columns_of(connection, table)}
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
        url = f'"{server.url}"\nschema = "{schema}"'
        text = path.read_text(encoding="utf-8").replace('"duckdb:///survey.duckdb"', url)
        lines = (line for line in text.split("\n") if not line.startswith(tuple(f"{name} = " for name in _NONE)))
        path.write_text("\n".join(lines), encoding="utf-8")
        policy = load_policy(path)
        backend = SparkBackend(server.url, policy)
        survey = SparkSurvey(Catalog(policy, backend.schema, policy.roles[0]), backend, schema, server)
        yield survey
        survey.close()
