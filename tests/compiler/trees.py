"""Trees of steps in which faults are planted."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from dpsql.compiler.bounding import steps
from dpsql.compiler.ir.nodes import Relation
from dpsql.compiler.plan.query_plan import PlannedRelease

Change = Callable[[PlannedRelease], PlannedRelease]


def with_sql(release: PlannedRelease, sql: str) -> PlannedRelease:
    """A release whose SQL is not that of its tree."""
    return replace(release, query=replace(release.query, sql=sql))


def everywhere(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A tree in which each step, amount, cell and value is what `change` makes of it, from the bottom up."""
    if isinstance(tree, tuple):
        return tuple(everywhere(each, change) for each in tree)
    if not is_dataclass(tree) or type(tree).__module__ != steps.__name__:
        return tree
    parts = {each.name: everywhere(getattr(tree, each.name), change) for each in fields(tree)}
    return change(replace(tree, **parts))  # type: ignore[type-var]


def planted(kind: type, change: Callable[[Any], Any]) -> Change:
    """A release in whose tree each node of a kind is changed."""

    def changed(release: PlannedRelease) -> PlannedRelease:
        tree = everywhere(release.query.tree, lambda node: change(node) if type(node) is kind else node)
        assert tree != release.query.tree, f"there is no such {kind.__name__} in {release.sql}"
        return replace(release, query=replace(release.query, tree=tree))

    return changed


def having(kind: type, **changes: Any) -> Change:
    """A release in whose tree nodes of a kind have other attributes."""
    return planted(kind, lambda node: replace(node, **changes))


def dropped(kind: type) -> Change:
    """A release from whose tree a step is dropped."""
    return planted(kind, lambda node: node.input)


def on_relation(change: Callable[[Any], Any]) -> Change:
    """A release whose rows are those of another relation."""
    return planted(steps.Rows, lambda node: replace(node, relation=change(node.relation)))


def beneath(totals: steps.Totals) -> Relation:
    """The relation that totals are made of."""
    step = totals.source
    while not isinstance(step, steps.Rows):
        step = step.input
    return step.relation
