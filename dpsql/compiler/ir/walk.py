"""walk: what is inside an expression or a relation, and the same with other expressions in it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from dpsql.compiler.ir.nodes import (
    Aggregate,
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
    Values,
    Window,
)


def in_double(expression: Expr) -> Expr:
    """A number as it is before it is rounded to a numeric, where it goes on in double precision."""
    return expression.argument if isinstance(expression, Cast) and expression.is_computed else expression


def inputs(relation: Relation) -> tuple[Relation, ...]:
    """The relations that `relation` is made of, subqueries included, without going through a release boundary."""
    if isinstance(relation, Release):
        return ()
    beneath = tuple(part for expression in expressions(relation) for part in relations_in(expression))
    match relation:
        case Scan() | UnitScan() | SystemScan() | Values() | Series():
            return ()
        case Join() | SetOperation():
            return (relation.left, relation.right, *beneath)
        case _:
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
    """The expressions that stand in a relation itself."""
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
        case _:
            return ()


def operands(expression: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside `expression`."""
    match expression:
        case Column() | Literal() | Exists() | Scalar():
            return ()
        case Call():
            return expression.arguments
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
    inner = tuple(relation for part in operands(expression) for relation in relations_in(part))
    return (*inner, expression.relation) if isinstance(expression, Exists | InRelation | Scalar) else inner


def scalars_in(expression: Expr) -> tuple[Relation, ...]:
    """The subqueries in an expression that stand for one value."""
    inner = tuple(relation for part in operands(expression) for relation in scalars_in(part))
    return (*inner, expression.relation) if isinstance(expression, Scalar) else inner


def fields_in(expression: Expr) -> frozenset[Field]:
    """The fields that `expression` refers to, those that its subqueries take from outside included."""
    if isinstance(expression, Column):
        return frozenset({expression.field})
    if isinstance(expression, InList):  # its items are constants, and may be thousands
        return fields_in(expression.argument)
    found = frozenset[Field]().union(*(fields_in(part) for part in operands(expression)))
    return found | free_fields(expression.relation) if isinstance(expression, Exists | InRelation | Scalar) else found


def free_fields(relation: Relation) -> frozenset[Field]:
    """The fields that a relation refers to and does not itself have: those of the row outside a subquery."""
    if isinstance(relation, Release):
        return free_fields(relation.aggregate)
    match relation:
        case Scan() | UnitScan() | SystemScan() | Values() | Series():
            return frozenset()
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


def rewrite_expression(expression: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expression` from the top, subqueries included: where `change` gives an expression it stands instead."""
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
    """Rebuild a relation with every expression in it rewritten; what lies behind a release boundary stays."""

    def again(expression: Expr) -> Expr:
        return rewrite_expression(expression, change)

    match relation:
        case Scan() | UnitScan() | SystemScan() | Values() | Series() | Release():
            return relation
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


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The terms that are all true where `condition` is true."""
    if isinstance(condition, Call) and condition.function == "and":
        return tuple(term for part in condition.arguments for term in conjuncts(part))
    return (condition,)


class Sizes:
    """How many parts expressions have once they are written out: what stands in several places counts in each."""

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
