"""intervals: an answer's rows with the 95 % interval of each noisy number beside it, not in columns of its own.

Rule: intervals are those that the answer tells: its columns of limits, or what its plan says of a column's noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpsql.compiler.aggregates.base import ColumnError
from dpsql.gateway.engine import Answer
from dpsql.gateway.results import Result
from dpsql.sqltypes import SqlType

_MOST_PLACES = 12
_INEXACT = 0.1
_ROUNDING = 1e-6
"""Of a last place; what floating point adds to a margin of just so many places."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """Where a number lies without its noise, at 95 %; what bounding cut is not in it.

    Attributes:
        low: The lower end; minus infinity where there is none.
        high: The upper end; infinity where there is none.
    """

    low: float
    high: float

    def margin(self, value: float) -> float:
        """The distance from a value to the end that is further away."""
        return max(value - self.low, self.high - value)


@dataclass(frozen=True)
class AnswerColumn:
    """A column of an answer.

    Attributes:
        name: Its name.
        type: Its type.
        noisy: Whether its values have noise.
        error: What the noise does to it; None where it is computed of noisy columns, or is not noisy.
    """

    name: str
    type: SqlType
    noisy: bool = False
    error: ColumnError | None = None


@dataclass(frozen=True)
class NoisyRows:
    """An answer's rows and their intervals.

    Attributes:
        columns: The columns, without those of limits.
        rows: The rows, likewise.
        intervals: For each row the interval of each value; None where there is no noise, or its size is not told.
        epsilon: The price that the noise was made for; None where nothing was released.
    """

    columns: tuple[AnswerColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    intervals: tuple[tuple[ConfidenceInterval | None, ...], ...]
    epsilon: Fraction | None = None

    @classmethod
    def of(cls, result: Result) -> "NoisyRows":
        """What a statement gave."""
        if result.answer is not None:
            return cls.of_answer(result.answer)
        columns = tuple(AnswerColumn(column.name, column.type) for column in result.columns or ())
        return cls(columns, tuple(result.rows), tuple((None,) * len(columns) for _ in result.rows))

    @classmethod
    def of_answer(cls, answer: Answer) -> "NoisyRows":
        """What a query was answered."""
        if answer.full is not None:
            answer = replace(answer, columns=answer.query.columns, rows=answer.full, full=None)
        query, limited = answer.query, answer.limited
        kept = [place for place in range(len(answer.columns)) if not limited or place not in query.ends]
        columns = tuple(
            AnswerColumn(column.name, column.type, column.error is not None or place in limited, column.error)
            for place, column in enumerate(answer.columns)
            if place in kept
        )
        rows = answer.rows.rows
        return cls(
            columns,
            tuple(tuple(row[place] for place in kept) for row in rows),
            tuple(tuple(_intervals(answer, row, limited, kept)) for row in rows),
            query.price.epsilon if query.price is not None else None,
        )


@dataclass(frozen=True)
class ColumnMargin:
    """Half the widths of one column's 95 % intervals, over the rows of an answer.

    Attributes:
        name: The column's name.
        least: Of the most exact row.
        greatest: Of the least exact row; infinity where a row has no limit.
        rows: How many rows have a value.
        inexact: In how many of them it is more than a tenth of the value.
    """

    name: str
    least: float
    greatest: float
    rows: int
    inexact: int


def column_margins(answer: Answer) -> tuple[ColumnMargin, ...]:
    """How exact each noisy number is: by its intervals, or by the plan where there are no rows."""
    noisy = NoisyRows.of_answer(answer)
    found = []
    for place, column in enumerate(noisy.columns):
        rows = ((row[place], interval[place]) for row, interval in zip(noisy.rows, noisy.intervals, strict=True))
        halves = [(each.margin(float(value)), abs(float(value))) for value, each in rows if each is not None]
        margins = [half for half, _ in halves]
        if any(margins):
            inexact = sum(half > _INEXACT * size for half, size in halves)
            found.append(ColumnMargin(column.name, min(margins), max(margins), len(margins), inexact))
        elif column.error is not None and column.error.plus_minus_95:
            half = column.error.plus_minus_95
            found.append(ColumnMargin(column.name, half, half, 0, 0))
    return tuple(found)


def _intervals(
    answer: Answer, row: tuple[Any, ...], limited: tuple[int, ...], kept: list[int]
) -> Iterator[ConfidenceInterval | None]:
    for place in kept:
        error = answer.columns[place].error
        if row[place] is None or answer.columns[place].type.is_array:  # the notice tells the error of each element
            yield None
        elif place in limited:
            low, high = row[place + 1], row[place + 2]
            yield ConfidenceInterval(
                -math.inf if low is None else float(low), math.inf if high is None else float(high)
            )
        elif error is not None and error.plus_minus_95 is not None:
            yield ConfidenceInterval(float(row[place]) - error.plus_minus_95, float(row[place]) + error.plus_minus_95)
        else:
            yield None


def number_text(value: Any, interval: ConfidenceInterval) -> str:
    """A noisy number and half its interval: of the number as many places are told as two digits of the half have."""
    number = float(value)
    margin = interval.margin(number)
    if margin == 0 or not math.isfinite(margin):
        return f"{number:,.6g} ± {'∞' if margin else 0}"
    whole = number.is_integer() and margin.is_integer()
    return f"{number:,.{0 if whole else _places(margin)}f} ± {margin_text(margin)}"


def margin_text(margin: float) -> str:
    """Half an interval, rounded up to two digits, or to whole ones."""
    places = 0 if margin.is_integer() else _places(margin)
    raised = math.ceil(margin * 10**places - _ROUNDING) / 10**places
    return f"{raised:,.{places}f}"


def _places(margin: float) -> int:
    return min(max(0, 1 - math.floor(math.log10(margin))), _MOST_PLACES)
