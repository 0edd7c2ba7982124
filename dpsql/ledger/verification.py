"""Checks a whole ledger: the chain of records, and everything derived from them."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import astuple

from dpsql.errors import Error, InvalidParameter, LedgerUnavailable
from dpsql.ledger.chain import ORIGIN, Record, flaw, sha256
from dpsql.ledger.derived_tables import Memory, project
from dpsql.ledger.model import Noted, VerifyReport
from dpsql.ledger.schema import DERIVED_TABLES, TABLES
from dpsql.ledger.store import Store

PAGE = 1000
"""How many records are read at once."""


def verify(connection: Store, flaws: Sequence[str], noted: Noted | None = None) -> VerifyReport:
    """Recompute the chain and every derived table from the records; report all that does not agree.

    Args:
        connection: To the ledger.
        flaws: What is wrong with its tables; what is read from such tables proves nothing.
        noted: What an earlier report said, kept elsewhere: whoever can write the file can write a whole new chain.
    """
    if flaws:
        return VerifyReport(0, ORIGIN, tuple(flaws))
    problems = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        fresh.executescript(TABLES)
        count, head, broken = replay(connection, fresh)
        if broken is not None:  # the records after it have nothing to be compared with
            return VerifyReport(count, head, (broken,))
        for table in DERIVED_TABLES:
            problems += _differences(connection, fresh, table)
    problems += _altered_content(connection)
    if noted is not None:
        problems += cut_off(connection, noted)
    return VerifyReport(count, head, tuple(problems))


def records(connection: Store, after: int | None = None) -> Iterator[Record]:
    """Yield all records in their order, or those after one of them, by its number."""
    select, order = "SELECT seq, at, kind, body, previous, hash FROM records", f"ORDER BY seq LIMIT {PAGE}"
    following = f"{select} WHERE seq > ? {order}"
    # Without a number to begin after, a record that was given a number below 1 comes too.
    page = connection.execute(*((f"{select} {order}",) if after is None else (following, (after,)))).fetchall()
    while page:
        yield from (Record(*row) for row in page)
        page = connection.execute(following, (page[-1][0],)).fetchall()


def replay(connection: Store, target: Store) -> tuple[int, str, str | None]:
    """Apply the records to the empty tables of `target`, up to the first invalid one.

    Returns:
        How many stand, the hash of the last of them, and what is wrong with the next; None if none is.
    """
    before: Record | None = None
    memory = Memory()
    for record in records(connection):
        broken = flaw(record, before) or _apply(target, record, memory)
        if broken is not None:
            return (before.seq, before.hash, broken) if before else (0, ORIGIN, broken)
        before = record
    return (before.seq, before.hash, None) if before else (0, ORIGIN, None)


def _apply(target: Store, record: Record, memory: Memory) -> str | None:
    try:
        project(target, record, json.loads(record.body), memory)
    except sqlite3.OperationalError:  # a full disk is no fault of the record
        raise
    except (Error, AttributeError, LookupError, RecursionError, TypeError, ValueError, sqlite3.Error):
        return f"record {record.seq} has an invalid body"
    return None


def _differences(connection: Store, fresh: Store, table: str) -> list[str]:
    query = f"SELECT * FROM {table}"  # noqa: S608 - a constant
    found, expected = (set(each.execute(query)) for each in (connection, fresh))
    return [
        *(f"{table} holds {row}, which the records do not say" for row in sorted(found - expected, key=repr)),
        *(f"{table} lacks {row}, which the records say" for row in sorted(expected - found, key=repr)),
    ]


def cut_off(connection: Store, noted: Noted) -> list[str]:
    """Return a fault if the noted last record is missing."""
    if noted.records is None:
        found = connection.execute("SELECT 1 FROM records WHERE hash = ?", (noted.head,)).fetchone()
        there = found is not None or noted.head == ORIGIN
    else:
        found = connection.execute("SELECT hash FROM records WHERE seq = ?", (noted.records,)).fetchone()
        there = noted.head == (found[0] if found else None if noted.records else ORIGIN)
    return [] if there else ["last known record is missing: records were truncated or replaced"]


def _altered_content(connection: Store) -> list[str]:
    """Compare verifiers and payloads with their digests in the records."""
    problems = []
    for name, digest, verifier in connection.execute(
        "SELECT a.name, a.verifier_digest, v.verifier FROM accounts a LEFT JOIN verifiers v USING (name) UNION "
        "SELECT v.name, a.verifier_digest, v.verifier FROM verifiers v LEFT JOIN accounts a USING (name)"
    ):
        if digest != (None if verifier is None else sha256(verifier)):
            problems.append(f'the verifier of "{name}" is not the one that was set')
    for release, digest in connection.execute(
        "SELECT release, digest FROM stored UNION ALL "
        "SELECT release, NULL FROM payloads WHERE release NOT IN (SELECT release FROM stored)"
    ):
        row = connection.execute("SELECT payload FROM payloads WHERE release = ?", (release,)).fetchone()
        if row is None or digest != sha256(row[0]):
            problems.append(f"release {release} is not what was stored")
    return problems


def fill(target: Store, source: Store) -> VerifyReport:
    """Copy `source` into the empty tables of `target`, for either kind of database, and verify the copy.

    Rule 1: records, verifiers and released answers stay unchanged; the rest is derived from the records again.
    Rule 2: it is done in one transaction, and kept only if the copy is whole.

    Raises:
        InvalidParameter: The tables are not empty.
        LedgerUnavailable: The source is not whole.
    """
    if target.execute("SELECT 1 FROM records LIMIT 1").fetchone() is not None:
        raise InvalidParameter(
            "the ledger that is to be written has records", hint="Name a new file or an empty database."
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
            hint="Restore it from a backup; `dpsql ledger verify` tells all.",
        )
    return report
