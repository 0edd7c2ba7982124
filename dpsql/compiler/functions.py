"""The allow-list: every function and operator that may stand in a query, and how each is total.

Rule 1: a function that is not here does not exist for analysts.
Rule 2: an engine's spelling of it is total for every value of its argument types; neither WHERE nor declared bounds
count as a guard, for engines evaluate early.
Rule 3: NaN, infinities and moments outside years 1 to 9999 become NULL where a value is used.
"""

MAX_TEXT = 10_000
"""Characters that a function which lengthens text gives at the most, so that no row's text can grow without bound."""
MAX_SCANNED = 1_000_000
"""Characters that a function sees at the most which fails over some hundred million of them."""
FIRST_CHARACTERS = f"the first {MAX_TEXT:,} characters"
_MANY_CHARACTERS = f"the first {MAX_SCANNED:,} characters"
_ALWAYS = "for every value"
_ON_OVERFLOW = "NULL where the result does not fit"
_ON_NAN = "NULL where the result is not a finite number"
_ON_RANGE = "NULL outside the years 1 to 9999"
_ON_ERROR = "NULL where there is no such value"

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

FRACTION_PARTS = ("second", "milliseconds", "epoch")
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

OTHER_UNITS = ("millennium", "century", "decade", "minute", "second", "milliseconds", "microseconds")
"""Units DATE_TRUNC knows beside these."""

UNITS: dict[str, str] = {
    **{unit: f"date_trunc_{unit}" for unit in TRUNC_UNITS},
    **{unit: f"trunc_to_{unit}" for unit in OTHER_UNITS},
}
"""Every unit DATE_TRUNC knows, with its entry of the allow-list."""

INTERVAL_FIELDS = ("year", "month", "day", "hour", "minute", "second")
"""Fields that may follow INTERVAL 'text'."""

FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(("and", "or", "not", "is_null", "is_true", "is_false"), _ALWAYS),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "distinct_from", "between"), _ALWAYS),
    **dict.fromkeys(("coalesce", "nullif", "least", "greatest"), _ALWAYS),
    # Numbers
    **dict.fromkeys(("int_add", "int_subtract", "int_multiply", "int_divide", "int_modulo"), _ON_OVERFLOW),
    **dict.fromkeys(("int_negate", "int_abs", "gcd", "lcm"), _ON_OVERFLOW),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor", "bit_not"), _ALWAYS),
    "shift_right": "constant counts only",
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "modulo", "negate", "abs", "sign"), _ON_NAN),
    **dict.fromkeys(("sqrt", "cbrt", "exp", "ln", "log10", "log", "power"), _ON_NAN),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), _ON_NAN),
    **dict.fromkeys(("round_digits", "trunc_digits"), _ON_OVERFLOW),
    "numeric_within": _ALWAYS,
    **dict.fromkeys(("sin", "cos", "tan", "cot", "asin", "acos", "atan", "atan2", "degrees", "radians"), _ON_NAN),
    **dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), _ON_NAN),
    "width_bucket": "constant limits and count only",
    # Text
    "like": "constant patterns only",
    "like_pattern": f"constant patterns only; {_MANY_CHARACTERS}",
    **dict.fromkeys(("regexp_like", "regexp_count", "regexp_substring"), f"constant patterns only; {FIRST_CHARACTERS}"),
    "regexp_replace": f"constant patterns and replacements only; {FIRST_CHARACTERS}",
    **dict.fromkeys(("length", "octet_length", "bit_length", "reverse"), _ALWAYS),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim"), _MANY_CHARACTERS),
    **dict.fromkeys(("left", "right", "substring", "substring_from"), _ALWAYS),
    **dict.fromkeys(("strpos", "starts_with", "ascii", "md5", "number_digits"), _ALWAYS),
    "substring_for": "NULL for a negative length",
    **dict.fromkeys(("initcap", "concat", "concat_ws", "concat_operator"), FIRST_CHARACTERS),
    **dict.fromkeys(("lpad", "rpad"), "constant lengths and fillings only"),
    "repeat": f"constant counts only; {FIRST_CHARACTERS}",
    "replace": f"constant search and replacement; {FIRST_CHARACTERS}",
    "translate": f"constant characters only; {_MANY_CHARACTERS}",
    "split_part": "constant separators and places only",
    # Conversions
    **dict.fromkeys(("integer_text", "number_text", "date_text", "time_text", "float_to_text"), _ALWAYS),
    "text_to_boolean": _ON_ERROR,
    # Dates, times and intervals
    **dict.fromkeys(("date_add", "date_subtract", "date_at", "moment_add", "moment_subtract"), _ON_RANGE),
    **dict.fromkeys(("days_between", "moments_between", "times_between", "age"), _ON_OVERFLOW),
    **dict.fromkeys(("time_add", "time_subtract", "interval_add", "interval_subtract"), _ON_OVERFLOW),
    **dict.fromkeys(("interval_negate", "interval_multiply", "interval_divide"), _ON_OVERFLOW),
    **dict.fromkeys(("make_date", "make_time", "make_timestamp"), _ON_ERROR),
    "from_epoch": _ON_RANGE,
    "read_moment": "constant formats only; NULL where the text is not of the format",
    "at_zone": f"constant zones only; {_ON_RANGE}",
    "date_bin": f"constant widths and origins only; {_ON_RANGE}",
    "is_finite": _ALWAYS,
    **dict.fromkeys(("month_name", "day_name"), _ON_OVERFLOW),
    **{f"extract_{part}": _ALWAYS for part in (*EXTRACT_PARTS, *FRACTION_PARTS)},
    **dict.fromkeys(UNITS.values(), _ON_RANGE),
}
"""Entries of the allow-list, each with the values for which it gives one, in the words of the documentation."""

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

SPREADS = frozenset({"var_pop", "var_samp", "stddev_pop", "stddev_samp"})
"""Aggregates that tell how far numbers are apart."""

PAIRS = frozenset(
    {
        *("covar_pop", "covar_samp", "corr", "regr_slope", "regr_intercept", "regr_r2", "regr_count"),
        *("regr_avgx", "regr_avgy", "regr_sxx", "regr_syy", "regr_sxy"),
    }
)
"""Aggregates of pairs (y, x), both of which are there."""

PERCENTILES = frozenset({"percentile_cont", "percentile_disc"})
"""Aggregates of the value that a part of the rows lies below."""

WITHIN_GROUP = PERCENTILES | {"mode"}
"""Aggregates of values in an order."""

RANKS = PERCENTILES | {"min", "max"}
"""Aggregates whose value has a rank among the others."""

TRUTHS = frozenset({"bool_and", "bool_or"})
"""Aggregates of conditions."""
