"""casts: explicit conversions, NULL where a value does not fit."""

from sqlglot import exp

from dpsql.compiler.ir import Cast, Expr
from dpsql.compiler.lowering import Lowering, Method
from dpsql.errors import DatatypeMismatch, UnsupportedQuery
from dpsql.sqltypes import SqlType, parse_type


def _cast(lowering: Lowering, node: exp.Cast) -> Expr:
    lowering.only(node, "this", "to", "_type")
    target, scale = _target(lowering, node)
    argument = lowering.lower(node.this)
    if argument.type is SqlType.UNKNOWN:
        return lowering.coercion.to(argument, target, lowering.at(node))
    return _cast_to(lowering, argument, target, node, scale)


def type_name(written: exp.Expr) -> str:
    """The name of a type as written; the parser calls real FLOAT, and PostgreSQL's float DOUBLE."""
    name = str(getattr(written.this, "value", written.this)).lower()
    return "real" if name == "float" else name


def _target(lowering: Lowering, node: exp.Cast) -> tuple[SqlType, int | None]:
    written = node.args["to"]
    name = type_name(written)
    try:
        target = parse_type(name)
    except ValueError:
        target = SqlType.ARRAY
    if target in (SqlType.ARRAY, SqlType.JSON, SqlType.BYTEA, SqlType.INTERVAL):
        raise UnsupportedQuery(f"a CAST to {name} is not supported", position=lowering.at(node))
    numbers = [int(str(parameter.this)) for parameter in written.expressions if str(parameter.this).isdecimal()]
    if target is SqlType.NUMERIC:
        if not numbers:
            return SqlType.DOUBLE, None
        scale = numbers[1] if len(numbers) > 1 else 0
        if scale > 15:
            raise UnsupportedQuery("numeric has 15 digits after the point at the most", position=lowering.at(node))
        return target, scale
    if numbers:
        raise UnsupportedQuery(
            f"a CAST to {name} with a length is not supported", hint="Use LEFT(x, n).", position=lowering.at(node)
        )
    return target, None


def _cast_to(lowering: Lowering, argument: Expr, target: SqlType, node: exp.Expr, scale: int | None = None) -> Expr:
    source = argument.type
    if source is target and scale is None:
        return argument
    text = SqlType.TEXT
    allowed = (
        (source.is_number and target.is_number)
        or (source.is_text and target not in (SqlType.TIMESTAMPTZ,))
        or (source.is_moment and target.is_moment)
        or (target is text and source in (SqlType.BOOLEAN, SqlType.DATE, SqlType.TIME, SqlType.UUID))
        or (target.is_text and (source.is_integer or source is SqlType.NUMERIC or source is SqlType.TIMESTAMP))
        or (source is SqlType.BOOLEAN and target is SqlType.INTEGER)
        or (source is SqlType.INTEGER and target is SqlType.BOOLEAN)
    )
    if not allowed:
        raise DatatypeMismatch(f"cannot cast type {source.value} to {target.value}", position=lowering.at(node))
    return Cast(argument, target, scale)


def as_text(lowering: Lowering, node: exp.Expr) -> Expr:
    """Lower an expression of any type that prints, as text."""
    lowered = lowering.value(node)
    return lowered if lowered.type.is_text else _cast_to(lowering, lowered, SqlType.TEXT, node)


METHODS: dict[type[exp.Expr], Method] = {exp.Cast: _cast}
