"""Copies of a ledger, made while it is in use: one state of it, whole, under a name that was free."""

import sqlite3
from contextlib import closing
from pathlib import Path

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.damage import flaws
from dpsql.ledger.file import check_layout, made_whole, open_snapshot, translated
from dpsql.ledger.ledger import VerifyReport
from dpsql.ledger.verification import verify


def backup(path: Path, target: Path) -> VerifyReport:
    """Copy the ledger at `path` to a new file, durably, and verify the copy; nothing is kept of one that is not whole.

    Raises:
        InvalidParameter: There is a file of that name.
        LedgerUnavailable: The ledger cannot be read or is not whole, or the copy cannot be written.
    """
    with translated(path), closing(open_snapshot(path)) as source:
        check_layout(source, path)
        with translated(target):
            try:
                return _copy_whole(source, target)
            except FileExistsError as error:
                raise InvalidParameter(
                    f'"{target}" exists', hint="name a new file: a backup overwrites nothing"
                ) from error


def copy(source: sqlite3.Connection, name: str) -> sqlite3.Connection:
    """Return a connection to a file that now holds what the source holds at this moment; writers go on meanwhile."""
    target = sqlite3.connect(name, isolation_level=None)
    try:
        source.backup(target)
    except BaseException:
        target.close()
        raise
    return target


def _copy_whole(source: sqlite3.Connection, target: Path) -> VerifyReport:
    with made_whole(target) as name:
        with closing(copy(source, name)) as made:
            report = verify(made, flaws(made))
        if not report.ok:
            raise LedgerUnavailable(
                f"the ledger is not whole: {report.problems[0]}",
                hint="keep the backup before this one; `dpsql ledger verify` tells all",
            )
        return report
