"""Record and replay: what a client is sent over one database, and over its neighbour with the same noisy cells given.

A first run is answered with noise. The second run reads its own rows, but where the mechanisms would have added noise
to them it is given the cells of the first. Both runs then differ in nothing but rows, so whatever else a client is sent
may not differ either; and what the noise was added to may differ by no more than the noise was made for.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from dpsql.backends import Backend, ExactCells
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.gateway import reading
from dpsql.gateway.engine import Engine
from dpsql.gateway.release import ReleasedCells, release
from dpsql.ledger import SqliteLedger
from dpsql.policy import Policy
from dpsql.privacy.cost import Adjacency
from dpsql.wire.databases import Databases
from dpsql.wire.gateway_sessions import Gateway
from dpsql.wire.messages.frontend import Bind, Close, Describe, Execute, FrontendMessage, Parse, Query, Sync
from dpsql.wire.protocol import ServerProtocol, State
from dpsql.wire.session import WireSession
from tests.strategies.distance import TooFar, assert_neighbours

T = TypeVar("T")

Step = tuple[FrontendMessage, ...]
"""Messages that are sent at once; what is answered to them is compared as a whole."""

Release = Callable[[PlannedRelease, ExactCells], ReleasedCells]

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def simple(sql: str) -> Step:
    """A text by the simple protocol."""
    return (Query(sql.encode()),)


def extended(sql: str, values: Sequence[object] = (), *, binary: bool = False) -> Step:
    """One statement by the extended protocol, described before and after its values are bound."""
    given = tuple(None if value is None else str(value).encode() for value in values)
    return (
        Parse(b"", sql.encode()),
        Describe(b"S", b""),
        Bind(b"", b"", (), given, (1,) if binary else ()),
        Describe(b"P", b""),
        Execute(b""),
        Close(b"P", b""),
        Sync(),
    )


class _Client:
    """A client in memory, and the session that answers it."""

    def __init__(self, gateway: Gateway, database: str) -> None:
        self._written = bytearray()
        self._protocol = ServerProtocol()
        self._protocol.state = State.READY
        self._wire = WireSession(self._protocol, gateway.session("ana", database), self)

    async def write(self, data: bytes) -> None:
        self._written += data

    async def call(self, function: Callable[[], T]) -> T:
        return function()

    async def answers(self, script: Sequence[Step]) -> list[bytes]:
        """The bytes that answer each step."""
        found = []
        for step in script:
            self._protocol.receive_data(b"".join(message.encode() for message in step))
            while (event := self._protocol.next_event()) is not None:
                await self._wire.handle(event)
            found.append(bytes(self._written))
            self._written.clear()
        return found


class Recording:
    """What went into the noise of one run, and what came out; a replay takes it away again."""

    def __init__(self, adjacency: Adjacency) -> None:
        self._adjacency = adjacency
        self._made: dict[str, deque[tuple[ExactCells, ReleasedCells]]] = defaultdict(deque)
        self._faults: list[TooFar] = []

    def record(self, planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
        """Release with noise, and remember it."""
        cells = release(planned, exact)
        self._made[planned.key].append((exact, cells))
        return cells

    def replay(self, planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
        """Give what was recorded, whatever there is now."""
        release(planned, exact)  # if this fails on these rows, the replay fails as well
        before, cells = self._made[planned.key].popleft()
        try:
            assert_neighbours(planned, before, exact, self._adjacency)
        except TooFar as fault:
            self._faults.append(fault)  # raised here it would be taken for a failure of the engine
        return cells

    def check(self) -> None:
        """All that was made on one side was made on the other, and no input of noise has moved too far."""
        for fault in self._faults:
            raise fault
        assert not any(self._made.values()), "a release was made on one side alone"


Fill = Callable[[], None]
"""Puts one side's rows where the engine reads them."""

Talk = Callable[[Gateway, str, Sequence[Step]], list[bytes]]
"""Has ana say a script to a gateway's database; gives the bytes that answer each step."""


def in_memory(gateway: Gateway, database: str, script: Sequence[Step]) -> list[bytes]:
    """Without a socket, and logged in already."""
    return asyncio.run(_Client(gateway, database).answers(script))


class Neighbours:
    """A policy over two databases, or over one that is filled anew.

    Args:
        policy: What both are read under.
        folder: Where ledgers go.
        sides: For each database a backend, and what fills it.
    """

    def __init__(self, policy: Policy, folder: Path, *sides: tuple[Backend, Fill]) -> None:
        self._policy = policy
        self._folder = folder
        self._sides = sides
        self._numbers = count()

    def replayed(self, script: Sequence[Step], talk: Talk = in_memory) -> list[bytes]:
        """Run a script on both sides; return what each step was answered.

        Raises:
            AssertionError: The answers differ in a byte.
            TooFar: What noise was added to differs by more than it may.
        """
        recording = Recording(self._policy.dataset.adjacency)
        first, second = self._sides
        here = self._run(first, recording.record, script, talk)
        there = self._run(second, recording.replay, script, talk)
        for step, mine, yours in zip(script, here, there, strict=True):
            assert mine == yours, step
        recording.check()
        return here

    def _run(self, side: tuple[Backend, Fill], released: Release, script: Sequence[Step], talk: Talk) -> list[bytes]:
        backend, fill = side
        fill()
        ledger = SqliteLedger(self._folder / f"ledger{next(self._numbers)}.sqlite", clock=lambda: NOW)
        with closing(ledger), pytest.MonkeyPatch.context() as patch:
            ledger.add_account("ana", self._policy.roles[0].name)
            patch.setattr(reading, "release", released)
            patch.setattr(Engine, "now", lambda _: NOW)
            patch.setattr(backend, "close", lambda: None)  # it is needed again
            name = self._policy.dataset.name
            databases = Databases({name: Engine(self._policy, ledger, backend)})
            try:
                return talk(Gateway(databases), name, script)
            finally:
                databases.close()
