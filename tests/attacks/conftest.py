"""The arena, short games."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.attacks.arena import Arena, open_arena
from tests.postgres import Server


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[Arena]:
    """For all attacks: each opens what it needs, with new users."""
    with open_arena(tmp_path_factory.mktemp("arena"), lambda: nullcontext(postgres_server)) as opened:
        yield opened
