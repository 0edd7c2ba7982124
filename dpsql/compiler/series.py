"""series: generate_series in FROM: whole numbers or dates between constants, as a public relation."""

from datetime import date

from sqlglot import exp

from dpsql.compiler.clauses import Clauses
from dpsql.compiler.ir import Expr, Literal, Public, Series
from dpsql.compiler.lowered import Lowered
from dpsql.compiler.resolve import Scope
from dpsql.errors import QueryTooComplex, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_SERIES = 100_000
_STEPS = ("hour", "day", "week", "month", "year")


def series(clauses: Clauses, node: exp.ExplodingGenerateSeries) -> Lowered:
    """Lower generate_series(start, stop[, step]).

    Raises:
        UnsupportedQuery: The ends are not constants, or the step is not one of one unit.
        QueryTooComplex: There are too many values.
    """
    lowerer = clauses.expressions(Scope(()), "in generate_series")
    lowerer.only(node, "start", "end", "step")
    start, stop = (_end(lowerer.lower(node.args[name])) for name in ("start", "end"))
    unit = _step(node.args.get("step"))
    if isinstance(start, int) and isinstance(stop, int) and unit is None:
        sql_type, size = SqlType.INTEGER if max(abs(start), abs(stop)) < 2**31 else SqlType.BIGINT, stop - start
    elif isinstance(start, date) and isinstance(stop, date) and unit:
        sql_type, size = SqlType.TIMESTAMP, (stop.toordinal() - start.toordinal()) * (24 if unit == "HOUR" else 1)
    else:
        raise UnsupportedQuery(
            "generate_series takes two constants, and for dates a step of one unit",
            hint="generate_series(1, 12); generate_series(DATE '2024-01-01', DATE '2024-12-01', INTERVAL '1 month')",
            position=clauses.at(node),
        )
    if size > MAX_SERIES:
        raise QueryTooComplex(f"generate_series gives {MAX_SERIES:,} values at the most", position=clauses.at(node))
    field = clauses.fields.new(sql_type)
    return Lowered(Public(Series((field,), start, stop, unit)), (("generate_series", field),))


def _end(expression: Expr) -> object:
    return expression.value if isinstance(expression, Literal) else None


def _step(node: exp.Expr | None) -> str | None:
    """The unit of a step of one: None for whole numbers, "" for what is none."""
    if node is None or (isinstance(node, exp.Literal) and str(node.this) == "1" and not node.is_string):
        return None
    while isinstance(node, exp.Paren | exp.Cast):  # INTERVAL '1 day' is read as ('1 day'::interval)
        node = node.this
    if isinstance(node, exp.Interval):  # the parser has read a quoted step already
        node = exp.Literal.string(f"{node.this.name} {node.args.get('unit') or ''}")
    words = node.name.lower().rstrip("s").split()
    return words[1].upper() if words[:1] == ["1"] and words[1:] and words[1] in _STEPS else ""
