"""system_relations: the relations of schema dpsql, made from policy and ledger for one user, as columns of text."""

from collections.abc import Sequence
from fractions import Fraction

from dpsql.ledger import BudgetStatus, ReleaseRecord, UserBudgets
from dpsql.policy import Policy, PolicyColumn, Role
from dpsql.privacy.accounting import Limit, Spent, admits, asked_epsilon
from dpsql.privacy.conversion import decimal_text
from dpsql.privacy.cost import Event, Mechanism, Sensitivity

Columns = Sequence[Sequence[str | None]]

WINDOWS_ADD_UP = "windows add up: w windows may lose w times this, and a period as long as one window may lose it twice"
RESETS_ADD_UP = "spending before a reset adds to spending after it"

_ONE = Sensitivity(l0=1, linf=1, l1=1, l2_squared=1)


def default_query(role: Role) -> Event:
    """What the role's default query is charged if it is one noisy number without private keys."""
    epsilon = role.query.epsilon
    if role.budget.accountant.shares_rho:
        return Event(Mechanism.GAUSSIAN, _ONE, 1 / epsilon**2)
    return Event(Mechanism.LAPLACE, _ONE, 1 / epsilon)


def queries_that_fit(status: BudgetStatus, events: Sequence[Event]) -> int:
    """How many more queries of these events the gate would admit one after another; 2⁶³ − 1 stands for more.

    Every total is a sum, so that many queries are added at once: the largest powers of two that still fit.
    """
    order = status.limit.order
    spent = status.spent.keeping(order) if order else status.spent
    powers = [spent.cleared().add(events)]
    for _ in range(62):
        powers.append(powers[-1].merge(powers[-1]))
    count = 0
    for exponent, price in reversed(list(enumerate(powers))):
        more = spent.merge(price)
        if admits(status.limit, more):
            spent, count = more, count + 2**exponent
    return count


def budget_columns(budgets: UserBudgets, role: Role) -> Columns:
    """dpsql.budget: a row for this user's own budget, and one for the group's; never one for the cap."""
    rows = [_budget_row("user", budgets.own, budgets, role)]
    if budgets.shared is not None:
        rows.append(_budget_row(f"group {budgets.group}", budgets.shared, budgets, role))
    return [list(column) for column in zip(*rows, strict=True)]


def _budget_row(scope: str, status: BudgetStatus, budgets: UserBudgets, role: Role) -> list[str | None]:
    limit, left = status.limit, status.remaining
    return [
        scope,
        limit.accountant.value,
        decimal_text(limit.epsilon),
        decimal_text(limit.epsilon - left.epsilon),
        decimal_text(left.epsilon),
        decimal_text(limit.delta),
        decimal_text(left.delta),
        str(status.charges),
        str(queries_that_fit(status, [default_query(role)])),
        status.window_start.isoformat() if status.window_start is not None else None,
        status.window_end.isoformat() if status.window_end is not None else None,
        None if budgets.last is None else str(queries_that_fit(status, budgets.last.price)),
        budget_note(status),
    ]


def budget_note(status: BudgetStatus) -> str:
    """What a budget does not promise: it bounds one window, since its last reset."""
    parts = ["never renews"]
    if status.window is not None:
        end = status.window_end
        parts = [
            f"renews every {status.window}" + (f", next on {end:%Y-%m-%d %H:%M} UTC" if end else ""),
            WINDOWS_ADD_UP,
        ]
    if status.resets:
        parts.append(f"reset {times(status.resets)} by the data owner: {RESETS_ADD_UP}")
    return "; ".join(parts)


def times(count: int) -> str:
    """A number of times, in words."""
    return "once" if count == 1 else f"{count} times"


def column_columns(policy: Policy, role: Role) -> Columns:
    """dpsql.columns: a row for each column the role may name."""
    rows = [
        [
            table.name,
            column.name,
            column.type.value,
            "public" if table.public else "protected",
            _bound(column.lower),
            _bound(column.upper),
            _domain(column),
            _described(column) or table.description,
        ]
        for table in policy.tables
        if table.name in role.tables
        for column in table.columns
    ]
    return [list(column) for column in zip(*rows, strict=True)]


def release_columns(records: Sequence[ReleaseRecord], limit: Limit) -> Columns:
    """dpsql.releases: a row for each release this user has paid for, and its price as this user's budget counts.

    They are numbered from 1 on for each user: the ledger's numbers would tell how much others ask.
    """
    # By identity, for the hash of a price takes as long as all else; the ledger reads equal prices as one object.
    priced = {id(record.price): record.price for record in records}
    prices = {number: _price(limit, price) for number, price in priced.items()}
    rows: list[list[str | None]] = []
    for number, record in enumerate(records, start=1):
        *spent, asked = prices[id(record.price)]
        kept = str(record.kept).lower()
        rows.append([str(number), record.created.isoformat(), record.sql, *spent, str(record.reused), asked, kept])
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(9)]


def _price(limit: Limit, price: tuple[Event, ...]) -> tuple[str | None, ...]:
    """A price in each currency, and what is set as dpsql.epsilon and dpsql.delta to be charged as much."""
    spent = Spent.zero().add(price)
    delta = limit.total_delta(spent)
    asked = f"epsilon {decimal_text(asked_epsilon(limit, spent))}"
    texts = (decimal_text(spent.pure_epsilon), decimal_text(spent.rho), decimal_text(spent.delta))
    return *texts, f"{asked}, delta {decimal_text(delta)}" if delta else asked


def _bound(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, Fraction):
        return str(int(value)) if value.denominator == 1 else f"{float(value):g}"
    return str(value)


def _described(column: PolicyColumn) -> str | None:
    if column.collected_by is None:
        return column.description
    told = f"randomized response, true with probability {float(column.collected_by.truth):g}"
    return f"{column.description}; {told}" if column.description else told


def _domain(column: PolicyColumn) -> str | None:
    if column.values_from is not None:
        return ".".join(column.values_from)
    if column.values is not None:
        return ", ".join(str(value) for value in column.values)
    return None
