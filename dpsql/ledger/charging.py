"""Decides on a charge: which budgets pay how much, and whether each has enough left. A refusal leaves no record.

Rule 1: users pay for each release that they are handed and have not paid for; the cap pays for each that is made.
Rule 2: a group pays for each release that a member pays for, once in a window of the group's budget.

Guarantee: in one window, what the members of a group are handed while they are members is together (ε, δ)-DP, given
    what each of them had been handed before: a further copy of the same noisy cells, for another member, tells them
    together nothing new. In a new window, and after a reset, a copy is charged again: the members may be others by
    then, and w windows are to add up whoever they are. What a member brings along was charged elsewhere: handed to
    the same user again it costs the group nothing; handed to another member it is charged to the group.
Assumes: for the group as for one user, that what users outside ask does not depend on what its members are told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpsql.errors import LedgerUnavailable, PolicyViolation
from dpsql.ledger.accounts import active_account
from dpsql.ledger.budgets import BudgetState, group_budget, open_budget, open_cap, renews, role_budget
from dpsql.ledger.chain import GroupShare, Receipt, ReceiptItem, canonical, price_digest, sha256, write_events
from dpsql.ledger.derived_tables import Memory, Total, charged, joined, price, read_total
from dpsql.ledger.model import (
    BudgetScope,
    Charge,
    GrantedRelease,
    GroupBalance,
    HandedRelease,
    Holder,
    NotHeld,
    ReleaseRequest,
)
from dpsql.ledger.reads import Admission
from dpsql.ledger.refusals import budget_exhausted, cap_exhausted, group_exhausted
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import Transaction, stamp
from dpsql.policy import Policy
from dpsql.privacy.accounting import Limit, Spent, admits

_MOST_PAYLOAD = 16 * 2**10
"""Bytes of releases that are cached, to be reused at once."""

_LAST_RELEASE, _FAILED = "last release", "failed"
"""What is remembered next to payers: the highest number of a release, and whether any query is in quarantine."""


@dataclass(frozen=True, slots=True)
class _Payers:
    """The budgets that pay for a user's queries, cached until the budgets, the policy or the window change.

    Attributes:
        policy: The policy that they were found under.
        role: The user's role.
        own: The user's budget.
        group: Name of the user's group; None if there is none.
        shared: The group's budget; None without a group.
        cap: The dataset's cap.
        until: Stamp of the moment at which one of the budgets renews; None if none does.
    """

    policy: Policy
    role: str
    own: BudgetState
    group: str | None
    shared: BudgetState | None
    cap: BudgetState
    until: str | None

    def holds(self, policy: Policy, at: str) -> bool:
        """Whether they pay under a policy at a moment."""
        return self.policy is policy and (self.until is None or at < self.until)


@dataclass(frozen=True, slots=True)
class _Grant:
    """A release, and its entry in the record of the charge."""

    release: GrantedRelease
    item: ReceiptItem

    @property
    def fresh(self) -> bool:
        return self.release.payload is None


@dataclass(frozen=True, slots=True)
class _Owned:
    """The requested releases that a user already has, and the budgets that pay."""

    payers: _Payers
    grants: Sequence[_Grant]


def charge(
    transaction: Transaction,
    user: str,
    policy: Policy,
    requests: Sequence[ReleaseRequest],
    sql: str,
    reuse: bool,
    admission: Admission,
) -> Charge:
    """Charge new releases to the user and to the user's group, and fresh ones also to the dataset's cap.

    Args:
        transaction: Where it is written.
        user: Who asks.
        policy: Whose budgets are charged.
        requests: The releases that the query needs.
        sql: The query.
        reuse: Whether earlier releases may answer.
        admission: Decides whether what is fresh may be read.
    """
    payers = _payers(transaction, user, policy)
    _check_quarantine(transaction, requests)
    own, shared, cap = payers.own, payers.shared, payers.cap
    dataset = policy.dataset.name
    grants = _grants(transaction, user, dataset, requests, reuse)
    distinct = {grant.release.release_id: grant for grant in grants}.values()
    paid = [grant for grant in distinct if not grant.release.reused]
    new = [] if shared is None else [grant for grant in paid if not _is_shared(transaction, shared, grant)]
    asked = price(joined([grant.item.events for grant in paid]))
    _check_budgets(transaction, payers, user, dataset, paid, new, asked)
    read = None
    # A release that costs nothing reads no private row.
    private = [grant for grant in paid if price(grant.item.events) != Spent.zero()]
    if private:
        read = admission.begin(transaction, user, own.limit, _prices(own.limit, private), asked)

    if not paid and sum(len(grant.release.payload or b"") for grant in distinct) <= _MOST_PAYLOAD:
        transaction.memory.learnt[_asked(user, policy, requests)] = _Owned(payers, grants)

    group = None
    if shared is not None and new:
        group = GroupShare(str(payers.group), shared.id, tuple(grant.item.id for grant in new))
    reused = tuple(grant.item.id for grant in distinct if grant.release.reused)
    receipt = Receipt(user, dataset, sql, own.id, cap.id, tuple(grant.item for grant in paid), reused, group, read)
    number = transaction.append("charge" if paid else "reuse", receipt)
    if paid:
        transaction.memory.facts[_LAST_RELEASE] = paid[-1].item.id
    releases = tuple(grant.release for grant in grants)
    balance = (
        None if shared is None else GroupBalance(str(payers.group), shared.limit, _total(transaction, shared).spent)
    )
    return Charge(number, user, releases, asked, own.limit, _total(transaction, own).spent, balance)


def _check_budgets(
    transaction: Transaction,
    payers: _Payers,
    user: str,
    dataset: str,
    paid: Sequence[_Grant],
    new: Sequence[_Grant],
    asked: Spent,
) -> None:
    """Refuse a charge beyond the user's budget, the group's (for its new releases) or the cap (for fresh ones)."""
    own, shared = payers.own, payers.shared
    if not _fits(transaction, own, paid):
        raise budget_exhausted(user, own.limit, _total(transaction, own).spent, asked)
    if shared is not None and not _fits(transaction, shared, new):
        spent = _total(transaction, shared).spent
        raise group_exhausted(str(payers.group), shared.limit, spent, own.limit, asked)
    if not _fits(transaction, payers.cap, [grant for grant in paid if grant.fresh]):
        raise cap_exhausted(dataset, own.limit, asked)


def again(
    memory: Memory, at: str, user: str, role: str, policy: Policy, requests: Sequence[ReleaseRequest], sql: str
) -> tuple[Charge, Receipt] | None:
    """Return the result of `charge`, and write the record, if the user already has all of it; None if that is unknown.

    Assumes: nothing was written to the ledger after what the memory holds at.

    Args:
        memory: What is known of the ledger.
        at: The stamp of now.
        user: Who asks.
        role: The role that the user must have.
        policy: Whose budgets would be charged.
        requests: The releases that the query needs.
        sql: The query.
    """
    owned: _Owned | None = memory.owned.get(_asked(user, policy, requests))
    if owned is None or owned.payers.role != role or not owned.payers.holds(policy, at):
        return None
    payers = owned.payers
    spent = memory.totals.get(payers.own.id)
    balance = None
    if payers.shared is not None:
        total = memory.totals.get(payers.shared.id)
        balance = None if total is None else GroupBalance(str(payers.group), payers.shared.limit, total.spent)
    if spent is None or (payers.shared is not None and balance is None):
        return None
    releases = tuple(grant.release for grant in owned.grants)
    told = Charge(None, user, releases, price(joined([])), payers.own.limit, spent.spent, balance)
    numbers = tuple(dict.fromkeys(release.release_id for release in releases))
    return told, Receipt(user, policy.dataset.name, sql, payers.own.id, payers.cap.id, (), numbers, None)


def _asked(user: str, policy: Policy, requests: Sequence[ReleaseRequest]) -> tuple[object, ...]:
    return user, policy.dataset.name, *requests


def _payers(transaction: Transaction, user: str, policy: Policy) -> _Payers:
    """Return whose budgets are charged, brought up to date with the time and the policy."""
    dataset = policy.dataset
    facts = transaction.memory.facts
    known: _Payers | None = facts.get((user, dataset.name))
    if known is not None and known.holds(policy, transaction.at):
        return known
    role, group = active_account(transaction, user)
    own = open_budget(transaction, Holder(BudgetScope.USER, user), dataset, role_budget(policy, role))
    shared = None
    if group is not None:
        shared = open_budget(transaction, Holder(BudgetScope.GROUP, group), dataset, group_budget(policy, group))
    cap = open_cap(transaction, dataset)
    ends = [end for end in map(renews, [own] if shared is None else [own, shared]) if end is not None]
    found = _Payers(policy, role, own, group, shared, cap, min(map(stamp, ends), default=None))
    facts[user, dataset.name] = found
    return found


def held(transaction: Transaction, user: str, policy: Policy, requests: Sequence[ReleaseRequest]) -> tuple[bool, ...]:
    """Tell which requests a charge would find the user to have already; another user's release is none of them."""
    # Without payloads: to load one of another user would take a time that tells of it, and nothing is charged here.
    grants = _grants(transaction, user, policy.dataset.name, requests, reuse=True, payloads=False)
    return tuple(grant.release.reused for grant in grants)


def _total(transaction: Transaction, budget: BudgetState) -> Total:
    return read_total(transaction.connection, budget.id, transaction.memory)


def _fits(transaction: Transaction, budget: BudgetState, grants: Sequence[_Grant]) -> bool:
    """Return whether a budget covers these releases; even an exhausted budget covers a cost of 0."""
    if not grants:
        return True
    after = charged(_total(transaction, budget), joined([grant.item.events for grant in grants]))
    return admits(budget.limit, after.spent)


def _prices(limit: Limit, grants: Sequence[_Grant]) -> list[Spent]:
    """Return what each of these releases costs, at the order of a limit if it has one."""
    return [price(grant.item.events, (limit.order,) if limit.order else ()) for grant in grants]


def _is_shared(transaction: Transaction, shared: BudgetState, grant: _Grant) -> bool:
    """Return whether a group has paid for a release in this window."""
    query = "SELECT 1 FROM shared WHERE budget = ? AND origin = ?"
    return transaction.one(query, shared.id, grant.item.origin) is not None


def _check_quarantine(transaction: Transaction, requests: Sequence[ReleaseRequest]) -> None:
    if not _anything_failed(transaction):
        return
    for request in requests:
        if transaction.one("SELECT 1 FROM quarantine WHERE key = ?", request.key) is not None:
            raise PolicyViolation(
                "this query failed before while it read private data, and is not run again; nothing was charged",
                hint="Change the query, for example its filter or its grouping; the data owner's log has the cause.",
            )


def _anything_failed(transaction: Transaction) -> bool:
    facts = transaction.memory.facts
    if _FAILED not in facts:
        facts[_FAILED] = transaction.one("SELECT 1 FROM quarantine LIMIT 1") is not None
    return bool(facts[_FAILED])


def _grants(
    transaction: Transaction,
    user: str,
    dataset: str,
    requests: Sequence[ReleaseRequest],
    reuse: bool,
    *,
    payloads: bool = True,
) -> list[_Grant]:
    """Return a grant for each request; equal requests get the same one."""
    grants: dict[tuple[str, str], _Grant] = {}
    origins: dict[str, int] = {}
    asked = []
    number = _last_release(transaction)
    for request in requests:
        events = write_events(request.events)
        key = _identity(request, origins)
        what = (key, events)
        asked.append(what)
        if what in grants:
            continue
        stored = _stored(transaction, user, dataset, key, events, payloads=payloads) if reuse else None
        origin, payload, held = stored or (None, None, None)
        if held is None and request.held:
            raise NotHeld
        if held is None:
            number += 1
        identifier = number if held is None else held
        origins[request.key] = origin or identifier
        release = GrantedRelease(request.key, identifier, payload, held is not None)
        grants[what] = _Grant(release, ReceiptItem(identifier, key, origins[request.key], events))
    return [grants[what] for what in asked]


def _last_release(transaction: Transaction) -> int:
    known: int | None = transaction.memory.facts.get(_LAST_RELEASE)
    if known is None:
        (known,) = transaction.one("SELECT coalesce(max(id), 0) FROM releases")
    return int(known)


def _identity(request: ReleaseRequest, origins: Mapping[str, int]) -> str:
    """The key under which a release is stored: its own key and, if it is computed from others, theirs."""
    if not request.inputs:
        return request.key
    return sha256(canonical([request.key, [origins[key] for key in request.inputs]]))


def _stored(
    transaction: Transaction, user: str, dataset: str, key: str, events: str, *, payloads: bool
) -> tuple[int, bytes | None, int | None] | None:
    """Return the stored release for a key, its payload if that is wanted, and the user's own number if paid for.

    The digest of its events must agree too: a release made under another currency may have no price in this one.

    Raises:
        LedgerUnavailable: The payload is not what was stored.
    """
    row: tuple[int, bytes | None, int | None, str] | None = transaction.one(
        "SELECT s.release, CASE WHEN ? = 1 THEN p.payload END, r.id, s.digest "
        "FROM stored s JOIN payloads p ON p.release = s.release "
        "LEFT JOIN releases r ON r.user = ? AND r.origin = s.release "
        "WHERE s.dataset = ? AND s.key = ? AND s.price = ?",
        int(payloads),
        user,
        dataset,
        key,
        price_digest(events),
    )
    if row is None:
        return None
    release, payload, held, digest = row
    return release, None if payload is None else _as_stored(release, payload, digest), held


def _as_stored(release: int, payload: bytes, digest: str) -> bytes:
    if sha256(payload) != digest:
        raise LedgerUnavailable(
            f"release {release} of the ledger is not what was stored",
            hint="Restore the ledger from a backup; `dpsql ledger verify` tells what else is wrong.",
        )
    return payload


def handed(connection: Store, user: str, dataset: str, after: HandedRelease | None) -> tuple[HandedRelease, ...]:
    """Return the releases that a user has paid for after another one, oldest first."""
    last, number = (0, 0) if after is None else (after.release, after.number)
    rows = connection.execute(
        "SELECT r.id, r.key FROM releases r WHERE r.id > ? AND r.user = ? AND r.dataset = ? ORDER BY r.id",
        (last, user, dataset),
    ).fetchall()
    return tuple(HandedRelease(release, key, number + place) for place, (release, key) in enumerate(rows, 1))


def cells(connection: Store, user: str, release: int) -> bytes:
    """Return the stored cells of a release that a user has paid for, by its number in the ledger.

    Raises:
        LedgerUnavailable: It is not what was stored.
        NotHeld: It is not kept, or the user does not have it.
    """
    row = connection.execute(
        "SELECT p.payload, s.digest FROM releases r JOIN stored s ON s.release = r.origin "
        "JOIN payloads p ON p.release = s.release WHERE r.user = ? AND r.id = ?",
        (user, release),
    ).fetchone()
    if row is None:
        raise NotHeld
    return _as_stored(release, *row)
