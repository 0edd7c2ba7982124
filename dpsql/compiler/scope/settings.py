"""What an analyst may set for a query: price, mechanism, and bounds that only narrow."""

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction


@dataclass(frozen=True)
class QuerySettings:
    """The settings that one query is compiled under.

    Attributes:
        epsilon: The query's price in the currency of the user's budget.
        delta: δ for private group keys, over the whole query.
        mechanism: "auto", "laplace" or "gaussian".
        intervals: True to add <column>_low and <column>_high after each noisy column.
        max_rows: Narrower than the policy's, or None.
        max_groups: Narrower than the policy's, or None.
        max_rows_per_group: Narrower than the policy's, or None.
        max_error_ratio: The largest allowed error of derived answers and prepared tables, relative to a full release.
        wide_totals: True to buy the totals that show how much bounding drops, if the role has a budget share for them.
        calibrate: True to raise values by the share that bounding drops.
        row_intervals: True to add limits, as `intervals` does, to columns whose error differs by row.
        schemas: The search path; "public" is the dataset's own schema.
        now: The value of now() and CURRENT_DATE; a constant of the query, with a time zone.
    """

    epsilon: Fraction
    delta: Fraction
    mechanism: str
    now: datetime
    intervals: bool = False
    max_rows: int | None = None
    max_groups: int | None = None
    max_rows_per_group: int | None = None
    max_error_ratio: Fraction = Fraction(1)
    wide_totals: bool = True
    calibrate: bool = True
    row_intervals: bool = False
    schemas: tuple[str, ...] = ("public",)

    @property
    def narrows(self) -> bool:
        """True where bounds are set that are not the policy's."""
        return (self.max_rows, self.max_groups, self.max_rows_per_group) != (None, None, None)
