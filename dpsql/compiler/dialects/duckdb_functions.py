"""DuckDB's own spellings of the allow-list, total for every value.

TRY gives NULL where an error would be. NaN and infinities are silent, and moments may leave the years 1 to 9999:
such a value is `raw` until it is guarded.
"""

from dpsql.compiler.ir.functions import (
    EXTRACT_PARTS,
    IS_JSON,
    MAX_ELEMENTS,
    MAX_SCANNED,
    MAX_TEXT,
    OTHER_UNITS,
    TRUNC_UNITS,
    Spelling,
)
from dpsql.sqltypes.textinput import FALSE_WORDS, TRUE_WORDS


def _float(template: str) -> Spelling:
    return Spelling(template, raw=True)


def _arithmetic(template: str) -> Spelling:
    return Spelling(template, raw=True, passes_raw=True)


def _tried(template: str) -> Spelling:
    return Spelling(f"TRY({template})")


def _moment(template: str) -> Spelling:
    return Spelling(f"TRY({template})", raw=True)


def _searched(template: str) -> Spelling:
    """A regular expression, over so much text that its time is bounded."""
    return Spelling(template.replace("SUBJECT", f"left({{0}}, {MAX_TEXT})"))


def _text(template: str) -> Spelling:
    return _searched(f"left({template}, {MAX_TEXT})")


def _bucket(place: str) -> Spelling:
    """Buckets are counted from 1; the places of those between the limits from 0."""
    outside = "WHEN {0} IS NULL THEN NULL WHEN {0} < {1} THEN 0 WHEN {0} >= {2} THEN {3} + 1"
    return _tried(f"CASE {outside} ELSE {place} + 1 END")


_SEEN = f"left({{0}}, {MAX_SCANNED})"
_BLANKS = r"[ \t\n\r\f\v]*"


def _readable(pattern: str) -> Spelling:
    """Text that PostgreSQL reads as a value of some type, NULL where it is anything else."""
    escaped = pattern.replace("{", "{{").replace("}", "}}")
    guard = f"regexp_full_match({_SEEN}, '{_BLANKS}{escaped}{_BLANKS}')"
    return Spelling(
        f"CASE WHEN {guard} THEN trim({_SEEN}, chr(32) || chr(9) || chr(10) || chr(11) || chr(12) || chr(13)) END"
    )


_FRACTION_PARTS = {
    "second": "(TRY(extract(microsecond FROM {0})) / 1e6)",
    "milliseconds": "(TRY(extract(microsecond FROM {0})) / 1e3)",
    "epoch": "TRY(extract(epoch FROM {0}))",
}

_UNITS = {
    **{unit: f"date_trunc('{unit}', {{0}})" for unit in OTHER_UNITS},
    # The first year of a century and of a millennium ends in 01.
    "millennium": "date_trunc('year', {0}) - to_years(CAST((extract(year FROM {0}) - 1) % 1000 AS INTEGER))",
    "century": "date_trunc('year', {0}) - to_years(CAST((extract(year FROM {0}) - 1) % 100 AS INTEGER))",
    "microseconds": "{0}",
}

_UNIT_DAYS = 86_400_000_000
_MICROSECONDS = "(epoch_us({0}) - epoch_us({1}))"

_MONTHS = "CAST(extract(year FROM {0}) * 12 + extract(month FROM {0}) AS HUGEINT)"
_DAY = "CAST(extract(day FROM {0}) AS HUGEINT)"
_DAYS = f"({_MONTHS} * 30 + {_DAY})"
_TIME = "(extract(hour FROM {0}) * 3600000000 + extract(minute FROM {0}) * 60000000 + extract(microsecond FROM {0}))"


def _justified(months: str, days: str, microseconds: str) -> Spelling:
    """An interval of parts of one sign: quotients are cut, and remainders have the sign of what is divided."""
    parts = f"to_months(CAST({months} AS INTEGER)) + to_days(CAST({days} AS INTEGER))"
    return _tried(f"{parts} + to_microseconds(CAST({microseconds} AS BIGINT))")


# Some versions of DuckDB refuse -5e-324 seconds and read 60.5; PostgreSQL rounds first, and ends at 60.
_SECONDS = "CASE WHEN round({%d}, 6) BETWEEN 0 AND 60 THEN round({%d}, 6) END"
_DOUBLE_DIGITS = (
    # PostgreSQL turns to an exponent at 1e15, DuckDB at 1e16.
    "CASE WHEN abs({0}) >= 1e15 AND abs({0}) < 1e16 THEN regexp_replace(regexp_replace("
    r"replace(CAST({0} AS VARCHAR), '.', ''), '^(-?[0-9])([0-9]*?)0*$', '\1.\2'), '\.$', '') || 'e+15' "
    r"ELSE regexp_replace(CAST({0} AS VARCHAR), '\.0$', '') END"
)

_WORD = f"lower(trim({_SEEN}, chr(32) || chr(9) || chr(10) || chr(11) || chr(12) || chr(13)))"


def elements_of(array: str) -> str:
    """The texts of an array's elements as a list; an array within an array is none."""
    text = "CASE WHEN json_type(j) = 'VARCHAR' THEN json_extract_string(j, '$') END"
    return f"list_transform(CAST(json_extract(CAST({array} AS VARCHAR), '$[*]') AS JSON[]), lambda j: {text})"


# Numbers have the digits that they have as numerics of a query, and no zeros behind them.
_SCALAR = (
    "CASE json_type({0}) WHEN 'VARCHAR' THEN left(json_extract_string({0}, '$'), " + str(MAX_TEXT) + ") "
    "WHEN 'BOOLEAN' THEN json_extract_string({0}, '$') "
    "WHEN 'NULL' THEN NULL WHEN 'OBJECT' THEN NULL WHEN 'ARRAY' THEN NULL "
    "ELSE rtrim(rtrim(CAST(TRY_CAST(json_extract_string({0}, '$') AS DECIMAL(38, 15)) AS VARCHAR), '0'), '.') END"
)
_TYPE = (
    "CASE json_type({0}) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' WHEN 'VARCHAR' THEN 'string' "
    "WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null' ELSE 'number' END"
)
SPELLINGS: dict[str, Spelling] = {
    # Numbers
    "int_add": _tried("{0} + {1}"),
    "int_subtract": _tried("{0} - {1}"),
    "int_multiply": _tried("{0} * {1}"),
    "int_divide": _tried("{0} // {1}"),
    # The least number has no opposite, and so no quotient by -1, but a remainder it has.
    "int_modulo": Spelling("CASE WHEN {1} = -1 THEN {0} - {0} ELSE TRY({0} % {1}) END"),
    "int_negate": _tried("-{0}"),
    "int_abs": _tried("abs({0})"),
    "gcd": _tried("gcd({0}, {1})"),
    "lcm": _tried("lcm({0}, {1})"),
    "bit_xor": Spelling("xor({0}, {1})"),
    "add": _arithmetic("({0} + {1})"),
    "subtract": _arithmetic("({0} - {1})"),
    "multiply": _arithmetic("({0} * {1})"),
    "divide": _float("({0} / {1})"),
    "modulo": _float("({0} % {1})"),
    "numeric_modulo": _tried("{0} % {1}"),
    "negate": _arithmetic("(-{0})"),
    "log": _float("TRY(log(nullif({0}, 0), {1}))"),
    "power": _float("pow({0}, {1})"),
    # DuckDB 1 raises where a function has no value; 2 has NaN or an infinity there.
    **{
        name: _float(f"TRY({name}({{0}}))")
        for name in ("sqrt", "ln", "log10", "sin", "cos", "tan", "cot", "asin", "acos", "atanh")
    },
    "sign": _float("CAST(sign({0}) AS DOUBLE)"),
    "round": _float("round_even({0}, 0)"),
    "round_digits": _tried("round({0}, {1})"),
    "trunc_digits": _tried("trunc({0}, {1})"),
    "width_bucket": _bucket("least(TRY_CAST(floor({3} * (({0} - {1}) / ({2} - {1}))) AS BIGINT), {3} - 1)"),
    # A quotient without its remainder is whole, which a double is, too.
    "numeric_width_bucket": _bucket(
        "TRY_CAST(({3} * ({0} - {1}) - {3} * ({0} - {1}) % ({2} - {1})) / ({2} - {1}) AS BIGINT)"
    ),
    # Text
    "like": Spelling("({0} LIKE {1})"),
    "like_pattern": Spelling(f"regexp_matches({_SEEN}, {{1}})"),
    "regexp_like": _searched("regexp_matches(SUBJECT, {1})"),
    "regexp_count": _searched("len(regexp_extract_all(SUBJECT, {1}))"),
    "regexp_substring": _searched("CASE WHEN regexp_matches(SUBJECT, {1}) THEN regexp_extract(SUBJECT, {1}, {2}) END"),
    "regexp_replace": _text("regexp_replace(SUBJECT, {1}, {2}, {3})"),
    "lower": Spelling(f"lower({_SEEN})"),
    "upper": Spelling(f"upper({_SEEN})"),
    "initcap": _text(
        "array_to_string(list_transform(regexp_extract_all(SUBJECT, '[\\pL\\pN]+|[^\\pL\\pN]+'), "
        "lambda word: upper(left(word, 1)) || lower(substring(word, 2))), '')"
    ),
    "octet_length": Spelling("strlen({0})"),
    "reverse": Spelling("array_to_string(list_reverse(string_split({0}, '')), '')"),
    "beginning": Spelling("CASE WHEN strlen({0}) <= {1} THEN {0} ELSE left({0}, {1}) END"),
    "substring_from": Spelling("CASE WHEN {1} IS NOT NULL THEN substring({0}, greatest({1}, 1)) END"),
    "substring_for": Spelling(
        "CASE WHEN {1} IS NOT NULL AND {2} >= 0 "
        "THEN substring({0}, greatest({1}, 1), greatest({1} + {2} - greatest({1}, 1), 0)) END",
    ),
    "trim": Spelling(f"trim({_SEEN}, {{1}})"),
    "repeat": Spelling(
        f"TRY(rpad({{0}}, CAST(least({{1}} * length({{0}}), {MAX_TEXT}) AS INTEGER), {{0}}))",
    ),
    "number_digits": Spelling("printf({1}, TRY_CAST({0} AS DOUBLE))"),
    # JSON and arrays
    **dict.fromkeys(("json_get", "json_element", "json_either"), Spelling("CAST(json_extract({0}, {1}) AS VARCHAR)")),
    "json_scalar": Spelling(_SCALAR),
    "json_typeof": Spelling("CASE WHEN {0} IS NOT NULL THEN " + _TYPE + " END"),
    "json_length": Spelling("CASE WHEN json_type({0}) = 'ARRAY' THEN CAST(json_array_length({0}) AS INTEGER) END"),
    "json_contains": Spelling(
        "list_transform([{0}], lambda j0: CASE WHEN j0 IS NOT NULL THEN coalesce({1}, false) END)[1]"
    ),
    "json_has_key": Spelling(
        f"CASE WHEN {{0}} IS NULL OR {{1}} IS NULL THEN NULL ELSE coalesce(CASE json_type({{0}}) "
        f"WHEN 'OBJECT' THEN list_contains(json_keys({{0}}), {{1}}) WHEN 'ARRAY' THEN "
        f"list_contains({elements_of('{0}')}, {{1}}) WHEN 'VARCHAR' THEN json_extract_string({{0}}, '$') = {{1}} END, "
        "false) END"
    ),
    # An element that is an array is none of an array of two dimensions.
    "array_element": Spelling("CASE WHEN json_type({0}, {1}) = 'VARCHAR' THEN json_extract_string({0}, {1}) END"),
    "array_slice": Spelling(
        "CASE WHEN {0} IS NOT NULL AND json_type({0}, '$[0]') IS DISTINCT FROM 'ARRAY' "
        f"THEN CAST(to_json({elements_of('{0}')}[{{1}}:{{2}}]) AS VARCHAR) END"
    ),
    "array_size": Spelling("CAST(json_array_length({0}) AS INTEGER)"),
    "array_has": Spelling(
        "CASE WHEN {1} IS NULL THEN CASE WHEN {0} = '[]' THEN false END "
        "WHEN json_contains({0}, to_json({1})) THEN true ELSE nullif(json_contains({0}, 'null'), true) END"
    ),
    "string_to_array": Spelling(
        f"CASE WHEN {{0}} = '' THEN '[]' "
        f"ELSE CAST(to_json(string_split(left({{0}}, {MAX_TEXT}), {{1}})[1:{MAX_ELEMENTS}]) AS VARCHAR) END"
    ),
    # Conversions
    "integer_text": _readable("[+-]?[0-9]+"),
    "number_text": _readable("[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?"),
    "date_text": _readable("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?)?"),
    "time_text": _readable("[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"),
    "text_to_boolean": Spelling(
        f"CASE WHEN {_WORD} IN {TRUE_WORDS} THEN true WHEN {_WORD} IN {FALSE_WORDS} THEN false END"
    ),
    "float_to_text": Spelling(_DOUBLE_DIGITS),
    "text_to_json": Spelling(f"CASE WHEN {IS_JSON} AND json_valid({{0}}) THEN {{0}} END"),
    # Dates, times and intervals
    "date_add": _moment("{0} + {1}"),
    "date_subtract": _moment("{0} - {1}"),
    "days_between": _tried("{0} - {1}"),
    "date_at": _moment("{0} + {1}"),
    "moment_add": _moment("{0} + {1}"),
    "moment_subtract": _moment("{0} - {1}"),
    "moments_between": _tried(
        f"to_days(CAST({_MICROSECONDS} // {_UNIT_DAYS} AS INTEGER)) + to_microseconds({_MICROSECONDS} % {_UNIT_DAYS})"
    ),
    "times_between": _tried(f"to_microseconds{_MICROSECONDS}"),
    "time_add": _tried("{0} + {1}"),
    "time_subtract": _tried("{0} - {1}"),
    "age": _tried("age({0}, {1})"),
    "interval_add": _tried("{0} + {1}"),
    "interval_subtract": _tried("{0} - {1}"),
    "interval_negate": _tried("-{0}"),
    "justify_days": _justified(f"{_DAYS} // 30", f"{_DAYS} % 30", _TIME),
    "justify_hours": _justified(
        _MONTHS,
        f"({_DAY} * {_UNIT_DAYS} + {_TIME}) // {_UNIT_DAYS}",
        f"({_DAY} * {_UNIT_DAYS} + {_TIME}) % {_UNIT_DAYS}",
    ),
    "justify_interval": _justified(
        f"({_DAYS} * {_UNIT_DAYS} + {_TIME}) // {30 * _UNIT_DAYS}",
        f"({_DAYS} * {_UNIT_DAYS} + {_TIME}) % {30 * _UNIT_DAYS} // {_UNIT_DAYS}",
        f"({_DAYS} * {_UNIT_DAYS} + {_TIME}) % {_UNIT_DAYS}",
    ),
    "interval_multiply": _tried("{0} * {1}"),
    "interval_divide": _tried("{0} / {1}"),
    "make_date": _moment("make_date({0}, {1}, {2})"),
    "make_time": _tried(f"make_time({{0}}, {{1}}, {_SECONDS % (2, 2)})"),
    "make_timestamp": _moment(f"make_timestamp({{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {_SECONDS % (5, 5)})"),
    "from_epoch": _moment("to_timestamp({0})"),
    "read_moment": _moment(
        "CASE WHEN regexp_full_match({0}, {2}) THEN TRY_STRPTIME(regexp_replace({0}, {2}, {3}), {1}) END",
    ),
    "at_zone": _moment("timezone({1}, {0})"),
    "date_bin": _moment("time_bucket({0}, {1}, {2})"),
    "month_name": _tried("monthname({0})"),
    "day_name": _tried("dayname({0})"),
    **{f"extract_{part}": _tried(f"extract({part} FROM {{0}})") for part in EXTRACT_PARTS},
    **{f"extract_{part}": Spelling(template) for part, template in _FRACTION_PARTS.items()},
    **{f"date_trunc_{unit}": _moment(f"date_trunc('{unit}', {{0}})") for unit in TRUNC_UNITS},
    **{f"trunc_to_{unit}": _moment(template) for unit, template in _UNITS.items()},
}
