"""top_k: groups that are picked by a count or a sum which is not shown: GROUP BY … ORDER BY COUNT(*) LIMIT k, MODE."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from dpsql.compiler.aggregates.base import ColumnError, Drawn, Estimate, Formula, Primitives, margin_text
from dpsql.compiler.aggregates.registry import FUNCTIONS, estimate_of
from dpsql.compiler.ir.nodes import AggregateCall
from dpsql.privacy.exponential_mechanism import CellMechanism, Picking, Places
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class PickEstimate(Estimate):
    """The place of a group that was picked, 0 for others; scores are in steps."""

    kind: ClassVar[str] = "chosen"
    cell: int
    step: Fraction

    @property
    def cells(self) -> tuple[int, ...]:
        """The place."""
        return (self.cell,)

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The place."""
        return Formula(f"p{self.cell}")

    def error(self, noises: Sequence[CellMechanism], release: int) -> ColumnError:
        """By what distance of counts or sums groups are told apart."""
        mechanism = noises[self.cell]
        if not isinstance(mechanism, Picking):
            raise TypeError("groups are picked")
        sensitivity, step = mechanism.sensitivity, float(self.step)
        return ColumnError(
            mechanism.event.mechanism.value,
            None,
            None,
            sensitivity.l0,
            sensitivity.linf * step,
            sensitivity.l1 * step,
            float(sensitivity.l2_squared) ** 0.5 * step,
            release,
            self,
            apart=mechanism.apart * step,
        )

    def explained(self, error: ColumnError) -> str:
        """The distance."""
        apart = margin_text(error.apart or 0.0)
        counts = f"the order of two keys is reliable if their counts or sums differ by at least {apart}"
        return f"{counts}, at 95 %; picked by the mechanism {error.mechanism}, {error.norms}"


def picked(call: AggregateCall, places: Places, primitives: Primitives) -> PickEstimate:
    """The place of each group by a count or a sum, which is the release's only primitive.

    Raises:
        PolicyViolation: The argument has no finite bounds.
    """
    scored = estimate_of(call, primitives)
    if not FUNCTIONS[call.function].orders_groups or len(primitives.added) > 1:
        raise TypeError("groups are picked by one count or sum")
    (cell,) = scored.cells
    primitives.added[cell] = replace(primitives.added[cell], places=places)
    return PickEstimate(cell, scored.unit)
