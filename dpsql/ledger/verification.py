"""Checks a whole ledger: the chain of records, and everything derived from them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

from dpsql.errors import Error
from dpsql.ledger.chain import ORIGIN, Record, flaw, sha256
from dpsql.ledger.ledger import VerifyReport
from dpsql.ledger.projection import project
from dpsql.ledger.schema import DERIVED_TABLES, TABLES


def verify(connection: sqlite3.Connection) -> VerifyReport:
    """Recompute the chain and every derived table from the records; report all that does not agree."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as replay:
        replay.executescript(TABLES)
        problems = [*_damage(connection), *_altered_schema(connection, replay)]
        if problems:  # what is read from such a file proves nothing
            return VerifyReport(0, ORIGIN, tuple(problems))
        count, head, broken = _replay(connection, replay)
        if broken is not None:  # the records after it have nothing to be compared with
            return VerifyReport(count, head, (broken,))
        for table in DERIVED_TABLES:
            problems += _differences(connection, replay, table)
    problems += _altered_content(connection)
    return VerifyReport(count, head, tuple(problems))


def records(connection: sqlite3.Connection) -> Iterator[Record]:
    """Yield all records in their order."""
    for row in connection.execute("SELECT seq, at, kind, body, previous, hash FROM records ORDER BY seq"):
        yield Record(*row)


def _damage(connection: sqlite3.Connection) -> list[str]:
    found = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
    return [] if found == ["ok"] else [f"the file is damaged: {sentence}" for sentence in found]


def _altered_schema(connection: sqlite3.Connection, fresh: sqlite3.Connection) -> list[str]:
    query = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    found, expected = (set(each.execute(query)) for each in (connection, fresh))
    return [
        f"the {kind} {name} was altered, added or removed"
        for kind, name, _ in sorted({row[:2]: row for row in found ^ expected}.values())
    ]


def _replay(connection: sqlite3.Connection, replay: sqlite3.Connection) -> tuple[int, str, str | None]:
    """Apply the records to the empty ledger `replay`, up to the first that cannot stand where it does."""
    before: Record | None = None
    for record in records(connection):
        broken = flaw(record, before) or _apply(replay, record)
        if broken is not None:
            return (before.seq, before.hash, broken) if before else (0, ORIGIN, broken)
        before = record
    return (before.seq, before.hash, None) if before else (0, ORIGIN, None)


def _apply(replay: sqlite3.Connection, record: Record) -> str | None:
    try:
        project(replay, record, json.loads(record.body))
    except (Error, AttributeError, LookupError, RecursionError, TypeError, ValueError, sqlite3.Error):
        return f"record {record.seq} says what this dpsql never writes"
    return None


def _differences(connection: sqlite3.Connection, replay: sqlite3.Connection, table: str) -> list[str]:
    query = f"SELECT * FROM {table}"  # noqa: S608 - a constant
    found, expected = (set(each.execute(query)) for each in (connection, replay))
    return [
        *(f"{table} holds {row}, which the records do not say" for row in sorted(found - expected, key=repr)),
        *(f"{table} lacks {row}, which the records say" for row in sorted(expected - found, key=repr)),
    ]


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
