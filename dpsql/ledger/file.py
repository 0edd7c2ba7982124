"""Opening the ledger's file: made once and whole, refused when it is anything else than this version's ledger."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.schema import APPLICATION_ID, TABLES, VERSION

BUSY_SECONDS = 30
"""How long one process waits for another's transaction before it gives up."""

_WRITABLE = "the directory must exist, and the gateway must be able to write to it and to the ledger file"
_MENDS = {
    "SQLITE_BUSY": "another process holds the ledger: end it, or try again",
    "SQLITE_FULL": "the disk is full: make room, then ask again",
    "SQLITE_READONLY": _WRITABLE,
    "SQLITE_CANTOPEN": _WRITABLE,
    "SQLITE_PERM": _WRITABLE,
    "SQLITE_IOERR": "check the disk: the operating system refused to read or write",
    "SQLITE_NOTADB": "name a dpsql ledger, or a path at which one can be made",
}
_DAMAGED = "the file is damaged: stop the gateway, restore the ledger from a backup and run `dpsql ledger verify`"


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise LedgerUnavailable for whatever SQLite or the file system refuses."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise LedgerUnavailable(f'ledger "{path}" is closed', hint="open it again") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        mend = next((mend for prefix, mend in _MENDS.items() if name.startswith(prefix)), _DAMAGED)
        raise LedgerUnavailable(f'ledger "{path}" failed: {error}', hint=mend) from error
    except OSError as error:
        raise LedgerUnavailable(f'ledger "{path}" failed: {error.strerror}', hint=_WRITABLE) from error


def open_file(path: Path) -> sqlite3.Connection:
    """Return a durable read-write connection to the ledger at `path`, which is made if nothing is there."""
    with translated(path):
        if not path.exists():
            _create(path)
        if path.stat().st_size == 0:
            # SQLite would take it for a new database: fresh budgets after a truncation.
            raise LedgerUnavailable(
                f'ledger "{path}" is an empty file',
                hint="restore it from a backup; or delete it to begin a ledger in which nothing is spent",
            )
        if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
            # SQLite would open it read-only, and leave files beside it that stay unwritable once this is mended.
            raise LedgerUnavailable(f'ledger "{path}" cannot be written', hint=_WRITABLE)
        connection = _connect(path, "rw")
        try:
            _check_version(connection, path)
            _make_durable(connection)
            connection.execute("BEGIN IMMEDIATE")  # a file that cannot be written is refused now, not at a charge
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
    return connection


def open_snapshot(path: Path) -> sqlite3.Connection:
    """Return a connection that reads one unchanging state, whatever is written meanwhile."""
    connection = _connect(path, "ro")
    connection.execute("BEGIN")
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _create(path: Path) -> None:
    """Make a whole ledger under another name and link it into place: no process ever meets half a ledger."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600: it will hold verifiers
    os.close(handle)
    try:
        with closing(sqlite3.connect(name, isolation_level=None)) as connection:
            _make_durable(connection)
            connection.executescript(
                f"BEGIN;{TABLES}PRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = {VERSION};COMMIT"
            )
        try:
            os.link(name, path)
        except FileExistsError:
            return  # another process was first; its ledger is as good
    finally:
        os.unlink(name)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make the new name survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is not this version's ledger, before anything in it is changed."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LedgerUnavailable(
            f'"{path}" is a database, but not a dpsql ledger',
            hint="name a dpsql ledger, or a path at which one can be made",
        )
    if version < VERSION:
        raise LedgerUnavailable(
            f'ledger "{path}" has layout {version}, older than layout {VERSION} of this dpsql',
            hint="serve it with the dpsql that wrote it, or begin a new ledger elsewhere",
        )
    if version > VERSION:
        raise LedgerUnavailable(
            f'ledger "{path}" has layout {version}, newer than layout {VERSION} of this dpsql', hint="upgrade dpsql"
        )


def _make_durable(connection: sqlite3.Connection) -> None:
    """A commit returns only once it is on the disk, on macOS too."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
