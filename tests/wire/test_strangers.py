"""Who connects and does not log in: keeps nobody out, does not fill the log, and is told why where it can be told."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from ipaddress import ip_network

import psycopg
import pytest

from dpsql.errors import AuthenticationFailed, ProtocolViolation, TooManyConnections
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.messages.backend import AuthenticationSASL
from dpsql.wire.proxy import ProxyHeader, read_proxy_header
from dpsql.wire.report import Endings
from dpsql.wire.scram import make_verifier
from tests.waiting import HANG_SECONDS, wait_for
from tests.wire.conftest import _VERIFIERS, RunningServer
from tests.wire.rawclient import RawClient
from tests.wire.test_server import Serve

V2 = b"\r\n\r\n\x00\r\nQUIT\n"
V2_V4 = V2 + b"\x21\x11\x00\x0c" + bytes([10, 0, 0, 7, 10, 0, 0, 1]) + b"\x9c\x40\x19\x8f"
V2_V6 = V2 + b"\x21\x21\x00\x24" + bytes(15) + b"\x07" + bytes(16) + b"\x9c\x40\x19\x8f"
V2_LOCAL = V2 + b"\x20\x00\x00\x00"
V1 = b"PROXY TCP4 10.0.0.7 10.0.0.1 40000 6543\r\n"


@contextmanager
def silent(port: int, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(count)]


def test_silent_connections_keep_nobody_out(serve: Serve) -> None:
    server = serve(tls=True, limits=ClientLimits(logins=10))
    with silent(server.port, 20):
        for _ in range(5):
            with psycopg.connect(server.dsn + "?sslmode=require", connect_timeout=HANG_SECONDS) as connection:
                assert connection.execute("select 1").fetchall() == [(1,)]
    wait_for(lambda: not len(server.server._lobby))


def test_who_has_said_something_stays_before_who_has_said_nothing(serve: Serve) -> None:
    server = serve(limits=ClientLimits(logins=8))
    with RawClient(server.port) as slow:
        slow.start()
        assert isinstance(slow.receive(), AuthenticationSASL)
        with silent(server.port, 10):
            wait_for(lambda: len(server.server._lobby) == 4)
            assert any(not connection.is_silent for connection in server.server._lobby._inside)
    with RawClient(server.port) as first, ExitStack() as others:
        first.start()
        assert isinstance(first.receive(), AuthenticationSASL)
        for _ in range(4):
            other = others.enter_context(RawClient(server.port))
            other.start()
            assert isinstance(other.receive(), AuthenticationSASL)
        assert first.until_end() == [], "among those that speak, the eldest goes"


def test_others_have_the_other_half_of_the_places(serve: Serve) -> None:
    server = serve(limits=ClientLimits(logins=4), trusted_proxies=[ip_network("127.0.0.0/8")])
    with ExitStack() as stack:
        for number in (1, 1, 2, 3, 4):
            client = stack.enter_context(RawClient(server.port))
            client.send(f"PROXY TCP4 10.0.0.{number} 10.0.0.9 1 2\r\n".encode())
            client.start()
            assert isinstance(client.receive(), AuthenticationSASL)
        inside = [connection.address for connection in server.server._lobby._inside]
        assert inside == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]


def fail(client: RawClient, user: str) -> None:
    client.start(user=user)
    client.prove(password="wrong")


def test_a_failed_login_keeps_its_place_and_who_is_refused_is_told_after_the_answer_about_tls(serve: Serve) -> None:
    server = serve(tls=True, limits=ClientLimits(logins=2, failure_delay=8))
    with RawClient(server.port) as guesser:
        fail(guesser, "ana")
        wait_for(lambda: bool(server.register.throttle._waiting))
        for sslmode in ("require", "disable"):
            with pytest.raises(psycopg.OperationalError, match="too many logins from this address"):
                psycopg.connect(f"{server.dsn}?sslmode={sslmode}")
        with silent(server.port, 1) as (nobody,):
            nobody.shutdown(socket.SHUT_WR)
            assert nobody.recv(1) == b"", "nothing before the client has spoken"


def test_who_is_too_late_and_silent_is_told_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.wire.server._REFUSED_SECONDS", 0.05)
    server = serve(limits=ClientLimits(login_seconds=0.05))
    with silent(server.port, 1) as (nobody,):
        assert nobody.recv(1) == b""


def test_only_so_many_of_the_refused_are_heard(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.wire.server._REFUSED_AT_ONCE", 0)
    server = serve(limits=ClientLimits(logins=2, failure_delay=8))
    with RawClient(server.port) as guesser:
        fail(guesser, "ana")
        wait_for(lambda: bool(server.register.throttle._waiting))
        with RawClient(server.port) as refused:
            assert refused.until_end() == []


def test_many_endings_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dpsql.wire")

    async def scenario() -> None:
        endings = Endings(lines=3)
        for number in range(5000):
            refusal = TooManyConnections("no") if number % 5 else AuthenticationFailed("wrong")
            endings.add(f"10.0.0.{number % 2}:{number}", f"10.0.0.{number % 2}", refusal)
        for number in range(3000):
            endings.add("x", f"address {number}", TooManyConnections("no"))
        assert len(endings._addresses) == 1000
        endings.sum_up()
        endings.sum_up()
        endings.add("10.0.0.1:1", "10.0.0.1", TooManyConnections("no"))
        endings.sum_up()

    asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "connection from 10.0.0.0:0 ended: 28P01 'wrong'"
    assert lines[3] == "7997 more connections ended within 60 s: 53300 6998, 28P01 999; 2499 of them from 10.0.0.1"
    assert lines[4:] == ["connection from 10.0.0.1:1 ended: 53300 'no'"]


def test_the_endings_of_a_span_are_summed_up_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        endings = Endings(lines=0, seconds=0.01)
        endings.add("10.0.0.1:1", "10.0.0.1", TooManyConnections("no"))
        while not caplog.records:
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert "1 more connections" in caplog.records[0].getMessage()


def test_over_sockets_refusals_do_not_fill_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dpsql.wire")
    server = serve()
    for _ in range(60):
        with RawClient(server.port) as stranger:
            stranger.send(b"GET / HTTP/1.1\r\n\r\n")
            stranger.drain()
    server.close()
    ended = [record.getMessage() for record in caplog.records if "ended" in record.getMessage()]
    assert len(ended) == 21
    assert ended[-1] == "40 more connections ended within 60 s: 08P01 40; 40 of them from 127.0.0.1"


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (V1, ("10.0.0.7", 40000)),
        (b"PROXY TCP6 ::7 ::1 40000 6543\r\n", ("::7", 40000)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (V2_V4, ("10.0.0.7", 40000)),
        (V2_V6, ("::7", 40000)),
        (V2_V4[:14] + b"\x00\x0f" + V2_V4[16:] + b"\x04\x00\x00", ("10.0.0.7", 40000)),
        (V2_LOCAL, None),
        (V2 + b"\x21\x31\x00\x00", None),
    ],
)
def test_a_proxy_header_is_read_however_it_comes(header: bytes, source: tuple[str, int] | None) -> None:
    for cut in range(len(header)):
        assert read_proxy_header(header[:cut]) is None
    assert read_proxy_header(header) == read_proxy_header(header + V1) == ProxyHeader(len(header), source)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        b"PROXY TCP4 10.0.0.7.1 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 ::7 ::1 1 2\r\n",
        b"PROXY TCP5 ::7 ::1 1 2\r\n",
        b"PROXY " + b"x" * 200,
        V2 + b"\x31\x11\x00\x0c" + bytes(12),
        V2 + b"\x21\x11\x00\x04" + bytes(4),
        V2 + b"\x21\x11\xff\xff",
    ],
)
def test_what_is_no_proxy_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_proxy_header(data)


@pytest.mark.parametrize("header", [V1, V2_V4])
def test_a_trusted_proxy_says_whom_it_speaks_for(serve: Serve, caplog: pytest.LogCaptureFixture, header: bytes) -> None:
    caplog.set_level(logging.INFO, "dpsql.wire")
    server = serve(trusted_proxies=[ip_network("127.0.0.1/32")])
    with RawClient(server.port) as client:
        for byte in header:
            client.send(bytes([byte]))
        client.log_in()
        assert "session of 'ana' on 'clinic' from 10.0.0.7:40000" in caplog.messages
    with RawClient(server.port) as client:
        client.send(V2_LOCAL)
        fail(client, "ana")
        assert client.fatal().sqlstate == "28P01"
    assert ("address", "127.0.0.1") in server.register.throttle._failures


def test_a_trusted_proxy_must_say_it(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(trusted_proxies=[ip_network("127.0.0.0/8")])
    with pytest.raises(psycopg.OperationalError, match="closed"):
        psycopg.connect(server.dsn)
    assert "expected a PROXY protocol header" in caplog.text


def test_a_trusted_proxy_that_is_silent_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.wire.connection._HEADER_SECONDS", 0.05)
    server = serve(trusted_proxies=[ip_network("127.0.0.0/8")])
    with RawClient(server.port) as client:
        client.send(b"PROXY ")
        assert client.drain() == b""


def test_others_are_not_believed(serve: Serve, server: RunningServer) -> None:
    for port in (server.port, serve(trusted_proxies=[ip_network("10.0.0.0/8"), ip_network("::/0")]).port):
        with RawClient(port) as client:
            client.send(V1)
            client.start()
            assert client.fatal().sqlstate == "08P01"
        with psycopg.connect(f"postgresql://ana:secret@127.0.0.1:{port}/clinic") as connection:
            assert connection.execute("select 1").fetchall() == [(1,)]


def test_an_address_of_ipv4_on_a_socket_for_both_is_in_its_network(serve: Serve) -> None:
    server = serve(trusted_proxies=[ip_network("10.0.0.0/8")]).server
    assert server._is_proxy("::ffff:10.1.2.3")
    assert not server._is_proxy("::ffff:11.1.2.3")


def test_one_who_guesses_behind_an_address_locks_out_nobody_there(serve: Serve) -> None:
    server = serve(limits=ClientLimits(failure_delay=5))
    guessers = [threading.Thread(target=guess, args=(server.port,)) for _ in range(12)]
    for guesser in guessers:
        guesser.start()
    wait_for(lambda: server.register.throttle._waiting.total() >= 5)
    with psycopg.connect(server.dsn.replace("ana", "ben"), connect_timeout=HANG_SECONDS) as connection:
        assert connection.execute("select 1").fetchall() == [(1,)]
    server.close()
    for guesser in guessers:
        guesser.join()


def guess(port: int) -> None:
    with pytest.raises((psycopg.OperationalError, AssertionError)):
        psycopg.connect(f"postgresql://ana:wrong@127.0.0.1:{port}/clinic")


def test_a_password_that_is_changed_while_it_is_judged_opens_no_session(server: RunningServer) -> None:
    """The gateway looks for changes every two seconds: one may come before there is a session to be ended."""
    judged_by = iter([_VERIFIERS["ana"], make_verifier("new")])

    async def lookup(user: str) -> str | None:
        return next(judged_by)

    server.server._gate = replace(server.server._gate, lookup=lookup)
    with pytest.raises(psycopg.OperationalError, match='the password of user "ana" was changed'):
        psycopg.connect(server.dsn)
    wait_for(lambda: server.server.sessions == 0)
