"""confidence_intervals: where the numbers of an answer lie without their noise, at 95 %, and how wide that is.

Rule: intervals are those that the answer tells: its columns of limits, or what its plan says of a column's noise.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from dpsql.compiler.aggregates.base import ColumnError
from dpsql.gateway.answers import Answer
from dpsql.gateway.dropped import Dropped
from dpsql.gateway.query_run import Result
from dpsql.sqltypes import SqlType

_INEXACT: Final = 0.1


@dataclass(frozen=True)
class ConfidenceInterval:
    """Where a number lies without its noise, at 95 %; what bounding cut is in it where its column `covers_drops`.

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
        covers_drops: Whether its intervals allow for what bounds drop, and not for noise alone.
    """

    name: str
    type: SqlType
    noisy: bool = False
    error: ColumnError | None = None
    covers_drops: bool = False


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
        answer = _with_limits(answer)
        price, kept = (answer.query.anew or answer.query).price, _kept(answer)
        return cls(
            _columns(answer, kept),
            tuple(answer.rows.only(kept).rows),
            tuple(tuple(_intervals(answer, row, kept)) for row in answer.rows.rows),
            price.epsilon if price is not None else None,
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
        covers_drops: Whether the intervals allow for what bounds drop, and not for noise alone.
    """

    name: str
    least: float
    greatest: float
    rows: int
    inexact: int
    covers_drops: bool = False


def column_margins(answer: Answer) -> tuple[ColumnMargin, ...]:
    """How exact each noisy number is: by its intervals, or by the plan where there are no rows.

    Rows are read one by one: those in a file stay there.
    """
    answer = _with_limits(answer)
    kept = _kept(answer)
    columns = _columns(answer, kept)
    found = [_Margin() for _ in kept]
    for row in answer.rows.rows:
        for margin, place, interval in zip(found, kept, _intervals(answer, row, kept), strict=True):
            if interval is not None:
                margin.add(float(row[place]), interval)
    told = map(_told, columns, found)
    return tuple(margin for margin in told if margin is not None)


@dataclass(slots=True)
class _Margin:
    """What is known of a column's margin after some rows."""

    least: float = math.inf
    greatest: float = 0.0
    rows: int = 0
    inexact: int = 0

    def add(self, value: float, interval: ConfidenceInterval) -> None:
        """Include one more row."""
        half = interval.margin(value)
        self.least, self.greatest = min(self.least, half), max(self.greatest, half)
        self.rows += 1
        self.inexact += half > _INEXACT * abs(value)


def _told(column: AnswerColumn, found: _Margin) -> ColumnMargin | None:
    """A column's margin; where rows tell none, the plan's, which is of noise alone, if there is one."""
    if found.greatest:
        return ColumnMargin(column.name, found.least, found.greatest, found.rows, found.inexact, column.covers_drops)
    half = column.error.plus_minus_95 if column.error is not None else None
    return ColumnMargin(column.name, half, half, 0, 0) if half else None


def _with_limits(answer: Answer) -> Answer:
    """The answer with the limits of its intervals, where there are any."""
    if answer.full is None:
        return answer
    return replace(answer, columns=answer.query.columns, rows=answer.full, full=None)


def _kept(answer: Answer) -> list[int]:
    """Places of the columns without those of limits."""
    return [place for place in range(len(answer.columns)) if not answer.limited or place not in answer.query.ends]


def _columns(answer: Answer, kept: list[int]) -> tuple[AnswerColumn, ...]:
    limited = answer.limited
    return tuple(
        AnswerColumn(
            column.name,
            column.type,
            column.error is not None or place in limited,
            column.error,
            place in limited and _covers_drops(answer.rows.dropped, column.errors),
        )
        for place, column in ((place, answer.columns[place]) for place in kept)
    )


def _covers_drops(dropped: Sequence[Dropped], errors: Sequence[ColumnError]) -> bool:
    """Whether limits of a column allow for what bounds drop, in all arms of a union.

    So it is where its cell has a wide total, and noise hides nothing.
    Without a wide total, or where that may be noise alone, limits are of noise alone. So are those of a mean of rows:
    its count has a total, and its sum has none.
    """
    arms = {error.release for error in errors}
    measured = {(each.release, each.cell) for each in dropped}
    hidden = any(each.is_hidden for each in dropped if each.release in arms)
    return bool(arms) and not hidden and all((e.release, e.estimate.raised_cell) in measured for e in errors)


def _intervals(answer: Answer, row: tuple[Any, ...], kept: list[int]) -> Iterator[ConfidenceInterval | None]:
    limited = answer.limited
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
