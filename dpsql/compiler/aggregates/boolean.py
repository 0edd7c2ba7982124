"""boolean: BOOL_AND and BOOL_OR, decided by units for and units against."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from sqlglot import exp

from dpsql.compiler.aggregates.base import (
    AggregateFunction,
    Drawn,
    Estimate,
    Formula,
    Primitives,
    argument_of,
    arguments_of,
)
from dpsql.compiler.ir.conditions import all_of
from dpsql.compiler.ir.nodes import AggregateCall, Call, Expr
from dpsql.compiler.ir.primitives import Primitive, PrimitiveKind
from dpsql.compiler.scope.lowering import Lowering
from dpsql.errors import UnsupportedQuery
from dpsql.privacy.exponential_mechanism import CellMechanism
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class BooleanEstimate(Estimate):
    """`decided` where there surely are units for it; the opposite where there surely are units for that; else NULL."""

    kind: ClassVar[str] = "a truth value"
    decided: bool
    cell: int
    other_cell: int

    @property
    def cells(self) -> tuple[int, ...]:
        """Units for, and units against."""
        return self.cell, self.other_cell

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """TRUE or FALSE if the noisy count of such units is larger than noise alone would explain.

        Raises:
            UnsupportedQuery: The value would be an input of another release; this is refused before noise is drawn.
        """
        if drawn is None:
            raise UnsupportedQuery(
                "BOOL_AND and BOOL_OR of protected rows are not allowed inside a query over protected rows",
                hint="Use them in the SELECT list of the outer query, or compare a count in a subquery.",
            )
        widths = drawn.widths
        cells = ((self.cell, self.decided), (self.other_cell, not self.decided))
        told = " ".join(f"WHEN p{cell} > {int(widths[cell])} THEN {value}" for cell, value in cells)
        return Formula(f"CASE {told} END")

    def error(self, noises: Sequence[CellMechanism], release: int) -> None:
        """It is no number."""
        return None


def _boolean(call: AggregateCall, primitives: Primitives) -> BooleanEstimate:
    """Units with a row for one answer, and units with one for the other."""
    decided = call.function == "bool_or"
    cells = []
    for function in ("is_true", "is_false") if decided else ("is_false", "is_true"):
        term = Call(function, (argument_of(call),), SqlType.BOOLEAN)
        cells.append(primitives.cell(Primitive(PrimitiveKind.COUNT, None, all_of(term, call.filter), 1)))
    return BooleanEstimate(decided, *cells)


def _call(name: str, lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """A call; DISTINCT makes no difference."""
    _, (argument,) = arguments_of(lowering, node, name)
    return AggregateCall(name, lowering.condition(argument), False, condition, SqlType.BOOLEAN)


def _function(name: str, called: str, *nodes: type[exp.Expr]) -> AggregateFunction:
    call = partial(_call, called)
    return AggregateFunction(name, call, nodes, build=_boolean, has_interval=False, in_windows=True, of_one_unit=True)


FUNCTIONS = (
    _function("bool_and", "bool_and", exp.LogicalAnd),
    _function("bool_or", "bool_or", exp.LogicalOr),
    _function("every", "bool_and"),  # the standard's name
)
