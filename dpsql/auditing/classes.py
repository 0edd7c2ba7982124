"""classes: the query classes that a policy's tables allow; each says which rows belong to which trial."""

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
"""The most rows that a join of all units may have."""
_QUERIES = 3
"""The number of queries in a transcript."""


Residents = Callable[[Selection], tuple[int, int]]
"""The residents in a unit's group, and in its substitute's group, for a way of selecting groups."""


def _middle(selection: Selection) -> tuple[int, int]:
    """One more unit decides whether the unit's group is shown; the other group has one resident fewer."""
    likely = selection.cutoff if isinstance(selection, Threshold) else selection.smallest_likely
    return max(1, likely - 1), max(0, likely - 2)


def _ends(selection: Selection) -> tuple[int, int]:
    """Groups that are shown, or hidden, with a probability of δ.

    A group without residents is shown with probability δ when the unit joins it. A group that lacks one unit to be
    shown with certainty is hidden with probability δ.
    """
    return 0, len(selection.probabilities()) - 2 if isinstance(selection, TruncatedGeometric) else 0


@dataclass(frozen=True)
class QueryClass:
    """Queries that run many times on both sides.

    Attributes:
        name: Its name in the report.
        sql: The queries, in order; a trial sees the answers to all of them.
        trials: Which rows belong to which trial.
        epsilon: The price of each query, chosen so that few runs give a tight bound.
        settings: Further settings of the session.
        accountants: The accountants of its budgets; if empty, that of the mechanism.
        share: Its number of draws, as a multiple of the audit's; above 1 where the best event is rare.
        delta: δ of each query; None for the audit's own.
        of_delta: Whether δ is tested instead of ε.
        residents: The numbers of residents that replace {0} and {1} in the queries.
        most_gaussian: The largest price under Gaussian noise. Its tails are thin, so large losses are rarely seen.
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
        """Whether one run is one trial, so that many runs are needed."""
        return not self.trials.keys


def query_classes(datasets: Datasets) -> Iterator[QueryClass]:
    """Yield the classes of a policy: of each protected table, of group keys, of joins, and the transcript."""
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
        # The loss is spread over several cells, so the most telling events are rare.
        asked = grouped("regression", f"REGR_SLOPE{pair}, REGR_COUNT{pair}, REGR_AVGY{pair}", 4)
        yield replace(asked, share=Fraction(4))


def _median(datasets: Datasets, table: Table, number: str) -> QueryClass:
    """A median over some residents and a unit.

    With add_remove, one resident is at 0. Without the unit, all other values are equally far from the median. The unit
    at 750 makes the values between the two more likely, and the many values above both less likely.
    With substitute, three residents are at each end and one is in the middle. One unit is at one end, and its
    substitute at the other, so the values on one side of the middle are more likely with the one, and those on the
    other side with the other. With seven residents a median is rarely NULL.
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
    """One trial per group by CROWD, which a unit and its substitute share."""
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
    # It counts the rows of one unit alone.
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
        # Residents of the unit's group have a CROWD; those of its substitute's group have none.
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
    # At a small price, Gaussian noise is so wide that its tail is near δ.
    yield private("delta of threshold", counts[-1][1], 3, Fraction(1, 20), _ends, Fraction(1, 4))


def _of_choices(datasets: Datasets, table: Table) -> Iterator[QueryClass]:
    name, source = table.name, source_of(table)
    # The resident's choice is the most likely. One more unit with this choice makes all others less likely.
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
    """Yield a transcript of several queries, for each accountant.

    The queries count one unit. Under substitute, a single cell that moves by 1 then has the whole claimed loss. With
    the two groups of a unit, each would have half of it, and the sum by Σε² would be smaller.
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
    """The group of each unit; under substitute, that of its substitute as well."""
    shift = (0, datasets.units) if datasets.substitutes else (0,)
    return tuple(tuple(unit + by for by in shift) for unit in range(datasets.units))


def source_of(table: Table) -> str:
    """A table's name in queries."""
    return ".".join(Postgres.quote_name(part) for part in ((table.schema,) if table.schema else ()) + (table.relation,))


def _is_bounded_number(column: PolicyColumn) -> bool:
    bounded = column.lower is not None and column.type.is_number
    needs_step = column.type in (SqlType.REAL, SqlType.DOUBLE, SqlType.NUMERIC)
    return bounded and column.lower != column.upper and (not needs_step or column.step is not None)
