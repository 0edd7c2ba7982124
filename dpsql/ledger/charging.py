"""The decision on a charge: who pays what, and whether it fits; nothing is kept of a refusal.

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

from dpsql.errors import PolicyViolation
from dpsql.ledger.accounts import active_account
from dpsql.ledger.budgets import BudgetState, group_budget, open_budget, open_cap, role_budget
from dpsql.ledger.chain import canonical, sha256
from dpsql.ledger.ledger import Charge, GrantedRelease, Holder, ReleaseRequest, Scope
from dpsql.ledger.projection import Body, charged, joined, load_spent, price
from dpsql.ledger.refusals import budget_exhausted, cap_exhausted, group_exhausted
from dpsql.ledger.transaction import Transaction
from dpsql.policy import Policy
from dpsql.privacy.accounting import admits


@dataclass(frozen=True, slots=True)
class _Grant:
    """A release, and what the record of the charge says of it; a fresh one is its own origin."""

    release: GrantedRelease
    events: str
    body: Body

    @property
    def fresh(self) -> bool:
        return self.release.payload is None


def charge(
    transaction: Transaction, user: str, policy: Policy, requests: Sequence[ReleaseRequest], sql: str, reuse: bool
) -> Charge:
    """Charge what is not free to the user and to the user's group, and what is fresh to the dataset's cap."""
    role, group = active_account(transaction, user)
    _check_quarantine(transaction, requests)
    dataset = policy.dataset
    budget = open_budget(transaction, Holder(Scope.USER, user), dataset, role_budget(policy, role))
    shared = None
    if group is not None:
        shared = open_budget(transaction, Holder(Scope.GROUP, group), dataset, group_budget(policy, group))
    cap = open_cap(transaction, dataset)

    grants = _grants(transaction, user, dataset.name, requests, reuse)
    distinct = {grant.release.release_id: grant for grant in grants}.values()
    paid = [grant for grant in distinct if not grant.release.reused]
    new = [] if shared is None else [grant for grant in paid if not _is_shared(transaction, shared, grant)]
    asked = joined(grant.events for grant in paid)
    if not _fits(budget, paid):
        raise budget_exhausted(user, budget.limit, load_spent(budget.spent), price(asked))
    if shared is not None and not _fits(shared, new):
        raise group_exhausted(str(group), shared.limit, load_spent(shared.spent), budget.limit, price(asked))
    if not _fits(cap, [grant for grant in paid if grant.fresh]):
        raise cap_exhausted(dataset.name, budget.limit, price(asked))

    body: Body = {
        "user": user,
        "dataset": dataset.name,
        "sql": sql,
        "budget": budget.id,
        "cap": cap.id,
        "releases": [grant.body for grant in paid],
        "reused": [grant.release.release_id for grant in distinct if grant.release.reused],
    }
    if shared is not None and new:
        body["group"] = {"name": group, "budget": shared.id, "releases": [grant.release.release_id for grant in new]}
    number = transaction.append("charge" if paid else "reuse", body)
    releases = tuple(grant.release for grant in grants)
    return Charge(number, user, releases, price(asked), budget.limit, charged(budget.spent, asked))


def held(transaction: Transaction, user: str, policy: Policy, requests: Sequence[ReleaseRequest]) -> tuple[bool, ...]:
    """Tell which requests a charge would find the user to have already; another user's release is none of them."""
    grants = _grants(transaction, user, policy.dataset.name, requests, reuse=True)
    return tuple(grant.release.reused for grant in grants)


def _fits(budget: BudgetState, grants: Sequence[_Grant]) -> bool:
    """Return whether a budget covers these releases; what costs nothing it covers though it be exhausted."""
    return not grants or admits(budget.limit, charged(budget.spent, joined(grant.events for grant in grants)))


def _is_shared(transaction: Transaction, shared: BudgetState, grant: _Grant) -> bool:
    """Return whether a group has paid for a release in this window."""
    query = "SELECT 1 FROM shared WHERE budget = ? AND origin = ?"
    return transaction.one(query, shared.id, grant.body["origin"]) is not None


def _check_quarantine(transaction: Transaction, requests: Sequence[ReleaseRequest]) -> None:
    for request in requests:
        if transaction.one("SELECT 1 FROM quarantine WHERE key = ?", request.key) is not None:
            raise PolicyViolation(
                "this query failed before while it read private data, and is not run again; nothing was charged",
                hint="change the query, for example its filter or its grouping; the data owner's log has the cause",
            )


def _grants(
    transaction: Transaction, user: str, dataset: str, requests: Sequence[ReleaseRequest], reuse: bool
) -> list[_Grant]:
    """Return a grant for each request; equal requests get the same one."""
    grants: dict[tuple[str, str], _Grant] = {}
    origins: dict[str, int] = {}
    asked = []
    (number,) = transaction.one("SELECT coalesce(max(id), 0) FROM releases")
    for request in requests:
        events = [event.to_json() for event in request.events]
        text = canonical(events)
        key = _identity(request, origins)
        what = (key, text)
        asked.append(what)
        if what in grants:
            continue
        stored = _stored(transaction, user, dataset, key, sha256(text)) if reuse else None
        origin, payload, held = stored or (None, None, None)
        if held is None:
            number += 1
        identifier = number if held is None else held
        origins[request.key] = origin or identifier
        grants[what] = _Grant(
            GrantedRelease(request.key, identifier, payload, held is not None),
            text,
            {"id": identifier, "key": key, "origin": origins[request.key], "events": events},
        )
    return [grants[what] for what in asked]


def _identity(request: ReleaseRequest, origins: Mapping[str, int]) -> str:
    """What a release is stored under: its key and, where it is made of others, which ones these were."""
    if not request.inputs:
        return request.key
    return sha256(canonical([request.key, [origins[key] for key in request.inputs]]))


def _stored(
    transaction: Transaction, user: str, dataset: str, key: str, digest: str
) -> tuple[int, bytes, int | None] | None:
    """Return the stored release for a key, its payload, and the user's own number for it if paid for.

    The digest of its events must agree too: a release made under another currency may have no price in this one.
    """
    row: tuple[int, bytes, int | None] | None = transaction.one(
        "SELECT s.release, p.payload, r.id FROM stored s JOIN payloads p ON p.release = s.release "
        "LEFT JOIN releases r ON r.user = ? AND r.origin = s.release "
        "WHERE s.dataset = ? AND s.key = ? AND s.price = ?",
        user,
        dataset,
        key,
        digest,
    )
    return row
