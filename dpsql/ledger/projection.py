"""What each kind of record does to the derived tables.

The gateway writes the tables through `project` alone, and `verify` replays every record through it: a balance that is
not the sum of its records has been tampered with.
"""

import json
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from sqlite3 import Connection
from typing import Any, TypeVar

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.chain import Record, canonical, sha256
from dpsql.privacy.accounting import Limit, Spent
from dpsql.privacy.cost import Event
from dpsql.privacy.exact import read_exact, read_signed

Body = dict[str, Any]
T = TypeVar("T")


def project(connection: Connection, record: Record, body: Body) -> None:
    """Apply a record to the derived tables."""
    _PROJECTIONS[record.kind](connection, record, body)


def read(make: Callable[[str], T], text: str) -> T:
    """Return what is made of a text that a derived table holds.

    Raises:
        LedgerUnavailable: It is not what this dpsql writes.
    """
    try:
        return make(text)
    except (InvalidParameter, LookupError, RecursionError, TypeError, ValueError):
        raise LedgerUnavailable(
            "the ledger holds what this dpsql never writes",
            hint="`dpsql ledger verify` tells where; restore the ledger from a backup",
        ) from None


@lru_cache(maxsize=256)
def load_spent(text: str) -> Spent:
    """Return the running total that a budget's row holds."""
    return read(lambda known: Spent.from_json(json.loads(known)), text)


@lru_cache(maxsize=4096)
def load_events(text: str) -> tuple[Event, ...]:
    """Return the events of a canonical text; queries repeat, so most texts were seen before."""
    return read(lambda known: tuple(map(Event.from_json, json.loads(known))), text)


@lru_cache(maxsize=4096)
def price(events: str) -> Spent:
    """Return what the events of a canonical text cost in every currency."""
    return Spent.zero().add(load_events(events))


@lru_cache(maxsize=256)
def charged(spent: str, events: str) -> Spent:
    """Return the running total after a charge; it is asked for by the decision and again by the projection."""
    return load_spent(spent).add(load_events(events))


def joined(events: Iterable[str]) -> str:
    """Return the canonical text of several lists of events as one list."""
    return f"[{','.join(text[1:-1] for text in events if text != '[]')}]"


def _account_added(connection: Connection, record: Record, body: Body) -> None:
    # A name that comes back keeps its failures, and stays frozen if it was.
    connection.execute(
        "INSERT INTO accounts VALUES (?, ?, ?, ?, 0, 0, NULL) ON CONFLICT (name) DO UPDATE "
        "SET role = excluded.role, verifier_digest = excluded.verifier_digest, removed = 0",
        (body["name"], body["role"], body["verifier"], record.at),
    )


def _account_removed(connection: Connection, record: Record, body: Body) -> None:
    connection.execute(
        "UPDATE accounts SET removed = 1, verifier_digest = NULL, user_group = NULL WHERE name = ?", (body["name"],)
    )


def _account_role(connection: Connection, record: Record, body: Body) -> None:
    connection.execute("UPDATE accounts SET role = ? WHERE name = ?", (body["role"], body["name"]))


def _account_verifier(connection: Connection, record: Record, body: Body) -> None:
    connection.execute("UPDATE accounts SET verifier_digest = ? WHERE name = ?", (body["verifier"], body["name"]))


def _account_group(connection: Connection, record: Record, body: Body) -> None:
    connection.execute("UPDATE accounts SET user_group = ? WHERE name = ?", (body["group"], body["name"]))


def _account_frozen(connection: Connection, record: Record, body: Body) -> None:
    _freeze(connection, "user", body["name"], "owner" if "reason" in body else "failures")


def _account_unfrozen(connection: Connection, record: Record, body: Body) -> None:
    _unfreeze(connection, "user", body["name"])
    connection.execute("UPDATE accounts SET failures = 0 WHERE name = ?", (body["name"],))


def _group_frozen(connection: Connection, record: Record, body: Body) -> None:
    _freeze(connection, "group", body["name"], "owner")


def _group_unfrozen(connection: Connection, record: Record, body: Body) -> None:
    _unfreeze(connection, "group", body["name"])


def _all_frozen(connection: Connection, record: Record, body: Body) -> None:
    _freeze(connection, "all", "", "owner")


def _all_unfrozen(connection: Connection, record: Record, body: Body) -> None:
    _unfreeze(connection, "all", "")


def _freeze(connection: Connection, scope: str, holder: str, cause: str) -> None:
    connection.execute("INSERT INTO freezes VALUES (?, ?, ?)", (scope, holder, cause))


def _unfreeze(connection: Connection, scope: str, holder: str) -> None:
    connection.execute("DELETE FROM freezes WHERE scope = ? AND holder = ?", (scope, holder))


def _failure(connection: Connection, record: Record, body: Body) -> None:
    connection.execute("UPDATE accounts SET failures = failures + 1 WHERE name = ?", (body["user"],))
    connection.executemany("INSERT INTO quarantine VALUES (?) ON CONFLICT DO NOTHING", [(key,) for key in body["keys"]])


def _budget_created(connection: Connection, record: Record, body: Body) -> None:
    scope, holder = ("group", body["group"]) if "group" in body else ("user", body["user"])
    _new_budget(connection, record, body["id"], scope, holder, body["dataset"])


def _new_budget(
    connection: Connection, record: Record, number: int, scope: str, holder: str | None, dataset: str | None
) -> None:
    connection.execute(
        "INSERT INTO budgets VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, 0, '0', '0')",
        (number, scope, holder, dataset, record.at, record.at, canonical(Spent.zero().to_json())),
    )


def _budget_terms(connection: Connection, record: Record, body: Body) -> None:
    connection.execute(
        "INSERT INTO terms VALUES (?, ?, ?, ?) ON CONFLICT (budget, dataset) DO UPDATE "
        "SET terms = excluded.terms, fixed = excluded.fixed",
        (body["budget"], body["dataset"], canonical(body["terms"]), canonical(body["limit"])),
    )
    order = Limit.from_json(body["limit"]).order
    if order:
        (spent,) = connection.execute("SELECT spent FROM budgets WHERE id = ?", (body["budget"],)).fetchone()
        kept = canonical(load_spent(spent).keeping(order).to_json())
        connection.execute("UPDATE budgets SET spent = ? WHERE id = ?", (kept, body["budget"]))
    if body["new_window"]:
        connection.execute(
            "UPDATE budgets SET anchor = ?, window_start = ? WHERE id = ?", (record.at, record.at, body["budget"])
        )


def _budget_renewed(connection: Connection, record: Record, body: Body) -> None:
    connection.execute("UPDATE budgets SET window_start = ? WHERE id = ?", (body["start"], body["budget"]))
    _clear(connection, body["budget"])


def _budget_reset(connection: Connection, record: Record, body: Body) -> None:
    connection.execute("UPDATE budgets SET resets = resets + 1 WHERE id = ?", (body["budget"],))
    _clear(connection, body["budget"])


def _clear(connection: Connection, budget: int) -> None:
    """Begin at nothing spent; what a group paid for counts anew too, for its members may be others by now."""
    (spent,) = connection.execute("SELECT spent FROM budgets WHERE id = ?", (budget,)).fetchone()
    cleared = canonical(load_spent(spent).cleared().to_json())
    connection.execute("UPDATE budgets SET spent = ?, charges = 0 WHERE id = ?", (cleared, budget))
    connection.execute("DELETE FROM shared WHERE budget = ?", (budget,))


def _budget_granted(connection: Connection, record: Record, body: Body) -> None:
    _grant(connection, body["budget"], read_exact(body["epsilon"]), read_exact(body["delta"]))


def _budget_lowered(connection: Connection, record: Record, body: Body) -> None:
    _grant(connection, body["budget"], -read_exact(body["epsilon"]), -read_exact(body["delta"]))


def _grant(connection: Connection, budget: int, epsilon: Fraction, delta: Fraction) -> None:
    query = "SELECT granted_epsilon, granted_delta FROM budgets WHERE id = ?"
    granted = [read(read_signed, text) for text in connection.execute(query, (budget,)).fetchone()]
    connection.execute(
        "UPDATE budgets SET granted_epsilon = ?, granted_delta = ? WHERE id = ?",
        (str(granted[0] + epsilon), str(granted[1] + delta), budget),
    )


def _cap_created(connection: Connection, record: Record, body: Body) -> None:
    _new_budget(connection, record, body["budget"], "cap", None, None)
    connection.execute("INSERT INTO caps VALUES (?, ?, ?)", (body["cap"], body["budget"], body["adjacency"]))


def _cap_merged(connection: Connection, record: Record, body: Body) -> None:
    parts = connection.execute(
        "SELECT spent, charges FROM budgets WHERE id IN (?, ?)", (body["budget"], body["into"])
    ).fetchall()
    spent = load_spent(parts[0][0]).merge(load_spent(parts[1][0]))
    connection.execute(
        "UPDATE budgets SET spent = ?, charges = ? WHERE id = ?",
        (canonical(spent.to_json()), parts[0][1] + parts[1][1], body["into"]),
    )
    connection.execute("DELETE FROM budgets WHERE id = ?", (body["budget"],))
    connection.execute("UPDATE caps SET budget = ? WHERE budget = ?", (body["into"], body["budget"]))
    connection.execute("UPDATE terms SET budget = ? WHERE budget = ?", (body["into"], body["budget"]))


def _dataset_joined(connection: Connection, record: Record, body: Body) -> None:
    connection.execute(
        "INSERT INTO datasets VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET cap = excluded.cap",
        (body["dataset"], body["cap"]),
    )


def _charge(connection: Connection, record: Record, body: Body) -> None:
    paid: dict[int, str] = {}
    fresh = []
    for release in body["releases"]:
        events = canonical(release["events"])
        paid[release["id"]] = events
        if release["origin"] == release["id"]:  # another user's release was charged to the cap when it was made
            fresh.append(events)
        connection.execute(
            "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
            (
                release["id"],
                record.seq,
                body["user"],
                release["origin"],
                body["dataset"],
                release["key"],
                sha256(events),
            ),
        )
    _spend(connection, record, body["budget"], list(paid.values()))
    _spend(connection, record, body["cap"], fresh)
    if "group" in body:
        _spend(connection, record, body["group"]["budget"], [paid[number] for number in body["group"]["releases"]])
        connection.executemany(
            "INSERT INTO shared SELECT ?, origin FROM releases WHERE id = ?",
            [(body["group"]["budget"], number) for number in body["group"]["releases"]],
        )
    _reuse(connection, record, body)


def _spend(connection: Connection, record: Record, budget: int, events: list[str]) -> None:
    if not events:
        return
    (spent,) = connection.execute("SELECT spent FROM budgets WHERE id = ?", (budget,)).fetchone()
    connection.execute(
        "UPDATE budgets SET spent = ?, charges = charges + 1, last_charge = ? WHERE id = ?",
        (canonical(charged(spent, joined(events)).to_json()), record.seq, budget),
    )


def _reuse(connection: Connection, record: Record, body: Body) -> None:
    connection.executemany(
        "UPDATE releases SET reused = reused + 1 WHERE id = ?", [(release,) for release in body["reused"]]
    )


def _release_stored(connection: Connection, record: Record, body: Body) -> None:
    connection.execute(
        "INSERT INTO stored (release, dataset, key, price, digest, size) "
        "SELECT id, dataset, key, price, ?, ? FROM releases WHERE id = ?",
        (body["digest"], body["size"], body["release"]),
    )
    connection.execute("UPDATE totals SET stored_bytes = stored_bytes + ?", (body["size"],))


def _release_dropped(connection: Connection, record: Record, body: Body) -> None:
    connection.execute("DELETE FROM stored WHERE release = ?", (body["release"],))
    connection.execute("UPDATE totals SET stored_bytes = stored_bytes - ?", (body["size"],))


_PROJECTIONS: dict[str, Callable[[Connection, Record, Body], None]] = {
    "account.added": _account_added,
    "account.removed": _account_removed,
    "account.role": _account_role,
    "account.verifier": _account_verifier,
    "account.group": _account_group,
    "account.frozen": _account_frozen,
    "account.unfrozen": _account_unfrozen,
    "group.frozen": _group_frozen,
    "group.unfrozen": _group_unfrozen,
    "all.frozen": _all_frozen,
    "all.unfrozen": _all_unfrozen,
    "failure": _failure,
    "budget.created": _budget_created,
    "budget.terms": _budget_terms,
    "budget.renewed": _budget_renewed,
    "budget.granted": _budget_granted,
    "budget.lowered": _budget_lowered,
    "budget.reset": _budget_reset,
    "cap.created": _cap_created,
    "cap.merged": _cap_merged,
    "dataset.joined": _dataset_joined,
    "charge": _charge,
    "reuse": _reuse,
    "release.stored": _release_stored,
    "release.dropped": _release_dropped,
}
