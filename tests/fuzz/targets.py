"""What is fuzzed: functions of any bytes that raise nothing, whatever the bytes are.

A typed refusal is an answer like any other. What is not one goes up and is a finding: an exception of any other kind,
the gateway's sentence for its own bugs, a guarantee that does not match, an engine that fails on rows.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from dpsql.compiler.plan.compile import compile_query, describe_query
from dpsql.compiler.sql.parse import parse, parse_catalog_query, parse_query
from dpsql.compiler.sql.statements import (
    CopyStatement,
    DeclareStatement,
    ExplainStatement,
    PrepareStatement,
    QueryStatement,
)
from dpsql.compiler.sql.statements import Statement as ParsedStatement
from dpsql.errors import BackendFailure, Error, GuaranteeMismatch, InvalidPolicy, ProtocolViolation
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from dpsql.wire.client import Disconnected
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.client_register import LocalRegister
from dpsql.wire.connection import ClientConnection
from dpsql.wire.login import Gate, log_in
from dpsql.wire.messages.backend import BackendMessage, ErrorResponse
from dpsql.wire.messages.frontend import CancelRequest, Terminate
from dpsql.wire.protocol import ServerProtocol, State
from dpsql.wire.report import BUG_SENTENCE
from dpsql.wire.scram import make_verifier
from dpsql.wire.session import WireSession
from tests.compiler.plans import Planner
from tests.wire.replies import read_replies

T = TypeVar("T")

Target = Callable[[bytes], None]

FINDINGS: Final = (GuaranteeMismatch, BackendFailure)
"""Typed errors that no text of a client may lead to."""
UNEXPECTED: Final = "this query shape is not supported"
"""What the compiler says of trees that none of its rules expected: closed, but a rule is missing."""
_STATES: Final = frozenset(error.sqlstate for error in FINDINGS)
_VERIFIER: Final = make_verifier("secret", b"0123456789abcdef")


class Finding(AssertionError):
    """Something that no input may lead to."""


# Parse and compile


def queries_of(statement: ParsedStatement) -> list[QueryStatement]:
    """The queries in a statement."""
    if isinstance(statement, QueryStatement):
        return [statement]
    if isinstance(statement, ExplainStatement | DeclareStatement | CopyStatement | PrepareStatement):
        return [statement.query]
    return []


def compiler(*planners: Planner) -> Target:
    """Text of any kind, parsed and compiled for each engine; nothing is read."""
    settings = {planner: planner.settings() for planner in planners}

    def compiled(data: bytes) -> None:
        # Half a character cannot come over the wire, but from Python.
        text = data.decode("utf-8", "surrogateescape")
        try:
            statements = parse(text)
        except Error as error:
            _check(error)
            return
        queries = [query for statement in statements for query in queries_of(statement)]
        for planner, query in itertools.product(planners, queries):
            try:
                describe_query(query, planner.catalog, planner.constants)
                compile_query(query, planner.catalog, settings[planner], planner.constants)
            except Error as error:
                _check(error)

    return compiled


def _check(error: Error) -> None:
    if isinstance(error, FINDINGS) or error.message == UNEXPECTED:
        raise Finding(str(error)) from error


# Parse, within bounded time

PARSE_SECONDS: Final = 5.0
"""Processor time of one text in all ways of parsing; what people write takes some milliseconds."""


def parsing() -> Target:
    """Text of any kind, parsed as every way of the gateway parses it: the time is bounded, whatever the text."""

    def parsed(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        begun = time.process_time()
        for read in (parse, parse_catalog_query, lambda text: parse_query(QueryStatement(text))):
            try:
                read(text)
            except Error as error:
                _check(error)
        if (taken := time.process_time() - begun) > PARSE_SECONDS:
            raise Finding(f"parsing took {taken:.1f} s of processor time")

    return parsed


# The policy


def policy_loader(folder: Path) -> Target:
    """A policy file of any content."""
    path = folder / "policy.toml"

    def loaded(data: bytes) -> None:
        path.write_bytes(data)
        try:
            load_policy(path)
        except InvalidPolicy as error:
            if not error.message:
                raise Finding("an error without words") from error

    return loaded


# The wire


class _Socket(asyncio.Transport):
    """The kernel's side of a connection: what is written is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        """Nothing is open."""

    def pause_reading(self) -> None:
        """Whoever feeds the connection asks for its room."""

    def resume_reading(self) -> None:
        """The same."""


def stranger() -> Target:
    """Bytes of somebody who knows no password: nobody is let in."""

    async def lookup(user: str) -> str | None:
        return _VERIFIER if user == "ana" else None

    async def converse(data: bytes) -> None:
        connection = ClientConnection(ServerProtocol(), 5, lambda _: None)
        gate = Gate(lookup, None, False, b"decoy", LocalRegister(ClientLimits(failure_delay=0)))
        connection.connection_made(_Socket())
        login = asyncio.create_task(log_in(connection, gate))
        while data and not login.done():
            room = connection.get_buffer(-1)
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            for _ in range(20):  # its turn to answer
                await asyncio.sleep(0)
        connection.connection_lost(None)
        try:
            found = await login
        except (Error, Disconnected):
            return
        if not isinstance(found, CancelRequest):
            raise Finding(f"{found} was let in")

    return lambda data: asyncio.run(converse(data))


class _Client:
    """A client in memory."""

    def __init__(self) -> None:
        self.written = bytearray()

    async def write(self, data: bytes) -> None:
        self.written += data

    async def call(self, function: Callable[[], T]) -> T:
        return function()


def analyst(open_session: Callable[[], Session]) -> Target:
    """Bytes of somebody who has logged in: each session is a new one."""

    async def converse(data: bytes) -> None:
        protocol, client = ServerProtocol(), _Client()
        protocol.state = State.READY
        wire = WireSession(protocol, open_session(), client, max_names=20)
        try:
            for at in range(0, len(data), 4096):
                protocol.receive_data(data[at : at + 4096])
                while (event := protocol.next_event()) is not None:
                    if isinstance(event, Terminate):
                        break
                    await wire.handle(event)
        except ProtocolViolation:
            if protocol.state is not State.REFUSED:
                raise
        check_replies(read_replies(bytes(client.written)))

    return lambda data: asyncio.run(converse(data))


def check_replies(replies: list[BackendMessage]) -> None:
    """No reply tells of a bug.

    Raises:
        Finding: One does.
    """
    for reply in replies:
        if isinstance(reply, ErrorResponse) and (reply.sqlstate in _STATES or reply.message == BUG_SENTENCE):
            raise Finding(f"{reply.sqlstate}: {reply.message}")
