"""ledger: accounts, budgets and releases, durable before any private row is read, in SQLite or PostgreSQL.

Rule 1: a charge is decided and written in one durable transaction, and is never refunded. A release that a user has
    already paid for is free; only the record of such a reuse may be written after the answer (`again`).
Rule 2: a user who gets another user's release pays for it, and cannot distinguish it from a fresh one.
Rule 3: the remaining cap of a dataset is never shown to users.
Rule 4: each change of a budget, a group or a freeze by the owner is a record with the owner's reason.
"""

import json
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.accounts import (
    add_account,
    check_name,
    confirm_clock,
    end_sessions,
    ensure_account,
    find_account,
    freeze,
    freeze_after_failures,
    list_accounts,
    remove_account,
    set_group,
    set_role,
    set_verifier,
    unfreeze,
    unknown,
)
from dpsql.ledger.budgets import budget_status, cap_status, group_status, last_charge, role_budget
from dpsql.ledger.chain import ORIGIN, Record, sha256
from dpsql.ledger.charging import again, cells, charge, handed, held
from dpsql.ledger.derived_tables import MOST, Memory, read
from dpsql.ledger.grants import grant, lower, reset
from dpsql.ledger.history import charge_record, charges, owner_changes, releases
from dpsql.ledger.model import (
    Account,
    BoundDrop,
    BudgetScope,
    BudgetStatus,
    Charge,
    ChargeRecord,
    ClockStatus,
    GrantedRelease,
    HandedRelease,
    Holder,
    Noted,
    OwnerRecord,
    Reading,
    ReleaseRecord,
    ReleaseRequest,
    UserBudgets,
    VerifyReport,
)
from dpsql.ledger.owner_records import PROFILE_MADE, charge_cap, record_exact, store_profile
from dpsql.ledger.reads import (
    MAX_FAILURES,
    Admission,
    Lines,
    NoPlace,
    ReadsLost,
    is_lost,
    record_lost,
    told_as_lost,
)
from dpsql.ledger.reuse_records import ReuseRecords
from dpsql.ledger.store import Storage, Store
from dpsql.ledger.transaction import CLOCK_LIMIT, GroupCommit, LedgerClock, Transaction, moment, stamp
from dpsql.ledger.verification import cut_off, fill, records, verify
from dpsql.policy import Policy
from dpsql.privacy.cost import Event

T = TypeVar("T")

_LOG = logging.getLogger("dpsql.ledger")

_LOOKS = 2
"""How often `_era` compares the memory with the head of the ledger before it gives up."""

MAX_STORED_BYTES = 256 * 2**20
"""The oldest releases are dropped beyond it; to have one again then costs a new charge."""

_FIELDS = tuple(field.name for field in fields(Record))


def now() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(UTC)


class Ledger:
    """Durable accounts, budgets and releases, shared by threads and processes.

    Every method raises LedgerUnavailable when the ledger cannot be read or durably written. Threads share one
    connection that writes: one transaction writes at a time anyhow.

    Args:
        storage: The database; the ledger closes it.
        clock: Returns the time, aware of its zone.
        clock_limit: How far ahead of the last record the clock is believed.
        max_stored_bytes: Bound on the stored releases together.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], datetime] = now,
        clock_limit: timedelta = CLOCK_LIMIT,
        max_stored_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        self._storage = storage
        self._clock = LedgerClock(clock, clock_limit)
        self._clock_held = False
        self._max_stored_bytes = max_stored_bytes
        self._memory = Memory()
        self._commits = GroupCommit(storage.writer, self._begin)
        self._noted = ReuseRecords(self._commits)
        self._accounts: dict[str, tuple[int, Account]] = {}
        self._expected: dict[str, str] = {}
        self._process = f"{platform.node()} {os.getpid()}"
        self._lines = Lines()
        self._open: set[int] = set()
        self._over: set[int] = set()

    def charge(
        self,
        user: str,
        policy: Policy,
        requests: Sequence[ReleaseRequest],
        *,
        sql: str,
        reuse: bool = True,
        reading: Reading,
    ) -> Charge:
        """Charge a query durably, or raise and write nothing.

        Where private rows are to be read, it waits until few enough of the user's reads are open. The read that the
        charge begins is open until `store`, `record_failure` or `end` is told its number.

        Args:
            user: Who asks.
            policy: Whose budgets are charged.
            requests: The releases that the query needs; one key asked twice is charged once.
            sql: The query, for the history.
            reuse: Whether earlier releases may answer; otherwise each request is a fresh, paid release.
            reading: How fresh releases are read. Private rows are read only with it: so each read is counted.

        Raises:
            BudgetExhausted: The user's budget, that of the user's group, or the dataset's cap does not cover it.
            PolicyViolation: No such account, role or group, a frozen one, a quarantined query, or one that costs less
                than a part of the budget that it has to.
            TooManyStatements: It has waited too long.
            NotHeld: A release is wanted only if the user has it, and the user does not.
            Error: What `reading.check` raises.
        """
        self._record_over()
        is_dead = self._storage.is_dead
        with self._translated():
            gateway = f"{self._process} {self._storage.gateway()}"
        with self._lines.ticket(user) as ticket:
            while True:
                admission = Admission(gateway, reading.seconds, ticket.is_first, is_dead)
                try:
                    charged = self._grouped(
                        partial(
                            self._charge,
                            user=user,
                            policy=policy,
                            requests=requests,
                            sql=sql,
                            reuse=reuse,
                            admission=admission,
                        )
                    )
                except NoPlace:
                    ticket.wait(reading.check)
                except ReadsLost:
                    self._grouped(lambda transaction: record_lost(transaction, user, is_dead))
                else:
                    self._expected.pop(user, None)
                    if charged.reads and charged.id is not None:
                        self._open.add(charged.id)
                    return charged

    def _charge(self, transaction: Transaction, user: str, **terms: Any) -> Charge:
        """Charge a user, who is added in the same transaction if the ledger expects them: a refusal undoes both."""
        role = self._expected.get(user)
        if role is not None:
            ensure_account(transaction, user, role)
        return charge(transaction, user, **terms)

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
        """Return releases that this user already has, at no cost and without waiting; None if `charge` must be called.

        That the release was reused is written soon after, before all later writes of this process. Nothing
        is charged, so a process that dies before loses a line of the user's history, and no budget differs.

        Args:
            user: Who asks.
            role: The role under which the query was compiled; None is returned where the user has another.
            policy: Whose budgets a charge would be made to.
            requests: The releases that the query needs.
            sql: The query, for the history.
            wanted: Told what would be handed out; where it says no, nothing is.
        """
        if self._era() is None:
            return None
        found = again(self._memory, stamp(self._clock.read()), user, role, policy, requests, sql)
        if found is None or not wanted(found[0].releases) or not self._noted.add(found[1]):
            return None
        return found[0]

    def _era(self) -> int | None:
        """Return the cache's era; None if another process may have written since."""
        era = self._memory.era
        # What this process commits between the two looks, at the ledger and at the memory, is seen by the second alone.
        known = any(self._memory.is_of(self._storage.head()) for _ in range(_LOOKS))
        return era if known else None

    def charge_cap(self, policy: Policy, events: Sequence[Event], purpose: str) -> BudgetStatus:
        """Charge a read of the data owner durably to the dataset's cap only, and return the cap; or write nothing.

        Args:
            policy: Whose cap it is.
            events: What is charged.
            purpose: What it is for; it is recorded.

        Raises:
            BudgetExhausted: The cap does not cover it.
        """
        with self._writing() as transaction:
            charge_cap(transaction, policy, events, purpose)
            return cap_status(transaction.connection, policy.dataset)

    def record_exact(self, policy: Policy, purpose: str) -> None:
        """Record durably that the data owner takes exact values from the data, which no guarantee covers."""
        with self._writing() as transaction:
            record_exact(transaction, policy, purpose)

    def store_profile(self, policy: Policy, profile: str) -> None:
        """Store a profile of the dataset durably; its release was charged to the cap."""
        with self._writing() as transaction:
            store_profile(transaction, policy.dataset.name, profile)

    def profiles(self, policy: Policy) -> tuple[str, ...]:
        """Return the profiles of the dataset, oldest first, as they were given to `store_profile`."""
        query = "SELECT body FROM records WHERE kind = ? ORDER BY seq"
        with self._reading() as connection:
            bodies = [read(json.loads, body) for (body,) in connection.execute(query, (PROFILE_MADE,)).fetchall()]
        return tuple(body["profile"] for body in bodies if body["dataset"] == policy.dataset.name)

    def held(self, user: str, policy: Policy, requests: Sequence[ReleaseRequest]) -> tuple[bool, ...]:
        """Tell which of the requests this user has already and would not be charged for; nothing is written."""
        with self._reading() as connection:
            return held(Transaction(connection, self._clock, Memory()), user, policy, requests)

    def handed(self, user: str, policy: Policy, after: HandedRelease | None = None) -> tuple[HandedRelease, ...]:
        """Return the releases that this user has paid for, oldest first.

        Args:
            user: Who has them.
            policy: Of whose dataset they are.
            after: One of them: those that came later are returned; None for all.
        """
        with self._reading() as connection:
            return handed(connection, user, policy.dataset.name, after)

    def cells(self, user: str, release: int) -> bytes:
        """Return the stored cells of a release that this user has paid for.

        Args:
            user: Who has it.
            release: Its number in the ledger, which no user is told.

        Raises:
            LedgerUnavailable: It is not what was stored.
            NotHeld: It is not kept, or the user does not have it.
        """
        with self._reading() as connection:
            return cells(connection, user, release)

    def store(
        self, release_id: int, payload: bytes, *, ends: int | None = None, dropped: Sequence[BoundDrop] = ()
    ) -> None:
        """Keep a release durably, so that it may answer again; the first one stored for a key stays.

        One beyond the bound of stored releases is not kept at all.

        Args:
            release_id: The release.
            payload: Its cells.
            ends: Number of the charge whose read has ended with it, well.
            dropped: What the answer's released cells tell of its bounds: it is recorded with the end of the read.

        Raises:
            LedgerUnavailable: The read counts as lost already; the release is not kept, and no user may be told of it.
        """
        told: dict[str, object] = {"dropped": [astuple(each) for each in dropped]} if dropped else {}
        self._grouped(lambda transaction: self._store(transaction, release_id, payload, ends, told))
        if ends is not None:
            self._open.discard(ends)
            self._lines.stir()

    def _store(
        self, transaction: Transaction, release_id: int, payload: bytes, ends: int | None, told: Mapping[str, object]
    ) -> None:
        row = transaction.one("SELECT dataset, key, price FROM releases WHERE id = ? AND origin = id", release_id)
        if row is None:
            raise InvalidParameter(f"no release {release_id} was charged to be made")
        if ends is not None and is_lost(transaction, ends):
            raise told_as_lost()
        taken = transaction.one("SELECT 1 FROM stored WHERE dataset = ? AND key = ? AND price = ?", *row)
        if taken is not None or len(payload) > self._max_stored_bytes:
            if ends is not None:
                transaction.append("read.ended", {"charges": [ends], **told})
            return
        self._make_room(transaction, len(payload))
        transaction.connection.execute("INSERT INTO payloads VALUES (?, ?)", (release_id, payload))
        body = {"release": release_id, "digest": sha256(payload), "size": len(payload)}
        transaction.append("release.stored", body if ends is None else {**body, "ends": ends, **told})

    def _make_room(self, transaction: Transaction, size: int) -> None:
        while transaction.one("SELECT stored_bytes FROM totals")[0] + size > self._max_stored_bytes:
            release, freed = transaction.one("SELECT release, size FROM stored ORDER BY position LIMIT 1")
            transaction.connection.execute("DELETE FROM payloads WHERE release = ?", (release,))
            transaction.append("release.dropped", {"release": release, "size": freed})

    def end(self, charge: int) -> None:
        """Let it be known soon that the read of a charge has ended, and did not fail; nothing if that is known."""
        if charge in self._open:
            self._open.discard(charge)
            self._over.add(charge)
            with suppress(LedgerUnavailable):  # then with the next charge
                self._record_over()

    def _record_over(self) -> None:
        over = sorted(self._over)
        if over:
            self._grouped(lambda transaction: transaction.append("read.ended", {"charges": over}))
            self._over.difference_update(over)
            self._lines.stir()

    def record_failure(self, user: str, keys: Sequence[str], charge: int | None = None) -> None:
        """Quarantine releases that failed on private data, end the read, and freeze the user at the third failure.

        Raises:
            LedgerUnavailable: The read counts as lost already; no user may tell that from a read that ended well.
        """
        if charge is not None:
            self._open.discard(charge)  # from here on it did not end well
        body = {"user": user, "keys": list(keys)}
        with self._writing() as transaction:
            lost = charge is not None and is_lost(transaction, charge)
            transaction.append("failure", body if charge is None else body | {"charge": charge})
            freeze_after_failures(transaction, user, MAX_FAILURES)
        self._lines.stir()
        if lost:
            raise told_as_lost()

    def add_account(self, name: str, role: str, verifier: str | None = None, group: str | None = None) -> None:
        """Add a user; a name used before comes back with its history and its spent budgets, but not in its group."""
        with self._writing() as transaction:
            add_account(transaction, name, role, verifier, group)

    def expect(self, name: str, role: str) -> None:
        """Answer a user whom the ledger does not know; the first charge adds them, and nothing is written before."""
        check_name("user", name)
        self._expected[name] = role

    def add_expected(self, name: str) -> None:
        """Add a user who is expected now, if another process has not added them; nothing if nobody is expected."""
        role = self._expected.get(name)
        if role is not None:
            with self._writing() as transaction:
                ensure_account(transaction, name, role)
            self._expected.pop(name, None)

    def set_verifier(self, name: str, verifier: str | None) -> None:
        """Change a user's SCRAM verifier."""
        with self._writing() as transaction:
            set_verifier(transaction, name, verifier)

    def end_sessions(self, name: str) -> None:
        """Have gateways end a user's sessions, as a change of the verifier does: it is recorded once more."""
        with self._writing() as transaction:
            end_sessions(transaction, name)

    def ended_sessions(self, after: int | None) -> tuple[int, frozenset[str]]:
        """Tell whose sessions are to end.

        Args:
            after: The number of a record; None to be told no user, and where the records end now.

        Returns:
            The number of the last record, and the users who were removed, got a verifier or were to be sent away in
            records after that one.
        """
        with self._reading() as connection:
            (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM records").fetchone()
            query = "SELECT body FROM records WHERE seq > ? AND kind IN ('account.verifier', 'account.removed')"
            rows = connection.execute(query, (last if after is None else after,)).fetchall()
        return last, frozenset(json.loads(body)["name"] for (body,) in rows)

    def set_role(self, name: str, role: str) -> None:
        """Change a user's role; spending is kept."""
        with self._writing() as transaction:
            set_role(transaction, name, role)

    def set_group(self, name: str, group: str | None) -> None:
        """Put a user into a group, or into none; spending is kept in both groups."""
        with self._writing() as transaction:
            set_group(transaction, name, group)

    def remove_account(self, name: str) -> None:
        """Remove a user; history and budgets stay."""
        with self._writing() as transaction:
            remove_account(transaction, name)

    def freeze(self, holder: Holder, reason: str) -> None:
        """Refuse every charge of a user, of a group's members, or of everybody; the reason is recorded."""
        with self._writing() as transaction:
            freeze(transaction, holder, reason)

    def unfreeze(self, holder: Holder, reason: str) -> None:
        """Let those who were frozen ask again; the reason is recorded."""
        with self._writing() as transaction:
            unfreeze(transaction, holder, reason)

    def grant(self, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str) -> BudgetStatus:
        """Give a user or a group more than the policy says, from now on, and return the budget; with the reason.

        Raises:
            InvalidParameter: No such user or group, a number out of range, no reason, or the cap: that is the policy's.
        """
        with self._writing() as transaction:
            grant(transaction, holder, policy, epsilon, delta, reason)
        return self._status(holder, policy)

    def lower(self, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str) -> BudgetStatus:
        """Lower the budget of a user or a group, as `grant` raises it; spending is kept."""
        with self._writing() as transaction:
            lower(transaction, holder, policy, epsilon, delta, reason)
        return self._status(holder, policy)

    def reset(self, holder: Holder, policy: Policy, reason: str) -> BudgetStatus:
        """Let a user or a group spend the whole budget again; earlier spending adds to the loss."""
        with self._writing() as transaction:
            reset(transaction, holder, policy, reason)
        return self._status(holder, policy)

    def _status(self, holder: Holder, policy: Policy) -> BudgetStatus:
        if holder.scope is BudgetScope.GROUP:
            return self.group_budget(holder.name, policy)
        return self.budget(holder.name, policy)

    def account(self, name: str) -> Account | None:
        """Return a user, known or expected, or None if there is none of that name."""
        era = self._era()
        known = self._accounts.get(name)
        if known is not None and known[0] == era:
            return known[1]
        with self._reading() as connection:
            found = find_account(connection, name)
        role = self._expected.get(name)
        if found is None and role is not None:
            return Account(name, role, None, False, self._clock.told())
        if found is not None and era is not None and era == self._era():
            if len(self._accounts) >= MOST:
                self._accounts.clear()
            self._accounts[name] = era, found
        return found

    def accounts(self) -> tuple[Account, ...]:
        """Return all users by name."""
        with self._reading() as connection:
            return list_accounts(connection)

    def budget(self, user: str, policy: Policy) -> BudgetStatus:
        """Return a user's current budget."""
        return self.budgets(user, policy).own

    def budgets(self, user: str, policy: Policy) -> UserBudgets:
        """Return the budgets that a user may see: the user's, the group's, and the last charge."""
        query = "SELECT role, user_group, failures, removed FROM accounts WHERE name = ?"
        with self._reading() as connection:
            row = connection.execute(query, (user,)).fetchone()
            role, group, failures, removed = row or (None, None, 0, 1)
            if removed:
                role = self._expected.get(user)
            if role is None:
                raise unknown(user)
            now = self._now(connection)
            holder, budget = Holder(BudgetScope.USER, user), role_budget(policy, role)
            own = budget_status(connection, holder, policy.dataset, budget, now)
            shared = None if group is None else group_status(connection, group, policy, now)
            charge = last_charge(connection, user, policy.dataset)
            last = None if charge is None else charge_record(connection, charge)
        return UserBudgets(own, group, shared, last, failures)

    def group_budget(self, group: str, policy: Policy) -> BudgetStatus:
        """Return a group's current budget."""
        with self._reading() as connection:
            return group_status(connection, group, policy, self._now(connection))

    def _now(self, connection: Store) -> datetime:
        return moment(self._date(connection)[0])

    def _date(self, connection: Store) -> tuple[str, bool]:
        row = connection.execute("SELECT at FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        return self._clock.date(None if row is None else row[0])

    def cap(self, policy: Policy) -> BudgetStatus:
        """Return the dataset's cap over all users: for the data owner, never for users."""
        with self._reading() as connection:
            return cap_status(connection, policy.dataset)

    def releases(self, user: str, dataset: str) -> list[ReleaseRecord]:
        """Return the releases of a dataset that a user has paid for, oldest first."""
        self._catch_up()
        with self._reading() as connection:
            return releases(connection, user, dataset)

    def history(self, user: str | None = None) -> list[ChargeRecord]:
        """Return the charges of a user, or of all, oldest first."""
        with self._reading() as connection:
            return charges(connection, user)

    def frozen(self) -> frozenset[Holder]:
        """Return who is frozen: users, groups, or everybody; a freeze of a group names the group alone."""
        with self._reading() as connection:
            rows = connection.execute("SELECT scope, holder FROM freezes").fetchall()
        return frozenset(Holder(BudgetScope(scope), name) for scope, name in rows)

    def owner_history(self) -> list[OwnerRecord]:
        """Return all grants, resets, freezes and changes of group, oldest first."""
        with self._reading() as connection:
            return owner_changes(connection)

    @property
    def clock_held(self) -> bool:
        """Whether the clock was not trusted when this process last wrote; nothing is read for it."""
        return self._clock_held

    def clock_status(self) -> ClockStatus:
        """Tell the ledger's time and that of this machine."""
        with self._reading() as connection:
            at, held = self._date(connection)
        return ClockStatus(moment(at), self._clock.told(), held)

    def confirm_clock(self, reason: str) -> ClockStatus:
        """Have the ledger believe this machine's clock, though it is far ahead; the reason is recorded.

        Raises:
            InvalidParameter: No reason, or the clock is believed already.
        """
        with self._writing() as transaction:
            confirm_clock(transaction, reason)
        return self.clock_status()

    def verify(self, noted: Noted | None = None) -> VerifyReport:
        """Recompute the hash chain, and every balance from the records; check the head that was noted elsewhere.

        Charges go on meanwhile.
        """
        self._catch_up()
        with self._translated(), self._storage.snapshot() as store:
            return verify(store, self._storage.flaws(store), noted)

    def head(self) -> Noted:
        """Return the last record, to be noted elsewhere."""
        with self._reading() as connection:
            row = connection.execute("SELECT hash, seq FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        return Noted(*(row or (ORIGIN, 0)))

    def check(self, noted: Noted) -> None:
        """Refuse to go on where the record is not there that was noted elsewhere as the last."""
        with self._reading() as connection:
            problems = cut_off(connection, noted)
        if problems:
            raise LedgerUnavailable(
                f"{problems[0]}: record {noted.records} with hash {noted.head}",
                hint="The ledger is an old copy, a new one, or was cut short: put the right one back.",
            )

    def fill(self, source: "Ledger") -> VerifyReport:
        """Copy one state of another ledger into this one, which is empty, durably and as a whole."""
        with source._translated(), source._storage.snapshot() as store, self._writing() as transaction:
            flaws = source._storage.flaws(store)
            if flaws:
                raise LedgerUnavailable(f"the ledger is not whole: {flaws[0]}", hint="Restore it from a backup.")
            return fill(transaction.connection, store)

    def export(self, after: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield every record, oldest first, with its hash; or those after one of them, by its number."""
        self._catch_up()
        with self._translated(), self._storage.snapshot() as store:
            for record in records(store, after):
                yield {name: getattr(record, name) for name in _FIELDS} | {"body": read(json.loads, record.body)}

    def probe(self) -> None:
        """Commit an empty write durably: if this succeeds, a charge would be durable, too."""
        self._grouped(_rewrite)

    def close(self) -> None:
        """Close the ledger; pending writes fail."""
        self._storage.close()
        self._commits.close()  # last: the last connection to a file that may write removes the files next to it

    def _begin(self) -> Transaction:
        try:
            self._storage.begin()
        except BaseException:
            self._memory.disown()  # what cannot be recorded is not handed out again
            raise
        transaction = Transaction(self._storage.writer, self._clock, self._memory)
        self._tell_held(transaction.held)
        return transaction

    def _tell_held(self, held: bool) -> None:
        """Log once that the clock is not trusted."""
        if held and not self._clock_held:
            _LOG.warning(
                "the clock of this machine is more than %d days ahead of the ledger's last record, and is not "
                "trusted: no budget renews until the data owner runs: dpsql ledger clock --reason TEXT",
                self._clock.limit.days,
            )
        self._clock_held = held

    def _grouped(self, act: Callable[[Transaction], T]) -> T:
        """Write in a group commit; when this returns, the write is durable, or has never happened."""
        with self._translated():
            return self._commits.run(act)

    def _catch_up(self) -> None:
        """Wait until all reuses so far are recorded."""
        with self._translated():
            self._commits.catch_up()

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """Lock the ledger; when this ends, the writes are durable, or have never happened."""
        with self._translated(), self._commits.alone() as transaction:
            yield transaction

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        """Read one state of the ledger, without waiting for a commit."""
        with self._translated(), self._storage.reading() as store:
            yield store

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise LedgerUnavailable for each refusal of the database."""
        try:
            yield
        except self._storage.errors as error:
            raise self._storage.unavailable(error) from error


def _rewrite(transaction: Transaction) -> None:
    """Change a page, and change it back: SQLite writes no page that a statement leaves as it was."""
    transaction.connection.execute("UPDATE totals SET stored_bytes = stored_bytes + 1")
    transaction.connection.execute("UPDATE totals SET stored_bytes = stored_bytes - 1")
