"""What the system refuses one process of a test, by what the system itself would say; there is no way back.

Calls fail, or kill who makes them, by a filter in the kernel, which needs no privilege: so a disk is full or breaks.
"""

import ctypes
import os
import platform
import struct

_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _IS, _RETURN = 0x20, 0x15, 0x06  # of a word; if equal; a verdict
_NO_NEW_PRIVILEGES = 38
_SET_FILTER, _ALL_THREADS = 1, 1
_CAPABILITIES = 0x20080522  # version 3 of their structure
_SYSTEM = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {
    "x86_64": {"pwrite64": 18, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "pread64": 17, "seccomp": 317},
    "aarch64": {"pwrite64": 68, "fsync": 82, "fdatasync": 83, "ftruncate": 46, "pread64": 67, "seccomp": 277},
}

WRITING = ("pwrite64",)
DURABLE = ("fsync", "fdatasync")
READING = ("pread64",)
"""What SQLite calls to write, to make durable, and to read."""


def fail(error: int, *calls: str) -> None:
    """From now on these calls fail with this error, in all threads of the process."""
    _filter(_ERROR | error, calls)


def kill_at(*calls: str) -> None:
    """From now on these calls kill the process before they do anything."""
    _filter(_KILL, calls)


def be_bound_by_modes() -> None:
    """Give up the capabilities by which root reads and writes whatever the modes of files and directories say."""
    if os.geteuid() == 0:
        header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITIES, 0))
        _check(_SYSTEM.capset(header, ctypes.create_string_buffer(2 * struct.calcsize("III"))))


def _filter(verdict: int, calls: tuple[str, ...]) -> None:
    numbers = _NUMBERS[platform.machine()]
    steps = [(_LOAD, 0, 0, 0)]
    steps += [(_IS, len(calls) - place, 0, numbers[call]) for place, call in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, verdict)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    _check(_SYSTEM.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(_SYSTEM.syscall(numbers["seccomp"], _SET_FILTER, _ALL_THREADS, header))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
