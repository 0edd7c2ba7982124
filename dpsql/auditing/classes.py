"""classes: the query classes that a policy's tables allow, each with how its rows are cut into trials."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from dpsql.auditing.judge import Trials
from dpsql.auditing.worlds import BLOCK, CHOICE, PROBE, SECRET, SPREAD, Worlds
from dpsql.compiler.engines.dialect import quote_name
from dpsql.policy import Column, Table
from dpsql.sqltypes import SqlType

_MOST_PAIRS = 1_000_000
"""Rows that a join of all units may have."""


@dataclass(frozen=True)
class QueryClass:
    """A query that is asked many times on both sides.

    Attributes:
        name: What it is called.
        sql: The query.
        trials: How its rows are cut.
        epsilon: The price it is asked at.
        settings: Further settings of the session.
    """

    name: str
    sql: str
    trials: Trials
    epsilon: Fraction = Fraction(1)
    settings: tuple[tuple[str, str], ...] = (("dpsql.max_groups", "1"),)

    @property
    def is_whole(self) -> bool:
        """Whether one run is one trial, so that there must be many."""
        return not self.trials.keys


def query_classes(worlds: Worlds) -> Iterator[QueryClass]:
    """Yield the classes of a policy: of each protected table, then of pairs of them."""
    for table in worlds.protected:
        yield from _of_table(worlds, table)
    first = max(worlds.protected, key=worlds.rows_of)
    yield from _of_keys(worlds, first)
    yield from _joins(worlds)


def _of_table(worlds: Worlds, table: Table) -> Iterator[QueryClass]:
    name, source = table.name, source_of(table)
    each = Trials(own_groups(worlds))

    def grouped(label: str, expression: str) -> QueryClass:
        return QueryClass(f"{label} {name}", f"SELECT {PROBE}, {expression} FROM {source} GROUP BY {PROBE}", each)

    yield grouped("COUNT", "COUNT(*)")
    columns = [column for column in table.columns if _is_bounded_number(column)]
    numbers = [quote_name(column.name) for column in columns]
    if numbers:
        yield grouped("SUM", f"SUM({numbers[0]})")
        yield grouped("AVG", f"AVG({numbers[0]})")
        # Of two values, so that few trials tell much.
        halves = f"CASE WHEN {numbers[0]} > {_middle(columns[0])} THEN 1 ELSE 0 END"
        yield grouped("quantile", f"PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY {halves})")
    if len(numbers) > 1:
        pair = f"({numbers[1]}, {numbers[0]})"
        yield grouped("regression", f"REGR_SLOPE{pair}, REGR_COUNT{pair}, REGR_AVGY{pair}")


def _of_keys(worlds: Worlds, table: Table) -> Iterator[QueryClass]:
    name, source, each = table.name, source_of(table), own_groups(worlds)
    blocks = tuple(tuple(number * SPREAD + place for number in numbers for place in range(SPREAD)) for numbers in each)
    secrets = tuple(tuple(f"s{number}" for number in numbers) for numbers in each)
    for kept in (1, 3):
        yield QueryClass(
            f"groups {name}, {kept} kept",
            f"SELECT {BLOCK}, COUNT(*) FROM {source} GROUP BY {BLOCK}",
            Trials(blocks),
            settings=(("dpsql.max_groups", str(kept)),),
        )
    yield QueryClass(
        f"selection {name}",
        f"SELECT {SECRET} FROM {source} GROUP BY {SECRET}",
        Trials(secrets, public=False),
        Fraction(1, 10),
    )
    yield QueryClass(
        f"threshold {name}",
        f"SELECT {SECRET}, COUNT(*) FROM {source} GROUP BY {SECRET}",
        Trials(secrets, public=False),
    )
    yield QueryClass(
        f"noisy max {name}",
        f"SELECT {PROBE}, MODE() WITHIN GROUP (ORDER BY {CHOICE}) FROM {source} GROUP BY {PROBE}",
        Trials(each),
    )
    # Of one unit alone.
    yield QueryClass(
        f"top-k {name}",
        f"SELECT {CHOICE} FROM {source} WHERE {PROBE} = 0 GROUP BY {CHOICE} ORDER BY COUNT(*) DESC LIMIT 1",
        Trials(),
    )
    yield QueryClass(f"COUNT of all {name}", f"SELECT COUNT(*) FROM {source} WHERE {PROBE} = 0", Trials())


def _joins(worlds: Worlds) -> Iterator[QueryClass]:
    """Yield a join for each table with the one that leads to its unit, or with the first that has the same key."""
    for table in worlds.protected:
        others = [other for other in worlds.protected if (other.unit_key is not None) and other is not table]
        if table.unit_via is not None:
            other = next(other for other in worlds.protected if other.name == table.unit_via.table)
            on = table.unit_via.on
        elif others and table is not worlds.protected[0]:
            other, on = others[0], ((str(table.unit_key), str(others[0].unit_key)),)
        else:
            continue
        condition = " AND ".join(f"one.{quote_name(here)} = other.{quote_name(there)}" for here, there in on)
        units = max(1, min(worlds.units, _MOST_PAIRS // (worlds.rows_of(table) * worlds.rows_of(other))))
        yield QueryClass(
            f"join {other.name} {table.name}",
            f"SELECT one.{PROBE}, COUNT(*) FROM {source_of(table)} one JOIN {source_of(other)} other ON {condition} "
            f"WHERE one.{PROBE} % {worlds.units} < {units} GROUP BY one.{PROBE}",
            Trials(own_groups(worlds)[:units]),
        )


def own_groups(worlds: Worlds) -> tuple[tuple[int, ...], ...]:
    """The groups of each unit, and of the one in its place where neighbours substitute."""
    shift = (0, worlds.units) if worlds.substitutes else (0,)
    return tuple(tuple(unit + by for by in shift) for unit in range(worlds.units))


def source_of(table: Table) -> str:
    """A table as queries name it."""
    return ".".join(quote_name(part) for part in ((table.schema,) if table.schema else ()) + (table.relation,))


def _is_bounded_number(column: Column) -> bool:
    bounded = column.lower is not None and column.type.is_number
    needs_step = column.type in (SqlType.REAL, SqlType.DOUBLE, SqlType.NUMERIC)
    return bounded and column.lower != column.upper and (not needs_step or column.step is not None)


def _middle(column: Column) -> str:
    """SQL for the middle of a column's bounds."""
    if not isinstance(column.lower, Fraction) or not isinstance(column.upper, Fraction):
        raise TypeError("a bounded number has limits that are numbers")
    return f"{float((column.lower + column.upper) / 2):f}"
