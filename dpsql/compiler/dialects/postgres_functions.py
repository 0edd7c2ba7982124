"""PostgreSQL's own spellings of the allow-list, total for every value.

Arithmetic raises errors on overflow, underflow and undefined results, so it is guarded beforehand. Functions of letters
follow the database's locale; their results are compared by bytes, like all text.
"""

from dpsql.compiler.dialects.postgres_guards import CLOCK, DATE, SECONDS, moderate, narrowed, scaled, seen, within
from dpsql.compiler.ir.functions import EXTRACT_PARTS, IS_JSON, MAX_ELEMENTS, MAX_TEXT, Spelling
from dpsql.compiler.ir.nodes import COMPUTED_SCALE
from dpsql.sqltypes import SqlType
from dpsql.sqltypes.textinput import FALSE_WORDS, TRUE_WORDS

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
    """A function that depends on which characters are letters."""
    return Spelling(f"{function}({_SEEN} COLLATE {_LETTERS}) COLLATE {_BINARY}")


_SEARCHED = f"left({{0}}, {MAX_TEXT}) COLLATE {_LETTERS}"


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
    """A floating-point number below 2^62 as an exact numeric; digits below 2^-62 are dropped.

    The planner folds constants even inside CASE, so larger ones must be convertible, too.
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
    """A date plus or minus a number of days; the calendar has 3,652,059 days."""
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


# The size of an interval: 0 only for an empty one, and at least 10^-10 for others.
_SIZE = (
    "(abs(date_part('year', {0})) * 12 + abs(date_part('month', {0})) + abs(date_part('day', {0})) "
    "+ abs(date_part('hour', {0})) + abs(date_part('minute', {0})) / 60 + abs(date_part('second', {0})) / 3600)"
)
_FACTOR = "least(abs({1}), 1e30)"
"""A factor of a size whose product with that of an interval, and with 2e9, is a number."""
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

_JSON, _ARRAY = "CAST({0} AS jsonb)", "CAST({0} AS json)"
_NUMBER = scaled(f"CAST({_JSON} AS numeric)", COMPUTED_SCALE)

SPELLINGS: dict[str, Spelling] = {
    # Numbers
    **{f"{size}_{name}": found for name, template in _INTEGERS.items() for size, found in _whole(template).items()},
    "small_divide": Spelling(narrowed("CAST({0} AS integer) / nullif({1}, 0)", SqlType.SMALLINT)),
    "int_divide": Spelling(narrowed("CAST({0} AS bigint) / nullif({1}, 0)", SqlType.INTEGER)),
    "big_divide": Spelling(narrowed("div(CAST({0} AS numeric), nullif({1}, 0))", SqlType.BIGINT)),
    "int_modulo": Spelling("({0} % nullif({1}, 0))"),
    "gcd": Spelling(narrowed("gcd(CAST({0} AS numeric), CAST({1} AS numeric))", SqlType.BIGINT)),
    "lcm": Spelling(narrowed("lcm(CAST({0} AS numeric), CAST({1} AS numeric))", SqlType.BIGINT)),
    "bit_xor": Spelling("({0} # {1})"),
    "add": _sum("+", "<>"),
    "subtract": _sum("-", "="),
    "multiply": Spelling(_MULTIPLY),
    "divide": Spelling(_DIVIDE),
    "normal_add": Spelling("({0} + {1})"),
    "normal_subtract": Spelling("({0} - {1})"),
    "normal_multiply": Spelling("({0} * {1} + 0)"),
    "normal_divide": Spelling("({0} / nullif({1}, 0) + 0)"),
    "modulo": Spelling(_MODULO),
    "numeric_modulo": Spelling("({0} % nullif({1}, 0))"),
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
    **{name: Spelling(f"{name}({{0}})") for name in ("sin", "cos", "tan", "atan", "tanh", "asinh")},
    **{name: Spelling(f"{name}({within('{0}', f'-{_ONE_BEYOND}', _ONE_BEYOND)})") for name in ("asin", "acos")},
    "acosh": Spelling("acosh(nullif(greatest({0}, 0.9999999999999999), 0.9999999999999999))"),
    "atanh": Spelling(f"atanh({within('{0}', '-1', '1')})"),
    "atan2": Spelling("(atan2({0}, {1}) + 0)"),
    **{f"{kind}width_bucket": Spelling("width_bucket({0}, {1}, {2}, {3})") for kind in ("", "numeric_")},
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
    "bit_length": Spelling("(8 * CAST(octet_length({0}) AS bigint))"),
    # COLLATE behind an end of BETWEEN needs parentheses.
    "between": Spelling("({0} BETWEEN ({1}) AND ({2}))"),
    "beginning": Spelling("CASE WHEN octet_length({0}) <= {1} THEN {0} ELSE left({0}, {1}) END"),
    "substring_from": Spelling("substring({0}, {1})"),
    "substring_for": Spelling("substring({0}, {1}, nullif(greatest({2}, -1), -1))"),
    "trim": Spelling(f"btrim({_SEEN}, {{1}})"),
    "repeat": Spelling(
        f"rpad({{0}}, CAST(least(CAST({{1}} AS bigint) * length({{0}}), {MAX_TEXT}) AS integer), {{0}})"
    ),
    # Versions before 14 do not count from the end.
    "split_from_end": Spelling(
        "CASE WHEN {0} IS NOT NULL THEN coalesce((string_to_array({0}, {1}))"
        "[cardinality(string_to_array({0}, {1})) + 1 + {2}], '') END"
    ),
    "number_digits": Spelling(f"(to_char({{0}}, {{1}}) COLLATE {_BINARY})"),
    # JSON and arrays
    "json_get": Spelling("(CAST({0} AS jsonb) -> {1})"),
    "json_element": Spelling(f"CASE WHEN jsonb_typeof({_JSON}) = 'array' THEN {_JSON} -> CAST({{1}} AS integer) END"),
    "json_either": Spelling("(CAST({0} AS jsonb) #> ARRAY[{1}])"),
    "json_scalar": Spelling(
        f"(CASE jsonb_typeof({_JSON}) WHEN 'number' THEN CAST(trim_scale({_NUMBER}) AS text) WHEN 'object' THEN NULL "
        f"WHEN 'array' THEN NULL ELSE left({_JSON} #>> '{{{{}}}}', {MAX_TEXT}) END COLLATE {_BINARY})"
    ),
    "json_typeof": Spelling(f"(jsonb_typeof({_JSON}) COLLATE {_BINARY})"),
    "json_length": Spelling(f"CASE WHEN jsonb_typeof({_JSON}) = 'array' THEN jsonb_array_length({_JSON}) END"),
    "json_contains": Spelling(f"({_JSON} @> CAST({{1}} AS jsonb))"),
    "json_has_key": Spelling(f"({_JSON} ? {{1}})"),
    "array_element": Spelling(
        f"CASE WHEN json_typeof({_ARRAY} -> CAST({{1}} AS integer)) = 'string' "
        f"THEN ({_ARRAY} ->> CAST({{1}} AS integer)) COLLATE {_BINARY} END"
    ),
    "array_slice": Spelling(
        f"CASE WHEN {{0}} IS NOT NULL AND json_typeof({_ARRAY} -> 0) IS DISTINCT FROM 'array' THEN "
        f"CAST(to_json(ARRAY(SELECT t FROM json_array_elements_text({_ARRAY}) WITH ORDINALITY AS u(t, n) "
        f"WHERE n BETWEEN {{1}} AND {{2}} ORDER BY n)) AS text) COLLATE {_BINARY} END"
    ),
    "array_size": Spelling(f"json_array_length({_ARRAY})"),
    "array_has": Spelling(
        f"CASE WHEN {{0}} IS NOT NULL THEN {{1}} = "
        f"ANY (ARRAY(SELECT t COLLATE {_BINARY} FROM json_array_elements_text({_ARRAY}) AS u(t))) END"
    ),
    "string_to_array": Spelling(
        f"(CAST(to_json((string_to_array(left({{0}}, {MAX_TEXT}), {{1}}))[1:{MAX_ELEMENTS}]) AS text) "
        f"COLLATE {_BINARY})"
    ),
    # Conversions: the guarded text has a form that a cast accepts
    **{name: Spelling("{0}") for name in ("integer_text", "number_text", "date_text", "time_text")},
    "text_to_boolean": Spelling(
        f"CASE WHEN {_WORD} IN {TRUE_WORDS} THEN true WHEN {_WORD} IN {FALSE_WORDS} THEN false END"
    ),
    "text_to_json": Spelling(f"CASE WHEN {IS_JSON} THEN CAST({{0}} AS jsonb) END"),
    "float_to_text": Spelling(f"(CAST({{0}} AS text) COLLATE {_BINARY})"),
    # Dates, times and intervals
    "date_add": _counted_days("+"),
    "date_subtract": _counted_days("-"),
    "moment_add": _shifted("+"),
    "moment_subtract": _shifted("-"),
    "interval_add": Spelling(moderate("{0} + {1}")),
    "interval_subtract": Spelling(moderate("{0} - {1}")),
    **{f"justify_{what}": Spelling(moderate(f"justify_{what}({{0}})")) for what in ("days", "hours", "interval")},
    # Months and days are 32-bit integers, and hours 2^63 microseconds: each can hold 2e9 and the carry.
    "interval_multiply": Spelling(moderate(f"CASE WHEN {_SIZE} * ({_FACTOR} + 1) < 2e9 THEN {{0}} * {{1}} END")),
    "interval_divide": Spelling(moderate(f"CASE WHEN {_SIZE} < 2e9 * {_FACTOR} THEN {{0}} / {{1}} END")),
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
    "date_bin": _moment(
        f"(SELECT {{1}} - ({_MICROSECONDS} % {{0}} + {{0}}) % {{0}} * INTERVAL '1 microsecond' "
        "FROM (SELECT {1} - {2} AS d OFFSET 0) AS s)"
    ),
    "month_name": Spelling(f"(to_char({{0}}, 'FMMonth') COLLATE {_BINARY})"),
    "day_name": Spelling(f"(to_char({{0}}, 'FMDay') COLLATE {_BINARY})"),
    **{f"extract_{part}": Spelling(_part(part)) for part in EXTRACT_PARTS},
    **{f"extract_{part}": Spelling(template) for part, template in _FRACTION_PARTS.items()},
}
SHOWN = {
    **SPELLINGS,
    **{
        name: Spelling(f"CAST({SPELLINGS[name].template} AS text)")
        for name in ("json_get", "json_element", "json_either")
    },
    "text_to_json": Spelling(f"CASE WHEN {IS_JSON} THEN {{0}} END"),
}
"""Spellings for public rows that are shown, of which JSON is text."""
