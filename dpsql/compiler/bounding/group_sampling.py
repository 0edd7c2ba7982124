"""group_sampling: the SQL steps by which each unit keeps a bounded number of its groups, one function per form.

Every form reads `per_unit`, which has one row for each unit and group: unit, keys, the keyed hash h, and the unit's
contribution. Its result is `kept`: the same rows without the dropped groups.
"""

from collections.abc import Callable, Sequence

from dpsql.compiler.dialects.dialect import Dialect

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

    Less is sorted: only units with too many groups, and neither keys nor sums. `same` is the join
    condition of equal units.

    Guarantee: a unit keeps at most `most` groups, for any hashes: no more than that many numbers are below the
        next one in their order. Which ones is a function of its own groups alone: of groups with equal hashes, all are
        kept or none.
    Assumes: one row for each unit and group; h is never NULL.
    Reference: Cohen & Kaplan, Summarizing Data Using Bottom-k Sketches, PODC 2007, for the least k of a keyed hash and
        the next one as their limit.
    """
    groups = f"SELECT per_unit.unit, h FROM per_unit JOIN many_groups ON {same('per_unit.unit', 'many_groups.unit')}"
    return [
        ("many_groups", f"SELECT unit FROM per_unit GROUP BY unit HAVING count(*) > {most}"),
        ("ranked", f"SELECT *, row_number() OVER (PARTITION BY unit ORDER BY h) AS r FROM ({groups}) AS g"),
        ("limits", f"SELECT unit, h FROM ranked WHERE r = {most + 1}"),
        (
            "kept",
            f"SELECT per_unit.* FROM per_unit LEFT JOIN limits ON {same('per_unit.unit', 'limits.unit')} "
            "WHERE limits.h IS NULL OR per_unit.h < limits.h",
        ),
    ]


def by_shares(
    source: str,
    most: int,
    keys: Sequence[str],
    carried: Sequence[str],
    hashed: str,
    same: Callable[[str, str], str],
    dialect: Dialect,
    *,
    flagged: bool,
    apart: bool,
) -> Steps:
    """Reduce the rows of units with too many in proportion, by systematic sampling.

    Columns named in `carried` are handed on. `same` is the join condition of two units that are one. Where `flagged`,
    the column `sampled` is true of units that had too many. These are found first where `apart`, which pays where
    they are few. Elsewhere a window computes N, so that all steps read a CTE once, over rows that may change.

    Guarantee: Σm ≤ most over the groups of a unit, and 0 ≤ m ≤ n in each. With N = Σn > most, u in 0 … N − 1, and C the
        sum of n up to a group, m is ⌊(C·most + u)/N⌋ less the same of the group before. These add up to
        ⌊(N·most + u)/N⌋ − ⌊u/N⌋ = most; and as n·most/N < n, none is above n. Where N ≤ most, m = n. All of it is a
        function of the unit's own groups alone; over u drawn by lot, a group keeps n·most/N rows on average.
    Assumes: one row for each unit and group; n ≥ 1; `hashed` is a function of the unit, and looks random.
    Reference: Madow & Madow, On the Theory of Systematic Sampling, Annals of Mathematical Statistics 1944; Wilson et
        al., Differentially Private SQL with Bounded User Contribution, PoPETs 2020, section 3, for bounded rows.
    """
    columns, order = ", ".join(carried), ", ".join(f"{key} NULLS LAST" for key in keys)
    one = same(f"{source}.unit", "many_rows.unit")
    upto = f"{dialect.total('n')} OVER (PARTITION BY unit ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
    before, after = (dialect.quotient(f"({rows} * {most} + u)", "total") for rows in ("(upto - n)", "upto"))
    if not apart:
        sums = f"SELECT *, {dialect.total('n')} OVER (PARTITION BY unit) AS total, {upto} AS upto FROM {source}"
        share = f"CASE WHEN total > {most} THEN CAST({after} - {before} AS BIGINT) ELSE n END AS m"
        told = f", total > {most} AS sampled" if flagged else ""
        return [
            ("running", f"SELECT *, abs({hashed} % total) AS u FROM ({sums}) AS g"),
            ("shared", f"SELECT {columns}, {share}{told} FROM running"),
        ]
    groups = f"SELECT {source}.*, total FROM {source} JOIN many_rows ON {one}"
    no, yes = (", FALSE AS sampled", ", TRUE AS sampled") if flagged else ("", "")
    few = f"SELECT {columns}, n AS m{no} FROM {source} WHERE NOT EXISTS (SELECT 1 FROM many_rows WHERE {one})"
    many = f"SELECT {columns}, CAST({after} - {before} AS BIGINT) AS m{yes} FROM running"
    return [
        ("many_rows", f"SELECT unit, sum(n) AS total FROM {source} GROUP BY unit HAVING sum(n) > {most}"),
        ("running", f"SELECT *, {upto} AS upto, abs({hashed} % total) AS u FROM ({groups}) AS g"),
        ("shared", f"{few} UNION ALL {many}"),
    ]
