"""profile: the numbers of rows of units, released with noise on the data owner's command; an input of the compiler.

Number the rows of each unit in each of its groups from 1. A bound of c rows in each group drops the rows with numbers
above c, and the number of rows numbered n is the number of units with at least n rows. So these counts show both the
quantiles of rows per unit and the number of rows that each bound drops.

Guarantee: a profile is post-processing of the events in it, which the cap was charged with. Nothing of it is exact.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Any

from dpsql.policy.model import Policy, Table
from dpsql.privacy.conversion import NORMAL_95
from dpsql.privacy.cost import Event

_STEPS = (1, 2, 5)


def coarse_bounds(most: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, 50 … below a bound, and the bound."""
    found: list[int] = []
    power = 1
    while power < most:
        found += [step * power for step in _STEPS if step * power < most]
        power *= 10
    return (*found, most)


@dataclass(frozen=True, slots=True)
class RankGroups:
    """The groups within which the rows of a unit are numbered.

    Attributes:
        column: A column with a public domain; None if all rows of a unit are numbered together.
        part: "year" or "month" of a date or timestamp; None for the value itself.
    """

    column: str | None = None
    part: str | None = None

    def __str__(self) -> str:
        if self.column is None:
            return "in all"
        return f"in one {self.part} of {self.column}" if self.part is not None else f"in one {self.column}"


@dataclass(frozen=True, slots=True)
class RowRanks:
    """How many rows of a table have which rank among those of their unit in their group.

    Attributes:
        grouping: The groups.
        rows: One noisy number for each of the table's bounds, of the rows above the bound before it and not above it;
            and one of those above all bounds.
        variance: Of the noise of each.
        groups: How many public groups there are.
    """

    grouping: RankGroups
    rows: tuple[int, ...]
    variance: Fraction
    groups: int

    def dropped(self, place: int) -> tuple[Fraction, Fraction]:
        """Return how many rows the bound at a place drops, no fewer than a wider one, and the variance of that."""
        beyond = self.rows[place + 1 :]
        most = max(sum(beyond[wider:]) for wider in range(len(beyond) + 1))
        return Fraction(most), len(beyond) * self.variance

    def share_dropped(self, place: int) -> float:
        """Return the share of the rows that the bound at a place drops."""
        return min(1.0, float(self.dropped(place)[0] / self._total))

    def margin(self, place: int) -> float:
        """Return half the width of the 95 % interval of that share."""
        return NORMAL_95 * sqrt(self.dropped(place)[1]) / self._total

    @property
    def _total(self) -> int:
        return max(1, sum(self.rows))


@dataclass(frozen=True, slots=True)
class TableProfile:
    """The profile of one table.

    Attributes:
        table: Its name.
        facts: A digest of everything that the numbers depend on, except the rows.
        bounds: The bounds between which ranks are distinguished, in ascending order.
        ranks: The ranks of all rows first, then for each public key.
    """

    table: str
    facts: str
    bounds: tuple[int, ...]
    ranks: tuple[RowRanks, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """The released profile of a dataset.

    Attributes:
        tables: The tables whose units may have several rows.
        events: The events charged to the cap.
    """

    tables: tuple[TableProfile, ...]
    events: tuple[Event, ...]

    @property
    def id(self) -> str:
        """Names it: profiles of one name are one profile."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def of(self, policy: Policy, table: Table) -> TableProfile | None:
        """Return the profile of a table; None if the policy has another table, unit or version now."""
        facts = table_facts(policy, table)
        return next((each for each in self.tables if each.facts == facts), None)

    def to_json(self) -> str:
        """Return the form in which the ledger keeps it."""
        tables = [[each.table, each.facts, each.bounds, [_said(ranks) for ranks in each.ranks]] for each in self.tables]
        return json.dumps({"tables": tables, "events": [event.to_json() for event in self.events]}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Read what to_json wrote."""
        said: Mapping[str, Any] = json.loads(text)
        tables = (
            TableProfile(name, facts, tuple(bounds), tuple(_ranks(*each) for each in ranks))
            for name, facts, bounds, ranks in said["tables"]
        )
        return cls(tuple(tables), tuple(map(Event.from_json, said["events"])))


def _said(ranks: RowRanks) -> tuple[object, ...]:
    return ranks.grouping.column, ranks.grouping.part, ranks.rows, str(ranks.variance), ranks.groups


def _ranks(column: str | None, part: str | None, rows: list[int], variance: str, groups: int) -> RowRanks:
    return RowRanks(RankGroups(column, part), tuple(rows), Fraction(variance), groups)


def table_facts(policy: Policy, table: Table) -> str:
    """Return a digest of all that a table's profile depends on, except its rows: version, bounds, way to the unit."""
    dataset = policy.dataset
    told = [
        [dataset.name, dataset.schema, dataset.data_version, dataset.timezone],
        [table.name, table.rows_per_unit, table.rows_per_group],
        list(_way(policy, table)),
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _way(policy: Policy, table: Table | None) -> Iterator[list[object]]:
    if table is None or not table.unit_via:
        yield [table.name, table.unit_key] if table is not None else []
        return
    for via in table.unit_via:
        yield [table.name, via.on, *([] if via.where is None else [via.where.column, sorted(via.where.values)])]
        yield from _way(policy, policy.table(via.table))
