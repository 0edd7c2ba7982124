from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dpsql.ledger import SqliteLedger
from dpsql.ledger.stored import StoredLedger
from tests.ledger.world import Clock, Place, new_ledger, opened, peopled
from tests.postgres import Server, url_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def ledger_databases(postgres_server: Server) -> Iterator[list[str]]:
    """Two databases for ledgers."""
    with ExitStack() as stack:
        yield [stack.enter_context(postgres_server.database()) for _ in range(2)]


@pytest.fixture
def postgres_places(postgres_server: Server, ledger_databases: list[str]) -> list[str]:
    """The URLs of two databases without a ledger."""
    for name in ledger_databases:
        postgres_server.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            "DROP SCHEMA IF EXISTS dpsql_ledger CASCADE",
            database=name,
        )
    return [url_of(postgres_server.url, dbname=name) for name in ledger_databases]


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> list[Place]:
    """Where two ledgers can be made: twice a file, or twice a database."""
    if request.param == "postgres":
        return list(request.getfixturevalue("postgres_places"))
    return [tmp_path / "ledger.sqlite", tmp_path / "small.sqlite"]


@pytest.fixture
def place(places: list[Place]) -> Place:
    """Where the ledger is."""
    return places[0]


@pytest.fixture
def ledger(place: Place, clock: Clock) -> Iterator[StoredLedger]:
    """A ledger of either kind."""
    made = peopled(opened(place, clock))
    yield made
    made.close()


@pytest.fixture
def sqlite_ledger(tmp_path: Path, clock: Clock) -> Iterator[SqliteLedger]:
    """A ledger in a file."""
    made = new_ledger(tmp_path / "ledger.sqlite", clock)
    yield made
    made.close()
