"""logic: conditions, comparisons, CASE and the choice among values."""

from decimal import Decimal

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called
from dpsql.compiler.ir.nodes import Call, Case, Cast, Expr, InList, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.errors import QueryTooComplex, UnsupportedQuery
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
        raise QueryTooComplex(f"a condition may have at most {MAX_TERMS:,} terms", hint="Use an IN list.")
    arguments = _as_lists(name, [lowering.condition(term) for term in reversed(terms)])
    return Call(name, arguments, SqlType.BOOLEAN) if len(arguments) > 1 else arguments[0]


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
        rest.append(Call("not", (found,), SqlType.BOOLEAN) if name == "and" else found)
    return tuple(rest)


def _not(lowering: Lowering, node: exp.Not) -> Expr:
    return Call("not", (lowering.condition(node.this),), SqlType.BOOLEAN)


def _need_comparable(lowering: Lowering, sql_type: SqlType, node: exp.Expr) -> None:
    """Intervals are compared as if months had 30 days, which is no order of values that print alike."""
    if sql_type is not SqlType.INTERVAL:
        lowering.need_comparable(sql_type, node)


def comparison(lowering: Lowering, node: exp.Binary) -> Expr:
    """Lower a comparison of two values."""
    sides = _compared(lowering, node.this, node.expression)
    _need_comparable(lowering, sides[0].type, node)
    return Call(COMPARISONS[type(node)], sides, SqlType.BOOLEAN)


def _not_distinct(lowering: Lowering, node: exp.Binary) -> Expr:
    sides = _compared(lowering, node.this, node.expression)
    _need_comparable(lowering, sides[0].type, node)
    return Call("not", (Call("distinct_from", sides, SqlType.BOOLEAN),), SqlType.BOOLEAN)


def _between(lowering: Lowering, node: exp.Between) -> Expr:
    lowering.only(node, "this", "low", "high", "symmetric")
    unified = _compared(lowering, node.this, node.args["low"], node.args["high"])
    _need_comparable(lowering, unified[0].type, node)
    between = Call("between", unified, SqlType.BOOLEAN)
    if not node.args.get("symmetric"):
        return between
    subject, low, high = unified
    return Call("or", (between, Call("between", (subject, high, low), SqlType.BOOLEAN)), SqlType.BOOLEAN)


def in_list(lowering: Lowering, node: exp.In) -> Expr:
    """Lower `x IN (1, 2)`."""
    lowering.only(node, "this", "expressions")
    if not node.expressions:
        raise UnsupportedQuery("an IN list must not be empty", position=lowering.at(node))
    argument, *items = _compared(lowering, node.this, *node.expressions)
    lowering.need_comparable(argument.type, node)
    constants = [_constant(item) for item in items]
    if all(constant is not None for constant in constants):
        return InList(argument, tuple(constant for constant in constants if constant is not None))
    equalities = tuple(Call("eq", (argument, item), SqlType.BOOLEAN) for item in items)
    return Call("or", equalities, SqlType.BOOLEAN) if len(equalities) > 1 else equalities[0]


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
    return Call("not", (expression,), SqlType.BOOLEAN) if node.args.get("negate") else expression


def _is(lowering: Lowering, node: exp.Is) -> Expr:
    lowering.only(node, "this", "expression", "negate")
    right = node.expression
    if isinstance(right, exp.Null):
        return _negated(lowering, node, Call("is_null", (lowering.value(node.this),), SqlType.BOOLEAN))
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
    *values, otherwise = lowering.coercion.unify(results, lowering.at(node))
    return Case(tuple(zip(conditions, values, strict=True)), otherwise, otherwise.type)


def _chosen(lowering: Lowering, node: exp.Expr) -> Expr:
    names: dict[type[exp.Expr], str] = {exp.Coalesce: "coalesce", exp.Greatest: "greatest", exp.Least: "least"}
    lowering.only(node, "this", "expressions", "ignore_nulls")
    parts = [lowering.lower(part) for part in (node.this, *node.expressions)]
    unified = lowering.coercion.unify(parts, lowering.at(node))
    _need_comparable(lowering, unified[0].type, node)
    # What comes again changes nothing, and the engine does not copy a call that names an argument twice.
    return Call(names[type(node)], tuple(dict.fromkeys(unified)), unified[0].type)


def _nullif(lowering: Lowering, node: exp.Nullif) -> Expr:
    unified = _compared(lowering, node.this, node.expression)
    _need_comparable(lowering, unified[0].type, node)
    return Call("nullif", unified, unified[0].type)


def _counted(of_nulls: bool) -> Called:
    """NUM_NULLS or NUM_NONNULLS."""

    def lower(call: Arguments) -> Expr:
        one, none = (Literal(number, SqlType.INTEGER) for number in ((1, 0) if of_nulls else (0, 1)))
        total: Expr | None = None
        for value in call.values:
            missing = Call("is_null", (value,), SqlType.BOOLEAN)
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
    exp.In: in_list,
    exp.Is: _is,
    exp.Case: _case,
    exp.Coalesce: _chosen,
    exp.Greatest: _chosen,
    exp.Least: _chosen,
    exp.Nullif: _nullif,
}
CALLED: dict[str, Called] = {"num_nulls": _counted(of_nulls=True), "num_nonnulls": _counted(of_nulls=False)}
