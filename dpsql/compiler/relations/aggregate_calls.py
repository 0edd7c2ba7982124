"""aggregate_calls: aggregate calls, FILTER, and window functions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from dpsql.compiler.aggregates.base import AggregateFunction
from dpsql.compiler.aggregates.registry import BY_NAME as NAMED
from dpsql.compiler.aggregates.registry import BY_NODE, FUNCTIONS, WITHIN_GROUP
from dpsql.compiler.ir.nodes import AggregateCall, Call, Column, Expr, Frame, Window
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.scope.resolve import identifier
from dpsql.errors import InvalidSyntax, UndefinedColumn, UnsupportedQuery
from dpsql.sqltypes import SqlType

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
    exp.NthValue: "nth_value",
}


def _filtered(lowering: Lowering, node: exp.Filter) -> Expr:
    if _function(node.this) is None and not isinstance(node.this, exp.WithinGroup):
        raise UnsupportedQuery("FILTER is only allowed after an aggregate function", position=lowering.at(node))
    lowering.collected(node)
    condition = lowering.inside_aggregate().condition(node.expression.this)
    return _aggregate(lowering, node.this, condition)


def _aggregate(lowering: Lowering, node: exp.Expr, condition: Expr | None = None) -> Expr:
    aggregates = lowering.collected(node)
    return Column(aggregates.field_of(aggregate_call(lowering.inside_aggregate(), node, condition)))


def _function(node: exp.Expr) -> AggregateFunction | None:
    """The aggregate function that a node calls, if it is one."""
    if isinstance(node, exp.WithinGroup):
        return WITHIN_GROUP.get(type(node.this))
    if isinstance(node, exp.Anonymous):
        return NAMED.get(str(node.this).lower())
    return BY_NODE.get(type(node))


def aggregate_call(lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """The aggregate call that a node writes, its arguments lowered by this lowerer."""
    if isinstance(node, exp.WithinGroup):
        lowering.only(node, "this", "expression")
    function = _function(node)
    if function is None:
        raise lowering.refusal(node.this)
    return function.call(lowering, node, condition)


def _window(lowering: Lowering, node: exp.Window) -> Expr:
    if not lowering.windows:
        raise UnsupportedQuery(f"window functions are not allowed {lowering.clause}", position=lowering.at(node))
    lowering.only(node, "this", "partition_by", "order", "over", "spec", "alias")
    parts = _window_parts(lowering, node)
    lowering = replace(lowering, windows=False, clause="in a window function")
    name, arguments, sql_type = _window_function(lowering, node.this)
    partition = tuple(lowering.value(part) for part in parts.get("partition_by") or ())
    order = parts.get("order")
    terms = tuple(lowering.order(term) for term in order.expressions) if order is not None else ()
    return Window(name, arguments, partition, terms, _frame(lowering, parts.get("spec")), sql_type)


def _window_parts(lowering: Lowering, node: exp.Window) -> Mapping[str, Any]:
    """PARTITION BY, ORDER BY and the frame: written here, or where WINDOW names them."""
    alias = node.args.get("alias")
    if alias is None:
        return node.args
    if any(node.args.get(part) for part in ("partition_by", "order", "spec")):
        raise UnsupportedQuery(
            "a named window cannot be extended",
            hint="Write the whole window definition.",
            position=lowering.at(node),
        )
    named = lowering.named.get(identifier(alias))
    if named is None:
        raise UndefinedColumn(f'window "{identifier(alias)}" does not exist', position=lowering.at(node))
    lowering.only(named, "this", "partition_by", "order", "spec")
    return named.args


def _window_function(lowering: Lowering, node: exp.Expr) -> tuple[str, tuple[Expr, ...], SqlType]:
    kind = type(node)
    if kind in _WINDOWS:
        lowering.only(node)
        name, sql_type = _WINDOWS[kind]
        return name, (), sql_type
    function = BY_NODE.get(kind)
    if function is not None:
        call = function.call(lowering, node, None)
        if not FUNCTIONS[call.function].in_windows:
            raise UnsupportedQuery(
                f"{call.function.upper()} is not supported as a window function", position=lowering.at(node)
            )
        if call.distinct:
            raise UnsupportedQuery("DISTINCT is not supported in a window function", position=lowering.at(node))
        if call.argument is None:
            return "count_rows", (), SqlType.BIGINT
        return call.function, (call.argument,), SqlType.DOUBLE if call.function == "avg" else call.type
    if kind in _WINDOW_VALUES:
        return _window_value(lowering, node)
    if isinstance(node, exp.Ntile) and node.this is not None:
        return "ntile", (lowering.whole(node.this, "NTILE", 1, 1_000_000),), SqlType.INTEGER
    raise lowering.refusal(node)


def _window_value(lowering: Lowering, node: exp.Expr) -> tuple[str, tuple[Expr, ...], SqlType]:
    """LAG and LEAD with how far and what else, FIRST_VALUE, LAST_VALUE and NTH_VALUE."""
    lowering.only(node, "this", "offset", "default")
    name = _WINDOW_VALUES[type(node)]
    value = lowering.value(node.this)
    offset, default = node.args.get("offset"), node.args.get("default")
    if offset is None:
        return name, (value,), value.type
    extra: tuple[Expr, ...] = (lowering.whole(offset, name.upper(), 0 if name in ("lag", "lead") else 1, 1_000_000),)
    if default is not None:
        value, other = lowering.coercion.unify((value, lowering.lower(default)), lowering.at(node))
        extra += (other,)
    return name, (value, *extra), value.type


def _frame(lowering: Lowering, spec: exp.Expr | None) -> Frame | None:
    if spec is None:
        return None
    lowering.only(spec, "kind", "start", "start_side", "end", "end_side")
    by_rows = str(spec.args.get("kind")).upper() == "ROWS"
    start = _frame_end(lowering, spec, "start")
    end = _frame_end(lowering, spec, "end") if spec.args.get("end") is not None else 0
    is_plain = by_rows or all(offset in (None, 0) for offset in (start, end))
    if str(spec.args.get("kind")).upper() not in ("ROWS", "RANGE") or not is_plain:
        raise UnsupportedQuery(
            "only ROWS frames, and RANGE frames without offsets, are supported", position=lowering.at(spec)
        )
    if start is not None and end is not None and start > end:
        raise InvalidSyntax("frame starts after it ends", position=lowering.at(spec))
    return Frame(by_rows, start, end)


def _frame_end(lowering: Lowering, spec: exp.Expr, name: str) -> int | None:
    """How many rows before (negative) or after; None is the partition's own end."""
    offset, side = spec.args.get(name), str(spec.args.get(f"{name}_side")).upper()
    if isinstance(offset, str):
        is_wrong = (name, side) in (("start", "FOLLOWING"), ("end", "PRECEDING"))
        if offset.upper() == "UNBOUNDED" and is_wrong:
            raise InvalidSyntax(f"frame {name} cannot be UNBOUNDED {side}", position=lowering.at(spec))
        return None if offset.upper() == "UNBOUNDED" else 0
    value = lowering.whole(offset, "a frame", 0, 1_000_000).value if offset is not None else None
    if not isinstance(value, int):
        raise UnsupportedQuery("frame offsets must be constants", position=lowering.at(spec))
    return -value if side == "PRECEDING" else value


def _grouping(lowering: Lowering, node: exp.Grouping) -> Expr:
    lowering.collected(node)
    lowering.only(node, "expressions")
    inside = lowering.inside_aggregate()
    return Call("grouping", tuple(inside.value(part) for part in node.expressions), SqlType.INTEGER)


BY_NAME: dict[str, Method] = dict.fromkeys(NAMED, _aggregate)
METHODS: dict[type[exp.Expr], Method] = {
    exp.Filter: _filtered,
    **dict.fromkeys((*BY_NODE, exp.WithinGroup), _aggregate),
    exp.Window: _window,
    exp.Grouping: _grouping,
}
