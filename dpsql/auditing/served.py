"""served: one of the audit's databases on a server, during the audit."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import duckdb
import psycopg
from psycopg.conninfo import conninfo_to_dict

from dpsql.auditing.neighbours import Database, Datasets, NotAuditable
from dpsql.backends import Cancellation
from dpsql.backends.backend import Unreachable
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.dialects.spark import Spark
from dpsql.errors import InvalidPolicy
from dpsql.policy.engines import SPARK, engine_of

if TYPE_CHECKING:
    from dpsql.backends.spark_sessions import Session

_CHUNK = 1 << 20
_SECONDS = 3600.0
"""How long Spark may take to make the tables of a database, or to drop them."""


def served(datasets: Datasets, file: Path, server: str) -> AbstractContextManager[Database]:
    """Copy a database from its file to a new one on a server, which is dropped at the end.

    Args:
        datasets: The policy under audit.
        file: The DuckDB file.
        server: The URL of a role that may create databases on PostgreSQL, or schemas on Spark.

    Raises:
        NotAuditable: The server cannot be reached, or refuses it.
    """
    return (_in_spark if engine_of(server) is SPARK else _in_postgres)(datasets, file, server)


def _refused(what: str, hint: str) -> NotAuditable:
    return NotAuditable(f"databases cannot be made on the server: {what}", hint=hint)


# PostgreSQL


@contextmanager
def _in_postgres(datasets: Datasets, file: Path, server: str) -> Iterator[Database]:
    name = f"{file.parent.name}-{file.stem}"
    try:
        with psycopg.connect(server, autocommit=True) as owner:
            owner.execute(f"CREATE DATABASE {Postgres.quote_name(name)} TEMPLATE template0 ENCODING 'UTF8'".encode())
            try:
                known = {key: str(value) for key, value in conninfo_to_dict(server).items() if value is not None}
                url = f"postgresql://?{urlencode(known | {'dbname': name})}"
                _fill(datasets, file, url)
                yield Database(url)
            finally:
                owner.execute(f"DROP DATABASE {Postgres.quote_name(name)} WITH (FORCE)".encode())
    except psycopg.Error as error:
        hint = "--server is the URL of a role with the right CREATEDB, on a PostgreSQL server of tests."
        raise _refused(str(error).splitlines()[0], hint) from None


def _fill(datasets: Datasets, file: Path, url: str) -> None:
    rows = file.with_suffix(".csv")
    with duckdb.connect(str(file), read_only=True) as source, psycopg.connect(url, autocommit=True) as target:
        source.execute("SET TimeZone = 'UTC'")
        target.execute("SET TimeZone = 'UTC'")
        for table in datasets.policy.tables:
            for statement in datasets.definition(table):
                target.execute(statement.encode())
            path = datasets.path_of(table)
            source.execute(f"COPY {path} TO {DuckDB.quote_text(str(rows))} (HEADER false, NULLSTR '\\N')")
            taken = f"COPY {path} FROM STDIN (FORMAT csv, NULL '\\N')".encode()
            with rows.open("rb") as read, target.cursor() as cursor, cursor.copy(taken) as copy:
                while chunk := read.read(_CHUNK):
                    copy.write(chunk)
        rows.unlink()
        target.execute("ANALYZE")


# Spark


@contextmanager
def _in_spark(datasets: Datasets, file: Path, server: str) -> Iterator[Database]:
    """New schemas are the database, because a catalog has its name from the server's configuration."""
    name = f"{file.parent.name}_{file.stem}".replace("-", "_")
    own = sorted(set(map(datasets.schema_of, datasets.policy.tables)))
    schemas = {schema: f"{name}_{number}" for number, schema in enumerate(own)}
    made: list[str] = []

    def make(session: "Session", catalog: str) -> None:
        places = {schema: f"{catalog}.{new}" for schema, new in schemas.items()}
        for place in places.values():
            session.sql(f"CREATE SCHEMA {place}").collect()
            made.append(place)
        _write(session, datasets, file, places)

    def drop(session: "Session", _: str) -> None:
        for place in made:
            session.sql(f"DROP SCHEMA {place} CASCADE").collect()

    try:
        _run(server, make)
        yield Database(server, schemas)
    finally:
        _run(server, drop)


def _run(server: str, action: Callable[["Session", str], object]) -> None:
    """Do something in a session with the gateway's settings; the action gets the session and the catalog's name."""
    from dpsql.backends.spark_sessions import FAILURES, SparkSessions

    hint = "--server is the URL of a Spark server of tests, whose token may create schemas and tables."
    try:
        sessions = SparkSessions(server, "UTC")
        with sessions.session(Cancellation(), _SECONDS) as session:
            action(session, Spark.quote_name(sessions.catalog))
    except Unreachable as error:
        raise _refused(error.what, hint) from None
    except InvalidPolicy as error:
        raise _refused(error.message.removeprefix("dataset.url: "), hint) from None
    except FAILURES as error:
        raise _refused(type(error).__name__, hint) from None


def _write(session: "Session", datasets: Datasets, file: Path, places: Mapping[str, str]) -> None:
    """Have Spark write the tables of a file to schemas; it manages them, so each type can be read from them."""
    with duckdb.connect(str(file), read_only=True) as source:
        source.execute("SET TimeZone = 'UTC'")
        for table in datasets.policy.tables:
            rows = source.sql(f"SELECT * FROM {datasets.path_of(table)}").to_arrow_table()
            session.createDataFrame(rows).createOrReplaceTempView("rows")
            columns = []
            for column, sql_type in datasets.columns(table).items():
                quoted, target = Spark.quote_name(column), Spark.types.get(sql_type)
                columns.append(f"CAST({quoted} AS {target}) AS {quoted}" if target is not None else quoted)
            made = f"{places[datasets.schema_of(table)]}.{Spark.quote_name(table.relation)}"
            session.sql(f"CREATE TABLE {made} USING parquet AS SELECT {', '.join(columns)} FROM rows").collect()
