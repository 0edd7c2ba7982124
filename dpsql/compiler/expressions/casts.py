"""casts: explicit conversions, NULL where a value does not fit."""

from decimal import Decimal

from sqlglot import exp

from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.nodes import COMPUTED_SCALE, MAX_PRECISION, Call, Cast, Expr, Literal
from dpsql.compiler.ir.walk import as_numeric
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import DataError, DatatypeMismatch, InvalidParameter, UnsupportedQuery
from dpsql.sqltypes import INTEGER_RANGES, SqlType, parse_type
from dpsql.sqltypes.textinput import read_fields

MAX_LENGTH = 10_000

# Text is converted only where PostgreSQL reads it as a value of the type.
_GUARDS = {
    SqlType.SMALLINT: "integer_text",
    SqlType.INTEGER: "integer_text",
    SqlType.BIGINT: "integer_text",
    SqlType.NUMERIC: "number_text",
    SqlType.REAL: "number_text",
    SqlType.DOUBLE: "number_text",
    SqlType.DATE: "date_text",
    SqlType.TIMESTAMP: "date_text",
    SqlType.TIME: "time_text",
}


def _cast(lowering: Lowering, node: exp.Cast) -> Expr:
    lowering.only(node, "this", "to", "_type")
    target, numbers = _target(lowering, node)
    argument = lowering.lower(node.this)
    if target is SqlType.INTERVAL:
        return _to_interval(lowering, node, argument)
    if target is SqlType.NUMERIC:
        return _to_numeric(lowering, node, argument, numbers)
    if target in (SqlType.VARCHAR, SqlType.CHAR) and numbers:
        return _cut(lowering, node, argument, target, numbers[0])
    if argument.type is SqlType.UNKNOWN:
        return lowering.coercion.to(argument, target, lowering.at(node))
    return cast_to(lowering, argument, target, node)


def type_name(written: exp.Expr) -> str:
    """The name of a type as written; the parser calls real FLOAT, and PostgreSQL's float DOUBLE."""
    if isinstance(written.this, exp.Interval):
        return "interval"
    name = str(getattr(written.this, "value", written.this)).lower()
    return "real" if name == "float" else name


def _target(lowering: Lowering, node: exp.Cast) -> tuple[SqlType, tuple[int, ...]]:
    """The type a cast is to, and the numbers in its parentheses."""
    written = node.args["to"]
    name = type_name(written)
    try:
        target = SqlType.JSONB if name == "jsonb" else parse_type(name)
    except ValueError:
        target = SqlType.ARRAY
    if target in (SqlType.ARRAY, SqlType.BYTEA):
        raise UnsupportedQuery(
            f"CAST to {written.args.get('kind') or name} is not supported",
            hint="Use numeric or text." if name == "money" else None,
            position=lowering.at(node),
            queries=replaced(written, "numeric(20, 2)") if name == "money" else (),
        )
    numbers = tuple(int(str(each.this)) for each in written.expressions if str(each.this).isdecimal())
    if target is SqlType.CHAR and not numbers and name == "char":
        numbers = (1,)
    if numbers and target not in (SqlType.NUMERIC, SqlType.VARCHAR, SqlType.CHAR):
        raise UnsupportedQuery(
            f"CAST to {name} with a length or precision is not supported",
            hint="Only numeric(p, s), varchar(n) and char(n) take one.",
            position=lowering.at(node),
        )
    return target, numbers


def _to_numeric(lowering: Lowering, node: exp.Cast, argument: Expr, numbers: tuple[int, ...]) -> Expr:
    """Lower a cast to numeric(p, s), which is NULL on overflow; numeric without a precision rounds nothing."""
    if not numbers:
        if isinstance(argument, Literal) and isinstance(argument.value, int) and argument.type in INTEGER_RANGES:
            return Literal(Decimal(argument.value), SqlType.NUMERIC)
        if argument.type in (SqlType.UNKNOWN, SqlType.NUMERIC):
            return lowering.coercion.to(argument, SqlType.NUMERIC, lowering.at(node))
        if argument.type.is_integer:
            return Cast(argument, SqlType.NUMERIC, 0)
        return as_numeric(cast_to(lowering, argument, SqlType.DOUBLE, node))
    precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    if scale > COMPUTED_SCALE:
        raise UnsupportedQuery(
            f"numeric has at most {COMPUTED_SCALE} digits after the point", position=lowering.at(node)
        )
    if not scale <= precision <= MAX_PRECISION or precision == 0:
        raise UnsupportedQuery(
            f"numeric has at most {MAX_PRECISION} digits, and its scale must not exceed its precision",
            position=lowering.at(node),
        )
    if argument.type is SqlType.UNKNOWN:
        argument = lowering.coercion.to(argument, SqlType.NUMERIC, lowering.at(node))
    cast = cast_to(lowering, argument, SqlType.NUMERIC, node, scale)
    if precision == MAX_PRECISION:
        return cast
    limit = Literal(10 ** (precision - scale), SqlType.DOUBLE)
    return Call("numeric_within", (cast, limit), SqlType.NUMERIC)


def _cut(lowering: Lowering, node: exp.Cast, argument: Expr, target: SqlType, length: int) -> Expr:
    """varchar(n) or char(n): the first characters; the blanks that fill a char are not kept."""
    if not 1 <= length <= MAX_LENGTH:
        raise InvalidParameter(f"the length of a type must be from 1 to {MAX_LENGTH:,}", position=lowering.at(node))
    if argument.type is SqlType.UNKNOWN:
        argument = lowering.coercion.to(argument, SqlType.TEXT, lowering.at(node))
    text = printed(lowering, argument, node)
    cut = Call("left", (text, Literal(length, SqlType.BIGINT)), target)
    return Call("rtrim", (cut, Literal(" ", SqlType.TEXT)), target) if target is SqlType.CHAR else cut


def _to_interval(lowering: Lowering, node: exp.Cast, argument: Expr) -> Expr:
    """A constant with the fields that follow the type, if any; an interval stays what it is."""
    unit = node.args["to"].this.args.get("unit") if isinstance(node.args["to"].this, exp.Interval) else None
    if unit is None and not node.args["to"].expressions:
        if argument.type in (SqlType.UNKNOWN, SqlType.INTERVAL):
            return lowering.coercion.to(argument, SqlType.INTERVAL, lowering.at(node))
        if argument.type is SqlType.TIME:
            midnight = Literal("00:00:00", SqlType.TIME)
            return Call("times_between", (argument, midnight), SqlType.INTERVAL)
        raise DatatypeMismatch(f"cannot cast type {argument.type.value} to interval", position=lowering.at(node))
    if unit is None or not isinstance(argument, Literal) or argument.type is not SqlType.UNKNOWN:
        raise UnsupportedQuery(
            "interval fields such as DAY are only supported for constants", position=lowering.at(node)
        )
    return _with_fields(lowering, node, unit, argument)


def _with_fields(lowering: Lowering, node: exp.Cast, unit: exp.Expr, argument: Literal) -> Expr:
    text = argument.value
    if text is None:
        return Literal(None, SqlType.INTERVAL)
    single = not isinstance(unit, exp.IntervalSpan)
    words = [str(unit.this)] if single else [str(unit.this.this), str(unit.expression.this)]
    fields = tuple(word.lower() for word in words)
    try:
        return Literal(intervals.constant(read_fields(str(text), fields)), SqlType.INTERVAL)
    except DataError as error:
        error.hint = "INTERVAL '5' DAY, INTERVAL '1-2' YEAR TO MONTH, INTERVAL '1 02:00:00' DAY TO SECOND"
        error.position = lowering.at(node)
        raise


def cast_to(lowering: Lowering, argument: Expr, target: SqlType, node: exp.Expr, scale: int | None = None) -> Expr:
    """A value of another type; NULL where it has none.

    Raises:
        DatatypeMismatch: Values of this type have none of the other.
    """
    source = argument.type
    if source is target and scale is None:
        return argument
    if not _is_allowed(source, target):
        raise DatatypeMismatch(f"cannot cast type {source.value} to {target.value}", position=lowering.at(node))
    if source.is_text and target is SqlType.BOOLEAN:
        return Call("text_to_boolean", (argument,), SqlType.BOOLEAN)
    if source.is_text and target.is_json:
        return Call("text_to_json", (argument,), target)
    if source.is_text and target in _GUARDS:
        argument = Call(_GUARDS[target], (argument,), SqlType.TEXT)
    if source is SqlType.DOUBLE and target.is_text:
        return Call("float_to_text", (argument,), target)
    return Cast(argument, target, scale)


def _is_allowed(source: SqlType, target: SqlType) -> bool:
    # The engine prints a real with digits that PostgreSQL leaves out.
    printable = (source.is_number and source is not SqlType.REAL) or source.is_moment
    printable |= source in (SqlType.BOOLEAN, SqlType.TIME, SqlType.UUID)
    return (
        (source.is_number and target.is_number)
        or (source.is_text and target is not SqlType.TIMESTAMPTZ)
        or (source.is_moment and target.is_moment)
        or (source.is_json and target.is_json)
        or (target.is_text and printable)
        or (source in (SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ) and target is SqlType.TIME)
        or (source is SqlType.BOOLEAN and target is SqlType.INTEGER)
        or (source is SqlType.INTEGER and target is SqlType.BOOLEAN)
    )


def printed(lowering: Lowering, value: Expr, node: exp.Expr) -> Expr:
    """A value of any type that prints, as text."""
    if value.type is SqlType.UNKNOWN:
        return lowering.coercion.to(value, SqlType.TEXT, lowering.at(node))
    return value if value.type.is_text else cast_to(lowering, value, SqlType.TEXT, node)


def _date(lowering: Lowering, node: exp.Date) -> Expr:
    """`date(x)`, which is `CAST(x AS date)`."""
    lowering.only(node, "this")
    return _cast(lowering, exp.Cast(this=node.this, to=exp.DataType(this=exp.DType.DATE)))


METHODS: dict[type[exp.Expr], Method] = {exp.Cast: _cast, exp.Date: _date}
