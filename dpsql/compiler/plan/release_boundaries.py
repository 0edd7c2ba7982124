"""release_boundaries: where a query is cut: at releases, public tables, and what protected rows wait for.

Rule 1: a cut is closed: what refers to the row outside a subquery has no rows of its own, and is cut further below.
Rule 2: rows of protected tables are reached through a release and in no other way.
"""

from collections.abc import Iterator

from dpsql.compiler.ir.nodes import Aggregate, Relation, Release, Scan, SystemScan, UnitScan
from dpsql.compiler.ir.walk import expressions, free_fields, inputs, nodes, scalars_in
from dpsql.compiler.relations.determinism import leaves_open
from dpsql.errors import UnsupportedQuery


def cuts(relation: Relation) -> tuple[Relation, ...]:
    """What post-processing reads, each once: releases, system relations, the largest closed public subtrees.

    Raises:
        UnsupportedQuery: A release refers to the row outside its subquery.
    """
    return tuple(dict.fromkeys(_cuts(relation)))


def made_first(aggregate: Aggregate, domain: Relation | None) -> dict[Relation, bool]:
    """What has to be made before an aggregation of protected rows can be.

    These are the largest closed subtrees without protected rows that hold a release, or something that an engine may
    decide in several ways; and every closed subquery that stands for one value: that it has one row at the most must be
    known before protected rows are read.

    Args:
        aggregate: The aggregation.
        domain: The relation that enumerates its groups, if one does.

    Returns:
        The subtrees in the order in which they stand, each with whether it may have one row at the most.

    Raises:
        UnsupportedQuery: A release refers to the row outside its subquery, or a relation of schema dpsql is there.
    """
    for node in nodes(aggregate):
        if isinstance(node, SystemScan):
            raise UnsupportedQuery(
                f"dpsql.{node.name} cannot be used in a query over protected tables",
                hint=f"Query it alone. Write: SELECT * FROM dpsql.{node.name}",
            )
    found: dict[Relation, bool] = {}
    _collect(aggregate, found, frozenset(), single=False)
    if domain is not None:
        _collect(domain, found, frozenset(found), single=False)
    return found


def _cuts(relation: Relation) -> Iterator[Relation]:
    if isinstance(relation, UnitScan):
        raise TypeError("rows of a protected table stand outside a release")
    if isinstance(relation, Release):
        _check_closed(relation)
    if isinstance(relation, Release | SystemScan):
        yield relation
    elif not _reaches(relation, Release, SystemScan, UnitScan) and not free_fields(relation):
        if _reaches(relation, Scan):
            yield relation
    else:
        for part in inputs(relation):
            yield from _cuts(part)


def _collect(relation: Relation, found: dict[Relation, bool], known: frozenset[Relation], *, single: bool) -> None:
    """Add what is made first to `found`; `known` is not taken up into anything larger."""
    if relation in known:
        return
    if isinstance(relation, Release):
        _check_closed(relation)
    needed = single or any(isinstance(node, Release) or leaves_open(node) for node in nodes(relation))
    if needed and not _reaches(relation, UnitScan) and not free_fields(relation) and known.isdisjoint(nodes(relation)):
        found[relation] = single or found.get(relation, False)
        return
    values = {value for expression in expressions(relation) for value in scalars_in(expression)}
    for part in inputs(relation):
        _collect(part, found, known, single=part in values)


def _check_closed(release: Release) -> None:
    if free_fields(release):
        raise UnsupportedQuery(
            "an aggregate of protected rows must not refer to a row outside its subquery",
            hint="Group the subquery by the compared column, and join its result.",
        )


def _reaches(relation: Relation, *kinds: type[Relation]) -> bool:
    """True where a node of such a kind is in a tree, on this side of its releases."""
    return any(isinstance(node, kinds) for node in nodes(relation))
