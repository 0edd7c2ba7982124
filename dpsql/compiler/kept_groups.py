"""kept_groups: the SQL steps by which each unit keeps no more than so many of its groups, one function a form.

Every form reads `per_unit`, which has one row for each unit and group: unit, keys, the keyed hash h, and what the unit
adds. It ends in `kept`, the same rows but for the groups that are dropped.
"""

from collections.abc import Sequence

Steps = list[tuple[str, str]]
"""Names of CTEs with their bodies."""


def by_ranking_all(most: int, keys: Sequence[str]) -> Steps:
    """Number the groups of every unit by keyed hash, then by key, and keep the first.

    Guarantee: a unit keeps at most `most` groups, and which ones is a function of its own groups alone.
    Assumes: one row for each unit and group.
    Reference: Wilson et al., Differentially Private SQL with Bounded User Contribution, PoPETs 2020, section 3.
    """
    order = ", ".join(["h", *(f"{key} NULLS LAST" for key in keys)])
    return [
        ("ranked", f"SELECT *, row_number() OVER (PARTITION BY unit ORDER BY {order}) AS r FROM per_unit"),
        ("kept", f"SELECT * FROM ranked WHERE r <= {most}"),
    ]


def by_ranking_few(most: int) -> Steps:
    """Number the groups of the units that have too many, and keep those whose hash is below that of the next one.

    What is sorted is smaller: no group of a unit that has few enough, and neither keys nor sums.

    Guarantee: a unit keeps at most `most` groups, whatever its hashes are: no more than that many numbers are below the
        next one in their order. Which ones is a function of its own groups alone: of groups with equal hashes, all are
        kept or none.
    Assumes: one row for each unit and group; neither unit nor h is NULL.
    Reference: Cohen & Kaplan, Summarizing Data Using Bottom-k Sketches, PODC 2007, for the least k of a keyed hash and
        the next one as their limit.
    """
    rank = "row_number() OVER (PARTITION BY unit ORDER BY h) AS r"
    return [
        ("crowded", f"SELECT unit FROM per_unit GROUP BY unit HAVING count(*) > {most}"),
        ("ranked", f"SELECT unit, h, {rank} FROM per_unit JOIN crowded USING (unit)"),
        ("limits", f"SELECT unit, h FROM ranked WHERE r = {most + 1}"),
        (
            "kept",
            "SELECT per_unit.* FROM per_unit LEFT JOIN limits ON per_unit.unit = limits.unit "
            "WHERE limits.unit IS NULL OR per_unit.h < limits.h",
        ),
    ]
