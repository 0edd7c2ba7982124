"""What a gateway holds for clients that ask for a large result and never read it.

python -m benchmarks.unread --clients 20 --users 20
"""

import argparse
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from importlib.resources import files
from pathlib import Path

import psycopg

from dpsql.cli.clinic import generate_clinic
from dpsql.ledger import open_ledger
from dpsql.wire.scram import make_verifier

QUERY = "SELECT repeat('x', 10000) FROM doctors, generate_series(1, 100)"
"""About 190 MiB."""
_CLIENT = "user=u{} password=secret host=127.0.0.1 dbname=clinic port={}"


def megabytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process and its peak, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    now, most = (re.search(rf"{field}:\s+(\d+)", status) for field in ("VmRSS", "VmHWM"))
    assert now is not None and most is not None
    return int(now[1]) >> 10, int(most[1]) >> 10


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unread")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--users", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        policy, ledger = Path(folder, "clinic.toml"), f"sqlite:///{folder}/ledger.sqlite"
        policy.write_text(files("dpsql.cli").joinpath("clinic.toml").read_text(encoding="utf-8"), encoding="utf-8")
        generate_clinic(Path(folder, "clinic.duckdb"), patients=1_000)
        with closing(open_ledger(ledger)) as opened:
            for number in range(options.users):
                opened.add_account(f"u{number}", "analyst", make_verifier("secret"))
        command = [sys.executable, "-m", "dpsql", "serve", str(policy), "--port", "0", "--ledger", ledger]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as gateway:
            try:
                measure(gateway, options.clients, options.users)
            finally:
                gateway.terminate()


def measure(gateway: "subprocess.Popen[str]", clients: int, users: int) -> None:
    """Let the clients ask, and print the gateway's memory once each client has the beginning of its reply."""
    assert gateway.stderr is not None
    port = next(line for line in gateway.stderr if "listening on" in line).rpartition(":")[2].strip()
    before, _ = megabytes(gateway.pid)
    with ExitStack() as stack:
        poll = select.poll()
        for number in range(clients):
            client = psycopg.connect(_CLIENT.format(number % users, port))
            stack.callback(client.close)
            client.pgconn.send_query(QUERY.encode())
            client.pgconn.flush()
            poll.register(client.pgconn.socket, select.POLLIN)
        begun: list[bytes] = []
        while len(begun) < clients:
            for number, _ in poll.poll():
                poll.unregister(number)
                with socket.socket(fileno=os.dup(number)) as peeked:
                    begun.append(peeked.recv(1, socket.MSG_PEEK))
        now, most = megabytes(gateway.pid)
        print(f"{clients} clients of {users} users, {begun.count(b'E')} of them refused: ", end="")
        print(f"{before} MiB before, {now} MiB now, peak {most} MiB")


if __name__ == "__main__":
    main()
