"""prepared_form: the cells of a release over a bounded copy, where they are the same cells, and which form is read.

Rule: a copy is read only for the very cells that would be made without it, for prices are shared by cell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.compiler.aggregates.base import Estimate, Primitives, error_weights
from dpsql.compiler.aggregates.registry import estimate_of
from dpsql.compiler.bounding.prepared_grids import StoredGrids
from dpsql.compiler.bounding.prepared_reads import PreparedRead, prepared_read
from dpsql.compiler.bounding.prepared_tables import prepared_leaf
from dpsql.compiler.bounding.printer import printed
from dpsql.compiler.bounding.rewrite import Bounding, rewrite
from dpsql.compiler.bounding.steps import PrintedQuery
from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.dialect import standard_name
from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.nodes import Relation, Release
from dpsql.compiler.ir.primitives import UNITS, Contribution
from dpsql.compiler.plan.pricing import Calibrated, Unpriced, error_ratio
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.errors import QueryTooComplex


@dataclass(frozen=True)
class PreparedForm:
    """The same cells, added up from a bounded copy, which has some columns on their grid."""

    table: str
    on_grid: tuple[str, ...]
    query: PrintedQuery
    unpriced: Unpriced

    @property
    def loses_of_sums(self) -> bool:
        """True where values are added up: over a table, a unit's sum of all rows is clamped, and no row is left out."""
        return any(primitive.sums_values for primitive in self.unpriced.primitives)


@dataclass(frozen=True)
class PreparedForms:
    """Where a query's releases look for copies."""

    catalog: Catalog
    fields: Fields
    settings: QuerySettings

    def of(
        self,
        release: Release,
        bounding: Bounding,
        unpriced: Unpriced,
        estimates: tuple[Estimate, ...],
        leaves: Mapping[Relation, Leaf],
        groups: int | None,
    ) -> PreparedForm | str | None:
        """The cells of a release over a copy, or why they are not made of one; None where nothing was prepared.

        Args:
            release: The release.
            bounding: How it is bounded without a copy.
            unpriced: What it draws noise for without a copy.
            estimates: What is made of its cells.
            leaves: Where the engine finds what is made first.
            groups: How many public groups there are; None where they are private, or where there are none.
        """
        if bounding.contribution.one_row or bounding.reads_nobody:
            return None
        found = prepared_read(release, self.catalog)
        if not isinstance(found, PreparedRead):
            return found
        if release.picks is not None:
            return "keys that are picked are bounded unit by unit"
        if self.settings.narrows:
            return "the bounds that were set are narrower than the copy's"
        contribution = _contribution(found.copy.rows_per_unit, bool(bounding.keys), groups)
        primitives = Primitives(release.protected, contribution, bounding.keys, unpriced.selects)
        try:
            same = tuple(estimate_of(call, primitives) for call in release.aggregate.aggregates) == estimates
        except QueryTooComplex:
            return "sums over its rows need more digits than are added up exactly"
        drawn = tuple(primitives.added)
        if not all(primitive.sums_rows for primitive in drawn):
            return "distinct values and values chosen by rank are bounded unit by unit"
        if not same or len(drawn) != len(bounding.primitives) or (UNITS in drawn) != (UNITS in bounding.primitives):
            return "other cells would be needed than without it"
        weights = error_weights(drawn, estimates)
        over_copy = replace(unpriced, primitives=drawn, contribution=contribution, weights=weights)
        return self._over(found, bounding, over_copy, leaves)

    def _over(
        self, found: PreparedRead, bounding: Bounding, unpriced: Unpriced, leaves: Mapping[Relation, Leaf]
    ) -> PreparedForm:
        grids = StoredGrids(bounding.protected.relation, found, self.fields)
        cells, protected = grids.of(unpriced.primitives), replace(bounding.protected, relation=grids.relation)
        stored = grids.read_by(cells)
        over = replace(
            bounding, protected=protected, primitives=cells, contribution=unpriced.contribution, stored=stored
        )
        leaf = prepared_leaf(found.scan, found.copy, self.catalog)
        schema, policy = self.catalog.schema, self.catalog.policy
        query = printed(rewrite(over, {**leaves, grids.scan: leaf}), DIALECTS[schema.engine], schema, policy)
        on_grid = tuple(sorted({each.column for each in stored.values()}))
        return PreparedForm(found.scan.table.name, on_grid, query, unpriced)


def _contribution(rows: int, grouped: bool, groups: int | None) -> Contribution:
    """What one unit may contribute by the rows that a copy has of it."""
    touched = min(rows, max(1, groups)) if grouped and groups is not None else rows if grouped else 1
    return Contribution(grouped, touched, rows, one_row=False, ranked=touched == rows, copied=True)


def read_form(
    copied: PreparedForm | str | None, over_copy: Calibrated, without: Calibrated, allowed: Fraction
) -> tuple[PreparedForm | None, str | None]:
    """The form over a copy if its error is small enough for it to be read, and why; no why where nothing was prepared.

    Args:
        copied: The form over a copy, or why there is none.
        over_copy: Its noise.
        without: The noise of the other form.
        allowed: How many times the error of the other form it may have.
    """
    if not isinstance(copied, PreparedForm):
        return None, None if copied is None else f"not from a prepared table: {copied}"
    ratio = error_ratio(over_copy, without)
    told = f"the error is {ratio:.3g} times that without it, and max_error_ratio is {float(allowed):.3g}"
    if ratio > allowed:
        return None, f"not from a prepared table: {told}"
    columns = ", ".join(standard_name(column) for column in copied.on_grid)
    values = f", with the values of {columns} on their grid" if columns else ""
    lost = "; its sums lack the rows that the prepared table left out" if copied.loses_of_sums else ""
    return copied, f'from the prepared table of "{copied.table}"{values}: {told}{lost}'
