"""What records say of the past, as values."""

import json
from fractions import Fraction

from dpsql.ledger.chain import canonical
from dpsql.ledger.ledger import ChargeRecord, Holder, OwnerRecord, ReleaseRecord, Scope
from dpsql.ledger.looks import CAP_CHARGED, EXACT_VALUES
from dpsql.ledger.projection import Body, load_events
from dpsql.ledger.windows import moment

_FROZEN = {"account": Scope.USER, "group": Scope.GROUP, "all": Scope.ALL}
"""Whom the first word of a kind is about, where the record itself says no scope."""

OWNER_KINDS = (
    *("budget.granted", "budget.lowered", "budget.reset", "account.group", CAP_CHARGED, EXACT_VALUES),
    *(f"{whose}.{what}" for whose in _FROZEN for what in ("frozen", "unfrozen")),
)
"""The kinds of records that tell what the owner changed."""


def release_record(number: int, key: str, reused: int, kept: int, at: str, body: str) -> ReleaseRecord:
    """Return a release from its number, key and use, and from the record of the charge that paid for it."""
    said: Body = json.loads(body)
    entry = next(entry for entry in said["releases"] if entry["id"] == number)
    price = load_events(canonical(entry["events"]))
    return ReleaseRecord(number, key, said["sql"], moment(at), price, reused, bool(kept))


def charge_record(seq: int, at: str, body: str) -> ChargeRecord:
    """Return a charge from its record."""
    said: Body = json.loads(body)
    events = tuple(event for entry in said["releases"] for event in load_events(canonical(entry["events"])))
    return ChargeRecord(seq, said["user"], said["dataset"], said["sql"], moment(at), events)


def owner_record(seq: int, at: str, kind: str, body: str) -> OwnerRecord:
    """Return what the owner changed from the record of it."""
    said: Body = json.loads(body)
    holder = Holder(Scope(said["scope"]) if "scope" in said else _FROZEN[kind.partition(".")[0]], said["name"])
    epsilon, delta = (Fraction(said[name]) if name in said else None for name in ("epsilon", "delta"))
    price = load_events(canonical(said.get("events", [])))
    return OwnerRecord(seq, moment(at), kind, holder, said.get("dataset"), epsilon, delta, _reason(kind, said), price)


def _reason(kind: str, said: Body) -> str:
    if kind == "account.group":
        return "now in no group" if said["group"] is None else f'now in group "{said["group"]}"'
    return str(said.get("reason", "too many queries failed while they read private data"))
