"""The embedded ledger: one SQLite file, shared by threads and by gateways on one machine; how it is made and opened.

Rule 1: the file is created in one step, and is refused unless it is a ledger of this version.
Rule 2: each gateway locks its own byte in one empty file next to it; the kernel releases the lock when the process ends
in any way. The lock belongs to the open file. So SQLite, or another gateway in the same process, cannot release it by
closing a file, as it could release a lock of the process.
"""

import fcntl
import os
import re
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.chain import ORIGIN
from dpsql.ledger.ledger import MAX_STORED_BYTES, Ledger, now
from dpsql.ledger.schema import APPLICATION_ID, TABLES, VERSION
from dpsql.ledger.sqlite_checks import damage, flaws, missing_tables
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import CLOCK_LIMIT

_SUFFIX: Final = "-gateways"
_LOCK: Final = struct.Struct("hhqqi4x")
"""The kernel's `struct flock` where an offset has 64 bits: kind, whence, start, length, process."""
_NAME: Final = re.compile(r"lock (\d+) (\d+) (\d+)$")

LOCKS_OPEN_FILES: Final = hasattr(fcntl, "F_OFD_SETLK")
"""Whether the system has such locks: Linux has. Elsewhere a gateway is not found dead before its reads time out."""
FAILURES = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What may be raised; the last where SQLite tells of an error in bytes of a damaged file."""

_LEAST = 512
"""Bytes of the smallest SQLite file."""

_DAMAGED = "The file is damaged: stop the gateway, restore the ledger from a backup and run `dpsql ledger verify`."
BUSY_SECONDS = 30
"""How long one process waits for another's transaction before it gives up."""

_WRITABLE = "The directory must exist, and the gateway must be able to write to it and to the ledger file."
_FOREIGN = "Check the ledger's URL. If this file was the ledger, restore it from a backup."
_HINTS = {
    "SQLITE_BUSY": "Another process holds the ledger: end it, or try again.",
    "SQLITE_FULL": "The disk is full: make room, then ask again.",
    "SQLITE_READONLY": _WRITABLE,
    "SQLITE_CANTOPEN": _WRITABLE,
    "SQLITE_PERM": _WRITABLE,
    "SQLITE_IOERR": "Check the disk: the operating system refused to read or write.",
    "SQLITE_NOTADB": _FOREIGN,
}

Files = tuple[tuple[int, int], ...]
"""Device and number of the ledger's file, of its log, and of the file next to it that processes share."""


class SqliteStorage:
    """A SQLite file: threads share one connection that writes and one that reads.

    Args:
        path: The file.
        make: Whether it is made if nothing is there.
    """

    errors = FAILURES

    def __init__(self, path: Path, *, make: bool) -> None:
        self._path = path.absolute()
        self.writer, self._files = open_file(self._path, make=make)
        self._reader = open_reader(self._path)
        self._reader_lock = threading.Lock()
        self._watcher = open_reader(self._path, patience=0)
        self._watcher_lock = threading.Lock()
        self._gateway_lock = GatewayLock(self._path)
        self._seen: tuple[int, tuple[int, str]] | None = None

    def begin(self) -> None:
        """Begin a transaction of the writer's that excludes all other writers."""
        self.writer.execute("BEGIN IMMEDIATE")
        check_files(self._path, self._files)

    def head(self) -> tuple[int, str] | None:
        """Return number and hash of the last durable record; None if it cannot be read now.

        Its connection waits for no other: SQLite says by a number whether another one has written anything since.
        """
        with self._watcher_lock:
            try:
                (version,) = self._watcher.execute("PRAGMA data_version").fetchone()
                if self._seen is None or self._seen[0] != version:
                    row = self._watcher.execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
                    self._seen = version, row or (0, ORIGIN)
            except FAILURES:
                self._seen = None
        return None if self._seen is None else self._seen[1]

    def gateway(self) -> str:
        """Return where others find the lock that this process holds."""
        return self._gateway_lock.name()

    def is_dead(self, gateway: str) -> bool:
        """Return whether another process holds its lock no longer."""
        return self._gateway_lock.is_free(gateway)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Read one state of the ledger, without waiting for a commit."""
        with self._reader_lock:
            try:
                self._reader.execute("BEGIN")
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Iterator[Store]:
        """Read one state of the whole ledger for as long as it takes."""
        with closing(open_snapshot(self._path)) as connection:
            yield connection

    def flaws(self, store: Store) -> list[str]:
        """Return the faults of the file and its schema."""
        return flaws(store)

    def unavailable(self, error: Exception) -> LedgerUnavailable:
        """Return the ledger's error for an error of SQLite or of the file system."""
        return unavailable(self._path, error)

    def close(self) -> None:
        """Close the connections that read, and let go of the gateway's lock."""
        with self._reader_lock:
            self._reader.close()
        with self._watcher_lock:
            self._watcher.close()
        self._gateway_lock.close()


class SqliteLedger(Ledger):
    """A Ledger in a SQLite file.

    Args:
        path: The file.
        make: Whether it is made if nothing is there.
        clock: Returns the time, aware of its zone.
        clock_limit: How far ahead of the last record the clock is believed.
        max_stored_bytes: Bound on the stored releases together.
    """

    _storage: SqliteStorage

    def __init__(
        self,
        path: Path,
        *,
        make: bool = True,
        clock: Callable[[], datetime] = now,
        clock_limit: timedelta = CLOCK_LIMIT,
        max_stored_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        super().__init__(
            SqliteStorage(path, make=make), clock=clock, clock_limit=clock_limit, max_stored_bytes=max_stored_bytes
        )


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


def open_file(path: Path, *, make: bool) -> tuple[sqlite3.Connection, Files]:
    """Return a durable read-write connection to the ledger at `path`; if `make`, it is made where nothing is there.

    With it come the files that the connection writes; none of them is another as long as it is open.
    """
    with translated(path):
        left = [name for suffix in ("-wal", "-shm") if os.path.exists(name := f"{path}{suffix}")]
        if not path.exists():  # asked second: whoever makes a ledger has it there before anything is beside it
            _check_absent(path, left, make=make)
            _create(path)
        check_file(path)
        before = _file(path)
        connection = connect(path, "rw")
        try:
            check_layout(connection, path)
            _check_whole(connection, path)
            make_durable(connection)
            connection.execute("BEGIN IMMEDIATE")  # a file that cannot be written is refused now, not at a charge
            connection.execute("ROLLBACK")
            files = _files(path)
            if files[0] != before:
                raise _replaced(path)
        except BaseException:
            connection.close()
            raise
    return connection, files


def check_files(path: Path, files: Files) -> None:
    """Refuse to go on where the ledger's names mean other files than those that are open, or none.

    What is charged into a file without its name is lost, and whoever opens the name next spends it again.
    """
    try:
        found = _files(path)
    except FileNotFoundError:
        found = ()
    if found != files:
        raise _replaced(path)


def _files(path: Path) -> Files:
    return tuple(_file(f"{path}{suffix}") for suffix in ("", "-wal", "-shm"))


def _file(path: str | Path) -> tuple[int, int]:
    found = os.stat(path)  # each write asks: a Path would take longer than the file system
    return found.st_dev, found.st_ino


def _replaced(path: Path) -> LedgerUnavailable:
    return LedgerUnavailable(
        f'ledger "{path}", or its -wal or -shm, was moved, deleted or replaced while it was open',
        hint="Put the same files back, or stop the gateway, restore the ledger from a backup, and start again.",
    )


def _check_absent(path: Path, left: list[str], *, make: bool) -> None:
    """Refuse to make a ledger that was not asked for, or in the place of one that was lost."""
    if left:
        raise LedgerUnavailable(
            f'ledger "{path}" is gone, but "{left[0]}" is still there: a new one would forget what was spent',
            hint="Put the file back, or restore the ledger from a backup. To begin a ledger in which nothing is spent, "
            f'move "{left[0]}" away first.',
        )
    if not make:
        raise no_ledger(path, f"sqlite:///{path}")


def no_ledger(place: object, url: str = "URL") -> LedgerUnavailable:
    """Return the error for a missing ledger; its URL is left out if it may contain a password."""
    return LedgerUnavailable(
        f'there is no ledger "{place}"',
        hint=f"Check the ledger's URL. To begin a ledger in which nothing is spent: dpsql ledger init --ledger {url}",
    )


def _create(path: Path) -> None:
    pragmas = f"PRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = {VERSION};"
    with (
        suppress(FileExistsError),  # another process was first: its ledger is as good
        made_whole(path) as name,
        closing(sqlite3.connect(name, isolation_level=None)) as connection,
    ):
        make_durable(connection)
        connection.executescript(f"BEGIN;{TABLES}{pragmas}COMMIT")


@contextmanager
def made_whole(path: Path) -> Iterator[str]:
    """Yield a name to make a file under, private; when it is whole and on the disk it gets its own, if that is free.

    No process ever meets half a file, and none is overwritten.

    Raises:
        FileExistsError: Something has the name.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600: it will hold verifiers
    os.close(handle)
    try:
        yield name
        _sync(Path(name))
        os.link(name, path)
    finally:
        os.unlink(name)
    _sync(path.parent)  # the new name survives a power cut


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_file(path: Path) -> None:
    """Refuse files that SQLite would misinterpret."""
    if path.is_dir():
        raise LedgerUnavailable(f'ledger "{path}" is a directory', hint="Name a file in it.")
    size = path.stat().st_size
    if size < _LEAST:
        # SQLite would take it for a new database: fresh budgets after a truncation.
        raise LedgerUnavailable(
            f'ledger "{path}" is {"cut short" if size else "an empty file"}',
            hint="Restore it from a backup, or delete it to begin a ledger in which nothing is spent.",
        )
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        # SQLite would open it read-only, and leave files next to it that stay unwritable once this is repaired.
        raise LedgerUnavailable(f'ledger "{path}" cannot be written', hint=_WRITABLE)


def check_layout(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a ledger that an older dpsql wrote, before anything in it is changed."""
    version = layout(connection, path)
    if version < VERSION:
        raise LedgerUnavailable(
            f'ledger "{path}" has layout {version}, older than layout {VERSION} of this dpsql',
            hint=f"Stop all programs that use it, then run: dpsql ledger migrate --ledger sqlite:///{path}",
        )


def layout(connection: sqlite3.Connection, path: Path) -> int:
    """Return the layout version of a ledger; refuse other files, and layouts that this dpsql does not know."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LedgerUnavailable(f'"{path}" is a database, but not a dpsql ledger', hint=_FOREIGN)
    if version > VERSION:
        raise LedgerUnavailable(
            f'ledger "{path}" has layout {version}, newer than layout {VERSION} of this dpsql', hint="Upgrade dpsql."
        )
    return int(version)


def _check_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a damaged file now, not at a charge; the log of another file next to it damages it too.

    What somebody changed on purpose is found by `verify`, which takes longer.
    """
    problems = [*damage(connection), *missing_tables(connection)]
    if problems:
        raise LedgerUnavailable(f'ledger "{path}" is not whole: {problems[0]}', hint=_DAMAGED)


def make_durable(connection: sqlite3.Connection) -> None:
    """See to it that a commit returns only once it is on the disk, on macOS too."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":  # a network's file system, for one
        raise LedgerUnavailable(
            "the ledger's file system has no memory to share: its commits would not be durable",
            hint="Put the ledger on a disk of this machine.",
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")


def open_reader(path: Path, patience: float | None = None) -> sqlite3.Connection:
    """Return a connection that only reads, to a ledger that `open_file` has accepted."""
    with translated(path):
        return connect(path, "ro", patience)


def open_snapshot(path: Path) -> sqlite3.Connection:
    """Return a connection that reads one state, unchanged by later writes."""
    connection = connect(path, "rw")  # it only reads, but tidies up if it is closed last
    connection.execute("BEGIN")
    return connection


def connect(path: Path, mode: str, patience: float | None = None) -> sqlite3.Connection:
    """Return a connection of one mode, "rw" or "ro"; it waits for that number of seconds for another's transaction."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS if patience is None else patience,
        isolation_level=None,
        check_same_thread=False,
    )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise LedgerUnavailable for each refusal of SQLite or the file system."""
    try:
        yield
    except FAILURES as error:
        raise unavailable(path, error) from error


def unavailable(path: Path, error: Exception) -> LedgerUnavailable:
    """Return the ledger's error for an error of SQLite or of the file system."""
    if isinstance(error, OSError):
        return LedgerUnavailable(f'ledger "{path}" failed: {error.strerror}', hint=_WRITABLE)
    if isinstance(error, UnicodeDecodeError):
        return LedgerUnavailable(f'ledger "{path}" is not whole: it holds bytes that are no text', hint=_DAMAGED)
    if isinstance(error, sqlite3.ProgrammingError):
        return LedgerUnavailable(f'ledger "{path}" is closed', hint="Open it again.")
    name = getattr(error, "sqlite_errorname", "")
    hint = next((hint for prefix, hint in _HINTS.items() if name.startswith(prefix)), _DAMAGED)
    return LedgerUnavailable(f'ledger "{path}" failed: {error}', hint=hint)
