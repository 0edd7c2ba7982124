"""Login: messages before it, an old exchange sent again, a password in clear, many guesses at once."""

import base64
import hashlib
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg

from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.messages.frontend import (
    Bind,
    Close,
    CopyData,
    CopyDone,
    CopyFail,
    Describe,
    Execute,
    Flush,
    FrontendMessage,
    FunctionCall,
    Parse,
    Query,
    SASLInitialResponse,
    SASLResponse,
    SSLRequest,
    StartupMessage,
    Sync,
)
from dpsql.wire.scram import PLAIN
from tests.attacks.arena import Arena, Comparison, Verdict
from tests.wire.conftest import CERTIFICATE, KEY, RunningServer

USER = (("user", "ana"), ("database", "clinic"))
STARTUP = StartupMessage(3, 0, USER).encode()
READY = b"Z\x00\x00\x00\x05I"
EARLY: tuple[FrontendMessage, ...] = (
    Query(b"select 1"),
    Parse(b"", b"select 1", ()),
    Bind(b"", b""),
    Describe(b"S", b""),
    Execute(b""),
    Close(b"S", b""),
    Flush(),
    FunctionCall(),
    CopyData(b"1"),
    CopyDone(),
    CopyFail(),
    Sync(),
)
"""Every message there is but those of the login itself, and Terminate, which ends it."""
FIRST = SASLInitialResponse(PLAIN, b"n,,n=,r=nonce").encode()
STAGES: tuple[tuple[bytes, ...], ...] = ((), (FIRST,))
"""What has been sent of a login: the startup alone, and SCRAM's first message too."""
GUESSES = 30


class NaiveLogin(socketserver.StreamRequestHandler):
    """TLS for who asks for it, MD5 with the same salt for everybody, and a query is answered whenever it comes."""

    def handle(self) -> None:
        with suppress(OSError, ValueError):
            startup = self.rfile.read(int.from_bytes(self.rfile.read(4), "big") - 4)
            if startup == SSLRequest().encode()[4:]:
                self._encrypt()
                self.rfile.read(int.from_bytes(self.rfile.read(4), "big") - 4)
            self.wfile.write(b"R\x00\x00\x00\x0c\x00\x00\x00\x05salt")
            while kind := self.rfile.read(1):
                body = self.rfile.read(int.from_bytes(self.rfile.read(4), "big") - 4)
                self.wfile.write(self._reply(kind, body))

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def _encrypt(self) -> None:
        self.wfile.write(b"S")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(CERTIFICATE, KEY)
        self.request = tls.wrap_socket(self.request, server_side=True)
        self.setup()

    def _reply(self, kind: bytes, body: bytes) -> bytes:
        if kind != b"p":
            return READY
        inner = hashlib.md5(b"secretana").hexdigest().encode()
        proof = b"md5" + hashlib.md5(inner + b"salt").hexdigest().encode() + b"\0"
        failed = b"SFATAL\0C28P01\0Mwrong password\0\0"
        if body == proof:
            return b"R\x00\x00\x00\x08\x00\x00\x00\x00" + READY
        return b"E" + (len(failed) + 4).to_bytes(4, "big") + failed


class NaiveServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 300


@contextmanager
def naive_server() -> Iterator[int]:
    with NaiveServer(("127.0.0.1", 0), NaiveLogin) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def gateway() -> Iterator[int]:
    """Failed logins are told after so long that all guesses come meanwhile, on however slow a machine."""
    server = RunningServer(limits=ClientLimits(failure_delay=2))
    server.register.throttle._most = 2
    try:
        yield server.port
    finally:
        server.close()


def answer(port: int, *messages: bytes) -> bytes:
    """What comes back for the last of some messages, up to where the client would be ready or is sent away."""
    with socket.create_connection(("127.0.0.1", port), 10) as client, suppress(ConnectionError):
        client.sendall(STARTUP)
        for message in messages:
            client.recv(65536)
            client.sendall(message)
        reply = b""
        while READY not in reply and (more := client.recv(65536)):
            reply += more
        return reply
    return b"E"


def heard(port: int) -> int:
    """How many kinds of messages are heard before the login, at one of its stages."""
    replies = (answer(port, *sent, message.encode()) for sent in STAGES for message in EARLY)
    return sum(not reply.startswith(b"E") for reply in replies)


def recorded(port: int) -> list[bytes]:
    """What a rightful client sends in one login, as seen on the way."""
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as tap:
        tapped = threading.Thread(target=_forward, args=(tap, port, sent))
        tapped.start()
        with suppress(psycopg.OperationalError):
            psycopg.connect(f"postgresql://ana:secret@127.0.0.1:{tap.getsockname()[1]}/clinic?sslmode=disable").close()
        tapped.join()
    return sent


def _forward(tap: socket.socket, port: int, sent: list[bytes]) -> None:
    client, _ = tap.accept()
    with client, socket.create_connection(("127.0.0.1", port), 10) as server:
        other = {client: server, server: client}
        while True:
            for side in select.select(list(other), [], [])[0]:
                data = side.recv(65536)
                if not data:
                    return
                other[side].sendall(data)
                if side is client:
                    sent.append(data)


def is_replayed(port: int) -> bool:
    """Whether the same bytes let an eavesdropper in."""
    _, *proofs = (data for data in recorded(port) if not data.startswith(b"X"))
    return READY in answer(port, *proofs)


def wrong_proof(client: socket.socket) -> bytes:
    """Go as far as to the proof, whichever is asked for."""
    client.sendall(STARTUP)
    if not client.recv(65536)[9:].startswith(b"SCRAM"):
        return b"p" + (40).to_bytes(4, "big") + b"md5" + b"0" * 32 + b"\0"
    client.sendall(FIRST)
    nonce = client.recv(65536)[9:].partition(b",")[0]
    return SASLResponse(b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32))).encode()


def judged(port: int) -> int:
    """How many wrong passwords are judged of those that are sent at the same moment."""
    with ExitStack() as held:
        clients = [held.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(GUESSES)]
        proofs = [wrong_proof(client) for client in clients]
        for client, proof in zip(clients, proofs, strict=True):
            client.sendall(proof)
        return sum(b"28P01" in client.recv(65536) for client in clients)


def verdict(port: int) -> Verdict:
    early, replayed, guesses = heard(port), is_replayed(port), judged(port)
    tried = len(EARLY) * len(STAGES)
    told = f"{early} of {tried} early, {'' if replayed else 'not '}replayed, {guesses} of {GUESSES} guesses at once"
    return Verdict(told, early > 0 or replayed or guesses > GUESSES // 2)


def compare(_arena: Arena) -> Comparison:
    with naive_server() as naive, gateway() as dpsql:
        return Comparison("login", verdict(naive), verdict(dpsql))


def test_login(arena: Arena) -> None:
    compare(arena).check()
