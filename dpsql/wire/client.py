"""The client as a session sees it: where to write, and a thread that may block."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Disconnected(Exception):
    """The client has disconnected."""


class Client(Protocol):
    """A client that is logged in."""

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the client reads slower than we write; raise Disconnected if it is gone."""

    async def call(self, function: Callable[[], T]) -> T:
        """Return what a blocking function returns, called in another thread."""
