"""aggregates: aggregate calls, FILTER, and window functions."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlglot import exp

from dpsql.compiler.arrays import array_items
from dpsql.compiler.functions import PAIRS, SPREADS, TRUTHS
from dpsql.compiler.ir import AggregateCall, Call, Cast, Column, Expr, Frame, Literal, Window
from dpsql.compiler.lowering import Lowering, Method, placeholder
from dpsql.compiler.resolve import identifier
from dpsql.errors import InvalidParameter, InvalidSyntax, UndefinedColumn, UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import SqlType

_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
    exp.Stddev: "stddev_samp",
    exp.StddevSamp: "stddev_samp",
    exp.StddevPop: "stddev_pop",
    exp.CovarPop: "covar_pop",
    exp.CovarSamp: "covar_samp",
    exp.Corr: "corr",
    exp.RegrSlope: "regr_slope",
    exp.RegrIntercept: "regr_intercept",
    exp.RegrR2: "regr_r2",
    exp.RegrCount: "regr_count",
    exp.RegrAvgx: "regr_avgx",
    exp.RegrAvgy: "regr_avgy",
    exp.RegrSxx: "regr_sxx",
    exp.RegrSyy: "regr_syy",
    exp.RegrSxy: "regr_sxy",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
}
_PERCENTILES: dict[type[exp.Expr], str] = {
    exp.PercentileCont: "percentile_cont",
    exp.PercentileDisc: "percentile_disc",
}
_FRACTION_DIGITS = 6
_MAX_FRACTIONS = 32
_WRITTEN = (*_AGGREGATES, exp.Median, exp.WithinGroup)
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
    aggregate: exp.Expr = node.this
    if isinstance(aggregate, exp.Anonymous) and str(aggregate.this).lower() in BY_NAME:
        aggregate = _every(aggregate)
    if type(aggregate) not in _WRITTEN:
        raise UnsupportedQuery("FILTER follows an aggregate", position=lowering.at(node))
    lowering.collected(node)
    condition = lowering.inside_aggregate().condition(node.expression.this)
    return _aggregate(lowering, aggregate, condition)


def _aggregate(lowering: Lowering, node: exp.Expr, condition: Expr | None = None) -> Expr:
    aggregates = lowering.collected(node)
    return Column(aggregates.field_of(aggregate_call(lowering.inside_aggregate(), node, condition)))


def _every(node: exp.Anonymous) -> exp.LogicalAnd:
    """EVERY is the standard's name of BOOL_AND."""
    return exp.LogicalAnd(this=node.expressions[0] if len(node.expressions) == 1 else None)


def aggregate_call(lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """The aggregate call that a node writes, its arguments lowered by this lowerer."""
    if isinstance(node, exp.Median):
        lowering.only(node, "this")
        return _percentile(lowering, node, ("percentile_cont", (Decimal("0.5"),)), node.this, condition)
    if isinstance(node, exp.WithinGroup):
        return _within_group(lowering, node, condition)
    name = _AGGREGATES[type(node)]
    lowering.only(node, "this", "expression" if name in PAIRS else "big_int")
    if isinstance(node.this, exp.Star) and name == "count":
        lowering.only(node.this)
        return AggregateCall("count", None, False, condition, SqlType.BIGINT)
    distinct = isinstance(node.this, exp.Distinct)
    arguments = node.this.expressions if distinct else [node.this]
    arguments = [part for part in (*arguments, node.args.get("expression")) if part is not None]
    if len(arguments) != (2 if name in PAIRS else 1):
        count = "two arguments" if name in PAIRS else "one argument"
        raise UnsupportedQuery(f"{name.upper()} takes {count}", position=lowering.at(node))
    if distinct and name in SPREADS | PAIRS:
        raise UnsupportedQuery(
            f"{name.upper()}(DISTINCT …) is not supported",
            hint="DISTINCT goes with COUNT, SUM and AVG.",
            position=lowering.at(node),
        )
    argument, *others = map(lowering.condition if name in TRUTHS else lowering.value, arguments)
    types = [_aggregate_type(lowering, name, each, node) for each in (argument, *others)]
    other = others[0] if others else None
    return AggregateCall(name, argument, distinct and name not in TRUTHS, condition, types[0], other=other)


def _within_group(lowering: Lowering, node: exp.WithinGroup, condition: Expr | None) -> AggregateCall:
    """MODE, and PERCENTILE_CONT and PERCENTILE_DISC of a constant fraction or an array of them."""
    lowering.only(node, "this", "expression")
    function, terms = node.this, node.expression.expressions
    if isinstance(function, exp.Mode) and function.this is None and len(terms) == 1:
        lowering.only(terms[0], "this", "nulls_first")
        argument = lowering.value(terms[0].this)
        lowering.need_comparable(argument.type, node)
        return AggregateCall("mode", argument, False, condition, argument.type)
    if type(function) not in _PERCENTILES:
        raise lowering.refusal(function)
    name = _PERCENTILES[type(function)]
    lowering.only(function, "this")
    if len(terms) != 1 or function.this is None:
        raise UnsupportedQuery(f"{name.upper()} takes one fraction and one order", position=lowering.at(node))
    lowering.only(terms[0], "this", "desc", "nulls_first")
    items = _items(lowering, function.this)
    written = [function.this] if items is None else items
    given = [lowering.coercion.to(lowering.lower(each), SqlType.DOUBLE, lowering.at(function)) for each in written]
    fractions = tuple(_fraction(lowering, name, each, node) for each in given)
    if terms[0].args.get("desc"):
        fractions = tuple(1 - each for each in fractions)
    if items is None:
        return _percentile(lowering, node, (name, fractions), terms[0].this, condition)
    if not 1 <= len(fractions) <= _MAX_FRACTIONS:
        raise InvalidParameter(
            f"an array of {name.upper()} has 1 to {_MAX_FRACTIONS} fractions",
            hint=f"{name.upper()}(ARRAY[0.25, 0.5, 0.75]) WITHIN GROUP (ORDER BY x)",
            position=lowering.at(node),
        )
    call = _percentile(lowering, node, (name, fractions), terms[0].this, condition)
    if not call.argument or not call.argument.type.is_number:
        raise UnsupportedQuery(
            f"{name.upper()} of several fractions is for numbers",
            hint=f"{name.upper()}(0.25) WITHIN GROUP (ORDER BY x), {name.upper()}(0.75) WITHIN GROUP (ORDER BY x)",
            position=lowering.at(node),
        )
    return replace(call, type=call.type.array)


def _items(lowering: Lowering, node: exp.Expr) -> list[exp.Expr] | None:
    """The fractions of an array: ARRAY[…], a cast to an array, or a placeholder of one; None of one fraction."""
    is_cast = isinstance(node, exp.Cast) and isinstance(node.to, exp.DataType) and node.to.this == exp.DType.ARRAY
    index = placeholder(node)
    is_placeholder = index is not None and lowering.parameters.is_array(index)
    return array_items(lowering, node) if isinstance(node, exp.Array) or is_cast or is_placeholder else None


def _fraction(lowering: Lowering, name: str, given: Expr, node: exp.Expr) -> Decimal:
    """A constant between 0 and 1; one that is not known yet stands for any."""
    given = given.argument if isinstance(given, Cast) else given
    if isinstance(given, Literal) and given.parameter is not None and given.value is None:
        return Decimal("0.5")
    if (
        not isinstance(given, Literal)
        or isinstance(given.value, bool)
        or not isinstance(given.value, int | float | Decimal)
    ):
        raise UnsupportedQuery(f"{name.upper()} takes a constant fraction", position=lowering.at(node))
    fraction = Decimal(str(given.value))
    if not 0 <= fraction <= 1:
        raise InvalidParameter(f"percentile value {fraction:g} is not between 0 and 1", position=lowering.at(node))
    if fraction != round(fraction, _FRACTION_DIGITS):
        raise InvalidParameter(
            f"a fraction of {name.upper()} has up to {_FRACTION_DIGITS} digits", position=lowering.at(node)
        )
    return fraction


def _percentile(
    lowering: Lowering,
    node: exp.Expr,
    what: tuple[str, tuple[Decimal, ...]],
    written: exp.Expr,
    condition: Expr | None,
) -> AggregateCall:
    name, fractions = what
    argument = lowering.value(written)
    lowering.need_comparable(argument.type, node)
    if name == "percentile_cont" and not argument.type.is_number:
        raise UndefinedFunction(
            f"function {name}(double precision, {argument.type.value}) does not exist",
            hint="PERCENTILE_DISC is for values that have an order.",
            position=lowering.at(node),
        )
    sql_type = SqlType.DOUBLE if name == "percentile_cont" else argument.type
    return AggregateCall(name, argument, False, condition, sql_type, fractions=fractions)


def _aggregate_type(lowering: Lowering, name: str, argument: Expr, node: exp.Expr) -> SqlType:
    """The type of an aggregate's value, if there is one of such an argument."""
    if name == "count":
        return SqlType.BIGINT
    if name in TRUTHS:
        return SqlType.BOOLEAN
    if name in ("min", "max"):
        lowering.need_comparable(argument.type, node)
        return argument.type
    if not argument.type.is_number:
        raise UndefinedFunction(
            f"function {name}({argument.type.value}) does not exist",
            hint=f"{name.upper()} is for numbers; a boolean counts as COUNT(*) FILTER (WHERE …).",
            position=lowering.at(node),
        )
    if name == "regr_count":
        return SqlType.BIGINT
    if name == "avg" or name in SPREADS | PAIRS:
        return SqlType.DOUBLE
    integers = {SqlType.SMALLINT: SqlType.BIGINT, SqlType.INTEGER: SqlType.BIGINT, SqlType.BIGINT: SqlType.NUMERIC}
    return integers.get(argument.type, argument.type)


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
        raise UnsupportedQuery("a named window is not changed", hint="OVER w", position=lowering.at(node))
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
    if kind in _AGGREGATES:
        call = aggregate_call(lowering, node, None)
        if call.function in SPREADS | PAIRS | TRUTHS:
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
            "of frames there are ROWS BETWEEN … AND …, and RANGE without offsets", position=lowering.at(spec)
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
        raise UnsupportedQuery("a frame takes constant offsets", position=lowering.at(spec))
    return -value if side == "PRECEDING" else value


def _grouping(lowering: Lowering, node: exp.Grouping) -> Expr:
    lowering.collected(node)
    lowering.only(node, "expressions")
    inside = lowering.inside_aggregate()
    return Call("grouping", tuple(inside.value(part) for part in node.expressions), SqlType.INTEGER)


def _named(lowering: Lowering, node: exp.Anonymous) -> Expr:
    return _aggregate(lowering, _every(node))


BY_NAME: dict[str, Method] = {"every": _named}
METHODS: dict[type[exp.Expr], Method] = {
    exp.Filter: _filtered,
    **dict.fromkeys(_WRITTEN, _aggregate),
    exp.Window: _window,
    exp.Grouping: _grouping,
}
