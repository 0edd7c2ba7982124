"""releases: one form of what a release is made of, for all the ways of writing it.

The form is what is bounded, rendered, run and keyed: equal questions become equal SQL, and nothing is keyed that is
not run. Subqueries and WITH are written into what is around them; inner joins are one list of relations in one order;
conditions stand as far down as they can, each once; keys, aggregates and columns stand in the order of their labels;
what is not used is gone.

Rule 1: the rows are the same rows, whatever is in the tables; expressions are total, so conditions may move.
Rule 2: what no label tells apart is left as it is written: that costs a repetition, and nothing more.
"""

from dataclasses import dataclass, field, replace

from dpsql.compiler.canonical.joins import Assembled
from dpsql.compiler.canonical.rows import RelationReader, arguments
from dpsql.compiler.ir.labels import Labels
from dpsql.compiler.ir.nodes import (
    UNIT_OR_NULL,
    Aggregate,
    AggregateCall,
    Column,
    Expr,
    Field,
    Link,
    Protected,
    Release,
)
from dpsql.compiler.ir.walk import fields_in
from dpsql.compiler.scope.lowering import Fields


@dataclass
class Canonical:
    """Puts the releases of one query into their form.

    Attributes:
        fields: The source of further fields.
        labels: The labels of the fields there are.
    """

    fields: Fields
    labels: Labels = field(default_factory=Labels)
    _found: dict[Release, Release] = field(default_factory=dict)

    def release(self, release: Release) -> Release:
        """A release in its one form, whose fields are the same fields in the order of their labels."""
        if release not in self._found:
            self._found[release] = self._formed(release)
        return self._found[release]

    def _formed(self, release: Release) -> Release:
        protected, aggregate = release.protected, release.aggregate
        calls = tuple(_of_rows(call, protected) for call in aggregate.aggregates)
        links = {link.fields[0] for link in protected.links if link.way in ((), UNIT_OR_NULL)}
        reader = RelationReader(self.fields, self.labels, self.release, kept=frozenset({protected.unit, *links}))
        needed = frozenset({protected.unit}).union(*map(fields_in, (*aggregate.keys, *arguments(calls))))
        made = reader.assembled(protected.relation, needed)
        spelling = reader.spelling(made.written)
        keys = dict(zip(aggregate.key_fields, map(spelling.value, aggregate.keys), strict=True))
        called = dict(zip(aggregate.aggregate_fields, map(spelling.call, calls), strict=True))
        limits = dict(zip(aggregate.aggregate_fields, release.limits, strict=True))
        by_key = sorted(keys, key=lambda each: self.labels.of(keys[each]))
        by_call = sorted(called, key=lambda each: self.labels.of_call(called[each]))
        whole = Aggregate(
            made.relation,
            tuple(by_key),
            tuple(keys[each] for each in by_key),
            tuple(by_call),
            tuple(called[each] for each in by_call),
        )
        return Release(_status(protected, made), whole, tuple(limits[each] for each in by_call), release.picks)


def _of_rows(call: AggregateCall, protected: Protected) -> AggregateCall:
    """An aggregate call; to count the unit, which is never NULL, is to count rows."""
    counted = call.argument if call.function == "count" and not call.distinct else None
    return replace(call, argument=None) if counted is not None and protected.is_unit(counted) else call


def _status(protected: Protected, made: Assembled) -> Protected:
    """The status of the rows; of units that are equal in each row, the first one is the unit."""
    unit = _field(made.written[protected.unit])
    named = [
        (link.way, _field(made.written[link.fields[0]]))
        for link in protected.links
        if link.way in ((), UNIT_OR_NULL) and link.fields[0] in made.written
    ]
    links = frozenset(Link(way, (each,)) for way, each in named)
    first = made.first.get(unit, unit)
    return replace(protected, relation=made.relation, unit=first, links=links | {Link((), (first,))}, absent=None)


def _field(expression: Expr) -> Field:
    """The column that a unit is: its reader keeps it one."""
    if not isinstance(expression, Column):
        raise TypeError("a unit is a column")
    return expression.field
