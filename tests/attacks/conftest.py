"""The arena, short games."""

from collections.abc import Iterator

import pytest

from tests.attacks.arena import Arena, open_arena


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """For all attacks: each opens what it needs, with new users."""
    with open_arena(tmp_path_factory.mktemp("arena")) as opened:
        yield opened
