"""query_run: one query of a user under the settings of a session, explained or answered, and its result."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from functools import partial

from dpsql.backends import Cancellation
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.statements import CopyOptions, QueryStatement
from dpsql.gateway.answers import Answer, Explanation
from dpsql.gateway.engine import Engine
from dpsql.gateway.settings import CONSISTENT, Reuse, Settings
from dpsql.gateway.target import Course, Pursuit, chart
from dpsql.sqltypes import SqlType


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
    """Something the client is told in addition to the rows."""

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
    """A query, who asks it, and the settings and the time it is asked under."""

    engine: Engine
    user: str
    settings: Settings
    statement: QueryStatement
    parameters: QueryParameters
    now: datetime

    def compile(self) -> CompiledQuery:
        """Plan it at the price that is set, without a target.

        Raises:
            Error: As `Engine.compile`.
        """
        return self._compile(self._asked())

    def compile_shown(self) -> CompiledQuery:
        """Plan it as it is answered without a target, with the limits of its intervals.

        Raises:
            Error: As `Engine.compile`.
        """
        return self._compile(self._with_limits())

    def answer(self, cancellation: Cancellation) -> tuple[Answer, Pursuit | None]:
        """Answer it; under a target round by round, and then with what came of the target.

        Raises:
            Error: As `Engine.compile`, `Engine.execute` and `chart`.
        """
        course = self._course()
        reuse = self._reuse(course)

        def execute(query: CompiledQuery) -> Answer:
            return self.engine.execute(self.user, query, cancellation, reuse=reuse, consistent=self._consistent(reuse))

        if course is None:
            return self._shown(execute(self.compile_shown())), None
        pursuit = course.pursue(execute)
        return self._shown(pursuit.answer), pursuit

    def recall(self) -> Answer | None:
        """Answer it from memory, if it was asked and answered before and that is enough; nothing is waited for."""
        reuse = self.settings.reuse
        if self.settings.target_error is not None or reuse is Reuse.OFF or self._consistent(reuse):
            return None
        role, values, types = self.settings.role, self.parameters.values, self.parameters.types
        answer = self.engine.recall(self.user, role, self.statement, self._with_limits(), values, types)
        return None if answer is None else self._shown(answer)

    def explain(self, cancellation: Cancellation) -> Explanation:
        """Tell what it would do and cost; nothing is read and nothing is spent.

        Raises:
            Error: As `Engine.compile`, `Engine.explain` and `chart`.
        """
        course = self._course()
        reuse = self._reuse(course)
        consistent = self._consistent(reuse)
        explain = partial(self.engine.explain, self.user, cancellation=cancellation, reuse=reuse, consistent=consistent)
        if course is None:
            return explain(self.compile())
        query = self._compile(replace(self._asked(), epsilon=course.epsilon))
        target, rounds = course.target.text, () if course.settled else course.rounds()
        return explain(query, target=target, rounds=rounds)

    def _reuse(self, course: Course | None) -> Reuse:
        """What may answer it: rounds depend on noisy numbers, and what combined them had too narrow intervals."""
        reuse = self.settings.reuse
        return Reuse.EXACT if reuse is Reuse.DERIVED and course is not None and not course.settled else reuse

    def _consistent(self, reuse: Reuse) -> bool:
        """Whether it is to add up with all that the user has."""
        return reuse is Reuse.DERIVED and self.settings.is_on(CONSISTENT)

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
        return answer.without_limits()

    def _asked(self) -> QuerySettings:
        asked = self.settings.query(self.now, self.user)
        if self.settings.target_error is None:
            return asked
        # What is derived for a target is as exact as what would be asked for it.
        return replace(asked, max_error_ratio=min(asked.max_error_ratio, Fraction(1)))

    def _compile(self, settings: QuerySettings) -> CompiledQuery:
        return self.engine.compile(self.user, self.statement, settings, self.parameters.values, self.parameters.types)
