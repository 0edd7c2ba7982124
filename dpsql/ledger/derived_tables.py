"""How each kind of record changes the derived tables, and the part of them that a process caches.

Rule 1: only `project` writes the tables, and `verify` replays every record through it. A balance that is not the sum of
its records has been tampered with.
Rule 2: the cache is valid for one head of the chain. A transaction that finds another head clears it.
Rule 3: the records named in CARRIED change totals and numbers of releases, which are updated in the cache as in the
tables. Every other record clears the cache.
Rule 4: the last record known to be durable is always kept in memory, because it must never disappear from the ledger.
Rule 5: the cache saves reads, not checks: a total is only written over the total that it was added to.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.chain import Receipt, Record, canonical, price_digest
from dpsql.ledger.store import Store
from dpsql.privacy.accounting import Limit, Spent
from dpsql.privacy.conversion import read_exact, read_signed
from dpsql.privacy.cost import ZERO, Event

CARRIED = frozenset({"charge", "reuse", "release.stored", "release.dropped", "read.ended"})
"""The kinds of records that leave the cache valid."""

MOST = 4096
"""How many budgets and users are remembered at most."""

MOST_OWNED = 1024
"""How many answers that users own are remembered at most."""


@dataclass(frozen=True, slots=True)
class Total:
    """What a budget holds.

    Attributes:
        text: As its row has it, in canonical JSON.
        spent: The same as numbers.
    """

    text: str
    spent: Spent = field(compare=False)


@dataclass(slots=True)
class Memory:
    """What was read.

    Attributes:
        head: Hash of the last record then.
        totals: What the budgets hold, by their numbers.
        facts: What only the records change that are not carried, by its subject.
        durable: Number and hash of the last record that was met or committed; None before the first.
        coming: The same of the last that was about to be committed: it may be durable already.
        owned: What users may have again for nothing, by who they are and what they ask.
        learnt: What `owned` gets when the transaction is durable.
        era: A number that has changed whenever anything may have changed but totals and releases.
        stirred: Whether something was forgotten since the transaction began.
    """

    head: str | None = None
    totals: dict[int, Total] = field(default_factory=dict)
    facts: dict[object, Any] = field(default_factory=dict)
    durable: tuple[int, str] | None = None
    coming: tuple[int, str] | None = None
    owned: dict[object, Any] = field(default_factory=dict)
    learnt: dict[object, Any] = field(default_factory=dict)
    era: int = 0
    stirred: bool = False

    def meet(self, head: str) -> None:
        """Hold at this head from now on; a transaction begins."""
        self.learnt.clear()
        if head != self.head or len(self.facts) > MOST:
            self.forget()
            self.head = head

    def is_of(self, head: tuple[int, str] | None) -> bool:
        """Whether a head of the ledger is one that this process knows, so that no other process has written since."""
        if head is None:
            return False
        return head == self.durable or (head == self.coming and not self.stirred)

    def forget(self) -> None:
        """Hold nothing."""
        self.totals.clear()
        self.facts.clear()
        self.disown()
        self.era += 1
        self.stirred = True

    def disown(self) -> None:
        """Start with an empty cache."""
        self.owned.clear()
        self.learnt.clear()

    def settle(self, number: int, head: str) -> None:
        """Note that all up to a record is durable."""
        while len(self.owned) + len(self.learnt) > MOST_OWNED and self.owned:
            self.owned.pop(next(iter(self.owned)), None)
        self.owned |= self.learnt
        self.learnt.clear()
        if self.stirred:
            # What others read of the state before the transaction no longer holds.
            self.era += 1
            self.stirred = False
        self.durable = number, head


Body = dict[str, Any]
T = TypeVar("T")


def project(connection: Store, record: Record, body: Body | Receipt, memory: Memory) -> None:
    """Apply a record to the derived tables and to their cache.

    Args:
        connection: To the tables.
        record: What is applied.
        body: The record's body, or the receipt that it was written from.
        memory: What is known of these tables.
    """
    if record.kind not in CARRIED:
        memory.forget()
    if record.kind == "release.dropped":
        memory.disown()  # to have it again costs a new charge
    if isinstance(body, Receipt):
        _CHARGES[record.kind](connection, record, body, memory)
    elif record.kind in _CHARGES:
        _CHARGES[record.kind](connection, record, Receipt.read(body), memory)
    elif record.kind in _STATEMENTS:
        for statement, fields in _STATEMENTS[record.kind]:
            connection.execute(statement, tuple(body[name] for name in fields))
    else:
        _PROJECTIONS[record.kind](connection, record, body)


@contextmanager
def legible() -> Iterator[None]:
    """Raise LedgerUnavailable if a text of the ledger is not one that this dpsql writes."""
    try:
        yield
    except (InvalidParameter, LookupError, RecursionError, StopIteration, TypeError, ValueError):
        raise LedgerUnavailable(
            "invalid record in ledger",
            hint="Run `dpsql ledger verify` to find it, and restore the ledger from a backup.",
        ) from None


def read(make: Callable[[str], T], text: str) -> T:
    """Return the value of a text in a derived table.

    Raises:
        LedgerUnavailable: It is not what this dpsql writes.
    """
    with legible():
        return make(text)


@lru_cache(maxsize=256)
def load_spent(text: str) -> Spent:
    """Return the running total that a budget's row holds."""
    return read(lambda known: Spent.from_json(json.loads(known)), text)


@lru_cache(maxsize=4096)
def load_events(text: str) -> tuple[Event, ...]:
    """Return the events of a canonical text; queries repeat, so most texts were seen before."""
    return read(lambda known: tuple(map(Event.from_json, json.loads(known))), text)


@lru_cache(maxsize=4096)
def price(events: str, orders: tuple[Fraction, ...] = ()) -> Spent:
    """Return the cost of the events of a canonical text in every currency, and at the given Rényi orders."""
    return replace(Spent.zero(), renyi=tuple((order, ZERO) for order in orders)).add(load_events(events))


@lru_cache(maxsize=256)
def charged(total: Total, events: str) -> Total:
    """Return a total after a charge; a decision asks for it, then the tables, then the cap."""
    cost = price(events, tuple(order for order, _ in total.spent.renyi))
    return write_total(total.spent.merge(cost))


def write_total(spent: Spent) -> Total:
    """Return totals as a budget's row holds them."""
    return Total(canonical(spent.to_json()), spent)


def read_total(connection: Store, budget: int, memory: Memory) -> Total:
    """Return the state of a budget."""
    known = memory.totals.get(budget)
    if known is None:
        (text,) = connection.execute("SELECT spent FROM budgets WHERE id = ?", (budget,)).fetchone()
        known = memory.totals[budget] = Total(text, load_spent(text))
    return known


def joined(events: Sequence[str]) -> str:
    """Return the canonical text of several lists of events as one list."""
    if len(events) == 1:
        return events[0]
    return f"[{','.join(text[1:-1] for text in events if text != '[]')}]"


def _account_added(connection: Store, record: Record, body: Body) -> None:
    # A name that comes back keeps its failures, and stays frozen if it was.
    connection.execute(
        "INSERT INTO accounts VALUES (?, ?, ?, ?, 0, 0, NULL) ON CONFLICT (name) DO UPDATE "
        "SET role = excluded.role, verifier_digest = excluded.verifier_digest, removed = 0",
        (body["name"], body["role"], body["verifier"], record.at),
    )


def _account_frozen(connection: Store, record: Record, body: Body) -> None:
    cause = "owner" if "reason" in body else "failures"
    connection.execute("INSERT INTO freezes VALUES ('user', ?, ?)", (body["name"], cause))


def _failure(connection: Store, record: Record, body: Body) -> None:
    _count_failure(connection, body["user"])
    connection.executemany("INSERT INTO quarantine VALUES (?) ON CONFLICT DO NOTHING", [(key,) for key in body["keys"]])
    _end_reads(connection, [body["charge"]] if "charge" in body else [])


def _read_lost(connection: Store, record: Record, body: Body) -> None:
    # What ended them is one event, the end of their gateway, however many there were.
    _count_failure(connection, body["user"])
    _end_reads(connection, body["charges"])


def _count_failure(connection: Store, user: str) -> None:
    connection.execute("UPDATE accounts SET failures = failures + 1 WHERE name = ?", (user,))


def _read_ended(connection: Store, record: Record, body: Body) -> None:
    _end_reads(connection, body["charges"])


def _end_reads(connection: Store, charges: Sequence[int]) -> None:
    connection.executemany("DELETE FROM reads WHERE charge = ?", [(charge,) for charge in charges])


def _budget_created(connection: Store, record: Record, body: Body) -> None:
    scope, holder = ("group", body["group"]) if "group" in body else ("user", body["user"])
    _new_budget(connection, record, body["id"], scope, holder, body["dataset"])


def _new_budget(
    connection: Store, record: Record, number: int, scope: str, holder: str | None, dataset: str | None
) -> None:
    connection.execute(
        "INSERT INTO budgets VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, 0, '0', '0')",
        (number, scope, holder, dataset, record.at, record.at, canonical(Spent.zero().to_json())),
    )


def _budget_terms(connection: Store, record: Record, body: Body) -> None:
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


def _budget_renewed(connection: Store, record: Record, body: Body) -> None:
    connection.execute("UPDATE budgets SET window_start = ? WHERE id = ?", (body["start"], body["budget"]))
    _clear(connection, body["budget"])


def _budget_reset(connection: Store, record: Record, body: Body) -> None:
    connection.execute("UPDATE budgets SET resets = resets + 1 WHERE id = ?", (body["budget"],))
    _clear(connection, body["budget"])


def _clear(connection: Store, budget: int) -> None:
    """Start at zero spending; a group also pays again for earlier releases, because its members may have changed."""
    (spent,) = connection.execute("SELECT spent FROM budgets WHERE id = ?", (budget,)).fetchone()
    cleared = canonical(load_spent(spent).cleared().to_json())
    connection.execute("UPDATE budgets SET spent = ?, charges = 0 WHERE id = ?", (cleared, budget))
    connection.execute("DELETE FROM shared WHERE budget = ?", (budget,))


def _budget_granted(connection: Store, record: Record, body: Body) -> None:
    _grant(connection, body["budget"], read_exact(body["epsilon"]), read_exact(body["delta"]))


def _budget_lowered(connection: Store, record: Record, body: Body) -> None:
    _grant(connection, body["budget"], -read_exact(body["epsilon"]), -read_exact(body["delta"]))


def _grant(connection: Store, budget: int, epsilon: Fraction, delta: Fraction) -> None:
    query = "SELECT granted_epsilon, granted_delta FROM budgets WHERE id = ?"
    granted = [read(read_signed, text) for text in connection.execute(query, (budget,)).fetchone()]
    connection.execute(
        "UPDATE budgets SET granted_epsilon = ?, granted_delta = ? WHERE id = ?",
        (str(granted[0] + epsilon), str(granted[1] + delta), budget),
    )


def _cap_created(connection: Store, record: Record, body: Body) -> None:
    _new_budget(connection, record, body["budget"], "cap", None, None)
    connection.execute("INSERT INTO caps VALUES (?, ?, ?)", (body["cap"], body["budget"], body["adjacency"]))


def _cap_merged(connection: Store, record: Record, body: Body) -> None:
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


def _cap_charged(connection: Store, record: Record, body: Body) -> None:
    # Nothing is remembered across this kind of record: what is read here is not kept either.
    _spend(connection, record, body["budget"], [canonical(body["events"])], Memory())


def _clock_confirmed(connection: Store, record: Record, body: Body) -> None:
    if "reads_until" in body:
        connection.execute("UPDATE reads SET until = ?", (body["reads_until"],))


def _charge(connection: Store, record: Record, receipt: Receipt, memory: Memory) -> None:
    connection.executemany(
        "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
        [
            (item.id, record.seq, receipt.user, item.origin, receipt.dataset, item.key, price_digest(item.events))
            for item in receipt.paid
        ],
    )
    events = {item.id: item.events for item in receipt.paid}
    # Another user's release was charged to the cap when it was made.
    fresh = [item.events for item in receipt.paid if item.origin == item.id]
    _spend(connection, record, receipt.budget, list(events.values()), memory)
    _spend(connection, record, receipt.cap, fresh, memory)
    if receipt.group is not None:
        _spend(connection, record, receipt.group.budget, [events[number] for number in receipt.group.releases], memory)
        connection.executemany(
            "INSERT INTO shared SELECT ?, origin FROM releases WHERE id = ?",
            [(receipt.group.budget, number) for number in receipt.group.releases],
        )
    if receipt.opens is not None:
        connection.execute(
            "INSERT INTO reads VALUES (?, ?, ?, ?)",
            (record.seq, receipt.user, receipt.opens.gateway, receipt.opens.until),
        )
    _reuse(connection, record, receipt, memory)


def _spend(connection: Store, record: Record, budget: int, events: list[str], memory: Memory) -> None:
    if not events:
        return
    before = read_total(connection, budget, memory)
    after = charged(before, joined(events))
    changed = connection.execute(
        "UPDATE budgets SET spent = ?, charges = charges + 1, last_charge = ? WHERE id = ? AND spent = ?",
        (after.text, record.seq, budget, before.text),
    )
    if changed.rowcount != 1:
        raise LedgerUnavailable(
            f"budget {budget} of the ledger was changed by something that left no record",
            hint="Stop the gateway and run `dpsql ledger verify`.",
        )
    memory.totals[budget] = after


def _reuse(connection: Store, record: Record, receipt: Receipt, memory: Memory) -> None:
    if receipt.reused:
        connection.executemany(
            "UPDATE releases SET reused = reused + 1 WHERE id = ?", [(release,) for release in receipt.reused]
        )


def _release_stored(connection: Store, record: Record, body: Body) -> None:
    connection.execute(
        "INSERT INTO stored SELECT (SELECT coalesce(max(position), 0) + 1 FROM stored), id, dataset, key, price, ?, ? "
        "FROM releases WHERE id = ?",
        (body["digest"], body["size"], body["release"]),
    )
    connection.execute("UPDATE totals SET stored_bytes = stored_bytes + ?", (body["size"],))
    _end_reads(connection, [body["ends"]] if "ends" in body else [])


_STATEMENTS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "account.removed": (
        ("UPDATE accounts SET removed = 1, verifier_digest = NULL, user_group = NULL WHERE name = ?", ("name",)),
    ),
    "account.role": (("UPDATE accounts SET role = ? WHERE name = ?", ("role", "name")),),
    "account.verifier": (("UPDATE accounts SET verifier_digest = ? WHERE name = ?", ("verifier", "name")),),
    "account.group": (("UPDATE accounts SET user_group = ? WHERE name = ?", ("group", "name")),),
    "account.unfrozen": (
        ("DELETE FROM freezes WHERE scope = 'user' AND holder = ?", ("name",)),
        ("UPDATE accounts SET failures = 0 WHERE name = ?", ("name",)),
        ("DELETE FROM reads WHERE reader = ?", ("name",)),
    ),
    "group.frozen": (("INSERT INTO freezes VALUES ('group', ?, 'owner')", ("name",)),),
    "group.unfrozen": (("DELETE FROM freezes WHERE scope = 'group' AND holder = ?", ("name",)),),
    "all.frozen": (("INSERT INTO freezes VALUES ('all', '', 'owner')", ()),),
    "all.unfrozen": (("DELETE FROM freezes WHERE scope = 'all' AND holder = ''", ()),),
    "dataset.joined": (
        (
            "INSERT INTO datasets VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET cap = excluded.cap",
            ("dataset", "cap"),
        ),
    ),
    "release.dropped": (
        ("DELETE FROM stored WHERE release = ?", ("release",)),
        ("UPDATE totals SET stored_bytes = stored_bytes - ?", ("size",)),
    ),
    "values.exact": (),
    "profile.made": (),
}
"""SQL of records that need no more than their own fields; the last two change nothing: they are what is kept."""

_PROJECTIONS: dict[str, Callable[[Store, Record, Body], None]] = {
    "account.added": _account_added,
    "account.frozen": _account_frozen,
    "failure": _failure,
    "read.ended": _read_ended,
    "read.lost": _read_lost,
    "budget.created": _budget_created,
    "budget.terms": _budget_terms,
    "budget.renewed": _budget_renewed,
    "budget.granted": _budget_granted,
    "budget.lowered": _budget_lowered,
    "budget.reset": _budget_reset,
    "cap.created": _cap_created,
    "cap.merged": _cap_merged,
    "cap.charged": _cap_charged,
    "clock.confirmed": _clock_confirmed,
    "release.stored": _release_stored,
}

_CHARGES: dict[str, Callable[[Store, Record, Receipt, Memory], None]] = {"charge": _charge, "reuse": _reuse}
