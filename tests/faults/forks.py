"""Processes that are quick to start and to kill: forked from one that has imported everything.

They open ledger, database and sockets after the fork, so they differ from a program that was started in nothing but
the second that its imports take.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parent.parent.parent
SECONDS = HANG_SECONDS
"""Longer than anything takes; that it was reached is a failure."""


@dataclass
class Fork:
    """A process that runs a function.

    Attributes:
        pid: Its number.
    """

    pid: int
    _out: int
    _into: int
    _parent: "Forks"
    _unread: bytes = b""

    def line(self) -> str:
        """Return the next line that it prints; an empty one when it has ended."""
        while b"\n" not in self._unread and (more := self._more()):
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def rest(self) -> str:
        """Return all that it still prints."""
        while more := self._more():
            self._unread += more
        return self._unread.decode()

    def _more(self) -> bytes:
        readable, _, _ = select.select([self._out], [], [], SECONDS)
        assert readable, f"nothing was printed for {SECONDS} s, after {self._unread!r}"
        return os.read(self._out, 65536)

    def line_with(self, part: str) -> str:
        """Return the next line that has the part."""
        lines = []
        while line := self.line():
            if part in line:
                return line
            lines.append(line)
        raise AssertionError("\n".join(lines))

    def result(self) -> Any:
        """Wait for its end, and return what its function returned."""
        text = self.rest()
        assert self.end() == 0, text
        return json.loads(text)

    def tell(self, line: str = "") -> None:
        """Print a line to it."""
        os.write(self._into, f"{line}\n".encode())

    def stop(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, and return its exit status, negative if the signal ended it."""
        os.kill(self.pid, number)
        return self.end()

    def end(self) -> int:
        """Wait, and return its exit status."""
        status = self._parent.wait(self.pid)
        os.close(self._out)
        os.close(self._into)
        return status


class Forks:
    """Where processes are forked from; those that are left are killed at the end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(2 * SECONDS)
        # Libraries that compute in threads of their own do not survive a fork.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.forks", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        self._living: dict[int, Fork] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fork in list(self._living.values()):
            fork.stop()
        self._socket.close()
        self._process.wait(SECONDS)

    def start(self, function: str, *arguments: object) -> Fork:
        """Run `module:name` with arguments that JSON can say."""
        their_input, into = os.pipe()
        out, their_output = os.pipe()
        request = json.dumps([function, *map(_plain, arguments)]).encode()
        socket.send_fds(self._socket, [request], [their_input, their_output])
        os.close(their_input)
        os.close(their_output)
        fork = Fork(self._answer(), out, into, self)
        self._living[fork.pid] = fork
        return fork

    def run(self, function: str, *arguments: object) -> Any:
        """Run a function to its end, and return what it returned."""
        return self.start(function, *arguments).result()

    def wait(self, pid: int) -> int:
        """Wait for a process, and return its exit status."""
        del self._living[pid]
        self._socket.sendall(json.dumps(pid).encode())
        return self._answer()

    def _answer(self) -> int:
        return int(self._socket.recv(64))


def _plain(argument: object) -> object:
    return str(argument) if isinstance(argument, Path) else argument


def _serve(requests: socket.socket) -> None:
    """Fork and wait, as told, until nobody is there to tell."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, 65536, 2)
        if not message:
            return
        request = json.loads(message)
        if isinstance(request, int):
            answer = _wait(request)
        else:
            name, *arguments = request
            module, _, function = name.partition(":")
            loaded = importlib.import_module(module)  # here, so that the next process finds it imported
            answer = os.fork()
            if answer == 0:
                requests.close()
                _run(getattr(loaded, function), arguments, *files)
            for file in files:
                os.close(file)
        requests.sendall(str(answer).encode())


def _wait(pid: int) -> int:
    """Return a process's exit status; one that does not end is killed, and has one that no process has."""
    for _ in range(SECONDS * 100):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 256


def _run(function: Any, arguments: list[object], stdin: int, stdout: int) -> None:
    """Call a function in a process of its own; what it returns is printed, and nothing of the parent is tidied up."""
    status = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stdout, 2)
        os.close(stdin)
        os.close(stdout)
        answer = function(*arguments)
        if answer is not None:
            print(json.dumps(answer), flush=True)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    importlib.import_module("tests.faults.victims")
    _serve(socket.socket(fileno=int(sys.argv[1])))
