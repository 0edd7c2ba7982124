"""kept_groups: the SQL steps by which each unit keeps no more than so many of its groups, one function a form.

Every form reads `per_unit`, which has one row for each unit and group: unit, keys, the keyed hash h, and what the unit
adds. It ends in `kept`, the same rows but for the groups that are dropped.
"""

from collections.abc import Callable, Sequence

Steps = list[tuple[str, str]]
"""Names of CTEs with their bodies."""


def by_ranking_all(most: int, keys: Sequence[str], *, lists: bool = False) -> Steps:
    """Number the groups of every unit by keyed hash, then by key, and keep the first.

    With `lists`, keys name lists of groups: all groups of a list have one number, and are kept or dropped with it.

    Guarantee: a unit keeps at most `most` groups or lists, and which ones is a function of its own groups alone.
    Assumes: one row for each unit and group; h is a function of unit and keys.
    Reference: Wilson et al., Differentially Private SQL with Bounded User Contribution, PoPETs 2020, section 3.
    """
    order = ", ".join(["h", *(f"{key} NULLS LAST" for key in keys)])
    rank = "dense_rank()" if lists else "row_number()"
    return [
        ("ranked", f"SELECT *, {rank} OVER (PARTITION BY unit ORDER BY {order}) AS r FROM per_unit"),
        ("kept", f"SELECT * FROM ranked WHERE r <= {most}"),
    ]


def by_ranking_few(most: int, same: Callable[[str, str], str]) -> Steps:
    """Number the groups of the units that have too many, and keep those whose hash is below that of the next one.

    What is sorted is smaller: no group of a unit that has few enough, and neither keys nor sums. `same` is the join
    condition of two units that are one.

    Guarantee: a unit keeps at most `most` groups, whatever its hashes are: no more than that many numbers are below the
        next one in their order. Which ones is a function of its own groups alone: of groups with equal hashes, all are
        kept or none.
    Assumes: one row for each unit and group; h is never NULL.
    Reference: Cohen & Kaplan, Summarizing Data Using Bottom-k Sketches, PODC 2007, for the least k of a keyed hash and
        the next one as their limit.
    """
    groups = f"SELECT per_unit.unit, h FROM per_unit JOIN crowded ON {same('per_unit.unit', 'crowded.unit')}"
    return [
        ("crowded", f"SELECT unit FROM per_unit GROUP BY unit HAVING count(*) > {most}"),
        ("ranked", f"SELECT *, row_number() OVER (PARTITION BY unit ORDER BY h) AS r FROM ({groups}) AS g"),
        ("limits", f"SELECT unit, h FROM ranked WHERE r = {most + 1}"),
        (
            "kept",
            f"SELECT per_unit.* FROM per_unit LEFT JOIN limits ON {same('per_unit.unit', 'limits.unit')} "
            "WHERE limits.h IS NULL OR per_unit.h < limits.h",
        ),
    ]
