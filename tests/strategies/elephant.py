"""The survey in PostgreSQL: the same tables, policy and rows, but for values that PostgreSQL has no place for."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import psycopg

from dpsql.backends import PublicRows, prepare_tables
from dpsql.backends.postgres import PostgresBackend
from dpsql.compiler.plan.query_plan import PlannedInput, PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.policy import load_policy
from tests.postgres import LOOSE, Connection, Server, url_of
from tests.strategies.world import POLICY, TABLES, Survey, any_rows

_TYPES = {"DOUBLE": "float8", "HUGEINT": "numeric(39)", "FLOAT": "float4"}


class Elephant(Survey):
    """The policy over a PostgreSQL database that holds the rows of the database in memory."""

    def __init__(self, catalog: Catalog, backend: PostgresBackend, connection: Connection) -> None:
        super().__init__(catalog, backend, duckdb.connect(":memory:"))
        self.memory.execute("SET TimeZone = 'Europe/Berlin'")
        self._backend, self._connection = backend, connection

    def prepare(self) -> None:
        """Send the rows to the server, and have it make the bounded copies."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for table in TABLES:
                found = self.memory.execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {table}").fetchall()
                cursor.execute(f"TRUNCATE main.{table}".encode())
                with cursor.copy(f"COPY main.{table} FROM STDIN".encode()) as copy:
                    for row in found:
                        copy.write_row([None if text is None else _storable(text) for text in row])
        if self.catalog.schema.copies:
            self._backend.prepare(None)

    def run(self, sql: str) -> None:
        """Run a statement of the owner's."""
        self._connection.execute(sql.encode())

    def reason(self, release: PlannedRelease) -> str:
        """The SQL that fails."""
        return release.sql

    def rows_for(self, made: PlannedInput) -> PublicRows:
        """Rows that a release may find where it reads another, as PostgreSQL can hold them."""
        rows = any_rows(made)
        columns = ([None if text is None else _storable(text) for text in column] for column in rows.columns)
        return PublicRows(tuple(np.array(column, dtype=object) for column in columns), rows.count)


def _storable(text: str) -> str:
    """A value that PostgreSQL can hold; what it cannot is the first or last of those it can."""
    text = text.replace("\x00", "\x01")
    if " (BC)" in text:
        return "4713-06-01 00:00:00 BC"
    return "5874897-12-31" if text.startswith("5881580-") else text


@contextmanager
def open_elephant(server: Server, folder: Path, adjacency: str, *, prepared: bool = False) -> Iterator[Elephant]:
    """The survey in a database of its own, and with bounded copies if `prepared`."""
    statements, types = ["CREATE SCHEMA main"], _TYPES | {" COLLATE NOCASE": ""}
    if server.has_icu:
        statements.append(LOOSE.format("main.loose"))
        types[" COLLATE NOCASE"] = " COLLATE main.loose"
    if server.has_citext:
        statements.append("CREATE EXTENSION citext SCHEMA public")
        types["level VARCHAR"] = "level citext"
    for table, columns in TABLES.items():
        for ours, theirs in types.items():
            columns = columns.replace(ours, theirs)
        statements.append(f"CREATE TABLE main.{table} ({columns})")
    with server.database(*statements) as name:
        path = folder / f"{adjacency}.toml"
        url = url_of(server.url, dbname=name)
        schemas = 'schema = "main"' + ('\nprepared_schema = "copies"' if prepared else "")
        text = POLICY.format(file="", adjacency=adjacency).replace('"duckdb:///"', f'"{url}"\n{schemas}')
        path.write_text(text, encoding="utf-8")
        policy = load_policy(path)
        if prepared:
            prepare_tables(policy)
        backend = PostgresBackend(url, policy)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET TimeZone = 'Europe/Berlin'; SET search_path = copies")
            survey = Elephant(Catalog(policy, backend.schema, policy.roles[0]), backend, connection)
            yield survey
            survey.close()
