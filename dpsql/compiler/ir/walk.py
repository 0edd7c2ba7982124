"""walk: visits and rebuilds the parts of expressions and relations, and labels that order them.

Rule: labels depend neither on field numbers nor on aliases, and only determine an order. Parts with equal labels stay
in the order of the query: this can only miss a reuse, never cause a wrong one.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dpsql.compiler.ir.nodes import (
    COMPUTED_SCALE,
    Aggregate,
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Exists,
    Expr,
    Field,
    Filter,
    InList,
    InRelation,
    Join,
    Literal,
    Order,
    Project,
    Relation,
    Release,
    Scalar,
    Scan,
    Series,
    SetOperation,
    Sort,
    SystemScan,
    UnitScan,
    UnitWindows,
    Unnest,
    Values,
    Window,
)
from dpsql.sqltypes import SqlType

_OF_RELATIONS = (Exists, InRelation, Scalar)
_WITHOUT_INPUTS = (Release, Scan, UnitScan, SystemScan, Values, Series, Unnest)


def in_double(expression: Expr) -> Expr:
    """The DOUBLE PRECISION value beneath a rounding to NUMERIC, for computations that continue in double precision."""
    return expression.argument if isinstance(expression, Cast) and expression.is_computed else expression


def is_nearest(double: Expr) -> bool:
    """True where a number in double precision is the nearest to one of another type, without errors of arithmetic."""
    match double:
        case Cast():
            return double.argument.type is not SqlType.DOUBLE
        case Call(function="coalesce" | "greatest" | "least" | "nullif"):
            return all(map(is_nearest, double.arguments))
        case Case():
            return all(is_nearest(value) for value in (*(value for _, value in double.branches), double.default))
        case _:
            return isinstance(double, Literal)


def as_numeric(computed: Expr) -> Expr:
    """A number in double precision as the numeric that PostgreSQL would have computed."""
    return Cast(computed, SqlType.NUMERIC, COMPUTED_SCALE)


def inputs(relation: Relation) -> tuple[Relation, ...]:
    """The relations that `relation` is made of, subqueries included, without going through a release boundary."""
    if isinstance(relation, _WITHOUT_INPUTS):
        return ()
    beneath = (part for expression in expressions(relation) for part in relations_in(expression))
    if isinstance(relation, Join | SetOperation):
        return (relation.left, relation.right, *beneath)
    return (relation.input, *beneath)


def nodes(relation: Relation) -> Iterator[Relation]:
    """A relation and all that it is made of, subqueries included, on this side of its releases."""
    yield relation
    for part in inputs(relation):
        yield from nodes(part)


def min_units(relation: Relation) -> int:
    """The least units of a group that is shown, by the policy of the tables that a relation reads; 1 for any."""
    return max((node.table.min_units for node in nodes(relation) if isinstance(node, UnitScan)), default=1)


def expressions(relation: Relation) -> tuple[Expr, ...]:
    """The expressions of a relation itself, without those of its inputs."""
    match relation:
        case Filter():
            return (relation.condition,)
        case Project():
            return relation.expressions
        case Aggregate():
            calls = [part for call in relation.aggregates for part in call.operands]
            return (*relation.keys, *calls)
        case UnitWindows():
            return relation.windows
        case Join():
            return (relation.condition,) if relation.condition is not None else ()
        case Sort():
            return tuple(term.expression for term in relation.order)
        case Unnest():
            return relation.arrays
        case _:
            return ()


def operands(expression: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside `expression`."""
    match expression:
        case Call():
            return expression.arguments
        case Column() | Literal() | Exists() | Scalar():
            return ()
        case Cast() | InRelation():
            return (expression.argument,)
        case InList():
            return (expression.argument, *expression.items)
        case Case():
            return (*(part for branch in expression.branches for part in branch), expression.default)
        case _:
            orders = tuple(term.expression for term in expression.order)
            return expression.arguments + expression.partition + orders


def relations_in(expression: Expr) -> tuple[Relation, ...]:
    """The subqueries in an expression."""
    if isinstance(expression, Column):
        return ()
    found, pending = list[Relation](), list[Expr]([expression])
    while pending:
        part = pending.pop()
        pending += operands(part)
        if isinstance(part, _OF_RELATIONS):
            found.append(part.relation)
    return tuple(reversed(found))


def scalars_in(expression: Expr) -> tuple[Relation, ...]:
    """The scalar subqueries in an expression."""
    inner = tuple(relation for part in operands(expression) for relation in scalars_in(part))
    return (*inner, expression.relation) if isinstance(expression, Scalar) else inner


def fields_in(expression: Expr) -> frozenset[Field]:
    """The fields that `expression` refers to, those that its subqueries take from outside included."""
    if isinstance(expression, Column):
        return frozenset((expression.field,))
    found, pending = set[Field](), list[Expr]([expression])
    while pending:
        part = pending.pop()
        if isinstance(part, Column):
            found.add(part.field)
        elif isinstance(part, InList):  # its items are constants, and may be thousands
            pending.append(part.argument)
        else:
            pending += operands(part)
            if isinstance(part, _OF_RELATIONS):
                found |= free_fields(part.relation)
    return frozenset(found)


def free_fields(relation: Relation) -> frozenset[Field]:
    """The fields that a relation refers to and does not itself have: those of the row outside a subquery."""
    if isinstance(relation, Release):
        return free_fields(relation.aggregate)
    match relation:
        case Scan() | UnitScan() | SystemScan() | Values() | Series():
            return frozenset()
        case Unnest():
            return frozenset[Field]().union(*map(fields_in, relation.arrays))
        case Join() | SetOperation():
            below: tuple[Relation, ...] = (relation.left, relation.right)
        case _:
            below = (relation.input,)
    own = frozenset(field for part in below for field in part.fields)
    used = frozenset[Field]().union(*(fields_in(expression) for expression in expressions(relation)))
    free = frozenset[Field]().union(*(free_fields(part) for part in below))
    # The right side of a join may be LATERAL, and refer to the left one.
    return (used | free) - own


def windows_in(expression: Expr) -> tuple[Window, ...]:
    """The window functions in an expression."""
    if isinstance(expression, Window):
        return (expression,)
    return tuple(window for part in operands(expression) for window in windows_in(part))


def calls_in(expression: Expr) -> Iterator[Call]:
    """The calls in an expression, each once."""
    pending, seen = [expression], set[int]()
    while pending:
        part = pending.pop()
        if id(part) not in seen:
            seen.add(id(part))
            pending += operands(part) if not isinstance(part, InList) else (part.argument,)
            if isinstance(part, Call):
                yield part


def rewrite_expression(expression: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expression` from the top, subqueries included, with the replacements that `change` returns."""
    changed = change(expression)
    if changed is not None:
        return changed

    def again(part: Expr) -> Expr:
        return rewrite_expression(part, change)

    match expression:
        case Column() | Literal():
            return expression
        case Call():
            return replace(expression, arguments=tuple(map(again, expression.arguments)))
        case Cast() | InList():
            return replace(expression, argument=again(expression.argument))
        case Case():
            branches = tuple((again(condition), again(value)) for condition, value in expression.branches)
            return replace(expression, branches=branches, default=again(expression.default))
        case Exists() | Scalar():
            return replace(expression, relation=rewrite_relation(expression.relation, change))
        case InRelation():
            relation = rewrite_relation(expression.relation, change)
            return replace(expression, argument=again(expression.argument), relation=relation)
        case _:
            return replace(
                expression,
                arguments=tuple(map(again, expression.arguments)),
                partition=tuple(map(again, expression.partition)),
                order=tuple(replace(term, expression=again(term.expression)) for term in expression.order),
            )


def rewrite_relation(relation: Relation, change: Callable[[Expr], Expr | None]) -> Relation:
    """Rebuild a relation with every expression in it rewritten, but not inside release boundaries."""

    def again(expression: Expr) -> Expr:
        return rewrite_expression(expression, change)

    match relation:
        case Scan() | UnitScan() | SystemScan() | Values() | Series() | Release():
            return relation
        case Unnest():
            return replace(relation, arrays=tuple(map(again, relation.arrays)))
        case SetOperation():
            left, right = rewrite_relation(relation.left, change), rewrite_relation(relation.right, change)
            return replace(relation, left=left, right=right)
        case Join():
            left, right = rewrite_relation(relation.left, change), rewrite_relation(relation.right, change)
            condition = again(relation.condition) if relation.condition is not None else None
            return replace(relation, left=left, right=right, condition=condition)
    below = rewrite_relation(relation.input, change)
    match relation:
        case Filter():
            return Filter(below, again(relation.condition))
        case Project():
            return replace(relation, input=below, expressions=tuple(map(again, relation.expressions)))
        case Aggregate():
            calls = tuple(
                replace(
                    call,
                    argument=again(call.argument) if call.argument is not None else None,
                    filter=again(call.filter) if call.filter is not None else None,
                    other=again(call.other) if call.other is not None else None,
                    order=tuple(replace(term, expression=again(term.expression)) for term in call.order),
                )
                for call in relation.aggregates
            )
            return replace(relation, input=below, keys=tuple(map(again, relation.keys)), aggregates=calls)
        case UnitWindows():
            windows = tuple(window for window in map(again, relation.windows) if isinstance(window, Window))
            return replace(relation, input=below, windows=windows)
        case Sort():
            order = tuple(replace(term, expression=again(term.expression)) for term in relation.order)
            return replace(relation, input=below, order=order)
        case _:
            return Distinct(below)


class Sizes:
    """The sizes of expressions when they are written out: a part that is used several times counts each time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Expr, int]] = {}

    def of(self, expression: Expr) -> int:
        """The number of an expression's parts, itself among them; each is counted once, and then known."""
        known = self._known.get(id(expression))
        if known is None:
            # The constants of a list count as one.
            parts = (expression.argument,) if isinstance(expression, InList) else operands(expression)
            # Kept with its size, lest another one take its place in memory.
            known = self._known[id(expression)] = expression, 1 + sum(map(self.of, parts))
        return known[1]


MAX_LABEL = 80
"""Characters of a field's label; what is longer is told by its digest."""


@dataclass
class Labels:
    """The label of each field, by where its values come from."""

    fields: dict[Field, str] = field(default_factory=dict)

    def give(self, new: Field, label: str) -> None:
        """Give a field its label."""
        is_long = len(label) > MAX_LABEL
        self.fields[new] = hashlib.blake2b(label.encode(), digest_size=16).hexdigest() if is_long else label

    def mark(self, fields: Iterable[Field], mark: str) -> None:
        """Give fields with equal labels of another relation other labels."""
        for each in fields:
            self.give(each, f"{self.fields[each]}#{mark}")

    def marked(self, marks: Iterable[tuple[Field, str]]) -> "Labels":
        """The same labels, with marks behind those of some fields."""
        changed = Labels(dict(self.fields))
        for each, mark in marks:
            changed.give(each, f"{self.fields[each]}#{mark}")
        return changed

    # Expressions

    def of(self, expression: Expr) -> str:
        """The label of an expression."""
        match expression:
            case Column():
                return self.fields[expression.field]
            case Literal():
                return f"{expression.value!r}::{expression.type.value}"
            case Call():
                return f"{expression.function}({self._each(expression.arguments)})"
            case Cast():
                return f"cast({self.of(expression.argument)}, {expression.type.value}, {expression.scale})"
            case Case():
                branches = (part for branch in expression.branches for part in branch)
                return f"case({self._each(branches)}, {self.of(expression.default)})"
            case InList():
                return f"in({self.of(expression.argument)}, {self._each(expression.items)})"
            case Exists():
                return f"exists({self.of_rows(expression.relation)})"
            case InRelation():
                return f"in({self.of(expression.argument)}, {self.of_rows(expression.relation)})"
            case Scalar():
                return f"scalar({self.of_rows(expression.relation)})"
            case _:
                return self._window(expression)

    def of_call(self, call: AggregateCall) -> str:
        """The label of an aggregate call."""
        parts = ("*" if part is None else self.of(part) for part in (call.argument, call.other, call.filter))
        numbers = " ".join(map(str, call.fractions))
        order = self._ordered(call.order)
        return f"{call.function}({call.distinct}, {', '.join(parts)}, {call.grid}, {numbers}, {call.type}, {order})"

    def _each(self, expressions: Iterable[Expr]) -> str:
        return ", ".join(map(self.of, expressions))

    def _ordered(self, terms: Iterable[Order]) -> str:
        return ", ".join(f"{self.of(term.expression)} {term.descending} {term.nulls_first}" for term in terms)

    def _window(self, window: Window) -> str:
        parts = (self._each(window.arguments), self._each(window.partition), self._ordered(window.order))
        return f"{window.function}({'; '.join(parts)}; {window.frame}; {window.grid})"

    # Relations

    def of_rows(self, relation: Relation) -> str:
        """The label of a relation."""
        match relation:
            case Scan() | UnitScan():
                return relation.table.name
            case Values():
                return f"values({'; '.join(map(self._each, relation.rows))})"
            case Series():
                return f"series({relation.start}, {relation.stop}, {relation.unit})"
            case Unnest():
                return f"unnest({self._each(relation.arrays)}, {relation.numbered})"
            case Filter():
                return f"filter({self.of_rows(relation.input)}, {self.of(relation.condition)})"
            case Project():
                return f"project({self.of_rows(relation.input)}, {self._each(relation.expressions)})"
            case Aggregate():
                calls = ", ".join(map(self.of_call, relation.aggregates))
                return f"aggregate({self.of_rows(relation.input)}, {self._each(relation.keys)}, {calls})"
            case Release():
                picks, keys = relation.picks, relation.aggregate.key_fields
                lists = [place for place, key in enumerate(keys) if picks is not None and key in picks.within]
                picked = "" if picks is None else f", {picks.count} {picks.least} {lists}"
                return f"release({self.of_rows(relation.aggregate)}{picked})"
            case UnitWindows():
                return f"windows({self.of_rows(relation.input)}, {self._each(relation.windows)})"
            case Join():
                on = "" if relation.condition is None else self.of(relation.condition)
                return f"{relation.kind}({self.of_rows(relation.left)}, {self.of_rows(relation.right)}, {on})"
            case Distinct():
                return f"distinct({self.of_rows(relation.input)})"
            case SetOperation():
                sides = f"{self.of_rows(relation.left)}, {self.of_rows(relation.right)}"
                return f"{relation.kind}({relation.all}, {sides})"
            case Sort():
                cut = f"{self._ordered(relation.order)}, {relation.limit}, {relation.offset}"
                return f"sort({self.of_rows(relation.input)}, {cut})"
            case _:
                return relation.name


def is_plain(expression: Expr) -> bool:
    """True if an expression depends on its fields only: it has no subqueries and no window functions."""
    return not relations_in(expression) and not windows_in(expression)


def substitute(expression: Expr, written: Mapping[Field, Expr]) -> Expr:
    """An expression with others in place of fields."""
    return rewrite_expression(
        expression, lambda part: written.get(part.field, part) if isinstance(part, Column) else None
    )


def is_public(relation: Relation) -> bool:
    """True if a relation consists of public tables, constants and released rows only."""
    return not isinstance(relation, UnitScan) and all(map(is_public, inputs(relation)))
