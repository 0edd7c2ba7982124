"""Migrates a ledger of an older layout: keeps its records and rebuilds the tables that are derived from them.

Rule 1: the records and the chain of their hashes are unchanged.
Rule 2: it is one transaction in the same file. If it is interrupted, the file has either the old or the new layout.
Rule 3: no other process has the file open meanwhile, and a copy of the old file is on the disk first.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.model import VerifyReport
from dpsql.ledger.schema import DERIVED, KEPT_TABLES, VERSION
from dpsql.ledger.sqlite import check_file, connect, layout, made_whole, make_durable, translated
from dpsql.ledger.sqlite_backup import copy
from dpsql.ledger.sqlite_checks import flaws
from dpsql.ledger.verification import replay, verify

SECONDS = 2
"""How long it waits for other processes to close the ledger."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What was done.

    Attributes:
        layout: The ledger's layout before.
        backup: The copy of the ledger as it was.
        report: What `verify` says of it now.
    """

    layout: int
    backup: Path
    report: VerifyReport


def migrate(path: Path) -> Migration | None:
    """Bring the ledger at `path` to this dpsql's layout; return None if it has it.

    Raises:
        LedgerUnavailable: It is no ledger, a newer one, not whole, or in use.
    """
    with translated(path):
        check_file(path)
        with closing(connect(path, "rw", SECONDS)) as connection:
            _hold(connection, path)
            before = layout(connection, path)
            if before == VERSION:
                return None
            make_durable(connection)
            kept = _keep(connection, path, before)
            return Migration(before, kept, _rebuild(connection, path))


def _hold(connection: sqlite3.Connection, path: Path) -> None:
    """Lock the file until the connection is closed; a process that only has it open is refused, too."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        raise LedgerUnavailable(
            f'another process has the ledger "{path}" open',
            hint="Stop the gateway and all other programs that use it, then try again.",
        ) from error
    connection.execute("ROLLBACK")


def _keep(connection: sqlite3.Connection, path: Path, before: int) -> Path:
    """Copy the ledger, unchanged, to a free name next to it."""
    names = (f"{path.name}.layout-{before}{suffix}" for suffix in chain([""], map("-{}".format, count(2))))
    kept = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    with made_whole(kept) as name:
        copy(connection, name).close()
    return kept


def _rebuild(connection: sqlite3.Connection, path: Path) -> VerifyReport:
    """Derive every table from the records again; kept only if the whole then holds."""
    derived = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    drops = "".join(f'DROP TABLE "{name}";' for (name,) in derived if name not in KEPT_TABLES)
    connection.executescript(f"BEGIN IMMEDIATE;{drops}{DERIVED}")
    try:
        _, _, broken = replay(connection, connection)
        report = verify(connection, flaws(connection))
        if broken is not None or not report.ok:
            raise LedgerUnavailable(
                f'ledger "{path}" is not whole, and is unchanged: {broken or report.problems[0]}',
                hint="Restore it from a backup, then migrate that.",
            )
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    return report
