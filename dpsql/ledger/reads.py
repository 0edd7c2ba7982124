"""Reads of private rows in progress. A failed read may reveal something about the data, so few may fail.

Rule 1: a user has at most three reads that have failed or whose end is not yet recorded in the ledger.
Rule 2: a read is open from its charge until a record says how it ended. It is lost if no record ends it in time, or if
    its gateway no longer holds its lock: the gateway died, perhaps because of one of its queries, which counts as one
    failure. If the gateway lives after all, it tells nobody how a lost read ended.
Rule 3: each release that is read costs at least a fixed part of the user's budget, and a larger part after a failure.
    This bounds the number of queries, and so the information in which of them failed.
Rule 4: no user learns how a read ended before the ledger has recorded it.
Rule 5: a release that another user has paid for costs, waits and takes a place like one that is read. Otherwise a user
    with no free place could find out, at no charge, what others have queried.

Guarantee: of one dataset, in one window of a budget of which no more than 10,000 releases at ε = 0.01 can be paid, and
    between two acts of the owner, which reads of a user failed is one of at most 2²⁰ possibilities: 1 without a
    failure; the first is one of 10,000; after i reads up to it, r ≤ 21·(1 − i/10,001) further ones can be paid, and
    two were under way, so that Σ (1 + (r + 2) + C(r + 2, 2)) < 2²⁰ - 1. For each of them, what the user is told is
    (ε, δ)-DP.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from itertools import groupby
from operator import itemgetter
from typing import Final

from dpsql.errors import LedgerUnavailable, TooManyStatements
from dpsql.ledger.accounts import freeze_after_failures
from dpsql.ledger.chain import OpenRead
from dpsql.ledger.refusals import too_cheap
from dpsql.ledger.transaction import Transaction, stamp
from dpsql.privacy.accounting import Limit, Spent, asked_epsilon, repeats

MAX_FAILURES: Final = 3
"""How many reads of a user may fail before the account is frozen."""

_READS: Final = 10_000
"""How many releases a user's whole budget pays at the most."""
_READS_AFTER_FAILURE: Final = 20
"""The same once a read of the user has failed."""
_FAIR_EPSILON: Final = Fraction(1, 100)
"""What costs as much need not be a part of the budget, as long as nothing has failed: the budget may be very large."""

_GRACE: Final = 60.0
"""Seconds after its time limit in which the end of a read still comes to the ledger."""

_WAIT: Final = 300.0
"""The most seconds for which a query waits for other queries of its user to end."""
_LOOK: Final = 0.25
"""Seconds after which it looks whether another gateway has ended one."""
_TICK: Final = 0.05
"""Seconds after which it looks whether it was cancelled."""


class NoPlace(Exception):
    """The user's other reads have to end first."""


class ReadsLost(Exception):
    """Reads of the user are lost: that is to be recorded before anything else is decided."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Decides whether a charge may begin to read.

    Attributes:
        gateway: The process that would read.
        seconds: After which it stops the reads.
        first: Whether no other query of the user waits here since longer.
        is_dead: Whether a gateway has died for sure.
    """

    gateway: str
    seconds: float
    first: bool
    is_dead: Callable[[str], bool]

    def begin(
        self, transaction: Transaction, user: str, limit: Limit, prices: Sequence[Spent], asked: Spent
    ) -> OpenRead:
        """Return the entry of a new read in the record of its charge.

        Args:
            transaction: That of the charge.
            user: Who asks.
            limit: Of the user's budget.
            prices: What each of the releases costs that are paid for.
            asked: What the query costs.

        Raises:
            PolicyViolation: One of them costs too little.
            NoPlace: As many reads are open or have failed as may fail.
            ReadsLost: There are some to be recorded first.
        """
        failures, reads = _known(transaction, user)
        if any(until <= transaction.at for _, _, until in reads):
            raise ReadsLost
        for price in prices:
            check_price(limit, price, asked, failures)
        if not self.first:
            raise NoPlace
        if failures + len(reads) >= MAX_FAILURES:
            # Asked only now: a lock may be lost for reasons of a network, and that is not to count without need.
            raise ReadsLost if any(self.is_dead(gateway) for gateway, _, _ in reads) else NoPlace
        return OpenRead(self.gateway, stamp(transaction.now + timedelta(seconds=self.seconds + _GRACE)))


def record_lost(transaction: Transaction, user: str, is_dead: Callable[[str], bool]) -> None:
    """Record the reads of a user that are lost: as one failure for each gateway that has them."""
    reads = _known(transaction, user)[1]
    dead = {gateway for gateway in {gateway for gateway, _, _ in reads} if is_dead(gateway)}
    lost = sorted((gateway, charge) for gateway, charge, until in reads if until <= transaction.at or gateway in dead)
    for _, each in groupby(lost, key=itemgetter(0)):
        transaction.append("read.lost", {"user": user, "charges": [charge for _, charge in each]})
    freeze_after_failures(transaction, user, MAX_FAILURES)


def is_lost(transaction: Transaction, charge: int) -> bool:
    """Return whether the read of a charge was recorded as lost."""
    if transaction.one("SELECT 1 FROM reads WHERE charge = ?", charge) is not None:
        return False
    lost = "SELECT body FROM records WHERE seq > ? AND kind = 'read.lost'"
    return any(charge in json.loads(body)["charges"] for (body,) in transaction.connection.execute(lost, (charge,)))


def told_as_lost() -> LedgerUnavailable:
    """Return the error of a lost read, which is the same however the read ended."""
    return LedgerUnavailable(
        "the query took too long, or the gateway lost its connection to the ledger; its charge is kept",
        hint="Run the query again.",
    )


def _known(transaction: Transaction, user: str) -> tuple[int, list[tuple[str, int, str]]]:
    """Return how many reads of a user failed, and those that are open: gateway, charge, and until when."""
    rows = transaction.connection.execute(
        "SELECT a.failures, r.gateway, r.charge, r.until FROM accounts a LEFT JOIN reads r ON r.reader = a.name "
        "WHERE a.name = ?",
        (user,),
    ).fetchall()
    return rows[0][0], [(gateway, charge, until) for _, gateway, charge, until in rows if gateway is not None]


def is_dear_enough(limit: Limit, price: Spent, failures: int = 0) -> bool:
    """Return whether a release is so large a part of the user's whole budget that it may be read.

    Args:
        limit: Of the user's budget.
        price: What the release costs.
        failures: How many reads of the user have failed.
    """
    if failures:
        return not repeats(limit, price, _READS_AFTER_FAILURE + 1)
    return asked_epsilon(limit, price) >= _FAIR_EPSILON or not repeats(limit, price, _READS + 1)


def check_price(limit: Limit, price: Spent, asked: Spent, failures: int) -> None:
    """Refuse a release that costs too little to be read.

    Raises:
        PolicyViolation: It does; the hint has the least epsilon.
    """
    if not is_dear_enough(limit, price, failures):
        most = _READS_AFTER_FAILURE if failures else _READS
        raise too_cheap(limit, asked, price, most, failed=failures > 0)


class _Ticket:
    """A query that may have to wait for others of its user."""

    def __init__(self, lines: "Lines", user: str) -> None:
        self._lines = lines
        self._user = user
        self._until = time.monotonic() + _WAIT

    @property
    def is_first(self) -> bool:
        """Whether no other query of the user waits here since longer."""
        with self._lines.moved:
            return self._is_first()

    def _is_first(self) -> bool:
        line = self._lines.waiting.get(self._user)
        return not line or line[0] is self

    def wait(self, check: Callable[[], None]) -> None:
        """Return when it is worth while to try again.

        Raises:
            TooManyStatements: It has waited too long.
            Error: What `check` raises.
        """
        look = time.monotonic() + _LOOK
        with self._lines.moved:
            line = self._lines.waiting.setdefault(self._user, deque())
            if self not in line:
                line.append(self)
            ended = self._lines.ended
            while not self._is_first() or (self._lines.ended == ended and time.monotonic() < look):
                check()
                if time.monotonic() > self._until:
                    raise TooManyStatements(
                        f"{MAX_FAILURES} queries of this user that read private data have not ended or have failed; "
                        "nothing was charged",
                        hint="Ask again when they have ended; the data owner can end them by `dpsql user unfreeze`.",
                    )
                self._lines.moved.wait(_TICK)


class Lines:
    """Queries that wait for others of their user, each user's in their order."""

    def __init__(self) -> None:
        self.moved = threading.Condition()
        self.waiting: dict[str, deque[_Ticket]] = {}
        self.ended = 0

    @contextmanager
    def ticket(self, user: str) -> Iterator[_Ticket]:
        """Give a query its place in the line of its user, which it takes if it has to wait."""
        ticket = _Ticket(self, user)
        try:
            yield ticket
        finally:
            self._leave(user, ticket)

    def stir(self) -> None:
        """Let those who wait look again: a read has ended."""
        with self.moved:
            self.ended += 1
            self.moved.notify_all()

    def _leave(self, user: str, ticket: _Ticket) -> None:
        with self.moved:
            line = self.waiting.get(user)
            if line and ticket in line:
                line.remove(ticket)
                if not line:
                    del self.waiting[user]
                self.moved.notify_all()
