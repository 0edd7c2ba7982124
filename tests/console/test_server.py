"""Bytes of strangers: typed, short answers in bounded time, and a server that goes on."""

import http.client
import socket
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.wire.http import HttpBounds
from dpsql.wire.tls import load_tls
from tests.console.world import Place, RunningConsole, ask, logged_in, site
from tests.waiting import HANG_SECONDS, wait_for
from tests.wire.conftest import CERTIFICATE, KEY


def say(console: RunningConsole, data: bytes, *, end: bool = True) -> bytes:
    """Send bytes; return all that comes back."""
    with socket.create_connection(("127.0.0.1", console.port), timeout=HANG_SECONDS) as client:
        try:
            client.sendall(data)
            if end:
                with suppress(OSError):  # it may be closed already
                    client.shutdown(socket.SHUT_WR)
            told = b""
            while more := client.recv(1 << 16):
                told += more
        except (ConnectionResetError, BrokenPipeError):
            return b""
    return told


HERE = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", b"421"),
        (b"GET http://127.0.0.1/login HTTP/1.1\r\n" + HERE + b"\r\n", b"400"),
        (b"GET /\xc3\xa9 HTTP/1.1\r\n" + HERE + b"\r\n", b"400"),
        (b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + HERE + b"\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + HERE + b"Name : x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + HERE + b"X: a\0b\r\n\r\n", b"400"),
        (b"GET /login HTTP/1.1\r\n" + HERE + b"X: a\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\nHost: 127.0.0.1\n\r\n\r\n", b"400"),
        (b"POST /login HTTP/1.1\r\n" + HERE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"403"),
        (b"POST /login HTTP/1.1\r\n" + HERE + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n" + b"a" * 9000, b"413"),
        (b"POST /login HTTP/1.1\r\n" + HERE + b"Transfer-Encoding: gzip\r\n\r\n", b"400"),
        (b"HEAD /login HTTP/1.1\r\n" + HERE + b"Content-Length: 5000\r\n\r\n", b"413"),
        (b"POST /login HTTP/1.1\r\n" + HERE + b"Content-Length: 999999999\r\n\r\n", b"413"),
        (b"POST /login HTTP/1.1\r\n" + HERE + b"Content-Length: 9999999999999\r\n\r\n", b"413"),
        (b"POST /login HTTP/1.1\r\n" + HERE + b"Content-Length: -1\r\n\r\n", b"400"),
        (b"POST /login HTTP/1.1\r\n" + HERE + b"Content-Length: 1e3\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 8_000_000, b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 10_000 + b"\r\n", b"431"),
        (b"GET /login HTTP/1.1\r\n" + HERE + b"\r\nGET /login HTTP/1.1\r\n" + HERE + b"\r\n", b"200"),
    ],
)
def test_bad_bytes_are_answered_in_a_line(console: RunningConsole, data: bytes, status: bytes) -> None:
    told = say(console, data)
    assert told.startswith(b"HTTP/1.1 " + status)
    assert told.count(b"HTTP/1.1 ") == 1 and b"Content-Security-Policy: default-src 'none'" in told
    assert status == b"200" or len(told) < 1000


@pytest.mark.parametrize(
    "data", [b"", b"GET / HT", b"POST /login HTTP/1.1\r\n" + HERE + b"Content-Length: 9\r\n\r\npass"]
)
def test_who_goes_away_is_told_nothing(console: RunningConsole, data: bytes) -> None:
    assert say(console, data) == b""


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_answered_with_a_refusal_or_nothing(console: RunningConsole, data: bytes, is_head: bool) -> None:
    told = say(console, (b"GET / HTTP/1.1\r\n" + HERE if is_head else b"") + data)
    assert told == b"" or told[9:12] in (b"400", b"303", b"421", b"431", b"404")


@pytest.fixture
def impatient(place: Place) -> Iterator[RunningConsole]:
    """A console that waits for nobody."""
    running = RunningConsole(site(place), bounds=HttpBounds(request_seconds=0.2))
    yield running
    running.close()


def test_who_says_nothing_is_let_go(impatient: RunningConsole) -> None:
    for data in (b"", b"GET / HTTP/1.1\r\n", b"POST /login HTTP/1.1\r\n" + HERE + b"Content-Length: 9\r\n\r\n"):
        assert say(impatient, data, end=False) == b""
    assert ask(impatient, "GET", "/login").status == 200


def test_one_address_has_half_of_the_places(place: Place) -> None:
    assert HttpBounds().address_places * 2 == HttpBounds().places
    running = RunningConsole(site(place), bounds=HttpBounds(places=6, address_places=3))
    silent = []
    try:
        silent = [socket.create_connection(("127.0.0.1", running.port), timeout=HANG_SECONDS) for _ in range(3)]
        wait_for(lambda: running.server._taken.total() == 3)
        assert say(running, b"GET /login HTTP/1.1\r\n" + HERE + b"\r\n") == b""
        silent.pop().close()
        wait_for(lambda: running.server._taken.total() == 2)
        assert ask(running, "GET", "/login").status == 200
    finally:
        for client in silent:
            client.close()
        running.close()


def test_a_ledger_that_takes_too_long_is_said_to(place: Place) -> None:
    running = RunningConsole(site(place), bounds=HttpBounds(answer_seconds=0.2))
    try:
        cookie = logged_in(running)
        with closing(sqlite3.connect(place.ledger, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = ask(running, "GET", "/", Cookie=cookie)
            assert (answer.status, answer.body) == (503, b"the answer takes too long; try again\n")
            other.execute("ROLLBACK")
    finally:
        running.close()


def test_a_fault_before_there_is_a_request_ends_one_connection(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*head: object) -> None:
        raise RuntimeError(f"secret {head!r}")

    with monkeypatch.context() as patch:
        patch.setattr("dpsql.wire.http._read", broken)
        assert say(console, b"GET /login HTTP/1.1\r\n" + HERE + b"\r\n") == b""
    wait_for(lambda: "unexpected RuntimeError" in caplog.text)
    assert "secret" not in caplog.text
    assert ask(console, "GET", "/login").status == 200


def test_under_tls_nobody_is_heard_in_the_clear(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    running = RunningConsole(site(place, secure=True), load_tls(CERTIFICATE, KEY).context)
    try:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = http.client.HTTPSConnection("127.0.0.1", running.port, timeout=HANG_SECONDS, context=context)
        client.request("GET", "/login")
        with client.getresponse() as response:
            assert response.status == 200 and b"password" in response.read()
        client.close()
        assert b"HTTP" not in say(running, b"GET /login HTTP/1.1\r\n" + HERE + b"\r\n")
    finally:
        running.close()
