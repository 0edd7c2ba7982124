from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.ledger import SqliteLedger
from dpsql.ledger.stored import StoredLedger
from tests.ledger.world import Clock, Place, new_ledger, opened, peopled


@pytest.fixture
def clock() -> Clock:
    return Clock()


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
