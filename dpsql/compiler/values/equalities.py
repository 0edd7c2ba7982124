"""equalities: what the conditions of a query make equal: fields of public rows, and lists of constants.

Rule: only where equal values have one spelling, so that one may be shown for the other.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from dpsql.compiler.ir.nodes import Call, Cast, Column, Expr, Field, InList, Literal, Value
from dpsql.compiler.ir.walk import fields_in, rewrite_expression
from dpsql.compiler.values.lineage import Origin, is_plain, substitute
from dpsql.compiler.values.sources import Source
from dpsql.sqltypes import SqlType

MAX_EQUATIONS = 64
"""Equations that are used, each of which goes once through all keys and conditions."""

MAX_CONDITIONS = 2_000
"""Conditions, those included that follow from others."""

_EXACT = frozenset(
    {
        *(SqlType.BOOLEAN, SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT, SqlType.TEXT, SqlType.VARCHAR),
        *(SqlType.CHAR, SqlType.DATE, SqlType.TIME, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ, SqlType.UUID),
    }
)


def equation(condition: Expr) -> tuple[Expr, Expr] | None:
    """The two sides that a condition says are equal, where they then look alike."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    left, right = condition.arguments
    return (left, right) if left.type in _EXACT and left.type is right.type else None


def constants(condition: Expr) -> tuple[Expr, tuple[Literal, ...]] | None:
    """An expression, and the constants that a condition says it is among."""
    if isinstance(condition, InList):
        argument, items = condition.argument, condition.items
        fits = argument.type in _EXACT and all(item.type is argument.type for item in items)
        return (argument, items) if fits else None
    for one, other in _both_ways(equation(condition)):
        if isinstance(other, Literal):
            return one, (other,)
    return None


def compared(condition: Expr) -> tuple[str, Field, tuple[Value, ...]] | None:
    """A comparison, between included, of a column with constants, as if the column stood at its left."""
    if not isinstance(condition, Call) or condition.function not in (*_MIRRORED, "between"):
        return None
    function, (subject, *others) = condition.function, (bare(argument)[0] for argument in condition.arguments)
    if function in _MIRRORED and isinstance(subject, Literal):
        function, subject, others = _MIRRORED[function], others[0], [subject]
    literals = [other for other in others if isinstance(other, Literal)]
    if not isinstance(subject, Column) or len(literals) < len(others):
        return None
    return function, subject.field, tuple(literal.value for literal in literals)


_MIRRORED = {"eq": "eq", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def bare(expression: Expr) -> tuple[Expr, tuple[SqlType, ...]]:
    """An expression without conversions that keep values apart, and the types to convert back to, in order."""
    types: list[SqlType] = []
    while isinstance(expression, Cast) and _keeps_values(expression.argument.type, expression.type):
        expression = expression.argument
        types.append(expression.type)
    return expression, tuple(types)


def converted(expression: Expr, types: Iterable[SqlType]) -> Expr:
    """What equals a converted expression, converted back."""
    for sql_type in types:
        expression = expression if expression.type is sql_type else Cast(expression, sql_type)
    return expression


def _keeps_values(source: SqlType, target: SqlType) -> bool:
    same_kind = (source.is_integer and target.is_integer) or (source.is_text and target.is_text)
    return same_kind or (source is SqlType.DATE and target is SqlType.TIMESTAMP)


def with_public_equals(origin: Origin, is_known: Callable[[Expr], bool]) -> Origin:
    """Put what is listed in place of what is not, wherever every row has both equal.

    Args:
        origin: Keys, conditions and facts.
        is_known: Tells whether the values of all fields of an expression are listed.
    """
    for _ in range(MAX_EQUATIONS):
        pairs = [pair for pair in (_replacement(fact, is_known) for fact in origin.facts) if pair is not None]
        if not pairs:
            break
        # Columns first: what else is said of an expression of them then still ties what they are replaced by.
        origin = _rewritten(origin, *next((pair for pair in pairs if isinstance(pair[0], Column)), pairs[0]))
    return origin


def _replacement(fact: Expr, is_known: Callable[[Expr], bool]) -> tuple[Expr, Expr] | None:
    for one, other in _both_ways(equation(fact)):
        if is_plain(one) and not is_known(one) and fields_in(other) and is_known(other):
            target, types = bare(one)
            return target, converted(other, types)
    return None


def _both_ways(pair: tuple[Expr, Expr] | None) -> tuple[tuple[Expr, Expr], ...]:
    return (pair, pair[::-1]) if pair is not None else ()


def _rewritten(origin: Origin, target: Expr, other: Expr) -> Origin:
    def again(expression: Expr) -> Expr:
        return rewrite_expression(expression, lambda part: other if part == target else None)

    sources = tuple(
        replace(source, condition=again(source.condition))
        if isinstance(source, Source) and source.condition is not None
        else source
        for source in origin.sources
    )
    keys, conditions, beneath, facts = (
        tuple(map(again, part)) for part in (origin.keys, origin.conditions, origin.beneath, origin.facts)
    )
    return replace(origin, keys=keys, conditions=conditions, beneath=beneath, facts=facts, sources=sources)


def propagated(conditions: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Conditions, and what those on one column say of columns that others equate with it."""
    equals: dict[Field, frozenset[Field]] = {}
    for left, right in filter(None, map(_equal_columns, conditions)):
        together = frozenset({left, right}) | equals.get(left, frozenset()) | equals.get(right, frozenset())
        equals |= dict.fromkeys(together, together)
    found = dict.fromkeys(conditions)
    for condition in conditions:
        fields = list(fields_in(condition))
        for other in sorted(equals.get(fields[0], ()), key=_number) if len(fields) == 1 else ():
            if len(found) < MAX_CONDITIONS:
                found[substitute(condition, {fields[0]: converted(Column(other), (fields[0].type,))})] = None
    return tuple(found)


def _number(each: Field) -> int:
    return each.number


def _equal_columns(condition: Expr) -> tuple[Field, Field] | None:
    sides = equation(condition)
    left, right = (bare(side)[0] for side in sides) if sides is not None else (None, None)
    return (left.field, right.field) if isinstance(left, Column) and isinstance(right, Column) else None
