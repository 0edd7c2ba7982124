"""expressions: one expression for all the ways of writing it.

Rule 1: a rewritten expression has the same value in every row, including NULL, overflow and rounding. Operands of sums
and products may be exchanged, but never regrouped.
Rule 2: operands whose order does not matter are sorted by their labels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.compiler.ir.conditions import FALSE, TRUE, conjuncts, negated
from dpsql.compiler.ir.nodes import (
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    Exists,
    Expr,
    Field,
    InList,
    InRelation,
    Literal,
    Order,
    Relation,
    Scalar,
    Window,
)
from dpsql.compiler.ir.walk import Labels
from dpsql.compiler.sql.constant_folding import compared, computed, converted, narrowed, spelled, tested
from dpsql.sqltypes import SqlType

_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
"""Each comparison, and the one that is true where it is false: values are in one order, and NaN is none of them."""
_OF_ITSELF = {"lt": "ne", "gt": "ne", "le": "eq", "ge": "eq"}
"""What comparing a value with itself says, in one word: never, or always, but for NULL."""
_EITHER_WAY = frozenset(
    {"add", "multiply", "int_add", "int_multiply", "bit_and", "bit_or", "bit_xor", "gcd", "lcm", "distinct_from"}
)
"""Functions of two arguments whose order does not matter, to the last bit."""

Subquery = Callable[[Relation, frozenset[Field]], Relation]
"""Puts a subquery into its one form, with just these fields as its columns."""


def as_it_is(relation: Relation, _columns: frozenset[Field]) -> Relation:
    """A subquery that is in its one form already."""
    return relation


@dataclass(frozen=True)
class CanonicalSpelling:
    """Writes expressions.

    Attributes:
        labels: The labels that determine the order.
        written: The expression of each field, in its canonical spelling.
        subquery: Writes the subqueries of expressions.
    """

    labels: Labels
    written: Mapping[Field, Expr]
    subquery: Subquery

    def value(self, expression: Expr) -> Expr:
        """An expression in its one spelling."""
        match expression:
            case Column():
                return self.written.get(expression.field, expression)
            case Literal():
                return spelled(expression)
            case Cast():
                return converted(replace(expression, argument=self.value(expression.argument)))
            case Case():
                return self._case(expression)
            case InList():
                return self._listed(self.value(expression.argument), expression.items)
            case Exists():
                return Exists(self.subquery(expression.relation, frozenset()))
            case InRelation():
                relation = self.subquery(expression.relation, frozenset(expression.relation.fields))
                return InRelation(self.value(expression.argument), relation)
            case Scalar():
                relation = self.subquery(expression.relation, frozenset(expression.relation.fields))
                return replace(expression, relation=relation)
            case Window():
                return self.window(expression)
            case _:
                return self._call(expression)

    def truth(self, condition: Expr) -> Expr:
        """A condition as a truth value: a BOOLEAN column is compared with TRUE, which shows its values."""
        return _compared_with_true(self.value(condition))

    def together(self, terms: Iterable[Expr]) -> tuple[Expr, ...]:
        """The terms that are true where all of some terms, each in its one spelling, are."""
        whole = _compared_with_true(self._connected("and", list(terms)))
        return () if _is_constant(whole, True) else conjuncts(whole)

    def call(self, call: AggregateCall) -> AggregateCall:
        """An aggregate call; COUNT of an expression that is never NULL counts rows."""
        argument = self.value(call.argument) if call.argument is not None else None
        if call.function == "count" and not call.distinct and isinstance(argument, Literal):
            argument = argument if argument.value is None else None
        condition = self.truth(call.filter) if call.filter is not None else None
        condition = None if condition is not None and _is_constant(condition, True) else condition
        distinct = call.distinct and call.function not in ("min", "max")
        other = self.value(call.other) if call.other is not None else None
        order = self.order(call.order)
        return replace(call, argument=argument, other=other, filter=condition, distinct=distinct, order=order)

    def window(self, window: Window) -> Window:
        """A window function."""
        return replace(
            window,
            arguments=tuple(map(self.value, window.arguments)),
            partition=self._sorted(dict.fromkeys(map(self.value, window.partition))),
            order=self.order(window.order),
        )

    def order(self, terms: Sequence[Order]) -> tuple[Order, ...]:
        """ORDER BY terms; one that comes again decides nothing."""
        found: dict[Expr, Order] = {}
        for term in terms:
            expression = self.value(term.expression)
            found.setdefault(expression, replace(term, expression=expression))
        return tuple(found.values())

    def _sorted(self, expressions: Iterable[Expr]) -> tuple[Expr, ...]:
        """By labels, constants last."""
        return tuple(sorted(expressions, key=self._place))

    def _place(self, expression: Expr) -> tuple[bool, str]:
        return isinstance(expression, Literal), self.labels.of(expression)

    # Calls

    def _call(self, call: Call) -> Expr:
        name = call.function
        if name in ("and", "or"):
            return self._connected(name, list(map(self.value, call.arguments)))
        arguments = tuple(map(self.value, call.arguments))
        if name == "not":
            return self._negated(arguments[0])
        if name == "between":
            subject, low, high = arguments
            return self._connected("and", [self._compared("ge", subject, low), self._compared("le", subject, high)])
        if name in _MIRRORED:
            return self._compared(name, *arguments)
        if name in _EITHER_WAY:
            arguments = self._sorted(arguments)
        if name == "coalesce":
            return _coalesced(replace(call, arguments=arguments))
        if name in ("is_null", "is_true", "is_false"):
            return tested(replace(call, arguments=arguments))
        if name in ("least", "greatest"):
            return self._chosen(replace(call, arguments=arguments))
        return computed(replace(call, arguments=arguments))

    def _chosen(self, call: Call) -> Expr:
        """LEAST or GREATEST: NULLs are dropped and equal values are merged; values except intervals are sorted."""
        parts = [part for part in _flat(call) if not _is_null(part)] or [Literal(None, call.type)]
        distinct = tuple(dict.fromkeys(parts))
        if call.type is not SqlType.INTERVAL:
            distinct = self._sorted(distinct)
        return replace(call, arguments=distinct) if len(distinct) > 1 else distinct[0]

    def _case(self, case: Case) -> Expr:
        branches: list[tuple[Expr, Expr]] = []
        default = case.default
        for condition, value in case.branches:
            condition = self.truth(condition)
            if _is_constant(condition, True):
                default = value
                break
            if not _is_constant(condition, False) and not _is_null(condition):
                branches.append((condition, self.value(value)))
        otherwise = self.value(default)
        return replace(case, branches=tuple(branches), default=otherwise) if branches else otherwise

    # Conditions

    def _compared(self, function: str, left: Expr, right: Expr) -> Expr:
        constant = compared(function, left, right) if isinstance(left, Literal) and isinstance(right, Literal) else None
        if constant is not None:
            return constant
        if left == right:
            function = _OF_ITSELF.get(function, function)
        if self._place(right) < self._place(left):
            function, left, right = _MIRRORED[function], right, left
        if isinstance(right, Literal):
            left, (right,) = narrowed(left, (right,))
            if isinstance(right.value, bool) and function in ("eq", "ne"):
                return left if right.value == (function == "eq") else self._negated(left)
        return Call(function, (left, right), SqlType.BOOLEAN)

    def _listed(self, argument: Expr, items: Iterable[Literal]) -> Expr:
        """IN, of constants in the order of their labels."""
        if _is_null(argument):
            return Literal(None, SqlType.BOOLEAN)
        argument, found = narrowed(argument, tuple(map(spelled, items)))
        distinct = [item for item in self._sorted(dict.fromkeys(found)) if isinstance(item, Literal)]
        return InList(argument, tuple(distinct)) if len(distinct) > 1 else self._compared("eq", argument, distinct[0])

    def _negated(self, condition: Expr) -> Expr:
        if isinstance(condition, Column):
            return Call("eq", (condition, FALSE), SqlType.BOOLEAN)
        if isinstance(condition, Literal) and isinstance(condition.value, bool):
            return replace(condition, value=not condition.value)
        if not isinstance(condition, Call):
            return condition if _is_null(condition) else negated(condition)
        if condition.function == "not":
            return condition.arguments[0]
        if condition.function in ("and", "or"):
            other = "or" if condition.function == "and" else "and"
            return self._connected(other, list(map(self._negated, condition.arguments)))
        if condition.function in _OPPOSITE:
            return self._compared(_OPPOSITE[condition.function], *condition.arguments)
        return negated(condition)

    def _connected(self, name: str, terms: list[Expr]) -> Expr:
        """AND or OR of terms that each have their one spelling."""
        absorbing = name == "or"
        flat = [_compared_with_true(part) for term in terms for part in _parts(term, name)]
        if any(_is_constant(term, absorbing) for term in flat):
            return Literal(absorbing, SqlType.BOOLEAN)
        kept = dict.fromkeys(term for term in flat if not _is_constant(term, not absorbing))
        ordered = self._sorted(self._with_lists(name, kept))
        if len(ordered) > 1:
            return Call(name, ordered, SqlType.BOOLEAN)
        return self._alone(ordered[0]) if ordered else Literal(not absorbing, SqlType.BOOLEAN)

    def _alone(self, term: Expr) -> Expr:
        """The only term of a condition as a value: a column is itself again."""
        is_equation = isinstance(term, Call) and term.function == "eq"
        return self._compared("eq", *term.arguments) if isinstance(term, Call) and is_equation else term

    def _with_lists(self, name: str, terms: Iterable[Expr]) -> list[Expr]:
        """X = 1 OR x IN (2, 3) as one list, and x <> 1 AND x NOT IN (2, 3) as one negated list."""
        lists: dict[Expr, list[Literal]] = {}
        rest: list[Expr] = []
        for term in terms:
            found = _list_of(term, negated=name == "and")
            if found is not None:
                lists.setdefault(found[0], []).extend(found[1])
            else:
                rest.append(term)
        for argument, items in lists.items():
            among = _compared_with_true(self._listed(argument, items))
            rest.append(self._negated(among) if name == "and" else among)
        return rest


def _compared_with_true(condition: Expr) -> Expr:
    if not isinstance(condition, Column):
        return condition
    return Call("eq", (condition, TRUE), SqlType.BOOLEAN)


def _list_of(term: Expr, *, negated: bool) -> tuple[Expr, tuple[Literal, ...]] | None:
    """The expression and the constants that a condition compares it with; with `negated`, those that it excludes."""
    if isinstance(term, Call) and term.function == ("ne" if negated else "eq"):
        argument, constant = term.arguments
        return (argument, (constant,)) if isinstance(constant, Literal) else None
    if negated:
        is_not = isinstance(term, Call) and term.function == "not"
        term = term.arguments[0] if isinstance(term, Call) and is_not else Literal(None, SqlType.BOOLEAN)
    return (term.argument, term.items) if isinstance(term, InList) else None


def _parts(term: Expr, name: str) -> tuple[Expr, ...]:
    return term.arguments if isinstance(term, Call) and term.function == name else (term,)


def _flat(call: Call) -> list[Expr]:
    """The arguments of a call, those of calls of the same function among them in their place."""
    return [each for part in call.arguments for each in _parts(part, call.function)]


def _coalesced(call: Call) -> Expr:
    """COALESCE up to the first constant that is not NULL."""
    found: dict[Expr, None] = {}
    for part in _flat(call):
        if _is_null(part):
            continue
        found[part] = None
        if isinstance(part, Literal):
            break
    parts = tuple(found) or (Literal(None, call.type),)
    return replace(call, arguments=parts) if len(parts) > 1 else parts[0]


def _is_null(expression: Expr) -> bool:
    return isinstance(expression, Literal) and expression.value is None and expression.parameter is None


def _is_constant(expression: Expr, value: bool) -> bool:
    return isinstance(expression, Literal) and expression.value is value
