"""Secrets: passwords, rows and constants of queries in the process list, the log, error messages and files.

Whoever has a login on the gateway's machine, or reads its log, needs no SQL. A program of its own is asked, is told
wrong passwords and gets bytes that are no protocol; then all that it has shown is searched.
"""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from dpsql.ledger import SqliteLedger
from dpsql.wire.scram import make_verifier
from tests.attacks.arena import SECRET, Arena, Comparison, Verdict
from tests.attacks.test_login import EARLY, FIRST, STARTUP
from tests.waiting import HANG_SECONDS, wait_for

SECONDS = HANG_SECONDS
PASSWORD, WRONG, CONSTANT = "canary_password", "canary_guess", "canary_constant"
QUESTIONS = (
    f"SELECT COUNT(*) FROM people WHERE city = '{CONSTANT}'",
    f"SELECT COUNT(CAST(city AS INTEGER)) FROM people WHERE age = 108 OR city = '{CONSTANT}'",
    f"SELECT city, '{CONSTANT}' FROM people",
    f"SELECT '{CONSTANT}'::regclass",
    f"SELECT CAST('{CONSTANT}' AS date), oid FROM pg_class",
    f"SELECT relname FROM pg_class WHERE relname ~ '[{CONSTANT}'",
    f"SELECT {{ '{CONSTANT}",
    f"SET dpsql.epsilon = '{CONSTANT}'",
)
NAIVE = """
import sys, duckdb
database, ledger, password = sys.argv[1:]
connection = duckdb.connect(database, read_only=True)
for line in sys.stdin:
    print(line, file=sys.stderr)
    print(line, file=open(ledger, "a"))
    given, sql = line.split(" ", 1)
    try:
        print(connection.execute(sql).fetchall() if given == password else f"it is not {given}", flush=True)
    except duckdb.Error as error:
        print(repr(str(error)), flush=True)
"""
Told = Callable[[str, str], str]
"""What a gateway answers to a password and a query."""


@dataclass(frozen=True)
class Program:
    """A running gateway, and where its log and its ledger are."""

    process: "subprocess.Popen[str]"
    log: Path
    ledger: Path

    def places(self, told: Told) -> dict[str, str]:
        """By place, what somebody else than the operator reads there, or who reads the log."""
        answers = [told(PASSWORD, sql) for sql in QUESTIONS] + [told(WRONG, sql) for sql in QUESTIONS[:2]]
        listed = Path(f"/proc/{self.process.pid}/cmdline").read_text(encoding="utf-8")
        files = self.ledger.parent.glob(f"{self.ledger.name}*")
        read = [file.read_bytes() for file in files if file.stat().st_mode & 0o077]
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(SECONDS)
        log = self.log.read_text(encoding="utf-8")
        return {"processes": listed, "errors": "".join(answers), "files": str(read), "log": log}


def port_of(program: Program) -> str:
    """Where it listens, once it does."""
    wait_for(lambda: "listening on" in program.log.read_text(encoding="utf-8"))
    return str(re.findall(r"listening on .*:(\d+)", program.log.read_text(encoding="utf-8"))[0])


@contextmanager
def running(folder: Path, ledger: Path, *words: str) -> Iterator[Program]:
    pipe, log = subprocess.PIPE, folder / f"log-{ledger.name}"
    with log.open("w") as written:
        command = [sys.executable, *words]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=written, text=True) as process:
            try:
                yield Program(process, log, ledger)
            finally:
                process.kill()


def naive(arena: Arena) -> dict[str, str]:
    data, ledger = arena.file("naive", True), arena.folder / "told-naive"
    with running(arena.folder, ledger, "-c", NAIVE, str(data), str(ledger), PASSWORD) as program:
        asks, answers = program.process.stdin, program.process.stdout
        assert asks is not None and answers is not None

        def told(password: str, sql: str) -> str:
            asks.write(f"{password} {sql}\n")
            asks.flush()
            return answers.readline()

        return program.places(told)


def dpsql(arena: Arena) -> dict[str, str]:
    policy, path = arena.engine(True, query=0.1).policy.path, arena.folder / "told-dpsql"
    ledger = SqliteLedger(path)
    ledger.add_account("ana", "analyst", make_verifier(PASSWORD))
    ledger.close()
    words = ("-m", "dpsql", "serve", str(policy), "--port", "0", "--ledger", f"sqlite:///{path}")
    with running(arena.folder, path, *words) as program:
        port = port_of(program)

        def told(password: str, sql: str) -> str:
            try:
                with psycopg.connect(f"postgresql://ana:{password}@127.0.0.1:{port}/arena", autocommit=True) as client:
                    return str(client.execute(sql.encode()).statusmessage)
            except psycopg.Error as error:
                return str(error)

        for message in EARLY:
            with socket.create_connection(("127.0.0.1", int(port)), SECONDS) as client:
                client.sendall(STARTUP + FIRST + message.encode() + PASSWORD.encode())
        return program.places(told)


def verdict(places: dict[str, str]) -> Verdict:
    """What a client has sent is no secret in the answer to that client, but everywhere else."""
    secrets = {place: {PASSWORD, WRONG, CONSTANT, SECRET} for place in places} | {"errors": {PASSWORD, SECRET}}
    telling = [place for place, text in places.items() if any(secret in text for secret in secrets[place])]
    return Verdict(f"{len(telling)} of {len(places)} places tell: {', '.join(telling) or 'none'}", bool(telling))


def compare(arena: Arena) -> Comparison:
    return Comparison("secrets", verdict(naive(arena)), verdict(dpsql(arena)))


def test_secrets(arena: Arena) -> None:
    compare(arena).check()
