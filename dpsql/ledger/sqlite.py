"""The embedded ledger: one SQLite file, shared by threads and by gateways on one machine."""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from dpsql.errors import InvalidParameter
from dpsql.ledger.budgets import cap_status, role_budget, user_status
from dpsql.ledger.chain import canonical, sha256
from dpsql.ledger.charging import charge
from dpsql.ledger.commits import GroupCommit
from dpsql.ledger.file import open_file, open_reader, open_snapshot, translated
from dpsql.ledger.ledger import (
    Account,
    BudgetStatus,
    Charge,
    ChargeRecord,
    Noted,
    ReleaseRecord,
    ReleaseRequest,
    VerifyReport,
)
from dpsql.ledger.projection import Body, load_events
from dpsql.ledger.transaction import Transaction, latest
from dpsql.ledger.verification import records, verify
from dpsql.ledger.windows import moment
from dpsql.policy import Policy

T = TypeVar("T")

MAX_NAME = 63
"""Characters of a name, as in Postgres."""

MAX_FAILURES = 3
"""So many queries of a user may fail on private data before the account is frozen."""

MAX_STORED_BYTES = 256 * 2**20
"""The oldest releases are dropped beyond it; to have one again then costs a new charge."""

_ACCOUNT = (
    "SELECT name, role, verifier, frozen, created FROM accounts LEFT JOIN verifiers USING (name) WHERE removed = 0"
)


def _now() -> datetime:
    return datetime.now(UTC)


class SqliteLedger:
    """A Ledger in a SQLite file.

    Threads share one connection that writes and one that reads: SQLite lets one write at a time anyhow.

    Args:
        path: The file; it is made if nothing is there.
        clock: Returns the time, aware of its zone.
        max_stored_bytes: Bound on the stored releases together.
    """

    def __init__(
        self, path: Path, *, clock: Callable[[], datetime] = _now, max_stored_bytes: int = MAX_STORED_BYTES
    ) -> None:
        self._path = path
        self._clock = clock
        self._max_stored_bytes = max_stored_bytes
        self._connection = open_file(path)
        self._commits = GroupCommit(self._connection, self._begin)
        self._reader = open_reader(path)
        self._reader_lock = threading.Lock()

    def charge(
        self, user: str, policy: Policy, requests: Sequence[ReleaseRequest], *, sql: str, reuse: bool = True
    ) -> Charge:
        """Charge a query durably, or raise and write nothing."""
        return self._grouped(lambda transaction: charge(transaction, user, policy, requests, sql, reuse))

    def store(self, release_id: int, payload: bytes) -> None:
        """Keep a release durably; the first one stored for a key stays, one beyond the bound is not kept at all."""
        self._grouped(lambda transaction: self._store(transaction, release_id, payload))

    def _store(self, transaction: Transaction, release_id: int, payload: bytes) -> None:
        row = transaction.one("SELECT dataset, key, price FROM releases WHERE id = ? AND origin = id", release_id)
        if row is None:
            raise InvalidParameter(f"no release {release_id} was charged to be made")
        taken = transaction.one("SELECT 1 FROM stored WHERE dataset = ? AND key = ? AND price = ?", *row)
        if taken is not None or len(payload) > self._max_stored_bytes:
            return
        self._make_room(transaction, len(payload))
        transaction.connection.execute("INSERT INTO payloads VALUES (?, ?)", (release_id, payload))
        transaction.append("release.stored", {"release": release_id, "digest": sha256(payload), "size": len(payload)})

    def _make_room(self, transaction: Transaction, size: int) -> None:
        while transaction.one("SELECT stored_bytes FROM totals")[0] + size > self._max_stored_bytes:
            release, freed = transaction.one("SELECT release, size FROM stored ORDER BY position LIMIT 1")
            transaction.connection.execute("DELETE FROM payloads WHERE release = ?", (release,))
            transaction.append("release.dropped", {"release": release, "size": freed})

    def record_failure(self, user: str, keys: Sequence[str]) -> None:
        """Quarantine what failed on private data, and freeze the user at the third failure."""
        with self._writing() as transaction:
            transaction.append("failure", {"user": user, "keys": list(keys)})
            row = transaction.one("SELECT failures, frozen FROM accounts WHERE name = ?", user)
            if row is not None and row[0] >= MAX_FAILURES and not row[1]:
                transaction.append("account.frozen", {"name": user})

    def add_account(self, name: str, role: str, verifier: str | None = None) -> None:
        """Add a user; a name used before comes back with its history and its spent budgets."""
        _check_name("user", name)
        _check_name("role", role)
        with self._writing() as transaction:
            if transaction.one("SELECT 1 FROM accounts WHERE name = ? AND removed = 0", name) is not None:
                raise InvalidParameter(f'the account "{name}" exists', hint="choose another name, or remove it first")
            transaction.append("account.added", {"name": name, "role": role, "verifier": _digest(verifier)})
            _put_verifier(transaction, name, verifier)

    def set_verifier(self, name: str, verifier: str | None) -> None:
        """Change a user's SCRAM verifier."""
        with self._writing() as transaction:
            _require(transaction, name)
            transaction.append("account.verifier", {"name": name, "verifier": _digest(verifier)})
            _put_verifier(transaction, name, verifier)

    def set_role(self, name: str, role: str) -> None:
        """Change a user's role; what was spent stays spent."""
        _check_name("role", role)
        with self._writing() as transaction:
            _require(transaction, name)
            transaction.append("account.role", {"name": name, "role": role})

    def remove_account(self, name: str) -> None:
        """Remove a user; history and budgets stay."""
        with self._writing() as transaction:
            _require(transaction, name)
            transaction.append("account.removed", {"name": name})
            _put_verifier(transaction, name, None)

    def unfreeze(self, name: str, reason: str) -> None:
        """Let a frozen user ask again; the reason is recorded."""
        if not reason.strip():
            raise InvalidParameter("unfreezing an account needs a reason", hint="say what was found and mended")
        with self._writing() as transaction:
            if not _require(transaction, name):
                raise InvalidParameter(f'the account "{name}" is not frozen')
            transaction.append("account.unfrozen", {"name": name, "reason": reason})

    def account(self, name: str) -> Account | None:
        """Return a user, or None if there is none of that name."""
        with self._reading() as connection:
            row = connection.execute(f"{_ACCOUNT} AND name = ?", (name,)).fetchone()
        return None if row is None else _account(row)

    def accounts(self) -> tuple[Account, ...]:
        """Return all users by name."""
        with self._reading() as connection:
            return tuple(map(_account, connection.execute(f"{_ACCOUNT} ORDER BY name")))

    def budget(self, user: str, policy: Policy) -> BudgetStatus:
        """Return a user's budget as it stands now."""
        with self._reading() as connection:
            row = connection.execute("SELECT role FROM accounts WHERE name = ? AND removed = 0", (user,)).fetchone()
            if row is None:
                raise _unknown(user)
            budget = role_budget(policy, row[0])
            last = connection.execute("SELECT at FROM records ORDER BY seq DESC LIMIT 1").fetchone()[0]
            return user_status(connection, user, policy.dataset, budget, latest(self._clock, last))

    def cap(self, policy: Policy) -> BudgetStatus:
        """Return the dataset's cap over all users: for the data owner, never for users."""
        with self._reading() as connection:
            return cap_status(connection, policy.dataset)

    def releases(self, user: str) -> list[ReleaseRecord]:
        """Return the releases that a user has paid for, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT r.id, r.key, r.reused, c.at, c.body FROM releases r JOIN records c ON c.seq = r.charge "
                "WHERE r.user = ? ORDER BY r.id",
                (user,),
            ).fetchall()
        return [_release(*row) for row in rows]

    def history(self, user: str | None = None) -> list[ChargeRecord]:
        """Return the charges of a user, or of all, oldest first."""
        with self._reading() as connection:
            if user is None:
                charges = connection.execute("SELECT DISTINCT charge FROM releases")
            else:
                charges = connection.execute("SELECT DISTINCT charge FROM releases WHERE user = ?", (user,))
            query = "SELECT seq, at, body FROM records WHERE seq = ?"
            rows = [connection.execute(query, charge).fetchone() for charge in sorted(charges)]
        return [_charge_record(*row) for row in rows]

    def verify(self, noted: Noted | None = None) -> VerifyReport:
        """Recompute the hash chain, and every balance from the records, while charges go on."""
        with translated(self._path), closing(open_snapshot(self._path)) as connection:
            return verify(connection, noted)

    def export(self) -> Iterator[dict[str, Any]]:
        """Yield every record, oldest first, with its hash."""
        with translated(self._path), closing(open_snapshot(self._path)) as connection:
            for record in records(connection):
                yield {**asdict(record), "body": json.loads(record.body)}

    def close(self) -> None:
        """Close the ledger's file; what waits to be written fails."""
        with self._reader_lock:
            self._reader.close()
        self._commits.close()  # last: the last connection to a file that may write tidies up beside it

    def _begin(self) -> Transaction:
        return Transaction(self._connection, self._clock)

    def _grouped(self, act: Callable[[Transaction], T]) -> T:
        """Write together with what other threads ask for; it is on the disk when this ends, or never was."""
        with translated(self._path):
            return self._commits.run(act)

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """Hold the ledger alone; what was written is on the disk when this ends, or never was."""
        with translated(self._path), self._commits.alone() as transaction:
            yield transaction

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Read one state of the ledger, without waiting for a commit."""
        with self._reader_lock, translated(self._path):
            try:
                self._reader.execute("BEGIN")
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidParameter(
            f"{name!r} cannot be the name of a {what}", hint=f"use 1 to {MAX_NAME} printable characters"
        )


def _unknown(name: str) -> InvalidParameter:
    return InvalidParameter(f'the ledger has no account "{name}"', hint="`dpsql user list` shows the accounts")


def _require(transaction: Transaction, name: str) -> bool:
    """Return whether an account is frozen; there must be one."""
    row = transaction.one("SELECT frozen FROM accounts WHERE name = ? AND removed = 0", name)
    if row is None:
        raise _unknown(name)
    return bool(row[0])


def _digest(verifier: str | None) -> str | None:
    """Return what the records say of a verifier: they are exported, so not the verifier itself."""
    return None if verifier is None else sha256(verifier)


def _put_verifier(transaction: Transaction, name: str, verifier: str | None) -> None:
    transaction.connection.execute("DELETE FROM verifiers WHERE name = ?", (name,))
    if verifier is not None:
        transaction.connection.execute("INSERT INTO verifiers VALUES (?, ?)", (name, verifier))


def _account(row: tuple[str, str, str | None, int, str]) -> Account:
    name, role, verifier, frozen, created = row
    return Account(name, role, verifier, bool(frozen), moment(created))


def _release(number: int, key: str, reused: int, at: str, body: str) -> ReleaseRecord:
    charged: Body = json.loads(body)
    entry = next(entry for entry in charged["releases"] if entry["id"] == number)
    return ReleaseRecord(number, key, charged["sql"], moment(at), load_events(canonical(entry["events"])), reused)


def _charge_record(seq: int, at: str, body: str) -> ChargeRecord:
    charged: Body = json.loads(body)
    price = tuple(event for entry in charged["releases"] for event in load_events(canonical(entry["events"])))
    return ChargeRecord(seq, charged["user"], charged["dataset"], charged["sql"], moment(at), price)
