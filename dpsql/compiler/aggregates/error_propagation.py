"""error_propagation: the limits of an expression over noisy values, from the limits of these.

The expression is computed again with one value at a time at its limits; what it moves by adds up by squares, for the
noises are independent. That is exact for sums, and close to Fieller's interval for ratios (MOVER, Zou & Donner 2008;
Donner & Zou 2012).

Rule 1: only expressions that follow their values without a jump have limits; roundings may stand around them.
Rule 2: values that share noise move together: what they move the expression by adds up as it is.
Rule 3: where a divisor may be 0 there is no limit, and both are NULL.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from dpsql.compiler.ir.nodes import AggregateCall, Call, Case, Cast, Column, Expr, Field, Literal, Scalar
from dpsql.sqltypes import SqlType

Source = tuple[Field, AggregateCall]
"""An aggregate of a release: its field and what it is."""

_SMOOTH = frozenset({"add", "subtract", "multiply", "divide", "negate", "abs", "sqrt", "cbrt", "exp", "ln", "log10"})
_WHOLE = {"int_add": "add", "int_subtract": "subtract", "int_multiply": "multiply", "int_negate": "negate"}
_ROUNDINGS = frozenset({"floor", "ceil", "trunc", "round", "round_digits", "trunc_digits"})
_ZERO = Literal(0, SqlType.DOUBLE)


@dataclass(frozen=True)
class Limits:
    """The limits of a noisy value, and the aggregates whose noise is in it."""

    low: Expr
    high: Expr
    sources: frozenset[Source]

    def shares(self, other: "Limits") -> bool:
        """Whether some noise may be in both."""
        return any(_share(one, two) for one in self.sources for two in other.sources)


@dataclass(frozen=True)
class Rounded:
    """An expression in two: roundings, which never put values out of order, and what is rounded."""

    around: Callable[[Expr], Expr]
    inner: Expr


def rounded(expression: Expr) -> Rounded:
    """Take the roundings off an expression."""
    if isinstance(expression, Cast) and expression.type.is_number and expression.argument.type.is_number:
        outer, kind, scale = rounded(expression.argument), expression.type, expression.scale
        return Rounded(lambda value: Cast(outer.around(value), kind, scale), outer.inner)
    if isinstance(expression, Call) and expression.function in _ROUNDINGS:
        first, *digits = expression.arguments
        outer, call = rounded(first), expression
        return Rounded(lambda value: Call(call.function, (outer.around(value), *digits), call.type), outer.inner)
    if isinstance(expression, Call) and expression.function == "int_divide":
        quotient = Call("divide", expression.arguments, SqlType.DOUBLE)
        return Rounded(lambda value: Call("trunc", (value,), SqlType.DOUBLE), quotient)
    return Rounded(lambda value: value, expression)


def smooth(expression: Expr) -> Expr | None:
    """The expression as one of doubles, without guards of what is NULL anyway; None where it may jump."""
    match expression:
        case Column() | Literal() | Scalar():
            return Cast(expression, SqlType.DOUBLE) if expression.type.is_number else None
        case Cast():
            plain = expression.scale is None and not expression.type.is_integer
            widened = expression.type.is_integer and expression.argument.type.is_integer
            return smooth(expression.argument) if expression.type.is_number and (plain or widened) else None
        case Case():
            values = [value for _, value in expression.branches] + [expression.default]
            told = [value for value in values if not (isinstance(value, Literal) and value.value is None)]
            return smooth(told[0]) if len(told) == 1 else None
        case Call(function="nullif" | "coalesce"):
            return smooth(expression.arguments[0])
        case Call():
            name = _WHOLE.get(expression.function, expression.function)
            parts = [smooth(part) for part in expression.arguments]
            known = tuple(part for part in parts if part is not None)
            is_smooth = name in _SMOOTH and len(known) == len(parts)
            return Call(name, known, SqlType.DOUBLE) if is_smooth else None
        case _:
            return None


def parts(expression: Expr) -> tuple[Column | Scalar, ...]:
    """The values that a smooth expression is made of, each once."""
    return tuple(dict.fromkeys(_parts(expression)))


def _parts(expression: Expr) -> Iterator[Column | Scalar]:
    if isinstance(expression, Column | Scalar):
        yield expression
    elif isinstance(expression, Cast):
        yield from _parts(expression.argument)
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from _parts(argument)


@dataclass(frozen=True)
class Shifts:
    """A smooth expression of noisy values, computed anew with each of them at its limits.

    Attributes:
        expression: The expression.
        known: The limits of its noisy values; the others are exact.
    """

    expression: Expr
    known: Mapping[Expr, Limits]

    @property
    def computed(self) -> tuple[Expr, ...]:
        """What has to be computed: the expression, then for each noisy value the same at its low and high limit."""
        return (self.expression, *(self._at(part, end) for part in self.known for end in self._ends(part)))

    def limits(self, fields: Sequence[Field]) -> tuple[Expr, Expr]:
        """The limits, of fields that hold what was computed."""
        value, *moved = map(Column, fields)
        pairs = dict(zip(self.known, zip(moved[::2], moved[1::2], strict=True), strict=True))
        # GREATEST passes over NULL, which is what tells that there is no limit.
        told = (_not(Call("is_null", (_sum([value, *moved]),), SqlType.BOOLEAN)), *self._divisors)
        low = _double("subtract", value, self._reach(pairs, lambda end: _double("subtract", value, end)))
        high = _double("add", value, self._reach(pairs, lambda end: _double("subtract", end, value)))
        nothing = Literal(None, SqlType.DOUBLE)
        condition = reduce(lambda left, right: Call("and", (left, right), SqlType.BOOLEAN), told)
        return Case(((condition, low),), nothing, SqlType.DOUBLE), Case(((condition, high),), nothing, SqlType.DOUBLE)

    def _reach(self, pairs: Mapping[Expr, tuple[Column, Column]], distance: Callable[[Expr], Expr]) -> Expr:
        squares = []
        for group in self._groups():
            moves = [Call("greatest", (*map(distance, pairs[part]), _ZERO), SqlType.DOUBLE) for part in group]
            squares.append(Call("power", (_sum(moves), Literal(2, SqlType.DOUBLE)), SqlType.DOUBLE))
        return Call("sqrt", (_sum(squares),), SqlType.DOUBLE)

    def _groups(self) -> list[list[Expr]]:
        """The noisy values, those together that share noise."""
        groups: list[list[Expr]] = []
        for part, limits in self.known.items():
            near = [group for group in groups if any(limits.shares(self.known[other]) for other in group)]
            groups = [group for group in groups if group not in near]
            groups.append([*(other for group in near for other in group), part])
        return groups

    @property
    def _divisors(self) -> tuple[Expr, ...]:
        """Conditions under which no noisy divisor may be 0."""
        found = []
        for divisor in dict.fromkeys(_divisors(self.expression)):
            for part in parts(divisor):
                if part in self.known:
                    low, high = (self._at(part, end, divisor) for end in self._ends(part))
                    found.append(Call("gt", (_double("multiply", low, high), _ZERO), SqlType.BOOLEAN))
        return tuple(found)

    def _ends(self, part: Expr) -> tuple[Expr, Expr]:
        return self.known[part].low, self.known[part].high

    def _at(self, part: Expr, end: Expr, expression: Expr | None = None) -> Expr:
        """The expression with a value at one of its limits."""
        return _replaced(self.expression if expression is None else expression, part, end)


def _replaced(expression: Expr, part: Expr, end: Expr) -> Expr:
    if expression == part:
        return end
    if isinstance(expression, Cast):
        return Cast(_replaced(expression.argument, part, end), expression.type)
    if isinstance(expression, Call):
        found = tuple(_replaced(argument, part, end) for argument in expression.arguments)
        return Call(expression.function, found, expression.type)
    return expression


def _divisors(expression: Expr) -> Iterator[Expr]:
    if isinstance(expression, Cast):
        yield from _divisors(expression.argument)
    if isinstance(expression, Call):
        if expression.function == "divide":
            yield expression.arguments[1]
        for argument in expression.arguments:
            yield from _divisors(argument)


def _share(one: Source, two: Source) -> bool:
    """Whether two aggregates may be made of the same noisy cell: a count, or the sum of the same numbers."""
    if one[0] == two[0]:
        return True
    first, second = one[1], two[1]
    numbers = {first.argument, first.other} & {second.argument, second.other}
    return first.filter == second.filter and bool(numbers - {None}) and {first.function, second.function} != {"sum"}


def _sum(terms: Sequence[Expr]) -> Expr:
    return reduce(lambda left, right: _double("add", left, right), terms)


def _double(function: str, left: Expr, right: Expr) -> Call:
    return Call(function, (left, right), SqlType.DOUBLE)


def _not(condition: Expr) -> Call:
    return Call("not", (condition,), SqlType.BOOLEAN)
