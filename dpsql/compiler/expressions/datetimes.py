"""datetimes: dates, times, timestamps and intervals: their operators, their parts, and what makes them."""

from zoneinfo import available_timezones

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called, arguments, as_timestamp, in_a_row
from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.functions import (
    CLOCK_PARTS,
    EXTRACT_PARTS,
    INTERVAL_PARTS,
    PART_NAMES,
    TIME_PARTS,
    UNITS,
)
from dpsql.compiler.ir.nodes import COMPUTED_SCALE, Call, Cast, Expr, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.sql.constant_folding import computed_interval
from dpsql.compiler.sql.postgres_syntax import print_sql
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import DataError, DatatypeMismatch, InvalidParameter, UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import Span, SqlType
from dpsql.sqltypes.textinput import POSIX_ZONES, ZONE_ABBREVIATIONS, read

_ZONES = {
    **{zone.lower(): zone for zone in available_timezones() if "/" in zone and not zone.startswith("Etc/")},
    **{zone.lower(): zone for zone in POSIX_ZONES},
    # The signs of these names count to the west.
    **{name: f"Etc/GMT{-hours:+d}" if hours else "UTC" for name, hours in ZONE_ABBREVIATIONS.items()},
}
"""The zones that a query may name, by their names in small letters."""
_HINT = "Supported are date - date, date + integer, timestamp - timestamp, and timestamp + interval."


def is_temporal(sql_type: SqlType) -> bool:
    """True for dates, timestamps and times of day."""
    return sql_type.is_moment or sql_type is SqlType.TIME


# Operators


def moment_arithmetic(lowering: Lowering, node: exp.Binary, left: Expr, right: Expr) -> Expr:
    """Lower an operator with a date, timestamp or time, and no interval."""
    if isinstance(node, exp.Add) and not is_temporal(left.type):
        left, right = right, left
    if isinstance(node, exp.Add | exp.Sub) and left.type is SqlType.DATE and right.type.is_integer:
        name = "date_add" if isinstance(node, exp.Add) else "date_subtract"
        return Call(name, (left, lowering.coercion.to(right, SqlType.INTEGER)), SqlType.DATE)
    if isinstance(node, exp.Sub):
        return _difference(lowering, node, left, right)
    if isinstance(node, exp.Add) and {left.type, right.type} == {SqlType.DATE, SqlType.TIME}:
        sides = (left, right) if left.type is SqlType.DATE else (right, left)
        return Call("date_at", sides, SqlType.TIMESTAMP)
    raise _unknown(lowering, node)


def _difference(lowering: Lowering, node: exp.Binary, left: Expr, right: Expr) -> Expr:
    if left.type is SqlType.UNKNOWN:
        left = lowering.coercion.to(left, right.type, lowering.at(node))
    if right.type is SqlType.UNKNOWN:
        right = lowering.coercion.to(right, left.type, lowering.at(node))
    if left.type is SqlType.DATE and right.type is SqlType.DATE:
        return Cast(Call("days_between", (left, right), SqlType.BIGINT), SqlType.INTEGER)
    if left.type is SqlType.TIME and right.type is SqlType.TIME:
        return Call("times_between", (left, right), SqlType.INTERVAL)
    if left.type.is_moment and right.type.is_moment:
        return Call("moments_between", lowering.coercion.unify((left, right)), SqlType.INTERVAL)
    raise _unknown(lowering, node)


def interval_arithmetic(lowering: Lowering, node: exp.Binary, left: Expr, right: Expr) -> Expr:
    """Lower an operator with an interval."""
    if isinstance(node, exp.Add | exp.Mul) and left.type is SqlType.INTERVAL and right.type is not SqlType.INTERVAL:
        left, right = right, left
    if isinstance(node, exp.Add | exp.Sub) and right.type is SqlType.INTERVAL:
        if left.type is SqlType.UNKNOWN:
            left = lowering.coercion.to(left, SqlType.INTERVAL, lowering.at(node))
        return _shifted(lowering, node, left, right)
    if isinstance(node, exp.Mul) and right.type is SqlType.INTERVAL:
        return computed_interval(Call("interval_multiply", (right, _factor(lowering, node, left)), SqlType.INTERVAL))
    if isinstance(node, exp.Div) and left.type is SqlType.INTERVAL:
        return computed_interval(Call("interval_divide", (left, _factor(lowering, node, right)), SqlType.INTERVAL))
    raise _unknown(lowering, node)


def _shifted(lowering: Lowering, node: exp.Binary, left: Expr, right: Expr) -> Expr:
    verb = "add" if isinstance(node, exp.Add) else "subtract"
    if left.type is SqlType.INTERVAL:
        return computed_interval(Call(f"interval_{verb}", (left, right), SqlType.INTERVAL))
    if left.type is SqlType.TIME:
        return Call(f"time_{verb}", (left, right), SqlType.TIME)
    if left.type.is_moment:
        result = SqlType.TIMESTAMP if left.type is SqlType.DATE else left.type
        return Call(f"moment_{verb}", (left, right), result)
    raise _unknown(lowering, node)


def _factor(lowering: Lowering, node: exp.Binary, factor: Expr) -> Expr:
    if not factor.type.is_number and factor.type is not SqlType.UNKNOWN:
        raise _unknown(lowering, node)
    return lowering.coercion.to(factor, SqlType.DOUBLE, lowering.at(node))


def _unknown(lowering: Lowering, node: exp.Expr) -> DatatypeMismatch:
    return DatatypeMismatch(
        "this operator does not exist for dates, times and intervals", hint=_HINT, position=lowering.at(node)
    )


def _at_time_zone(lowering: Lowering, node: exp.AtTimeZone) -> Expr:
    lowering.only(node, "this", "zone")
    return _timezone(arguments(lowering, node, "timezone", [node.args["zone"], node.this]))


def _timezone(call: Arguments) -> Expr:
    """A timestamp in a constant zone as the instant it is, or an instant as the timestamp of that zone."""
    zone, moment = call.fixed(0), call.moment(1)
    if zone is not None and zone.lower() not in _ZONES:
        raise InvalidParameter(
            f'time zone "{zone[:63]}" not recognized',
            hint="Use a name such as 'Europe/Berlin' or 'UTC'.",
            position=call.at(0),
            queries=replaced(call.nodes[0], "'UTC'"),
        )
    if moment.type is SqlType.DATE:
        moment = Cast(moment, SqlType.TIMESTAMPTZ)
    result = SqlType.TIMESTAMP if moment.type is SqlType.TIMESTAMPTZ else SqlType.TIMESTAMPTZ
    name = None if zone is None else _ZONES[zone.lower()]
    return Call("at_zone", (moment, Literal(name, SqlType.TEXT)), result)


def _interval(lowering: Lowering, node: exp.Interval) -> Expr:
    unit = node.args.get("unit")
    told = f"{node.this.name} {unit.name}" if isinstance(node.this, exp.Literal) and unit is not None else "1 day"
    raise UnsupportedQuery(
        "this form of INTERVAL is not supported",
        hint="Write the quantity and the unit between quotes, without a precision.",
        position=lowering.at(node),
        queries=replaced(node, f"INTERVAL {print_sql(exp.Literal.string(told))}"),
    )


# Parts


def _extract(lowering: Lowering, node: exp.Extract) -> Expr:
    lowering.only(node, "this", "expression")
    found = _part(lowering, node, str(node.this.this), lowering.lower(node.expression))
    return Cast(found, SqlType.NUMERIC, 0 if found.type.is_integer else COMPUTED_SCALE)


def _date_part(call: Arguments) -> Expr:
    part = call.fixed(0)
    if part is None:
        return Literal(None, SqlType.DOUBLE)
    return call.lowering.coercion.to(_part(call.lowering, call.node, part, call.values[1]), SqlType.DOUBLE)


def _part(lowering: Lowering, node: exp.Expr, written: str, subject: Expr) -> Expr:
    if subject.type is SqlType.UNKNOWN:
        subject = lowering.coercion.to(subject, SqlType.TIMESTAMP, lowering.at(node))
    known = _parts_of(subject.type)
    part = PART_NAMES.get(written.strip().lower(), "")
    if not known:
        raise DatatypeMismatch(
            f"this must be a date, timestamp, time or interval, not {subject.type.value}",
            position=lowering.at(node),
        )
    if part not in known:
        raise UnsupportedQuery(
            f'EXTRACT of "{written[:40].lower()}" from {subject.type.value} is not supported',
            hint=f"Supported fields: {', '.join(known)}.",
            position=lowering.at(node),
        )
    if part not in EXTRACT_PARTS:
        return Call(f"extract_{part}", (subject,), SqlType.DOUBLE)
    found = Call(f"extract_{part}", (subject,), SqlType.BIGINT)
    return Cast(found, SqlType.INTEGER) if subject.type is not SqlType.INTERVAL else found


def _parts_of(sql_type: SqlType) -> tuple[str, ...]:
    every = tuple(dict.fromkeys(PART_NAMES.values()))
    match sql_type:
        case SqlType.DATE:
            return tuple(part for part in every if part not in CLOCK_PARTS)
        case SqlType.TIMESTAMP | SqlType.TIMESTAMPTZ:
            return every
        case SqlType.TIME:
            return TIME_PARTS
        case SqlType.INTERVAL:
            return INTERVAL_PARTS
        case _:
            return ()


def _date_trunc_call(lowering: Lowering, node: exp.Anonymous) -> Expr:
    """DATE_TRUNC('unit', moment); other engines have a unit without quotes, or behind the moment."""
    arguments = node.expressions
    if len(arguments) == 2 and isinstance(arguments[0], exp.Column):
        unit, moment = arguments if _is_unit(arguments[0]) else reversed(arguments)
        if _is_unit(unit):
            raise UndefinedFunction(
                "DATE_TRUNC takes a unit in quotes, and then a moment",
                hint="Usage: DATE_TRUNC('unit', moment).",
                position=lowering.at(node),
                queries=replaced(node, f"DATE_TRUNC('{unit.name.lower()}', {print_sql(moment)})"),
            )
    return in_a_row(lowering, node, _date_trunc)


def _is_unit(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Literal) and PART_NAMES.get(node.name.lower(), "") in UNITS


def _date_trunc(call: Arguments) -> Expr:
    written, moment = call.fixed(0), call.moment(1)
    if written is None:
        return Literal(None, SqlType.TIMESTAMPTZ if moment.type is SqlType.DATE else moment.type)
    unit = PART_NAMES.get(written.strip().lower(), "")
    if unit not in UNITS:
        raise UnsupportedQuery(
            f'DATE_TRUNC to "{written[:40].lower()}" is not supported',
            hint=f"Supported units: {', '.join(UNITS)}.",
            position=call.at(0),
            queries=replaced(call.nodes[0], "'month'"),
        )
    if moment.type is not SqlType.DATE:
        return Call(UNITS[unit], (moment,), moment.type)
    # Of a date it is an instant, which is found on the calendar, where it has limits.
    day = as_timestamp(moment) if UNITS[unit].startswith("trunc_to_") else moment
    return Cast(Call(UNITS[unit], (day,), SqlType.TIMESTAMP), SqlType.TIMESTAMPTZ)


# What makes moments and intervals


def _age(call: Arguments) -> Expr:
    """Between two moments by the calendar; of one, until the midnight that today began with."""
    if len(call) == 2:
        return Call("age", (call.timestamp(0), call.timestamp(1)), SqlType.INTERVAL)
    midnight = call.lowering.constants.now.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    return Call("age", (Literal(midnight, SqlType.TIMESTAMP), call.timestamp(0)), SqlType.INTERVAL)


def _make_date(call: Arguments) -> Expr:
    return Call("make_date", tuple(call.integer(index) for index in range(3)), SqlType.DATE)


def _make_time(call: Arguments) -> Expr:
    return Call("make_time", (call.integer(0), call.integer(1), call.double(2)), SqlType.TIME)


def _make_timestamp(call: Arguments) -> Expr:
    whole = tuple(call.integer(index) for index in range(5))
    return Call("make_timestamp", (*whole, call.double(5)), SqlType.TIMESTAMP)


_INTERVAL_ARGUMENTS = {
    **{"years": "1 year", "months": "1 month", "weeks": "7 days", "days": "1 day"},
    **{"hours": "1 hour", "mins": "1 minute", "secs": "1 second"},
}


def _make_interval(lowering: Lowering, node: exp.Anonymous) -> Expr:
    """MAKE_INTERVAL of arguments in their order or by their names: the sum of so many years, months and so on."""
    lowering.only(node, "this", "expressions")
    named: dict[str, exp.Expr] = {}
    for index, argument in enumerate(node.expressions):
        by_name = isinstance(argument, exp.Kwarg)
        name = str(argument.this.this).lower() if by_name else "".join([*_INTERVAL_ARGUMENTS][index : index + 1])
        if name not in _INTERVAL_ARGUMENTS or name in named:
            raise arguments(lowering, node, "make_interval", []).mismatch()
        named[name] = argument.expression if by_name else argument
    call = arguments(lowering, node, "make_interval", list(named.values()))
    if all(isinstance(value, Literal) for value in call.values):
        return _constant_interval(call, [*named])
    total: Expr | None = None
    for index, name in enumerate(named):
        count = lowering.coercion.to(call.double(index) if name == "secs" else call.integer(index), SqlType.DOUBLE)
        unit = Literal(_INTERVAL_ARGUMENTS[name], SqlType.UNKNOWN)
        size = lowering.coercion.to(unit, SqlType.INTERVAL)
        part: Expr = computed_interval(Call("interval_multiply", (size, count), SqlType.INTERVAL))
        total = part if total is None else computed_interval(Call("interval_add", (total, part), SqlType.INTERVAL))
    if total is None:
        raise TypeError("there is an argument that is no constant")
    return total


def _constant_interval(call: Arguments, names: list[str]) -> Expr:
    words = []
    for index, name in enumerate(names):
        count = call.fixed_number(index, whole=name != "secs")
        if count is None:
            return Literal(None, SqlType.INTERVAL)
        words.append(f"{count} {name}")
    try:
        return Literal(intervals.constant(read(SqlType.INTERVAL, " ".join(words) or "0")), SqlType.INTERVAL)
    except DataError:
        raise InvalidParameter("interval out of range", position=call.lowering.at(call.node)) from None


def _date_bin(call: Arguments) -> Expr:
    stride, moment, origin = call.interval(0), call.moment(1), call.moment(2)
    if not isinstance(stride, Literal) or not isinstance(origin, Literal):
        raise UnsupportedQuery("the width and the origin of DATE_BIN must be constants", position=call.at(0))
    written = {call.values[1].type, call.values[2].type} - {SqlType.UNKNOWN}
    # PostgreSQL converts a date to TIMESTAMPTZ here.
    kind = SqlType.TIMESTAMPTZ if written & {SqlType.TIMESTAMPTZ} or written == {SqlType.DATE} else SqlType.TIMESTAMP
    moment, origin = (call.lowering.coercion.to(each, kind, call.at(2)) for each in (moment, origin))
    width = intervals.span(stride.value) if isinstance(stride.value, str) else Span(0, 1, 0)
    if width.months or 86_400_000_000 * width.days + width.microseconds <= 0:
        raise InvalidParameter(
            "the width of DATE_BIN must be positive and without months or years", position=call.at(0)
        )
    return Call("date_bin", (stride, moment, origin), moment.type)


def _is_finite(call: Arguments) -> Expr:
    if call.values[0].type is SqlType.INTERVAL:
        return Call("is_finite", (call.interval(0),), SqlType.BOOLEAN)
    return Call("is_finite", (call.moment(0),), SqlType.BOOLEAN)


def _now(call: Arguments) -> Expr:
    return Literal(call.lowering.constants.now, SqlType.TIMESTAMPTZ)


def _time_of_day(lowering: Lowering, node: exp.Expr) -> Expr:
    lowering.only(node)
    return Literal(lowering.constants.now.time(), SqlType.TIME)


def _justified(call: Arguments) -> Expr:
    """JUSTIFY_DAYS, JUSTIFY_HOURS and JUSTIFY_INTERVAL."""
    return Call(call.name, (call.interval(0),), SqlType.INTERVAL)


METHODS: dict[type[exp.Expr], Method] = {
    exp.Interval: _interval,
    exp.AtTimeZone: _at_time_zone,
    exp.Extract: _extract,
    exp.CurrentTime: _time_of_day,
    exp.Localtime: _time_of_day,
}
BY_NAME: dict[str, Method] = {"make_interval": _make_interval, "date_trunc": _date_trunc_call}
CALLED: dict[str, Called] = {
    "date_part": _date_part,
    "age": _age,
    "make_date": _make_date,
    "make_time": _make_time,
    "make_timestamp": _make_timestamp,
    "timezone": _timezone,
    "date_bin": _date_bin,
    "isfinite": _is_finite,
    **dict.fromkeys(("justify_days", "justify_hours", "justify_interval"), _justified),
    "transaction_timestamp": _now,
    "statement_timestamp": _now,
    "clock_timestamp": _now,
}
