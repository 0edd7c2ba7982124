"""Copies a whole ledger into an empty one, of whichever kind each is.

Rule 1: records, verifiers and released answers stay as they are; the rest is derived from the records anew.
Rule 2: it is done in one transaction, and kept only if the copy is whole.
"""

from dataclasses import astuple

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.ledger import VerifyReport
from dpsql.ledger.store import Store
from dpsql.ledger.verification import records, replay, verify


def fill(target: Store, source: Store) -> VerifyReport:
    """Write into the empty tables of `target` what `source` holds, and verify it.

    Raises:
        InvalidParameter: The tables are not empty.
        LedgerUnavailable: The source is not whole.
    """
    if target.execute("SELECT 1 FROM records LIMIT 1").fetchone() is not None:
        raise InvalidParameter(
            "the ledger that is to be written has records", hint="name a new file or an empty database"
        )
    for record in records(source):
        target.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", astuple(record))
    target.executemany(
        "INSERT INTO verifiers VALUES (?, ?)", source.execute("SELECT name, verifier FROM verifiers").fetchall()
    )
    for number in source.execute("SELECT release FROM payloads ORDER BY release").fetchall():
        row = source.execute("SELECT release, payload FROM payloads WHERE release = ?", number).fetchone()
        target.execute("INSERT INTO payloads VALUES (?, ?)", row)
    _, _, broken = replay(target, target)
    report = verify(target, ())
    if broken is not None or not report.ok:
        raise LedgerUnavailable(
            f"the ledger is not whole: {broken or report.problems[0]}",
            hint="restore it from a backup; `dpsql ledger verify` tells all",
        )
    return report
