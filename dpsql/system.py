"""system: the relations of schema dpsql, made from policy and ledger for one user, as columns of text."""

from collections.abc import Sequence
from fractions import Fraction

from dpsql.ledger import BudgetStatus, ReleaseRecord
from dpsql.policy import Column, Policy, Role
from dpsql.privacy.accounting import Spent, affordable_epsilon
from dpsql.privacy.cost import Accountant, Price

Columns = Sequence[Sequence[str | None]]


def decimal_text(value: Fraction | None, digits: int = 6) -> str | None:
    """A privacy number for people, to so many significant digits."""
    return None if value is None else f"{float(value):.{digits}g}"


def queries_that_fit(status: BudgetStatus, role: Role) -> int:
    """About how many more queries at the role's default price fit, by the gate's first clause."""
    price = Price(role.budget.accountant, role.query.epsilon, role.query.delta)
    left = affordable_epsilon(status.limit, status.spent)
    adds_up = price.accountant in (Accountant.PURE, Accountant.BASIC)
    return int(left / price.epsilon if adds_up else (left / price.epsilon) ** 2)


def budget_columns(status: BudgetStatus, role: Role) -> Columns:
    """dpsql.budget: one row, this user's budget."""
    limit, left = status.limit, status.remaining
    spent = limit.epsilon - left.epsilon
    row = [
        "user",
        limit.accountant.value,
        decimal_text(limit.epsilon),
        decimal_text(spent),
        decimal_text(left.epsilon),
        decimal_text(limit.delta),
        decimal_text(left.delta),
        str(status.charges),
        str(queries_that_fit(status, role)),
        status.window_start.isoformat() if status.window_start is not None else None,
        status.window_end.isoformat() if status.window_end is not None else None,
    ]
    return [[value] for value in row]


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
            column.description or table.description,
        ]
        for table in policy.tables
        if table.name in role.tables
        for column in table.columns
    ]
    return [list(column) for column in zip(*rows, strict=True)]


def release_columns(records: Sequence[ReleaseRecord]) -> Columns:
    """dpsql.releases: a row for each release this user has paid for."""
    rows: list[list[str | None]] = []
    for record in records:
        spent = Spent.zero().add(record.price)
        rows.append(
            [
                str(record.release_id),
                record.created.isoformat(),
                record.sql,
                decimal_text(spent.pure_epsilon),
                decimal_text(spent.rho),
                decimal_text(spent.delta),
                str(record.reused),
            ]
        )
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(7)]


def _bound(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, Fraction):
        return str(int(value)) if value.denominator == 1 else f"{float(value):g}"
    return str(value)


def _domain(column: Column) -> str | None:
    if column.values_from is not None:
        return ".".join(column.values_from)
    if column.values is not None:
        return ", ".join(str(value) for value in column.values)
    return None
