"""arithmetic: operators and functions of numbers.

Rule: integers stay integers; all else is computed in double precision, and of numerics it is rounded to one. What
jumps (FLOOR, SIGN, a remainder) or divides takes its numbers rounded.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from math import inf, pi
from typing import TypeGuard

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called, in_a_row
from dpsql.compiler.expressions.datetimes import interval_arithmetic, is_temporal, moment_arithmetic
from dpsql.compiler.ir.nodes import COMPUTED_SCALE, Call, Cast, Expr, Literal
from dpsql.compiler.ir.walk import as_numeric
from dpsql.compiler.scope.coercion import common_type
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.sql.constant_folding import computed_interval
from dpsql.compiler.sql.literals import number, typed
from dpsql.errors import DatatypeMismatch, DivisionByZero, InvalidParameter, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_BUCKETS = 100_000
MAX_WIDTH = 10**15
"""How far the bounds of buckets of numerics may be apart."""
MAX_FOLDED = 27
"""Digits up to which Python's decimals are exact."""

_BINARY: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Add: ("add", "+"),
    exp.Sub: ("subtract", "-"),
    exp.Mul: ("multiply", "*"),
    exp.Div: ("divide", "/"),
    exp.Mod: ("modulo", "%"),
}
_BITS: dict[type[exp.Expr], tuple[str, str]] = {
    exp.BitwiseAnd: ("bit_and", "&"),
    exp.BitwiseOr: ("bit_or", "|"),
    exp.BitwiseXor: ("bit_xor", "#"),
}
_FLOATS = frozenset({SqlType.REAL, SqlType.DOUBLE})
_WIDTHS = {SqlType.SMALLINT: 16, SqlType.INTEGER: 32, SqlType.BIGINT: 64}


def _arithmetic(lowering: Lowering, node: exp.Binary) -> Expr:
    lowering.only(node, "this", "expression", "typed", "safe")
    left, right = lowering.lower(node.this), lowering.lower(node.expression)
    if SqlType.INTERVAL in (left.type, right.type):
        return interval_arithmetic(lowering, node, left, right)
    if is_temporal(left.type) or is_temporal(right.type):
        return moment_arithmetic(lowering, node, left, right)
    name, symbol = _BINARY[type(node)]
    return _of_numbers(lowering, node, name, symbol, left, right)


def _of_numbers(lowering: Lowering, node: exp.Expr, name: str, symbol: str, left: Expr, right: Expr) -> Expr:
    if left.type is SqlType.UNKNOWN and right.type is SqlType.UNKNOWN:
        left = lowering.coercion.to(left, SqlType.DOUBLE, lowering.at(node))
    folded = _folded(name, left, right)
    if folded is not None:
        return folded
    if name in ("divide", "modulo") and _is_number(left) and _is_number(right) and not right.value:
        raise DivisionByZero("division by zero", position=lowering.at(node))
    target = common_type((left, right), lowering.at(node))
    if target is SqlType.REAL and not {left.type, right.type} <= {SqlType.REAL, SqlType.UNKNOWN}:
        target = SqlType.DOUBLE
    if not target.is_number:
        raise DatatypeMismatch(f"operator {symbol} needs numbers, not {target.value}", position=lowering.at(node))
    if target.is_integer:
        return Call(f"int_{name}", lowering.coercion.unify((left, right), lowering.at(node)), target)
    if target is SqlType.NUMERIC and name == "modulo":
        return Call("numeric_modulo", lowering.coercion.unify((left, right), lowering.at(node)), target)
    left, right = (lowering.coercion.to(side, target, lowering.at(node)) for side in (left, right))
    right = lowering.coercion.rounded(right) if name == "divide" else right
    found = Call(name, tuple(lowering.coercion.to(side, SqlType.DOUBLE) for side in (left, right)), SqlType.DOUBLE)
    is_too_long = name in _EXACT and isinstance(left, Literal) and isinstance(right, Literal)
    return found if is_too_long else _of_type(found, target)


def _is_number(expression: Expr) -> TypeGuard[Literal]:
    """True of a number that is written in the query."""
    return (
        isinstance(expression, Literal)
        and expression.parameter is None
        and isinstance(expression.value, int | float | Decimal)
        and not isinstance(expression.value, bool)
    )


_EXACT: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}


def _folded(name: str, left: Expr, right: Expr) -> Literal | None:
    """What numeric constants give, exactly: 0.06 + 0.01 is 0.07, which no float is."""
    if name not in _EXACT or SqlType.NUMERIC not in (left.type, right.type):
        return None
    if not isinstance(left, Literal) or not isinstance(right, Literal):
        return None
    if not isinstance(left.value, int | Decimal) or not isinstance(right.value, int | Decimal):
        return None
    found = _EXACT[name](Decimal(left.value), Decimal(right.value))
    exact = len(found.as_tuple().digits) <= MAX_FOLDED
    return Literal(found, SqlType.NUMERIC) if exact else None


def _bits(lowering: Lowering, node: exp.Binary) -> Expr:
    name, symbol = _BITS[type(node)]
    sides = lowering.coercion.unify((lowering.lower(node.this), lowering.lower(node.expression)), lowering.at(node))
    if not sides[0].type.is_integer:
        raise DatatypeMismatch(
            f"operator {symbol} needs integers, not {sides[0].type.value}", position=lowering.at(node)
        )
    return Call(name, sides, sides[0].type)


def _bit_not(lowering: Lowering, node: exp.BitwiseNot) -> Expr:
    argument = _whole_number(lowering, node.this, "~")
    return Call("bit_not", (argument,), argument.type)


def _whole_number(lowering: Lowering, node: exp.Expr, symbol: str) -> Expr:
    argument = lowering.number(node)
    if not argument.type.is_integer:
        raise DatatypeMismatch(
            f"operator {symbol} needs integers, not {argument.type.value}", position=lowering.at(node)
        )
    return argument


def _shift(lowering: Lowering, node: exp.Binary) -> Expr:
    """Shifts by a constant; to the left it is a multiplication, NULL where bits would be lost."""
    left = isinstance(node, exp.BitwiseLeftShift)
    argument = _whole_number(lowering, node.this, "<<" if left else ">>")
    width = _WIDTHS[argument.type]
    count = lowering.whole(node.expression, "<<" if left else ">>", 0, width - 2).value
    if not isinstance(count, int):
        return Literal(None, argument.type)
    if left:
        return Call("int_multiply", (argument, Literal(2**count, argument.type)), argument.type)
    return Call("shift_right", (argument, Literal(count, argument.type)), argument.type)


def _negation(lowering: Lowering, node: exp.Neg) -> Expr:
    inside, is_negative = node.this.unnest(), True
    while isinstance(inside, exp.Neg):
        inside, is_negative = inside.this.unnest(), not is_negative
    if isinstance(inside, exp.Literal) and not inside.is_string:
        text, at = str(inside.this), lowering.at(node)
        return _negative(text, at) if is_negative else number(text, at)
    argument = lowering.lower(node.this)
    if argument.type is SqlType.INTERVAL:
        return computed_interval(Call("interval_negate", (argument,), SqlType.INTERVAL))
    if argument.type.is_integer:
        return Call("int_negate", (argument,), argument.type)
    if argument.type is not SqlType.UNKNOWN and not argument.type.is_number:
        raise DatatypeMismatch(f"operator - needs numbers, not {argument.type.value}", position=lowering.at(node))
    found = Call("negate", (lowering.coercion.to(argument, SqlType.DOUBLE, lowering.at(node)),), SqlType.DOUBLE)
    return _of_type(found, argument.type)


def _of_type(computed: Expr, kind: SqlType) -> Expr:
    """A number that was computed in double precision, as PostgreSQL gives it for arguments of a type."""
    if kind is SqlType.REAL:
        return Cast(computed, SqlType.REAL)
    return as_numeric(computed) if kind is SqlType.NUMERIC else computed


def _negative(text: str, at: int | None) -> Literal:
    """The opposite of a number as written: -2147483648 is an integer, and 2147483648 none."""
    literal = number(text, at)
    if not isinstance(literal.value, int | Decimal):
        raise TypeError("a number is an int or a Decimal")
    return typed(-int(literal.value), at) if text.isdecimal() else Literal(-literal.value, literal.type)


def _power(lowering: Lowering, node: exp.Pow) -> Expr:
    return _of_numerics(lowering, "power", [lowering.number(node.this), lowering.number(node.expression)])


def _root(lowering: Lowering, node: exp.Expr) -> Expr:
    if isinstance(node, exp.Sqrt):
        return _of_numerics(lowering, "sqrt", [lowering.number(node.this)])
    return Call("cbrt", (lowering.double(node.this),), SqlType.DOUBLE)


def _float(name: str) -> Called:
    """A function of any number of DOUBLE PRECISION arguments."""

    def lower(call: Arguments) -> Expr:
        return Call(name, tuple(call.double(index) for index in range(len(call))), SqlType.DOUBLE)

    return lower


def _of_numerics(lowering: Lowering, name: str, numbers: Sequence[Expr]) -> Expr:
    """A function that PostgreSQL defines for NUMERIC as well as for DOUBLE PRECISION."""
    found = Call(name, tuple(lowering.coercion.to(each, SqlType.DOUBLE) for each in numbers), SqlType.DOUBLE)
    return as_numeric(found) if common_type(numbers) is SqlType.NUMERIC else found


def _numeric(name: str) -> Called:
    """Such a function that is called by name."""

    def lower(call: Arguments) -> Expr:
        return _of_numerics(call.lowering, name, [call.number(index) for index in range(len(call))])

    return lower


def _operator(name: str, symbol: str) -> Called:
    """A function that is an operator by another name."""

    def lower(call: Arguments) -> Expr:
        return _of_numbers(call.lowering, call.node, name, symbol, call.number(0), call.number(1))

    return lower


def _abs(call: Arguments) -> Expr:
    argument = call.number(0)
    if argument.type.is_integer:
        return Call("int_abs", (argument,), argument.type)
    return _of_type(Call("abs", (call.double(0),), SqlType.DOUBLE), argument.type)


def _sign(call: Arguments) -> Expr:
    argument = call.number(0)
    found = Call("sign", (call.lowering.coercion.rounded(argument),), SqlType.DOUBLE)
    return as_numeric(found) if argument.type is SqlType.NUMERIC else found


def _div(call: Arguments) -> Expr:
    """The whole part of a quotient, as numeric."""
    quotient = _operator("divide", "/")(call)
    if not quotient.type.is_integer:
        quotient = Call("trunc", (quotient,), SqlType.DOUBLE)
    return Cast(quotient, SqlType.NUMERIC, 0)


def _log(call: Arguments) -> Expr:
    return _numeric("log10" if len(call) == 1 else "log")(call)


def _common_divisor(name: str) -> Called:
    def lower(call: Arguments) -> Expr:
        sides = (call.bigint(0), call.bigint(1))
        known = [value.type for value in call.values if value.type.is_integer]
        target = max(known, key=list(_WIDTHS).index, default=SqlType.BIGINT)
        return Cast(Call(name, sides, SqlType.BIGINT), target)

    return lower


def _pi(_call: Arguments) -> Expr:
    return Literal(pi, SqlType.DOUBLE)


def _rounding(name: str) -> Called:
    """FLOOR or CEIL, which PostgreSQL has of numerics and of double precision, to which it casts integers."""

    def lower(call: Arguments) -> Expr:
        argument = call.number(0)
        if argument.type.is_integer:
            return call.double(0)
        rounded = Call(name, (call.lowering.coercion.rounded(argument),), SqlType.DOUBLE)
        return Cast(rounded, SqlType.NUMERIC, 0) if argument.type is SqlType.NUMERIC else rounded

    return lower


def _round(call: Arguments) -> Expr:
    """To a whole number, or to a constant count of digits as numeric; halves of a float to even, of others away."""
    argument = call.number(0)
    if len(call) == 1 and argument.type in (SqlType.DOUBLE, SqlType.REAL):
        return Call("round", (call.double(0),), SqlType.DOUBLE)
    if len(call) == 1 and argument.type.is_integer:
        return call.double(0)
    digits = _digits(call)
    if digits is None:
        return Literal(None, SqlType.NUMERIC)
    if digits >= 0:
        return Cast(argument, SqlType.NUMERIC, digits)
    return Call("round_digits", (_exact(argument), Literal(digits, SqlType.INTEGER)), SqlType.NUMERIC)


def _trunc(call: Arguments) -> Expr:
    argument = call.number(0)
    if len(call) == 1 and argument.type in (SqlType.DOUBLE, SqlType.REAL):
        return Call("trunc", (call.double(0),), SqlType.DOUBLE)
    if len(call) == 1 and argument.type.is_integer:
        return call.double(0)
    digits = _digits(call)
    if digits is None:
        return Literal(None, SqlType.NUMERIC)
    return Call("trunc_digits", (_exact(argument), Literal(digits, SqlType.INTEGER)), SqlType.NUMERIC)


def _digits(call: Arguments) -> int | None:
    return call.whole(1, -COMPUTED_SCALE, COMPUTED_SCALE) if len(call) == 2 else 0


def _exact(argument: Expr) -> Expr:
    """A number as numeric, with as many digits after the point as there may be."""
    return argument if argument.type is SqlType.NUMERIC else Cast(argument, SqlType.NUMERIC, COMPUTED_SCALE)


def _width_bucket(call: Arguments) -> Expr:
    """Buckets of equal width; limits that go down are those of the negated number that go up."""
    count = call.whole(3, 1, MAX_BUCKETS)
    low, high = (_limit(call, index) for index in (1, 2))
    if count is None or low is None or high is None:
        return Literal(None, SqlType.INTEGER)
    if low == high:
        raise InvalidParameter("lower bound cannot equal upper bound", position=call.at(1))
    types = {value.type for value in call.values[:3]}
    is_exact = SqlType.NUMERIC in types and not types & _FLOATS
    if (abs(high - low) > MAX_WIDTH) if is_exact else (float(abs(high - low)) == inf):
        raise InvalidParameter("the bounds of WIDTH_BUCKET are too far apart", position=call.at(1))
    subject = call.number(0)
    if low > high:
        subject, low, high = Call("negate", (call.double(0),), SqlType.DOUBLE), -low, -high
    whole = Literal(count, SqlType.BIGINT)
    if is_exact:
        limits = (Literal(low, SqlType.NUMERIC), Literal(high, SqlType.NUMERIC), whole)
        found = Call("numeric_width_bucket", (call.lowering.coercion.scaled(subject), *limits), SqlType.BIGINT)
    else:
        limits = (Literal(float(low), SqlType.DOUBLE), Literal(float(high), SqlType.DOUBLE), whole)
        found = Call("width_bucket", (call.lowering.coercion.to(subject, SqlType.DOUBLE), *limits), SqlType.BIGINT)
    return Cast(found, SqlType.INTEGER)


def _bucket(lowering: Lowering, node: exp.Anonymous) -> Expr:
    """WIDTH_BUCKET of two bounds and a count, or of an array of thresholds: the number of thresholds reached."""
    number, array = node.expressions if len(node.expressions) == 2 else (None, None)
    if number is None or not isinstance(array, exp.Array) or not array.expressions:
        return in_a_row(lowering, node, _width_bucket)
    limits = [lowering.lower(each) for each in array.expressions]
    values = [each.value for each in limits if isinstance(each, Literal) and isinstance(each.value, int | Decimal)]
    if len(values) < len(limits) or values != sorted(values):
        raise UnsupportedQuery(
            "the array of WIDTH_BUCKET must hold constant numbers, the least first", position=lowering.at(array)
        )
    branches = [exp.If(this=exp.Is(this=number, expression=exp.Null()), true=exp.Null())]
    for count, limit in enumerate(array.expressions):
        branches.append(exp.If(this=exp.LT(this=number, expression=limit), true=exp.Literal.number(count)))
    return lowering.lower(exp.Case(ifs=branches, default=exp.Literal.number(len(limits))))


def _limit(call: Arguments, index: int) -> Decimal | None:
    """A constant bound, also beneath a cast; None if it is NULL or an unbound parameter."""
    limit = call.number(index)
    while isinstance(limit, Cast) and limit.scale is None and limit.type in (SqlType.DOUBLE, SqlType.NUMERIC):
        limit = limit.argument
    if not isinstance(limit, Literal):
        raise UnsupportedQuery(
            "the bounds of WIDTH_BUCKET must be constants",
            hint="Give the bounds and the number of buckets as constants.",
            position=call.at(index),
        )
    return Decimal(limit.value) if isinstance(limit.value, int | float | Decimal) else None


METHODS: dict[type[exp.Expr], Method] = {
    **dict.fromkeys(_BINARY, _arithmetic),
    **dict.fromkeys(_BITS, _bits),
    exp.BitwiseNot: _bit_not,
    exp.BitwiseLeftShift: _shift,
    exp.BitwiseRightShift: _shift,
    exp.Neg: _negation,
    exp.Pow: _power,
    exp.Sqrt: _root,
    exp.Cbrt: _root,
}
BY_NAME: dict[str, Method] = {"width_bucket": _bucket}
CALLED: dict[str, Called] = {
    "abs": _abs,
    "sign": _sign,
    "ceil": _rounding("ceil"),
    "ceiling": _rounding("ceil"),
    "floor": _rounding("floor"),
    "round": _round,
    "trunc": _trunc,
    "mod": _operator("modulo", "%"),
    "div": _div,
    "power": _numeric("power"),
    "pow": _numeric("power"),
    "log": _log,
    "log10": _numeric("log10"),
    "pi": _pi,
    "gcd": _common_divisor("gcd"),
    "lcm": _common_divisor("lcm"),
    "width_bucket": _width_bucket,
    **{name: _float(name) for name in ("cbrt", "degrees", "radians", "atan2")},
    **{name: _numeric(name) for name in ("sqrt", "exp", "ln")},
    **{name: _float(name) for name in ("sin", "cos", "tan", "cot", "asin", "acos", "atan")},
    **{name: _float(name) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")},
}
