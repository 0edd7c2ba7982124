"""count: COUNT(*), COUNT(x) and COUNT(DISTINCT x)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from sqlglot import exp

from dpsql.compiler.aggregates.base import AggregateFunction, Drawn, Estimate, Formula, PlainCall, Primitives, always
from dpsql.compiler.aggregates.calibration import calibration
from dpsql.compiler.dialects.render import CopiedText
from dpsql.compiler.ir.conditions import all_of
from dpsql.compiler.ir.nodes import AggregateCall, Case, Column, Expr, Literal, UnitScan
from dpsql.compiler.ir.primitives import Primitive, PrimitiveKind
from dpsql.compiler.ir.walk import nodes
from dpsql.compiler.scope.lowering import Lowering
from dpsql.compiler.scope.resolve import FromItem, quoted
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import InvalidSyntax, UnsupportedQuery
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class CountEstimate(Estimate):
    """A cell, unchanged."""

    kind: ClassVar[str] = "a count"
    cell: int

    @property
    def cells(self) -> tuple[int, ...]:
        """The count."""
        return (self.cell,)

    @property
    def raised_cell(self) -> int:
        """The count."""
        return self.cell

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The cell, calibrated if it has a wide total; its lower limit respects the threshold of shown groups."""
        value = CopiedText.of_cell(self.cell)
        if drawn is None:
            return Formula(value)
        found = calibration(self.cell, drawn, prefix)
        if found is not None:
            if not drawn.calibrates:
                return Formula(value, (found.least, found.high), found.columns)
            return Formula(f"CAST(round({found.raised}) AS BIGINT)", (found.low, found.high), found.columns)
        width = drawn.widths[self.cell]
        is_cut_off = self.cell == drawn.threshold_primitive
        low = drawn.low(self.cell) if is_cut_off else CopiedText.of_cell(self.cell, -width)
        return Formula(value, (low, CopiedText.of_cell(self.cell, width)))


def _count(call: AggregateCall, primitives: Primitives) -> CountEstimate:
    protected, cap = primitives.protected, primitives.cap
    is_unit = call.argument is not None and protected.is_unit(call.argument)
    if call.distinct and is_unit:
        primitive = Primitive(PrimitiveKind.COUNT, None, call.filter, 1)
    elif call.distinct and call.argument is not None and protected.is_unit_or_null(call.argument):
        primitive = Primitive(PrimitiveKind.COUNT, call.argument, call.filter, 1)
    elif call.distinct:
        primitive = Primitive(PrimitiveKind.DISTINCT, call.argument, call.filter, cap)
    else:
        primitive = Primitive(PrimitiveKind.COUNT, None if is_unit else call.argument, call.filter, cap)
    return CountEstimate(primitives.cell(primitive))


_OF_VALUES = PlainCall("count", always(SqlType.BIGINT))


def _call(lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """COUNT(*), COUNT of values, or of whole rows."""
    if node.this is None and isinstance(node, exp.Count):
        raise InvalidSyntax(
            "count(*) must be used to call a parameterless aggregate function",
            position=lowering.at(node),
            queries=replaced(node, "COUNT(*)"),
        )
    row = lowering.scope.whole_row(node.this)
    if not isinstance(node.this, exp.Star) and row is None:
        return _with_filter(_OF_VALUES(lowering, node, condition))
    lowering.only(node, "this", "big_int")
    if row is not None:
        return AggregateCall("count", _presence(lowering, row, node), False, condition, SqlType.BIGINT)
    lowering.only(node.this)
    return AggregateCall("count", None, False, condition, SqlType.BIGINT)


def _presence(lowering: Lowering, row: FromItem, node: exp.Expr) -> Expr | None:
    """A column of an entry of FROM that is NULL where an outer join finds no row of it; None if it has all rows."""
    if len(lowering.scope.sources) == 1:
        return None
    protected = lowering.scope.protected
    scans = [scan for scan in nodes(protected.relation) if isinstance(scan, UnitScan)] if protected is not None else []
    for _, field in (*row.hidden, *row.columns):
        is_read = any(field in scan.fields for scan in scans)
        if protected is not None and is_read and protected.is_unit_or_null(Column(field)):
            return Column(field)
    raise UnsupportedQuery(
        "a whole row is only counted where FROM has one entry, or the row is of a table with the unit's key",
        hint="Count a column that is never NULL.",
        position=lowering.at(node),
        queries=replaced(node, *(f"COUNT({quoted(row.alias)}.{quoted(name)})" for name, _ in row.columns[:1])),
    )


def _with_filter(call: AggregateCall) -> AggregateCall:
    """COUNT(CASE WHEN c THEN x END) is COUNT(x) FILTER (WHERE c): so x may be the unit."""
    case = call.argument
    if not isinstance(case, Case) or len(case.branches) != 1:
        return call
    if not isinstance(case.default, Literal) or case.default.value is not None or case.default.parameter is not None:
        return call
    ((condition, value),) = case.branches
    return replace(call, argument=value, filter=all_of(call.filter, condition))


FUNCTIONS = (
    AggregateFunction(
        "count",
        _call,
        nodes=(exp.Count,),
        build=_count,
        even_interval=True,
        orders_groups=True,
        in_windows=True,
        of_one_unit=True,
    ),
)
