"""kept_rows: the SQL steps by which each unit keeps no more than so many of its rows in all of its groups together.

They read one row for each unit and group: unit, keys, and n, the rows of the unit that might count there. They end in
`shared`, the same with m, the rows that do.
"""

from collections.abc import Sequence

from dpsql.compiler.engines.dialect import Dialect
from dpsql.compiler.kept_groups import Steps


def by_shares(source: str, most: int, keys: Sequence[str], hashed: str, dialect: Dialect) -> Steps:
    """Cut the rows of each unit that has too many down in proportion, by systematic sampling.

    Guarantee: Σm ≤ most over the groups of a unit, and 0 ≤ m ≤ n in each. With N = Σn > most, u in 0 … N − 1, and C the
        sum of n up to a group, m is ⌊(C·most + u)/N⌋ less the same of the group before. These add up to
        ⌊(N·most + u)/N⌋ − ⌊u/N⌋ = most; and as n·most/N < n, none is above n. Where N ≤ most, m = n. All of it is a
        function of the unit's own groups alone; over u drawn by lot, a group keeps n·most/N rows on average.
    Assumes: one row for each unit and group; n ≥ 1; `hashed` is a function of the unit, and looks random.
    Reference: Madow & Madow, On the Theory of Systematic Sampling, Annals of Mathematical Statistics 1944; Wilson et
        al., Differentially Private SQL with Bounded User Contribution, PoPETs 2020, section 3, for bounded rows.
    """
    order = ", ".join(f"{key} NULLS LAST" for key in keys)
    upto = f"sum(n) OVER (PARTITION BY unit ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
    total = "sum(n) OVER (PARTITION BY unit)"
    before, after = (dialect.quotient(f"({rows} * {most} + u)", "total") for rows in ("(upto - n)", "upto"))
    m = f"CAST(CASE WHEN total > {most} THEN {after} - {before} ELSE n END AS BIGINT)"
    return [
        ("running", f"SELECT *, {upto} AS upto, {total} AS total FROM {source}"),
        ("started", f"SELECT *, abs({hashed} % total) AS u FROM running"),
        ("shared", f"SELECT *, {m} AS m FROM started"),
    ]
