"""remembered: what was made once and need not be made again, as long as there is room.

Rule: a key says everything that what is remembered depends on; what cannot say so is made again each time.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Generic, TypeVar
from uuid import UUID

V = TypeVar("V")

_TOLD_BY_REPR = frozenset({type(None), bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta, UUID})
"""Types of which two values of one repr are the same in every respect; equal ones need not be: 1.0 and 1.00."""


class Remembered(Generic[V]):
    """A mapping of bounded size, which forgets what was not asked for longest; for several threads.

    Args:
        entries: How many there may be.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._known: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Hashable) -> V | None:
        """What is remembered under a key."""
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key]

    def put(self, key: Hashable, value: V) -> None:
        """Remember a value."""
        with self._lock:
            self._known[key] = value
            self._known.move_to_end(key)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)


def exact_key(values: Sequence[object]) -> Hashable:
    """A key of constants that no others have; None where one is of a type whose repr does not tell all."""
    if not all(type(value) in _TOLD_BY_REPR for value in values):
        return None
    return tuple((type(value), repr(value)) for value in values)
