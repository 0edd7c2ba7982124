"""System calls that fail, or kill who makes them: by a filter in the kernel, which needs no privilege and has no way back.

So a disk is full, breaks or is read-only for one process of a test, by what the system itself would say.
"""

import ctypes
import platform
import struct

_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _IS, _RETURN = 0x20, 0x15, 0x06  # of a word; if equal; a verdict
_NO_NEW_PRIVILEGES = 38
_SET_FILTER, _ALL_THREADS = 1, 1
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


def _filter(verdict: int, calls: tuple[str, ...]) -> None:
    numbers = _NUMBERS[platform.machine()]
    steps = [(_LOAD, 0, 0, 0)]
    steps += [(_IS, len(calls) - place, 0, numbers[call]) for place, call in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, verdict)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if system.syscall(numbers["seccomp"], _SET_FILTER, _ALL_THREADS, header):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")
