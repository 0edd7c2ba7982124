"""classes: the query classes that a policy's tables allow, each with how its rows are cut into trials."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.auditing.neighbours import BLOCK, CHOICE, CROWD, PLACE, PROBE, SECRET, SPREAD, Datasets
from dpsql.auditing.verdict import Trials
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.plan.pricing import Selection
from dpsql.policy import PolicyColumn, Table
from dpsql.privacy.cost import Accountant
from dpsql.privacy.selection import Threshold, TruncatedGeometric
from dpsql.sqltypes import SqlType

_MOST_PAIRS = 1_000_000
"""Rows that a join of all units may have."""
_QUERIES = 3
"""Queries of a transcript."""


Residents = Callable[[Selection], tuple[int, int]]
"""From how groups are selected to the residents of a unit's group, and of the group of the one in its place."""


def _middle(selection: Selection) -> tuple[int, int]:
    """One unit more decides whether the group is shown; in the other group, one less already does."""
    likely = selection.cutoff if isinstance(selection, Threshold) else selection.smallest_likely
    return max(1, likely - 1), max(0, likely - 2)


def _ends(selection: Selection) -> tuple[int, int]:
    """A group of nobody else is shown with a probability of δ; one unit before it is certain, one is hidden with δ."""
    return 0, len(selection.probabilities()) - 2 if isinstance(selection, TruncatedGeometric) else 0


@dataclass(frozen=True)
class QueryClass:
    """Queries that are asked many times on both sides.

    Attributes:
        name: What it is called.
        sql: The queries, one after another; a trial sees the answers to all.
        trials: How their rows are cut.
        epsilon: The price that each is asked at: one at which few runs tell much.
        settings: Further settings of the session.
        accountants: The budgets that it is asked under; those of the mechanisms if there are none.
        share: The part of the draws that it takes; several where the event that tells most is rare.
        delta: Of each query; None for the audit's own.
        of_delta: Whether δ is put to the test, and not ε.
        residents: How many residents the two groups of a unit have, for the places {0} and {1} of the queries.
        most_gaussian: The largest price under Gaussian noise, whose tails are thin, so that little of a loss is seen.
    """

    name: str
    sql: tuple[str, ...]
    trials: Trials
    epsilon: Fraction = Fraction(1)
    settings: tuple[tuple[str, str], ...] = (("dpsql.max_groups", "1"),)
    accountants: tuple[Accountant, ...] = ()
    share: Fraction = Fraction(1)
    delta: Fraction | None = None
    of_delta: bool = False
    residents: Residents | None = None
    most_gaussian: Fraction = Fraction(2)

    @property
    def gaussian_epsilon(self) -> Fraction:
        """The price under Gaussian noise."""
        return min(self.epsilon, self.most_gaussian)

    @property
    def is_whole(self) -> bool:
        """Whether one run is one trial, so that there must be many."""
        return not self.trials.keys


def query_classes(datasets: Datasets) -> Iterator[QueryClass]:
    """Yield the classes of a policy: of each protected table, then of pairs of them."""
    for table in datasets.protected:
        yield from _of_table(datasets, table)
    first = max(datasets.protected, key=datasets.rows_of)
    yield from _of_keys(datasets, first)
    yield from _joins(datasets)
    yield from _transcripts(datasets.protected[0])


def _of_table(datasets: Datasets, table: Table) -> Iterator[QueryClass]:
    name, source = table.name, source_of(table)
    each = Trials(own_groups(datasets))

    def grouped(label: str, expression: str, epsilon: int = 1) -> QueryClass:
        sql = f"SELECT {PROBE}, {expression} FROM {source} GROUP BY {PROBE}"
        return QueryClass(f"{label} {name}", (sql,), each, Fraction(epsilon))

    yield grouped("COUNT", "COUNT(*)")
    columns = [column for column in table.columns if _is_bounded_number(column)]
    numbers = [Postgres.quote_name(column.name) for column in columns]
    if numbers:
        yield grouped("SUM", f"SUM({numbers[0]})")
        yield grouped("AVG", f"AVG({numbers[0]})", 2)
        yield _median(datasets, table, numbers[0])
    if len(numbers) > 1:
        pair = f"({numbers[1]}, {numbers[0]})"
        # Its loss is spread over so many cells that the events that tell most are rare.
        asked = grouped("regression", f"REGR_SLOPE{pair}, REGR_COUNT{pair}, REGR_AVGY{pair}", 4)
        yield replace(asked, share=Fraction(4))


def _median(datasets: Datasets, table: Table, number: str) -> QueryClass:
    """A median of some residents and a unit.

    Of one resident alone all values but its own are equally far from the median. A unit above brings those between the
    two nearer, and takes the many above both farther away. Where a unit replaces another, three residents are at each
    end with one unit or the other, and one between: the values on one side of that are nearer with the one unit, and
    those on the other side with the other. So many residents make it rare that there is no median.
    """
    if datasets.substitutes:
        residents, end = 7, 1100
        values = f"WHEN {PLACE} > 6 THEN 50 WHEN {PLACE} > 3 THEN {end} WHEN {PLACE} > 0 OR {CHOICE} = 'b' THEN 0"
    else:
        residents, end = 1, 5000
        values = f"WHEN {PLACE} > 0 THEN 0 WHEN {PLACE} = 0 THEN 750"
    ranks = f"CASE WHEN {number} IS NULL THEN {end} {values} ELSE {end} END"
    sql = (
        f"SELECT {CROWD}, PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY {ranks}) FROM {source_of(table)} "
        f"WHERE {PLACE} <= {residents} GROUP BY {CROWD}"
    )
    return QueryClass(f"quantile {table.name}", (sql,), _in_crowds(datasets), Fraction(3), share=Fraction(1, 4))


def _in_crowds(datasets: Datasets) -> Trials:
    """The groups that a unit and the one in its place share."""
    return Trials(tuple((unit,) for unit in range(datasets.units)))


def _of_keys(datasets: Datasets, table: Table) -> Iterator[QueryClass]:
    name, source, each = table.name, source_of(table), own_groups(datasets)
    blocks = tuple(tuple(number * SPREAD + place for number in numbers for place in range(SPREAD)) for numbers in each)
    for kept in (1, 3):
        yield QueryClass(
            f"groups {name}, {kept} kept",
            (f"SELECT {BLOCK}, COUNT(*) FROM {source} GROUP BY {BLOCK}",),
            Trials(blocks),
            Fraction(4),
            settings=(("dpsql.max_groups", str(kept)),),
            most_gaussian=Fraction(3),
        )
    yield from _of_private_keys(datasets, table)
    yield from _of_choices(datasets, table)
    # Of one unit alone.
    whole = f"SELECT COUNT(*) FROM {source} WHERE {PROBE} = 0"
    yield QueryClass(f"COUNT of all {name}", (whole,), Trials(), Fraction(3))


def _of_private_keys(datasets: Datasets, table: Table) -> Iterator[QueryClass]:
    secrets = tuple(tuple(f"s{number}" for number in numbers) for numbers in own_groups(datasets))
    counts = [("selection", ""), ("threshold", ", COUNT(*)")]
    if table.unit_key is not None:
        counts.append(("threshold of units", f", COUNT(DISTINCT {Postgres.quote_name(table.unit_key)})"))

    def private(
        label: str, counted: str, epsilon: int, delta: Fraction, residents: Residents, gaussian: Fraction = Fraction(2)
    ) -> QueryClass:
        # A resident of the group of a unit has a CROWD; one of the group of its substitute has none.
        among = f"{PLACE} <= {{0}} AND {CROWD} >= 0 OR {PLACE} <= {{1}} AND {CROWD} IS NULL"
        sql = f"SELECT {SECRET}{counted} FROM {source_of(table)} WHERE {among} GROUP BY {SECRET}"
        each = Trials(secrets, public=False)
        return QueryClass(
            f"{label} {table.name}",
            (sql,),
            each,
            Fraction(epsilon),
            delta=delta,
            residents=residents,
            share=Fraction(4 if residents is _ends else 1),
            of_delta=residents is _ends,
            most_gaussian=gaussian,
        )

    for label, counted in counts:
        yield private(label, counted, 2, Fraction(1, 100), _middle)
    yield private("delta of", "", 2, Fraction(1, 20), _ends)
    # Gaussian noise of a smaller price is wide enough for its tail to be near δ.
    yield private("delta of threshold", counts[-1][1], 3, Fraction(1, 20), _ends, Fraction(1, 4))


def _of_choices(datasets: Datasets, table: Table) -> Iterator[QueryClass]:
    name, source = table.name, source_of(table)
    # The resident's choice is the likeliest, and makes all others less likely with a unit more.
    epsilon, most_gaussian = (Fraction(4), Fraction(2)) if datasets.substitutes else (Fraction(2), Fraction(1))
    yield QueryClass(
        f"noisy max {name}",
        (f"SELECT {CROWD}, MODE() WITHIN GROUP (ORDER BY {CHOICE}) FROM {source} WHERE {PLACE} <= 1 GROUP BY {CROWD}",),
        _in_crowds(datasets),
        epsilon,
        share=Fraction(1, 4),
        most_gaussian=most_gaussian,
    )
    yield QueryClass(
        f"top-k {name}",
        (
            f"SELECT {CHOICE} FROM {source} WHERE {CROWD} = 0 AND {PLACE} <= 1 GROUP BY {CHOICE} "
            "ORDER BY COUNT(*) DESC LIMIT 1",
        ),
        Trials(),
        epsilon,
        share=Fraction(1, 4),
        most_gaussian=most_gaussian,
    )


def _transcripts(table: Table) -> Iterator[QueryClass]:
    """Yield a transcript of several queries, which each accountant adds up in its way.

    They count one unit: where neighbours substitute, one cell that moves by 1 loses as much as is claimed of it, and
    the two groups of a unit, of half the loss each, lose less by Σε².
    """
    sql = tuple(
        f"SELECT COUNT(*) FROM {source_of(table)} WHERE {PROBE} = 0 AND {PLACE} <> -{place + 1}"
        for place in range(_QUERIES)
    )
    yield QueryClass(f"transcript {table.name}", sql, Trials(), accountants=tuple(Accountant))


def _joins(datasets: Datasets) -> Iterator[QueryClass]:
    """Yield a join for each table with the one that leads to its unit, or with the first that has the same key."""
    for table in datasets.protected:
        others = [other for other in datasets.protected if (other.unit_key is not None) and other is not table]
        if table.unit_via:
            other = next(other for other in datasets.protected if other.name == table.unit_via[0].table)
            on = table.unit_via[0].on
        elif others and table is not datasets.protected[0]:
            other, on = others[0], ((str(table.unit_key), str(others[0].unit_key)),)
        else:
            continue
        condition = " AND ".join(
            f"one.{Postgres.quote_name(here)} = other.{Postgres.quote_name(there)}" for here, there in on
        )
        units = max(1, min(datasets.units, _MOST_PAIRS // (datasets.rows_of(table) * datasets.rows_of(other))))
        yield QueryClass(
            f"join {other.name} {table.name}",
            (
                f"SELECT one.{PROBE}, COUNT(*) FROM {source_of(table)} one "
                f"JOIN {source_of(other)} other ON {condition} "
                f"WHERE one.{PROBE} % {datasets.units} < {units} GROUP BY one.{PROBE}",
            ),
            Trials(own_groups(datasets)[:units]),
        )


def own_groups(datasets: Datasets) -> tuple[tuple[int, ...], ...]:
    """The groups of each unit, and of the one in its place where neighbours substitute."""
    shift = (0, datasets.units) if datasets.substitutes else (0,)
    return tuple(tuple(unit + by for by in shift) for unit in range(datasets.units))


def source_of(table: Table) -> str:
    """A table as queries name it."""
    return ".".join(Postgres.quote_name(part) for part in ((table.schema,) if table.schema else ()) + (table.relation,))


def _is_bounded_number(column: PolicyColumn) -> bool:
    bounded = column.lower is not None and column.type.is_number
    needs_step = column.type in (SqlType.REAL, SqlType.DOUBLE, SqlType.NUMERIC)
    return bounded and column.lower != column.upper and (not needs_step or column.step is not None)
