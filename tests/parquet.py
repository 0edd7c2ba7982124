"""The tables of DuckDB databases as folders of Parquet files."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from dpsql.backends import DuckDBBackend, prepare_tables
from dpsql.backends.duckdb_prepared import prepared_file
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.scope.tables import Catalog
from dpsql.policy import Policy, load_policy
from dpsql.policy.engines import PARQUET
from tests.strategies.keys import IN_PARQUET, DuckDBPlace
from tests.strategies.world import POLICY, TABLES, Survey, create


def write_folder(database: duckdb.DuckDBPyConnection, folder: Path, schema: str = "main") -> None:
    """Write each table of a schema to a file of its name, in the place of those that were there."""
    folder.mkdir(exist_ok=True)
    found = "SELECT table_name FROM duckdb_tables() WHERE schema_name = $1 AND NOT internal"
    for (table,) in database.execute(found, [schema]).fetchall():
        target = DuckDB.quote_text(str(folder / f"{table}.parquet"))
        database.execute(f"COPY {DuckDB().quote_path((schema, table))} TO {target} (FORMAT parquet)")


def url_of(folder: Path) -> str:
    """The URL of a folder."""
    return f"{PARQUET.start}{folder}"


@contextmanager
def folder_of(file: Path) -> Iterator[str]:
    """A folder with the tables of a DuckDB file; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="dpsql-parquet-") as made:
        # DuckDB opens a file once in a process, or always with the same configuration.
        with duckdb.connect(shutil.copy(file, Path(made) / "copied.duckdb"), read_only=True) as database:
            write_folder(database, Path(made) / "tables")
        yield url_of(Path(made) / "tables")


class ParquetPlace(DuckDBPlace):
    """A folder with what a DuckDB file has in its schema named keys."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder / "keys"
        self.url = url_of(self._folder)
        self.kinds = IN_PARQUET

    def run(self, *statements: str) -> None:
        """Run statements, and write the tables anew."""
        super().run(*statements)
        with duckdb.connect(str(self._file)) as connection:
            write_folder(connection, self._folder, "keys")


class ParquetSurvey(Survey):
    """The policy over a folder, to which the rows in memory are written."""

    def __init__(self, policy: Policy, folder: Path, memory: duckdb.DuckDBPyConnection, *, prepared: bool) -> None:
        self._policy, self._folder, self._prepared = policy, folder, prepared
        write_folder(memory, folder)
        backend = self._opened()
        super().__init__(Catalog(policy, backend.schema, policy.roles[0]), backend, memory)

    def prepare(self) -> None:
        """Write the rows, and read them from there."""
        self.backend.close()
        for table in TABLES:
            (self._folder / f"{table}.parquet").unlink()
        write_folder(self.memory, self._folder)
        self.backend = self._opened()

    def run(self, sql: str) -> None:
        """Run a statement of the owner's on the bounded copies, which nobody reads meanwhile."""
        self.backend.close()
        copies = DuckDB.quote_text(str(prepared_file(str(self._folder), self._policy)))
        try:
            with duckdb.connect() as database:
                database.execute(f'ATTACH {copies} AS "dpsql.prepared.{self._policy.dataset.name}"')
                database.execute(sql)
        finally:
            self.backend = DuckDBBackend(str(self._folder), self._policy)

    def _opened(self) -> DuckDBBackend:
        if self._prepared:
            prepare_tables(self._policy)
        return DuckDBBackend(str(self._folder), self._policy)


@contextmanager
def parquet_survey(folder: Path, adjacency: str, *, prepared: bool = False) -> Iterator[ParquetSurvey]:
    """The survey in a folder of Parquet files."""
    path = folder / f"{adjacency}.toml"
    text = POLICY.format(file="", adjacency=adjacency).replace("duckdb:///", url_of(folder / "survey"))
    path.write_text(text, encoding="utf-8")
    with duckdb.connect(":memory:") as memory:
        memory.execute("SET TimeZone = 'Europe/Berlin'")
        create(memory, {})
        survey = ParquetSurvey(load_policy(path), folder / "survey", memory, prepared=prepared)
        yield survey
        survey.close()
