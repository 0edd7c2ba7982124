"""moments: dates and timestamps, their parts and their arithmetic."""

from sqlglot import exp

from dpsql.compiler.functions import CLOCK_PARTS, EXTRACT_PARTS, INTERVAL_UNITS, TRUNC_UNITS
from dpsql.compiler.ir import Call, Cast, Expr, Literal
from dpsql.compiler.lowering import Lowering, Method
from dpsql.errors import DatatypeMismatch, UnsupportedQuery
from dpsql.sqltypes import SqlType


def moment_arithmetic(lowering: Lowering, node: exp.Binary, left: Expr, right: Expr) -> Expr:
    """Lower + or - between a date and a date or a whole number of days."""
    if left.type is SqlType.DATE and right.type.is_integer and isinstance(node, exp.Add | exp.Sub):
        name = "date_add" if isinstance(node, exp.Add) else "date_subtract"
        return Call(name, (left, lowering.coercion.to(right, SqlType.INTEGER)), SqlType.DATE)
    if left.type is SqlType.DATE and isinstance(node, exp.Sub):
        right = lowering.coercion.to(right, SqlType.DATE, lowering.at(node))
        return Cast(Call("days_between", (left, right), SqlType.BIGINT), SqlType.INTEGER)
    raise UnsupportedQuery(
        "this arithmetic on dates is not supported",
        hint="Use date - date, date + integer, or moment + INTERVAL '1 day'.",
        position=lowering.at(node),
    )


def add_interval(lowering: Lowering, node: exp.Binary) -> Expr:
    """Lower moment + INTERVAL or moment - INTERVAL."""
    moment = lowering.lower(node.this)
    if not moment.type.is_moment or not isinstance(node, exp.Add | exp.Sub):
        raise DatatypeMismatch("an INTERVAL is added to a date or a timestamp", position=lowering.at(node))
    interval = node.expression
    lowering.only(interval, "this", "unit")
    unit = str(interval.args["unit"]).lower().rstrip("s") if interval.args.get("unit") is not None else ""
    text = str(interval.this.this) if isinstance(interval.this, exp.Literal) else ""
    if unit not in INTERVAL_UNITS or not text.lstrip("+-").isdecimal() or len(text) > 7:
        raise UnsupportedQuery(
            "an INTERVAL is a whole number of one unit", hint="INTERVAL '30 days'", position=lowering.at(node)
        )
    count = int(text) if isinstance(node, exp.Add) else -int(text)
    result = SqlType.TIMESTAMP if moment.type is SqlType.DATE else moment.type
    amount = Literal(count, SqlType.DOUBLE if unit == "second" else SqlType.INTEGER)
    return Call(f"add_{unit}s", (moment, amount), result)


def _interval(lowering: Lowering, node: exp.Interval) -> Expr:
    raise UnsupportedQuery("an INTERVAL may only be added to a date or timestamp", position=lowering.at(node))


def _extract(lowering: Lowering, node: exp.Extract) -> Expr:
    part = str(node.this).lower()
    moment = lowering.moment(node.expression)
    if part not in EXTRACT_PARTS:
        raise UnsupportedQuery(
            f'EXTRACT of "{part}" is not supported',
            hint="There are: " + ", ".join(EXTRACT_PARTS),
            position=lowering.at(node),
        )
    if part in CLOCK_PARTS and moment.type is SqlType.DATE:
        raise UnsupportedQuery(f"a date has no {part}", position=lowering.at(node))
    return Cast(Call(f"extract_{part}", (moment,), SqlType.BIGINT), SqlType.INTEGER)


def _date_trunc(lowering: Lowering, node: exp.Expr) -> Expr:
    lowering.only(node, "this", "unit")
    unit = str(node.args["unit"].this).lower()
    if unit not in TRUNC_UNITS:
        raise UnsupportedQuery(
            f'DATE_TRUNC to "{unit}" is not supported',
            hint="There are: " + ", ".join(TRUNC_UNITS),
            position=lowering.at(node),
        )
    moment = lowering.moment(node.this)
    result = SqlType.TIMESTAMP if moment.type is SqlType.DATE else moment.type
    return Call(f"date_trunc_{unit}", (moment,), result)


METHODS: dict[type[exp.Expr], Method] = {
    exp.Interval: _interval,
    exp.Extract: _extract,
    exp.TimestampTrunc: _date_trunc,
    exp.DateTrunc: _date_trunc,
}
