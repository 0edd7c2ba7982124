from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.ledger import SqliteLedger
from tests.ledger.world import Clock, new_ledger


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[SqliteLedger]:
    made = new_ledger(tmp_path / "ledger.sqlite", clock)
    yield made
    made.close()
