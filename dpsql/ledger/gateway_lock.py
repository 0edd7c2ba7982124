"""A lock that a process holds as long as it lives, beside the ledger's file: the kernel lets go of it, however it ends.

Each gateway locks a byte of its own of one empty file. The lock belongs to the open file: neither SQLite nor another
gateway of the same process can undo it by closing a file, as locks of a process could be.
"""

import fcntl
import os
import re
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_SUFFIX: Final = "-gateways"
_LOCK: Final = struct.Struct("hhqqi4x")
"""The kernel's `struct flock` where an offset has 64 bits: kind, whence, start, length, process."""
_NAME: Final = re.compile(r"lock (\d+) (\d+) (\d+)$")

LOCKS_OPEN_FILES: Final = hasattr(fcntl, "F_OFD_SETLK")
"""Whether the system has such locks: Linux has. Elsewhere nobody is found dead before the time of a read is over."""


class GatewayLock:
    """The lock of one gateway, and the way to ask for those of others.

    Args:
        path: The ledger's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = f"{path}{_SUFFIX}"
        self._file: int | None = None
        self._taking = threading.Lock()
        self._name = f"{time.time_ns()}"

    def name(self) -> str:
        """Return where others find the lock; it is taken by the first call.

        Raises:
            OSError: It cannot be had.
        """
        with self._taking:
            if self._file is None and LOCKS_OPEN_FILES:
                self._take()
            return self._name

    def _take(self) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            start = time.time_ns()  # no two gateways of one machine have the same: the second gets an error
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0))
            found = os.fstat(file)
        except BaseException:
            os.close(file)
            raise
        self._file, self._name = file, f"lock {found.st_dev} {found.st_ino} {start}"

    def is_free(self, name: str) -> bool:
        """Return whether another gateway has let go of its lock; False where that is not known.

        A file of the same number is the very file: a gateway that lives holds its own open, so the number is taken.
        """
        found = _NAME.search(name)
        if found is None or self._file is None or name.endswith(self._name):  # the own lock is in nobody's way here
            return False
        device, inode, start = map(int, found.groups())
        own = os.fstat(self._file)
        if (own.st_dev, own.st_ino) != (device, inode):
            return False
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
        kind: int = _LOCK.unpack(fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, asked))[0]
        return kind == fcntl.F_UNLCK

    def close(self) -> None:
        """Let go of it."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None
