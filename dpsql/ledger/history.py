"""History from the records: a user's releases and charges, and the data owner's changes."""

import json
from fractions import Fraction

from dpsql.ledger.accounts import CLOCK_CONFIRMED
from dpsql.ledger.chain import canonical
from dpsql.ledger.derived_tables import Body, legible, load_events
from dpsql.ledger.model import BudgetScope, ChargeRecord, Holder, OwnerRecord, ReleaseRecord
from dpsql.ledger.owner_records import CAP_CHARGED, EXACT_VALUES
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import moment

_RELEASES = (
    "SELECT r.id, r.key, r.reused, EXISTS (SELECT 1 FROM stored WHERE release = r.origin), c.at, c.body "
    "FROM releases r JOIN records c ON c.seq = r.charge WHERE r.user = ? AND r.dataset = ? ORDER BY r.id"
)

_FROZEN = {"account": BudgetScope.USER, "group": BudgetScope.GROUP, "all": BudgetScope.ALL}
"""Whom the first word of a kind is about, where the record itself says no scope."""

_OWNER_KINDS = (
    *("budget.granted", "budget.lowered", "budget.reset", "account.group", CAP_CHARGED, EXACT_VALUES, CLOCK_CONFIRMED),
    *(f"{whose}.{what}" for whose in _FROZEN for what in ("frozen", "unfrozen")),
)
"""The kinds of records of the owner's changes."""


def releases(connection: Store, user: str, dataset: str) -> list[ReleaseRecord]:
    """Return the releases of a dataset that a user has paid for, oldest first."""
    rows = connection.execute(_RELEASES, (user, dataset)).fetchall()
    with legible():
        return [_release(*row) for row in rows]


def charges(connection: Store, user: str | None) -> list[ChargeRecord]:
    """Return the charges of a user, or of all, oldest first."""
    if user is None:
        numbers = connection.execute("SELECT DISTINCT charge FROM releases")
    else:
        numbers = connection.execute("SELECT DISTINCT charge FROM releases r WHERE r.user = ?", (user,))
    return [charge_record(connection, number) for (number,) in sorted(numbers)]


def owner_changes(connection: Store) -> list[OwnerRecord]:
    """Return all grants, resets, freezes and changes of group, oldest first."""
    places = ", ".join("?" * len(_OWNER_KINDS))
    query = f"SELECT seq, at, kind, body FROM records WHERE kind IN ({places}) ORDER BY seq"  # noqa: S608
    return [_owner_change(*row) for row in connection.execute(query, _OWNER_KINDS).fetchall()]


def _release(number: int, key: str, reused: int, kept: int, at: str, body: str) -> ReleaseRecord:
    said: Body = json.loads(body)
    entry = next(entry for entry in said["releases"] if entry["id"] == number)
    price = load_events(canonical(entry["events"]))
    return ReleaseRecord(number, key, said["sql"], moment(at), price, reused, bool(kept))


@legible()
def charge_record(connection: Store, number: int) -> ChargeRecord:
    """Return a charge, by the number of its record."""
    at, body = connection.execute("SELECT at, body FROM records WHERE seq = ?", (number,)).fetchone()
    said: Body = json.loads(body)
    events = tuple(event for entry in said["releases"] for event in load_events(canonical(entry["events"])))
    return ChargeRecord(number, said["user"], said["dataset"], said["sql"], moment(at), events)


@legible()
def _owner_change(seq: int, at: str, kind: str, body: str) -> OwnerRecord:
    said: Body = json.loads(body)
    holder = Holder(BudgetScope(said["scope"]) if "scope" in said else _FROZEN[kind.partition(".")[0]], said["name"])
    epsilon, delta = (Fraction(said[name]) if name in said else None for name in ("epsilon", "delta"))
    price = load_events(canonical(said.get("events", [])))
    return OwnerRecord(seq, moment(at), kind, holder, said.get("dataset"), epsilon, delta, _reason(kind, said), price)


def _reason(kind: str, said: Body) -> str:
    if kind == "account.group":
        return "now in no group" if said["group"] is None else f'now in group "{said["group"]}"'
    return str(said.get("reason", "too many queries failed while they read private data"))
