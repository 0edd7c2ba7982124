"""reloading: loads policies and the certificate again under open sessions, all or none of them."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dpsql.backends import open_backend
from dpsql.errors import Error, InvalidPolicy, log_bug
from dpsql.gateway.engine import Engine
from dpsql.ledger import Ledger
from dpsql.policy import Policy, load_policy
from dpsql.wire.databases import Databases
from dpsql.wire.metrics import Metrics
from dpsql.wire.server import GatewayServer
from dpsql.wire.tls import ServerTls

_LOG: Final = logging.getLogger("dpsql.serve")
_LOADED: Final = "00000"


@dataclass(frozen=True, slots=True)
class Loading:
    """The result of a reload.

    Attributes:
        sqlstate: "00000" where it succeeded.
        reason: Why it failed.
    """

    sqlstate: str = _LOADED
    reason: str = ""

    @classmethod
    def failed(cls, error: Exception) -> "Loading":
        """The result for an error."""
        if isinstance(error, Error):
            return cls(error.sqlstate, error.message)
        log_bug(error)
        return cls("XX000", "a failure")

    @property
    def succeeded(self) -> bool:
        """Whether the new policies can be served."""
        return self.sqlstate == _LOADED

    def tell(self, metrics: Metrics) -> None:
        """Log and count it."""
        told = {"event": "reload", "sqlstate": self.sqlstate}
        if self.succeeded:
            _LOG.info("the policies were reloaded", extra={"fields": told})
        else:
            _LOG.error("the policies are unchanged: %s", self.reason, extra={"fields": told})
        metrics.reloads.labels(self.sqlstate).inc()


def load_policies(paths: Sequence[Path]) -> list[Policy]:
    """Read policies.

    Raises:
        InvalidPolicy: One of them has a mistake.
    """
    return [load_policy(path) for path in paths]


def open_engines(policies: Sequence[Policy], ledger: Ledger) -> dict[str, Engine]:
    """Open all the databases, or none.

    Raises:
        InvalidPolicy: A database is not usable, or two policies have one name.
    """
    engines: dict[str, Engine] = {}
    with ExitStack() as stack:
        for policy in policies:
            name = policy.dataset.name
            if name in engines:
                raise InvalidPolicy(
                    f'{policy.path}: dataset.name: "{name}" is served already',
                    hint=f'Write: name = "{name}_2"; and, for the same people, cap = "{policy.dataset.cap}"',
                )
            engines[name] = Engine(policy, ledger, open_backend(policy))
            stack.callback(engines[name].close)
        stack.pop_all()
    return engines


class Reloading:
    """Reloads the policies of a process in two steps: `load`, then `adopt` or `drop`. They may block.

    Args:
        databases: What is served.
        ledger: The accounts and budgets.
        server: Whose certificate is renewed.
        tls: The certificate of the start.
    """

    def __init__(self, databases: Databases, ledger: Ledger, server: GatewayServer, tls: ServerTls | None) -> None:
        self._databases, self._ledger = databases, ledger
        self._server, self._tls = server, tls
        self._engines: dict[str, Engine] = {}
        self._renewed: ServerTls | None = None

    def load(self, policies: Callable[[], Sequence[Policy]]) -> Loading:
        """Open the databases of new policies; nothing that is served changes yet."""
        try:
            self._renewed = None if self._tls is None else self._tls.renewed()
            self._engines = open_engines(policies(), self._ledger)
            self._databases.check(self._engines)
        except Exception as error:
            self.drop()
            return Loading.failed(error)
        return Loading()

    def adopt(self) -> None:
        """Serve the loaded policies from now on."""
        engines, self._engines = self._engines, {}
        self._databases.replace(engines)
        if self._renewed is not None:
            self._server.renew_tls(self._renewed)

    def drop(self) -> None:
        """Close the loaded databases."""
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            engine.close()
