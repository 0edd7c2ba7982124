"""From the first byte to AuthenticationOk: encryption, the startup packet, SCRAM.

Rule 1: no message reveals whether a user exists: an unknown user gets the same exchange, with a decoy verifier.
Rule 2: nothing about databases is sent before authentication.
"""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from dpsql.errors import AuthenticationFailed, InvalidParameter, TooManyConnections, UnsupportedQuery
from dpsql.wire.client_register import ClientRegister, FailedGuess
from dpsql.wire.connection import ClientConnection
from dpsql.wire.messages.backend import (
    AuthenticationOk,
    AuthenticationSASL,
    AuthenticationSASLContinue,
    AuthenticationSASLFinal,
    NegotiateProtocolVersion,
)
from dpsql.wire.messages.frontend import (
    CancelRequest,
    GSSENCRequest,
    SASLInitialResponse,
    SASLResponse,
    SSLRequest,
    StartupMessage,
)
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
        register: Judges passwords, and says how long a failure waits before it is told.
    """

    lookup: Callable[[str], Awaitable[str | None]]
    tls: ServerTls | None
    require_tls: bool
    decoy_secret: bytes
    register: ClientRegister


@dataclass(frozen=True, slots=True)
class Login:
    """A user who has proved to be who they say, and what they asked for.

    Attributes:
        user: The user.
        database: The database; the user's name if none was given, as in PostgreSQL.
        settings: Settings of the startup packet, those of `options` first.
        verifier: What the proof was judged by.
    """

    user: str
    database: str
    settings: tuple[tuple[str, str], ...]
    verifier: str | None = field(default=None, repr=False)


async def log_in(connection: ClientConnection, gate: Gate) -> Login | CancelRequest:
    """Return who has logged in, or the cancel request that came instead.

    Raises:
        AuthenticationFailed: If the password is wrong, the user unknown, or TLS missing where it is required.
        TooManyConnections: If too many failures of this user from this address are still to be told.
        ProtocolViolation: If the client's messages are not a login.
        InvalidParameter: If the client asks for another encoding than UTF-8, or for options that are not settings.
        UnsupportedQuery: If the client asks for another protocol, or for replication.
    """
    message = await greet(connection, gate.tls)
    if isinstance(message, CancelRequest):
        return message
    login = await _read_startup(connection, message)
    if gate.require_tls and not connection.encrypted:
        raise AuthenticationFailed("this gateway requires TLS", hint="Connect with sslmode=require.")
    gate.register.check(login.user, connection.address)
    return replace(login, verifier=await _authenticate(connection, gate, login.user))


async def greet(connection: ClientConnection, tls: ServerTls | None) -> StartupMessage | CancelRequest:
    """Return the first message after encryption was agreed on: before it, clients believe no error."""
    message = await connection.next_event()
    while isinstance(message, SSLRequest | GSSENCRequest):
        await connection.answer_encryption(tls if isinstance(message, SSLRequest) else None)
        message = await connection.next_event()
    assert isinstance(message, StartupMessage | CancelRequest)  # noqa: S101  (the protocol lets nothing else through)
    return message


async def _read_startup(connection: ClientConnection, startup: StartupMessage) -> Login:
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


async def _authenticate(connection: ClientConnection, gate: Gate, user: str) -> str | None:
    text = await gate.lookup(user)
    verifier = make_decoy(user, gate.decoy_secret) if text is None else Verifier.parse(text)
    scram = ScramServer(verifier, genuine=text is not None, channel_binding=connection.channel_binding)
    proof = await _exchange(connection, gate.register, user, scram)
    if isinstance(proof, FailedGuess):
        connection.held = True
        await gate.register.wait(proof)
        raise AuthenticationFailed(f'{proof.error.message} for user "{user}"', detail=proof.error.detail)
    await connection.send(AuthenticationSASLFinal(proof), AuthenticationOk())
    return text


async def _exchange(
    connection: ClientConnection, register: ClientRegister, user: str, scram: ScramServer
) -> bytes | FailedGuess:
    await connection.send(AuthenticationSASL(scram.mechanisms))
    initial = await connection.next_event()
    assert isinstance(initial, SASLInitialResponse)  # noqa: S101
    try:
        challenge = scram.challenge(initial.mechanism, initial.data or b"")
    except AuthenticationFailed as error:
        return register.fail(user, connection.address, error)
    await connection.send(AuthenticationSASLContinue(challenge))
    response = await connection.next_event()
    assert isinstance(response, SASLResponse)  # noqa: S101
    # Of many that wait with their proofs, too, only so many are judged.
    return register.judge(user, connection.address, partial(scram.verify, response.data))


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


_HINT = "Try again in a moment."


class Lobby:
    """Places for clients that log in: a bounded number, half of it from one address.

    Rule 1: a newcomer takes the place of the client that has been silent longest, so that who holds places without
        logging in keeps nobody out.
    Rule 2: a failed login keeps its place until it is answered: to come again does not shorten the wait.

    Args:
        places: How many there are.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._inside: dict[ClientConnection, None] = {}

    def __len__(self) -> int:
        return len(self._inside)

    @contextmanager
    def place(self, connection: ClientConnection) -> Iterator[None]:
        """Hold a place.

        Raises:
            TooManyConnections: All places are taken by failed logins that wait for their answer.
        """
        self._make_room(connection.address)
        self._inside[connection] = None
        try:
            yield
        finally:
            self._inside.pop(connection, None)

    def _make_room(self, address: str) -> None:
        neighbours = [other for other in self._inside if other.address == address]
        if len(neighbours) >= max(self._places // 2, 1):
            self._displace(neighbours, "too many logins from this address")
        elif len(self._inside) >= self._places:
            self._displace(list(self._inside), "sorry, too many clients already")

    def _displace(self, others: list[ClientConnection], message: str) -> None:
        """Send one of these away, the eldest of those that have said least."""
        waiting = [other for other in others if not other.held]
        if not waiting:
            raise TooManyConnections(message, hint=_HINT)
        displaced = min(waiting, key=lambda other: not other.is_silent)
        del self._inside[displaced]
        displaced.drop()
