"""A frozen profile of any policy: few rows of a unit are beyond narrow bounds, in all tables and by every key."""

from fractions import Fraction

from dpsql.policy import Policy
from dpsql.policy.profile import Profile, RankGroups, RowRanks, TableProfile, coarse_bounds, table_facts


def frozen_profile(policy: Policy) -> Profile:
    """The profile."""
    tables = []
    for table in policy.tables:
        if not table.public and table.rows_per_unit != 1:
            bounds = tuple(sorted({*coarse_bounds(table.rows_per_unit or 1), table.rows_per_group or 1}))
            rows = (900, 3, *([1] * (len(bounds) - 1)))
            groups = [RankGroups(), *(RankGroups(column.name) for column in table.columns)]
            ranks = tuple(RowRanks(each, rows, Fraction(1), 2) for each in groups)
            tables.append(TableProfile(table.name, table_facts(policy, table), bounds, ranks))
    return Profile(tuple(tables), ())
