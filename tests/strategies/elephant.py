"""The survey in PostgreSQL: the same tables, policy and rows, but for values that PostgreSQL has no place for."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import psycopg

from dpsql.backends import Cancellation, ExactCells, PostgresBackend, PublicRows, prepare_copies
from dpsql.compiler.catalog import Catalog
from dpsql.compiler.compile import compile_query
from dpsql.compiler.planned import CompiledQuery, PlannedRelease
from dpsql.compiler.settings import QuerySettings
from dpsql.compiler.statements import QueryStatement
from dpsql.policy import load_policy
from tests.postgres import Connection, Server, url_of
from tests.strategies.world import CONSTANTS, POLICY, SETTINGS, TABLES, Rows, any_rows, create

_TYPES = {"DOUBLE": "float8", "HUGEINT": "numeric(39)", "FLOAT": "float4", " COLLATE NOCASE": ""}


class Elephant:
    """The policy over a database whose rows a test changes at will."""

    def __init__(self, catalog: Catalog, backend: PostgresBackend, connection: Connection) -> None:
        self.catalog = catalog
        self.backend = backend
        self._connection = connection
        self._memory = duckdb.connect(":memory:")
        self._memory.execute("SET TimeZone = 'Europe/Berlin'")

    def compile(self, sql: str, settings: QuerySettings = SETTINGS) -> CompiledQuery:
        """Plan a query; raises the typed refusal."""
        return compile_query(QueryStatement(sql), self.catalog, settings, CONSTANTS)

    def fill(self, rows: Rows) -> None:
        """Let the tables hold these rows and no others."""
        create(self._memory, rows)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for table in TABLES:
                found = self._memory.execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {table}").fetchall()
                cursor.execute(f"TRUNCATE main.{table}".encode())
                with cursor.copy(f"COPY main.{table} FROM STDIN".encode()) as copy:
                    for row in found:
                        copy.write_row([None if text is None else _storable(text) for text in row])
        if self.catalog.schema.copies:
            self.backend.prepare(None)

    def run(self, sql: str) -> None:
        """Run a statement of the owner's."""
        self._connection.execute(sql.encode())

    def fetch(self, releases: Iterable[PlannedRelease]) -> list[ExactCells]:
        """The exact, bounded cells of releases, whatever the releases that they read gave."""
        planned = dict(enumerate(releases))
        inputs = {index: tuple(map(any_rows, release.inputs)) for index, release in planned.items()}
        storable = {index: tuple(map(_storable_rows, given)) for index, given in inputs.items()}
        exact = self.backend.fetch(planned, (), Cancellation(), storable)
        return [exact.releases[index] for index in range(len(exact.releases))]


def _storable(text: str) -> str:
    """A value that PostgreSQL can hold; what it cannot is the first or last of those it can."""
    text = text.replace("\x00", "\x01")
    if " (BC)" in text:
        return "4713-06-01 00:00:00 BC"
    return "5874897-12-31" if text.startswith("5881580-") else text


def _storable_rows(rows: PublicRows) -> PublicRows:
    columns = ([None if text is None else _storable(text) for text in column] for column in rows.columns)
    return PublicRows(tuple(np.array(column, dtype=object) for column in columns), rows.count)


@contextmanager
def open_elephant(server: Server, folder: Path, adjacency: str, *, prepared: bool = False) -> Iterator[Elephant]:
    """The survey in a database of its own, and with bounded copies if `prepared`."""
    statements = ["CREATE SCHEMA main"]
    for table, columns in TABLES.items():
        for ours, theirs in _TYPES.items():
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
            prepare_copies(policy)
        backend = PostgresBackend(url, policy)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET TimeZone = 'Europe/Berlin'")
            yield Elephant(Catalog(policy, backend.schema, policy.roles[0]), backend, connection)
        backend.close()
