"""Two gateways behind HAProxy on one ledger are restarted in turn: each answer is given, and charged once."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from dpsql.cli import main
from dpsql.ledger import open_ledger
from tests.conftest import ROOT
from tests.faults.forks import Fork, Forks
from tests.faults.victims import connect
from tests.faults.world import charges, question, with_passwords, write_policy
from tests.waiting import HANG_SECONDS, wait_for

INSTALLED = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIGURATION = ROOT / "examples" / "haproxy" / "haproxy.cfg"
CLIENTS = 4

pytestmark = pytest.mark.skipif(INSTALLED is None, reason="there is no haproxy")


def serve_at(policy: str, ledger: str, port: int, metrics: int) -> None:
    """Be one of the gateways."""
    where = ["--port", str(port), "--metrics-port", str(metrics), "--trusted-proxy", "127.0.0.1"]
    main(["serve", policy, "--ledger", ledger, *where])


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(number)]


@dataclass
class Proxy:
    """HAProxy as the example says, but for its addresses."""

    folder: Path
    port: int

    def is_up(self, name: str) -> bool:
        """Whether it would send a client to a gateway."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.folder / "admin"))
            client.sendall(b"show stat\n")
            told = b"".join(iter(lambda: client.recv(65536), b"")).decode()
        return re.search(rf"^dpsql,{name},.*,UP,", told, re.MULTILINE) is not None


@contextmanager
def proxied(folder: Path, gateways: list[tuple[int, int]]) -> Iterator[Proxy]:
    (port,) = free_ports(1)
    text = CONFIGURATION.read_text(encoding="utf-8")
    assert len(re.findall(r"^    server ", text, re.MULTILINE)) == len(gateways)
    for number, (own, metrics) in enumerate(gateways, 11):
        text = text.replace(f"10.0.0.{number}:6543 send-proxy-v2 check port 9187",
                            f"127.0.0.1:{own} send-proxy-v2 check port {metrics}")  # fmt: skip
    text = text.replace("bind :6543", f"bind 127.0.0.1:{port}")
    text = text.replace("global\n", f"global\n    stats socket {folder / 'admin'} level user\n")
    path = folder / "haproxy.cfg"
    path.write_text(text, encoding="utf-8")
    assert "server one 127.0.0.1" in text and "server two 127.0.0.1" in text
    with subprocess.Popen([str(INSTALLED), "-q", "-db", "-f", str(path)], stderr=subprocess.PIPE) as process:
        try:
            wait_for(lambda: (folder / "admin").exists())
            yield Proxy(folder, port)
        finally:
            process.terminate()


def test_the_example_is_one() -> None:
    subprocess.run([str(INSTALLED), "-c", "-q", "-f", str(CONFIGURATION)], check=True, capture_output=True)


def test_a_rolling_restart_loses_no_answer_and_charges_none_twice(
    forks: Forks, clinic_file: Path, tmp_path: Path, postgres_places: list[str]
) -> None:
    policy = write_policy(tmp_path / "two.toml", clinic_file, answers=10_000)
    url = postgres_places[0]
    ledger = with_passwords(open_ledger(url))
    ports = free_ports(4)
    places = {"one": (ports[0], ports[1]), "two": (ports[2], ports[3])}

    def start(name: str) -> Fork:
        gateway = forks.start("tests.clients.test_haproxy:serve_at", policy, url, *places[name])
        gateway.line_with("listening on")
        wait_for(lambda: proxy.is_up(name))
        return gateway

    is_over = threading.Event()
    answered: list[dict[str, int]] = [{} for _ in range(CLIENTS)]

    def ask(client: int) -> int:
        """Ask one question after another, again where no answer came; returns how often the session was lost."""
        lost, number = 0, client
        connection = connect(proxy.port)
        while not is_over.is_set():
            try:
                ((count,),) = connection.execute(question(number)).fetchall()
            except psycopg.OperationalError as error:
                assert error.sqlstate in (None, "57P01", "57P03", "57014"), error
                lost += 1
                connection.close()
                connection = connected(proxy.port)
            else:
                answered[client][question(number)] = count
                number += CLIENTS
        connection.close()
        return lost

    def step() -> None:
        """Wait until each client was answered again."""
        before = [len(answers) for answers in answered]
        wait_for(lambda: all(len(answers) > 1 + old for answers, old in zip(answered, before, strict=True)))

    with proxied(tmp_path, list(places.values())) as proxy, ThreadPoolExecutor(CLIENTS) as pool:
        gateways = {name: start(name) for name in places}
        clients = [pool.submit(ask, client) for client in range(CLIENTS)]
        try:
            for name in (*places, *places):
                step()
                assert gateways[name].stop(signal.SIGTERM) == 0
                step()  # of the other alone
                gateways[name] = start(name)
            step()
        finally:
            is_over.set()
        assert sum(client.result(HANG_SECONDS) for client in clients) > 0, "no session was on a gateway that stopped"
        told = {sql: count for answers in answered for sql, count in answers.items()}
        # What was asked is charged once; the last question of each client may have had no answer.
        charged = charges(ledger, policy)
        assert len(charged) == len(set(charged))
        assert set(told) <= set(charged) and len(charged) <= len(told) + CLIENTS
        with connect(proxy.port) as connection:
            assert {sql: connection.execute(sql).fetchall() for sql in told} == {sql: [(n,)] for sql, n in told.items()}
        assert len(charges(ledger, policy)) == len(charged)
        assert [gateway.stop(signal.SIGTERM) for gateway in gateways.values()] == [0, 0]
    ledger.close()


def connected(port: int) -> "psycopg.Connection[tuple[object, ...]]":
    """A session, with whichever gateway there is."""
    made: list[psycopg.Connection[tuple[object, ...]]] = []

    def is_let_in() -> bool:
        with suppress(psycopg.OperationalError):
            made.append(connect(port))
        return bool(made)

    wait_for(is_let_in)
    return made[0]
