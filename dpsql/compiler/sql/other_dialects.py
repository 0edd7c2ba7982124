"""other_dialects: calls that other engines have and PostgreSQL writes in another way, for hints."""

import re
from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from dpsql.compiler.sql.postgres_syntax import WRITTEN, print_sql
from dpsql.compiler.sql.rewriting import is_small

_FIELDS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
_QUANTILE: Final = "PERCENTILE_CONT({1}) WITHIN GROUP (ORDER BY {0})"
_CASE: Final = "CASE WHEN {0} THEN {1} ELSE {2} END"
_CALLS: Final[Mapping[tuple[str, int], str]] = {
    **{(field, 1): f"EXTRACT({field} FROM {{0}})" for field in _FIELDS},
    ("dayofyear", 1): "EXTRACT(doy FROM {0})",
    ("dayofweek", 1): "EXTRACT(dow FROM {0}) + 1",
    ("weekday", 1): "EXTRACT(isodow FROM {0}) - 1",
    ("unix_timestamp", 1): "EXTRACT(epoch FROM {0})",
    ("datepart", 2): "EXTRACT({0} FROM {1})",
    ("datetrunc", 2): "DATE_TRUNC('{0}', {1})",
    ("datediff", 2): "{0} - {1}",
    ("datediff", 3): "{2} - {1}",
    ("timestampdiff", 3): "{2} - {1}",
    ("dateadd", 3): "{2} + {1} * INTERVAL '1 {0}'",
    ("date_add", 2): "{0} + {1}",
    ("date_sub", 2): "{0} - {1}",
    ("add_months", 2): "{0} + {1} * INTERVAL '1 month'",
    **{(name, 0): "CURRENT_DATE" for name in ("curdate", "getdate", "today")},
    ("date_format", 2): "TO_CHAR({0}, {1})",
    ("strftime", 2): "TO_CHAR({0}, {1})",
    ("isnull", 1): "{0} IS NULL",
    ("isnull", 2): "COALESCE({0}, {1})",
    ("nvl2", 3): "CASE WHEN {0} IS NOT NULL THEN {1} ELSE {2} END",
    **{(name, 3): _CASE for name in ("if", "iif", "iff")},
    **{(name, 1): "COUNT(*) FILTER (WHERE {0})" for name in ("count_if", "countif")},
    **{(name, 2): _QUANTILE for name in ("percentile", "percentile_cont", "percentile_approx", "approx_percentile")},
    **{(name, 2): _QUANTILE for name in ("quantile", "quantile_cont", "approx_quantile")},
    **{(name, 1): "AVG({0})" for name in ("mean", "average")},
    ("stdev", 1): "STDDEV({0})",
    ("stdevp", 1): "STDDEV_POP({0})",
    ("var", 1): "VARIANCE({0})",
    ("varp", 1): "VAR_POP({0})",
    ("len", 1): "LENGTH({0})",
    ("ucase", 1): "UPPER({0})",
    ("lcase", 1): "LOWER({0})",
    ("contains", 2): "STRPOS({0}, {1}) > 0",
    ("convert", 2): "CAST({1} AS {0})",
    **{(name, 1): "CAST({0})" for name in ("try_cast", "safe_cast")},
    ("decode", 4): "CASE WHEN {0} = {1} THEN {2} ELSE {3} END",
    ("safe_divide", 2): "{0} / NULLIF({1}, 0)",
    **{(name, 1): "COUNT(DISTINCT {0})" for name in ("uniq", "count_distinct")},
    ("mid", 3): "SUBSTRING({0}, {1}, {2})",
}
"""PostgreSQL's form of a call, by its name and the number of its arguments."""
_CODES: Final = {"Y": "YYYY", "m": "MM", "d": "DD", "H": "HH24", "y": "YY", "j": "DDD"}
"""Codes of MySQL's DATE_FORMAT and of strftime that mean the same, as TO_CHAR has them."""
_CODE: Final = re.compile("%(.?)")


def in_postgres(node: exp.Expr) -> str | None:
    """Return PostgreSQL's form of a call of another engine; None if it is not listed, or the query is large."""
    if _form(node) is None or not is_small(node.root()):
        return None
    return print_sql(_translated(node.copy()))


def translated(node: exp.Expr) -> tuple[str, ...]:
    """Return the whole query of such a call with PostgreSQL's forms of all of them."""
    return (print_sql(_translated(node.root().copy())),)


def _translated(tree: exp.Expr) -> exp.Expr:
    # A call comes after the calls in its arguments.
    for node in reversed(list(tree.walk())):
        form = _form(node)
        if form is not None:
            written = exp.Var(this=form.format(*map(_argument, arguments_of(node))))
            if node is tree:
                return written
            node.replace(written)
    return tree


def _form(node: exp.Expr) -> str | None:
    if not isinstance(node, exp.Func):
        return None
    name = str(node.this if isinstance(node, exp.Anonymous) else node.meta.get(WRITTEN, node.sql_name())).lower()
    return _CALLS.get((name, len(arguments_of(node))))


def arguments_of(node: exp.Expr) -> list[exp.Expr]:
    """Return the arguments of a call, in their order."""
    values = node.expressions if isinstance(node, exp.Anonymous) else node.args.values()
    return [value for value in values if isinstance(value, exp.Expr)]


def _argument(node: exp.Expr) -> str:
    if isinstance(node, exp.Literal) and node.is_string and "%" in node.this:
        codes = _CODE.sub(lambda found: _CODES.get(found[1], found[0]), node.this)
        return print_sql(exp.Literal.string(codes))
    return print_sql(node)
