"""preview: invented rows within a policy's bounds and domains, shown if a query selects rows of a protected table.

Rule: a row follows from policy and query alone; no table is read, and there is no randomness.
"""

from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

from sqlglot import exp

from dpsql.compiler.ir.nodes import Filter, Literal, Project, Public, Relation, UnitScan, Value, Values
from dpsql.compiler.ir.walk import expressions, nodes, relations_in, windows_in
from dpsql.compiler.scope.lowering import Lowered
from dpsql.policy import PolicyColumn
from dpsql.sqltypes import SqlType

ROWS = 100
"""How many rows a table has in a preview."""
_STRIDE = 37
"""Has no factor in common with ROWS: the values of neighbouring rows and columns do not go together."""


def unlimited(tree: exp.Expr) -> exp.Expr | None:
    """Return a query without ORDER BY and LIMIT, which apply to the invented rows; None if it is no plain SELECT."""
    if not isinstance(tree, exp.Select):
        return None
    rows = tree.copy()
    for clause in ("order", "limit", "offset"):
        rows.set(clause, None)
    return rows


def invented(lowered: Lowered) -> Lowered | None:
    """Return the columns and filters over invented rows; None unless the query only filters one protected table."""
    known = list(nodes(lowered.relation))
    parts = [part for node in known for part in expressions(node)]
    simple = all(isinstance(node, UnitScan | Filter | Project) for node in known)
    if not simple or any(relations_in(part) or windows_in(part) for part in parts):
        return None
    shown = replace(lowered, status=Public(_over_rows(lowered.relation)), hidden=(), unlisted=frozenset())
    return replace(shown, invented=True)


def _over_rows(relation: Relation) -> Relation:
    if isinstance(relation, Filter | Project):
        return replace(relation, input=_over_rows(relation.input))
    if not isinstance(relation, UnitScan):
        raise TypeError("nothing else was let through")
    columns = [
        [_value(column, field.type, (row * _STRIDE + place * 11) % ROWS) for row in range(ROWS)]
        for place, (column, field) in enumerate(zip(relation.columns, relation.column_fields, strict=True))
    ]
    units = [Literal(None, relation.unit_field.type)] * ROWS
    return Values(relation.fields, tuple(zip(*columns, units, strict=True)))


def _value(column: PolicyColumn, kind: SqlType, place: int) -> Literal:
    """Return one of ROWS values of a column; NULL if the policy has neither values nor bounds."""
    found: Value = None
    if column.values is not None:
        found = _plain(column.values[place % len(column.values)], kind)
    elif kind is SqlType.BOOLEAN:
        found = place % 2 == 0
    elif isinstance(column.lower, Fraction) and isinstance(column.upper, Fraction):
        found = _number(column, column.lower, column.upper, kind, place)
    elif isinstance(column.lower, date) and isinstance(column.upper, date):
        found = _moment(column.lower, column.upper, place)
    return Literal(found, kind)


def _number(column: PolicyColumn, lower: Fraction, upper: Fraction, kind: SqlType, place: int) -> Value:
    step = Fraction(1) if kind.is_integer else column.step or Fraction(1, 100)
    steps = (upper - lower) // step * place // (ROWS - 1)
    return _plain(lower + steps * step, kind)


def _moment(lower: date, upper: date, place: int) -> Value:
    if isinstance(lower, datetime) and isinstance(upper, datetime):
        return lower + timedelta(seconds=int((upper - lower).total_seconds()) * place // (ROWS - 1))
    return lower + timedelta(days=(upper - lower).days * place // (ROWS - 1))


def _plain(value: object, kind: SqlType) -> Value:
    if isinstance(value, Fraction):
        if kind.is_integer:
            return int(value)
        return float(value) if kind is not SqlType.NUMERIC else _decimal(value)
    if isinstance(value, bool | int | str | date | datetime | time):
        return value
    raise TypeError(f"no domain of {type(value).__name__}")


def _decimal(value: Fraction) -> Decimal:
    return (Decimal(value.numerator) / Decimal(value.denominator)).quantize(Decimal("1.000000")).normalize()
