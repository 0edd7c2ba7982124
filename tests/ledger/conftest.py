from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dpsql.ledger import SqliteLedger
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.postgres import PostgresLedger
from dpsql.ledger.schema import DERIVED_TABLES, VERSION
from tests.ledger.world import Clock, Place, new_ledger, opened, peopled, tamper
from tests.postgres import Server, url_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def kept_ledgers(postgres_server: Server) -> Iterator[list[str]]:
    """The URLs of two databases with ledgers, which no test alters but by restoring it."""
    with ExitStack() as stack:
        names = [stack.enter_context(postgres_server.database()) for _ in range(2)]
        urls = [url_of(postgres_server.url, dbname=name) for name in names]
        for url in urls:
            PostgresLedger(url).close()
        yield urls


@pytest.fixture
def postgres_ledgers(kept_ledgers: list[str]) -> list[str]:
    """The URLs of two databases with empty ledgers: to empty one is quicker than to make one."""
    tables = ("layout", "records", "payloads", "verifiers", *DERIVED_TABLES)
    for url in kept_ledgers:
        tamper(
            url,
            "BEGIN",
            "SET LOCAL session_replication_role = replica",
            *(f"DELETE FROM {table}" for table in tables),
            "INSERT INTO totals VALUES (0)",
            f"INSERT INTO layout VALUES ({VERSION})",
            "COMMIT",
        )
    return kept_ledgers


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> list[Place]:
    """Where two ledgers can be made: twice a file, or twice a database."""
    if request.param == "postgres":
        return list(request.getfixturevalue("postgres_ledgers"))
    return [tmp_path / "ledger.sqlite", tmp_path / "small.sqlite"]


@pytest.fixture
def place(places: list[Place]) -> Place:
    """Where the ledger is."""
    return places[0]


@pytest.fixture
def ledger(place: Place, clock: Clock) -> Iterator[Ledger]:
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
