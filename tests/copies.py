"""DuckDB files as PostgreSQL databases: the same tables, keys and rows, whatever is in them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from dpsql.compiler.dialects.postgres import Postgres
from tests.postgres import Server, url_of

_TYPES = {"DOUBLE": "double precision", "FLOAT": "real", "VARCHAR": "text"}


@contextmanager
def copied(file: Path, server: Server) -> Iterator[str]:
    """A database with what a DuckDB file has in its schema main; gives its url."""
    with server.database() as name:
        copy_tables(file, server, name)
        yield url_of(server.url, dbname=name)


def copy_tables(file: Path, server: Server, database: str) -> None:
    """Copy the tables of a DuckDB file."""
    # DuckDB opens a file once in a process, or always with the same configuration.
    own = shutil.copy(file, file.with_name(f"{database}.duckdb"))
    with duckdb.connect(own, read_only=True) as source, server.connect(database) as target:
        source.execute("SET TimeZone = 'UTC'")
        target.execute("SET TimeZone = 'UTC'")
        target.execute("CREATE SCHEMA main")
        target.execute("SET search_path = main")
        for (table,) in source.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            target.execute(
                f"CREATE TABLE {Postgres.quote_name(table)} ({', '.join(_definitions(source, table))})".encode()
            )
            rows = source.execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {Postgres.quote_name(table)}").fetchall()
            with (
                target.cursor() as cursor,
                cursor.copy(f"COPY {Postgres.quote_name(table)} FROM STDIN".encode()) as copy,
            ):
                for row in rows:
                    copy.write_row([text and text.replace("\0", "\1") for text in row])  # PostgreSQL has no NUL
        target.execute("ANALYZE")


def _definitions(source: duckdb.DuckDBPyConnection, table: str) -> Iterator[str]:
    columns = source.execute(
        "SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE table_name = $1", [table]
    ).fetchall()
    for name, data_type, nullable in columns:
        kind = _TYPES.get(data_type, data_type.replace("DECIMAL", "numeric"))
        yield f"{Postgres.quote_name(name)} {kind}{'' if nullable else ' NOT NULL'}"
    keys = source.execute(
        "SELECT constraint_type, constraint_column_names FROM duckdb_constraints() WHERE table_name = $1 "
        "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
        [table],
    ).fetchall()
    for kind, names in keys:
        yield f"{kind} ({', '.join(map(Postgres.quote_name, names))})"
