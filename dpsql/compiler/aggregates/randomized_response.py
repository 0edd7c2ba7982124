"""randomized_response: columns collected through randomized response, and the aggregates allowed over them.

Each answer is the truth with probability p, and else one of the other k - 1 values, uniformly. If a value is the truth
for t of N, then E[c] = p·t + q·(N - t) answers name it, with q = (1 - p)/(k - 1); so (c - q·N)/(p - q) estimates t
(Warner 1965; Kairouz, Bonawitz & Ramage 2016).

Rule 1: aggregates that are linear in a column's answers are debiased; all others are refused.
Rule 2: each unit gives one answer: with several, bounding would make the aggregate nonlinear.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from dpsql.compiler.aggregates.base import ALIKE, NO_LIMITS, ColumnError, Drawn, Estimate, Formula, Primitives
from dpsql.compiler.aggregates.count import CountEstimate
from dpsql.compiler.aggregates.registry import estimate_of
from dpsql.compiler.aggregates.total import fieller, moved_ends
from dpsql.compiler.ir.conditions import TRUE, all_of, conjuncts
from dpsql.compiler.ir.nodes import (
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Field,
    InList,
    Literal,
    Project,
    Relation,
    Release,
    SetOperation,
    UnitScan,
)
from dpsql.compiler.ir.primitives import Primitive, PrimitiveKind
from dpsql.compiler.ir.walk import expressions, fields_in, nodes, relations_in
from dpsql.compiler.values.grids import carried
from dpsql.errors import PolicyViolation
from dpsql.policy import PolicyColumn, RandomizedResponse
from dpsql.privacy.conversion import NORMAL_95
from dpsql.sqltypes import SqlType

_BARELY = Fraction(1, 10**6)
"""The weight of noise that a column does not show: each primitive has a share."""


class _Debiased(Estimate):
    """An estimate of the truth behind randomized answers."""

    has_constant_error: ClassVar[bool] = False

    def explained(self, error: ColumnError) -> str:
        """The error includes the randomness of the answers."""
        noise = f"{error.mechanism} noise on counts of randomized answers, {error.norms}"
        return f"{noise}, plus the randomness of the answers"


@dataclass(frozen=True)
class ResponseEstimate(_Debiased):
    """The number or share of respondents for whom a value is true, from the number of answers that name it."""

    cell: int
    total_cell: int
    response: RandomizedResponse
    is_share: bool

    @property
    def cells(self) -> tuple[int, ...]:
        """Those who named the value, and those who answered."""
        return self.cell, self.total_cell

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The debiased count or share."""
        return debiased(self, prefix, None if drawn is None else drawn.widths, keys)

    def weights(self, primitives: Sequence[Primitive]) -> Mapping[int, Fraction]:
        """Of c - q·N, or of c/N, which is at most 1; q is 0 where all answers are true."""
        of_total = ALIKE if self.is_share else max(self.response.lie**2, _BARELY)
        return {self.cell: ALIKE, self.total_cell: of_total}


@dataclass(frozen=True)
class ResponseGroupEstimate(_Debiased):
    """The number of respondents for whom a group's randomized key is true, from the number of answers that name it."""

    cell: int
    key: int
    response: RandomizedResponse

    @property
    def cells(self) -> tuple[int, ...]:
        """Those who named the group's value."""
        return (self.cell,)

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The debiased count."""
        return debiased(self, prefix, None if drawn is None else drawn.widths, keys)


@dataclass(frozen=True)
class Asked:
    """A counted answer: rows where `field` is `value` and the `rest` of a filter is true."""

    field: Field
    value: Literal
    rest: Expr | None


@dataclass(frozen=True)
class Responses:
    """The randomized answers in a release.

    Attributes:
        release: The release.
        columns: The columns of randomized answers, by the fields that hand them on.
    """

    release: Release
    columns: Mapping[Field, PolicyColumn]

    @classmethod
    def of(cls, release: Release) -> "Responses":
        """The randomized answers that a release reads."""
        return cls(release, carried(release.aggregate, _randomized))

    def check(self, *, selects_groups: bool) -> None:
        """Refuse aggregates that are not linear in the answers.

        Raises:
            PolicyViolation: An aggregate is not linear.
        """
        aggregate = self.release.aggregate
        for node in nodes(aggregate):
            for expression in expressions(node) if node is not aggregate else ():
                handed_on = isinstance(node, Project) and isinstance(expression, Column)
                self._refuse(self._used(expression) if not handed_on else frozenset())
            if isinstance(node, SetOperation):
                self._refuse(frozenset((*node.left.fields, *node.right.fields)) & self.columns.keys())
        keys = [self._used(key) for key in aggregate.keys]
        plain = [used for key, used in zip(aggregate.keys, keys, strict=True) if not isinstance(key, Column)]
        self._refuse(frozenset().union(*plain))
        used = frozenset().union(*keys, *(self._used(part) for call in aggregate.aggregates for part in call.operands))
        if used and (self.release.protected.rows_per_unit > 1 or (selects_groups and any(keys))):
            raise self._refusal(used, "max_rows = 1 in the policy, and public group keys: COUNT(*) … GROUP BY {0}")
        if sum(map(bool, keys)) > 1:
            raise self._refusal(used, "Group by one of them at a time.")

    def refuse_picks(self) -> None:
        """Refuse to pick groups by randomized answers: the likeliest answer need not be the likeliest truth.

        Raises:
            PolicyViolation: They would be.
        """
        parts = (*self.release.aggregate.keys, *(p for c in self.release.aggregate.aggregates for p in c.operands))
        self._refuse(frozenset[Field]().union(*map(self._used, parts)))

    def estimate(self, primitives: Primitives, call: AggregateCall) -> Estimate:
        """The formula of an aggregate, debiased where it is made of randomized answers.

        Raises:
            PolicyViolation: It is not linear in them.
        """
        key = next((place for place, key in enumerate(self.release.aggregate.keys) if self._used(key)), None)
        used = frozenset[Field]().union(*map(self._used, call.operands))
        if key is not None:
            plain = call.function == "count" and not used and (not call.distinct or self._counts_units(call))
            (field,) = self._used(self.release.aggregate.keys[key])
            found = estimate_of(call, primitives)
            if not plain or not isinstance(found, CountEstimate):
                raise self._refusal(frozenset({field}), "COUNT(*) alone, GROUP BY {0}")
            return ResponseGroupEstimate(found.cell, key, self._response(field))
        if not used or _counts_answers(call):
            return estimate_of(call, primitives)
        asked = self._asked(call)
        if asked is None or self._used_in_rest(asked):
            raise self._refusal(used, _HINT)
        response, cap = self._response(asked.field), primitives.cap
        named = Call("eq", (Column(asked.field), asked.value), SqlType.BOOLEAN)
        cell = primitives.cell(Primitive(PrimitiveKind.COUNT, None, all_of(named, asked.rest), cap))
        total = primitives.cell(Primitive(PrimitiveKind.COUNT, None, all_of(self._answered(asked), asked.rest), cap))
        return ResponseEstimate(cell, total, response, call.function == "avg")

    def _asked(self, call: AggregateCall) -> Asked | None:
        """The answer that an aggregate counts."""
        if call.function == "count" and call.filter is not None and (not call.distinct or self._counts_units(call)):
            terms = conjuncts(call.filter)
            named = [term for term in terms if self._used(term)]
            found = self._named(named[0]) if len(named) == 1 and not self._used_in_arguments(call) else None
            rest = [term for term in terms if term not in named]
            return found and replace(found, rest=all_of(*rest) if rest else None)
        if call.function not in ("sum", "avg") or call.distinct:
            return None
        argument = call.argument
        if isinstance(argument, Cast) and argument.type.is_integer and isinstance(argument.argument, Column):
            truth = TRUE
            return Asked(argument.argument.field, truth, call.filter)
        if isinstance(argument, Case) and call.function == "sum" and len(argument.branches) == 1:
            (condition, value), other = argument.branches[0], argument.default
            found = self._named(condition) if _is(value, 1) and _is(other, 0) else None
            return found and replace(found, rest=call.filter)
        return None

    def _named(self, condition: Expr) -> Asked | None:
        """The answer that a condition names: column = constant, which `column` of a boolean is as well."""
        if not isinstance(condition, Call) or condition.function != "eq":
            return None
        column, value = condition.arguments
        if not isinstance(column, Column) or not isinstance(value, Literal) or column.field not in self.columns:
            return None
        return Asked(column.field, value, None) if value.value in _domain(self.columns[column.field]) else None

    def _answered(self, asked: Asked) -> Expr:
        """True of who answered with one of the column's values."""
        kind = asked.field.type
        items = tuple(Literal(value, kind) for value in _domain(self.columns[asked.field]))
        return InList(Column(asked.field), items)

    def _response(self, field: Field) -> RandomizedResponse:
        response = self.columns[field].collected_by
        if response is None:
            raise TypeError("only columns of randomized answers are listed")
        return response

    def _counts_units(self, call: AggregateCall) -> bool:
        return call.argument is not None and self.release.protected.is_unit(call.argument)

    def _used_in_arguments(self, call: AggregateCall) -> bool:
        return call.argument is not None and bool(self._used(call.argument))

    def _used_in_rest(self, asked: Asked) -> bool:
        return asked.rest is not None and bool(self._used(asked.rest))

    def _used(self, expression: Expr) -> frozenset[Field]:
        """The randomized answers that an expression looks at, those that its subqueries hand it included."""
        given = frozenset(relation.fields[0] for relation in relations_in(expression) if relation.fields)
        return (fields_in(expression) | given) & self.columns.keys()

    def _refuse(self, used: frozenset[Field]) -> None:
        if used:
            raise self._refusal(used, _HINT)

    def _refusal(self, used: frozenset[Field], hint: str) -> PolicyViolation:
        name = min(self.columns[field].name for field in used)
        return PolicyViolation(
            f'column "{name}" holds randomized answers, and this use of them cannot be debiased',
            hint=hint.format(name),
        )


_HINT = "COUNT(*) FILTER (WHERE {0} …), SELECT {0}, COUNT(*) … GROUP BY {0}, or AVG({0}::int) of a boolean"


def _randomized(relation: Relation) -> Mapping[Field, PolicyColumn]:
    if not isinstance(relation, UnitScan):
        return {}
    pairs = zip(relation.columns, relation.column_fields, strict=True)
    return {field: column for column, field in pairs if column.collected_by is not None}


def _domain(column: PolicyColumn) -> tuple[bool | int | str, ...]:
    values = column.values if column.values is not None else (True, False)
    return tuple(value for value in values if isinstance(value, bool | int | str))


def _counts_answers(call: AggregateCall) -> bool:
    """Who answered is not randomized."""
    return call.function == "count" and not call.distinct and isinstance(call.argument, Column) and call.filter is None


def _is(expression: Expr, value: int) -> bool:
    return isinstance(expression, Literal) and expression.value == value and not isinstance(expression.value, bool)


def debiased(
    output: ResponseEstimate | ResponseGroupEstimate, prefix: str, widths: Sequence[float] | None, keys: int
) -> Formula:
    """Return the SQL of a debiased estimate over the cells p0, p1 … of a release.

    The interval includes the noise and the randomness of the answers: if a value is true for t of N, the number
    of answers that name it is the sum of two binomials, of variance t·p(1 - p) + (N - t)·q(1 - q).

    Args:
        output: The estimate.
        prefix: The prefix of column names.
        widths: Half the width of a 95 % interval of each cell's noise; None for no limits.
        keys: The number of keys of the release.
    """
    p, q = output.response.truth, output.response.lie
    columns: dict[str, str] = {}

    def named(text: str) -> str:
        columns[f"{prefix}{len(columns)}"] = text
        return f"{prefix}{len(columns) - 1}"

    count = f"CAST(p{output.cell} AS DOUBLE)"
    total = named(_total(output, keys))
    several = named(f"greatest({total}, 1)")
    raw = named(f"({count} / {several} - {float(q)!r}) / {float(p - q)!r}")
    share = named(f"greatest(least({raw}, 1), 0)")
    answers = f"{several} * ({share} * {float(p * (1 - p))!r} + (1 - {share}) * {float(q * (1 - q))!r})"
    own = f"{NORMAL_95**2!r} * {answers}"
    if isinstance(output, ResponseEstimate) and output.is_share:
        limits = _limits_of_share(output, (count, total), named(own), (raw, share), widths)
        return Formula(f"CASE WHEN {total} > 0 THEN {share} END", limits, columns)
    value = named(f"({count} - {float(q)!r} * {total}) / {float(p - q)!r}")
    plain = f"k{output.key} IS NULL" if isinstance(output, ResponseGroupEstimate) else "false"
    low, high = NO_LIMITS
    if widths is not None:
        square, width = _squared(output, widths), widths[output.cell]
        margin = named(f"CASE WHEN {plain} THEN {width!r} ELSE sqrt({square!r} + {own}) / {float(abs(p - q))!r} END")
        low, high = (f"CASE WHEN {plain} THEN {count} ELSE {value} END {sign} {margin}" for sign in "-+")
    rounded = f"CAST(round(CASE WHEN {plain} THEN {count} ELSE {value} END) AS BIGINT)"
    return Formula(rounded, (low, high), columns)


def _total(output: ResponseEstimate | ResponseGroupEstimate, keys: int) -> str:
    """The number of answers; for a group, the sum over the groups that differ in the answer only."""
    if isinstance(output, ResponseEstimate):
        return f"CAST(p{output.total_cell} AS DOUBLE)"
    others = ", ".join(f"k{place}" for place in range(keys) if place != output.key)
    behind = f"PARTITION BY {others}" if others else ""
    return f"CAST(coalesce(sum(p{output.cell}) FILTER (WHERE k{output.key} IS NOT NULL) OVER ({behind}), 0) AS DOUBLE)"


def _squared(output: ResponseEstimate | ResponseGroupEstimate, widths: Sequence[float]) -> float:
    """The square of half the interval of c - q·N, of the noise of both."""
    q, of_count = output.response.lie, widths[output.cell]
    if isinstance(output, ResponseEstimate):
        return of_count**2 + float(q) ** 2 * widths[output.total_cell] ** 2
    weight: Fraction = (1 - q) ** 2 + (output.response.values - 1) * q**2
    return float(weight) * of_count**2


def _limits_of_share(
    output: ResponseEstimate,
    cells: tuple[str, str],
    own: str,
    shares: tuple[str, str],
    widths: Sequence[float] | None,
) -> tuple[str, str]:
    if widths is None:
        return NO_LIMITS
    p, q = output.response.truth, output.response.lie
    (count, total), of_total = cells, widths[output.total_cell]
    ends = fieller(count, total, f"({widths[output.cell] ** 2!r} + {own})", of_total)
    least, most = (f"({end} - {float(q)!r}) / {float(p - q)!r}" for end in (ends if p > q else reversed(ends)))
    low, high = (
        f"CASE WHEN {total} > {of_total!r} THEN greatest(least({text}, 1), 0) WHEN {total} > 0 THEN {end} END"
        for text, end in zip(moved_ends((least, most), *shares), ("0.0", "1.0"), strict=True)
    )
    return low, high
