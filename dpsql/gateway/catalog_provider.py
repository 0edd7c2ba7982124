"""catalog_provider: how a session asks for the catalog, which is made of the policy and answered apart from the engine.

Rule: what a provider answers is never charged, and reads no row of the data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dpsql.backends import Cancellation
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.query_run import Description, Result
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class CatalogContext:
    """The session of a catalog query.

    Attributes:
        user: Whose it is.
        database: The database it is connected to.
        schemas: Where names without a schema are looked for, one after another.
        settings: Returns every setting with its value.
        now: The time.
        change: Changes a setting as set_config does: name, value, whether for the transaction; returns its value.
    """

    user: str
    database: str
    schemas: tuple[str, ...]
    settings: Callable[[], Mapping[str, str]]
    now: datetime
    change: Callable[[str, str, bool], str]


class CatalogProvider(Protocol):
    """Answers catalog queries; None for other queries."""

    def describe(
        self, statement: QueryStatement, types: Sequence[SqlType | None], context: CatalogContext
    ) -> Description | None:
        """Describe a catalog query; nothing is executed."""

    def execute(
        self,
        statement: QueryStatement,
        values: Sequence[object],
        types: Sequence[SqlType | None],
        context: CatalogContext,
        cancellation: Cancellation,
    ) -> Result | None:
        """Answer a catalog query."""


class NoCatalog:
    """A session without a catalog: every query is the engine's."""

    def describe(
        self, statement: QueryStatement, types: Sequence[SqlType | None], context: CatalogContext
    ) -> Description | None:
        """Nothing is a catalog query."""
        return None

    def execute(
        self,
        statement: QueryStatement,
        values: Sequence[object],
        types: Sequence[SqlType | None],
        context: CatalogContext,
        cancellation: Cancellation,
    ) -> Result | None:
        """Nothing is a catalog query."""
        return None
