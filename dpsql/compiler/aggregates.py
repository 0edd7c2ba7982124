"""aggregates: aggregate calls, FILTER, and window functions."""

from dataclasses import replace

from sqlglot import exp

from dpsql.compiler.ir import AggregateCall, Column, Expr, Window
from dpsql.compiler.lowering import Lowering, Method
from dpsql.errors import UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import SqlType

_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}
_WINDOWS: dict[type[exp.Expr], tuple[str, SqlType]] = {
    exp.RowNumber: ("row_number", SqlType.BIGINT),
    exp.Rank: ("rank", SqlType.BIGINT),
    exp.DenseRank: ("dense_rank", SqlType.BIGINT),
    exp.PercentRank: ("percent_rank", SqlType.DOUBLE),
    exp.CumeDist: ("cume_dist", SqlType.DOUBLE),
}
_WINDOW_VALUES: dict[type[exp.Expr], str] = {
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
}


def _filtered(lowering: Lowering, node: exp.Filter) -> Expr:
    aggregate: exp.Expr = node.this
    if type(aggregate) not in _AGGREGATES:
        raise UnsupportedQuery("FILTER follows an aggregate", position=lowering.at(node))
    lowering.collected(node)
    condition = lowering.inside_aggregate().condition(node.expression.this)
    return _aggregate(lowering, aggregate, condition)


def _aggregate(lowering: Lowering, node: exp.Expr, condition: Expr | None = None) -> Expr:
    aggregates = lowering.collected(node)
    return Column(aggregates.field_of(aggregate_call(lowering.inside_aggregate(), node, condition)))


def aggregate_call(lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """The aggregate call that a node writes, its argument lowered by this lowerer."""
    lowering.only(node, "this", "big_int")
    name = _AGGREGATES[type(node)]
    if isinstance(node.this, exp.Star) and name == "count":
        lowering.only(node.this)
        return AggregateCall("count", None, False, condition, SqlType.BIGINT)
    distinct = isinstance(node.this, exp.Distinct)
    arguments = node.this.expressions if distinct else [node.this]
    if len(arguments) != 1 or arguments[0] is None:
        raise UnsupportedQuery(f"{name.upper()} takes one argument", position=lowering.at(node))
    argument = lowering.value(arguments[0])
    return AggregateCall(name, argument, distinct, condition, _aggregate_type(lowering, name, argument, node))


def _aggregate_type(lowering: Lowering, name: str, argument: Expr, node: exp.Expr) -> SqlType:
    if name == "count":
        return SqlType.BIGINT
    if name in ("min", "max"):
        lowering.need_comparable(argument.type, node)
        return argument.type
    if not argument.type.is_number:
        raise UndefinedFunction(
            f"function {name}({argument.type.value}) does not exist",
            hint=f"{name.upper()} is for numbers; a boolean counts as COUNT(*) FILTER (WHERE …).",
            position=lowering.at(node),
        )
    if name == "avg":
        return SqlType.DOUBLE
    integers = {SqlType.SMALLINT: SqlType.BIGINT, SqlType.INTEGER: SqlType.BIGINT, SqlType.BIGINT: SqlType.NUMERIC}
    return integers.get(argument.type, argument.type)


def _window(lowering: Lowering, node: exp.Window) -> Expr:
    if not lowering.windows:
        raise UnsupportedQuery(f"window functions are not allowed {lowering.clause}", position=lowering.at(node))
    lowering.only(node, "this", "partition_by", "order", "over", "spec")
    lowering = replace(lowering, windows=False, clause="in a window function")
    name, arguments, sql_type = _window_function(lowering, node.this)
    partition = tuple(lowering.value(part) for part in node.args.get("partition_by") or ())
    order = node.args.get("order")
    terms = tuple(lowering.order(term) for term in order.expressions) if order is not None else ()
    return Window(name, arguments, partition, terms, _is_running(lowering, node), sql_type)


def _window_function(lowering: Lowering, node: exp.Expr) -> tuple[str, tuple[Expr, ...], SqlType]:
    kind = type(node)
    if kind in _WINDOWS:
        lowering.only(node)
        name, sql_type = _WINDOWS[kind]
        return name, (), sql_type
    if kind in _AGGREGATES:
        call = aggregate_call(lowering, node, None)
        if call.distinct:
            raise UnsupportedQuery("DISTINCT is not supported in a window function", position=lowering.at(node))
        if call.argument is None:
            return "count_rows", (), SqlType.BIGINT
        return call.function, (call.argument,), SqlType.DOUBLE if call.function == "avg" else call.type
    if kind in _WINDOW_VALUES:
        lowering.only(node, "this", "offset")
        value = lowering.value(node.this)
        offset = node.args.get("offset")
        extra = (lowering.whole(offset, "LAG", 0, 1_000_000),) if offset is not None else ()
        return _WINDOW_VALUES[kind], (value, *extra), value.type
    if isinstance(node, exp.Ntile) and node.this is not None:
        return "ntile", (lowering.whole(node.this, "NTILE", 1, 1_000_000),), SqlType.INTEGER
    raise lowering.refusal(node)


def _is_running(lowering: Lowering, node: exp.Window) -> bool:
    spec = node.args.get("spec")
    if spec is None:
        return False
    lowering.only(spec, "kind", "start", "start_side", "end", "end_side")
    bounds = [spec.args.get(name) for name in ("start", "start_side", "end", "end_side")]
    is_rows = str(spec.args.get("kind")).upper() == "ROWS"
    if not is_rows or [str(b).upper() for b in bounds[:3]] != ["UNBOUNDED", "PRECEDING", "CURRENT ROW"]:
        raise UnsupportedQuery(
            "of frames there is ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", position=lowering.at(node)
        )
    return True


METHODS: dict[type[exp.Expr], Method] = {
    exp.Filter: _filtered,
    **dict.fromkeys(_AGGREGATES, _aggregate),
    exp.Window: _window,
}
