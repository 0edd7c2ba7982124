"""The allow-list: every function and operator that may stand in a query, and how each is made total.

Rule 1: a function that is not here does not exist for analysts.
Rule 2: a template is total for every value of its argument types, or wrapped so that it gives NULL instead of an
error; neither WHERE nor declared bounds count as a guard, for engines evaluate early.
Rule 3: NaN, infinities and moments outside years 1 to 9999 may arise within an expression, and become NULL where
its value is used (`raw`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """One entry of the allow-list.

    Attributes:
        duckdb: Template over positional arguments; `{all}` joins any number by `joiner`.
        total: How it is total, in the words of the documentation.
        raw: True where the value may be NaN, infinite or out of range until it is guarded.
        joiner: What stands between the arguments of `{all}`.
        passes_raw: True where a NaN or infinite argument gives such a result again, so that one guard at the
            end of a chain of arithmetic is enough.
    """

    duckdb: str
    total: str = "for every value"
    raw: bool = False
    joiner: str = ", "
    passes_raw: bool = False


_NULL_ON_OVERFLOW = "NULL where the result does not fit"
_NULL_ON_NAN = "NULL where the result is not a finite number"
_NULL_ON_RANGE = "NULL outside the years 1 to 9999"
_NULL_ON_ERROR = "NULL where there is no such value"


def _float(template: str) -> Function:
    return Function(template, _NULL_ON_NAN, raw=True)


def _arithmetic(template: str) -> Function:
    return Function(template, _NULL_ON_NAN, raw=True, passes_raw=True)


def _integer(template: str) -> Function:
    return Function(f"TRY({template})", _NULL_ON_OVERFLOW)


def _moment(template: str, total: str = _NULL_ON_RANGE) -> Function:
    return Function(f"TRY({template})", total, raw=True)


def _tried(template: str, total: str = _NULL_ON_OVERFLOW) -> Function:
    return Function(f"TRY({template})", total)


MAX_TEXT = 10_000
"""Characters that a function which lengthens text gives at the most, so that no row's text can grow without bound."""
FIRST_CHARACTERS = f"the first {MAX_TEXT:,} characters"


def _text(template: str, constants: str = "") -> Function:
    return Function(f"left({template}, {MAX_TEXT})", f"{constants}{FIRST_CHARACTERS}")


def _searched(template: str) -> Function:
    """A regular expression, over so much text that its time is bounded."""
    subject = f"left({{0}}, {MAX_TEXT})"
    return Function(template.replace("SUBJECT", subject), f"constant patterns only; {FIRST_CHARACTERS}")


_BLANKS = r"[ \t\n\r\f\v]*"


def _readable(pattern: str) -> Function:
    """Text that PostgreSQL reads as a value of some type, NULL where it is anything else."""
    escaped = pattern.replace("{", "{{").replace("}", "}}")
    guard = f"regexp_full_match({{0}}, '{_BLANKS}{escaped}{_BLANKS}')"
    return Function(
        f"CASE WHEN {guard} THEN trim({{0}}, chr(32) || chr(9) || chr(10) || chr(11) || chr(12) || chr(13)) END"
    )


EXTRACT_PARTS: dict[str, tuple[int, int]] = {
    "millennium": (1, 10),
    "century": (1, 100),
    "decade": (0, 999),
    "year": (1, 9999),
    "isoyear": (1, 9999),
    "quarter": (1, 4),
    "month": (1, 12),
    "week": (1, 53),
    "day": (1, 31),
    "doy": (1, 366),
    "dow": (0, 6),
    "isodow": (1, 7),
    "hour": (0, 23),
    "minute": (0, 59),
    "microseconds": (0, 60_000_000),
}
"""Whole-numbered parts EXTRACT knows, each with the range of what it returns for a moment."""

FRACTION_PARTS: dict[str, str] = {
    "second": "(TRY(extract(microsecond FROM {0})) / 1e6)",
    "milliseconds": "(TRY(extract(microsecond FROM {0})) / 1e3)",
    "epoch": "TRY(extract(epoch FROM {0}))",
}
"""Parts EXTRACT knows that have fractions."""

CLOCK_PARTS = ("hour", "minute", "second", "milliseconds", "microseconds")
"""Parts a date does not have."""

TIME_PARTS = (*CLOCK_PARTS, "epoch")
"""Parts a time of day has."""

INTERVAL_PARTS = (*TIME_PARTS, "day", "month", "year", "decade", "century", "millennium")
"""Parts an interval has."""

PART_NAMES: dict[str, str] = {
    **{part: part for part in (*EXTRACT_PARTS, *FRACTION_PARTS)},
    **{f"{part}s": part for part in ("decade", "year", "month", "week", "day", "hour", "minute", "second")},
    **{"millenniums": "millennium", "centuries": "century", "msecs": "milliseconds", "usecs": "microseconds"},
    **{"millisecond": "milliseconds", "microsecond": "microseconds", "mon": "month", "mons": "month"},
    **{"sec": "second", "secs": "second", "min": "minute", "mins": "minute", "hr": "hour", "hrs": "hour"},
}
"""The names that PostgreSQL has for the parts."""

TRUNC_UNITS = ("year", "quarter", "month", "week", "day", "hour")
"""Units DATE_TRUNC knows whose values can be listed, largest first."""

_OTHER_UNITS: dict[str, str] = {
    # The first year of a century and of a millennium ends in 01.
    "millennium": "date_trunc('year', {0}) - to_years(CAST((extract(year FROM {0}) - 1) % 1000 AS INTEGER))",
    "century": "date_trunc('year', {0}) - to_years(CAST((extract(year FROM {0}) - 1) % 100 AS INTEGER))",
    "decade": "date_trunc('decade', {0})",
    "minute": "date_trunc('minute', {0})",
    "second": "date_trunc('second', {0})",
    "milliseconds": "date_trunc('milliseconds', {0})",
    "microseconds": "{0}",
}

UNITS: dict[str, str] = {
    **{unit: f"date_trunc_{unit}" for unit in TRUNC_UNITS},
    **{unit: f"trunc_to_{unit}" for unit in _OTHER_UNITS},
}
"""Every unit DATE_TRUNC knows, with its entry of the allow-list."""

INTERVAL_FIELDS = ("year", "month", "day", "hour", "minute", "second")
"""Fields that may follow INTERVAL 'text'."""

_UNIT_DAYS = 86_400_000_000
_MICROSECONDS = "(epoch_us({0}) - epoch_us({1}))"

_DOUBLE_DIGITS = (
    # PostgreSQL turns to an exponent at 1e15, DuckDB at 1e16.
    "CASE WHEN abs({0}) >= 1e15 AND abs({0}) < 1e16 THEN regexp_replace(regexp_replace("
    r"replace(CAST({0} AS VARCHAR), '.', ''), '^(-?[0-9])([0-9]*?)0*$', '\1.\2'), '\.$', '') || 'e+15' "
    r"ELSE regexp_replace(CAST({0} AS VARCHAR), '\.0$', '') END"
)

_TRUE_WORDS = "('t', 'tr', 'tru', 'true', 'y', 'ye', 'yes', 'on', '1')"
_FALSE_WORDS = "('f', 'fa', 'fal', 'fals', 'false', 'n', 'no', 'of', 'off', '0')"
_WORD = "lower(trim({0}, chr(32) || chr(9) || chr(10) || chr(11) || chr(12) || chr(13)))"

FUNCTIONS: dict[str, Function] = {
    "and": Function("({all})", joiner=" AND "),
    "or": Function("({all})", joiner=" OR "),
    "not": Function("(NOT {0})"),
    "is_null": Function("({0} IS NULL)"),
    "is_true": Function("({0} IS TRUE)"),
    "is_false": Function("({0} IS FALSE)"),
    "eq": Function("({0} = {1})"),
    "ne": Function("({0} <> {1})"),
    "lt": Function("({0} < {1})"),
    "le": Function("({0} <= {1})"),
    "gt": Function("({0} > {1})"),
    "ge": Function("({0} >= {1})"),
    "distinct_from": Function("({0} IS DISTINCT FROM {1})"),
    "between": Function("({0} BETWEEN {1} AND {2})"),
    "coalesce": Function("coalesce({all})"),
    "nullif": Function("nullif({0}, {1})"),
    "least": Function("least({all})"),
    "greatest": Function("greatest({all})"),
    # Numbers
    "int_add": _integer("{0} + {1}"),
    "int_subtract": _integer("{0} - {1}"),
    "int_multiply": _integer("{0} * {1}"),
    "int_divide": _integer("{0} // {1}"),
    "int_modulo": _integer("{0} % {1}"),
    "int_negate": _integer("-{0}"),
    "int_abs": _integer("abs({0})"),
    "gcd": _integer("gcd({0}, {1})"),
    "lcm": _integer("lcm({0}, {1})"),
    "bit_and": Function("({0} & {1})"),
    "bit_or": Function("({0} | {1})"),
    "bit_xor": Function("xor({0}, {1})"),
    "bit_not": Function("(~{0})"),
    "shift_right": Function("({0} >> {1})", "constant counts only"),
    "add": _arithmetic("({0} + {1})"),
    "subtract": _arithmetic("({0} - {1})"),
    "multiply": _arithmetic("({0} * {1})"),
    "divide": _float("({0} / {1})"),
    "modulo": _float("({0} % {1})"),
    "negate": _arithmetic("(-{0})"),
    "abs": _float("abs({0})"),
    "sqrt": _float("sqrt({0})"),
    "cbrt": _float("cbrt({0})"),
    "exp": _float("exp({0})"),
    "ln": _float("ln({0})"),
    "log10": _float("log10({0})"),
    "log": _float("TRY(log({0}, {1}))"),
    "power": _float("pow({0}, {1})"),
    "sign": _float("CAST(sign({0}) AS DOUBLE)"),
    "floor": _float("floor({0})"),
    "ceil": _float("ceil({0})"),
    "trunc": _float("trunc({0})"),
    "round": _float("round_even({0}, 0)"),
    "round_digits": _tried("round({0}, {1})"),
    "trunc_digits": _tried("trunc({0}, {1})"),
    "numeric_within": Function("CASE WHEN {0} > -{1} AND {0} < {1} THEN {0} END"),
    **{name: _float(f"{name}({{0}})") for name in ("sin", "cos", "tan", "cot", "asin", "acos", "atan")},
    **{name: _float(f"{name}({{0}})") for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")},
    "atan2": _float("atan2({0}, {1})"),
    "degrees": _float("degrees({0})"),
    "radians": _float("radians({0})"),
    "width_bucket": _tried(
        "CASE WHEN {0} IS NULL THEN NULL WHEN {0} < {1} THEN 0 WHEN {0} >= {2} THEN {3} + 1 "
        "ELSE least(TRY_CAST(floor({3} * (({0} - {1}) / ({2} - {1}))) AS BIGINT), {3} - 1) + 1 END",
        "constant limits and count only",
    ),
    # Text
    "like": Function("({0} LIKE {1})", "constant patterns only"),
    "like_pattern": Function("regexp_matches({0}, {1})", "constant patterns only"),
    "regexp_like": _searched("regexp_matches(SUBJECT, {1})"),
    "regexp_count": _searched("len(regexp_extract_all(SUBJECT, {1}))"),
    "regexp_substring": _searched("CASE WHEN regexp_matches(SUBJECT, {1}) THEN regexp_extract(SUBJECT, {1}, {2}) END"),
    "regexp_replace": _text(
        f"regexp_replace(left({{0}}, {MAX_TEXT}), {{1}}, {{2}}, {{3}})", "constant patterns and replacements only; "
    ),
    "lower": Function("lower({0})"),
    "upper": Function("upper({0})"),
    "initcap": _text(
        f"array_to_string(list_transform(regexp_extract_all(left({{0}}, {MAX_TEXT}), '[\\pL\\pN]+|[^\\pL\\pN]+'), "
        "lambda word: upper(left(word, 1)) || lower(substring(word, 2))), '')"
    ),
    "length": Function("length({0})"),
    "octet_length": Function("strlen({0})"),
    "bit_length": Function("bit_length({0})"),
    "reverse": Function("array_to_string(list_reverse(string_split({0}, '')), '')"),
    "left": Function("left({0}, {1})"),
    "right": Function("right({0}, {1})"),
    "substring": Function("substring({all})"),
    "substring_from": Function("CASE WHEN {1} IS NOT NULL THEN substring({0}, greatest({1}, 1)) END"),
    "substring_for": Function(
        "CASE WHEN {1} IS NOT NULL AND {2} >= 0 "
        "THEN substring({0}, greatest({1}, 1), greatest({1} + {2} - greatest({1}, 1), 0)) END",
        "NULL for a negative length",
    ),
    "trim": Function("trim({0}, {1})"),
    "ltrim": Function("ltrim({0}, {1})"),
    "rtrim": Function("rtrim({0}, {1})"),
    "lpad": Function("lpad({0}, {1}, {2})", "constant lengths and fillings only"),
    "rpad": Function("rpad({0}, {1}, {2})", "constant lengths and fillings only"),
    "repeat": Function(
        f"TRY(rpad({{0}}, CAST(least({{1}} * length({{0}}), {MAX_TEXT}) AS INTEGER), {{0}}))",
        f"constant counts only; {FIRST_CHARACTERS}",
    ),
    "replace": _text(f"replace(left({{0}}, {MAX_TEXT}), {{1}}, {{2}})", "constant search and replacement; "),
    "translate": Function("translate({0}, {1}, {2})", "constant characters only"),
    "concat": _text("concat({all})"),
    "concat_ws": _text("concat_ws({all})"),
    "concat_operator": _text("({0} || {1})"),
    "strpos": Function("strpos({0}, {1})"),
    "starts_with": Function("starts_with({0}, {1})"),
    "split_part": Function("split_part({0}, {1}, {2})", "constant separators and places only"),
    "ascii": Function("ascii({0})"),
    "md5": Function("md5({0})"),
    "number_digits": Function("printf({1}, TRY_CAST({0} AS DOUBLE))"),
    # Conversions
    "integer_text": _readable("[+-]?[0-9]+"),
    "number_text": _readable("[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?"),
    "date_text": _readable("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?)?"),
    "time_text": _readable("[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"),
    "text_to_boolean": Function(
        f"CASE WHEN {_WORD} IN {_TRUE_WORDS} THEN true WHEN {_WORD} IN {_FALSE_WORDS} THEN false END", _NULL_ON_ERROR
    ),
    "float_to_text": Function(_DOUBLE_DIGITS),
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
    "interval_multiply": _tried("{0} * {1}"),
    "interval_divide": _tried("{0} / {1}"),
    "make_date": _moment("make_date({0}, {1}, {2})", _NULL_ON_ERROR),
    "make_time": _tried("make_time({0}, {1}, {2})", _NULL_ON_ERROR),
    "make_timestamp": _moment("make_timestamp({0}, {1}, {2}, {3}, {4}, {5})", _NULL_ON_ERROR),
    "from_epoch": _moment("to_timestamp({0})"),
    "read_moment": _moment(
        "CASE WHEN regexp_full_match({0}, {2}) THEN TRY_STRPTIME({0}, {1}) END",
        "constant formats only; NULL where the text is not of the format",
    ),
    "at_zone": _moment("timezone({1}, {0})", f"constant zones only; {_NULL_ON_RANGE}"),
    "date_bin": _moment("time_bucket({0}, {1}, {2})", f"constant widths and origins only; {_NULL_ON_RANGE}"),
    "is_finite": Function("({0} IS NOT NULL OR NULL)"),
    "month_name": _tried("monthname({0})"),
    "day_name": _tried("dayname({0})"),
    **{f"extract_{part}": _tried(f"extract({part} FROM {{0}})", "for every value") for part in EXTRACT_PARTS},
    **{f"extract_{part}": Function(template) for part, template in FRACTION_PARTS.items()},
    **{f"date_trunc_{unit}": _moment(f"date_trunc('{unit}', {{0}})") for unit in TRUNC_UNITS},
    **{f"trunc_to_{unit}": _moment(template) for unit, template in _OTHER_UNITS.items()},
}

CALLS: dict[str, str] = {
    usage.partition("(")[0].lower(): usage
    for usage in (
        *("ABS(number)", "SIGN(number)", "CEIL(number)", "CEILING(number)", "FLOOR(number)"),
        *("ROUND(number[, digits])", "TRUNC(number[, digits])", "MOD(number, number)", "DIV(number, number)"),
        *("POWER(number, number)", "POW(number, number)", "SQRT(number)", "CBRT(number)", "EXP(number)", "LN(number)"),
        *("LOG(number[, number])", "LOG10(number)", "PI()", "DEGREES(number)", "RADIANS(number)"),
        *(f"{name}(number)" for name in ("SIN", "COS", "TAN", "COT", "ASIN", "ACOS", "ATAN")),
        *(f"{name}(number)" for name in ("SINH", "COSH", "TANH", "ASINH", "ACOSH", "ATANH")),
        *("ATAN2(number, number)", "GCD(integer, integer)", "LCM(integer, integer)"),
        "WIDTH_BUCKET(number, low, high, count)",
        *("LOWER(text)", "UPPER(text)", "INITCAP(text)", "REVERSE(text)", "MD5(text)", "ASCII(text)", "CHR(65)"),
        *("LENGTH(text)", "CHAR_LENGTH(text)", "CHARACTER_LENGTH(text)", "OCTET_LENGTH(text)", "BIT_LENGTH(text)"),
        *("CONCAT(value, …)", "CONCAT_WS(separator, value, …)", "FORMAT('%s', …)"),
        *("LEFT(text, integer)", "RIGHT(text, integer)", "SUBSTR(text, start[, length])"),
        *("BTRIM(text[, characters])", "LTRIM(text[, characters])", "RTRIM(text[, characters])"),
        *("LPAD(text, 10[, filling])", "RPAD(text, 10[, filling])", "REPEAT(text, 3)"),
        *("REPLACE(text, 'old', 'new')", "TRANSLATE(text, 'abc', 'xyz')", "STRPOS(text, text)"),
        *("SPLIT_PART(text, '-', 1)", "STARTS_WITH(text, text)", "TO_CHAR(value, 'format')"),
        *("REGEXP_LIKE(text, 'pattern'[, 'i'])", "REGEXP_COUNT(text, 'pattern')", "REGEXP_SUBSTR(text, 'pattern')"),
        "REGEXP_REPLACE(text, 'pattern', 'new'[, 'flags'])",
        *("DATE_PART('part', moment)", "DATE_TRUNC('unit', moment)", "AGE(moment[, moment])"),
        *("MAKE_DATE(year, month, day)", "MAKE_TIME(hour, minute, second)"),
        "MAKE_TIMESTAMP(year, month, day, hour, minute, second)",
        "MAKE_INTERVAL([years[, months[, weeks[, days[, hours[, mins[, secs]]]]]]])",
        *("TO_DATE(text, 'format')", "TO_TIMESTAMP(value[, 'format'])", "TIMEZONE('zone', moment)"),
        *("DATE_BIN('15 minutes', moment, TIMESTAMP '2001-01-01')", "ISFINITE(moment)"),
        *("TRANSACTION_TIMESTAMP()", "STATEMENT_TIMESTAMP()", "CLOCK_TIMESTAMP()"),
        *("NUM_NULLS(value, …)", "NUM_NONNULLS(value, …)"),
    )
}
"""Every function that is called by its name and arguments in a row: how it is written, [optional] arguments last."""

AGGREGATES = frozenset({"count", "sum", "avg", "min", "max"})
"""Aggregates by PostgreSQL's names; over protected rows only the first three."""

WINDOW_FUNCTIONS: dict[str, str] = {
    "row_number": "row_number()",
    "rank": "rank()",
    "dense_rank": "dense_rank()",
    "percent_rank": "percent_rank()",
    "cume_dist": "cume_dist()",
    "ntile": "ntile({0})",
    "lag": "lag({all})",
    "lead": "lead({all})",
    "first_value": "first_value({0})",
    "last_value": "last_value({0})",
    "nth_value": "nth_value({all})",
    "count": "count({0})",
    "count_rows": "count(*)",
    "sum": "sum({0})",
    "avg": "avg({0})",
    "min": "min({0})",
    "max": "max({0})",
}
"""Window functions over released or public rows."""
