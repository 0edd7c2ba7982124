"""The gateway's server: accepts clients, logs them in, answers them, and ends in good order.

Rule 1: nothing blocks the event loop. Statements run in one pool of bounded size, at most one per client, and users
    take turns. Logins and cancels have a small pool of their own, so that they work while the other pool is busy. An
    answer from memory does not block, and runs in the event loop. The register of clients also answers from memory,
    of this process or of its parent.
Rule 2: if a client disconnects, its statement is cancelled.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Final, TypeVar

from dpsql.errors import AuthenticationFailed, Error, QueryCanceled, ServerShutdown, UnknownDatabase
from dpsql.gateway.session import Session
from dpsql.wire.client import Disconnected
from dpsql.wire.client_limits import ClientLimits, Network
from dpsql.wire.client_register import ClientRegister, LocalRegister, Seat
from dpsql.wire.connection import ClientConnection
from dpsql.wire.fair_pool import FairPool
from dpsql.wire.login import Gate, Lobby, Login, greet, log_in
from dpsql.wire.messages.backend import FATAL, BackendKeyData, ParameterStatus, ReadyForQuery
from dpsql.wire.messages.frontend import CancelRequest, StartupMessage, Terminate
from dpsql.wire.metrics import Metrics
from dpsql.wire.protocol import ServerProtocol, State
from dpsql.wire.report import Endings, error_response, logger
from dpsql.wire.session import WireSession
from dpsql.wire.tls import ServerTls
from dpsql.wire.watchdog import Watchdog

T = TypeVar("T")


THREADS: Final = 8
"""Statements that run at a time."""
_SERVICE_THREADS: Final = 2
_CANCEL_SECONDS: Final = 2.0
LEAST_GRACE: Final = 1.0
_REFUSED_SECONDS: Final = 2.0
_REFUSED_AT_ONCE: Final = 50
# Drivers parse the leading number, and go by it: what they then ask for is what PostgreSQL 15 has.
_FIXED_PARAMETERS: Final = {
    "server_version": "15.0 (dpsql 0.1.0)",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "is_superuser": "off",
    "application_name": "",
    "in_hot_standby": "off",
    "default_transaction_read_only": "on",
}


class _Guest:
    """A client that is logged in: its session, and whether a statement of it is running."""

    def __init__(
        self,
        seat: Seat,
        connection: ClientConnection,
        session: Session,
        statements: FairPool,
        service: ThreadPoolExecutor,
    ) -> None:
        self.seat = seat
        self.session = session
        self._connection = connection
        self._statements = statements
        self._service = service
        self._running = False
        self._cancelled = False

    async def write(self, data: bytes) -> None:
        await self._connection.write(data)

    async def call(self, function: Callable[[], T]) -> T:
        if self._connection.lost:
            raise Disconnected
        self._running, self._cancelled = True, False
        try:
            return await self._statements.run(self.seat.user, partial(self._unless_cancelled, function))
        finally:
            self._running = False

    def cancel(self) -> None:
        """Cancel the running statement, if there is one: a cancel that comes late must not hit the next."""
        if self._running:
            self._cancelled = True
            self._service.submit(self.session.cancel)

    def end(self) -> None:
        """Cancel the running statement, and disconnect the client."""
        self.cancel()
        self._connection.stop()

    def _unless_cancelled(self, function: Callable[[], T]) -> T:
        """Call a function, but not if it was cancelled while it waited for a thread: it would be charged for nobody."""
        if self._cancelled:
            raise QueryCanceled("canceling statement due to user request")
        return function()


class GatewayServer:
    """Serves PostgreSQL clients.

    Args:
        lookup: Returns a user's SCRAM verifier in PostgreSQL's text form, or None if there is no such user. May block.
        open_session: Returns the session of a user on a database, or raises an Error that refuses it. May block.
        databases: The names that clients may connect to.
        host: The address to listen on.
        port: The port to listen on; 0 for any that is free.
        tls: The TLS to offer, of `dpsql.wire.tls.load_tls`, or None.
        require_tls: Refuse clients that come without TLS.
        limits: What clients may take.
        register: What is counted over all clients, of this server and of others; None for this server's own.
        threads: Statements that run at a time.
        metrics: What is counted here.
        trusted_proxies: Networks of proxies, which begin each connection with a PROXY header.
        decoy_secret: Keeps the salts of unknown users the same over restarts and over several gateways; random if
            None, which shows who exists to whoever compares salts before and after a restart.
    """

    def __init__(
        self,
        *,
        lookup: Callable[[str], str | None],
        open_session: Callable[[str, str], Session],
        databases: Collection[str],
        host: str = "127.0.0.1",
        port: int = 6543,
        tls: ServerTls | None = None,
        require_tls: bool = False,
        limits: ClientLimits | None = None,
        register: ClientRegister | None = None,
        threads: int = THREADS,
        metrics: Metrics | None = None,
        trusted_proxies: Collection[Network] = (),
        decoy_secret: bytes | None = None,
    ) -> None:
        if require_tls and tls is None:
            raise ValueError("TLS cannot be required where there is none")
        self._open_session = open_session
        self._databases = frozenset(databases)
        self._host, self._port = host, port
        self._limits = limits or ClientLimits()
        self._statements = FairPool(threads)
        self._service = ThreadPoolExecutor(_SERVICE_THREADS, thread_name_prefix="dpsql-service")
        self._register = register or LocalRegister(self._limits)
        self._register.on_cancel = self._cancel_statement
        self._gate = Gate(
            lambda user: self._serve_call(partial(lookup, user)),
            tls,
            require_tls,
            decoy_secret or secrets.token_bytes(32),
            self._register,
        )
        self._trusted_proxies = tuple(trusted_proxies)
        self._server: asyncio.Server | None = None
        self._clients: dict[ClientConnection, asyncio.Task[None]] = {}
        self._guests: dict[int, _Guest] = {}
        self._lobby = Lobby(self._limits.logins)
        self._endings = Endings()
        self._refused = 0
        self._accepting = self._closing = False
        self._closed = asyncio.Event()
        self._metrics = metrics or Metrics()
        self._show_gauges(self._metrics)

    def renew_tls(self, tls: ServerTls) -> None:
        """Meet the clients to come with another certificate; those that are connected keep theirs."""
        self._gate = replace(self._gate, tls=tls)

    @property
    def port(self) -> int:
        """The port that is listened on; where 0 was asked for, known once started."""
        return self._port

    @property
    def sessions(self) -> int:
        """The number of clients that are logged in."""
        return len(self._guests)

    @property
    def accepting(self) -> bool:
        """True while new clients are let in."""
        return self._accepting and not self._closing

    async def start(self) -> None:
        """Listen, and accept clients."""
        self._server = await asyncio.get_running_loop().create_server(self._new_connection, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self._accepting = True
        logger.info("listening on %s:%d", self._host, self._port)

    def open(self) -> None:
        """Accept clients that somebody else listens for; `serve` has each."""
        self._accepting = True

    async def serve(self, client: socket.socket) -> None:
        """Serve a client that somebody else accepted; return when it has gone."""
        try:
            _, connection = await asyncio.get_running_loop().connect_accepted_socket(self._new_connection, client)
        except OSError:  # it has gone already
            client.close()
        else:
            await connection.closed.wait()

    async def watch(self) -> None:
        """End the process where it stands still; runs until cancelled, in the main thread."""
        await Watchdog(lambda: self._statements.waiting, lambda: self._statements.ended).run()

    async def serve_forever(self) -> None:
        """Return once the gateway is closed."""
        await self._closed.wait()

    def end_sessions(self, users: Collection[str]) -> None:
        """End the sessions of users, and cancel their statements."""
        for guest in self._guests.values():
            if guest.seat.user in users:
                guest.end()

    async def close(self, grace: float = 10.0) -> None:
        """Stop within `grace` seconds, but at least one: accept nobody, let statements end, cancel those that are left.

        A statement that ignores its cancel is left to its thread.
        """
        grace = max(grace, LEAST_GRACE)
        cancels = min(_CANCEL_SECONDS, grace / 2)
        self._closing = True
        if self._server is not None:
            self._server.close()
        for connection in self._clients:
            connection.stop()
        for seconds in (grace - cancels, cancels):
            if self._clients:
                await asyncio.wait(self._clients.values(), timeout=seconds)
            for guest in self._guests.values():
                guest.cancel()
        left = list(self._clients.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._endings.sum_up()
        self._statements.shutdown()
        self._service.shutdown(wait=False)
        self._closed.set()

    def _new_connection(self) -> ClientConnection:
        protocol = ServerProtocol(self._limits.messages)
        return ClientConnection(protocol, self._limits.write_seconds, self._welcome, self._is_proxy)

    def _is_proxy(self, address: str) -> bool:
        if not self._trusted_proxies:
            return False
        found = ip_address(address)
        plain = getattr(found, "ipv4_mapped", None) or found  # as a socket for both families names one of IPv4
        return any(plain in network for network in self._trusted_proxies)

    def _welcome(self, connection: ClientConnection) -> None:
        if self._closing:  # it came in when nobody was to come any more
            connection.stop()
        self._clients[connection] = asyncio.get_running_loop().create_task(self._serve(connection))

    async def _serve_call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._service, function)

    async def _serve(self, connection: ClientConnection) -> None:
        """Serve one client from its first byte to its last."""
        try:
            await self._log_in_and_answer(connection)
        except Disconnected:
            pass
        except Exception as error:
            await self._say_goodbye(connection, error)
        finally:
            connection.close()
            del self._clients[connection]

    async def _say_goodbye(self, connection: ClientConnection, error: Exception) -> None:
        if isinstance(error, Error):
            self._endings.add(connection.peer, connection.address, error)
        if connection.protocol.state is State.STARTUP and not await self._hear_out(connection):
            return
        if connection.protocol.state is not State.CLOSED:
            try:
                await connection.send(error_response(error, FATAL))
                await connection.throw_away()
            except Disconnected:
                return

    async def _hear_out(self, connection: ClientConnection) -> bool:
        """Agree on encryption with a client that is sent away, for it believes no error before; tell whether it did."""
        if self._refused >= _REFUSED_AT_ONCE:
            return False
        self._refused += 1
        try:
            async with asyncio.timeout(_REFUSED_SECONDS):
                return isinstance(await greet(connection, self._gate.tls), StartupMessage)
        except (Disconnected, TimeoutError, Error):
            return False
        finally:
            self._refused -= 1

    async def _log_in_and_answer(self, connection: ClientConnection) -> None:
        try:
            with self._lobby.place(connection):
                login = await self._log_in(connection)
        except Error as error:
            self._metrics.logins.labels(error.sqlstate).inc()
            raise
        if isinstance(login, CancelRequest):
            await self._cancel(login, connection.address)
            return
        self._metrics.logins.labels("00000").inc()
        with self._register.seat(login.user) as seat:
            guest = await self._admit(connection, login, seat)
            try:
                await self._check_again(login)
                await self._open(connection, guest, login)
                await self._answer(connection, guest)
            finally:
                del self._guests[seat.process_id]
                self._service.submit(guest.session.close)
                self._log("logout", "session of %a on %a from %s ended", connection, login)

    async def _log_in(self, connection: ClientConnection) -> Login | CancelRequest:
        try:
            async with asyncio.timeout(self._limits.login_seconds):
                return await log_in(connection, self._gate)
        except TimeoutError:
            raise QueryCanceled("canceling authentication due to timeout") from None

    async def _admit(self, connection: ClientConnection, login: Login, seat: Seat) -> _Guest:
        if login.database not in self._databases:
            raise UnknownDatabase(f'database "{login.database}" does not exist')
        session = await self._serve_call(partial(self._make_session, login))
        guest = _Guest(seat, connection, session, self._statements, self._service)
        connection.on_lost = guest.cancel
        self._guests[seat.process_id] = guest
        self._log("login", "session of %a on %a from %s", connection, login)
        return guest

    async def _check_again(self, login: Login) -> None:
        """Refuse a password that was changed while it was judged: `end_sessions` may have come before the session."""
        if await self._gate.lookup(login.user) != login.verifier:
            raise AuthenticationFailed(f'the password of user "{login.user}" was changed')

    def _make_session(self, login: Login) -> Session:
        session = self._open_session(login.user, login.database)
        try:
            for name, value in login.settings:
                session.configure(name, value)
        except Exception:
            session.close()
            raise
        return session

    async def _open(self, connection: ClientConnection, guest: _Guest, login: Login) -> None:
        parameters = _FIXED_PARAMETERS | {"session_authorization": login.user} | dict(guest.session.parameters)
        await connection.send(
            *(ParameterStatus(name, value) for name, value in parameters.items()),
            BackendKeyData(guest.seat.process_id, guest.seat.secret_key),
            ReadyForQuery(guest.session.transaction),
        )

    async def _answer(self, connection: ClientConnection, guest: _Guest) -> None:
        session = WireSession(connection.protocol, guest.session, guest, self._limits.names)
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_seconds):
                    message = await connection.next_event()
            except TimeoutError:
                raise ServerShutdown("terminating connection due to idle-session timeout") from None
            if isinstance(message, Terminate):
                return
            await session.handle(message)

    def _log(self, event: str, message: str, connection: ClientConnection, login: Login) -> None:
        told = {"event": event, "user": login.user, "database": login.database, "peer": connection.peer}
        logger.info(message, login.user, login.database, connection.peer, extra={"fields": told})

    def _show_gauges(self, metrics: Metrics) -> None:
        metrics.gauge("dpsql_clients", "Connections, including those that are logging in.", lambda: len(self._clients))
        metrics.gauge("dpsql_sessions", "Clients that are logged in.", lambda: len(self._guests))
        metrics.gauge("dpsql_calls_running", "Calls that have a thread.", lambda: self._statements.running)
        metrics.gauge("dpsql_calls_waiting", "Calls that wait for a thread.", lambda: self._statements.waiting)
        metrics.gauge("dpsql_accepting", "1 while new clients are accepted.", lambda: int(self.accepting))
        if self._gate.tls is not None:
            metrics.gauge(
                "dpsql_certificate_expiry_timestamp_seconds", "When the certificate ends.", self._certificate_ends
            )

    def _certificate_ends(self) -> float:
        return 0.0 if self._gate.tls is None else self._gate.tls.expires.timestamp()

    async def _cancel(self, request: CancelRequest, address: str) -> None:
        """Cancel a statement; a wrong key waits like a wrong password, so that few can be tried."""
        failed = self._register.cancel(request.process_id, request.secret_key, address)
        if failed is not None:
            await self._register.wait(failed)

    def _cancel_statement(self, process_id: int) -> None:
        guest = self._guests.get(process_id)
        if guest is not None:  # it may just be coming, or going
            guest.cancel()
