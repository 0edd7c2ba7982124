"""prepared_reads: decides from the shape of a query whether a release can read a prepared table.

Rule: each row of the prepared table must become at most one aggregated row. An operator that merges rows of a unit
before that, or multiplies them, makes the prepared table's bound invalid.
"""

from dataclasses import dataclass

from dpsql.compiler.ir.nodes import Filter, Join, Project, Relation, Release, UnitScan
from dpsql.compiler.ir.schema import EngineSchema, PreparedTable
from dpsql.compiler.ir.walk import nodes
from dpsql.compiler.relations.joins import is_single, matches_once
from dpsql.compiler.scope.tables import Catalog


@dataclass(frozen=True)
class PreparedRead:
    """A prepared table, and the scan that it replaces."""

    scan: UnitScan
    copy: PreparedTable


def prepared_read(release: Release, catalog: Catalog) -> PreparedRead | str | None:
    """The prepared table that a release can read, or the reason against it; None if none of its tables is prepared."""
    scans = [node for node in nodes(release.aggregate) if isinstance(node, UnitScan)]
    known = {scan.table.name: copy for scan in scans if (copy := catalog.schema.copies.get(scan.table.name))}
    if not known:
        return None
    if len(scans) > 1:
        return "the query reads protected rows in several places"
    (scan,), (copy,) = scans, known.values()
    if isinstance(copy, str):
        return copy
    if kept_scan(release.protected.relation, catalog.schema) is None:
        return "a join or DISTINCT changes its number of rows"
    return PreparedRead(scan, copy)


def kept_scan(relation: Relation, schema: EngineSchema) -> UnitScan | None:
    """The scan whose rows become at most one row each; None if there is none."""
    match relation:
        case UnitScan():
            return relation
        case Filter() | Project():
            return kept_scan(relation.input, schema)
        case Join():
            return _joined_once(relation, schema)
    return None


def _joined_once(join: Join, schema: EngineSchema) -> UnitScan | None:
    for kept, other, outer in ((join.left, join.right, "left"), (join.right, join.left, "right")):
        scan = kept_scan(kept, schema) if join.kind in ("inner", "cross", "matched", outer) else None
        if scan is not None and (
            is_single(other) or matches_once(schema, other, join.condition) or _is_one_row(other, schema)
        ):
            return scan
    return None


def _is_one_row(relation: Relation, schema: EngineSchema) -> bool:
    """True of a table with one row a unit: joins of protected rows are on the unit."""
    scan = kept_scan(relation, schema) if isinstance(relation, UnitScan | Filter | Project) else None
    key = None if scan is None else scan.table.unit_key
    return scan is not None and key is not None and schema.tables[scan.table.name].is_unique(frozenset({key}))
