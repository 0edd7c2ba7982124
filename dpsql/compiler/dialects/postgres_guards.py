"""Guards that keep PostgreSQL expressions from raising errors, because it has neither TRY nor TRY_CAST.

Rule 1: a guard is an argument of the guarded function, or the condition of its CASE; the planner cannot move it.
Rule 2: GREATEST and LEAST skip NULL, so NULL and values out of range become the first value beyond a limit, and NULLIF
makes that NULL. The guarded text is written once, so guards can be nested.
Rule 3: the magnitude of a number follows from types and constants only, not from the content of tables or from
policies.
"""

from math import frexp

from dpsql.compiler.ir.functions import MAX_NESTED, MAX_SCANNED
from dpsql.compiler.ir.nodes import MAX_PRECISION, Call, Case, Cast, Expr, Literal
from dpsql.sqltypes import ARRAYS, SqlType
from dpsql.sqltypes.textinput import UNREADABLE_JSON

FULL = (-1074, 1024)
"""Any floating-point number."""
_BY_TYPE = {
    SqlType.SMALLINT: (0, 15),
    SqlType.INTEGER: (0, 31),
    SqlType.BIGINT: (0, 63),
    SqlType.NUMERIC: (-130, 130),  # of 38 digits
}
_PRECISION = 53

Magnitude = tuple[int, int]


def magnitude(expression: Expr) -> Magnitude:
    """Exponents (low, high): in every row, the value is NULL, 0, or has a magnitude from 2^low to 2^high."""
    match expression:
        case Literal():
            return _of_constant(expression)
        case Cast() if expression.type is SqlType.DOUBLE:
            return magnitude(expression.argument)
        case Case():
            return _hull([magnitude(value) for value in (*(v for _, v in expression.branches), expression.default)])
        case Call() if expression.function in _RULES:
            return _inside(_RULES[expression.function]([magnitude(part) for part in expression.arguments]))
    return _BY_TYPE.get(expression.type, FULL)


def _of_constant(literal: Literal) -> Magnitude:
    if not literal.type.is_number or not literal.value:
        return (0, 0)
    _, exponent = frexp(float(str(literal.value)))
    return (exponent - 1, exponent)


def _inside(found: Magnitude) -> Magnitude:
    return max(found[0], FULL[0]), min(found[1], FULL[1])


def _hull(parts: list[Magnitude]) -> Magnitude:
    return min(low for low, _ in parts), max(high for _, high in parts)


def _sum(parts: list[Magnitude]) -> Magnitude:
    """If numbers nearly cancel, the rest is at least the last digit of either."""
    low, high = _hull(parts)
    return low - _PRECISION, high + 1


def _product(parts: list[Magnitude]) -> Magnitude:
    (low, high), (other_low, other_high) = parts
    return low + other_low - 1, high + other_high + 1


def _quotient(parts: list[Magnitude]) -> Magnitude:
    (low, high), (other_low, other_high) = parts
    return low - other_high - 1, high - other_low + 1


def _rounded(parts: list[Magnitude]) -> Magnitude:
    return 0, max(parts[0][1] + 1, 1)


_RULES = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _product,
    "divide": _quotient,
    **dict.fromkeys(("negate", "abs", "coalesce", "nullif", "least", "greatest"), _hull),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), _rounded),
}
_NORMAL = (-1020, 1022)
"""Exponents that leave room for rounding."""


def stays_normal(call: Call) -> bool:
    """True if a sum, product or quotient can neither overflow nor underflow."""
    low, high = _RULES[call.function]([magnitude(part) for part in call.arguments])
    vanishes = call.function in ("multiply", "divide") and low < _NORMAL[0]
    return high <= _NORMAL[1] and not vanishes


TYPES = {
    SqlType.BOOLEAN: "boolean",
    SqlType.SMALLINT: "smallint",
    SqlType.INTEGER: "integer",
    SqlType.BIGINT: "bigint",
    SqlType.NUMERIC: "numeric",
    SqlType.REAL: "float8",
    SqlType.DOUBLE: "float8",
    SqlType.TEXT: "text",
    SqlType.VARCHAR: "text",
    SqlType.CHAR: "text",
    SqlType.DATE: "date",
    SqlType.TIME: "time",
    SqlType.TIMESTAMP: "timestamp",
    SqlType.TIMESTAMPTZ: "timestamptz",
    SqlType.INTERVAL: "interval",
    SqlType.UUID: "uuid",
    SqlType.JSON: "text",
    SqlType.JSONB: "text",
    SqlType.BYTEA: "bytea",
    **dict.fromkeys(ARRAYS, "text"),  # JSON of the elements' texts
    SqlType.UNKNOWN: "text",
}


def within(text: str, below: str, above: str) -> str:
    """Return a value, or NULL unless it is strictly between `below` and `above`."""
    return f"nullif(nullif(least(greatest({text}, {below}), {above}), {above}), {below})"


_WHOLE = {SqlType.SMALLINT: 2**15, SqlType.INTEGER: 2**31, SqlType.BIGINT: 2**63}


def narrowed(text: str, target: SqlType) -> str:
    """A whole number of a wider type, NULL where the narrower has no such number."""
    limit = _WHOLE[target]
    return f"CAST({within(text, str(-limit - 1), str(limit))} AS {TYPES[target]})"


def widens(source: SqlType, target: SqlType) -> bool:
    """True where every whole number of a type is one of another."""
    return _WHOLE[source] <= _WHOLE[target]


def whole_of_float(text: str, target: SqlType) -> str:
    """A floating-point number, rounded, halves to even."""
    limit = _WHOLE[target]
    # Below -2^63 the next floating-point number is 2048 further.
    below = -limit - (2048 if target is SqlType.BIGINT else 1)
    inside = within(f"round({text})", *(f"CAST('{end}' AS float8)" for end in (below, limit)))
    return f"CAST({inside} AS {TYPES[target]})"


def scaled(text: str, scale: int) -> str:
    """Return a numeric rounded to a scale, or NULL if it has too many digits before the point."""
    limit = f"1e{MAX_PRECISION - scale}"
    return within(f"round({text}, {scale})", f"-{limit}", limit)


# Moments

LIMITS = {
    SqlType.DATE: ("0001-12-31 BC", "10000-01-01"),
    SqlType.TIMESTAMP: ("0001-12-31 23:59:59.999999 BC", "9999-12-31 00:00:00.000001"),
    SqlType.TIMESTAMPTZ: ("0001-12-31 23:59:59.999999 BC", "9999-12-31 00:00:00.000001"),
}
"""The last moment before, and the first after those that are values."""


def within_years(text: str, sql_type: SqlType) -> str:
    """A moment, NULL outside the years 1 to 9999."""
    return within(text, *(f"{TYPES[sql_type]} '{end}'" for end in LIMITS[sql_type]))


def convertible(text: str, sql_type: SqlType) -> str:
    """A moment, NULL where it is so far away that not every type of moment has it."""
    return within(text, *(f"{TYPES[sql_type]} '{end}'" for end in ("4000-01-01 BC", "11000-01-01")))


def finite(text: str) -> str:
    """A floating-point number, NULL for NaN and the infinities; -0 is 0."""
    return f"({within(text, *(_infinity(sign) for sign in '-+'))} + 0)"


def _infinity(sign: str) -> str:
    return f"CAST('{sign}Infinity' AS float8)"


# Intervals

MONTHS, DAYS, HOURS = 240_000, 8_000_000, 200_000_000
"""The most of each that an interval may have: each is some twenty thousand years."""


def moderate(text: str) -> str:
    """An interval that can be added to, negated, and added to a moment; NULL where it is longer."""
    inside = " AND ".join(
        f"abs(date_part('{part}', i)) <= {limit}"
        for part, limit in (("year", MONTHS // 12), ("day", DAYS), ("hour", HOURS))
    )
    return f"(SELECT CASE WHEN {inside} THEN i END FROM (SELECT {text} AS i OFFSET 0) AS s)"


# Text that can be read


_BLANKS = r"[ \t\n\r\f\v]*"
_YEAR = "(?!0000)[0-9]{4}"
_LEAP = "(?!0000)(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_LONG = "(?:0?[13578]|1[02]|jan[a-z]*|mar[a-z]*|may|jul[a-z]*|aug[a-z]*|oct[a-z]*|dec[a-z]*)"
_SHORT = "(?:0?[469]|11|apr[a-z]*|jun[a-z]*|sep[a-z]*|nov[a-z]*)"
_FEBRUARY = "(?:0?2|feb[a-z]*)"
DATE = (
    f"(?:{_YEAR}-(?:{_LONG}-(?:0?[1-9]|[12][0-9]|3[01])|{_SHORT}-(?:0?[1-9]|[12][0-9]|30)"
    f"|{_FEBRUARY}-(?:0?[1-9]|1[0-9]|2[0-8]))|{_LEAP}-{_FEBRUARY}-29)"
)
"""A day that there is: year, month by number or name, day."""
CLOCK, SECONDS = "(?:[01]?[0-9]|2[0-3]):[0-5]?[0-9]", "[0-5]?[0-9]"
_TIME = "(?:(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.][0-9]{1,6})?)?|24:00(?::00(?:[.]0{1,6})?)?)"
"""A time of day, its end included."""
_OFFSET = "[+-][0-9]{2}(?::[0-9]{2}(?::[0-9]{2})?)?"
_COUNT = "-?[0-9]{1,6}"
_SPAN = (
    f"(?:{_COUNT} years? ?)?(?:{_COUNT} months? ?)?(?:{_COUNT} days? ?)?(?:-?[0-9]{{1,9}}:[0-9]{{2}}:[0-9]{{2}}"
    r"(?:[.][0-9]{1,6})?)?"
)
NUMBER = r"[+-]?(?:[0-9]{1,200}[.]?[0-9]{0,200}|[.][0-9]{1,200})(?:[eE][+-]?0{0,20}[0-9]{1,3})?"
"""A number, of so few digits that a numeric has them all."""
_UUID = "(?:[0-9a-f]{4}-?){7}[0-9a-f]{4}"

_READABLE = {
    SqlType.BOOLEAN: "true|false",
    **dict.fromkeys((SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT), "[+-]?0{0,200}[0-9]{1,50}"),
    **dict.fromkeys((SqlType.NUMERIC, SqlType.REAL, SqlType.DOUBLE), NUMBER),
    SqlType.DATE: f"{DATE}(?:[ T]{_TIME})?",
    SqlType.TIMESTAMP: f"{DATE}(?:[ T]{_TIME})?",
    SqlType.TIMESTAMPTZ: f"{DATE} {_TIME}{_OFFSET}",
    SqlType.TIME: _TIME,
    SqlType.INTERVAL: _SPAN,
    SqlType.UUID: f"{_UUID}|[{{]{_UUID}[}}]",
}
"""What text looks like that is read as a value of a type without an error."""


_MAX_DEPTH = 1_000
"""Opening brackets of a text that is read as jsonb."""


def binary_json(column: str) -> str:
    """A column of type json as jsonb; NULL where jsonb may have no such value, or is read too deep for the stack."""
    text = f"CAST({column} AS text)"
    opening = f"length({text}) - length(translate({text}, '[{{', ''))"
    return (
        f"CASE WHEN octet_length({text}) > {MAX_NESTED} THEN NULL WHEN {text} ~ '{UNREADABLE_JSON}' THEN NULL "
        f"WHEN {opening} > {_MAX_DEPTH} THEN NULL ELSE CAST({column} AS jsonb) END"
    )


def seen(text: str) -> str:
    """As much of a text as every function can take."""
    return f"left({text}, {MAX_SCANNED})"


def read(text: str, target: SqlType) -> str:
    """Text as a value of a type, NULL where it cannot be read."""
    readable = f"substring({seen(text)} FROM '(?i)^{_BLANKS}({_READABLE[target]}){_BLANKS}$')"
    if target in _WHOLE:
        return narrowed(f"CAST({readable} AS numeric)", target)
    if target is SqlType.NUMERIC:
        return f"CAST({readable} AS numeric)"
    if target in (SqlType.REAL, SqlType.DOUBLE):
        # Digits behind the 323rd would make a number that is too small for a float.
        limit = "CAST('1.7976931348623158e308' AS numeric)"
        return f"CAST({within(f'round(CAST({readable} AS numeric), 323)', f'-{limit}', limit)} AS float8)"
    return f"CAST({readable} AS {TYPES[target]})"
