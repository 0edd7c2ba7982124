"""Copies of a ledger in use: one consistent state, under a new name.

Rule: a backup answers no query. It lacks the spending after it was made, so all users are frozen in it until the data
    owner unfreezes them.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.accounts import freeze, frozen_by
from dpsql.ledger.derived_tables import Memory
from dpsql.ledger.ledger import now
from dpsql.ledger.model import BudgetScope, Holder, VerifyReport
from dpsql.ledger.sqlite import check_layout, made_whole, open_snapshot, translated
from dpsql.ledger.sqlite_checks import flaws
from dpsql.ledger.transaction import CLOCK_LIMIT, LedgerClock, Transaction
from dpsql.ledger.verification import verify


def backup(path: Path, target: Path) -> VerifyReport:
    """Copy the ledger at `path` to a new file, durably, verify the copy, and freeze all users in it.

    Nothing is kept of a copy that is not whole.

    Returns:
        What was copied, without the record of the freeze: both ledgers have the record that is its last.

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
                    f'"{target}" exists', hint="Name a new file: a backup overwrites nothing."
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
            if report.ok:
                _freeze(made)
        if not report.ok:
            raise LedgerUnavailable(
                f"the ledger is not whole: {report.problems[0]}",
                hint="Keep the backup before this one; `dpsql ledger verify` tells all.",
            )
        return report


def _freeze(copied: sqlite3.Connection) -> None:
    """Freeze all users in a copy, in a record of its own."""
    everybody = Holder(BudgetScope.ALL)
    if frozen_by(copied, everybody) is None:
        copied.execute("PRAGMA journal_mode = DELETE")  # all that is written is in the one file
        copied.execute("BEGIN IMMEDIATE")
        transaction = Transaction(copied, LedgerClock(now, CLOCK_LIMIT), Memory())
        freeze(transaction, everybody, "this is a backup: what was spent after it was made is not in it")
        transaction.commit()
