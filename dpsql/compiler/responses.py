"""responses: columns collected through randomized response, and what may be asked of them.

Each answer is true with probability p, and else any other of the k values, all as likely. If a value is true of t among
N, then E[c] = p·t + q·(N - t) name it, with q = (1 - p)/(k - 1), so (c - q·N)/(p - q) is t but for noise (Warner 1965;
Kairouz, Bonawitz & Ramage 2016).

Rule 1: what is linear in a column's answers is debiased; whatever else is made of them is refused.
Rule 2: each unit gives one answer: of several, what bounding leaves would not be linear.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpsql.compiler.grids import carried
from dpsql.compiler.ir import (
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
from dpsql.compiler.outputs import CountOutput, GroupOutput, Output, ResponseOutput
from dpsql.compiler.part_list import PartList, both
from dpsql.compiler.parts import Part, PartKind
from dpsql.compiler.walk import conjuncts, expressions, fields_in, nodes, relations_in
from dpsql.errors import PolicyViolation
from dpsql.policy import Column as PolicyColumn
from dpsql.policy import RandomizedResponse
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Asked:
    """An answer that an aggregate asks for: rows whose `field` is `value`, and that pass the `rest` of a filter."""

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

    def check(self, *, private_keys: bool) -> None:
        """Refuse what is not linear in the answers.

        Raises:
            PolicyViolation: It is not.
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
        if used and (self.release.protected.max_rows > 1 or (private_keys and any(keys))):
            raise self._refusal(used, "max_rows = 1 in the policy, and public keys beside it: COUNT(*) … GROUP BY {0}")
        if sum(map(bool, keys)) > 1:
            raise self._refusal(used, "Group by one of them at a time.")

    def refuse_picks(self) -> None:
        """Refuse to pick groups by randomized answers: the likeliest answer need not be the likeliest truth.

        Raises:
            PolicyViolation: They would be.
        """
        parts = (*self.release.aggregate.keys, *(p for c in self.release.aggregate.aggregates for p in c.operands))
        self._refuse(frozenset[Field]().union(*map(self._used, parts)))

    def output(self, part_list: PartList, call: AggregateCall) -> Output:
        """The formula of an aggregate, debiased where it is made of randomized answers.

        Raises:
            PolicyViolation: It is not linear in them.
        """
        key = next((place for place, key in enumerate(self.release.aggregate.keys) if self._used(key)), None)
        used = frozenset[Field]().union(*map(self._used, call.operands))
        if key is not None:
            plain = call.function == "count" and not used and (not call.distinct or self._counts_units(call))
            (field,) = self._used(self.release.aggregate.keys[key])
            found = part_list.output(call)
            if not plain or not isinstance(found, CountOutput):
                raise self._refusal(frozenset({field}), "COUNT(*) alone, GROUP BY {0}")
            return GroupOutput(found.cell, key, self._response(field))
        if not used or _counts_answers(call):
            return part_list.output(call)
        asked = self._asked(call)
        if asked is None or self._used_in_rest(asked):
            raise self._refusal(used, _HINT)
        response, cap = self._response(asked.field), part_list.contribution.max_rows
        named = Call("eq", (Column(asked.field), asked.value), SqlType.BOOLEAN)
        cell = part_list.cell(Part(PartKind.COUNT, None, both(named, asked.rest), cap))
        total = part_list.cell(Part(PartKind.COUNT, None, both(self._answered(asked), asked.rest), cap))
        return ResponseOutput(cell, total, response, call.function == "avg")

    def _asked(self, call: AggregateCall) -> Asked | None:
        """The answer that an aggregate counts."""
        if call.function == "count" and call.filter is not None and (not call.distinct or self._counts_units(call)):
            terms = conjuncts(call.filter)
            named = [term for term in terms if self._used(term)]
            found = self._named(named[0]) if len(named) == 1 and not self._used_in_arguments(call) else None
            rest = [term for term in terms if term not in named]
            return found and replace(found, rest=_all(rest))
        if call.function not in ("sum", "avg") or call.distinct:
            return None
        argument = call.argument
        if isinstance(argument, Cast) and argument.type.is_integer and isinstance(argument.argument, Column):
            truth = Literal(True, SqlType.BOOLEAN)
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
            f'the answers in column "{name}" are randomized, and what is asked of them cannot be debiased',
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


def _all(terms: list[Expr]) -> Expr | None:
    found: Expr | None = None
    for term in terms:
        found = both(term, found)
    return found


def _is(expression: Expr, value: int) -> bool:
    return isinstance(expression, Literal) and expression.value == value and not isinstance(expression.value, bool)
