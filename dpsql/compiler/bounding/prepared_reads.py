"""prepared_reads: whether the rows of a release may be read from a bounded copy, from the shape of the query alone.

Rule: a row of the copy becomes one row of what is aggregated at the most. What brings rows of a unit together before,
or makes several of one, voids the copy's bound.
"""

from dataclasses import dataclass

from dpsql.compiler.ir.nodes import Filter, Join, Project, Relation, Release, UnitScan
from dpsql.compiler.ir.schema import EngineSchema, PreparedTable
from dpsql.compiler.ir.walk import nodes
from dpsql.compiler.relations.joins import is_single, matches_once
from dpsql.compiler.scope.catalog import Catalog


@dataclass(frozen=True)
class PreparedRead:
    """A copy, and the scan in whose place it stands."""

    scan: UnitScan
    copy: PreparedTable


def prepared_read(release: Release, catalog: Catalog) -> PreparedRead | str | None:
    """The copy that a release may be read from, or why there is none; None where no table of it was prepared."""
    scans = [node for node in nodes(release.aggregate) if isinstance(node, UnitScan)]
    known = {scan.table.name: copy for scan in scans if (copy := catalog.schema.copies.get(scan.table.name))}
    if not known:
        return None
    if len(scans) > 1:
        return "protected rows are read in several places"
    (scan,), (copy,) = scans, known.values()
    if isinstance(copy, str):
        return copy
    if not _keeps_rows(release.protected.relation, catalog.schema):
        return "one of its rows may become several, or several one, before they are counted"
    return PreparedRead(scan, copy)


def _keeps_rows(relation: Relation, schema: EngineSchema) -> bool:
    """True where a relation has one row at the most for each row of the one scan beneath it."""
    match relation:
        case UnitScan():
            return True
        case Filter() | Project():
            return _keeps_rows(relation.input, schema)
        case Join():
            return _joins_once(relation, schema)
    return False


def _joins_once(join: Join, schema: EngineSchema) -> bool:
    for kept, other, outer in ((join.left, join.right, "left"), (join.right, join.left, "right")):
        if _keeps_rows(kept, schema) and join.kind in ("inner", "cross", "matched", outer):
            return is_single(other) or matches_once(schema, other, join.condition)
    return False
