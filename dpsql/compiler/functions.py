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


def _float(template: str) -> Function:
    return Function(template, _NULL_ON_NAN, raw=True)


def _arithmetic(template: str) -> Function:
    return Function(template, _NULL_ON_NAN, raw=True, passes_raw=True)


def _integer(template: str) -> Function:
    return Function(f"TRY({template})", _NULL_ON_OVERFLOW)


def _moment(template: str) -> Function:
    return Function(f"TRY({template})", _NULL_ON_RANGE, raw=True)


MAX_TEXT = 10_000
"""Characters that a function which lengthens text gives at the most, so that no row's text can grow without bound."""


def _text(template: str, constants: str = "") -> Function:
    return Function(f"left({template}, {MAX_TEXT})", f"{constants}the first {MAX_TEXT:,} characters")


EXTRACT_PARTS: dict[str, tuple[int, int]] = {
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
}
"""Parts EXTRACT knows, each with the range of what it returns."""

CLOCK_PARTS = frozenset({"hour", "minute"})
"""Parts a date does not have."""

TRUNC_UNITS = ("year", "quarter", "month", "week", "day", "hour")
"""Units DATE_TRUNC knows, largest first."""

INTERVAL_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
"""Units an INTERVAL literal may have."""

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
    "like": Function("({0} LIKE {1} ESCAPE '\\')", "constant patterns only"),
    "ilike": Function("({0} ILIKE {1} ESCAPE '\\')", "constant patterns only"),
    "int_add": _integer("{0} + {1}"),
    "int_subtract": _integer("{0} - {1}"),
    "int_multiply": _integer("{0} * {1}"),
    "int_divide": _integer("{0} // {1}"),
    "int_modulo": _integer("{0} % {1}"),
    "int_negate": _integer("-{0}"),
    "int_abs": _integer("abs({0})"),
    "add": _arithmetic("({0} + {1})"),
    "subtract": _arithmetic("({0} - {1})"),
    "multiply": _arithmetic("({0} * {1})"),
    "divide": _float("({0} / {1})"),
    "modulo": _float("({0} % {1})"),
    "negate": _arithmetic("(-{0})"),
    "abs": _float("abs({0})"),
    "sqrt": _float("sqrt({0})"),
    "exp": _float("exp({0})"),
    "ln": _float("ln({0})"),
    "log10": _float("log10({0})"),
    "power": _float("pow({0}, {1})"),
    "sign": _float("sign({0})"),
    "floor": _float("floor({0})"),
    "ceil": _float("ceil({0})"),
    "trunc": _float("trunc({0})"),
    "round": _float("round_even({0}, 0)"),
    "lower": Function("lower({0})"),
    "upper": Function("upper({0})"),
    "length": Function("length({0})"),
    "reverse": Function("reverse({0})"),
    "left": Function("left({0}, {1})", "constant lengths only"),
    "right": Function("right({0}, {1})", "constant lengths only"),
    "substring": Function("substring({all})", "constant start and length only"),
    "trim": Function("trim({all})"),
    "ltrim": Function("ltrim({all})"),
    "rtrim": Function("rtrim({all})"),
    "replace": _text(f"replace(left({{0}}, {MAX_TEXT}), {{1}}, {{2}})", "constant search and replacement; "),
    "concat": _text("concat({all})"),
    "concat_operator": _text("({0} || {1})"),
    "strpos": Function("strpos({0}, {1})"),
    "starts_with": Function("starts_with({0}, {1})"),
    "coalesce": Function("coalesce({all})"),
    "nullif": Function("nullif({0}, {1})"),
    "least": Function("least({all})"),
    "greatest": Function("greatest({all})"),
    "date_add": _moment("{0} + {1}"),
    "date_subtract": _moment("{0} - {1}"),
    "days_between": Function("TRY({0} - {1})", _NULL_ON_OVERFLOW),
    **{f"extract_{part}": Function(f"TRY(extract({part} FROM {{0}}))", "for every value") for part in EXTRACT_PARTS},
    **{f"date_trunc_{unit}": _moment(f"date_trunc('{unit}', {{0}})") for unit in TRUNC_UNITS},
    **{f"add_{unit}s": _moment(f"{{0}} + to_{unit}s({{1}})") for unit in INTERVAL_UNITS},
}

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
    "count": "count({0})",
    "count_rows": "count(*)",
    "sum": "sum({0})",
    "avg": "avg({0})",
    "min": "min({0})",
    "max": "max({0})",
}
"""Window functions over released or public rows."""
