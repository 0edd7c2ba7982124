"""The gateway's sessions: over policies that can be reloaded, with limits, metrics and logs.

Rule: the log has the kinds and SQLSTATEs of statements, their text only if the operator enables it, and never a row.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dpsql.compiler.sql.statements import (
    CopyStatement,
    DeclareStatement,
    ExecuteStatement,
    ExplainStatement,
    QueryStatement,
    WorkloadStatement,
)
from dpsql.errors import BackendFailure, DatabaseUnavailable, Error, LedgerUnavailable, QueryCanceled
from dpsql.gateway.query_run import Description, Result
from dpsql.gateway.session import Session, Statement
from dpsql.sqltypes import SqlType
from dpsql.wire.databases import Databases
from dpsql.wire.metrics import Metrics
from dpsql.wire.rate_limit import RateLimit

_LOG: Final = logging.getLogger("dpsql.statement")
_LIMITED: Final = (
    QueryStatement,
    ExplainStatement,
    WorkloadStatement,
    ExecuteStatement,
    DeclareStatement,
    CopyStatement,
)


@dataclass(frozen=True)
class Gateway:
    """What sessions share.

    Attributes:
        databases: What they are over.
        rate_limit: How many statements a user may send.
        metrics: Where statements are counted.
        log_text: The log has the statements' text too.
    """

    databases: Databases
    rate_limit: RateLimit = field(default_factory=lambda: RateLimit(None))
    metrics: Metrics = field(default_factory=Metrics)
    log_text: bool = False

    def session(self, user: str, database: str) -> Session:
        """Open a session.

        Raises:
            PolicyViolation: The user has no role in the policy.
            UnknownDatabase: The user asked for no policy, and may open none.
        """
        return _GatewaySession(self, user, self.databases.chosen(database, user))


class _GatewaySession(Session):
    def __init__(self, gateway: Gateway, user: str, database: str) -> None:
        self._gateway = gateway
        self._database = database
        with gateway.databases.current() as generation:
            engine, provider = generation.open(database, user)
            super().__init__(engine, user, provider)
            self._number = generation.number

    @property
    def generation(self) -> int:
        return self._gateway.databases.generation

    def parse(self, sql: str) -> tuple[Statement, ...]:
        with self._counting("text", sql):
            return super().parse(sql)

    def describe(self, statement: Statement, parameter_types: Sequence[SqlType | None] = ()) -> Description:
        with self._counting(_kind(statement), statement.sql), self._current():
            return super().describe(statement, parameter_types)

    def execute(
        self, statement: Statement, parameters: Sequence[object] = (), types: Sequence[SqlType | None] = ()
    ) -> Result:
        kind = _kind(statement)
        self._gateway.metrics.statements.labels(self._database, kind).inc()
        begun = time.monotonic()
        try:
            if isinstance(statement.parsed, _LIMITED):
                self._gateway.rate_limit.take(self.user)
            with self._current():
                result = super().execute(statement, parameters, types)
        except Error as error:
            self._refused(kind, statement.sql, error, begun)
            raise
        self._log(kind, statement.sql, "00000", begun)
        return result

    def recall(
        self, statement: Statement, parameters: Sequence[object] = (), types: Sequence[SqlType | None] = ()
    ) -> Result | None:
        begun = time.monotonic()
        with self._gateway.databases.current() as generation:
            fresh = generation.number == self._number
            result = super().recall(statement, parameters, types) if fresh else None
        if result is None:
            return None
        kind = _kind(statement)
        self._gateway.metrics.statements.labels(self._database, kind).inc()
        try:
            self._gateway.rate_limit.take(self.user)
        except Error as error:
            self._refused(kind, statement.sql, error, begun)
            raise
        self._log(kind, statement.sql, "00000", begun)
        return result

    @contextmanager
    def _counting(self, kind: str, sql: str) -> Iterator[None]:
        """Count a statement that is refused before it is executed: drivers have it described first."""
        begun = time.monotonic()
        try:
            yield
        except Error as error:
            self._gateway.metrics.statements.labels(self._database, kind).inc()
            self._refused(kind, sql, error, begun)
            raise

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Run on the current policies, even if others are loaded meanwhile."""
        with self._gateway.databases.current() as generation:
            if generation.number != self._number:
                self.adopt(*generation.open(self._database, self.user))
                self._number = generation.number
            yield

    def _refused(self, kind: str, sql: str, error: Error, begun: float) -> None:
        metrics = self._gateway.metrics
        if not isinstance(error, BackendFailure | QueryCanceled):
            metrics.refusals.labels(self._database, error.sqlstate).inc()
        if isinstance(error, LedgerUnavailable):
            metrics.ledger_failures.inc()
        elif isinstance(error, BackendFailure | DatabaseUnavailable):
            metrics.engine_failures.labels(self._database).inc()
        self._log(kind, sql, error.sqlstate, begun)

    def _log(self, kind: str, sql: str, sqlstate: str, begun: float) -> None:
        told: dict[str, object] = {"event": "statement", "user": self.user, "database": self._database, "kind": kind}
        told |= {"sqlstate": sqlstate, "ms": round((time.monotonic() - begun) * 1000, 1)}
        message = "%s of %a on %a: %s in %s ms"
        arguments = [kind, self.user, self._database, sqlstate, told["ms"]]
        if self._gateway.log_text:
            told["sql"] = sql
            message, arguments = f"{message}: %a", [*arguments, sql]
        _LOG.info(message, *arguments, extra={"fields": told})


def _kind(statement: Statement) -> str:
    return type(statement.parsed).__name__.removesuffix("Statement").lower()
