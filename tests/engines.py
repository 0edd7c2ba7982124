"""The engines that suites run on: what tests ask of one, in one place. A further one is a class in HOSTS."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb

from tests.copies import copied
from tests.parquet import ParquetPlace, folder_of, parquet_survey
from tests.postgres import Server, clinic_policy_text, served_clinic, url_of
from tests.spark import SparkServer, adapted_policy, open_spark_survey
from tests.spark import served as served_in_spark
from tests.strategies.elephant import open_elephant
from tests.strategies.keys import DuckDBPlace, Place, postgres_place
from tests.strategies.world import Survey, open_survey

Run = Callable[[str], list[tuple[Any, ...]]]
"""Runs SQL of the engine's own and gives its rows."""


class Host(Protocol):
    """Where an engine has the databases of tests; each is there as long as its context lasts."""

    def make(self, *statements: str) -> AbstractContextManager[str]:
        """A database in which statements were run, in the engine's own words; gives its URL."""
        ...

    def serve(self, file: Path) -> AbstractContextManager[str]:
        """The tables of a DuckDB file, in a schema named main; gives the URL of their database."""
        ...

    def clinic(self, file: Path, folder: Path) -> AbstractContextManager[Path]:
        """The demo clinic of a DuckDB file, without wide totals; gives the policy that serves it."""
        ...

    def survey(self, folder: Path, adjacency: str, *, prepared: bool = False) -> AbstractContextManager[Survey]:
        """The survey, for tests to fill, and with bounded copies if `prepared`."""
        ...

    def place(self, folder: Path) -> AbstractContextManager[Place]:
        """A place for tables with keys of every type."""
        ...

    def session(self) -> AbstractContextManager[Run]:
        """A session of the engine's own, in UTC."""
        ...


@contextmanager
def _made_file(*statements: str) -> Iterator[Path]:
    """A DuckDB file in which statements were run."""
    with tempfile.TemporaryDirectory(prefix="dpsql-duckdb-") as folder:
        file = Path(folder, "data.duckdb")
        with duckdb.connect(str(file)) as connection:
            for statement in statements:
                connection.execute(statement)
        yield file


class DuckDBHost:
    """DuckDB, in files."""

    def __init__(self, server: Callable[[], Server]) -> None:
        """Hosts are told how to get a server, which this one needs not."""

    @contextmanager
    def make(self, *statements: str) -> Iterator[str]:
        with _made_file(*statements) as file:
            yield f"duckdb:///{file}"

    @contextmanager
    def serve(self, file: Path) -> Iterator[str]:
        yield f"duckdb:///{file}"

    @contextmanager
    def clinic(self, file: Path, folder: Path) -> Iterator[Path]:
        shutil.copy(file, folder / "clinic.duckdb")
        policy = folder / "clinic.toml"
        policy.write_text(clinic_policy_text(), encoding="utf-8")
        yield policy

    @contextmanager
    def survey(self, folder: Path, adjacency: str, *, prepared: bool = False) -> Iterator[Survey]:
        survey = open_survey(folder, adjacency, prepared=prepared)
        yield survey
        survey.close()

    @contextmanager
    def place(self, folder: Path) -> Iterator[Place]:
        yield DuckDBPlace(folder)

    @contextmanager
    def session(self) -> Iterator[Run]:
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET TimeZone = 'UTC'")
            yield lambda sql: connection.execute(sql).fetchall()


class ParquetHost(DuckDBHost):
    """DuckDB, over folders of Parquet files."""

    @contextmanager
    def make(self, *statements: str) -> Iterator[str]:
        with super().make(*statements) as url, folder_of(Path(url.removeprefix("duckdb:///"))) as made:
            yield made

    @contextmanager
    def serve(self, file: Path) -> Iterator[str]:
        with folder_of(file) as url:
            yield url

    @contextmanager
    def clinic(self, file: Path, folder: Path) -> Iterator[Path]:
        policy = folder / "clinic.toml"
        with folder_of(file) as url:
            shutil.copytree(url.removeprefix("parquet:///"), folder / "clinic")
        text = clinic_policy_text().replace("duckdb:///clinic.duckdb", "parquet:///clinic")
        policy.write_text(text, encoding="utf-8")
        yield policy

    @contextmanager
    def survey(self, folder: Path, adjacency: str, *, prepared: bool = False) -> Iterator[Survey]:
        with parquet_survey(folder, adjacency, prepared=prepared) as survey:
            yield survey

    @contextmanager
    def place(self, folder: Path) -> Iterator[Place]:
        yield ParquetPlace(folder)


class PostgresHost:
    """PostgreSQL, in databases of a server that is started where one is needed."""

    def __init__(self, server: Callable[[], Server]) -> None:
        self._server = server

    @contextmanager
    def make(self, *statements: str) -> Iterator[str]:
        with self._server().database(*statements) as name:
            yield url_of(self._server().url, dbname=name)

    def serve(self, file: Path) -> AbstractContextManager[str]:
        return copied(file, self._server())

    def clinic(self, file: Path, folder: Path) -> AbstractContextManager[Path]:
        return served_clinic(self._server(), file, folder)

    def survey(self, folder: Path, adjacency: str, *, prepared: bool = False) -> AbstractContextManager[Survey]:
        return open_elephant(self._server(), folder, adjacency, prepared=prepared)

    def place(self, folder: Path) -> AbstractContextManager[Place]:
        return postgres_place(self._server())

    @contextmanager
    def session(self) -> Iterator[Run]:
        with self._server().connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            yield lambda sql: connection.execute(sql.encode()).fetchall()


class SparkHost:
    """Spark, in schemas of a server; a url has the schema behind #."""

    def __init__(self, server: Callable[[], SparkServer]) -> None:
        self._server = server

    @contextmanager
    def make(self, *statements: str) -> Iterator[str]:
        with _made_file(*statements) as file, self.serve(file) as made:
            yield made

    def serve(self, file: Path) -> AbstractContextManager[str]:
        return served_in_spark(file, self._server())

    @contextmanager
    def clinic(self, file: Path, folder: Path) -> Iterator[Path]:
        policy = folder / "clinic.toml"
        with self.serve(file) as url:
            policy.write_text(adapted_policy(clinic_policy_text(), url), encoding="utf-8")
            yield policy

    def survey(self, folder: Path, adjacency: str) -> AbstractContextManager[Survey]:
        return open_spark_survey(self._server(), folder, adjacency)


HOSTS: Final[Mapping[str, Callable[[Callable[[], Server]], Host]]] = {
    "duckdb": DuckDBHost,
    "parquet": ParquetHost,
    "postgresql": PostgresHost,
}
"""By the engine's name; each is given what starts a server. Spark takes a second for each query: the part
of the suites that tests/test_spark.py has runs on it."""
