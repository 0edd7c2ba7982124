"""kept_rows: the SQL steps by which each unit keeps no more than so many of its rows in all of its groups together.

They read one row for each unit and group: unit, keys, the keyed hash h, and n, the rows of the unit that might count
there. They end in `shared`, the same with m, the rows that do.
"""

from collections.abc import Sequence

from dpsql.compiler.engines.dialect import Dialect
from dpsql.compiler.kept_groups import Steps


def by_shares(source: str, most: int, keys: Sequence[str], dialect: Dialect) -> Steps:
    """Cut the rows of the units that have too many down in proportion, group by group in the order of keyed hashes.

    Guarantee: Σm ≤ most over the groups of a unit, and 0 ≤ m ≤ n in each. With N = Σn > most, and C the sum of n up to
        a group, m is ⌊C·most/N⌋ less the same of the group before: these add up to most, and as n·most/N < n, none is
        above n. Where N ≤ most, m = n. Which rows there are is a function of the unit's own groups alone.
    Assumes: one row for each unit and group; n ≥ 1; h is a function of unit and keys.
    Reference: Madow, On the Theory of Systematic Sampling II, Annals of Mathematical Statistics 1949, for shares that
        add up; Wilson et al. 2020, section 3, for rows of a unit that are kept.
    """
    order = ", ".join(["h", *(f"{key} NULLS LAST" for key in keys)])
    upto = f"sum(n) OVER (PARTITION BY unit ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
    share = f"{dialect.share('upto', most, 'total')} - {dialect.share('(upto - n)', most, 'total')}"
    return [
        ("running", f"SELECT *, {upto} AS upto, sum(n) OVER (PARTITION BY unit) AS total FROM {source}"),
        ("shared", f"SELECT *, CAST(CASE WHEN total > {most} THEN {share} ELSE n END AS BIGINT) AS m FROM running"),
    ]
