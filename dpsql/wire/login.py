"""From the first byte to AuthenticationOk: encryption, the startup packet, SCRAM.

Rule 1: whether a user exists shows in nothing that is sent: an unknown one gets the same exchange, with a decoy.
Rule 2: nothing about databases is said before authentication.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dpsql.errors import AuthenticationFailed, InvalidParameter, UnsupportedQuery
from dpsql.wire.backend import (
    AuthenticationOk,
    AuthenticationSASL,
    AuthenticationSASLContinue,
    AuthenticationSASLFinal,
    NegotiateProtocolVersion,
)
from dpsql.wire.connection import Connection
from dpsql.wire.frontend import (
    CancelRequest,
    GSSENCRequest,
    SASLInitialResponse,
    SASLResponse,
    SSLRequest,
    StartupMessage,
)
from dpsql.wire.guesses import Guesses
from dpsql.wire.scram import ScramServer, Verifier, make_decoy
from dpsql.wire.tls import ServerTls

_VERSION: Final = 3 << 16
_OPTION_PREFIX: Final = "_pq_."
_UTF8: Final = frozenset({"utf8", "unicode"})
_FALSE: Final = frozenset({"", "0", "f", "false", "n", "no", "off"})
_ENCODING: Final = "client_encoding"


@dataclass(frozen=True, slots=True)
class Gate:
    """What logging in depends on.

    Attributes:
        lookup: Returns a user's verifier, or None.
        tls: The TLS to offer, or None.
        require_tls: Refuse users who come in the clear.
        decoy_secret: What the decoys of unknown users are derived from.
        guesses: How long a failure waits before it is told.
    """

    lookup: Callable[[str], Awaitable[str | None]]
    tls: ServerTls | None
    require_tls: bool
    decoy_secret: bytes
    guesses: Guesses


@dataclass(frozen=True, slots=True)
class Login:
    """A user who has proved to be who they say, and what they asked for.

    Attributes:
        user: The user.
        database: The database; the user's name if none was given, as in PostgreSQL.
        settings: Settings of the startup packet, those of `options` first.
    """

    user: str
    database: str
    settings: tuple[tuple[str, str], ...]


async def log_in(connection: Connection, gate: Gate) -> Login | CancelRequest:
    """Return who has logged in, or the cancel request that came instead.

    Raises:
        AuthenticationFailed: If the password is wrong, the user unknown, or TLS missing where it is required.
        TooManyConnections: If too many failures from the client's address are still to be told.
        ProtocolViolation: If the client's messages are not a login.
        InvalidParameter: If the client asks for another encoding than UTF-8, or for options that are not settings.
        UnsupportedQuery: If the client asks for another protocol, or for replication.
    """
    message = await connection.next_event()
    while isinstance(message, SSLRequest | GSSENCRequest):
        wanted = gate.tls if isinstance(message, SSLRequest) else None
        await connection.answer_encryption(wanted)
        message = await connection.next_event()
    if isinstance(message, CancelRequest):
        return message
    assert isinstance(message, StartupMessage)  # noqa: S101  (the protocol lets nothing else through)
    login = await _read_startup(connection, message)
    if gate.require_tls and not connection.encrypted:
        raise AuthenticationFailed("this gateway requires TLS", hint="Connect with sslmode=require.")
    await _authenticate(connection, gate, login.user)
    return login


async def _read_startup(connection: Connection, startup: StartupMessage) -> Login:
    if startup.major != 3:
        raise UnsupportedQuery(
            f"unsupported frontend protocol {startup.major}.{startup.minor}: server supports 3.0 to 3.0"
        )
    unrecognized = tuple(name for name, _ in startup.parameters if name.startswith(_OPTION_PREFIX))
    if startup.minor or unrecognized:
        await connection.send(NegotiateProtocolVersion(_VERSION, unrecognized))
    given = dict(startup.parameters)
    user = given.pop("user", "")
    if not user:
        raise AuthenticationFailed("no PostgreSQL user name specified in startup packet")
    database = given.pop("database", "") or user
    if given.pop("replication", "").lower() not in _FALSE:
        raise UnsupportedQuery("replication is not supported")
    settings = [*parse_options(given.pop("options", "")), *given.items()]
    for name, value in settings:
        if name.lower() == _ENCODING:
            check_encoding(value)
    kept = [pair for pair in settings if pair[0].lower() != _ENCODING and not pair[0].startswith(_OPTION_PREFIX)]
    return Login(user, database, tuple(kept))


async def _authenticate(connection: Connection, gate: Gate, user: str) -> None:
    text = await gate.lookup(user)
    verifier = make_decoy(user, gate.decoy_secret) if text is None else Verifier.parse(text)
    scram = ScramServer(verifier, genuine=text is not None, channel_binding=connection.channel_binding)
    try:
        await connection.send(AuthenticationSASL(scram.mechanisms))
        initial = await connection.next_event()
        assert isinstance(initial, SASLInitialResponse)  # noqa: S101
        await connection.send(AuthenticationSASLContinue(scram.challenge(initial.mechanism, initial.data or b"")))
        response = await connection.next_event()
        assert isinstance(response, SASLResponse)  # noqa: S101
        gate.guesses.check(connection.address)  # of many that wait with their proofs, too, only so many are judged
        proof = scram.verify(response.data)
    except AuthenticationFailed as failure:
        with gate.guesses.failed(user, connection.address) as seconds:
            await asyncio.sleep(seconds)
        raise AuthenticationFailed(f'{failure.message} for user "{user}"', detail=failure.detail) from None
    await connection.send(AuthenticationSASLFinal(proof), AuthenticationOk())


def check_encoding(name: str) -> None:
    """Refuse a client encoding other than UTF-8, of which clients have several spellings.

    Raises:
        InvalidParameter: If it is another one.
    """
    if re.sub(r"[^a-z0-9]", "", name.lower()) not in _UTF8:
        raise InvalidParameter(f'invalid value for parameter "client_encoding": "{name}"', hint="Use UTF8.")


def parse_options(options: str) -> tuple[tuple[str, str], ...]:
    """Return the settings of a startup packet's `options`: -c name=value, -cname=value, --name=value.

    Raises:
        InvalidParameter: If it has anything else.
    """
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\s\\])+", options)]
    settings = []
    rest = iter(words)
    for word in rest:
        if word.startswith("-c"):
            pair = word[2:] or next(rest, "")
        elif word.startswith("--"):
            pair = word[2:]
        else:
            raise InvalidParameter(f"invalid command-line argument for server process: {word}")
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidParameter(f"option {word} requires name=value", hint="Write -c name=value.")
        # Both spellings of a name reach PostgreSQL with underscores.
        settings.append((name.replace("-", "_"), value))
    return tuple(settings)
