"""login_throttle: delays the reply to a failed login; the delay grows with the number of recent failures.

Rule 1: a correct password is never delayed. Logins are refused only per user and address, so one client's guesses
    cannot lock out another client.
Rule 2: failures are counted for unknown users, too.
Rule 3: memory is bounded for any names and addresses.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dpsql.errors import TooManyConnections

_MOST_SECONDS: Final = 8.0
_MEMORY_SECONDS: Final = 900.0
_KEYS: Final = 10_000
_DOUBLINGS: Final = 30
# PostgreSQL's names are no longer.
_NAME_LENGTH: Final = 63


class LoginThrottle:
    """Failed logins of the last quarter of an hour, by user and by address.

    Args:
        first: Seconds that a first failure waits; each further one of the same user or address waits twice as long.
        most: Seconds that no failure waits longer than.
        at_once: Failures of one user from one address that may be waiting; more are not heard until one is told.
        clock: Seconds from some moment on.
    """

    def __init__(
        self,
        first: float,
        most: float = _MOST_SECONDS,
        at_once: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._most = first, most
        self._at_once = at_once
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._waiting: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._failures)

    def check(self, user: str, address: str) -> None:
        """Let a client log in as a user.

        Raises:
            TooManyConnections: Too many failures of this user from this address are still to be told.
        """
        if self._waiting[_pair(user, address)] >= self._at_once:
            raise TooManyConnections(
                "too many failed logins of this user from this address", hint="Try again in a moment."
            )

    def begin(self, user: str, address: str) -> float:
        """Count a failure; return the seconds after which it may be told. Until `end`, it is one that waits."""
        count = max(self._count(("user", user[:_NAME_LENGTH])), self._count(("address", address)))
        self._waiting[_pair(user, address)] += 1
        return min(self._most, self._first * 2.0 ** min(count - 1, _DOUBLINGS))

    def end(self, user: str, address: str) -> None:
        """Count a failure among those that wait no more."""
        pair = _pair(user, address)
        self._waiting[pair] -= 1
        if not self._waiting[pair]:
            del self._waiting[pair]

    @contextmanager
    def failed(self, user: str, address: str) -> Iterator[float]:
        """Count a failure; gives the seconds that it is to wait, and lasts as long as it does."""
        seconds = self.begin(user, address)
        try:
            yield seconds
        finally:
            self.end(user, address)

    def _count(self, key: tuple[str, str]) -> int:
        """Add a failure to those of late; return how many there are."""
        count, last = self._failures.pop(key, (0, 0.0))
        now = self._clock()
        count = 1 if now - last > _MEMORY_SECONDS else count + 1
        self._failures[key] = (count, now)
        if len(self._failures) > _KEYS:
            self._failures.popitem(last=False)
        return count


def _pair(user: str, address: str) -> tuple[str, str]:
    return user[:_NAME_LENGTH], address
