"""client_register: what clients of a gateway share: places, failed logins, statements a minute, keys to cancel by.

A gateway of several worker processes has one of it, in their parent; workers ask that one.
"""

import hmac
import itertools
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dpsql.errors import TooManyConnections
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.login_throttle import LoginThrottle
from dpsql.wire.rate_limit import RateLimit

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
    def begin_failure(self, user: str, address: str) -> float:
        """Count a failure; return the seconds after which it may be told."""

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

    @abstractmethod
    def take(self, user: str) -> None:
        """Count a statement of a user.

        Raises:
            TooManyStatements: The user has had more than the limit; nothing was charged.
        """

    @abstractmethod
    def cancel(self, process_id: int, secret_key: bytes, address: str) -> str | None:
        """Cancel what a client runs; return the user where the key is wrong, which is a failure like a wrong password.

        Raises:
            TooManyConnections: As of `check`.
        """

    @contextmanager
    def failed(self, user: str, address: str) -> Iterator[float]:
        """Count a failure; gives the seconds that it is to wait, and lasts as long as it does."""
        seconds = self.begin_failure(user, address)
        try:
            yield seconds
        finally:
            self.end_failure(user, address)

    @contextmanager
    def seat(self, user: str) -> Iterator[Seat]:
        """Hold a place, as `enter` gives it."""
        seat = self.enter(user)
        try:
            yield seat
        finally:
            self.leave(seat.process_id)


class LocalRegister(ClientRegister):
    """Counts in this process; to be used from one thread, but for `take`.

    Args:
        limits: What clients may take.
        user_rate: Statements a minute of one user; None for no limit.
    """

    def __init__(self, limits: ClientLimits | None = None, user_rate: int | None = None) -> None:
        self._limits = limits or ClientLimits()
        self.throttle = LoginThrottle(self._limits.failure_delay)
        self._rate = RateLimit(user_rate)
        self._seats: dict[int, Seat] = {}
        self._seated: Counter[str] = Counter()
        self._process_ids = itertools.count(1)
        self.on_cancel = lambda process_id: None

    def check(self, user: str, address: str) -> None:
        """Let a client try a password."""
        self.throttle.check(user, address)

    def begin_failure(self, user: str, address: str) -> float:
        """Count a failure."""
        return self.throttle.begin(user, address)

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

    def take(self, user: str) -> None:
        """Count a statement of a user."""
        self._rate.take(user)

    def cancel(self, process_id: int, secret_key: bytes, address: str) -> str | None:
        """Cancel what a client runs."""
        seat = self._seats.get(process_id)
        if seat is None:
            return None
        self.check(seat.user, address)
        if not hmac.compare_digest(seat.secret_key, secret_key):
            return seat.user
        self.on_cancel(process_id)
        return None
