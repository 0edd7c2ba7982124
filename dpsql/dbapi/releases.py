"""releases: what an answer cost and how exact it is, and what a query would cost: for programs, in one shape."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsql.compiler.plan.query_plan import OutputColumn
from dpsql.gateway.answers import Answer, Explanation
from dpsql.gateway.confidence_intervals import ColumnMargin, column_margins
from dpsql.gateway.explain import cost_json, explanation_lines, group_json, remaining_json, sql_lines
from dpsql.gateway.means import always_valid
from dpsql.gateway.notices import bounding_notice

Limits = tuple[float, float] | None
"""Lower and upper limit of a value at 95 %; None beside NULL, and where either end is missing."""


@dataclass(frozen=True)
class ColumnReport:
    """A column of a result, and its noise.

    Attributes:
        name: Its name.
        type: PostgreSQL's name of its type.
        mechanism: What draws its noise; None where it has none by itself.
        error: Standard error of its noise; None without noise, or where it depends on the size of the group.
        plus_minus_95: Half the width of a 95 % interval; None likewise.
    """

    name: str
    type: str
    mechanism: str | None
    error: float | None
    plus_minus_95: float | None


class _Columns:
    """What is told of columns by name; of several columns of one name the last."""

    columns: tuple[ColumnReport, ...]

    @property
    def error(self) -> dict[str, float | None]:
        """Standard error of each noisy column, by name; None where it depends on the size of the group."""
        return {column.name: column.error for column in self.columns if column.mechanism is not None}

    @property
    def plus_minus_95(self) -> dict[str, float | None]:
        """Half the width of a 95 % interval of each noisy column, by name; None where that depends on the group."""
        return {column.name: column.plus_minus_95 for column in self.columns if column.mechanism is not None}


@dataclass(frozen=True)
class FreshReport(_Columns):
    """What was bought for an answer tells alone.

    Attributes:
        rows: The rows.
        columns: The columns, with the noise that they have without what the user had.
    """

    rows: Sequence[tuple[Any, ...]]
    columns: tuple[ColumnReport, ...]


@dataclass(frozen=True)
class ReleaseReport(_Columns):
    """What the last statement of a cursor released.

    Attributes:
        cost: Price: epsilon (in the budget's currency), delta, rho; under a target that of all its rounds.
        remaining: What is left of the budget: epsilon, delta.
        group: Name and `remaining` of the group whose budget was charged, too; None without one.
        reused: True where this user had it already, and nothing was charged.
        derived_from: Numbers of this user's releases whose cells were added up for it, as in dpsql.releases.
        consistent_with: Under dpsql.consistent: numbers of this user's other releases that it was made to add up with.
        asked: How many releases are combined for one number at the most. Above 1, intervals hold if you did not ask
            again because of what you saw.
        always_valid_95: Of each noisy column, by name, half the width of an interval that holds however often you
            asked, and why; None where nothing was combined, or none is known.
        fresh: Where what was bought is combined with what you had: what the first alone tells; else None.
        rounds: How many releases there were until the target was met; 1 without a target.
        columns: The columns, in order.
        intervals: Under dpsql.intervals: of each noisy column, by name, the interval of each row.
        bounding: What contribution bounding and clamping may cut, in words; None where they cut nothing.
        dropped: How much of the rows, or of a sum, bounds dropped, and half its 95 % interval; none where no wide total
            tells.
        margins: How exact each noisy column is: the least and the largest ± of its rows, and in how many it is above a
            tenth of the value.
        answer: The released rows, and the plan that they came from.
    """

    cost: dict[str, float | None]
    remaining: dict[str, float]
    group: dict[str, Any] | None
    reused: bool
    derived_from: tuple[int, ...]
    consistent_with: tuple[int, ...]
    asked: int
    always_valid_95: dict[str, float | None]
    fresh: "FreshReport | None"
    rounds: int
    columns: tuple[ColumnReport, ...]
    intervals: dict[str, tuple[Limits, ...]]
    bounding: str | None
    dropped: tuple[tuple[float, float], ...]
    margins: tuple[ColumnMargin, ...]
    answer: Answer = field(repr=False, compare=False)


@dataclass(frozen=True)
class PriceEstimate(_Columns):
    """What a query would cost and how exact it would be; nothing was read and nothing spent.

    Attributes:
        price: What it would be charged now: epsilon (in the budget's currency), delta, rho; under a target, what the
            first round would.
        most: What all rounds to a target would be charged at the most; the price without a target.
        remaining: What is left of the budget: epsilon, delta.
        group: Name and `remaining` of the group whose budget would be charged, too; None without one.
        fits: Whether the budget, and the group's, cover the most.
        reused: True where this user has the answer already, and would have it again for nothing.
        derived_from: Numbers of this user's releases whose cells would be added up for it, as in dpsql.releases.
        columns: The columns, in order.
        plan: What EXPLAIN says, a line an item.
    """

    price: dict[str, float | None]
    most: dict[str, float | None]
    remaining: dict[str, float]
    group: dict[str, Any] | None
    fits: bool
    reused: bool
    derived_from: tuple[int, ...]
    columns: tuple[ColumnReport, ...]
    plan: tuple[str, ...]

    @property
    def free(self) -> bool:
        """True where nothing would be charged."""
        return not any(self.most.values())

    def __str__(self) -> str:
        return "\n".join(self.plan)


def release_of(answer: Answer) -> ReleaseReport | None:
    """What an answer released; None where it released nothing."""
    charge = answer.charge
    if charge is None:
        return None
    return ReleaseReport(
        cost=cost_json(answer.cost),
        remaining=remaining_json(charge.remaining),
        group=group_json(charge.shared).get("group"),
        reused=answer.reused,
        derived_from=answer.derived_from,
        consistent_with=answer.consistent_with,
        asked=answer.query.combines,
        always_valid_95={c.name: always_valid(answer.query, c.error) for c in answer.columns if c.error is not None},
        fresh=None if answer.fresh is None else FreshReport(answer.fresh.rows.rows, _columns(answer.fresh.columns)),
        rounds=len(answer.earlier) + 1,
        columns=_columns(answer.columns),
        intervals=_intervals(answer),
        bounding=bounding_notice(answer.query, answer.rows.dropped),
        dropped=tuple((each.share, each.margin) for each in answer.rows.dropped),
        margins=column_margins(answer),
        answer=answer,
    )


def estimate_of(explanation: Explanation) -> PriceEstimate:
    """What an explained query would cost."""
    return PriceEstimate(
        price=cost_json(explanation.cost),
        most=cost_json(explanation.dearest),
        remaining=remaining_json(explanation.status.remaining),
        group=group_json(explanation.quotation.shared).get("group"),
        fits=explanation.most.fits,
        reused=explanation.reused,
        derived_from=explanation.derived_from,
        columns=_columns(explanation.query.columns),
        plan=(*explanation_lines(explanation), *sql_lines(explanation.query)),
    )


def _columns(columns: Iterable[OutputColumn]) -> tuple[ColumnReport, ...]:
    return tuple(
        ColumnReport(column.name, column.type.value, None, None, None)
        if column.error is None
        else ColumnReport(
            column.name, column.type.value, column.error.mechanism, column.error.stderr, column.error.plus_minus_95
        )
        for column in columns
    )


def _intervals(answer: Answer) -> dict[str, tuple[Limits, ...]]:
    """The limits that stand in the two columns after a noisy one; none where they were asked for by a target alone."""
    return {
        answer.columns[place].name: tuple(_limits(row[place + 1], row[place + 2]) for row in answer.rows.rows)
        for place in answer.limited
    }


def _limits(low: Any, high: Any) -> Limits:
    return None if low is None or high is None else (float(low), float(high))
