"""kept_rows: the SQL steps by which each unit keeps no more than so many of its rows in all of its groups together.

They read one row for each unit and group: unit, keys, and n, the rows of the unit that might count there. They end in
`shared`, the same with m, the rows that do.
"""

from collections.abc import Callable, Sequence

from dpsql.compiler.engines.dialect import Dialect
from dpsql.compiler.kept_groups import Steps


def by_shares(
    source: str,
    most: int,
    keys: Sequence[str],
    carried: Sequence[str],
    hashed: str,
    same: Callable[[str, str], str],
    dialect: Dialect,
) -> Steps:
    """Cut the rows of each unit that has too many down in proportion, by systematic sampling.

    Columns named in `carried` are handed on. `same` is the join condition of two units that are one.

    Guarantee: Σm ≤ most over the groups of a unit, and 0 ≤ m ≤ n in each. With N = Σn > most, u in 0 … N − 1, and C the
        sum of n up to a group, m is ⌊(C·most + u)/N⌋ less the same of the group before. These add up to
        ⌊(N·most + u)/N⌋ − ⌊u/N⌋ = most; and as n·most/N < n, none is above n. Where N ≤ most, m = n. All of it is a
        function of the unit's own groups alone; over u drawn by lot, a group keeps n·most/N rows on average.
    Assumes: one row for each unit and group; n ≥ 1; `hashed` is a function of the unit, and looks random.
    Reference: Madow & Madow, On the Theory of Systematic Sampling, Annals of Mathematical Statistics 1944; Wilson et
        al., Differentially Private SQL with Bounded User Contribution, PoPETs 2020, section 3, for bounded rows.
    """
    columns, order = ", ".join(carried), ", ".join(f"{key} NULLS LAST" for key in keys)
    one = same(f"{source}.unit", "busy.unit")
    upto = f"sum(n) OVER (PARTITION BY unit ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
    groups = f"SELECT {source}.*, total FROM {source} JOIN busy ON {one}"
    before, after = (dialect.quotient(f"({rows} * {most} + u)", "total") for rows in ("(upto - n)", "upto"))
    few = f"SELECT {columns}, n AS m FROM {source} WHERE NOT EXISTS (SELECT 1 FROM busy WHERE {one})"
    return [
        ("busy", f"SELECT unit, sum(n) AS total FROM {source} GROUP BY unit HAVING sum(n) > {most}"),
        ("running", f"SELECT *, {upto} AS upto, abs({hashed} % total) AS u FROM ({groups}) AS g"),
        ("shared", f"{few} UNION ALL SELECT {columns}, CAST({after} - {before} AS BIGINT) AS m FROM running"),
    ]
