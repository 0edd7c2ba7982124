"""Calls as PostgreSQL's spellings take them: operations by their type, patterns and formats in its words."""

import re
from collections.abc import Callable
from dataclasses import replace
from math import pi

from dpsql.compiler.dialects.postgres_guards import stays_normal
from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.functions import UNITS, leaves_most
from dpsql.compiler.ir.nodes import Call, Cast, Expr, Literal
from dpsql.errors import UnsupportedQuery
from dpsql.sqltypes import SqlType

Adapt = Callable[[Call], Call]

MAX_BIN_DAYS = 100_000
"""The widest bin, so that a place in it has whole microseconds as a floating-point number."""
_DAY = 86_400_000_000
_SIZES = {SqlType.SMALLINT: "small", SqlType.INTEGER: "int", SqlType.BIGINT: "big"}


def adapted(call: Call) -> Call:
    """A call of the allow-list as one of PostgreSQL's table."""
    return _ADAPTED[call.function](call) if call.function in _ADAPTED else call


def _text(call: Call, index: int) -> str | None:
    """A constant text among the arguments."""
    argument = call.arguments[index]
    if not isinstance(argument, Literal):
        raise TypeError(f"{call.function} takes a constant here")
    return None if argument.value is None else str(argument.value)


def _plain(text: str | None) -> Literal:
    """A constant that takes its type and collation from its place."""
    return Literal(text, SqlType.UNKNOWN)


def _with(call: Call, *arguments: Expr, function: str | None = None) -> Call:
    return Call(function or call.function, arguments, call.type)


# Numbers


def _by_size(call: Call) -> Call:
    return _with(call, *call.arguments, function=f"{_SIZES[call.type]}_{call.function.removeprefix('int_')}")


def _of_floats(call: Call) -> Call:
    """Remove guards that arithmetic does not need; a constant factor comes last, where the planner knows its size."""
    left, right = call.arguments
    if stays_normal(call):
        return _with(call, left, right, function=f"normal_{call.function}")
    constant = left.argument if isinstance(left, Cast) else left
    if call.function == "multiply" and isinstance(constant, Literal):
        return _with(call, right, left)
    return call


def _with_integers(call: Call) -> Call:
    """Whole numbers, which were integers before they became bigints, as PostgreSQL's functions take them."""
    return _with(call, *map(_integer, call.arguments))


def _integer(argument: Expr) -> Expr:
    if isinstance(argument, Literal) and argument.type is SqlType.BIGINT:
        return Literal(argument.value, SqlType.INTEGER, argument.parameter)
    if isinstance(argument, Cast) and argument.type is SqlType.BIGINT:
        return Cast(argument.argument, SqlType.INTEGER)
    return argument


def _with_count(call: Call) -> Call:
    """The last argument as an integer."""
    *others, count = call.arguments
    return _with(call, *others, _integer(count))


def _times(factor: float) -> Adapt:
    return lambda call: _of_floats(Call("multiply", (*call.arguments, Literal(factor, SqlType.DOUBLE)), SqlType.DOUBLE))


# Text


def _left(call: Call) -> Call:
    return replace(_with_integers(call), function="beginning" if leaves_most(call) else "left")


def _split_part(call: Call) -> Call:
    place = call.arguments[2]
    if isinstance(place, Literal) and isinstance(place.value, int) and place.value < 0:
        return _with(call, *call.arguments, function="split_from_end")
    return call


_CLASSES = {r"\pL\pN": "[:alnum:]", r"\pL": "[:alpha:]", r"\p{Lu}": "[:upper:]", r"\p{Ll}": "[:lower:]"}
_PIECE = re.compile(r"\\pL\\pN|\\pL|\\p\{L[ul]\}|\\.", re.DOTALL)


def _regular(re2: str) -> str:
    """A pattern of ours in the words of PostgreSQL's advanced regular expressions: only classes are named otherwise."""
    return _PIECE.sub(lambda found: _CLASSES.get(found[0], found[0]), re2)


def _pattern(call: Call) -> Call:
    pattern = _text(call, 1)
    found = None if pattern is None else _regular(pattern)
    return _with(call, call.arguments[0], _plain(found), *call.arguments[2:])


def _regexp_substring(call: Call) -> Call:
    """PostgreSQL gives the first group, so the whole match is made one where it is asked for."""
    pattern, group = _text(call, 1) or "", call.arguments[2]
    if isinstance(group, Literal) and not group.value:
        pattern = f"(?s)({pattern.removeprefix('(?s)')})"
    return _with(call, call.arguments[0], _plain(_regular(pattern)))


def _regexp_replace(call: Call) -> Call:
    replacement = re.sub(
        r"\\.", lambda found: r"\&" if found[0] == r"\0" else found[0], _text(call, 2) or "", flags=re.DOTALL
    )
    constants = (_plain(_regular(_text(call, 1) or "")), _plain(replacement), _plain(_text(call, 3)))
    return _with(call, call.arguments[0], *constants)


def _number_digits(call: Call) -> Call:
    """A format of printf, "%.2f", as one of TO_CHAR."""
    places = int((_text(call, 1) or "")[2:-1])
    whole = "FM" + "9" * 14 + "0"
    return _with(call, call.arguments[0], _plain(f"{whole}.{'0' * places}" if places else whole))


# Moments


def _of_timestamp(call: Call) -> Call:
    """DATE_TRUNC of a date would be one of a timestamp with time zone."""
    (moment,) = call.arguments
    return _with(call, Cast(moment, SqlType.TIMESTAMP)) if moment.type is SqlType.DATE else call


_FIELDS = {"Y": 0, "m": 1, "b": 1, "B": 1, "d": 2, "H": 3, "M": 4, "S": 5, "f": 6}
_ABSENT = ("", "01", "01", "00", "00", "00", "0")


def _read_moment(call: Call) -> Call:
    """Text of a format, its fields, which are the pattern's groups, put into the order in which a timestamp is read."""
    form, pattern = _text(call, 1) or "", _text(call, 2) or ""
    places: dict[int, int] = {}
    for directive in re.findall("%(.)", form):
        places[_FIELDS[directive]] = len(places) + 1
    year, month, day, *clock, fraction = (
        f"\\{places[index]}" if index in places else absent for index, absent in enumerate(_ABSENT)
    )
    written = f"{year}-{month}-{day} {':'.join(clock)}.{fraction}"
    arguments = (call.arguments[0], _plain(f"^({pattern})$"), _plain(f"^{pattern}$"), _plain(written))
    return _with(call, *arguments)


def _date_bin(call: Call) -> Call:
    stride, moment, origin = call.arguments
    width = intervals.span(str(stride.value)) if isinstance(stride, Literal) and stride.value is not None else None
    micros = width.days * _DAY + width.microseconds if width is not None else None
    if micros is not None and micros > MAX_BIN_DAYS * _DAY:
        raise UnsupportedQuery(
            f"DATE_BIN takes widths up to {MAX_BIN_DAYS:,} days on PostgreSQL",
            hint="Use DATE_TRUNC with 'decade' or 'century'.",
        )
    return _with(call, Literal(micros, SqlType.BIGINT), moment, origin)


_ADAPTED: dict[str, Adapt] = {
    **dict.fromkeys((f"int_{name}" for name in ("add", "subtract", "multiply", "divide", "negate", "abs")), _by_size),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), _of_floats),
    "degrees": _times(180 / pi),
    "radians": _times(pi / 180),
    **dict.fromkeys(("right", "substring", "substring_from", "substring_for", "lpad", "rpad"), _with_integers),
    **dict.fromkeys(("shift_right", "width_bucket", "numeric_width_bucket"), _with_count),
    "left": _left,
    "split_part": _split_part,
    **dict.fromkeys(("like_pattern", "regexp_like", "regexp_count"), _pattern),
    "regexp_substring": _regexp_substring,
    "regexp_replace": _regexp_replace,
    "number_digits": _number_digits,
    **dict.fromkeys(UNITS.values(), _of_timestamp),
    "read_moment": _read_moment,
    "date_bin": _date_bin,
}
