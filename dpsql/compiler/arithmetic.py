"""arithmetic: operators and functions of numbers; integers stay integers, all else is double precision."""

from decimal import Decimal

from sqlglot import exp

from dpsql.compiler.ir import Call, Cast, Expr, Literal
from dpsql.compiler.literals import number
from dpsql.compiler.lowering import Lowering, Method
from dpsql.compiler.moments import add_interval, moment_arithmetic
from dpsql.errors import DatatypeMismatch
from dpsql.sqltypes import SqlType

_BINARY: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Add: ("add", "+"),
    exp.Sub: ("subtract", "-"),
    exp.Mul: ("multiply", "*"),
    exp.Div: ("divide", "/"),
    exp.Mod: ("modulo", "%"),
}
_FLOAT_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Sqrt: "sqrt",
    exp.Exp: "exp",
    exp.Ln: "ln",
    exp.Sign: "sign",
}
_ROUNDINGS: dict[type[exp.Expr], str] = {exp.Floor: "floor", exp.Ceil: "ceil", exp.Trunc: "trunc"}


def _arithmetic(lowering: Lowering, node: exp.Binary) -> Expr:
    name, symbol = _BINARY[type(node)]
    lowering.only(node, "this", "expression", "typed", "safe")
    if isinstance(node.expression, exp.Interval):
        return add_interval(lowering, node)
    left, right = lowering.lower(node.this), lowering.lower(node.expression)
    if left.type.is_moment or right.type.is_moment:
        return moment_arithmetic(lowering, node, left, right)
    if left.type is SqlType.UNKNOWN and right.type is SqlType.UNKNOWN:
        left = lowering.coercion.to(left, SqlType.DOUBLE, lowering.at(node))
    left, right = lowering.coercion.unify((left, right), lowering.at(node))
    if not left.type.is_number:
        raise DatatypeMismatch(f"operator {symbol} is for numbers, not {left.type.value}", position=lowering.at(node))
    if left.type.is_integer:
        return Call(f"int_{name}", (left, right), left.type)
    floats = tuple(lowering.coercion.to(side, SqlType.DOUBLE) for side in (left, right))
    return Call(name, floats, SqlType.DOUBLE)


def _negation(lowering: Lowering, node: exp.Neg) -> Expr:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _negated_literal(lowering, number(str(node.this.this), lowering.at(node)))
    argument = lowering.number(node.this)
    if argument.type.is_integer:
        return Call("int_negate", (argument,), argument.type)
    return Call("negate", (lowering.coercion.to(argument, SqlType.DOUBLE),), SqlType.DOUBLE)


def _negated_literal(lowering: Lowering, literal: Literal) -> Literal:
    value = literal.value
    if not isinstance(value, int | Decimal):
        raise TypeError("a number is an int or a Decimal")
    return Literal(-value, literal.type)


def _abs(lowering: Lowering, node: exp.Abs) -> Expr:
    argument = lowering.number(node.this)
    if argument.type.is_integer:
        return Call("int_abs", (argument,), argument.type)
    return Call("abs", (lowering.coercion.to(argument, SqlType.DOUBLE),), SqlType.DOUBLE)


def _power(lowering: Lowering, node: exp.Pow) -> Expr:
    return Call("power", (lowering.double(node.this), lowering.double(node.expression)), SqlType.DOUBLE)


def _float_function(lowering: Lowering, node: exp.Expr) -> Expr:
    lowering.only(node, "this")
    return Call(_FLOAT_FUNCTIONS[type(node)], (lowering.double(node.this),), SqlType.DOUBLE)


def _log(lowering: Lowering, node: exp.Log) -> Expr:
    lowering.only(node, "this")
    return Call("log10", (lowering.double(node.this),), SqlType.DOUBLE)


def _rounding(lowering: Lowering, node: exp.Expr) -> Expr:
    lowering.only(node, "this")
    argument = lowering.number(node.this)
    if argument.type.is_integer:
        return argument
    rounded = Call(_ROUNDINGS[type(node)], (lowering.coercion.to(argument, SqlType.DOUBLE),), SqlType.DOUBLE)
    return Cast(rounded, SqlType.NUMERIC, 0) if argument.type is SqlType.NUMERIC else rounded


def _round(lowering: Lowering, node: exp.Round) -> Expr:
    lowering.only(node, "this", "decimals")
    argument = lowering.number(node.this)
    if node.args.get("decimals") is None:
        if argument.type.is_integer:
            return argument
        if argument.type is not SqlType.NUMERIC:
            return Call("round", (lowering.coercion.to(argument, SqlType.DOUBLE),), SqlType.DOUBLE)
        return Cast(lowering.coercion.to(argument, SqlType.DOUBLE), SqlType.NUMERIC, 0)
    digits = lowering.whole(node.args["decimals"], "ROUND", 0, 15).value
    scale = digits if isinstance(digits, int) else 0  # a placeholder's value is not known while it is described
    return Cast(lowering.coercion.to(argument, SqlType.DOUBLE), SqlType.NUMERIC, scale)


METHODS: dict[type[exp.Expr], Method] = {
    **dict.fromkeys(_BINARY, _arithmetic),
    exp.Neg: _negation,
    exp.Abs: _abs,
    exp.Pow: _power,
    **dict.fromkeys(_FLOAT_FUNCTIONS, _float_function),
    exp.Log: _log,
    **dict.fromkeys(_ROUNDINGS, _rounding),
    exp.Round: _round,
}
