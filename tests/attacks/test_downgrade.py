"""Downgrade: somebody in between takes the encryption away, or meets the client with TLS of their own.

The client does not verify certificates, as by default. What the two ends agreed upon must not be talked down by one
who changes bytes on the way: RFC 5802, section 6, says how SCRAM notices.
"""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg

from dpsql.wire.messages.backend import AuthenticationSASL
from dpsql.wire.messages.frontend import SSLRequest
from dpsql.wire.scram import PLAIN, PLUS
from tests.attacks.arena import Arena, Comparison, Verdict
from tests.attacks.test_login import naive_server
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import HERE, RunningServer

SECONDS = HANG_SECONDS
ASKS_FOR_TLS = SSLRequest().encode()
OFFERED = AuthenticationSASL((PLUS, PLAIN)).encode()
"""What the gateway offers under TLS."""
HIDDEN = AuthenticationSASL((PLAIN,)).encode()
WITH_BINDING, WITHOUT_BINDING = b"y,,", b"n,,"
"""How a client's first message begins that could bind the channel and was not offered to; and one that cannot."""

Edit = Callable[[bytes], bytes]
"""What is made of bytes on their way."""


def unchanged(data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Middle:
    """One who sits in between.

    Attributes:
        tls: The client is met with TLS, by another certificate, and so is the gateway; else there is none.
        down: What becomes of the gateway's bytes.
        up: What becomes of the client's bytes.
    """

    tls: bool
    down: Edit = unchanged
    up: Edit = unchanged

    def between(self, client: socket.socket, server: socket.socket) -> None:
        """Meet both ends, then pass bytes on until one of them has enough."""
        if client.recv(len(ASKS_FOR_TLS), socket.MSG_PEEK) == ASKS_FOR_TLS:  # else it has given up on TLS
            client.recv(len(ASKS_FOR_TLS))
            client.sendall(b"S" if self.tls else b"N")
            if self.tls:
                client = _own_tls().wrap_socket(client, server_side=True)
                server.sendall(ASKS_FOR_TLS)
                assert server.recv(1) == b"S"
                server = _any_tls().wrap_socket(server)
        with client, server:
            _pass_on({client: (server, self.up), server: (client, self.down)})


WAYS = {
    "no TLS": Middle(tls=False),
    "own TLS": Middle(tls=True),
    "PLUS hidden": Middle(tls=True, down=lambda data: data.replace(OFFERED, HIDDEN)),
    "PLUS hidden, flag changed": Middle(
        tls=True,
        down=lambda data: data.replace(OFFERED, HIDDEN),
        up=lambda data: data.replace(WITH_BINDING, WITHOUT_BINDING),
    ),
}


def _own_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(HERE / "renewed.crt", HERE / "renewed.key")
    return context


def _any_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _pass_on(ends: dict[socket.socket, tuple[socket.socket, Edit]]) -> None:
    """Pass on what each end sends. One thread does both ways: a TLS connection must not be read and written at once."""
    with suppress(OSError):
        while ready := select.select(ends, (), (), SECONDS)[0]:
            for source in ready:
                target, edit = ends[source]
                while (data := _received(source)) is not None:
                    if not data:
                        return
                    target.sendall(edit(data))


def _received(source: socket.socket) -> bytes | None:
    """What has come, empty at the end; None if nothing is left, as after a TLS record that carries no data."""
    source.setblocking(False)
    try:
        return source.recv(65536)
    except (BlockingIOError, ssl.SSLWantReadError):
        return None
    finally:
        source.settimeout(SECONDS)


@contextmanager
def tapped(middle: Middle, port: int) -> Iterator[int]:
    """The port at which clients meet the one in between."""
    with socket.create_server(("127.0.0.1", 0)) as tap:

        def meet() -> None:
            with suppress(OSError):  # the tap is closed, or a client does not trust the certificate
                while True:
                    client, _ = tap.accept()
                    client.settimeout(SECONDS)
                    with client, socket.create_connection(("127.0.0.1", port), SECONDS) as server:
                        middle.between(client, server)

        meeting = threading.Thread(target=meet)
        meeting.start()
        yield tap.getsockname()[1]
        tap.shutdown(socket.SHUT_RDWR)
        meeting.join()


def is_logged_in(port: int, options: str = "sslmode=prefer") -> bool:
    """Whether a rightful client gets in, and so whoever sits in between."""
    try:
        psycopg.connect(f"postgresql://ana:secret@127.0.0.1:{port}/clinic?gssencmode=disable&{options}").close()
    except psycopg.OperationalError:
        return False
    return True


def ways_in(port: int) -> list[str]:
    """The ways in which somebody in between is let in."""
    found = []
    for name, middle in WAYS.items():
        with tapped(middle, port) as tap:
            found += [name] if is_logged_in(tap) else []
    return found


def verdict(port: int) -> Verdict:
    found = ways_in(port)
    return Verdict(f"{len(found)} of {len(WAYS)} ways in", bool(found))


def compare(_arena: Arena) -> Comparison:
    with naive_server() as naive:
        fallen = verdict(naive)
    server = RunningServer(tls=True, require_tls=True)
    try:
        return Comparison("downgrade, in between", fallen, verdict(server.port))
    finally:
        server.close()


def test_downgrade(arena: Arena) -> None:
    compare(arena).check()


def test_a_client_that_does_not_bind_the_channel_must_verify_the_certificate() -> None:
    """As docs/security.md says: the gateway cannot know of one in between whom the client takes for the gateway."""
    server = RunningServer(tls=True, require_tls=True)
    verified = f"sslmode=verify-full&sslrootcert={HERE / 'server.crt'}"
    try:
        with tapped(WAYS["own TLS"], server.port) as tap:
            assert is_logged_in(tap, "sslmode=require&channel_binding=disable")
            assert not is_logged_in(tap, "sslmode=require&channel_binding=require")
            assert not is_logged_in(tap, f"{verified}&channel_binding=disable")
        assert is_logged_in(server.port, verified)
    finally:
        server.close()
