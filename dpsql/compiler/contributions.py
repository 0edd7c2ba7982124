"""contributions: how much of one unit counts in a release, by its policy, narrower limits, and public groups."""

from collections.abc import Sequence
from dataclasses import replace

from dpsql.compiler.ir import Release
from dpsql.compiler.parts import Contribution, Part
from dpsql.compiler.settings import QuerySettings


def contribution_of(release: Release, groups: int | None, settings: QuerySettings) -> Contribution:
    """What one unit may contribute to the groups of a release.

    Args:
        release: The release.
        groups: How many public groups there are; None where they are private, or where there are none.
        settings: Narrower bounds.
    """
    protected = release.protected
    rows = min(protected.max_rows, settings.max_rows or protected.max_rows)
    if not release.aggregate.keys:
        return Contribution(False, 1, rows, protected.one_row)
    allowed = min(protected.max_groups, settings.max_groups or protected.max_groups, rows)
    per_group = min(protected.max_rows_per_group, settings.max_rows_per_group or rows, rows)
    all_fit = groups is not None and groups <= allowed
    touched = max(1, groups) if all_fit and groups is not None else allowed
    limits_rows = rows < touched * per_group and not protected.one_row
    return Contribution(
        True,
        touched,
        per_group,
        protected.one_row,
        ranked=not (all_fit or protected.one_row),
        all_rows=rows if limits_rows else None,
    )


def of_lists(release: Release, lists: tuple[int, ...], groups: int | None, settings: QuerySettings) -> Contribution:
    """What one unit may contribute to lists that groups are picked from: it may touch every group of a list.

    Args:
        release: The release, whose groups are picked.
        lists: The keys, by their places, for each of whose values there is a list.
        groups: How many lists there are, by public values of these keys.
        settings: Narrower bounds.
    """
    bounds = replace(contribution_of(release, groups, settings), all_rows=None, lists=lists)
    return bounds if lists else replace(bounds, grouped=False, max_groups=1, ranked=False)


def in_any_groups(contribution: Contribution, parts: Sequence[Part], groups: int | None) -> Contribution:
    """Without a limit of groups where rows are limited over all of them, and nothing counts units.

    It would save no noise then: what a unit adds is bounded by its rows, wherever they lie.
    """
    rows = contribution.all_rows
    if rows is None or any(part.counts_units for part in parts):
        return contribution
    return replace(contribution, max_groups=min(rows, groups or rows), ranked=False)
