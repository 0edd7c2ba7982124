"""projection: the joint values of expressions, computed from the rows of their sources, and their number.

Sources are crossed, including public tables that equations join to them. The query's conditions on them apply, and each
combination of values is listed once. A source is identified by its place in `KnownSources.sources`.

Rule: a number of values follows from listed values and from conditions, never from the content of tables; contribution
bounding relies on it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from math import prod

from dpsql.compiler.ir.conditions import any_of, bare, compared, conjuncts, constants, equation, is_null
from dpsql.compiler.ir.nodes import (
    Call,
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
    SetOperation,
    Values,
)
from dpsql.compiler.ir.walk import fields_in, is_plain
from dpsql.compiler.values.calendar_units import Moments, finest_units, narrow_moments, series_length, truncated
from dpsql.compiler.values.sources import MAX_SOURCE, TYPICAL_TABLE, Lister, NestedSource, Source
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Domain:
    """The joint values of some keys.

    Attributes:
        relation: A public relation with one field for each key; no row occurs twice.
        size: The maximal number of rows; None if a public table or a released relation decides.
        estimate: The assumed number of rows.
    """

    relation: Relation
    size: int | None
    estimate: int


@dataclass
class KnownSources:
    """Sources, each known by its place in the list.

    Attributes:
        lister: Makes sources.
        domain: Finds the domain of keys over a relation beneath.
        sources: The sources.
    """

    lister: Lister
    domain: Callable[[tuple[Expr, ...], Relation], Domain | None]
    sources: list[Source | NestedSource] = field(default_factory=list)
    _places: dict[Field, int] = field(default_factory=dict)
    _listed: dict[tuple[int, tuple[Field, ...]], Source | None] = field(default_factory=dict)

    def add(self, source: Source | NestedSource) -> None:
        """Take note of a source."""
        self._places |= dict.fromkeys(source.fields, len(self.sources))
        self.sources.append(source)

    def places(self, expressions: Iterable[Expr]) -> frozenset[int]:
        """The places of the sources that expressions take values from."""
        return frozenset(self._places[each] for expression in expressions for each in fields_in(expression))

    def has(self, expression: Expr) -> bool:
        """True where an expression is a function of fields whose values are listed."""
        return is_plain(expression) and all(map(self._has_field, sorted(fields_in(expression), key=_number)))

    def _has_field(self, each: Field) -> bool:
        return each in self._places and self.listed(self._places[each], frozenset({each})) is not None

    def has_few(self, expression: Expr) -> bool:
        """True where these values are besides few enough to be tried one by one."""
        if not self.has(expression):
            return False
        used = fields_in(expression)
        found = [self.listed(place, used) for place in sorted(self.places((expression,)))]
        known = [source for source in found if source is not None]
        return len(known) == len(found) and prod(source.most or 1 for source in known) <= MAX_SOURCE

    def listed(self, place: int, used: frozenset[Field]) -> Source | None:
        """A source as rows of all its fields, or of those that are used where that makes them fewer."""
        source = self.sources[place]
        if isinstance(source, Source):
            return source
        fields = tuple(each for each in source.fields if each in used)
        if (place, fields) not in self._listed:
            self._listed[place, fields] = self._of_arms(source, fields)
        return self._listed[place, fields]

    def _of_arms(self, source: NestedSource, fields: tuple[Field, ...]) -> Source | None:
        found = []
        for relation, expressions in source.arms:
            written = dict(zip(source.fields, expressions, strict=True))
            found.append(self.domain(tuple(written[each] for each in fields), relation))
        domains = [domain for domain in found if domain is not None]
        if len(domains) < len(found):
            return None
        rows = domains[0].relation
        for domain in domains[1:]:
            new = tuple(self.lister.fields.new(each.type) for each in fields)
            rows = SetOperation("union", True, rows, domain.relation, new)
        rows = self.lister.with_absent(rows) if source.optional else rows
        sizes = [domain.size for domain in domains if domain.size is not None]
        size = sum(sizes) + source.optional if len(sizes) == len(domains) else None
        listed = Project(rows, fields, tuple(map(Column, rows.fields)))
        return Source(listed, size, typical=sum(domain.estimate for domain in domains))


def _number(each: Field) -> int:
    return each.number


def product(sizes: Iterable[int | None]) -> int | None:
    """The product of numbers, or None if one is unknown."""
    found = list(sizes)
    known = [size for size in found if size is not None]
    return prod(known) if len(known) == len(found) else None


def least(*sizes: int | None) -> int | None:
    """The least of the known numbers, or None."""
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
    """The number of values of one field, or the number that the keys distinguish; None if it is unknown."""
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
    """The number of first instants of the finest unit that the keys distinguish; None if it is unknown."""
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
class Projections:
    """Lists the values of expressions over known sources.

    Attributes:
        known: The sources.
        conditions: What holds between their rows.
        lookups: By the place of an optional source: the condition by which its rows are joined to those of others.
        ends: Gives the least and the greatest value of a whole number.
    """

    known: KnownSources
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
        """The joint values of keys, or None if there are too many rows to enumerate."""
        own = self.known.places(keys)
        if len(self._sources(own, keys)) < len(own):
            return None
        for places in (self._with_joined(own, keys), own):
            if self._row_counts(places, keys)[0] <= MAX_SOURCE:
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
        """The sources, and those that equations of the query join to them and that restrict their rows."""
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

    def _row_counts(self, places: frozenset[int], keys: Sequence[Expr]) -> tuple[int, int]:
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
        """True if an optional source is joined by the value of one of its fields."""
        own = frozenset(self.known.sources[place].fields)
        return any(column in own for term in conjuncts(condition) for column, _ in _equated(term))

    def _determined(self, places: frozenset[int], applied: Sequence[Expr]) -> frozenset[int]:
        """Sources of one field that an equation computes from the rows of other sources, or from constants."""
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
        typical = [self._row_counts(self.known.places((key,)), (key,))[1] for key in keys]
        of_keys = prod(least(each_size, each) or 0 for each_size, each in zip(sizes, typical, strict=True))
        estimate = min(self._row_counts(own, keys)[1], of_keys)
        return Domain(relation, size, estimate if size is None else min(estimate, size))

    def _rows(self, places: frozenset[int], keys: Sequence[Expr]) -> Relation:
        """The joined rows of sources; optional ones are joined last."""
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
    """The columns of an equation, each with the expression that it equals."""
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
