"""target: the least ε whose announced 95 % intervals are as narrow as dpsql.target_error wants them.

Rule 1: each round is a query as any other: compiled, charged and released by itself, through the budget's gate.
Rule 2: which ε a round has depends on the plan and on the noisy cells of the rounds before it, and on nothing else.
Rule 3: a round's ε is at least twice that of the round before.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from math import inf
from statistics import median_high, median_low
from typing import Any

from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.errors import BudgetExhausted, Error, InvalidParameter
from dpsql.gateway.answers import Answer
from dpsql.gateway.settings import ErrorTarget
from dpsql.ledger import Charge

Compile = Callable[[Fraction], CompiledQuery]
"""Plans the query for an ε, with the limits of its interval next to each noisy column."""
Execute = Callable[[CompiledQuery], Answer]

_GRID_POINTS = 9000


@dataclass(frozen=True)
class Measure:
    """How a column's announced interval stands to the target.

    Attributes:
        name: The column.
        margin: Half the 95 % interval, in half of the rows at the most; None where no row tells.
        share: The greatest margin that meets the target, relative to `size`.
        size: What margins are compared with; known to within the margin; None where no row tells.
    """

    name: str
    margin: float | None
    share: float
    size: float | None

    @property
    def met(self) -> bool:
        """Whether the announced interval meets the target."""
        return self.margin is not None and self.size is not None and self.margin <= self.share * self.size

    @property
    def ratio(self) -> float:
        """The margin over the greatest that meets the target; infinite where no margin would, or none is told."""
        if self.margin is None or not self.size:
            return inf
        return self.margin / (self.share * self.size)

    @property
    def least(self) -> float:
        """By what ε has to grow, if `size` is at the upper end of what it may be."""
        if self.margin is None or self.size is None:
            return 0.0
        return self.margin / (self.share * (self.size + self.margin))

    @property
    def most(self) -> float:
        """By what ε has to grow, if `size` is at the lower end of what it may be."""
        if self.margin is None or self.size is None or self.size <= self.margin:
            return inf
        return self.margin / (self.share * (self.size - self.margin))


@dataclass(frozen=True)
class Pursuit:
    """What came of a target.

    Attributes:
        answer: The last round's answer, with the charges of those before it.
        target: What was wanted.
        measures: What was announced in the end, column by column.
        failure: Why the target was not met; None if it was.
    """

    answer: Answer
    target: ErrorTarget
    measures: tuple[Measure, ...]
    failure: str | None


@dataclass(frozen=True)
class Course:
    """The way to a target, as far as policy and SQL tell it.

    Attributes:
        target: What is wanted.
        limit: The greatest ε of one query.
        compile: Plans the query for an ε.
        first: The first round: the least ε at which there is a plan, and at which all the intervals that follow from
            the plan meet an absolute target.
    """

    target: ErrorTarget
    limit: Fraction
    compile: Compile
    first: CompiledQuery

    @property
    def epsilon(self) -> Fraction:
        """The ε of the first round."""
        return _epsilon(self.first)

    @property
    def settled(self) -> bool:
        """Whether the plan alone tells that the first round meets the target."""
        errors = [column.error for column in self.first.columns if column.error is not None]
        return not self.target.relative and all(error.plus_minus_95 is not None for error in errors)

    def rounds(self) -> tuple[CompiledQuery, ...]:
        """The dearest that there may be if nothing is settled: the limit, half of it, and so on down to the first."""
        epsilons = [self.limit]
        while epsilons[-1] / 2 >= self.epsilon:
            epsilons.append(epsilons[-1] / 2)
        return tuple(self.compile(epsilon) for epsilon in reversed(epsilons))

    def pursue(self, execute: Execute) -> Pursuit:
        """Ask round after round until the target is met, or cannot be within the limits of query and budget.

        Guarantee: that of its rounds: adaptively chosen queries, each admitted by the budget's filter. As ε doubles
            at least, the rounds' ρ add up to less than 4/3 of the last one's, and their ε to less than twice it.
            Each round with private keys pays its δ.
        Assumes: that there is a further round, and its ε, follow from released cells; what is released is charged,
            shown or not.
        Reference: Whitehouse, Ramdas, Rogers & Wu 2023 (filters for adaptive choice). Ligett, Neel, Roth, Waggoner &
            Wu 2017 ("Accuracy First") search the least ε that is accurate enough; their noise reduction and the
            Brownian one of Whitehouse, Ramdas, Wu & Rogers 2022 pay for the last round alone, but correlate the noise
            of the rounds: they are not used.

        Raises:
            BudgetExhausted: The budget does not cover the first round. What a later one misses, the answer tells.
        """
        try:
            answer = execute(self.first)
        except BudgetExhausted as error:
            if error.hint is not None:
                error.hint = error.hint.replace(
                    "Write: SET dpsql.epsilon", "Write: SET dpsql.target_error = off; SET dpsql.epsilon"
                )
            raise
        earlier: list[Charge] = []
        while True:
            measures = self._measures(answer)
            query, failure = self._following(answer.query, measures)
            if query is None:
                break
            try:
                following = execute(query)
            except BudgetExhausted as error:
                failure = error.message
                break
            earlier += [answer.charge] if answer.charge is not None else []
            answer = following
        return Pursuit(replace(answer, earlier=tuple(earlier)), self.target, measures, failure)

    def _following(self, query: CompiledQuery, measures: Sequence[Measure]) -> tuple[CompiledQuery | None, str | None]:
        """The round after one, or why there is none; neither where the target is met.

        Where the released cells tell the ε that is needed to within a factor of two, the upper end of that is taken,
        so that one more round is enough; else the lower end, or a quarter of the limit if that is less, to tell more.
        """
        unmet = [measure for measure in measures if not measure.met]
        if not unmet:
            return None, None
        epsilon, limit = _epsilon(query), self.limit
        least, most = max(measure.least for measure in unmet), max(measure.most for measure in unmet)
        if 2 * epsilon > limit or least > limit / epsilon:
            best = max(measure.ratio for measure in measures) * float(epsilon / limit)
            return None, f"it needs more than epsilon {float(limit):g}, the limit for one query{self._reachable(best)}"
        wanted = epsilon * Fraction(most) if most <= 2 * least else min(epsilon * Fraction(least), limit / 4)
        return self.compile(min(_grid(_index(max(wanted, 2 * epsilon))), limit)), None

    def _reachable(self, ratio: float) -> str:
        """Words for the target that is so many times as wide as this one; none where it would be no target."""
        bound = ratio * self.target.bound
        if self.target.relative:
            return f"; about {100 * bound:.3g} % can be reached" if bound <= 1 else ""
        return f"; about {bound:.3g} can be reached" if ratio < inf else ""

    def _measures(self, answer: Answer) -> tuple[Measure, ...]:
        query = answer.query
        return tuple(self._measure(query, place, answer.rows.rows) for place in _announced(query))

    def _measure(self, query: CompiledQuery, place: int, rows: Sequence[tuple[Any, ...]]) -> Measure:
        """Measure a column by its plan, or by its released values: a count near its threshold has a wider interval."""
        column = query.columns[place]
        error = column.error
        if error is None:
            raise TypeError("an announced column has an error")
        told = [row for row in rows if row[place] is not None]
        sizes = [abs(float(number)) for row in told for number in _numbers(row[place])]
        value = median_high(sizes) if sizes else None
        margin = error.plus_minus_95
        if told and place in query.limited and (margin is None or self.target.relative):
            margin = median_low((float(row[place + 2]) - float(row[place + 1])) / 2 for row in told)
        bound = self.target.bound
        size, goal = (value, bound * (value or 0.0)) if self.target.relative else (bound, bound)
        half = error.estimate.greatest_error
        if half is not None and size is not None:
            # A mean's margin depends on a noisy count, too, which is told as well as the mean is in half its range.
            size = min(size, half) if self.target.relative else half
        return Measure(column.name, margin, goal / size if size else bound, size)


def chart(
    target: ErrorTarget, limit: Fraction, compile: Compile, may_read: Callable[[CompiledQuery], bool] = lambda _: True
) -> Course | None:
    """Find the way to a target; nothing is read and nothing charged.

    Args:
        target: What is wanted.
        limit: The greatest ε of one query.
        compile: Plans the query for an ε.
        may_read: Whether a query costs enough to be read at all.

    Returns:
        The course; None where nothing has noise, and so everything is exact.

    Raises:
        InvalidParameter: No column has an interval, or one is too wide at any ε.
    """
    top = compile(limit)
    if not any(planned.events for planned in top.releases):
        return None
    if not _announced(top):
        raise InvalidParameter(
            "dpsql.target_error is for columns with a 95 % interval, and this query has none",
            hint="Select COUNT, SUM or AVG as it is, in a column of its own; or SET dpsql.target_error = off",
        )
    if not _within(top, target):
        raise _too_narrow(top, target, limit)

    def suits(index: int) -> bool:
        try:
            query = compile(_grid(index))
            return may_read(query) and _within(query, target)
        except Error:  # what can be planned at the limit, but not for so little
            return False

    index = bisect_left(range(_index(limit)), True, key=suits)
    return Course(target, limit, compile, compile(min(_grid(index), limit)))


def _numbers(value: Any) -> list[Any]:
    """A number, or those of an array."""
    return value if isinstance(value, list) else [value]


def _announced(query: CompiledQuery) -> list[int]:
    """The columns whose interval is told: by the plan, or row by row next to them."""
    errors = [(place, column.error) for place, column in enumerate(query.columns)]
    return [p for p, error in errors if error is not None and (error.plus_minus_95 is not None or p in query.limited)]


def _fixed(query: CompiledQuery) -> list[tuple[float, str]]:
    """The intervals that follow from the plan, each with its column."""
    errors = [(column.error, column.name) for column in query.columns]
    return [(e.plus_minus_95, name) for e, name in errors if e is not None and e.plus_minus_95 is not None]


def _within(query: CompiledQuery, target: ErrorTarget) -> bool:
    """Whether no interval that follows from the plan misses an absolute target."""
    return target.relative or all(margin <= target.bound for margin, _ in _fixed(query))


def _too_narrow(top: CompiledQuery, target: ErrorTarget, limit: Fraction) -> InvalidParameter:
    margin, name = max(_fixed(top))
    reachable = f"{Context(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(margin).normalize():f}"
    return InvalidParameter(
        f"dpsql.target_error = '{target.text}' cannot be met: \"{name}\" is within ± {reachable} at "
        f"epsilon {float(limit):g}, the limit for one query",
        hint=f"Write: SET dpsql.target_error = '{reachable}'",
    )


def _epsilon(query: CompiledQuery) -> Fraction:
    """The ε that a query was asked for; less is charged where it is combined with what the user has."""
    price = (query.anew or query).price
    if price is None:
        raise TypeError("a query that releases has a price")
    return price.epsilon


def _grid(index: int) -> Fraction:
    """Numbers of three digits from 0.001 on: few enough that a question asked again has the ε it had before."""
    decade, digits = divmod(index, 900)
    return (100 + digits) * Fraction(10) ** (decade - 5)


def _index(epsilon: Fraction) -> int:
    """The place of the first number of the grid that is not below an ε."""
    return bisect_left(range(_GRID_POINTS), epsilon, key=_grid)
