"""The ledger over a database: what each of its methods reads and writes, whichever database that is."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, TypeVar

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.accounts import check_name, freeze, freeze_after_failures, set_group, unfreeze, unknown
from dpsql.ledger.budgets import budget_status, cap_status, group_budget, last_charge, role_budget
from dpsql.ledger.chain import Record, sha256
from dpsql.ledger.charging import again, charge, held
from dpsql.ledger.commits import GroupCommit
from dpsql.ledger.copying import fill
from dpsql.ledger.grants import grant, lower, reset
from dpsql.ledger.history import OWNER_KINDS, charge_record, owner_record, release_record
from dpsql.ledger.ledger import (
    Account,
    BudgetStatus,
    Charge,
    ChargeRecord,
    GrantedRelease,
    Holder,
    Noted,
    OwnerRecord,
    PaidRelease,
    ReleaseRecord,
    ReleaseRequest,
    Scope,
    UserBudgets,
    VerifyReport,
)
from dpsql.ledger.looks import charge_cap, record_exact
from dpsql.ledger.memory import MOST, Memory
from dpsql.ledger.reuses import Reuses
from dpsql.ledger.store import Storage, Store
from dpsql.ledger.transaction import Transaction, latest
from dpsql.ledger.verification import records, verify
from dpsql.ledger.windows import moment, stamp
from dpsql.policy import Policy
from dpsql.privacy.cost import Event

T = TypeVar("T")

MAX_FAILURES = 3
"""So many queries of a user may fail on private data before the account is frozen."""

_LOOKS = 2
"""So often it is looked whether the ledger is as the memory has it, before more than a look is needed."""

MAX_STORED_BYTES = 256 * 2**20
"""The oldest releases are dropped beyond it; to have one again then costs a new charge."""

_ACCOUNT = (
    "SELECT a.name, a.role, v.verifier, EXISTS (SELECT 1 FROM freezes f WHERE f.scope = 'all' "
    "OR f.scope = 'user' AND f.holder = a.name OR f.scope = 'group' AND f.holder = a.user_group), a.created, "
    "a.user_group FROM accounts a LEFT JOIN verifiers v ON v.name = a.name WHERE a.removed = 0"
)

_FIELDS = tuple(field.name for field in fields(Record))

_RELEASE = (
    "r.id, r.key, r.reused, EXISTS (SELECT 1 FROM stored WHERE release = r.origin), c.at, c.body "
    "FROM releases r JOIN records c ON c.seq = r.charge"
)

MAX_NUMBER = 2**63 - 1
"""No release has a higher number."""


def now() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(UTC)


class StoredLedger:
    """A Ledger in a database.

    Threads share one connection that writes: one transaction writes at a time anyhow.

    Args:
        storage: The database; the ledger closes it.
        clock: Returns the time, aware of its zone.
        max_stored_bytes: Bound on the stored releases together.
    """

    def __init__(
        self, storage: Storage, *, clock: Callable[[], datetime] = now, max_stored_bytes: int = MAX_STORED_BYTES
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._max_stored_bytes = max_stored_bytes
        self._memory = Memory()
        self._commits = GroupCommit(storage.writer, self._begin)
        self._noted = Reuses(self._commits)
        self._accounts: dict[str, tuple[int, Account]] = {}

    def charge(
        self, user: str, policy: Policy, requests: Sequence[ReleaseRequest], *, sql: str, reuse: bool = True
    ) -> Charge:
        """Charge a query durably, or raise and write nothing."""
        return self._grouped(lambda transaction: charge(transaction, user, policy, requests, sql, reuse))

    def again(
        self,
        user: str,
        role: str,
        policy: Policy,
        requests: Sequence[ReleaseRequest],
        *,
        sql: str,
        wanted: Callable[[tuple[GrantedRelease, ...]], bool] = lambda _: True,
    ) -> Charge | None:
        """Hand out what this user has already, free, and wait for nothing; None where `charge` must be asked."""
        if self._era() is None:
            return None
        found = again(self._memory, stamp(self._clock()), user, role, policy, requests, sql)
        if found is None or not wanted(found[0].releases) or not self._noted.add(found[1]):
            return None
        return found[0]

    def _era(self) -> int | None:
        """Return the memory's era; None where something else may have written since what the memory holds at."""
        era = self._memory.era
        # What this process commits between the two looks, at the ledger and at the memory, is seen by the second alone.
        known = any(self._memory.is_of(self._storage.head()) for _ in range(_LOOKS))
        return era if known else None

    def charge_cap(self, policy: Policy, events: Sequence[Event], purpose: str) -> BudgetStatus:
        """Charge what the data owner asks to the dataset's cap alone, durably, and return the cap; or write nothing."""
        with self._writing() as transaction:
            charge_cap(transaction, policy, events, purpose)
            return cap_status(transaction.connection, policy.dataset)

    def record_exact(self, policy: Policy, purpose: str) -> None:
        """Record durably that the data owner takes exact values from the data, which no guarantee covers."""
        with self._writing() as transaction:
            record_exact(transaction, policy, purpose)

    def held(self, user: str, policy: Policy, requests: Sequence[ReleaseRequest]) -> tuple[bool, ...]:
        """Tell which of the requests this user has already and would not be charged for; nothing is written."""
        with self._reading() as connection:
            return held(Transaction(connection, self._clock, Memory()), user, policy, requests)

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
            freeze_after_failures(transaction, user, MAX_FAILURES)

    def add_account(self, name: str, role: str, verifier: str | None = None, group: str | None = None) -> None:
        """Add a user; a name used before comes back with its history and its spent budgets, but not in its group."""
        check_name("user", name)
        check_name("role", role)
        with self._writing() as transaction:
            if transaction.one("SELECT 1 FROM accounts WHERE name = ? AND removed = 0", name) is not None:
                raise InvalidParameter(f'the account "{name}" exists', hint="choose another name, or remove it first")
            transaction.append("account.added", {"name": name, "role": role, "verifier": _digest(verifier)})
            _put_verifier(transaction, name, verifier)
            if group is not None:
                set_group(transaction, name, group)

    def set_verifier(self, name: str, verifier: str | None) -> None:
        """Change a user's SCRAM verifier."""
        with self._writing() as transaction:
            _require(transaction, name)
            transaction.append("account.verifier", {"name": name, "verifier": _digest(verifier)})
            _put_verifier(transaction, name, verifier)

    def set_role(self, name: str, role: str) -> None:
        """Change a user's role; what was spent stays spent."""
        check_name("role", role)
        with self._writing() as transaction:
            _require(transaction, name)
            transaction.append("account.role", {"name": name, "role": role})

    def set_group(self, name: str, group: str | None) -> None:
        """Put a user into a group, or into none; what was spent stays spent, in both groups."""
        with self._writing() as transaction:
            set_group(transaction, name, group)

    def remove_account(self, name: str) -> None:
        """Remove a user; history and budgets stay."""
        with self._writing() as transaction:
            _require(transaction, name)
            transaction.append("account.removed", {"name": name})
            _put_verifier(transaction, name, None)

    def freeze(self, holder: Holder, reason: str) -> None:
        """Refuse every charge of a user, of a group's members, or of everybody; the reason is recorded."""
        with self._writing() as transaction:
            freeze(transaction, holder, reason)

    def unfreeze(self, holder: Holder, reason: str) -> None:
        """Let those who were frozen ask again; the reason is recorded."""
        with self._writing() as transaction:
            unfreeze(transaction, holder, reason)

    def grant(self, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str) -> BudgetStatus:
        """Give a user or a group more than the policy says, and return the budget."""
        with self._writing() as transaction:
            grant(transaction, holder, policy, epsilon, delta, reason)
        return self._status(holder, policy)

    def lower(self, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str) -> BudgetStatus:
        """Give a user or a group less than before, and return the budget."""
        with self._writing() as transaction:
            lower(transaction, holder, policy, epsilon, delta, reason)
        return self._status(holder, policy)

    def reset(self, holder: Holder, policy: Policy, reason: str) -> BudgetStatus:
        """Let a user or a group spend the whole budget again, and return it."""
        with self._writing() as transaction:
            reset(transaction, holder, policy, reason)
        return self._status(holder, policy)

    def _status(self, holder: Holder, policy: Policy) -> BudgetStatus:
        if holder.scope is Scope.GROUP:
            return self.group_budget(holder.name, policy)
        return self.budget(holder.name, policy)

    def account(self, name: str) -> Account | None:
        """Return a user, or None if there is none of that name."""
        era = self._era()
        known = self._accounts.get(name)
        if known is not None and known[0] == era:
            return known[1]
        with self._reading() as connection:
            row = connection.execute(f"{_ACCOUNT} AND a.name = ?", (name,)).fetchone()
        found = None if row is None else _account(row)
        if found is not None and era is not None and era == self._era():
            if len(self._accounts) >= MOST:
                self._accounts.clear()
            self._accounts[name] = era, found
        return found

    def accounts(self) -> tuple[Account, ...]:
        """Return all users by name."""
        with self._reading() as connection:
            return tuple(map(_account, connection.execute(f"{_ACCOUNT} ORDER BY a.name")))

    def budget(self, user: str, policy: Policy) -> BudgetStatus:
        """Return a user's own budget as it stands now."""
        return self.budgets(user, policy).own

    def budgets(self, user: str, policy: Policy) -> UserBudgets:
        """Return all that a user may know of budgets: the own, the group's, and the last charge."""
        query = "SELECT role, user_group FROM accounts WHERE name = ? AND removed = 0"
        with self._reading() as connection:
            row = connection.execute(query, (user,)).fetchone()
            if row is None:
                raise unknown(user)
            role, group = row
            now = self._latest(connection)
            holder, budget = Holder(Scope.USER, user), role_budget(policy, role)
            own = budget_status(connection, holder, policy.dataset, budget, now)
            shared = None if group is None else _group_status(connection, group, policy, now)
            charge = last_charge(connection, user, policy.dataset)
            record = connection.execute("SELECT seq, at, body FROM records WHERE seq = ?", (charge,)).fetchone()
        return UserBudgets(own, group, shared, None if record is None else charge_record(*record))

    def group_budget(self, group: str, policy: Policy) -> BudgetStatus:
        """Return a group's budget as it stands now."""
        with self._reading() as connection:
            return _group_status(connection, group, policy, self._latest(connection))

    def _latest(self, connection: Store) -> datetime:
        row = connection.execute("SELECT at FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        return moment(latest(self._clock, None if row is None else row[0]))

    def cap(self, policy: Policy) -> BudgetStatus:
        """Return the dataset's cap over all users: for the data owner, never for users."""
        with self._reading() as connection:
            return cap_status(connection, policy.dataset)

    def releases(self, user: str, dataset: str) -> list[ReleaseRecord]:
        """Return the releases of a dataset that a user has paid for, oldest first."""
        self._catch_up()
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_RELEASE} WHERE r.user = ? AND r.dataset = ? ORDER BY r.id",
                (user, dataset),
            ).fetchall()
        return [release_record(*row) for row in rows]

    def paid(self, dataset: str, most: int, before: int | None = None) -> list[PaidRelease]:
        """Return so many releases of a dataset that anybody has paid for, newest first: for the data owner."""
        self._catch_up()
        query = f"SELECT r.user, r.origin, {_RELEASE} WHERE r.dataset = ? AND r.id < ? ORDER BY r.id DESC LIMIT ?"
        with self._reading() as connection:
            rows = connection.execute(query, (dataset, MAX_NUMBER if before is None else before, most)).fetchall()
        return [PaidRelease(user, origin == row[0], release_record(*row)) for user, origin, *row in rows]

    def history(self, user: str | None = None) -> list[ChargeRecord]:
        """Return the charges of a user, or of all, oldest first."""
        with self._reading() as connection:
            if user is None:
                charges = connection.execute("SELECT DISTINCT charge FROM releases")
            else:
                charges = connection.execute("SELECT DISTINCT charge FROM releases r WHERE r.user = ?", (user,))
            query = "SELECT seq, at, body FROM records WHERE seq = ?"
            rows = [connection.execute(query, charge).fetchone() for charge in sorted(charges)]
        return [charge_record(*row) for row in rows]

    def owner_history(self) -> list[OwnerRecord]:
        """Return all grants, resets, freezes and changes of group, oldest first."""
        places = ", ".join("?" * len(OWNER_KINDS))
        query = f"SELECT seq, at, kind, body FROM records WHERE kind IN ({places}) ORDER BY seq"  # noqa: S608
        with self._reading() as connection:
            rows = connection.execute(query, OWNER_KINDS).fetchall()
        return [owner_record(*row) for row in rows]

    def verify(self, noted: Noted | None = None) -> VerifyReport:
        """Recompute the hash chain, and every balance from the records, while charges go on."""
        self._catch_up()
        with self._translated(), self._storage.snapshot() as store:
            return verify(store, self._storage.flaws(store), noted)

    def fill(self, source: "StoredLedger") -> VerifyReport:
        """Copy one state of another ledger into this one, which is empty, durably and as a whole."""
        with source._translated(), source._storage.snapshot() as store, self._writing() as transaction:
            flaws = source._storage.flaws(store)
            if flaws:
                raise LedgerUnavailable(f"the ledger is not whole: {flaws[0]}", hint="restore it from a backup")
            return fill(transaction.connection, store)

    def export(self, after: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield every record, oldest first, with its hash; or those after one of them, by its number."""
        self._catch_up()
        with self._translated(), self._storage.snapshot() as store:
            for record in records(store, after):
                yield {name: getattr(record, name) for name in _FIELDS} | {"body": json.loads(record.body)}

    def close(self) -> None:
        """Close the ledger; what waits to be written fails."""
        self._storage.close()
        self._commits.close()  # last: the last connection to a file that may write tidies up beside it

    def _begin(self) -> Transaction:
        try:
            self._storage.begin()
        except BaseException:
            self._memory.disown()  # what cannot be recorded is not handed out again
            raise
        return Transaction(self._storage.writer, self._clock, self._memory)

    def _grouped(self, act: Callable[[Transaction], T]) -> T:
        """Write together with what other threads ask for; it is on the disk when this ends, or never was."""
        with self._translated():
            return self._commits.run(act)

    def _catch_up(self) -> None:
        """See to it that what was handed out again until now is recorded."""
        with self._translated():
            self._commits.catch_up()

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """Hold the ledger alone; what was written is on the disk when this ends, or never was."""
        with self._translated(), self._commits.alone() as transaction:
            yield transaction

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        """Read one state of the ledger, without waiting for a commit."""
        with self._translated(), self._storage.reading() as store:
            yield store

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise LedgerUnavailable for whatever the database refuses."""
        try:
            yield
        except self._storage.errors as error:
            raise self._storage.unavailable(error) from error


def _require(transaction: Transaction, name: str) -> None:
    if transaction.one("SELECT 1 FROM accounts WHERE name = ? AND removed = 0", name) is None:
        raise unknown(name)


def _group_status(connection: Store, group: str, policy: Policy, now: datetime) -> BudgetStatus:
    return budget_status(connection, Holder(Scope.GROUP, group), policy.dataset, group_budget(policy, group), now)


def _digest(verifier: str | None) -> str | None:
    """Return what the records say of a verifier: they are exported, so not the verifier itself."""
    return None if verifier is None else sha256(verifier)


def _put_verifier(transaction: Transaction, name: str, verifier: str | None) -> None:
    transaction.connection.execute("DELETE FROM verifiers WHERE name = ?", (name,))
    if verifier is not None:
        transaction.connection.execute("INSERT INTO verifiers VALUES (?, ?)", (name, verifier))


def _account(row: tuple[str, str, str | None, int, str, str | None]) -> Account:
    name, role, verifier, frozen, created, group = row
    return Account(name, role, verifier, bool(frozen), moment(created), group)
