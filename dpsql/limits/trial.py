"""trial: calls a function that cannot be interrupted in a helper process first, which the kernel ends after a time.

Compiled code may hold the interpreter's lock for as long as it runs: then no thread, no signal handler and no timer
of this process gets a turn. A trial tells whether a call ends; the caller then calls it again, for itself.

Rule 1: the limit is processor time, enforced by the kernel: a busy machine refuses nothing that an idle one accepts.
Rule 2: if the helper process dies, the call counts as not ended, and the text is refused.
Rule 3: helper processes start when first needed, or by `start`; they are reused, and end with this process.
"""

import atexit
import logging
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_LOG: Final = logging.getLogger("dpsql.trial")
_LENGTH: Final = struct.Struct("!I")
_ENDED: Final = b"."
_READY: Final = b"r"
_PROCESSES: Final = 2
"""The most helper processes; further calls wait."""


class Trial:
    """Tells whether a function ends on a text.

    Args:
        function: Of a module, without side effects; what it raises is an end too, but for MemoryError.
        seconds: Processor time that one call may take.
        bytes_of_memory: Address space that its process may have.
        patience: Seconds to wait for the process in any case: it may have been stopped, or the machine be too busy.
    """

    def __init__(
        self,
        function: Callable[[str], object],
        seconds: float,
        bytes_of_memory: int = 4 << 30,
        patience: float = 60.0,
    ) -> None:
        name = function.__name__
        self._code = (
            f"from {function.__module__} import {name}; from dpsql.limits.trial import serve; "
            f"serve({name}, {seconds!r}, {bytes_of_memory!r})"
        )
        self._patience = patience
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_PROCESSES)
        os.register_at_fork(after_in_child=self._begin_anew)
        atexit.register(self.close)

    def __call__(self, text: str) -> bool:
        """Call the function in another process; return True once it has ended, False where it did not in time."""
        with self._places:
            process = self._take()
            ended = False
            try:
                ended = process is not None and _ask(process, text, self._patience)
            finally:
                if process is not None and ended:
                    self._keep(process)
                elif process is not None:
                    _end(process)
        return ended

    def start(self) -> None:
        """Have a process at hand, so that the first call need not wait for one; where none starts, the log says so."""
        with self._places:
            process = self._take()
            if process is not None:
                self._keep(process)

    def close(self) -> None:
        """End the processes that are idle; the next call starts one again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def _begin_anew(self) -> None:
        """Begin without a process: after a fork they belong to the parent, and its locks may be held for ever."""
        self._idle = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_PROCESSES)

    def _keep(self, process: "subprocess.Popen[bytes]") -> None:
        """Have a process at hand for the next call."""
        with self._lock:
            self._idle.append(process)

    def _take(self) -> "subprocess.Popen[bytes] | None":
        """Return a process at hand that lives, or a new one; None where none can be started."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is not None and process.poll() is None:
            return process
        if process is not None:
            _end(process)
        try:
            process = self._start()
        except OSError as error:
            _LOG.error("no process can be started to try texts in: %s", error.strerror)
            return None
        if _answer(process, self._patience) == _READY:
            return process
        _LOG.error("the process to try texts in does not start: %a -c %a", sys.executable, self._code)
        _end(process)
        return None

    def _start(self) -> "subprocess.Popen[bytes]":
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return subprocess.Popen(  # noqa: S603  # this interpreter, on code of ours
            [sys.executable, "-P", "-c", self._code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for this process
        )


def serve(function: Callable[[str], object], seconds: float, bytes_of_memory: int) -> None:
    """Call a function on each text of standard input; the other side of a Trial."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold the texts
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (bytes_of_memory, bytes_of_memory))
    texts, answers = sys.stdin.buffer, sys.stdout.buffer
    answer = _READY
    while True:
        answers.write(answer)
        answers.flush()
        head = texts.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return
        text = texts.read(_LENGTH.unpack(head)[0]).decode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, seconds)  # nobody handles its signal: the kernel ends this process
        try:
            function(text)
        except MemoryError:
            return
        except Exception:
            answer = _ENDED  # the caller will see it for itself
        else:
            answer = _ENDED
        signal.setitimer(signal.ITIMER_PROF, 0)


def _ask(process: "subprocess.Popen[bytes]", text: str, patience: float) -> bool:
    """Return True once the process has said that the call ended."""
    data = text.encode("utf-8", "surrogatepass")
    assert process.stdin is not None  # noqa: S101
    try:
        process.stdin.write(_LENGTH.pack(len(data)) + data)
        process.stdin.flush()
    except OSError:
        return False
    return _answer(process, patience) == _ENDED


def _answer(process: "subprocess.Popen[bytes]", patience: float) -> bytes:
    """Return the next byte that the process says; none where it ended, or took longer than patience lasts."""
    assert process.stdout is not None  # noqa: S101
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    return os.read(process.stdout.fileno(), 1) if poll.poll(patience * 1000) else b""


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()
