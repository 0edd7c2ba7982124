"""A gateway on the loopback, in a thread of its own, over scripted sessions."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dpsql.errors import PolicyViolation
from dpsql.gateway.session import Session
from dpsql.wire.client_limits import ClientLimits, Network
from dpsql.wire.client_register import LocalRegister
from dpsql.wire.scram import make_verifier
from dpsql.wire.server import GatewayServer
from dpsql.wire.tls import load_tls
from tests.waiting import HANG_SECONDS
from tests.wire.scripted import ScriptedSession

HERE = Path(__file__).parent
# Test-only: the key is public.
CERTIFICATE, KEY = HERE / "server.crt", HERE / "server.key"
_VERIFIERS = {"ana": make_verifier("secret"), "ben": make_verifier("secret"), "barred": make_verifier("secret")}


class RunningServer:
    """A server, and the sessions it has opened."""

    def __init__(
        self,
        *,
        limits: ClientLimits | None = None,
        tls: bool = False,
        require_tls: bool = False,
        threads: int = 4,
        decoy_secret: bytes | None = None,
        trusted_proxies: Sequence[Network] = (),
        open_session: Callable[[str, str], Session] | None = None,
    ) -> None:
        self._open_session = open_session or self._open
        self.sessions: list[ScriptedSession] = []
        limits = limits or ClientLimits(failure_delay=0.01, login_seconds=HANG_SECONDS)
        self.register = LocalRegister(limits)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = self._run(
            self._make(
                limits,
                load_tls(CERTIFICATE, KEY) if tls else None,
                require_tls,
                threads,
                decoy_secret,
                trusted_proxies,
            )
        )
        self._running = True

    async def _make(
        self,
        limits: ClientLimits,
        tls: object,
        require_tls: bool,
        threads: int,
        secret: bytes | None,
        trusted_proxies: Sequence[Network],
    ) -> GatewayServer:
        server = GatewayServer(
            lookup=_VERIFIERS.get,
            open_session=self._open_session,
            databases=["clinic"],
            port=0,
            tls=tls,  # type: ignore[arg-type]
            require_tls=require_tls,
            limits=limits,
            register=self.register,
            threads=threads,
            decoy_secret=secret,
            trusted_proxies=trusted_proxies,
        )
        await server.start()
        return server

    def _open(self, user: str, database: str) -> ScriptedSession:
        if user == "barred":
            raise PolicyViolation("barred")
        session = ScriptedSession(user, database)
        self.sessions.append(session)
        return session

    def _run(self, coroutine: object) -> GatewayServer:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def dsn(self) -> str:
        return f"postgresql://ana:secret@127.0.0.1:{self.port}/clinic"

    def close(self, grace: float = 0.2) -> None:
        if self._running:
            self._running = False
            asyncio.run_coroutine_threadsafe(self.server.close(grace), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., RunningServer]]:
    """Return a function that starts a server; all are closed at the end."""
    servers: list[RunningServer] = []

    def start(**options: object) -> RunningServer:
        server = RunningServer(**options)  # type: ignore[arg-type]
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Callable[..., RunningServer]) -> RunningServer:
    """Return a running server without TLS."""
    return serve()
