"""The functions of the allow-list that Spark runs, as Spark writes them; each is total for every value.

Others are refused by name. In ANSI mode overflow, division by zero and failed casts are errors, so integers have the
try_ forms. Floating-point arithmetic does not fail, so its results are `raw` until they are guarded.
"""

from collections.abc import Iterator
from typing import Final

from dpsql.compiler.dialects.dialect import spelled
from dpsql.compiler.ir.functions import MAX_SCANNED, MAX_TEXT, Spelling
from dpsql.compiler.ir.nodes import COMPUTED_SCALE
from dpsql.sqltypes.textinput import FALSE_WORDS, TRUE_WORDS

_SEEN = f"left({{0}}, {MAX_SCANNED})"
_BLANKS = "' \\t\\n\\r\\f\\u000B'"
_WORD = f"lower(btrim({_SEEN}, {_BLANKS}))"
_WHOLE = "4503599627370496D"
"""2^52: from it on every floating-point number is whole."""

_SHARED: Final = (
    *("and", "or", "not", "is_null", "is_true", "is_false", "eq", "ne", "lt", "le", "gt", "ge", "distinct_from"),
    *("between", "coalesce", "nullif", "least", "greatest", "bit_and", "bit_or", "bit_not", "numeric_within"),
    *("abs", "sqrt", "cbrt", "exp", "ln", "log10", "sin", "cos", "tan", "atan", "tanh", "degrees", "radians", "atan2"),
    *("length", "octet_length", "md5"),
)
"""Functions that Spark writes as other engines do."""

_DIVIDED = "CASE WHEN {1} = -1 THEN try_subtract(0L, {0}) ELSE {0} DIV nullif({1}, 0) END"
_TRUNCATED = {"year": "'YEAR'", "quarter": "'QUARTER'", "month": "'MONTH'", "week": "'WEEK'"}
EPOCH: Final = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
_AT = "CAST({0} AS TIMESTAMP_NTZ)"
_CLOCK = f"make_timestamp_ntz(year({_AT}), month({_AT}), day({_AT}), hour({_AT}), %s, 0)"
_PARTS = {
    **{part: f"extract({part.upper()} FROM {{0}})" for part in ("year", "quarter", "month", "week", "day", "doy")},
    **{part: f"extract({part.upper()} FROM {{0}})" for part in ("hour", "minute")},
    "isoyear": "extract(YEAROFWEEK FROM {0})",
    "decade": "extract(YEAR FROM {0}) DIV 10",
    "century": "(extract(YEAR FROM {0}) + 99) DIV 100",
    "millennium": "(extract(YEAR FROM {0}) + 999) DIV 1000",
    "dow": "extract(DAYOFWEEK FROM {0}) - 1",
    "isodow": "extract(DAYOFWEEK_ISO FROM {0})",
    "microseconds": "extract(SECOND FROM {0}) * 1000000",
}

LIKE_FORMS: Final = {
    (False, False): "eq",
    (False, True): "starts_with",
    (True, False): "ends_with",
    (True, True): "contains",
}
"""How a pattern is tested, by whether % is before and after its characters."""


def _float(template: str) -> Spelling:
    return Spelling(template, raw=True)


def _arithmetic(template: str) -> Spelling:
    return Spelling(template, raw=True, passes_raw=True)


def _whole(template: str) -> Spelling:
    """A whole number as a floating-point number. From 2^52 on, numbers are whole already."""
    return _float(f"CASE WHEN abs({{0}}) < {_WHOLE} THEN CAST({template} AS DOUBLE) ELSE {{0}} END")


def _readable(pattern: str) -> Spelling:
    """Text that PostgreSQL reads as a value of some type, else NULL; the pattern never backtracks."""
    escaped = pattern.replace("{", "{{").replace("}", "}}")
    guard = f"btrim({_SEEN}, {_BLANKS}) RLIKE '^({escaped})\\\\z'"
    return Spelling(f"CASE WHEN {guard} THEN btrim({_SEEN}, {_BLANKS}) END")


def _truncations() -> Iterator[tuple[str, Spelling]]:
    for unit, word in _TRUNCATED.items():
        yield f"date_trunc_{unit}", _float(f"CAST(trunc(CAST({{0}} AS DATE), {word}) AS TIMESTAMP_NTZ)")
    yield "date_trunc_day", _float("CAST(CAST({0} AS DATE) AS TIMESTAMP_NTZ)")
    yield "date_trunc_hour", _float(_CLOCK % 0)
    yield "trunc_to_minute", _float(_CLOCK % f"minute({_AT})")
    for unit in (*_TRUNCATED, "day", "hour"):
        yield f"zoned_date_trunc_{unit}", _float(f"date_trunc('{unit.upper()}', {{0}})")
    yield "zoned_trunc_to_minute", _float("date_trunc('MINUTE', {0})")


_OWN: dict[str, Spelling] = {
    # Numbers
    "int_add": Spelling("try_add({0}, {1})"),
    "int_subtract": Spelling("try_subtract({0}, {1})"),
    "int_multiply": Spelling("try_multiply({0}, {1})"),
    "small_divide": Spelling(f"try_cast({_DIVIDED} AS SMALLINT)"),
    "int_divide": Spelling(f"try_cast({_DIVIDED} AS INT)"),
    "big_divide": Spelling(_DIVIDED),
    "int_modulo": Spelling("({0} % nullif({1}, 0))"),
    "int_negate": Spelling("try_subtract({0} - {0}, {0})"),
    "int_abs": Spelling("CASE WHEN {0} < 0 THEN try_subtract({0} - {0}, {0}) ELSE {0} END"),
    "bit_xor": Spelling("({0} ^ {1})"),
    "add": _arithmetic("({0} + {1})"),
    "subtract": _arithmetic("({0} - {1})"),
    "multiply": _arithmetic("({0} * {1})"),
    "divide": _float("try_divide({0}, {1})"),
    "modulo": _float("try_mod({0}, {1})"),
    "negate": _arithmetic("(-{0})"),
    "power": _float("power({0}, {1})"),
    "sign": _float("signum({0})"),
    "floor": _whole("floor({0})"),
    "ceil": _whole("ceil({0})"),
    "trunc": _whole("try_cast({0} AS BIGINT)"),
    "round": _float("rint({0})"),
    "round_digits": Spelling(f"try_cast(round({{0}}, CAST({{1}} AS INT)) AS DECIMAL(38,{COMPUTED_SCALE}))"),
    # Text
    "lower": Spelling(f"lower({_SEEN})"),
    "upper": Spelling(f"upper({_SEEN})"),
    "trim": Spelling(f"btrim({_SEEN}, {{1}})"),
    "ltrim": Spelling(f"trim(LEADING {{1}} FROM {_SEEN})"),
    "rtrim": Spelling(f"trim(TRAILING {{1}} FROM {_SEEN})"),
    # Concatenated texts are cut to their first characters: Spark fails on more than 2 GB.
    "concat": Spelling(f"left(concat_ws('', left({{all}}, {MAX_TEXT})), {MAX_TEXT})", joiner=f", {MAX_TEXT}), left("),
    "concat_operator": Spelling(f"left(left({{0}}, {MAX_TEXT}) || left({{1}}, {MAX_TEXT}), {MAX_TEXT})"),
    "starts_with": Spelling("startswith({0}, {1})"),
    "ends_with": Spelling("endswith({0}, {1})"),
    "contains": Spelling("contains({0}, {1})"),
    "left": Spelling(
        "CASE WHEN {1} < 0 THEN left({0}, CAST(greatest(length({0}) + {1}, 0) AS INT)) "
        "WHEN {1} >= 0 THEN left({0}, CAST(least({1}, 2147483647) AS INT)) END"
    ),
    "beginning": Spelling("CASE WHEN octet_length({0}) <= {1} THEN {0} ELSE left({0}, CAST({1} AS INT)) END"),
    # Conversions
    "integer_text": _readable("[+-]?+[0-9]++"),
    "number_text": _readable("[+-]?+([0-9]++([.][0-9]*+)?+|[.][0-9]++)([eE][+-]?+[0-9]++)?+"),
    "text_to_boolean": Spelling(
        f"CASE WHEN {_WORD} IN {TRUE_WORDS} THEN true WHEN {_WORD} IN {FALSE_WORDS} THEN false END"
    ),
    # Dates and times
    "date_add": _float("date_add({0}, try_cast({1} AS INT))"),
    "date_subtract": _float("date_sub({0}, try_cast({1} AS INT))"),
    "days_between": Spelling("CAST(date_diff({0}, {1}) AS BIGINT)"),
    **{f"extract_{part}": Spelling(f"CAST({template} AS BIGINT)") for part, template in _PARTS.items()},
    # A double holds all microseconds, so the quotient is exact to its last digit, as on other engines.
    "extract_epoch": Spelling(f"CAST(timestampdiff(MICROSECOND, {EPOCH}, {_AT}) AS DOUBLE) / 1000000D"),
    "zoned_extract_epoch": Spelling("CAST(unix_micros({0}) AS DOUBLE) / 1000000D"),
    "extract_second": Spelling("CAST(extract(SECOND FROM {0}) AS DOUBLE)"),
    "extract_milliseconds": Spelling("CAST(extract(SECOND FROM {0}) * 1000 AS DOUBLE)"),
    **dict(_truncations()),
}

SPELLINGS: Final = {name: found for name, found in spelled(_OWN).items() if name in _OWN or name in _SHARED}
"""The functions of queries where Spark holds the data."""
