"""PostgreSQL's functions: how each entry of the allow-list is written there, total for every value.

Arithmetic raises errors where a result is too large, too small, or none: it is guarded beforehand. Functions of
letters follow the database's own locale; what they give is compared byte by byte, as all text is.
"""

from dpsql.compiler.engines.postgres_guards import CLOCK, DATE, SECONDS, moderate, narrowed, seen, within
from dpsql.compiler.engines.spelling import Spelling
from dpsql.compiler.functions import EXTRACT_PARTS, MAX_TEXT, OTHER_UNITS, TRUNC_UNITS
from dpsql.sqltypes import SqlType

_BINARY = '"C"'
_LETTERS = '"default"'
_ONE_BEYOND = "1.0000000000000002"
_GREATEST = "CAST('1.7976931348623157e308' AS float8)"
_LEAST = "CAST('5e-324' AS float8)"
_HALF = f"CAST('{2.0**1023!r}' AS float8)"
_UNFELT = f"CAST('{2.0**960!r}' AS float8)"
"""Below it a number changes the greatest one by less than half a digit."""
_POSITIVE = "nullif(greatest({0}, 0), 0)"
_SEEN = seen("{0}")


def _lettered(function: str) -> Spelling:
    """A function that knows which characters are letters."""
    return Spelling(f"{function}({_SEEN} COLLATE {_LETTERS}) COLLATE {_BINARY}")


def _text(template: str) -> Spelling:
    return Spelling(f"left({template}, {MAX_TEXT})")


_START = f"left({{0}}, {MAX_TEXT})"
_SEARCHED = f"{_START} COLLATE {_LETTERS}"


def _whole(template: str) -> dict[str, Spelling]:
    """An operation of integers, in a type in which it cannot overflow."""
    found = {}
    for name, wider, result in (
        ("small", SqlType.INTEGER, SqlType.SMALLINT),
        ("int", SqlType.BIGINT, SqlType.INTEGER),
        ("big", SqlType.NUMERIC, SqlType.BIGINT),
    ):
        written = template.replace("[", "CAST(").replace("]", f" AS {wider.value})")
        found[name] = Spelling(narrowed(written, result))
    return found


_INTEGERS = {
    "add": "[{0}] + [{1}]",
    "subtract": "[{0}] - [{1}]",
    "multiply": "[{0}] * [{1}]",
    "negate": "-[{0}]",
    "abs": "abs([{0}])",
}


def _sum(sign: str, opposite: str) -> Spelling:
    """A sum that cannot be too large: of small numbers, with a much smaller one, or of numbers that go apart."""
    small = f"abs({{0}}) < {_HALF} AND abs({{1}}) < {_HALF} OR abs({{0}}) < {_UNFELT} OR abs({{1}}) < {_UNFELT}"
    apart = f"({{0}} < 0) {opposite} ({{1}} < 0)"
    fits = f"abs({{0}}) < {_GREATEST} - abs({{1}})"
    return Spelling(f"CASE WHEN {small} OR {apart} OR {fits} THEN {{0}} {sign} {{1}} END")


_MULTIPLY = (
    "CASE WHEN abs({1}) > 1 THEN "
    f"CASE WHEN abs({{0}}) <= 1 OR abs({{0}}) < {_GREATEST} / abs({{1}}) THEN {{0}} * {{1}} + 0 END "
    f"WHEN abs({{0}}) < {_LEAST} / nullif(abs({{1}}), 0) THEN {{0}} * 0 + 0 ELSE {{0}} * {{1}} + 0 END"
)
_DIVIDE = (
    f"CASE WHEN abs({{1}}) >= 1 THEN CASE WHEN abs({{0}}) < {_LEAST} * abs({{1}}) THEN {{0}} * 0 + 0 "
    f"ELSE {{0}} / {{1}} + 0 END WHEN abs({{0}}) < {_GREATEST} * abs({{1}}) THEN {{0}} / {{1}} + 0 END"
)
# e^709.78 is just below the greatest number, e^-708 just above those that lose digits.
_POWER = (
    "CASE WHEN {0} IS NULL THEN NULL WHEN {0} = 0 THEN CASE WHEN {1} > 0 THEN 0 WHEN {1} = 0 THEN 1 END "
    "WHEN {0} < 0 AND {1} <> trunc({1}) THEN NULL WHEN abs({1}) < 1e-300 THEN 1 "
    "WHEN abs({1}) > 1e20 THEN CASE WHEN abs({0}) = 1 THEN 1 WHEN (abs({0}) > 1) = ({1} < 0) THEN 0 END "
    "WHEN {1} * ln(abs({0})) < -708 THEN 0 WHEN {1} * ln(abs({0})) <= 709.78 THEN power({0}, {1}) END"
)


def _bits(argument: str) -> str:
    """A floating-point number below 2^62 as the exact numeric it is, but for what is below 2^-62.

    A constant beyond is converted too, by the planner, whatever CASE stands around.
    """
    whole = f"trunc(least(greatest({argument}, {-(2**62)}), {2**62}))"
    fraction = f"trunc(({argument} - trunc({argument})) * {2**62})"
    return f"(CAST({whole} AS bigint) + CAST({fraction} AS bigint) * 0.{5**62:062d})"


_MODULO = (
    "CASE WHEN abs({0}) < abs({1}) THEN {0} "
    f"WHEN abs({{0}}) < {2**62} AND abs({{1}}) > 1e-9 THEN CAST(mod({_bits('{0}')}, {_bits('{1}')}) AS float8) END"
)

_BLANKS = r"E' \t\n\x0B\f\r'"
_WORD = f"lower(btrim({_SEEN}, {_BLANKS}))"
_TRUE_WORDS = "('t', 'tr', 'tru', 'true', 'y', 'ye', 'yes', 'on', '1')"
_FALSE_WORDS = "('f', 'fa', 'fal', 'fals', 'false', 'n', 'no', 'of', 'off', '0')"


def _part(part: str) -> str:
    return f"CAST(date_part('{part}', {{0}}) AS bigint)"


_FRACTION_PARTS = {
    "second": "(date_part('microseconds', {0}) / 1e6)",
    "milliseconds": "(date_part('microseconds', {0}) / 1e3)",
    "epoch": "date_part('epoch', {0})",
}

_FIRST_DAY = "DATE '0001-01-01'"
_DAYS_FROM = "({0} - " + _FIRST_DAY + ")"


def _counted_days(sign: str) -> Spelling:
    """So many days on: the calendar of values has 3,652,059 of them."""
    days = within(f"{_DAYS_FROM} {sign} CAST({{1}} AS bigint)", "-1", "3652059")
    return Spelling(f"({_FIRST_DAY} + CAST({days} AS integer))")


def _shifted(sign: str) -> Spelling:
    """A moment and an interval, whose months, days and hours are added one after the other.

    PostgreSQL has moments from 4713 BC to 294276.
    """
    years = f"date_part('year', {{0}}) {sign} date_part('year', {{1}})"
    with_days = f"{years} {sign} date_part('day', {{1}}) / 365"
    with_hours = f"{with_days} {sign} date_part('hour', {{1}}) / 8765"
    inside = f"{years} BETWEEN -4000 AND 200000 AND {with_days} BETWEEN -4000 AND 200000"
    return Spelling(
        f"CASE WHEN {inside} AND {with_hours} BETWEEN -1000 AND 11000 THEN {{0}} {sign} {{1}} END", raw=True
    )


_SIZE = (
    "(abs(date_part('year', {0})) * 12 + abs(date_part('month', {0})) + abs(date_part('day', {0})) "
    "+ abs(date_part('hour', {0})) + 0.001)"
)
_MICROSECONDS = (
    "(CAST(date_part('day', d) AS bigint) * 86400000000 + CAST(date_part('hour', d) AS bigint) * 3600000000 "
    "+ CAST(date_part('minute', d) AS bigint) * 60000000 + CAST(date_part('microseconds', d) AS bigint))"
)


def _moment(template: str) -> Spelling:
    return Spelling(template, raw=True)


def _assembled(pattern: str, sql_type: str, *pieces: str) -> Spelling:
    """A value of the text that its parts make, NULL where there is no such value."""
    text = " || ".join(pieces)
    return Spelling(f"CAST(substring({text} FROM '^0*({pattern})$') AS {sql_type})")


def _escaped(pattern: str) -> str:
    """A pattern within a template."""
    return pattern.replace("{", "{{").replace("}", "}}")


_MADE_TIME = f"(?:{CLOCK}:(?:{SECONDS}[.][0-9]{{6}}|60[.]0{{6}})|24:0:0[.]0{{6}})"
"""A time of day, its end and that of a minute included, with the seconds' six digits."""
_SECONDS = "round(CAST({%d} AS numeric), 6)"
_DAY = ("'000'", "{0}", "'-'", "{1}", "'-'", "{2}")

FUNCTIONS: dict[str, Spelling] = {
    "and": Spelling("({all})", joiner=" AND "),
    "or": Spelling("({all})", joiner=" OR "),
    "not": Spelling("(NOT {0})"),
    "is_null": Spelling("({0} IS NULL)"),
    "is_true": Spelling("({0} IS TRUE)"),
    "is_false": Spelling("({0} IS FALSE)"),
    "eq": Spelling("({0} = {1})"),
    "ne": Spelling("({0} <> {1})"),
    "lt": Spelling("({0} < {1})"),
    "le": Spelling("({0} <= {1})"),
    "gt": Spelling("({0} > {1})"),
    "ge": Spelling("({0} >= {1})"),
    "distinct_from": Spelling("({0} IS DISTINCT FROM {1})"),
    "between": Spelling("({0} BETWEEN {1} AND {2})"),
    "coalesce": Spelling("coalesce({all})"),
    "nullif": Spelling("nullif({0}, {1})"),
    "least": Spelling("least({all})"),
    "greatest": Spelling("greatest({all})"),
    # Numbers
    **{f"{size}_{name}": found for name, template in _INTEGERS.items() for size, found in _whole(template).items()},
    "small_divide": Spelling(narrowed("CAST({0} AS integer) / nullif({1}, 0)", SqlType.SMALLINT)),
    "int_divide": Spelling(narrowed("CAST({0} AS bigint) / nullif({1}, 0)", SqlType.INTEGER)),
    "big_divide": Spelling(narrowed("div(CAST({0} AS numeric), nullif({1}, 0))", SqlType.BIGINT)),
    "int_modulo": Spelling("({0} % nullif({1}, 0))"),
    "gcd": Spelling(narrowed("gcd(CAST({0} AS numeric), CAST({1} AS numeric))", SqlType.BIGINT)),
    "lcm": Spelling(narrowed("lcm(CAST({0} AS numeric), CAST({1} AS numeric))", SqlType.BIGINT)),
    "bit_and": Spelling("({0} & {1})"),
    "bit_or": Spelling("({0} | {1})"),
    "bit_xor": Spelling("({0} # {1})"),
    "bit_not": Spelling("(~{0})"),
    "shift_right": Spelling("({0} >> {1})"),
    "add": _sum("+", "<>"),
    "subtract": _sum("-", "="),
    "multiply": Spelling(_MULTIPLY),
    "divide": Spelling(_DIVIDE),
    "normal_add": Spelling("({0} + {1})"),
    "normal_subtract": Spelling("({0} - {1})"),
    "normal_multiply": Spelling("({0} * {1} + 0)"),
    "normal_divide": Spelling("({0} / nullif({1}, 0) + 0)"),
    "modulo": Spelling(_MODULO),
    "negate": Spelling("(0 - {0})"),
    "abs": Spelling("abs({0})"),
    "sqrt": Spelling(f"sqrt(nullif(greatest({{0}}, -{_LEAST}), -{_LEAST}))"),
    "cbrt": Spelling("cbrt({0})"),
    "exp": Spelling(
        "CASE WHEN {0} > 709.782712893384 THEN NULL WHEN {0} < -708.3964185322641 THEN 0 ELSE exp({0}) END"
    ),
    "ln": Spelling(f"ln({_POSITIVE})"),
    "log10": Spelling(f"log({_POSITIVE})"),
    "log": Spelling(f"(log({_POSITIVE.replace('{0}', '{1}')}) / nullif(log({_POSITIVE}), 0) + 0)"),
    "power": Spelling(_POWER),
    "sign": Spelling("sign({0})"),
    "floor": Spelling("floor({0})"),
    "ceil": Spelling("(ceil({0}) + 0)"),
    "trunc": Spelling("(trunc({0}) + 0)"),
    "round": Spelling("(round({0}) + 0)"),
    "round_digits": Spelling("round({0}, {1})"),
    "trunc_digits": Spelling("trunc({0}, {1})"),
    "numeric_within": Spelling("CASE WHEN {0} > -{1} AND {0} < {1} THEN {0} END"),
    **{name: Spelling(f"{name}({{0}})") for name in ("sin", "cos", "tan", "atan", "tanh", "asinh")},
    **{name: Spelling(f"{name}({{0}})", raw=True) for name in ("cot", "sinh", "cosh")},
    **{name: Spelling(f"{name}({within('{0}', f'-{_ONE_BEYOND}', _ONE_BEYOND)})") for name in ("asin", "acos")},
    "acosh": Spelling("acosh(nullif(greatest({0}, 0.9999999999999999), 0.9999999999999999))"),
    "atanh": Spelling(f"atanh({within('{0}', '-1', '1')})"),
    "atan2": Spelling("(atan2({0}, {1}) + 0)"),
    "width_bucket": Spelling("width_bucket({0}, {1}, {2}, {3})"),
    # Text
    "like": Spelling("({0} LIKE {1} ESCAPE '')"),
    "like_pattern": Spelling(f"({_SEEN} COLLATE {_LETTERS} ~ {{1}})"),
    "regexp_like": Spelling(f"({_SEARCHED} ~ {{1}})"),
    "regexp_count": Spelling(f"(cardinality(regexp_split_to_array({_SEARCHED}, {{1}})) - 1)"),
    "regexp_substring": Spelling(f"(substring({_SEARCHED} FROM {{1}}) COLLATE {_BINARY})"),
    "regexp_replace": Spelling(
        f"(left(regexp_replace({_SEARCHED}, {{1}}, {{2}}, {{3}}), {MAX_TEXT}) COLLATE {_BINARY})"
    ),
    "lower": _lettered("lower"),
    "upper": _lettered("upper"),
    "initcap": Spelling(f"left(initcap({_SEARCHED}), {MAX_TEXT}) COLLATE {_BINARY}"),
    "length": Spelling("length({0})"),
    "octet_length": Spelling("octet_length({0})"),
    "bit_length": Spelling("bit_length({0})"),
    "reverse": Spelling("reverse({0})"),
    "left": Spelling("left({0}, {1})"),
    "right": Spelling("right({0}, {1})"),
    "substring": Spelling("substring({all})"),
    "substring_from": Spelling("substring({0}, {1})"),
    "substring_for": Spelling("substring({0}, {1}, nullif(greatest({2}, -1), -1))"),
    "trim": Spelling(f"btrim({_SEEN}, {{1}})"),
    "ltrim": Spelling(f"ltrim({_SEEN}, {{1}})"),
    "rtrim": Spelling(f"rtrim({_SEEN}, {{1}})"),
    "lpad": Spelling("lpad({0}, {1}, {2})"),
    "rpad": Spelling("rpad({0}, {1}, {2})"),
    "repeat": Spelling(
        f"rpad({{0}}, CAST(least(CAST({{1}} AS bigint) * length({{0}}), {MAX_TEXT}) AS integer), {{0}})"
    ),
    "replace": _text(f"replace({_START}, {{1}}, {{2}})"),
    "translate": Spelling(f"translate({_SEEN}, {{1}}, {{2}})"),
    "concat": _text("concat({all})"),
    "concat_ws": _text("concat_ws({all})"),
    "concat_operator": _text("({0} || {1})"),
    "strpos": Spelling("strpos({0}, {1})"),
    "starts_with": Spelling("starts_with({0}, {1})"),
    "split_part": Spelling("split_part({0}, {1}, {2})"),
    # Versions before 14 do not count from the end.
    "split_from_end": Spelling(
        "CASE WHEN {0} IS NOT NULL THEN coalesce((string_to_array({0}, {1}))"
        "[cardinality(string_to_array({0}, {1})) + 1 + {2}], '') END"
    ),
    "ascii": Spelling("ascii({0})"),
    "md5": Spelling("md5({0})"),
    "number_digits": Spelling(f"(to_char({{0}}, {{1}}) COLLATE {_BINARY})"),
    # Conversions: a cast reads no more than these would let through
    **{name: Spelling("{0}") for name in ("integer_text", "number_text", "date_text", "time_text")},
    "text_to_boolean": Spelling(
        f"CASE WHEN {_WORD} IN {_TRUE_WORDS} THEN true WHEN {_WORD} IN {_FALSE_WORDS} THEN false END"
    ),
    "float_to_text": Spelling(f"(CAST({{0}} AS text) COLLATE {_BINARY})"),
    # Dates, times and intervals
    "date_add": _counted_days("+"),
    "date_subtract": _counted_days("-"),
    "days_between": Spelling("({0} - {1})"),
    "date_at": _moment("({0} + {1})"),
    "moment_add": _shifted("+"),
    "moment_subtract": _shifted("-"),
    "moments_between": Spelling("({0} - {1})"),
    "times_between": Spelling("({0} - {1})"),
    "time_add": Spelling("({0} + {1})"),
    "time_subtract": Spelling("({0} - {1})"),
    "age": Spelling("age({0}, {1})"),
    "interval_add": Spelling(moderate("{0} + {1}")),
    "interval_subtract": Spelling(moderate("{0} - {1}")),
    "interval_negate": Spelling("(-{0})"),
    "interval_multiply": Spelling(
        moderate(f"CASE WHEN abs({{1}}) < 1e13 THEN CASE WHEN abs({{1}}) * {_SIZE} < 2e9 THEN {{0}} * {{1}} END END")
    ),
    "interval_divide": Spelling(
        moderate(f"CASE WHEN abs({{1}}) > 1e-13 THEN CASE WHEN {_SIZE} / abs({{1}}) < 2e9 THEN {{0}} / {{1}} END END")
    ),
    "make_date": _assembled(_escaped(DATE), "date", *_DAY),
    "make_time": _assembled(_escaped(_MADE_TIME), "time", "{0}", "':'", "{1}", "':'", _SECONDS % 2),
    "make_timestamp": _assembled(
        _escaped(f"{DATE} {_MADE_TIME}"),
        "timestamp",
        *(*_DAY, "' '", "{3}", "':'", "{4}", "':'", _SECONDS % 5),
    ),
    "from_epoch": _moment(f"to_timestamp({within('{0}', '-62135683200', '253402387200')})"),
    "read_moment": Spelling(
        f"CAST(substring(regexp_replace(substring({_SEEN} FROM {{1}}), {{2}}, {{3}}) "
        f"FROM '(?i)^({_escaped(f'{DATE} {CLOCK}:{SECONDS}[.][0-9]{{1,6}}')})$') AS timestamp)",
        raw=True,
    ),
    "at_zone": _moment("timezone({1}, {0})"),
    "date_bin": _moment(
        f"(SELECT {{1}} - ({_MICROSECONDS} % {{0}} + {{0}}) % {{0}} * INTERVAL '1 microsecond' "
        "FROM (SELECT {1} - {2} AS d OFFSET 0) AS s)"
    ),
    "is_finite": Spelling("({0} IS NOT NULL OR NULL)"),
    "month_name": Spelling(f"(to_char({{0}}, 'FMMonth') COLLATE {_BINARY})"),
    "day_name": Spelling(f"(to_char({{0}}, 'FMDay') COLLATE {_BINARY})"),
    **{f"extract_{part}": Spelling(_part(part)) for part in EXTRACT_PARTS},
    **{f"extract_{part}": Spelling(template) for part, template in _FRACTION_PARTS.items()},
    **{f"date_trunc_{unit}": _moment(f"date_trunc('{unit}', {{0}})") for unit in TRUNC_UNITS},
    **{f"trunc_to_{unit}": _moment(f"date_trunc('{unit}', {{0}})") for unit in OTHER_UNITS},
}
