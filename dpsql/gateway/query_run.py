"""query_run: one query of a user under the settings of a session, explained or answered, and its result.

A query may have a target: the least ε is spent whose announced 95 % intervals are as narrow as dpsql.target_error wants
them.

Rule 1: each round towards a target is a query as any other: compiled, charged and released by itself, through the
budget's gate.
Rule 2: which ε a round has depends on the plan and on the noisy cells of the rounds before it, and on nothing else.
Rule 3: a round's ε is at least twice that of the round before.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from functools import partial
from math import inf
from statistics import median_high, median_low
from typing import Any

from dpsql.backends import Cancellation
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.statements import CopyOptions, QueryStatement
from dpsql.errors import BudgetExhausted, Error, InvalidParameter
from dpsql.gateway.engine import Answer, Engine, Explanation
from dpsql.gateway.settings import ErrorTarget, Reuse, Settings
from dpsql.ledger import Charge
from dpsql.sqltypes import SqlType

Compile = Callable[[Fraction], CompiledQuery]
"""Plans the query for an ε, with the limits of its interval beside each noisy column."""
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
            if error.hint is not None and error.hint.startswith("SET dpsql.epsilon"):
                error.hint = f"SET dpsql.target_error = off; {error.hint}"
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
            return None, f"it takes more than epsilon {float(limit):g}, the limit for one query{self._reachable(best)}"
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


def without_limits(answer: Answer) -> Answer:
    """The answer without the limits of its intervals, for one who did not ask for them."""
    kept = [place for place in range(len(answer.columns)) if place not in answer.query.ends]
    columns = tuple(answer.columns[place] for place in kept)
    return replace(answer, columns=columns, rows=answer.rows.only(kept))


def _numbers(value: Any) -> list[Any]:
    """A number, or those of an array."""
    return value if isinstance(value, list) else [value]


def _announced(query: CompiledQuery) -> list[int]:
    """The columns whose interval is told: by the plan, or row by row beside them."""
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
        f"no answer is as exact as dpsql.target_error = '{target.text}': \"{name}\" is within ± {reachable} at "
        f"epsilon {float(limit):g}, the limit for one query",
        hint=f"SET dpsql.target_error = '{reachable}'",
    )


def _epsilon(query: CompiledQuery) -> Fraction:
    if query.price is None:
        raise TypeError("a query that releases has a price")
    return query.price.epsilon


def _grid(index: int) -> Fraction:
    """Numbers of three digits from 0.001 on: few enough that a question asked again has the ε it had before."""
    decade, digits = divmod(index, 900)
    return (100 + digits) * Fraction(10) ** (decade - 5)


def _index(epsilon: Fraction) -> int:
    """The place of the first number of the grid that is not below an ε."""
    return bisect_left(range(_GRID_POINTS), epsilon, key=_grid)


@dataclass(frozen=True)
class ResultColumn:
    """A column of a result.

    Attributes:
        name: Its name.
        type: Its type.
        oid: PostgreSQL's type, where the catalog knows it better than `type` says; None for that of `type`.
    """

    name: str
    type: SqlType
    oid: int | None = None


class ObjectName(str):
    """The text of a value of type regclass, regtype and their like, which is an OID as well."""

    oid: int

    @classmethod
    def of(cls, text: str, oid: int) -> "ObjectName":
        """A name with the OID that it stands for."""
        made = cls(text)
        made.oid = oid
        return made


@dataclass(frozen=True)
class Notice:
    """Something the client is told beside the rows."""

    message: str
    severity: str = "NOTICE"
    detail: str | None = None
    hint: str | None = None
    sqlstate: str = "00000"

    @property
    def text(self) -> str:
        """The message, with its detail on a line of its own."""
        return self.message if self.detail is None else f"{self.message}\nDETAIL: {self.detail}"


@dataclass(frozen=True)
class Result:
    """What a statement gave.

    Attributes:
        tag: The command tag, such as "SELECT 3"; "" for an empty statement.
        columns: The columns; None where the statement returns no rows.
        rows: The rows, as Python values of the columns' types.
        notices: What else the client is told.
        parameters: Settings that changed and that clients are told of.
        answer: The release behind the rows; None where there is none.
        copy: How COPY writes the rows; None where they are a result as any.
    """

    tag: str
    columns: tuple[ResultColumn, ...] | None = None
    rows: Sequence[tuple[object, ...]] = ()
    notices: tuple[Notice, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    answer: Answer | None = None
    copy: CopyOptions | None = None


@dataclass(frozen=True)
class Description:
    """What a statement takes and returns.

    Attributes:
        parameters: The types of its placeholders.
        columns: Its columns; None where it returns no rows.
        parameter_oids: PostgreSQL's types of the placeholders, where the catalog knows them better; else ().
        elements: Of each placeholder that is an array, the type of its items; None of the others.
    """

    parameters: tuple[SqlType, ...]
    columns: tuple[ResultColumn, ...] | None
    parameter_oids: tuple[int, ...] = ()
    elements: tuple[SqlType | None, ...] = ()


@dataclass(frozen=True)
class QueryParameters:
    """Values of placeholders, and their types as far as they were described."""

    values: Sequence[object] = ()
    types: Sequence[SqlType | None] = ()


@dataclass(frozen=True)
class QueryRequest:
    """A query, who asks it, and the settings it is asked under."""

    engine: Engine
    user: str
    settings: Settings
    statement: QueryStatement
    parameters: QueryParameters

    def compile(self) -> CompiledQuery:
        """Plan it at the price that is set, without a target.

        Raises:
            Error: As `Engine.compile`.
        """
        return self._compile(self._asked())

    def answer(self, cancellation: Cancellation) -> tuple[Answer, Pursuit | None]:
        """Answer it; under a target round by round, and then with what came of the target.

        Raises:
            Error: As `Engine.compile`, `Engine.execute` and `chart`.
        """

        def execute(query: CompiledQuery) -> Answer:
            return self.engine.execute(self.user, query, cancellation, reuse=self._reuse)

        course = self._course()
        if course is None:
            return self._shown(execute(self._compile(self._with_limits()))), None
        pursuit = course.pursue(execute)
        return self._shown(pursuit.answer), pursuit

    def recall(self) -> Answer | None:
        """Answer it from memory, if it was asked and answered before and that is enough; nothing is waited for."""
        if self.settings.target_error is not None or self._reuse is Reuse.OFF:
            return None
        role, values, types = self.settings.role, self.parameters.values, self.parameters.types
        answer = self.engine.recall(self.user, role, self.statement, self._with_limits(), values, types)
        return None if answer is None else self._shown(answer)

    def explain(self) -> Explanation:
        """Tell what it would do and cost; nothing is read and nothing is spent.

        Raises:
            Error: As `Engine.compile` and `chart`.
        """
        course, reuse = self._course(), self._reuse
        if course is None:
            return self.engine.explain(self.user, self.compile(), reuse=reuse)
        query = self._compile(replace(self._asked(), epsilon=course.epsilon))
        target, rounds = course.target.text, () if course.settled else course.rounds()
        return self.engine.explain(self.user, query, reuse=reuse, target=target, rounds=rounds)

    @property
    def _reuse(self) -> Reuse:
        """What may answer it; rounds to a target are of one question, each of which is asked as it is."""
        reuse = self.settings.reuse
        return Reuse.EXACT if reuse is Reuse.DERIVED and self.settings.target_error is not None else reuse

    def _course(self) -> Course | None:
        """The way to dpsql.target_error; None where it is off, or nothing has noise."""
        target = self.settings.target_error
        if target is None:
            return None
        asked = replace(self._asked(), intervals=True)

        def compile(epsilon: Fraction) -> CompiledQuery:
            return self._compile(replace(asked, epsilon=epsilon))

        may_read = partial(self.engine.may_read, self.user)
        return chart(target, self.settings.role.query.max_epsilon, compile, may_read)

    def _with_limits(self) -> QuerySettings:
        """The settings, with intervals where they are not told by the plan: what bounds drop is in them, too."""
        asked = replace(self._asked(), row_intervals=True)
        return replace(asked, intervals=True) if self.settings.role.query.wide_share else asked

    def _shown(self, answer: Answer) -> Answer:
        """The answer with the columns that were asked for."""
        if not answer.limited or self.settings.is_on("dpsql.intervals"):
            return answer
        return replace(without_limits(answer), full=answer.rows)

    def _asked(self) -> QuerySettings:
        return self.settings.query(self.engine.now())

    def _compile(self, settings: QuerySettings) -> CompiledQuery:
        return self.engine.compile(self.user, self.statement, settings, self.parameters.values, self.parameters.types)
