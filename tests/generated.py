"""The generated parts of the docs: `python -m tests.generated` writes them, tests/test_docs.py compares them."""

import html
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from dpsql import errors
from dpsql.compiler.ir.functions import EXTRACT_PARTS, FRACTION_PARTS, FUNCTIONS, UNITS
from tests import reference

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- generated: python -m tests.generated -->\n"
END = "<!-- end -->"

_WAVES = ("SIN", "COS", "TAN", "COT", "ASIN", "ACOS", "ATAN", "SINH", "COSH", "TANH", "ASINH", "ACOSH", "ATANH")

# How each entry of the allow-list is written in SQL; None where it is another spelling's row.
SPELLINGS: dict[str, str | None] = {
    "and": "`a AND b`",
    "or": "`a OR b`",
    "not": "`NOT a`",
    "is_null": "`a IS NULL`, `a IS NOT NULL`, `a IS UNKNOWN`",
    "is_true": "`a IS TRUE`",
    "is_false": "`a IS FALSE`",
    "eq": "`a = b`, `a IN (…)`",
    "ne": "`a <> b`",
    "lt": "`a < b`",
    "le": "`a <= b`",
    "gt": "`a > b`",
    "ge": "`a >= b`",
    "distinct_from": "`a IS DISTINCT FROM b`",
    "between": "`a BETWEEN b AND c`, `a BETWEEN SYMMETRIC b AND c`",
    "coalesce": "`COALESCE(a, b, …)`",
    "nullif": "`NULLIF(a, b)`",
    "least": "`LEAST(a, b, …)`",
    "greatest": "`GREATEST(a, b, …)`",
    "int_add": "`a + b`, integers; `NUM_NULLS(a, …)`, `NUM_NONNULLS(a, …)`",
    "int_subtract": "`a - b`, integers",
    "int_multiply": "`a * b`, `a << 3`, integers",
    "int_divide": "`a / b`, `DIV(a, b)`, integers",
    "int_modulo": "`a % b`, `MOD(a, b)`, integers",
    "int_negate": "`-a`, integers",
    "int_abs": "`ABS(a)`, integers",
    "gcd": "`GCD(a, b)`",
    "lcm": "`LCM(a, b)`",
    "bit_and": "`a & b`",
    "bit_or": "`a | b`",
    "bit_xor": "`a # b`",
    "bit_not": "`~a`",
    "shift_right": "`a >> 3`",
    "add": "`a + b`",
    "subtract": "`a - b`",
    "multiply": "`a * b`",
    "divide": "`a / b`, `DIV(a, b)`",
    "modulo": "`a % b`, `MOD(a, b)`",
    "numeric_modulo": "`a % b`, `MOD(a, b)`, numeric",
    "negate": "`-a`",
    "abs": "`ABS(a)`",
    "sqrt": "`SQRT(a)`, `|/ a`",
    "cbrt": "`CBRT(a)`, `||/ a`",
    "exp": "`EXP(a)`",
    "ln": "`LN(a)`",
    "log10": "`LOG(a)`, `LOG10(a)`",
    "log": "`LOG(b, a)`",
    "power": "`POWER(a, b)`, `a ^ b`",
    "sign": "`SIGN(a)`",
    "floor": "`FLOOR(a)`",
    "ceil": "`CEIL(a)`, `CEILING(a)`",
    "trunc": "`TRUNC(a)`",
    "round": "`ROUND(a)`, `ROUND(a, 2)`",
    "round_digits": "`ROUND(a, -2)`",
    "trunc_digits": "`TRUNC(a, 2)`",
    "numeric_within": "`a::numeric(10, 2)`",
    **{name.lower(): None for name in _WAVES},
    "sin": ", ".join(f"`{name}(a)`" for name in _WAVES),
    "atan2": "`ATAN2(a, b)`",
    "degrees": "`DEGREES(a)`",
    "radians": "`RADIANS(a)`",
    "numeric_width_bucket": "`WIDTH_BUCKET(a, 0, 100, 10)`, numeric",
    "width_bucket": "`WIDTH_BUCKET(a, 0, 100, 10)`",
    "like": "`a LIKE 'b%'`",
    "like_pattern": "`a LIKE 'b_'`, `a ILIKE 'b%'`, `a LIKE 'b#%' ESCAPE '#'`",
    "regexp_like": "`a ~ 'b'`, `a ~* 'b'`, `a !~ 'b'`, `a SIMILAR TO 'b'`, `REGEXP_LIKE(a, 'b')`",
    "regexp_count": "`REGEXP_COUNT(a, 'b')`",
    "regexp_substring": "`SUBSTRING(a FROM 'b')`, `REGEXP_SUBSTR(a, 'b')`",
    "regexp_replace": "`REGEXP_REPLACE(a, 'b', 'c', 'g')`",
    "lower": "`LOWER(a)`",
    "upper": "`UPPER(a)`",
    "initcap": "`INITCAP(a)`",
    "length": "`LENGTH(a)`, `CHAR_LENGTH(a)`",
    "octet_length": "`OCTET_LENGTH(a)`",
    "bit_length": "`BIT_LENGTH(a)`",
    "reverse": "`REVERSE(a)`",
    "left": "`LEFT(a, 3)`, `a::varchar(3)`",
    "right": "`RIGHT(a, 3)`",
    "substring": None,
    "substring_from": "`SUBSTRING(a, 2)`",
    "substring_for": "`SUBSTRING(a, 2, 3)`",
    "trim": "`TRIM(a)`, `BTRIM(a, 'b')`",
    "ltrim": "`LTRIM(a)`",
    "rtrim": "`RTRIM(a)`",
    "lpad": "`LPAD(a, 10, 'b')`",
    "rpad": "`RPAD(a, 10, 'b')`",
    "repeat": "`REPEAT(a, 3)`",
    "replace": "`REPLACE(a, 'b', 'c')`",
    "translate": "`TRANSLATE(a, 'bc', 'xy')`",
    "concat": "`CONCAT(a, b, …)`, `FORMAT('%s', a)`",
    "concat_ws": "`CONCAT_WS(', ', a, b, …)`",
    "concat_operator": "`a || b`, `OVERLAY(a PLACING 'b' FROM 2)`, `TO_CHAR(a, '999.99')`, `TO_CHAR(a, 'YYYY-MM-DD')`",
    "strpos": "`STRPOS(a, b)`, `POSITION(b IN a)`",
    "starts_with": "`STARTS_WITH(a, b)`, `a ^@ b`",
    "split_part": "`SPLIT_PART(a, ',', 1)`",
    "ascii": "`ASCII(a)`",
    "md5": "`MD5(a)`",
    "number_digits": None,
    "json_get": "`a -> 'key'`, `a #> '{key,0}'`, `JSON_EXTRACT_PATH(a, 'key', …)`",
    "json_element": "`a -> 0`",
    "json_either": None,
    "json_scalar": "`a ->> 'key'`, `a #>> '{key,0}'`, `JSON_EXTRACT_PATH_TEXT(a, 'key', …)`",
    "json_typeof": "`JSON_TYPEOF(a)`, `JSONB_TYPEOF(a)`",
    "json_length": "`JSON_ARRAY_LENGTH(a)`, `JSONB_ARRAY_LENGTH(a)`",
    "json_contains": "`a @> '{\"key\": 1}'`, `'{\"key\": 1}' <@ a`",
    "json_has_key": "`a ? 'key'`, `a ?| ARRAY['key', …]`, `a ?& ARRAY['key', …]`",
    "array_element": "`a[2]`",
    "array_slice": "`a[2:3]`",
    "array_size": "`CARDINALITY(a)`, `ARRAY_LENGTH(a, 1)`",
    "array_has": "`b = ANY (a)`, `b <> ALL (a)`, `a @> ARRAY[b]`, `a && ARRAY[b]`, arrays",
    "string_to_array": "`STRING_TO_ARRAY(a, ',')`",
    "integer_text": "`a::integer`, `a::bigint`, `a::smallint`, of text",
    "number_text": "`a::float8`, `a::numeric(10, 2)`, of text",
    "date_text": "`a::date`, `a::timestamp`, of text",
    "time_text": "`a::time`, of text",
    "text_to_boolean": "`a::boolean`, of text",
    "text_to_json": "`a::json`, `a::jsonb`, of text",
    "float_to_text": "`a::text`, of float8",
    "date_add": "`date + 3`",
    "date_subtract": "`date - 3`",
    "days_between": "`date - date`",
    "date_at": "`date + TIME '12:00'`",
    "moment_add": "`a + INTERVAL '3 days'`, dates and timestamps",
    "moment_subtract": "`a - INTERVAL '3 days'`, dates and timestamps",
    "moments_between": "`a - b`, timestamps",
    "times_between": "`a - b`, times",
    "time_add": "`a + INTERVAL '3 hours'`, times",
    "time_subtract": "`a - INTERVAL '3 hours'`, times",
    "age": "`AGE(a, b)`, `AGE(a)`",
    "interval_add": "`a + b`, intervals",
    "interval_subtract": "`a - b`, intervals",
    "interval_negate": "`-a`, intervals",
    "interval_multiply": "`a * 1.5`, intervals",
    "interval_divide": "`a / 2`, intervals",
    "justify_days": "`JUSTIFY_DAYS(a - b)`, timestamps",
    "justify_hours": "`JUSTIFY_HOURS(a - b)`, timestamps",
    "justify_interval": "`JUSTIFY_INTERVAL(a - b)`, timestamps",
    "make_date": "`MAKE_DATE(a, b, c)`",
    "make_time": "`MAKE_TIME(a, b, c)`",
    "make_timestamp": "`MAKE_TIMESTAMP(a, b, c, a, b, c)`",
    "from_epoch": "`TO_TIMESTAMP(a)`",
    "read_moment": "`TO_DATE(a, 'YYYY-MM-DD')`, `TO_TIMESTAMP(a, 'YYYY-MM-DD HH24:MI:SS')`",
    "at_zone": "`a AT TIME ZONE 'Europe/Berlin'`",
    "date_bin": "`DATE_BIN('15 minutes', a, TIMESTAMP '2001-01-01')`",
    "is_finite": "`ISFINITE(a)`",
    "month_name": None,
    "day_name": None,
    **{f"extract_{part}": None for part in (*EXTRACT_PARTS, *FRACTION_PARTS)},
    "extract_year": "`EXTRACT(part FROM a)`, `DATE_PART('year', a)`, part: "
    + ", ".join((*EXTRACT_PARTS, *FRACTION_PARTS)),
    **dict.fromkeys(UNITS.values()),
    "date_trunc_year": "`DATE_TRUNC('unit', a)`, unit: " + ", ".join(UNITS),
}

EVERYWHERE = "protected, released, public"


def _with_bar(code: re.Match[str]) -> str:
    """A bar would end the cell, and the site shows a backslash before one in code."""
    return f"<code>{html.escape(code[1]).replace('|', '&#124;')}</code>"


def functions() -> Iterator[str]:
    """Yield the lines of the table of functions."""
    yield "| SQL | over which rows | gives a value |"
    yield "|---|---|---|"
    for name, spelling in SPELLINGS.items():
        if spelling is not None:
            yield f"| {re.sub('`([^`]*[|][^`]*)`', _with_bar, spelling)} | {EVERYWHERE} | {FUNCTIONS[name].total} |"


def error_codes() -> Iterator[str]:
    """Yield the lines of the table of SQLSTATEs."""
    yield "| SQLSTATE | error | when |"
    yield "|---|---|---|"
    for kind in sorted(errors.reasons(), key=lambda kind: (kind.sqlstate, kind.__name__)):
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        yield f"| {kind.sqlstate} | `{kind.__name__}` | {summary} |"


PARTS = {
    "docs/commands.md": reference.commands,
    "docs/errors.md": error_codes,
    "docs/policy.md": reference.policy_keys,
    "docs/settings.md": reference.settings_tables,
    "docs/sql.md": functions,
}


def updated(file: str) -> str:
    """Return a file's text with its generated part as it must be."""
    before, begin, rest = (ROOT / file).read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    lines = "\n".join(PARTS[file]()).strip()
    return "".join((before, begin, "\n", lines, "\n\n", end, after))


if __name__ == "__main__":
    for name in PARTS:
        (ROOT / name).write_text(updated(name), encoding="utf-8")
