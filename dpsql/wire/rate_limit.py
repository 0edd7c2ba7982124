"""rate_limit: limits a user's statements per minute, over all of the user's sessions."""

import threading
import time
from collections.abc import Callable

from dpsql.errors import TooManyStatements


class RateLimit:
    """A bucket of statements for each user: a minute's worth at first, refilled as time goes by.

    Args:
        per_minute: Statements of one user; None for no limit.
        clock: Seconds from some moment on.
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, user: str) -> None:
        """Count a statement of a user who has logged in.

        Raises:
            TooManyStatements: The user has had more than the limit; nothing was charged.
        """
        if self._per_minute is None:
            return
        now, refill = self._clock(), self._per_minute / 60
        with self._lock:
            left, then = self._left.get(user, (float(self._per_minute), now))
            left = min(float(self._per_minute), left + (now - then) * refill)
            if left >= 1:
                self._left[user] = (left - 1, now)
                return
        raise TooManyStatements(
            f'too many statements of user "{user}": the limit is {self._per_minute} a minute',
            detail="Nothing was charged.",
            hint=f"Try again in {(1 - left) / refill:.1f} seconds.",
        )
