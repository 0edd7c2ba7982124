"""logic: conditions, comparisons, CASE and the choice among values."""

from collections.abc import Sequence
from decimal import Decimal

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called
from dpsql.compiler.ir.conditions import all_of, any_of, is_null, negated
from dpsql.compiler.ir.nodes import Call, Case, Cast, Expr, InList, Literal
from dpsql.compiler.ir.walk import as_numeric
from dpsql.compiler.scope.coercion import common_type
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.errors import DatatypeMismatch, InvalidSyntax, LimitExceeded, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_TERMS = 1_000

COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeNEQ: "distinct_from",
}


def _compared(lowering: Lowering, *nodes: exp.Expr) -> tuple[Expr, ...]:
    """The sides of a comparison in the type in which they are compared."""
    sides = [lowering.lower(node) for node in nodes]
    return lowering.coercion.unify_compared(sides, [lowering.at(node) for node in nodes])


def _paren(lowering: Lowering, node: exp.Paren) -> Expr:
    return lowering.lower(node.this)


def _connector(lowering: Lowering, node: exp.Connector) -> Expr:
    name = "and" if isinstance(node, exp.And) else "or"
    terms: list[exp.Expr] = []
    rest: exp.Expr = node
    while type(rest) is type(node):  # left-deep, and as long as the text
        terms.append(rest.args["expression"])
        rest = rest.this
    terms.append(rest)
    if len(terms) > MAX_TERMS:
        raise LimitExceeded(f"a condition may have at most {MAX_TERMS:,} terms", hint="Use an IN list.")
    arguments = _as_lists(name, [lowering.condition(term) for term in reversed(terms)])
    return (all_of if name == "and" else any_of)(*arguments)


def _as_lists(name: str, terms: list[Expr]) -> tuple[Expr, ...]:
    """The same terms, with x = a OR x = b … as x IN (a, b …), and x <> a AND x <> b … as NOT IN.

    The meaning is the same, NULL included; the engine's planner takes memory by the square of the number of terms.
    """
    compared = "ne" if name == "and" else "eq"
    lists: dict[Expr, list[Literal]] = {}
    rest: list[Expr] = []
    for term in terms:
        right = term.arguments[1] if isinstance(term, Call) and term.function == compared else None
        constant = _constant(right) if right is not None else None
        if isinstance(term, Call) and constant is not None:
            lists.setdefault(term.arguments[0], []).append(constant)
        else:
            rest.append(term)
    for argument, items in lists.items():
        found: Expr = InList(argument, tuple(dict.fromkeys(items)))
        rest.append(negated(found) if name == "and" else found)
    return tuple(rest)


def _not(lowering: Lowering, node: exp.Not) -> Expr:
    return negated(lowering.condition(node.this))


def _need_comparable(lowering: Lowering, sql_type: SqlType, node: exp.Expr) -> None:
    """Refuse types without an order. Intervals have one: they compare as if a month had 30 days."""
    if sql_type is not SqlType.INTERVAL:
        lowering.need_comparable(sql_type, node)


def comparison(lowering: Lowering, node: exp.Binary) -> Expr:
    """Lower a comparison of two values, or of two rows of values."""
    if isinstance(node.this, exp.Tuple) or isinstance(node.expression, exp.Tuple):
        return _compared_rows(lowering, node, type(node), node.this, node.expression)
    sides = _compared(lowering, node.this, node.expression)
    _need_comparable(lowering, sides[0].type, node)
    return Call(COMPARISONS[type(node)], sides, SqlType.BOOLEAN)


def _compared_rows(lowering: Lowering, at: exp.Expr, operator: type[exp.Expr], left: exp.Expr, right: exp.Expr) -> Expr:
    """`(a, b) = (c, d)`: equal are rows that agree in each column; the first that differs puts them in order."""
    if not (isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple)):
        raise DatatypeMismatch("a row can only be compared with a row", position=lowering.at(at))
    if len(left.expressions) != len(right.expressions):
        raise InvalidSyntax("unequal number of entries in row expressions", position=lowering.at(at))
    if operator not in _ROW_COMPARISONS:
        raise UnsupportedQuery("rows are compared by =, <>, <, <=, > and >=", position=lowering.at(at))
    pairs = [_compared(lowering, one, other) for one, other in zip(left.expressions, right.expressions, strict=True)]
    for one, _ in pairs:
        _need_comparable(lowering, one.type, at)
    if operator in (exp.EQ, exp.NEQ):
        terms = tuple(Call(COMPARISONS[operator], pair, SqlType.BOOLEAN) for pair in pairs)
        return (all_of if operator is exp.EQ else any_of)(*terms)
    *earlier, last = pairs
    found: Expr = Call(COMPARISONS[operator], last, SqlType.BOOLEAN)
    for pair in reversed(earlier):
        tied = all_of(Call("eq", pair, SqlType.BOOLEAN), found)
        found = any_of(Call(COMPARISONS[_STRICT[operator]], pair, SqlType.BOOLEAN), tied)
    return found


_STRICT: dict[type[exp.Expr], type[exp.Expr]] = {exp.LT: exp.LT, exp.LTE: exp.LT, exp.GT: exp.GT, exp.GTE: exp.GT}
_ROW_COMPARISONS = frozenset({exp.EQ, exp.NEQ, *_STRICT})


def _overlaps(lowering: Lowering, node: exp.Overlaps) -> Expr:
    """`(start, end) OVERLAPS (start, end)`: periods with their start and without their end, as in PostgreSQL.

    A period whose ends are the same is that moment. Instead of an end there may be a length.
    """
    one, other = (_period(lowering, side) for side in (node.this, node.expression))
    values = lowering.coercion.unify_compared([*one, *other], [lowering.at(node)] * 4)
    (first, first_end), (second, second_end) = _in_order(values[:2]), _in_order(values[2:])

    def less(left: Expr, right: Expr) -> Expr:
        return Call("lt", (left, right), SqlType.BOOLEAN)

    def reaches(end: Expr, start: Expr, own: tuple[Expr, Expr]) -> Expr:
        # The second part is false, or NULL where the own end is.
        return any_of(less(start, end), less(own[1], own[0]))

    both = tuple(Call("ge", pair, SqlType.BOOLEAN) for pair in ((first_end, first), (second_end, second)))
    cases = (
        (less(second, first), reaches(second_end, first, (first, first_end))),
        (less(first, second), reaches(first_end, second, (second, second_end))),
        (Call("eq", (first, second), SqlType.BOOLEAN), all_of(*both)),
    )
    return Case(cases, Literal(None, SqlType.BOOLEAN), SqlType.BOOLEAN)


def _period(lowering: Lowering, node: exp.Expr) -> list[Expr]:
    parts = node.expressions if isinstance(node, exp.Tuple) else []
    if len(parts) != 2:
        raise InvalidSyntax(
            "OVERLAPS needs two periods",
            hint="Write (start, end) OVERLAPS (DATE '2024-01-01', DATE '2024-02-01').",
            position=lowering.at(node),
        )
    start, end = (lowering.lower(part) for part in parts)
    if end.type is SqlType.INTERVAL:
        end = lowering.lower(exp.Add(this=parts[0].copy(), expression=parts[1].copy()))
    for value in (start, end):
        if value.type is not SqlType.UNKNOWN and not (value.type.is_moment or value.type is SqlType.TIME):
            raise DatatypeMismatch(
                "OVERLAPS compares periods of dates, times or timestamps", position=lowering.at(node)
            )
    return [start, end]


def _in_order(period: Sequence[Expr]) -> tuple[Expr, Expr]:
    """A period's first moment, which is the only one known where the other is NULL, and its last."""
    start, end = period
    is_turned = Call("lt", (end, start), SqlType.BOOLEAN)
    is_known = Call("le", (start, end), SqlType.BOOLEAN)
    last = Case(((is_turned, start), (is_known, end)), Literal(None, start.type), start.type)
    return Call("least", (start, end), start.type), last


def _not_distinct(lowering: Lowering, node: exp.Binary) -> Expr:
    sides = _compared(lowering, node.this, node.expression)
    _need_comparable(lowering, sides[0].type, node)
    return negated(Call("distinct_from", sides, SqlType.BOOLEAN))


def _between(lowering: Lowering, node: exp.Between) -> Expr:
    lowering.only(node, "this", "low", "high", "symmetric")
    unified = _compared(lowering, node.this, node.args["low"], node.args["high"])
    _need_comparable(lowering, unified[0].type, node)
    between = Call("between", unified, SqlType.BOOLEAN)
    if not node.args.get("symmetric"):
        return between
    subject, low, high = unified
    return any_of(between, Call("between", (subject, high, low), SqlType.BOOLEAN))


def in_list(lowering: Lowering, node: exp.In) -> Expr:
    """Lower `x IN (1, 2)`."""
    lowering.only(node, "this", "expressions")
    if not node.expressions:
        raise UnsupportedQuery("an IN list must not be empty", position=lowering.at(node))
    if isinstance(node.this, exp.Tuple):
        if len(node.expressions) > MAX_TERMS:
            raise LimitExceeded(f"an IN list may have at most {MAX_TERMS:,} rows", position=lowering.at(node))
        rows = tuple(_compared_rows(lowering, node, exp.EQ, node.this, row) for row in node.expressions)
        return any_of(*rows)
    argument, *items = _compared(lowering, node.this, *node.expressions)
    lowering.need_comparable(argument.type, node)
    constants = [_constant(item) for item in items]
    if all(constant is not None for constant in constants):
        return InList(argument, tuple(constant for constant in constants if constant is not None))
    equalities = tuple(Call("eq", (argument, item), SqlType.BOOLEAN) for item in items)
    return any_of(*equalities)


def _constant(expression: Expr) -> Literal | None:
    """The literal an item is; a conversion of a numeric literal is made at once."""
    if isinstance(expression, Literal):
        return expression
    if isinstance(expression, Cast) and isinstance(expression.argument, Literal) and expression.type.is_number:
        value = expression.argument.value
        if isinstance(value, int) and expression.type.is_integer:
            return Literal(value, expression.type)
        if isinstance(value, int | Decimal) and expression.type is SqlType.DOUBLE:
            return Literal(float(value), SqlType.DOUBLE)
    return None


def _negated(lowering: Lowering, node: exp.Expr, expression: Expr) -> Expr:
    return negated(expression) if node.args.get("negate") else expression


def _is(lowering: Lowering, node: exp.Is) -> Expr:
    lowering.only(node, "this", "expression", "negate")
    right = node.expression
    if isinstance(right, exp.Null):
        return _negated(lowering, node, is_null(lowering.value(node.this)))
    if isinstance(right, exp.Boolean):
        name = "is_true" if right.this else "is_false"
        return _negated(lowering, node, Call(name, (lowering.condition(node.this),), SqlType.BOOLEAN))
    raise UnsupportedQuery(
        "IS must be followed by NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM", position=lowering.at(node)
    )


def _case(lowering: Lowering, node: exp.Case) -> Expr:
    lowering.only(node, "this", "ifs", "default")
    conditions: list[Expr] = []
    for branch in node.args["ifs"]:
        if node.this is None:
            conditions.append(lowering.condition(branch.this))
        else:
            conditions.append(Call("eq", _compared(lowering, node.this, branch.this), SqlType.BOOLEAN))
    results = [lowering.lower(branch.args["true"]) for branch in node.args["ifs"]]
    default = node.args.get("default")
    results.append(lowering.lower(default) if default is not None else Literal(None, SqlType.UNKNOWN))

    def case(results: Sequence[Expr]) -> Expr:
        *values, otherwise = results
        return Case(tuple(zip(conditions, values, strict=True)), otherwise, otherwise.type)

    return lowering.coercion.computed(case, results, lowering.at(node))


def _chosen(lowering: Lowering, node: exp.Expr) -> Expr:
    names: dict[type[exp.Expr], str] = {exp.Coalesce: "coalesce", exp.Greatest: "greatest", exp.Least: "least"}
    lowering.only(node, "this", "expressions", "ignore_nulls")
    parts = [lowering.lower(part) for part in (node.this, *node.expressions)]

    def choice(unified: tuple[Expr, ...]) -> Expr:
        if not isinstance(node, exp.Coalesce):
            _need_comparable(lowering, unified[0].type, node)
        # What comes again changes nothing, and the engine does not copy a call that names an argument twice.
        return Call(names[type(node)], tuple(dict.fromkeys(unified)), unified[0].type)

    return lowering.coercion.computed(choice, parts, lowering.at(node))


def _nullif(lowering: Lowering, node: exp.Nullif) -> Expr:
    nodes = (node.this, node.expression)
    sides, places = [lowering.lower(side) for side in nodes], [lowering.at(side) for side in nodes]
    unified = lowering.coercion.unify_compared(sides, places)
    _need_comparable(lowering, unified[0].type, node)
    if (sides[0].type.is_moment or sides[0].type is SqlType.REAL) and unified[0].type is not sides[0].type:
        # PostgreSQL compares these without a cast of the first, whose type the result has.
        return Case(((Call("eq", unified, SqlType.BOOLEAN), Literal(None, sides[0].type)),), sides[0], sides[0].type)
    found = Call("nullif", unified, unified[0].type)
    if found.type.is_integer and sides[0].type.is_integer:
        return lowering.coercion.to(found, sides[0].type)
    return as_numeric(found) if common_type(sides, places[0]) is SqlType.NUMERIC else found


def _counted(of_nulls: bool) -> Called:
    """NUM_NULLS or NUM_NONNULLS."""

    def lower(call: Arguments) -> Expr:
        one, none = (Literal(number, SqlType.INTEGER) for number in ((1, 0) if of_nulls else (0, 1)))
        total: Expr | None = None
        for value in call.values:
            missing = is_null(value)
            counted = Case(((missing, one),), none, SqlType.INTEGER)
            total = counted if total is None else Call("int_add", (total, counted), SqlType.INTEGER)
        return total or none

    return lower


METHODS: dict[type[exp.Expr], Method] = {
    exp.Paren: _paren,
    exp.And: _connector,
    exp.Or: _connector,
    exp.Not: _not,
    **dict.fromkeys(COMPARISONS, comparison),
    exp.NullSafeEQ: _not_distinct,
    exp.Between: _between,
    exp.Overlaps: _overlaps,
    exp.In: in_list,
    exp.Is: _is,
    exp.Case: _case,
    exp.Coalesce: _chosen,
    exp.Greatest: _chosen,
    exp.Least: _chosen,
    exp.Nullif: _nullif,
}
CALLED: dict[str, Called] = {"num_nulls": _counted(of_nulls=True), "num_nonnulls": _counted(of_nulls=False)}
