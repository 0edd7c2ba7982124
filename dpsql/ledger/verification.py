"""Checks a whole ledger: the chain of records, and everything derived from them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

from dpsql.errors import Error
from dpsql.ledger.chain import ORIGIN, Record, flaw, sha256
from dpsql.ledger.damage import altered_schema, damage
from dpsql.ledger.ledger import Noted, VerifyReport
from dpsql.ledger.memory import Memory
from dpsql.ledger.projection import project
from dpsql.ledger.schema import DERIVED_TABLES, TABLES


def verify(connection: sqlite3.Connection, noted: Noted | None = None) -> VerifyReport:
    """Recompute the chain and every derived table from the records; report all that does not agree.

    Args:
        connection: To the ledger.
        noted: What an earlier report said, kept elsewhere: whoever can write the file can write a whole new chain.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        fresh.executescript(TABLES)
        problems = [*damage(connection), *altered_schema(connection)]
        if problems:  # what is read from such a file proves nothing
            return VerifyReport(0, ORIGIN, tuple(problems))
        count, head, broken = replay(connection, fresh)
        if broken is not None:  # the records after it have nothing to be compared with
            return VerifyReport(count, head, (broken,))
        for table in DERIVED_TABLES:
            problems += _differences(connection, fresh, table)
    problems += _altered_content(connection)
    if noted is not None:
        problems += _cut_off(connection, noted)
    return VerifyReport(count, head, tuple(problems))


def records(connection: sqlite3.Connection) -> Iterator[Record]:
    """Yield all records in their order."""
    for row in connection.execute("SELECT seq, at, kind, body, previous, hash FROM records ORDER BY seq"):
        yield Record(*row)


def replay(connection: sqlite3.Connection, target: sqlite3.Connection) -> tuple[int, str, str | None]:
    """Apply the records to the empty tables of `target`, up to the first that cannot stand where it does.

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


def _apply(target: sqlite3.Connection, record: Record, memory: Memory) -> str | None:
    try:
        project(target, record, json.loads(record.body), memory)
    except sqlite3.OperationalError:  # a full disk is no fault of the record
        raise
    except (Error, AttributeError, LookupError, RecursionError, TypeError, ValueError, sqlite3.Error):
        return f"record {record.seq} says what this dpsql never writes"
    return None


def _differences(connection: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> list[str]:
    query = f"SELECT * FROM {table}"  # noqa: S608 - a constant
    found, expected = (set(each.execute(query)) for each in (connection, fresh))
    return [
        *(f"{table} holds {row}, which the records do not say" for row in sorted(found - expected, key=repr)),
        *(f"{table} lacks {row}, which the records say" for row in sorted(expected - found, key=repr)),
    ]


def _cut_off(connection: sqlite3.Connection, noted: Noted) -> list[str]:
    """Look for the record that was once the last."""
    if noted.records is None:
        found = connection.execute("SELECT 1 FROM records WHERE hash = ?", (noted.head,)).fetchone()
        there = found is not None or noted.head == ORIGIN
    else:
        found = connection.execute("SELECT hash FROM records WHERE seq = ?", (noted.records,)).fetchone()
        there = noted.head == (found[0] if found else None if noted.records else ORIGIN)
    return [] if there else ["the record that was noted as the last is not there: records were cut off or replaced"]


def _altered_content(connection: sqlite3.Connection) -> list[str]:
    """Compare what the records know by its digest alone."""
    problems = []
    for name, digest, verifier in connection.execute(
        "SELECT a.name, a.verifier_digest, v.verifier FROM accounts a LEFT JOIN verifiers v USING (name) UNION "
        "SELECT v.name, a.verifier_digest, v.verifier FROM verifiers v LEFT JOIN accounts a USING (name)"
    ):
        if digest != (None if verifier is None else sha256(verifier)):
            problems.append(f'the verifier of "{name}" is not the one that was set')
    for release, digest, payload in connection.execute(
        "SELECT s.release, s.digest, p.payload FROM stored s LEFT JOIN payloads p USING (release) UNION ALL "
        "SELECT p.release, NULL, p.payload FROM payloads p WHERE p.release NOT IN (SELECT release FROM stored)"
    ):
        if payload is None or digest != sha256(payload):
            problems.append(f"release {release} is not what was stored")
    return problems
