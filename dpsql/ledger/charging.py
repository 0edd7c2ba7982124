"""The decision on a charge: who pays what, and whether it fits; nothing is kept of a refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpsql.errors import PolicyViolation
from dpsql.ledger.budgets import open_cap, open_user_budget, role_budget
from dpsql.ledger.chain import canonical, sha256
from dpsql.ledger.ledger import Charge, GrantedRelease, ReleaseRequest
from dpsql.ledger.projection import Body, charged, joined, load_spent, price
from dpsql.ledger.refusals import budget_exhausted, cap_exhausted
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
    """Charge what is not free to the user's budget, and what is fresh to the dataset's cap."""
    role = _active_role(transaction, user)
    _check_quarantine(transaction, requests)
    dataset = policy.dataset
    budget = open_user_budget(transaction, user, dataset, role_budget(policy, role))
    cap = open_cap(transaction, dataset)

    grants = _grants(transaction, user, dataset.name, requests, reuse)
    distinct = {grant.release.release_id: grant for grant in grants}.values()
    paid = [grant for grant in distinct if not grant.release.reused]
    asked = joined(grant.events for grant in paid)
    if paid and not admits(budget.limit, charged(budget.spent, asked)):
        raise budget_exhausted(user, budget.limit, load_spent(budget.spent), price(asked))
    fresh = [grant.events for grant in paid if grant.fresh]
    if fresh and not admits(cap.limit, charged(cap.spent, joined(fresh))):
        raise cap_exhausted(dataset.name, budget.limit, price(asked))

    body = {
        "user": user,
        "dataset": dataset.name,
        "sql": sql,
        "budget": budget.id,
        "cap": cap.id,
        "releases": [grant.body for grant in paid],
        "reused": [grant.release.release_id for grant in distinct if grant.release.reused],
    }
    number = transaction.append("charge" if paid else "reuse", body)
    releases = tuple(grant.release for grant in grants)
    return Charge(number, user, releases, price(asked), budget.limit, charged(budget.spent, asked))


def held(transaction: Transaction, user: str, policy: Policy, requests: Sequence[ReleaseRequest]) -> tuple[bool, ...]:
    """Tell which requests a charge would find the user to have already; another user's release is none of them."""
    grants = _grants(transaction, user, policy.dataset.name, requests, reuse=True)
    return tuple(grant.release.reused for grant in grants)


def _active_role(transaction: Transaction, user: str) -> str:
    row = transaction.one("SELECT role, frozen FROM accounts WHERE name = ? AND removed = 0", user)
    if row is None:
        raise PolicyViolation(
            f'the ledger has no account "{user}"', hint="the data owner adds it: dpsql user add NAME --role ROLE"
        )
    role, frozen = row
    if frozen:
        raise PolicyViolation(
            f'the account "{user}" is frozen: too many of its queries failed while they read private data',
            hint="ask the data owner, who can unfreeze it",
        )
    return str(role)


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
