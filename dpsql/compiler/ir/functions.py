"""The allow-list: every function and operator that queries may use, with its totality, usages and SQL.

Rule 1: a function that is not listed here does not exist for analysts.
Rule 2: an engine's spelling of it is total for every value of its argument types. Neither WHERE nor declared bounds are
guards, because engines evaluate early.
Rule 3: NaN, infinities and moments outside years 1 to 9999 become NULL before a value is used.
Rule 4: SQL that engines share is written here, once; a dialect contains only the exceptions of its engine.
Rule 5: texts are truncated when they are computed, so that no value and no row exceeds an engine's limits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dpsql.compiler.ir.nodes import Call, Cast, Expr, Literal
from dpsql.sqltypes import SqlType

T = TypeVar("T")

MAX_TEXT = 10_000
"""Characters that a function which lengthens text gives at the most, so that no row's text can grow without bound."""
MAX_SCANNED = 100_000
"""Characters that other functions of text give at the most: PostgreSQL has 1,664 columns and a gigabyte in a row."""
MAX_ELEMENTS = 1_000
"""Elements of an array in protected rows that are read, and that a text is split into."""
MAX_NESTED = 100_000
"""Bytes of JSON, or of an array as JSON, in protected rows: UNNEST may copy it to each element's row."""
JSON_DEPTH = 16
"""Levels of objects and arrays within each other that text may have to be read as JSON."""
FIRST_CHARACTERS = f"the first {MAX_TEXT:,} characters"
_MANY_CHARACTERS = f"the first {MAX_SCANNED:,} characters"
_ALWAYS = "for every value"
_ON_OVERFLOW = "NULL where the result does not fit"
_ON_NAN = "NULL where the result is not a finite number"
_ON_RANGE = "NULL outside the years 1 to 9999"
_ON_ERROR = "NULL where there is no such value"
_ON_PATTERN = "constant patterns only"
_ON_REGULAR = f"{_ON_PATTERN}; {FIRST_CHARACTERS}"
_ON_LONG = f"{_MANY_CHARACTERS}; without this limit for constant lengths"
_SEEN = f"left({{0}}, {MAX_SCANNED})"

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


@dataclass(frozen=True)
class Spelling:
    """A function or operator in SQL, total for every value of its arguments' types.

    Attributes:
        template: SQL over positional arguments; `{all}` joins any number by `joiner`.
        raw: True if the value may be NaN, infinite or out of range until it is guarded.
        joiner: The text between the arguments of `{all}`.
        passes_raw: True if a NaN or infinite argument gives a NaN or infinite result, so that one guard at the end of a
            chain of arithmetic suffices.
    """

    template: str
    raw: bool = False
    joiner: str = ", "
    passes_raw: bool = False

    def sql(self, arguments: list[str]) -> str:
        """The call with its arguments."""
        return self.template.format(*arguments, all=self.joiner.join(arguments))


@dataclass(frozen=True)
class Function:
    """An entry of the allow-list.

    Attributes:
        name: Its name in the intermediate form.
        total: The arguments for which it has a value, as the documentation says.
        spelling: Its SQL on engines without a spelling of their own; None if each engine has one.
        usages: How queries call it, with [optional] arguments last.
        longest: The most characters of text that it returns; None if that is unknown.
    """

    name: str
    total: str
    spelling: Spelling | None = None
    usages: tuple[str, ...] = ()
    longest: int | None = None


def table(*functions: Function) -> dict[str, Function]:
    """Functions by name.

    Raises:
        ValueError: Two have one name.
    """
    return _once((function.name, function) for function in functions)


def usages(*functions: Function) -> dict[str, str]:
    """How each function that is called by its name is written.

    Raises:
        ValueError: Two are called by one name.
    """
    written = (*(usage for function in functions for usage in function.usages), *_OF_OTHERS)
    return _once((usage.partition("(")[0].lower(), usage) for usage in written)


_OF_OTHERS = (
    *("PI()", "CHR(65)", "FORMAT('%s', …)", "TO_CHAR(value, 'format')"),
    *("DATE_PART('part', moment)", "DATE_TRUNC('unit', moment)"),
    "MAKE_INTERVAL([years[, months[, weeks[, days[, hours[, mins[, secs]]]]]]])",
    *("TRANSACTION_TIMESTAMP()", "STATEMENT_TIMESTAMP()", "CLOCK_TIMESTAMP()"),
    *("JSON_EXTRACT_PATH(json, 'key', …)", "JSON_EXTRACT_PATH_TEXT(json, 'key', …)"),
    *("JSONB_EXTRACT_PATH(json, 'key', …)", "JSONB_EXTRACT_PATH_TEXT(json, 'key', …)"),
    *("NUM_NULLS(value, …)", "NUM_NONNULLS(value, …)"),
)
"""Calls that are made of other entries, or of constants."""


def _once(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, one in pairs:
        if name in found:
            raise ValueError(f'"{name}" is in the table twice')
        found[name] = one
    return found


_HEX = "[0-9a-fA-F]"
_CHARACTER = (
    rf"[1-9abcefABCEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
    rf"|0(?:[1-9a-fA-F]{_HEX}{{2}}|0(?:[1-9a-fA-F]{_HEX}|0[1-9a-fA-F]))"
)
"""What follows `\\u` in JSON: four digits of a character other than zero, or the two halves of one."""


def _json_test() -> str:
    """A template: whether {0} is JSON that engines can hold, within the limits of levels and characters.

    Texts become "", numbers and words 0; then, level by level from the inside, so does what has only these in it. JSON
    ends as one of the two. A quotation mark that begins no text never comes to stand before another.
    """
    blanks, value = r"[ \t\n\r]*", '(?:0|"")'
    member = rf'""{blanks}:{blanks}{value}'
    several, members = (rf"(?:{each}(?:{blanks},{blanks}{each})*)?" for each in (value, member))
    nested = rf"\[{blanks}{several}{blanks}\]|\{{{blanks}{members}{blanks}\}}"
    quoted = rf'"(?:[^"\\\x01-\x1f]|\\(?:["\\/bfnrt]|u(?:{_CHARACTER})))*"'
    scalar = r"-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][+-]?[0-9]{1,3})?|true|false|null"
    steps = ((quoted, '""'), (scalar, "0"), *[(nested, "0")] * JSON_DEPTH, (r"^[ \t\n\r]+|[ \t\n\r]+$", ""))
    reduced = "{0}"
    for pattern, new in steps:
        reduced = _all_replaced(reduced, pattern, new)
    return f"CASE WHEN length({{0}}) <= {MAX_TEXT} THEN {reduced} IN ('0', '\"\"') ELSE false END"


def _all_replaced(text: str, pattern: str, new: str) -> str:
    escaped = pattern.replace("{", "{{").replace("}", "}}")
    return f"regexp_replace({text}, '{escaped}', '{new}', 'g')"


IS_JSON = _json_test()


def _own(names: str, total: str) -> Iterator[Function]:
    """Functions that each engine spells differently."""
    return (Function(name, total) for name in names.split())


def _infix(total: str, **signs: str) -> Iterator[Function]:
    """Operators between two arguments."""
    return (Function(name, total, Spelling(f"({{0}} {sign} {{1}})")) for name, sign in signs.items())


def _plain(names: str, total: str, *usages: str, raw: bool = False, longest: int | None = None) -> Iterator[Function]:
    """Functions that engines call by their names here."""
    return (Function(name, total, Spelling(f"{name}({{all}})", raw), usages, longest) for name in names.split())


def _of_double(names: str) -> Iterator[Function]:
    """Functions of one DOUBLE PRECISION argument, whose result is guarded."""
    return (f for name in names.split() for f in _plain(name, _ON_NAN, f"{name.upper()}(number)", raw=True))


def _joined(name: str, template: str, *usages: str) -> Function:
    """A function of several texts, which are cut together."""
    return Function(name, FIRST_CHARACTERS, Spelling(f"left({template}, {MAX_TEXT})"), usages, MAX_TEXT)


FUNCTIONS: dict[str, Function] = table(
    Function("and", _ALWAYS, Spelling("({all})", joiner=" AND ")),
    Function("or", _ALWAYS, Spelling("({all})", joiner=" OR ")),
    Function("not", _ALWAYS, Spelling("(NOT {0})")),
    Function("is_null", _ALWAYS, Spelling("({0} IS NULL)")),
    Function("is_true", _ALWAYS, Spelling("({0} IS TRUE)")),
    Function("is_false", _ALWAYS, Spelling("({0} IS FALSE)")),
    *_infix(_ALWAYS, eq="=", ne="<>", lt="<", le="<=", gt=">", ge=">=", distinct_from="IS DISTINCT FROM"),
    Function("between", _ALWAYS, Spelling("({0} BETWEEN {1} AND {2})")),
    *_plain("coalesce nullif least greatest", _ALWAYS),
    # Numbers
    *_own("int_add int_subtract int_multiply int_divide int_modulo int_negate int_abs", _ON_OVERFLOW),
    Function("gcd", _ON_OVERFLOW, usages=("GCD(integer, integer)",)),
    Function("lcm", _ON_OVERFLOW, usages=("LCM(integer, integer)",)),
    *_infix(_ALWAYS, bit_and="&", bit_or="|"),
    Function("bit_xor", _ALWAYS),
    Function("bit_not", _ALWAYS, Spelling("(~{0})")),
    *_infix("constant counts only", shift_right=">>"),
    *_own("add subtract multiply negate", _ON_NAN),
    Function("divide", _ON_NAN, usages=("DIV(number, number)",)),
    Function("modulo", _ON_NAN, usages=("MOD(number, number)",)),
    Function("numeric_modulo", _ON_OVERFLOW),
    Function("sign", _ON_NAN, usages=("SIGN(number)",)),
    *_of_double("abs sqrt cbrt exp ln log10 floor"),
    Function("log", _ON_NAN, usages=("LOG(number[, number])",)),
    Function("power", _ON_NAN, usages=("POWER(number, number)", "POW(number, number)")),
    *_plain("ceil", _ON_NAN, "CEIL(number)", "CEILING(number)", raw=True),
    *_plain("trunc", _ON_NAN, "TRUNC(number[, digits])", raw=True),
    Function("round", _ON_NAN, usages=("ROUND(number[, digits])",)),
    Function("round_digits", _ON_OVERFLOW, Spelling("round({0}, {1})")),
    Function("trunc_digits", _ON_OVERFLOW, Spelling("trunc({0}, {1})")),
    Function("numeric_within", _ALWAYS, Spelling("CASE WHEN {0} > -{1} AND {0} < {1} THEN {0} END")),
    *_of_double("sin cos tan cot asin acos atan sinh cosh tanh asinh acosh atanh degrees radians"),
    *_plain("atan2", _ON_NAN, "ATAN2(number, number)", raw=True),
    Function("numeric_width_bucket", "constant limits and count only"),
    Function("width_bucket", "constant limits and count only", usages=("WIDTH_BUCKET(number, low, high, count)",)),
    # Text
    Function("like", _ON_PATTERN),
    Function("like_pattern", f"{_ON_PATTERN}; {_MANY_CHARACTERS}"),
    Function("regexp_like", _ON_REGULAR, usages=("REGEXP_LIKE(text, 'pattern'[, 'i'])",)),
    Function("regexp_count", _ON_REGULAR, usages=("REGEXP_COUNT(text, 'pattern')",)),
    Function("regexp_substring", _ON_REGULAR, usages=("REGEXP_SUBSTR(text, 'pattern')",), longest=MAX_TEXT),
    Function(
        "regexp_replace",
        f"constant patterns and replacements only; {FIRST_CHARACTERS}",
        usages=("REGEXP_REPLACE(text, 'pattern', 'new'[, 'flags'])",),
        longest=MAX_TEXT,
    ),
    *_plain("length", _ALWAYS, "LENGTH(text)", "CHAR_LENGTH(text)", "CHARACTER_LENGTH(text)"),
    *_plain("octet_length", _ALWAYS, "OCTET_LENGTH(text)"),
    *_plain("bit_length", _ON_OVERFLOW, "BIT_LENGTH(text)"),
    Function("lower", _MANY_CHARACTERS, usages=("LOWER(text)",), longest=MAX_SCANNED),
    Function("upper", _MANY_CHARACTERS, usages=("UPPER(text)",), longest=MAX_SCANNED),
    Function("trim", _MANY_CHARACTERS, usages=("BTRIM(text[, characters])",), longest=MAX_SCANNED),
    *(
        Function(name, _MANY_CHARACTERS, Spelling(f"{name}({_SEEN}, {{1}})"), (usage,), MAX_SCANNED)
        for name, usage in (("ltrim", "LTRIM(text[, characters])"), ("rtrim", "RTRIM(text[, characters])"))
    ),
    *_plain("left", _ON_LONG, "LEFT(text, integer)", longest=MAX_SCANNED),
    *_plain("right", _ON_LONG, "RIGHT(text, integer)", longest=MAX_SCANNED),
    *_plain("substring", _ALWAYS),
    Function("substring_from", _MANY_CHARACTERS, usages=("SUBSTR(text, start[, length])",), longest=MAX_SCANNED),
    Function("substring_for", f"NULL for a negative length; {_ON_LONG}", longest=MAX_SCANNED),
    *_plain("strpos", _ALWAYS, "STRPOS(text, text)"),
    *_plain("starts_with", _ALWAYS, "STARTS_WITH(text, text)"),
    *_plain("ascii", _ALWAYS, "ASCII(text)"),
    *_plain("md5", _ALWAYS, "MD5(text)", longest=MAX_TEXT),
    Function("number_digits", _ALWAYS, longest=MAX_TEXT),
    Function("initcap", FIRST_CHARACTERS, usages=("INITCAP(text)",), longest=MAX_TEXT),
    *_plain("reverse", FIRST_CHARACTERS, "REVERSE(text)", longest=MAX_TEXT),
    _joined("concat", "concat({all})", "CONCAT(value, …)"),
    _joined("concat_ws", "concat_ws({all})", "CONCAT_WS(separator, value, …)"),
    _joined("concat_operator", "({0} || {1})"),
    *_plain("lpad", "constant lengths and fillings only", "LPAD(text, 10[, filling])", longest=MAX_TEXT),
    *_plain("rpad", "constant lengths and fillings only", "RPAD(text, 10[, filling])", longest=MAX_TEXT),
    Function("repeat", FIRST_CHARACTERS, usages=("REPEAT(text, 3)",), longest=MAX_TEXT),
    Function(
        "replace",
        f"constant search and replacement; {FIRST_CHARACTERS}",
        Spelling(f"left(replace(left({{0}}, {MAX_TEXT}), {{1}}, {{2}}), {MAX_TEXT})"),
        ("REPLACE(text, 'old', 'new')",),
        MAX_TEXT,
    ),
    Function(
        "translate",
        f"constant characters only; {_MANY_CHARACTERS}",
        Spelling(f"translate({_SEEN}, {{1}}, {{2}})"),
        ("TRANSLATE(text, 'abc', 'xyz')",),
        MAX_SCANNED,
    ),
    *_plain(
        "split_part",
        f"constant separators and places only; {_MANY_CHARACTERS}",
        "SPLIT_PART(text, '-', 1)",
        longest=MAX_SCANNED,
    ),
    # JSON and arrays, which are JSON of their elements' texts
    *_own("json_get json_element json_either", "constant keys and places only"),
    Function("json_scalar", f"NULL for objects and arrays; {FIRST_CHARACTERS}", longest=MAX_TEXT),
    Function("json_typeof", _ALWAYS, usages=("JSON_TYPEOF(json)", "JSONB_TYPEOF(json)"), longest=MAX_TEXT),
    Function(
        "json_length", "NULL where it is no array", usages=("JSON_ARRAY_LENGTH(json)", "JSONB_ARRAY_LENGTH(json)")
    ),
    Function("json_contains", "constant JSON only"),
    Function("json_has_key", _ALWAYS),
    Function("array_element", "constant places only"),
    Function("array_slice", "constant places only; NULL for several dimensions"),
    Function("array_size", _ALWAYS, usages=("CARDINALITY(array)", "ARRAY_LENGTH(array, 1)")),
    Function("array_has", _ALWAYS),
    Function(
        "string_to_array",
        f"constant separators only; {FIRST_CHARACTERS}, {MAX_ELEMENTS:,} elements",
        usages=("STRING_TO_ARRAY(text, separator)",),
    ),
    # Conversions
    Function(
        "text_to_json", f"NULL where it is no JSON, or has more than {MAX_TEXT:,} characters or {JSON_DEPTH} levels"
    ),
    *_own("integer_text number_text date_text time_text", _ALWAYS),
    Function("float_to_text", _ALWAYS, longest=MAX_TEXT),
    Function("text_to_boolean", _ON_ERROR),
    # Dates, times and intervals
    *_own("date_add date_subtract moment_add moment_subtract", _ON_RANGE),
    Function("date_at", _ON_RANGE, Spelling("({0} + {1})", raw=True)),
    *_infix(_ON_OVERFLOW, days_between="-", moments_between="-", times_between="-", time_add="+", time_subtract="-"),
    *_plain("age", _ON_OVERFLOW, "AGE(moment[, moment])"),
    Function("interval_negate", _ON_OVERFLOW, Spelling("(-{0})")),
    *(
        Function(f"justify_{what}", _ON_OVERFLOW, usages=(f"JUSTIFY_{what.upper()}(interval)",))
        for what in ("days", "hours", "interval")
    ),
    *_own("interval_add interval_subtract interval_multiply interval_divide", _ON_OVERFLOW),
    Function("make_date", _ON_ERROR, usages=("MAKE_DATE(year, month, day)",)),
    Function("make_time", _ON_ERROR, usages=("MAKE_TIME(hour, minute, second)",)),
    Function("make_timestamp", _ON_ERROR, usages=("MAKE_TIMESTAMP(year, month, day, hour, minute, second)",)),
    Function("from_epoch", _ON_RANGE),
    Function(
        "read_moment",
        "constant formats only; NULL where the text is not of the format",
        usages=("TO_DATE(text, 'format')", "TO_TIMESTAMP(value[, 'format'])"),
    ),
    Function(
        "at_zone",
        f"constant zones only; {_ON_RANGE}",
        Spelling("timezone({1}, {0})", raw=True),
        ("TIMEZONE('zone', moment)",),
    ),
    Function(
        "date_bin",
        f"constant widths and origins only; {_ON_RANGE}",
        usages=("DATE_BIN('15 minutes', moment, TIMESTAMP '2001-01-01')",),
    ),
    Function("is_finite", _ALWAYS, Spelling("({0} IS NOT NULL OR NULL)"), ("ISFINITE(moment)",)),
    Function("month_name", _ON_OVERFLOW, longest=MAX_TEXT),
    Function("day_name", _ON_OVERFLOW, longest=MAX_TEXT),
    *(Function(f"extract_{part}", _ALWAYS) for part in (*EXTRACT_PARTS, *FRACTION_PARTS)),
    *(Function(name, _ON_RANGE, Spelling(f"date_trunc('{unit}', {{0}})", raw=True)) for unit, name in UNITS.items()),
)
"""The allow-list by name."""

CALLS: dict[str, str] = usages(*FUNCTIONS.values())
"""Every function that is called by its name and arguments in a row: how it is written, [optional] arguments last."""

_CONSTANTS = {
    **dict.fromkeys(("text", "value", "characters", "filling"), "'text'"),
    **dict.fromkeys(("number",), "2.5"),
    **dict.fromkeys(("integer", "count", "day", "hour", "length", "minute", "month", "second", "start"), "2"),
    **{
        "low": "0",
        "high": "100",
        "separator": "'-'",
        "year": "2026",
        "moment": "now()",
        "interval": "INTERVAL '36 hours'",
        "'zone'": "'UTC'",
    },
    **{"'unit'": "'month'", "'part'": "'year'", "'format'": "'YYYY-MM-DD'"},
}
"""A constant for each argument of usages."""


def example_arguments(usage: str) -> list[str]:
    """Constants for the arguments that a function needs."""
    inside = usage.partition("(")[2].rpartition(")")[0].partition("[")[0]
    needed = [part.strip() for part in inside.split(",")]
    return [_CONSTANTS.get(part, part) for part in needed if part not in ("", "…")]


def arity(usage: str) -> tuple[int, int | None]:
    """The least and the greatest number of arguments of a function (None: any number)."""
    inside = usage.partition("(")[2].rpartition(")")[0]
    needed = inside.partition("[")[0]
    parts = [part.strip() for part in needed.split(",") if part.strip()]
    if "…" in parts:
        return len(parts) - 1, None
    return len(parts), len(parts) + inside.count("[")


def example_calls(usage: str, given: Sequence[str]) -> tuple[str, ...]:
    """Calls of a function with the arguments that are given, then with constants for some of them, then for all."""
    constants = example_arguments(usage)
    filled = [*given[: arity(usage)[1]], *constants[len(given) :]]
    mixed = [filled[:index] + constants[index : index + 1] + filled[index + 1 :] for index in (1, 0, 2)]
    return tuple(f"{usage.partition('(')[0]}({', '.join(each)})" for each in (filled, *mixed, constants))


SPREADS = frozenset({"var_pop", "var_samp", "stddev_pop", "stddev_samp"})
"""Aggregates that tell how far numbers are apart."""

PAIRS = frozenset(
    {
        *("covar_pop", "covar_samp", "corr", "regr_slope", "regr_intercept", "regr_r2", "regr_count"),
        *("regr_avgx", "regr_avgy", "regr_sxx", "regr_syy", "regr_sxy"),
    }
)
"""Aggregates of pairs (y, x), both of which are there."""

COLLECTED = frozenset({"string_agg", "array_agg", "json_agg", "json_object_agg"})
"""Aggregates that put all values of a group together; post-processing alone computes them."""

JSON_FUNCTIONS = frozenset({"json_string", "json_key", "json_joined"})
"""Functions that make JSON; post-processing alone computes them."""

PERCENTILES = frozenset({"percentile_cont", "percentile_disc"})
"""Aggregates of the value that a part of the rows lies below."""


def beginning(text: Expr, characters: int) -> Expr:
    """Return the first characters of a text, `MAX_TEXT` or more of them; the text itself if it cannot be longer.

    A constant is at most as long as a query.
    """
    if isinstance(text, Literal) or (isinstance(text, Cast) and not text.argument.type.is_text):
        return text
    longest = FUNCTIONS[text.function].longest if isinstance(text, Call) else None
    if longest is not None and longest <= characters:
        return text
    return Call("left", (text, Literal(characters, SqlType.BIGINT)), text.type)


def leaves_most(call: Call) -> bool:
    """True for a call that changes very long texts only: bytes show that without counting characters."""
    count = call.arguments[-1]
    if call.function != "left" or not isinstance(count, Literal):
        return False
    return isinstance(count.value, int) and count.value >= MAX_TEXT
