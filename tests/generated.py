"""The generated parts of the docs: `python -m tests.generated` writes them, tests/test_docs.py compares them."""

import inspect
from collections.abc import Iterator
from pathlib import Path

from dpsql import errors
from dpsql.compiler.functions import EXTRACT_PARTS, FUNCTIONS, INTERVAL_UNITS, TRUNC_UNITS

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- generated: python -m tests.generated -->\n"
END = "<!-- end -->"

# How each entry of the allow-list is written in SQL; None where it is another spelling's row.
SPELLINGS: dict[str, str | None] = {
    "and": "`a AND b`",
    "or": "`a OR b`",
    "not": "`NOT a`",
    "is_null": "`a IS NULL`, `a IS NOT NULL`",
    "is_true": "`a IS TRUE`",
    "is_false": "`a IS FALSE`",
    "eq": "`a = b`, `a IN (…)`",
    "ne": "`a <> b`",
    "lt": "`a < b`",
    "le": "`a <= b`",
    "gt": "`a > b`",
    "ge": "`a >= b`",
    "distinct_from": "`a IS DISTINCT FROM b`",
    "between": "`a BETWEEN b AND c`",
    "like": "`a LIKE 'b%'`",
    "ilike": "`a ILIKE 'b%'`",
    "int_add": "`a + b`, integers",
    "int_subtract": "`a - b`, integers",
    "int_multiply": "`a * b`, integers",
    "int_divide": "`a / b`, integers",
    "int_modulo": "`a % b`, integers",
    "int_negate": "`-a`, integers",
    "int_abs": "`ABS(a)`, integers",
    "add": "`a + b`",
    "subtract": "`a - b`",
    "multiply": "`a * b`",
    "divide": "`a / b`",
    "modulo": "`a % b`",
    "negate": "`-a`",
    "abs": "`ABS(a)`",
    "sqrt": "`SQRT(a)`",
    "exp": "`EXP(a)`",
    "ln": "`LN(a)`",
    "log10": "`LOG(a)`",
    "power": "`POWER(a, b)`, `a ^ b`",
    "sign": "`SIGN(a)`",
    "floor": "`FLOOR(a)`",
    "ceil": "`CEIL(a)`",
    "trunc": "`TRUNC(a)`",
    "round": "`ROUND(a)`, `ROUND(a, 2)`",
    "lower": "`LOWER(a)`",
    "upper": "`UPPER(a)`",
    "length": "`LENGTH(a)`",
    "reverse": "`REVERSE(a)`",
    "left": "`LEFT(a, 3)`",
    "right": "`RIGHT(a, 3)`",
    "substring": "`SUBSTRING(a, 1, 3)`",
    "trim": "`TRIM(a)`",
    "ltrim": "`LTRIM(a)`",
    "rtrim": "`RTRIM(a)`",
    "replace": "`REPLACE(a, 'x', 'y')`",
    "concat": "`CONCAT(a, b, …)`",
    "concat_operator": "`a || b`",
    "strpos": "`STRPOS(a, b)`",
    "starts_with": "`STARTS_WITH(a, b)`",
    "coalesce": "`COALESCE(a, b, …)`",
    "nullif": "`NULLIF(a, b)`",
    "least": "`LEAST(a, b, …)`",
    "greatest": "`GREATEST(a, b, …)`",
    "date_add": "`date + 3`",
    "date_subtract": "`date - 3`",
    "days_between": "`date - date`",
    **{f"extract_{part}": None for part in EXTRACT_PARTS},
    "extract_year": "`EXTRACT(part FROM a)`, part: " + ", ".join(EXTRACT_PARTS),
    **{f"date_trunc_{unit}": None for unit in TRUNC_UNITS},
    "date_trunc_year": "`DATE_TRUNC('unit', a)`, unit: " + ", ".join(TRUNC_UNITS),
    **{f"add_{unit}s": None for unit in INTERVAL_UNITS},
    "add_years": "`a + INTERVAL '3 days'`, `a - INTERVAL …`, unit: " + ", ".join(INTERVAL_UNITS),
}


def functions() -> Iterator[str]:
    """Yield the lines of the table of functions."""
    yield "| SQL | gives a value |"
    yield "|---|---|"
    for name, spelling in SPELLINGS.items():
        if spelling is not None:
            # A bar would end the cell, even in code.
            yield f"| {spelling.replace('|', chr(92) + '|')} | {FUNCTIONS[name].total} |"


def error_codes() -> Iterator[str]:
    """Yield the lines of the table of SQLSTATEs."""
    yield "| SQLSTATE | error | when |"
    yield "|---|---|---|"
    leaves = [kind for kind in _subclasses(errors.DatabaseError) if "sqlstate" in vars(kind)]
    for kind in sorted(leaves, key=lambda kind: (kind.sqlstate, kind.__name__)):
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        yield f"| {kind.sqlstate} | `{kind.__name__}` | {summary} |"


def _subclasses(kind: type[errors.Error]) -> Iterator[type[errors.Error]]:
    for subclass in kind.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield subclass
            yield from _subclasses(subclass)


PARTS = {"README.md": error_codes, "docs/sql.md": functions}


def updated(file: str) -> str:
    """Return a file's text with its generated part as it must be."""
    before, begin, rest = (ROOT / file).read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    return "".join((before, begin, "\n".join(PARTS[file]()), "\n", end, after))


if __name__ == "__main__":
    for name in PARTS:
        (ROOT / name).write_text(updated(name), encoding="utf-8")
