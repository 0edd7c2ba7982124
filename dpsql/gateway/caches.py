"""caches: compiled queries and answers that the gateway keeps, and their keys.

Rule: a key contains everything that the cached value depends on. A value whose dependencies cannot be named has no key
and is computed each time.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Generic, TypeVar
from uuid import UUID

from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.policy import Role
from dpsql.sqltypes import SqlType

_MAX_TEXT = 10_000
"""Characters of a query that is remembered."""
_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_TOLD_BY_REPR = frozenset({type(None), bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta, UUID})
"""Types of which two values of one repr are the same in every respect; equal ones need not be: 1.0 and 1.00."""

V = TypeVar("V")


class LruCache(Generic[V]):
    """A mapping of bounded size that evicts the least recently used entry; thread-safe.

    Args:
        entries: How many there may be.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._known: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Hashable | None) -> V | None:
        """What is remembered under a key; nothing under None."""
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key]

    def put(self, key: Hashable | None, value: V) -> None:
        """Remember a value, where there is a key."""
        if key is None:
            return
        with self._lock:
            self._known[key] = value
            self._known.move_to_end(key)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)


def query_key(
    user: str,
    role: Role,
    statement: QueryStatement,
    values: Sequence[object],
    types: Sequence[SqlType | None],
    *settings: Hashable,
) -> Hashable:
    """The key of a description, apart from policy, schema and time; None if it has none."""
    constants = exact_key(values)
    if constants is None or len(statement.sql) > _MAX_TEXT:
        return None
    return user, role.name, statement, constants, tuple(types), settings


def plan_key(
    user: str,
    role: Role,
    statement: QueryStatement,
    settings: QuerySettings,
    values: Sequence[object],
    types: Sequence[SqlType | None],
) -> Hashable:
    """The key of a plan, apart from policy, schema and time; None if it has none."""
    # Of the time, the time zone alone is part of it: moments of two zones may be equal.
    timeless = replace(settings, now=_SOME_TIME)
    return query_key(user, role, statement, values, types, timeless, str(settings.now.tzinfo))


def exact_key(values: Sequence[object]) -> Hashable:
    """A key of constants that no others have; None where one is of a type whose repr does not tell all."""
    if not all(type(value) in _TOLD_BY_REPR for value in values):
        return None
    return tuple((type(value), repr(value)) for value in values)
