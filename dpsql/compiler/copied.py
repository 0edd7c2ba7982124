"""copied: the cells of a release over a bounded copy, where they are the same cells, and which form is read.

Rule: a copy is read only for the very cells that would be made without it, for prices are shared by cell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.compiler.bounded_copies import copy_leaf
from dpsql.compiler.catalog import Catalog
from dpsql.compiler.engines import DIALECTS
from dpsql.compiler.engines.dialect import quote_name
from dpsql.compiler.from_copies import FromCopy, from_copy
from dpsql.compiler.ir import Relation, Release
from dpsql.compiler.lowering import Fields
from dpsql.compiler.outputs import Output
from dpsql.compiler.part_list import PartList
from dpsql.compiler.parts import UNITS, Contribution
from dpsql.compiler.pricing import Calibrated, Unpriced, error_ratio
from dpsql.compiler.render import Leaf, Renderer
from dpsql.compiler.rewrite import Bounding, rewrite
from dpsql.compiler.settings import QuerySettings
from dpsql.compiler.stored_grids import StoredGrids
from dpsql.compiler.visible import weights
from dpsql.errors import QueryTooComplex


@dataclass(frozen=True)
class Copied:
    """The same cells, added up from a bounded copy, which has some columns on their grid."""

    table: str
    on_grid: tuple[str, ...]
    sql: str
    unpriced: Unpriced


@dataclass(frozen=True)
class Copies:
    """Where a query's releases look for copies."""

    catalog: Catalog
    fields: Fields
    settings: QuerySettings

    def of(
        self,
        release: Release,
        bounding: Bounding,
        outputs: tuple[Output, ...],
        leaves: Mapping[Relation, Leaf],
        groups: int | None,
    ) -> Copied | str | None:
        """The cells of a release over a copy, or why they are not made of one; None where nothing was prepared.

        Args:
            release: The release.
            bounding: How it is bounded without a copy.
            outputs: What is made of its cells.
            leaves: Where the engine finds what is made first.
            groups: How many public groups there are; None where they are private, or where there are none.
        """
        if bounding.contribution.one_row:
            return None
        found = from_copy(release, self.catalog)
        if not isinstance(found, FromCopy):
            return found
        if release.picks is not None:
            return "keys that are picked are bounded unit by unit"
        if self.catalog.role.query.bias_share:
            return "what bounding cuts is counted unit by unit"
        if (self.settings.max_rows, self.settings.max_groups, self.settings.max_rows_per_group) != (None, None, None):
            return "the bounds that were set are narrower than the copy's"
        contribution = _contribution(found.copy.max_rows, bool(bounding.keys), groups)
        part_list = PartList(release.protected, contribution)
        try:
            same = tuple(part_list.output(call) for call in release.aggregate.aggregates) == outputs
        except QueryTooComplex:
            return "sums over its rows need more digits than are added up exactly"
        parts = tuple(part_list.parts)
        if any(part.kind.is_distinct or part.rank is not None for part in parts):
            return "distinct values and values chosen by rank are bounded unit by unit"
        if not same or len(parts) != len(bounding.parts) or (UNITS in parts) != (UNITS in bounding.parts):
            return "other cells would be needed than without it"
        unpriced = Unpriced(parts, contribution, bounding.counts_units, weights(parts, outputs))
        return self._over(found, bounding, unpriced, leaves)

    def _over(self, found: FromCopy, bounding: Bounding, unpriced: Unpriced, leaves: Mapping[Relation, Leaf]) -> Copied:
        grids = StoredGrids(bounding.protected.relation, found, self.fields)
        cells, protected = grids.of(unpriced.parts), replace(bounding.protected, relation=grids.relation)
        stored = grids.read_by(cells)
        over = replace(bounding, protected=protected, parts=cells, contribution=unpriced.contribution, stored=stored)
        leaf = copy_leaf(found.scan, found.copy, self.catalog)
        schema, policy = self.catalog.schema, self.catalog.policy
        sql = rewrite(over, Renderer(DIALECTS[schema.engine], schema, policy, {**leaves, grids.scan: leaf}))
        on_grid = tuple(sorted({each.column for each in stored.values()}))
        return Copied(found.scan.table.name, on_grid, sql, unpriced)


def _contribution(rows: int, grouped: bool, groups: int | None) -> Contribution:
    """What one unit may contribute by the rows that a copy has of it."""
    touched = min(rows, max(1, groups)) if grouped and groups is not None else rows if grouped else 1
    return Contribution(grouped, touched, rows, one_row=False, ranked=touched == rows, copied=True)


def read_form(
    copied: Copied | str | None, over_copy: Calibrated, without: Calibrated, allowed: Fraction
) -> tuple[Copied | None, str | None]:
    """The form over a copy if its error is small enough for it to be read, and why; no why where nothing was prepared.

    Args:
        copied: The form over a copy, or why there is none.
        over_copy: Its noise.
        without: The noise of the other form.
        allowed: How many times the error of the other form it may have.
    """
    if not isinstance(copied, Copied):
        return None, None if copied is None else f"not from a prepared copy: {copied}"
    ratio = error_ratio(over_copy, without)
    told = f"the error is {ratio:.3g} times that without it, and max_error_ratio is {float(allowed):.3g}"
    if ratio > allowed:
        return None, f"not from a prepared copy: {told}"
    columns = ", ".join(quote_name(column) for column in copied.on_grid)
    values = f", with the values of {columns} on their grid" if columns else ""
    return copied, f'from the prepared copy of "{copied.table}"{values}: {told}'
