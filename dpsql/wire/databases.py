"""databases: the databases that a gateway serves, one per policy; they can be reloaded under open sessions.

Rule 1: a statement runs from start to end on the policies with which it began.
Rule 2: either all policies are replaced or none, and old engines are closed when nothing runs on them.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dpsql.catalog.catalog import Catalogs, PolicyCatalogProvider
from dpsql.errors import InvalidPolicy, UnknownDatabase
from dpsql.gateway.engine import Engine

MAINTENANCE: Final = "postgres"
"""The database that every PostgreSQL server has."""


@dataclass
class Generation:
    """The engines of one loading of the policies, with their catalogs.

    Attributes:
        number: 0 for those of the start, and so on.
        engines: By database name.
        catalogs: What browsing is answered from.
        users: Statements that run on them, and 1 more while new ones do.
    """

    number: int
    engines: Mapping[str, Engine]
    catalogs: Catalogs
    users: int = 1

    def open(self, database: str, user: str) -> tuple[Engine, PolicyCatalogProvider]:
        """What a session of a user needs.

        Raises:
            PolicyViolation: The user has no role in the policy.
        """
        return self.engines[database], self.catalogs.provider(database, user)


class Databases:
    """The databases that are served.

    Args:
        engines: By database name; they are closed here.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._current = _generation(0, engines)
        self._lock = threading.Lock()

    @property
    def names(self) -> frozenset[str]:
        """The databases' names: those of the start."""
        return frozenset(self._current.engines)

    @property
    def generation(self) -> int:
        """How often the policies were reloaded."""
        return self._current.number

    @contextmanager
    def current(self) -> Iterator[Generation]:
        """The current engines, which stay open as long as they are used."""
        with self._lock:
            used = self._current
            used.users += 1
        try:
            yield used
        finally:
            self._leave(used)

    def chosen(self, database: str, user: str) -> str:
        """The database that a user gets who asks for one: for "postgres", the first that the user may open.

        Clients that know no name yet begin there, to list the databases; a policy may have the name itself.

        Raises:
            UnknownDatabase: The user may open none.
        """
        if database != MAINTENANCE or database in self.names:
            return database
        with self.current() as generation:
            for name in generation.catalogs.databases(user):
                return name
        raise UnknownDatabase(f'database "{database}" does not exist')

    def probe(self, database: str) -> None:
        """See whether a database answers.

        Raises:
            DatabaseUnavailable: It does not.
        """
        with self.current() as generation:
            generation.engines[database].probe()

    def check(self, engines: Mapping[str, Engine]) -> None:
        """See whether engines may replace those of now.

        Raises:
            InvalidPolicy: They are not of the same databases.
        """
        if engines.keys() != self.names:
            raise InvalidPolicy(
                "the served databases have changed: " + ", ".join(sorted(engines)),
                hint="Restart the gateway, or keep their names: " + ", ".join(sorted(self.names)),
            )

    def replace(self, engines: Mapping[str, Engine]) -> None:
        """Have statements from now on run on other engines.

        Raises:
            InvalidPolicy: As of `check`; nothing is changed, and they are not closed.
        """
        self.check(engines)
        with self._lock:
            old, self._current = self._current, _generation(self._current.number + 1, engines)
        self._leave(old)

    def close(self) -> None:
        """Let go of the engines; nothing may run on them any more."""
        self._leave(self._current)

    def _leave(self, used: Generation) -> None:
        with self._lock:
            used.users -= 1
            if used.users:
                return
        used.catalogs.close()
        for engine in used.engines.values():
            engine.close()


def _generation(number: int, engines: Mapping[str, Engine]) -> Generation:
    return Generation(number, engines, Catalogs(engines))
