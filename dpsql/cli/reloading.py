"""reloading: policies and certificate are loaded again under open sessions, all together; a mistake changes nothing."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
LOADED: Final = "00000"


@dataclass(frozen=True, slots=True)
class Loading:
    """How a loading ended.

    Attributes:
        sqlstate: "00000" where it succeeded.
        reason: Why it failed.
    """

    sqlstate: str = LOADED
    reason: str = ""

    def tell(self, metrics: Metrics) -> None:
        """Log and count it."""
        told = {"event": "reload", "sqlstate": self.sqlstate}
        if self.sqlstate == LOADED:
            _LOG.info("the policies were reloaded", extra={"fields": told})
        else:
            _LOG.error("the policies are unchanged: %s", self.reason, extra={"fields": told})
        metrics.reloads.labels(self.sqlstate).inc()


def open_engines(policies: Sequence[Policy], ledger: Ledger, processes: int) -> dict[str, Engine]:
    """Open all the databases, or none; each has the share of one of so many processes of what its policy gives."""
    engines: dict[str, Engine] = {}
    with ExitStack() as stack:
        for policy in policies:
            name = policy.dataset.name
            if name in engines:
                raise InvalidPolicy(f'{policy.path}: dataset.name: "{name}" is served already', hint="Rename one.")
            shared = replace(policy, dataset=replace(policy.dataset, processes=processes))
            engines[name] = Engine(shared, ledger, open_backend(shared))
            stack.callback(engines[name].close)
        stack.pop_all()
    return engines


class Reloading:
    """Loads what a gateway serves again; `load`, then `adopt` or `drop`.

    Args:
        databases: What is served.
        paths: Files of the policies.
        ledger: The accounts and budgets.
        server: Whose certificate is renewed.
        tls: The certificate of the start.
        processes: How many serve the same.
    """

    def __init__(
        self,
        databases: Databases,
        paths: Sequence[Path],
        ledger: Ledger,
        server: GatewayServer,
        tls: ServerTls | None,
        processes: int,
    ) -> None:
        self._databases, self._paths, self._ledger = databases, paths, ledger
        self._server, self._tls = server, tls
        self._processes = processes
        self._engines: dict[str, Engine] = {}
        self._renewed: ServerTls | None = None

    def load(self) -> Loading:
        """Read everything; nothing is changed yet. May block."""
        self.drop()
        try:
            self._renewed = None if self._tls is None else self._tls.renewed()
            self._engines = open_engines([load_policy(path) for path in self._paths], self._ledger, self._processes)
            self._databases.check(self._engines)
        except Exception as error:
            self.drop()
            if isinstance(error, Error):
                return Loading(error.sqlstate, error.message)
            log_bug(error)
            return Loading("XX000", "a failure")
        return Loading()

    def adopt(self) -> None:
        """Serve what was loaded from now on. May block."""
        engines, self._engines = self._engines, {}
        self._databases.replace(engines)
        if self._renewed is not None:
            self._server.renew_tls(self._renewed)

    def drop(self) -> None:
        """Let go of what was loaded."""
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            engine.close()

    async def again_and_again(self, told: asyncio.Event, metrics: Metrics) -> None:
        """Load and adopt whenever that is asked for."""
        while True:
            await told.wait()
            told.clear()
            loading = await asyncio.to_thread(self.load)
            if loading.sqlstate == LOADED:
                await asyncio.to_thread(self.adopt)
            loading.tell(metrics)
