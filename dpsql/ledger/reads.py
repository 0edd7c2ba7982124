"""Reads of private rows that are under way: a read that fails tells something of the data, so few may fail.

Before them stands what a user is told when a charge does not fit.

Rule 1: of one user's reads, those that failed and those whose end the ledger does not know are together three at most.
Rule 2: a read is open from the charge that it was paid with until a record says how it ended. One is lost that no
    record ends by its time, or whose gateway holds its lock no longer: the gateway died, which one of its queries may
    have caused, so that counts as one failure. A gateway that lives all the same tells nobody how a lost read ended.
Rule 3: each release that is read costs a part of the user's whole budget, a larger one once a read has failed: what
    tells which of many questions failed is how many there were.
Rule 4: nobody is told how a read ended before the ledger knows it.
Rule 5: a release that another user has paid for costs, waits and takes a place as one that is read: otherwise a user
    whose places are taken could find out, free of charge, what others have asked.

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
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from itertools import groupby
from math import isqrt
from operator import itemgetter
from typing import Final

from dpsql.errors import BudgetExhausted, LedgerUnavailable, PolicyViolation, TooManyStatements
from dpsql.ledger.accounts import freeze_after_failures
from dpsql.ledger.chain import OpenRead
from dpsql.ledger.transaction import Transaction, stamp
from dpsql.privacy.accounting import Accountant, Limit, Spent, affordable_epsilon, remaining, repeats

_LEAST = Fraction(1, 10**6)
"""Below it an answer would be nothing but noise: not worth a hint."""

_ROOT_GRID = 10**15


def budget_exhausted(user: str, limit: Limit, spent: Spent, asked: Spent) -> BudgetExhausted:
    """Return the refusal of a charge that does not fit the user's own budget.

    Args:
        user: Whose budget.
        limit: Its limit.
        spent: Its totals before the charge.
        asked: What the query costs.
    """
    epsilon = asked_epsilon(limit, asked)
    return _exhausted(f'the budget of "{user}"', epsilon, _affordable(limit, spent, asked), limit, spent, asked)


def group_exhausted(group: str, limit: Limit, spent: Spent, own: Limit, asked: Spent) -> BudgetExhausted:
    """Return the refusal of a charge that does not fit the shared budget of the user's group.

    Epsilon is told in the currency of the user's own budget: that is what SET dpsql.epsilon means to the user.

    Args:
        group: Whose budget.
        limit: The group's limit.
        spent: The group's totals before the charge.
        own: The user's own limit.
        asked: What the query costs, releases that the group has paid for already included: at another epsilon they
            would be others.
    """
    epsilon, shared = asked_epsilon(own, asked), asked_epsilon(limit, asked)
    affordable: Fraction | None = Fraction(0)
    if shared:
        # Parts that are pure, or counted alike, grow with the price; Gaussian noise that is counted otherwise does not.
        alike = asked.pure_epsilon is not None or own.accountant.shares_rho == limit.accountant.shares_rho
        affordable = _affordable(limit, spent, asked) * epsilon / shared if alike else None
    return _exhausted(f'the budget of group "{group}"', epsilon, affordable, limit, spent, asked)


def _affordable(limit: Limit, spent: Spent, asked: Spent) -> Fraction:
    epsilon, delta = asked_epsilon(limit, asked), _asked_delta(limit, asked)
    pure_ratio = asked.pure_epsilon / epsilon if asked.pure_epsilon and epsilon else None
    return affordable_epsilon(limit, spent, selection_delta=delta, pure_ratio=pure_ratio)


def _exhausted(
    whose: str, epsilon: Fraction, affordable: Fraction | None, limit: Limit, spent: Spent, asked: Spent
) -> BudgetExhausted:
    delta, left = _asked_delta(limit, asked), remaining(limit, spent).delta
    if delta > left:
        message = f"costs delta {_rounded(delta)} for private keys; {_down(left)} is left"
        hint = "group by columns with a declared domain: they need no delta"
        if left > 0:
            hint = f"SET dpsql.delta = {_down(left)}; or {hint}"
    elif affordable is None:
        counts = f"as the {limit.accountant.value} accountant counts"
        message = f"costs epsilon {_rounded(epsilon)}; less than that is left, {counts}"
        hint = "try a smaller dpsql.epsilon; SELECT * FROM dpsql.budget shows what is left"
    else:
        message = f"costs epsilon {_rounded(epsilon)}; at most {_down(affordable)} is left for one query"
        hint = "ask the data owner for a larger budget, or wait until it renews: SELECT * FROM dpsql.budget"
        pure = _pure_left(limit, spent)
        if affordable >= _LEAST:
            hint = f"SET dpsql.epsilon = {_down(affordable)};"
        elif asked.pure_epsilon is None and pure >= _LEAST:
            hint = f"SET dpsql.mechanism = 'laplace'; epsilon {_down(pure)} is left for Laplace noise"
    return BudgetExhausted(
        f"{whose} does not cover this query: it {message}",
        requested=epsilon,
        remaining=affordable,
        hint=hint,
    )


def _pure_left(limit: Limit, spent: Spent) -> Fraction:
    """Return what the second clause of zcdp leaves to those who ask for Laplace noise alone."""
    if limit.accountant is not Accountant.ZCDP or spent.pure_epsilon is None:
        return Fraction(0)
    return limit.epsilon - spent.pure_epsilon


def cap_exhausted(dataset: str, limit: Limit, asked: Spent) -> BudgetExhausted:
    """Return the refusal of a charge that does not fit what all users together may spend; it tells no number."""
    return BudgetExhausted(
        f'the cap of "{dataset}" over all users does not cover this query',
        requested=asked_epsilon(limit, asked),
        remaining=None,
        hint="ask the data owner: the cap never renews",
    )


def owner_exhausted(dataset: str, limit: Limit, spent: Spent, asked: Spent) -> BudgetExhausted:
    """Return the refusal of what the data owner asks at the cap's expense; it may tell what is left.

    Args:
        dataset: Whose cap.
        limit: Its limit.
        spent: Its totals before the charge.
        asked: What it costs.
    """
    epsilon, left = asked_epsilon(limit, asked), _affordable(limit, spent, asked)
    return BudgetExhausted(
        f'the cap of "{dataset}" does not cover this: '
        f"it costs epsilon {_rounded(epsilon)}; at most {_down(left)} is left",
        requested=epsilon,
        remaining=left,
        hint=f"--epsilon {_down(left)}" if left >= _LEAST else "the cap never renews: [dataset] budget in the policy",
    )


def too_cheap(limit: Limit, asked: Spent, price: Spent, most: int, *, failed: bool) -> PolicyViolation:
    """Return the refusal of a release that is a smaller part of the user's budget than it has to be.

    Args:
        limit: Of the user's budget.
        asked: What the query costs.
        price: What the release costs.
        most: How many such releases the whole budget may pay.
        failed: Whether that is because a query of the user has failed.
    """
    epsilon = asked_epsilon(limit, asked) * _scale(limit, price, most + 1)
    why, mend = (
        ("after a query that failed, ", ", or ask the data owner to look at the failure") if failed else ("", "")
    )
    return PolicyViolation(
        f"{why}each noisy relation of a query costs at least 1/{most} of the whole budget; nothing was charged",
        detail="A failure may depend on the data, so the number of queries is limited.",
        hint=f"SET dpsql.epsilon = {_up(epsilon)};{mend}",
    )


def _scale(limit: Limit, price: Spent, times: int) -> Fraction:
    """Return what ε is to be multiplied by so that a limit of which nothing is spent does not cover so many of it."""
    total, pure = limit.total(price), price.pure_epsilon
    scale = limit.capacity / (times * total) if total else Fraction(0)
    if limit.accountant not in (Accountant.PURE, Accountant.BASIC):
        scale = Fraction(isqrt(int(scale * _ROOT_GRID**2)) + 1, _ROOT_GRID)
    if limit.accountant is Accountant.ZCDP and pure:
        scale = max(scale, limit.epsilon / (times * pure))
    return scale * (1 + Fraction(1, _ROOT_GRID))


def asked_epsilon(limit: Limit, asked: Spent) -> Fraction:
    """Return a price as the ε of one query in the limit's currency; 0 if it has none there."""
    if limit.accountant is Accountant.PURE:
        return asked.pure_epsilon or Fraction(0)
    if limit.accountant.converts:
        return asked.basic_epsilon or Fraction(0)
    return Fraction(isqrt(int(2 * asked.rho * _ROOT_GRID**2)), _ROOT_GRID)


def _asked_delta(limit: Limit, asked: Spent) -> Fraction:
    return limit.total_delta(asked)


def _down(value: Fraction) -> str:
    return _written(value, Context(prec=3, rounding=ROUND_FLOOR))


def _up(value: Fraction) -> str:
    return _written(value, Context(prec=3, rounding=ROUND_CEILING))


def _rounded(value: Fraction) -> str:
    return _written(value, Context(prec=6, rounding=ROUND_HALF_EVEN))


def _written(value: Fraction, context: Context) -> str:
    quotient = context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize()
    return f"{quotient:f}" if quotient == 0 or quotient >= Decimal("1e-6") else f"{quotient:e}"


MAX_FAILURES: Final = 3
"""So many reads of a user may fail before the account is frozen."""

_READS: Final = 10_000
"""How many releases a user's whole budget pays at the most."""
_READS_AFTER_FAILURE: Final = 20
"""The same once a read of the user has failed."""
_FAIR_EPSILON: Final = Fraction(1, 100)
"""What costs as much need not be a part of the budget, as long as nothing has failed: the budget may be very large."""

_GRACE: Final = 60.0
"""Seconds after its time limit in which the end of a read still comes to the ledger."""

_WAIT: Final = 300.0
"""Seconds for which a query waits at the most for others of its user to end."""
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
        """Return what the record of the charge says of the read that begins.

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
    """Return what is told of every lost read, however it ended."""
    return LedgerUnavailable(
        "the query took too long, or its gateway lost the ledger for a while, and counts as failed; its charge stands",
        hint="ask again",
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
                        hint="ask again when they have ended; the data owner can end them by `dpsql user unfreeze`",
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
