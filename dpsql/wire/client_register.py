"""client_register: what the clients of a gateway share: places, failed logins, and the keys that cancel statements.

Rule: a guess is judged and counted in one step. A gateway of several processes has one register, in their parent, so
    that who guesses at all of them at once may guess no more often than at one.
"""

import asyncio
import hmac
import itertools
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dpsql.errors import AuthenticationFailed, TooManyConnections
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.login_throttle import LoginThrottle

_KEY_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a client that is logged in.

    Attributes:
        user: Whose it is.
        process_id: What cancel requests name it by.
        secret_key: What they must know.
    """

    user: str
    process_id: int
    secret_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FailedGuess:
    """A wrong password, or a wrong key of a cancel request; it counts as waiting until `ClientRegister.end_failure`.

    Attributes:
        user: Who was guessed at.
        address: Where the guess came from.
        seconds: After which it may be told.
        error: What is wrong.
    """

    user: str
    address: str
    seconds: float
    error: AuthenticationFailed


class ClientRegister(ABC):
    """What clients may take together.

    Attributes:
        on_cancel: Called with the process id of a client whose statement is to be cancelled.
    """

    on_cancel: Callable[[int], None]

    @abstractmethod
    def check(self, user: str, address: str) -> None:
        """Let a client try a password.

        Raises:
            TooManyConnections: Too many failures of this user from this address are still to be told.
        """

    @abstractmethod
    def judge(self, user: str, address: str, verify: Callable[[], bytes]) -> bytes | FailedGuess:
        """Return what `verify` returns, or the failure if it raises AuthenticationFailed.

        Raises:
            TooManyConnections: As of `check`; nothing was judged.
        """

    @abstractmethod
    def cancel(self, process_id: int, secret_key: bytes, address: str) -> FailedGuess | None:
        """Cancel what a client runs if the key is right.

        Raises:
            TooManyConnections: As of `check`.
        """

    @abstractmethod
    def fail(self, user: str, address: str, error: AuthenticationFailed) -> FailedGuess:
        """Count a failure."""

    @abstractmethod
    def end_failure(self, user: str, address: str) -> None:
        """Count a failure among those that wait no more."""

    @abstractmethod
    def enter(self, user: str) -> Seat:
        """Give a client that is logged in a place.

        Raises:
            TooManyConnections: All are taken, or all of the user.
        """

    @abstractmethod
    def leave(self, process_id: int) -> None:
        """Take the place back."""

    @contextmanager
    def seat(self, user: str) -> Iterator[Seat]:
        """Hold a place, as `enter` gives it."""
        seat = self.enter(user)
        try:
            yield seat
        finally:
            self.leave(seat.process_id)

    async def wait(self, failed: FailedGuess) -> None:
        """Return when a failure may be told."""
        try:
            await asyncio.sleep(failed.seconds)
        finally:
            self.end_failure(failed.user, failed.address)


class LocalRegister(ClientRegister):
    """The register itself; to be used from one thread.

    Args:
        limits: What clients may take.
    """

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self._limits = limits or ClientLimits()
        self.throttle = LoginThrottle(self._limits.failure_delay)
        self._seats: dict[int, Seat] = {}
        self._seated: Counter[str] = Counter()
        self._process_ids = itertools.count(1)
        self.on_cancel = lambda process_id: None

    def check(self, user: str, address: str) -> None:
        """Let a client try a password."""
        self.throttle.check(user, address)

    def judge(self, user: str, address: str, verify: Callable[[], bytes]) -> bytes | FailedGuess:
        """Return what `verify` returns, or the failure."""
        self.throttle.check(user, address)
        try:
            return verify()
        except AuthenticationFailed as error:
            return self.fail(user, address, error)

    def cancel(self, process_id: int, secret_key: bytes, address: str) -> FailedGuess | None:
        """Cancel what a client runs."""
        seat = self._seats.get(process_id)
        if seat is None:
            return None
        self.throttle.check(seat.user, address)
        if hmac.compare_digest(seat.secret_key, secret_key):
            self.on_cancel(process_id)
            return None
        return self.fail(seat.user, address, AuthenticationFailed("wrong key in cancel request"))

    def fail(self, user: str, address: str, error: AuthenticationFailed) -> FailedGuess:
        """Count a failure."""
        return FailedGuess(user, address, self.throttle.begin(user, address), error)

    def end_failure(self, user: str, address: str) -> None:
        """Count a failure among those that wait no more."""
        self.throttle.end(user, address)

    def enter(self, user: str) -> Seat:
        """Give a client that is logged in a place."""
        if len(self._seats) >= self._limits.connections:
            raise TooManyConnections("sorry, too many clients already", hint="Close connections no longer needed.")
        if self._seated[user] >= self._limits.user_connections:
            raise TooManyConnections(f'too many connections for role "{user}"', hint="Close those no longer needed.")
        seat = Seat(user, next(self._process_ids), secrets.token_bytes(_KEY_BYTES))
        self._seats[seat.process_id] = seat
        self._seated[user] += 1
        return seat

    def leave(self, process_id: int) -> None:
        """Take the place back."""
        user = self._seats.pop(process_id).user
        self._seated[user] -= 1
        if not self._seated[user]:
            del self._seated[user]
