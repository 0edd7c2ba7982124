"""projection: the values that expressions have together, computed from the rows of their sources, and how many.

Sources are crossed, public tables that an equation joins to them included; the query's conditions on them apply; what
the expressions make of each row is listed once.

Rule: a number of values follows from what the rows that are listed are made of and filtered by, never from what tables
hold; bounds of contributions rely on it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from math import prod

from dpsql.compiler.ir.conditions import any_of, conjuncts, is_null
from dpsql.compiler.ir.nodes import (
    Call,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    InList,
    Join,
    Literal,
    Project,
    Relation,
    Values,
)
from dpsql.compiler.ir.walk import fields_in, operands
from dpsql.compiler.values.dependencies import bare, compared, constants, equation
from dpsql.compiler.values.lineage import Domain, Known, Moments
from dpsql.compiler.values.sources import MAX_SOURCE, TYPICAL_TABLE, Source, series_length, truncated
from dpsql.sqltypes import SqlType

UNITS = ("hour", "day", "month", "quarter", "year")
"""Finest first: the instants of each unit tell those of the units after it."""
_NEEDED = {
    **{f"extract_{unit}": unit for unit in ("year", "quarter", "month", "hour")},
    **{f"extract_{part}": "day" for part in ("isoyear", "week", "day", "doy", "dow", "isodow")},
    **{f"date_trunc_{unit}": unit for unit in UNITS},
    "date_trunc_week": "day",
}
"""By function of a moment, the coarsest unit whose instants tell its value."""
_DAY, _INSTANT = timedelta(days=1), timedelta(microseconds=1)


def unit_of(expression: Expr) -> tuple[Field, str] | None:
    """A date or timestamp, and the coarsest unit whose instants tell an expression that is a function of it."""
    if isinstance(expression, Column) and expression.type is SqlType.DATE:
        return expression.field, "day"
    inner: Expr | None = None
    needed = "day"
    if isinstance(expression, Cast) and expression.type is SqlType.DATE:
        inner = expression.argument
    elif isinstance(expression, Call) and expression.function in _NEEDED:
        inner, needed = expression.arguments[0], _NEEDED[expression.function]
    return (inner.field, needed) if isinstance(inner, Column) else None


def finest_units(expressions: Iterable[Expr]) -> dict[Field, str]:
    """The unit whose instants tell all that expressions make of a field, for fields of which there is one."""
    found: dict[Field, str | None] = {}
    for expression in expressions:
        for each, unit in _uses(expression):
            before = found.get(each, unit)
            found[each] = min(before, unit, key=UNITS.index) if before is not None and unit is not None else None
    return {each: unit for each, unit in found.items() if unit is not None}


def _uses(expression: Expr) -> Iterator[tuple[Field, str | None]]:
    use = unit_of(expression)
    if use is not None:
        yield use
    elif isinstance(expression, Column):
        yield expression.field, None
    else:
        for part in operands(expression):
            yield from _uses(part)


def narrow_moments(moments: dict[Field, Moments], condition: Expr) -> None:
    """Narrow the limits of a date or timestamp that a condition compares with constants."""
    function, moment, values = compared(condition) or ("", None, ())
    ends = [instant(value) if isinstance(value, date) else None for value in values]
    if moment is None or moment.type not in (SqlType.DATE, SqlType.TIMESTAMP):
        return
    low, high = moments.get(moment, (None, None))
    step = _DAY if moment.type is SqlType.DATE else _INSTANT
    first = _shifted(ends[0], step) if function == "gt" else ends[0] if function not in ("lt", "le") else None
    last = _shifted(ends[-1], -_INSTANT) if function == "lt" else ends[-1] if function not in ("gt", "ge") else None
    lows = [instant(end) for end in (low, first) if end is not None]
    highs = [instant(end) for end in (high, last) if end is not None]
    moments[moment] = (max(lows, default=None), min(highs, default=None))


def instant(moment: date) -> datetime:
    """A date's first instant, or a timestamp itself."""
    return moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)


def _shifted(moment: datetime | None, by: timedelta) -> datetime | None:
    """The moment so much later, or None beyond the calendar."""
    try:
        return moment + by if moment is not None else None
    except OverflowError:
        return None


def product(sizes: Iterable[int | None]) -> int | None:
    """The product of numbers, or None where one is not known."""
    found = list(sizes)
    known = [size for size in found if size is not None]
    return prod(known) if len(known) == len(found) else None


def least(*sizes: int | None) -> int | None:
    """The least of the numbers that are known, or None."""
    return min((size for size in sizes if size is not None), default=None)


def combinations(sources: Iterable[Source], keys: Sequence[Expr], applied: Sequence[Expr]) -> int | None:
    """How many combinations of values keys can have.

    Args:
        sources: Where the keys' fields are.
        keys: Expressions over their fields.
        applied: Conditions that the rows of the sources are filtered by.
    """
    sizes = []
    for source in sources:
        used = [each for each in source.fields if any(each in fields_in(key) for key in keys)]
        sizes.append(least(source.most, product(_values(each, source, keys, applied) for each in used)))
    of_types = product(3 if key.type is SqlType.BOOLEAN else None for key in keys)
    return least(product(sizes), of_types)


def _values(each: Field, source: Source, keys: Sequence[Expr], applied: Sequence[Expr]) -> int | None:
    """How many values one field has, or the keys can tell apart."""
    own = [condition for condition in applied if fields_in(condition) == {each}]
    lists = [found[1] for found in map(constants, own) if found is not None and bare(found[0])[0] == Column(each)]
    nulls = not any(_rejects_null(condition, each) for condition in own)
    between = _numbers(each, source, own) if each.type.is_integer else _days(each, source, own, keys)
    return least(source.most, *map(len, lists), between + nulls if between is not None else None)


def _numbers(each: Field, source: Source, own: Sequence[Expr]) -> int | None:
    """The whole numbers between limits."""
    low, high = source.limits or (None, None)
    lows = [low] if isinstance(low, int) else []
    highs = [high] if isinstance(high, int) else []
    for condition in own:
        function, _, values = compared(condition) or ("", each, ())
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) == len(values) and numbers:
            lows += [] if function in ("lt", "le") else [numbers[0] + (function == "gt")]
            highs += [] if function in ("gt", "ge") else [numbers[-1] - (function == "lt")]
    return max(0, min(highs) - max(lows) + 1) if lows and highs else None


def _days(each: Field, source: Source, own: Sequence[Expr], keys: Sequence[Expr]) -> int | None:
    """The instants of the finest unit that the keys tell apart."""
    unit = finest_units(keys).get(each)
    low, high = source.limits or (None, None)
    moments: dict[Field, Moments] = {}
    if isinstance(low, date) and isinstance(high, date):
        moments[each] = low, high
    for condition in own:
        narrow_moments(moments, condition)
    first, last = moments.get(each, (None, None))
    if first is None or last is None or unit is None:
        return None
    return series_length(truncated(first, unit), truncated(last, unit), unit.upper())


def _rejects_null(condition: Expr, each: Field) -> bool:
    """True where a condition on a field is surely not true of NULL."""
    if isinstance(condition, InList):
        return bare(condition.argument)[0] == Column(each)
    return compared(condition) is not None


@dataclass(frozen=True)
class Images:
    """Lists the values of expressions over known sources.

    Attributes:
        known: The sources.
        conditions: What holds between their rows.
        lookups: By the place of an optional source: when its rows stand beside those of others.
        ends: Gives the least and the greatest value of a whole number.
    """

    known: Known
    conditions: tuple[Expr, ...]
    lookups: dict[int, Expr]
    ends: Callable[[Expr], tuple[int, int] | None]

    def groups(self, keys: Sequence[Expr]) -> list[list[int]]:
        """The positions of keys that must be listed together, for they share sources or conditions tie these."""
        places = self._with_joined(self.known.places(keys), keys)
        ties = [self.known.places((key,)) for key in keys]
        ties += [self.known.places((condition,)) for condition in self._applied(places, keys)]
        ties += [self.known.places((on,)) for on in self._looked_up(places, keys).values()]
        clusters = _clusters(places, ties)
        found: dict[frozenset[int], list[int]] = {}
        for position, key in enumerate(keys):
            own = self.known.places((key,))
            found.setdefault(next((c for c in clusters if c & own), own), []).append(position)
        return list(found.values())

    def together(self, keys: Sequence[Expr]) -> Domain | None:
        """The values that keys have together, or None where there are too many rows to try."""
        own = self.known.places(keys)
        if len(self._sources(own, keys)) < len(own):
            return None
        for places in (self._with_joined(own, keys), own):
            if self._counts(places, keys)[0] <= MAX_SOURCE:
                return self._listed(keys, own, places)
        return None

    def alone(self, key: Expr) -> Domain:
        """The values of a key whose sources have few enough rows."""
        own = self.known.places((key,))
        return self.together((key,)) or self._listed((key,), own, own)

    # Which sources and conditions

    def _fields(self, places: frozenset[int], keys: Sequence[Expr]) -> frozenset[Field]:
        """The fields that the rows of sources have; of those beneath an outer join or a union, only the keys' own."""
        used = frozenset[Field]().union(*map(fields_in, keys))
        sources = [self.known.sources[place] for place in places]
        return frozenset(
            each for source in sources for each in source.fields if isinstance(source, Source) or each in used
        )

    def _applied(self, places: frozenset[int], keys: Sequence[Expr]) -> list[Expr]:
        fields = self._fields(places, keys)
        return [condition for condition in self.conditions if fields_in(condition) <= fields]

    def _looked_up(self, places: frozenset[int], keys: Sequence[Expr]) -> dict[int, Expr]:
        fields = self._fields(places, keys)
        return {place: on for place, on in self.lookups.items() if place in places and fields_in(on) <= fields}

    def _with_joined(self, places: frozenset[int], keys: Sequence[Expr]) -> frozenset[int]:
        """Sources, and those that the query joins to them by equations: they tell which rows there are."""
        equations = [
            (self.known.places((condition,)), fields_in(condition))
            for condition in self.conditions
            if equation(condition) is not None
        ]
        grown = True
        while grown:
            before = places
            for tied, fields in equations:
                new = tied - places
                joined = all(self._is_joined(place) for place in new)
                if new and tied & places and joined and fields <= self._fields(places | tied, keys):
                    places |= tied
            grown = places != before
        return places

    def _is_joined(self, place: int) -> bool:
        source = self.known.sources[place]
        return isinstance(source, Source) and source.joined

    # How many

    def _sources(self, places: Iterable[int], keys: Sequence[Expr]) -> dict[int, Source]:
        used = frozenset[Field]().union(*map(fields_in, keys))
        found = {place: self.known.listed(place, used) for place in sorted(places)}
        return {place: source for place, source in found.items() if source is not None}

    def _counts(self, places: frozenset[int], keys: Sequence[Expr]) -> tuple[int, int]:
        """How many rows are tried, those of public tables left out, and how many there may be with them."""
        applied = self._applied(places, keys)
        found = {place: self._keyed(place, on) for place, on in self._looked_up(places, keys).items()}
        counted = places - self._determined(places, applied) - {place for place, keyed in found.items() if keyed}
        sources = self._sources(counted, keys)
        tried = prod(source.most for source in sources.values() if source.most is not None)
        tables = {place: source.typical for place, source in sources.items() if source.most is None}
        ties = [self.known.places((condition,)) for condition in applied if _equated(condition)]
        clusters = _clusters(frozenset(tables), [tie & tables.keys() for tie in ties])
        return tried, max(
            tried * prod(max(tables[place] for place in cluster) for cluster in clusters),
            TYPICAL_TABLE if any(found.values()) else 0,
        )

    def _keyed(self, place: int, condition: Expr) -> bool:
        """True where rows of an optional source are looked up by the value of one of their fields."""
        own = frozenset(self.known.sources[place].fields)
        return any(column in own for term in conjuncts(condition) for column, _ in _equated(term))

    def _determined(self, places: frozenset[int], applied: Sequence[Expr]) -> frozenset[int]:
        """Sources of one field that an equation computes from the rows of others, or from nothing but constants."""
        determined: set[int] = set()
        used: set[int] = set()
        for condition in applied:
            for column, other in _equated(condition):
                (place,) = self.known.places((Column(column),))
                others = self.known.places((other,))
                is_single = len(self.known.sources[place].fields) == 1
                if is_single and place not in used | others and not others & determined:
                    determined.add(place)
                    used |= others
                    break
        return frozenset(determined) & places

    # Rows

    def _listed(self, keys: Sequence[Expr], own: frozenset[int], places: frozenset[int]) -> Domain:
        applied = self._applied(places, keys)
        rows = self._rows(places, keys)
        for condition in applied:
            rows = Filter(rows, condition)
        fields = tuple(self.known.lister.fields.new(key.type) for key in keys)
        relation: Relation = Distinct(Project(rows, fields, tuple(keys)))
        sizes = []
        for key, each in zip(keys, fields, strict=True):
            size = combinations(self._sources(self.known.places((key,)), keys).values(), (key,), applied)
            ends = self.ends(key) if key.type.is_integer else None
            if ends is not None and (size is None or size > ends[1] - ends[0] + 2):
                relation, size = Filter(relation, _within(each, ends)), max(0, ends[1] - ends[0] + 1) + 1
            sizes.append(size)
        size = least(product(sizes), combinations(self._sources(own, keys).values(), keys, applied))
        typical = [self._counts(self.known.places((key,)), (key,))[1] for key in keys]
        of_keys = prod(least(each_size, each) or 0 for each_size, each in zip(sizes, typical, strict=True))
        estimate = min(self._counts(own, keys)[1], of_keys)
        return Domain(relation, size, estimate if size is None else min(estimate, size))

    def _rows(self, places: frozenset[int], keys: Sequence[Expr]) -> Relation:
        """The rows of sources beside one another; those of optional ones are looked up last."""
        looked_up = self._looked_up(places, keys)
        sources = self._sources(places, keys)
        rows: Relation = Values((), ((),))
        plain = [source.relation for source in sources.values() if not source.optional]
        for position, relation in enumerate(plain):
            rows = Join("cross", rows, relation, None) if position else relation
        for place, source in sources.items():
            if place in looked_up:
                rows = Join("left", rows, source.relation, looked_up[place])
            elif source.optional:
                rows = Join("cross", rows, self.known.lister.with_absent(source.relation), None)
        return rows


def _within(column: Field, ends: tuple[int, int]) -> Expr:
    """The condition that holds a whole number to its limits."""
    low, high = (Literal(end, SqlType.BIGINT) for end in ends)
    inside = Call("between", (Column(column), low, high), SqlType.BOOLEAN)
    return any_of(inside, is_null(Column(column)))


def _equated(condition: Expr) -> list[tuple[Field, Expr]]:
    """Columns, and what an equation says they are equal to."""
    sides = equation(condition)
    pairs = [(bare(one)[0], other) for one, other in (sides, sides[::-1])] if sides is not None else []
    return [(one.field, other) for one, other in pairs if isinstance(one, Column)]


def _clusters(places: frozenset[int], ties: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Places in sets, so that those that are tied are in one."""
    found = [frozenset({place}) for place in sorted(places)]
    for tie in ties:
        tied = [cluster for cluster in found if cluster & tie]
        rest = [cluster for cluster in found if not cluster & tie]
        found = [*rest, frozenset[int]().union(*tied)] if tied else rest
    return found
