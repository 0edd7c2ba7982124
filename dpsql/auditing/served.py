"""served: one of the audit's databases on a PostgreSQL server, during the audit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import duckdb
import psycopg
from psycopg.conninfo import conninfo_to_dict

from dpsql.auditing.neighbours import Datasets, NotAuditable
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.dialects.postgres import Postgres

_CHUNK = 1 << 20


@contextmanager
def served(datasets: Datasets, file: Path, server: str) -> Iterator[str]:
    """Copy a database from its file to a new one on a server, which is dropped at the end; yields its URL.

    Args:
        datasets: The policy under audit.
        file: The DuckDB file.
        server: The URL of a role that may create databases.

    Raises:
        NotAuditable: The server cannot be reached, or refuses it.
    """
    name = f"{file.parent.name}-{file.stem}"
    try:
        with psycopg.connect(server, autocommit=True) as owner:
            owner.execute(f"CREATE DATABASE {Postgres.quote_name(name)} TEMPLATE template0 ENCODING 'UTF8'".encode())
            try:
                known = {key: str(value) for key, value in conninfo_to_dict(server).items() if value is not None}
                url = f"postgresql://?{urlencode(known | {'dbname': name})}"
                _fill(datasets, file, url)
                yield url
            finally:
                owner.execute(f"DROP DATABASE {Postgres.quote_name(name)} WITH (FORCE)".encode())
    except psycopg.Error as error:
        told = str(error).splitlines()[0]
        hint = "--server is the URL of a role with the right CREATEDB, on a PostgreSQL server of tests."
        raise NotAuditable(f"databases cannot be made on the server: {told}", hint=hint) from None


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
