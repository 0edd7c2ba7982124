"""A Spark Connect server for tests, and the survey in it: the same rows, as Parquet."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
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

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.url = f"spark://localhost:{port}/{CATALOG}"
        self._sessions = SparkSessions(self.url, "UTC")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(SECONDS)

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
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    words = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        _wait(process, port, folder / "server.log")
        yield SparkServer(port, process)
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

    def __init__(self, catalog: Catalog, backend: SparkBackend, folder: Path, server: SparkServer) -> None:
        super().__init__(catalog, backend, duckdb.connect(":memory:"))
        self.memory.execute("SET TimeZone = 'Europe/Berlin'")
        self._folder, self._server = folder, server

    def prepare(self) -> None:
        """Write the rows anew."""
        for table in TABLES:
            write_table(self.memory, table, self._folder)

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


def write_table(connection: duckdb.DuckDBPyConnection, table: str, folder: Path) -> None:
    """A DuckDB table as Parquet, in types that Spark reads."""
    place = folder / table
    place.mkdir(exist_ok=True)
    for file in place.iterdir():
        file.unlink()
    stored = {"HUGEINT": "DECIMAL(38,0)", "UUID": "VARCHAR", "TIME": "VARCHAR"}
    listed = ", ".join(
        f'TRY_CAST("{name}" AS {stored.get(kind, kind)}) AS "{name}"' for name, kind in columns_of(connection, table)
    )
    connection.execute(f"COPY (SELECT {listed} FROM {table}) TO '{place}/0.parquet' (FORMAT parquet)")


def table_of(table: str, columns: Columns, folder: Path) -> str:
    """The statement that makes a Spark table of such files."""
    kinds = {name: _COLLATED.get((table, name), _TYPES.get(kind, kind)) for name, kind in columns}
    listed = ", ".join(f"{Spark.quote_name(name)} {kind}" for name, kind in kinds.items())
    return f"CREATE TABLE main.{table} ({listed}) USING parquet LOCATION '{folder / table}'"


@contextmanager
def open_spark_survey(
    server: SparkServer, folder: Path, adjacency: str, most: int | None = None
) -> Iterator[SparkSurvey]:
    """The survey in Spark, with `most` rows and groups of a unit in place of the policy's."""
    with duckdb.connect(":memory:") as connection:
        create(connection, {})
        tables = [table_of(table, columns_of(connection, table), folder) for table in TABLES]
        for table in TABLES:
            write_table(connection, table, folder)
    server.run("DROP SCHEMA IF EXISTS main CASCADE", "CREATE SCHEMA main", *tables)
    path = policy_file(folder, adjacency, most)
    text = path.read_text(encoding="utf-8").replace('"duckdb:///survey.duckdb"', f'"{server.url}"\nschema = "main"')
    lines = (line for line in text.split("\n") if not line.startswith(tuple(f"{name} = " for name in _NONE)))
    path.write_text("\n".join(lines), encoding="utf-8")
    policy = load_policy(path)
    backend = SparkBackend(server.url, policy)
    survey = SparkSurvey(Catalog(policy, backend.schema, policy.roles[0]), backend, folder, server)
    yield survey
    survey.close()
