"""lineage: the sources of group keys: keys and conditions written over the sources beneath the protected rows.

`trace` walks down a relation and returns an `Origin`. Expressions that its facts equate then replace one another.

Rule 1: every row of the relation has, in each source, a row with exactly its values (or NULLs, if it is optional).
Rule 2: `conditions` are true of every row. Those of outer joins hold for some rows only and are left out; so are those
of a matched join, whose public rows are groups even without a match, but `facts` has them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dpsql.compiler.ir.conditions import bare, both_ways, conjuncts, converted, equation
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Expr,
    Field,
    Filter,
    InRelation,
    Join,
    Project,
    Relation,
    Scalar,
    SetOperation,
    UnitScan,
    UnitWindows,
    Window,
)
from dpsql.compiler.ir.walk import (
    fields_in,
    free_fields,
    inputs,
    is_plain,
    is_public,
    operands,
    rewrite_expression,
    substitute,
)
from dpsql.compiler.values.bounds import UNBOUNDED, Bounded, Bounds, Interval, bounds_of, declared, moment_bounds
from dpsql.compiler.values.calendar_units import Moments
from dpsql.compiler.values.sources import Lister, NestedSource, Source
from dpsql.sqltypes import SqlType

MAX_NODES = 20_000
"""Parts of all expressions written out; one that is used twice at every step outgrows the query."""


@dataclass(frozen=True)
class Origin:
    """Keys over the fields of sources, and over fields without listed values.

    Attributes:
        keys: The keys.
        sources: The sources that fields take their values from.
        conditions: Conditions that hold for every row, and for the source rows that make a group.
        beneath: Such conditions beneath a join that keeps public rows: these rows are groups even without a match.
        kept: The fields of public rows that such a join keeps.
        facts: Conditions that hold for every row, including all of `conditions`.
        bounds: Intervals of numeric fields.
        moments: Bounds of dates and timestamps.
    """

    keys: tuple[Expr, ...]
    sources: tuple[Source | NestedSource, ...]
    conditions: tuple[Expr, ...]
    beneath: tuple[Expr, ...]
    kept: frozenset[Field]
    facts: tuple[Expr, ...]
    bounds: Bounds
    moments: Mapping[Field, Moments]


def trace(keys: tuple[Expr, ...], relation: Relation, lister: Lister) -> Origin:
    """Follow keys down to where their values begin."""
    tracer = _Tracer(lister)
    written = tracer.follow(relation, frozenset[Field]().union(*map(fields_in, keys)))
    return Origin(
        tuple(tracer.inlined(key, written) or tracer.unknown(key.type) for key in keys),
        tuple(tracer.sources),
        tuple(tracer.conditions),
        tuple(tracer.beneath),
        frozenset(tracer.kept),
        (*tracer.conditions, *tracer.beneath, *tracer.matches),
        tracer.bounds,
        tracer.moments,
    )


@dataclass
class _Tracer:
    """Walks down one tree. Every leaf gets new fields, because a relation can occur in a tree twice."""

    lister: Lister
    sources: list[Source | NestedSource] = field(default_factory=list)
    conditions: list[Expr] = field(default_factory=list)
    beneath: list[Expr] = field(default_factory=list)
    matches: list[Expr] = field(default_factory=list)
    kept: set[Field] = field(default_factory=set)
    bounds: dict[Bounded, Interval] = field(default_factory=dict)
    moments: dict[Field, Moments] = field(default_factory=dict)
    _nodes: int = 0
    _weights: dict[Field, int] = field(default_factory=dict)

    def follow(self, relation: Relation, needed: frozenset[Field]) -> dict[Field, Expr]:
        """Write the needed fields of a relation over sources."""
        if is_public(relation):
            return self._public(relation, needed)
        match relation:
            case UnitScan():
                return self._scanned(relation, needed)
            case Filter():
                written = self.follow(relation.input, needed | _fields_of(relation.condition))
                self._note(relation.condition, written, self.conditions)
                return written
            case Project():
                return self._projected(relation, needed)
            case Aggregate() | UnitWindows():
                return self._computed(relation, needed)
            case Join():
                return self._joined(relation, needed)
            case SetOperation():
                return self._combined(relation, needed)
            case _:  # DISTINCT and ORDER BY hand rows on unchanged
                return self.follow(inputs(relation)[0], needed)

    # Expressions

    def inlined(self, expression: Expr, written: Mapping[Field, Expr]) -> Expr | None:
        """An expression over sources, or None if the expressions have become too large in total."""
        if isinstance(expression, Column):
            return written.get(expression.field, expression)
        self._nodes += self._weight(expression)
        return substitute(expression, written) if self._nodes <= MAX_NODES else None

    def _weight(self, expression: Expr) -> int:
        if isinstance(expression, Column):
            return self._weights.get(expression.field, 1)
        return 1 + sum(map(self._weight, operands(expression)))

    def unknown(self, sql_type: SqlType, bounds: Interval = UNBOUNDED) -> Column:
        """A new field without listed values."""
        new = self.lister.fields.new(sql_type)
        self.bounds[new] = bounds
        return Column(new)

    def _note(self, condition: Expr | None, written: Mapping[Field, Expr], into: list[Expr]) -> None:
        """Note conditions that hold; membership in a public relation becomes a join with it."""
        for term in conjuncts(condition) if condition is not None else ():
            member = _membership(term)
            if member is None and not is_plain(term):
                continue
            inlined = self.inlined(term if member is None else member[0], written)
            if inlined is not None and member is not None:
                source, (value,) = self.lister.rows(member[1], member[1].fields)
                self.sources.append(replace(source, joined=True))
                inlined = Call("eq", (inlined, Column(value)), SqlType.BOOLEAN)
            into += [inlined] if inlined is not None else []

    # Tables and public relations

    def _scanned(self, scan: UnitScan, needed: frozenset[Field]) -> dict[Field, Expr]:
        written: dict[Field, Expr] = {}
        for column, each in zip(scan.columns, scan.column_fields, strict=True):
            if each in needed:
                source = self.lister.column(scan.table, column, each.type)
                new = source.fields[0] if source is not None else self.lister.fields.new(each.type)
                self.sources += [source] if source is not None else []
                self.bounds[new] = declared(column)
                limits = moment_bounds(column)
                if limits is not None and each.type in (SqlType.DATE, SqlType.TIMESTAMP):
                    self.moments[new] = limits
                written[each] = Column(new)
        return written

    def _public(self, relation: Relation, needed: frozenset[Field]) -> dict[Field, Expr]:
        fields = _own(relation, needed)
        if not fields or free_fields(relation):
            return {**self._unlisted(relation, fields)}
        source, renewed = self.lister.rows(relation, fields)
        self.sources.append(replace(source, joined=True))
        return dict(zip(fields, map(Column, renewed), strict=True))

    def _unlisted(self, relation: Relation, fields: tuple[Field, ...]) -> dict[Field, Column]:
        bounds = bounds_of(relation) if fields else {}
        return {each: self.unknown(each.type, bounds.get(each, UNBOUNDED)) for each in fields}

    # Rows made of rows

    def _projected(self, relation: Project, needed: frozenset[Field]) -> dict[Field, Expr]:
        return self._assigned(relation, dict(zip(relation.fields, relation.expressions, strict=True)), needed)

    def _assigned(
        self, relation: Project | Aggregate | UnitWindows, assigned: Mapping[Field, Expr], needed: frozenset[Field]
    ) -> dict[Field, Expr]:
        """Fields that are expressions over the input's; what has become too large is a field of its own."""
        wanted = {each: expression for each, expression in assigned.items() if each in needed}
        inner = self.follow(relation.input, frozenset[Field]().union(*map(fields_in, wanted.values())))
        written: dict[Field, Expr] = {}
        for each, expression in wanted.items():
            inlined = self.inlined(expression, inner)
            self._weights[each] = self._weight(expression) if inlined is not None else 1
            written |= {each: inlined} if inlined is not None else self._unlisted(relation, (each,))
        return written

    def _computed(self, relation: Aggregate | UnitWindows, needed: frozenset[Field]) -> dict[Field, Expr]:
        """Keys, or the rows that windows are added to, and what is computed unit by unit."""
        calls: dict[Field, AggregateCall | Window] = {}
        if isinstance(relation, Aggregate):
            assigned: dict[Field, Expr] = dict(zip(relation.key_fields, relation.keys, strict=True))
            calls |= zip(relation.aggregate_fields, relation.aggregates, strict=True)
        else:
            assigned = {each: Column(each) for each in relation.input.fields}
            calls |= zip(relation.window_fields, relation.windows, strict=True)
        picked = {each: _picked(call) for each, call in calls.items() if each in needed}
        arguments = {each: argument for each, argument in picked.items() if argument is not None}
        written = self._assigned(relation, assigned | arguments, needed)
        own = self._unlisted(relation, tuple(picked))
        for each, argument in arguments.items():
            new, value = own[each].field, written[each]
            if isinstance(value, Column) and value.field in self.moments:
                self.moments[new] = self.moments[value.field]
            self.sources.append(NestedSource((new,), ((relation.input, (argument,)),), optional=True))
        return written | own

    def _joined(self, join: Join, needed: frozenset[Field]) -> dict[Field, Expr]:
        if join.kind == "full":
            return self._optional(join.left, needed) | self._optional(join.right, needed)
        used = needed | _fields_of(join.condition)
        if join.kind in ("left", "right"):
            kept, other = (join.left, join.right) if join.kind == "left" else (join.right, join.left)
            if not is_public(other) or free_fields(other):
                return self.follow(kept, needed) | self._optional(other, needed)
            written = self.follow(kept, used)
            return written | self._looked_up(other, used if _own(other, needed) else needed, join.condition, written)
        if join.kind == "matched":
            return self._matched(join, used)
        written = self.follow(join.left, used) | self.follow(join.right, used)
        self._note(join.condition, written, self.conditions)
        return written

    def _matched(self, join: Join, used: frozenset[Field]) -> dict[Field, Expr]:
        """A join that keeps public rows, even those without a match."""
        written: dict[Field, Expr] = {}
        for side in (join.left, join.right):
            before = len(self.conditions)
            found = self.follow(side, used)
            written |= found
            if is_public(side):
                self.kept |= frozenset[Field]().union(*map(fields_in, found.values()))
            self.beneath += self.conditions[before:]
            del self.conditions[before:]
        self._note(join.condition, written, self.matches)
        return written

    def _looked_up(
        self, other: Relation, used: frozenset[Field], condition: Expr | None, written: dict[Field, Expr]
    ) -> dict[Field, Expr]:
        """A public relation whose rows are looked up: NULLs stand where none matches."""
        fields = _own(other, used)
        if not fields:
            return {}
        source, renewed = self.lister.rows(other, fields)
        columns: dict[Field, Expr] = dict(zip(fields, map(Column, renewed), strict=True))
        on = self.inlined(condition, written | columns) if condition is not None and is_plain(condition) else None
        self.sources.append(replace(source, optional=True, condition=on))
        return columns

    def _optional(self, side: Relation, needed: frozenset[Field]) -> dict[Field, Expr]:
        """The side of an outer join in whose place NULLs may stand."""
        return self._of_arms(side, (side,), needed, optional=True)

    def _combined(self, relation: SetOperation, needed: frozenset[Field]) -> dict[Field, Expr]:
        arms = (relation.left, relation.right) if relation.kind == "union" else (relation.left,)
        return self._of_arms(relation, arms, needed, optional=False)

    def _of_arms(
        self, relation: Relation, arms: tuple[Relation, ...], needed: frozenset[Field], *, optional: bool
    ) -> dict[Field, Expr]:
        places = [place for place, each in enumerate(relation.fields) if each in needed]
        new = self._unlisted(relation, tuple(relation.fields[place] for place in places))
        if places:
            listed = tuple((arm, tuple(Column(arm.fields[place]) for place in places)) for arm in arms)
            self.sources.append(NestedSource(tuple(column.field for column in new.values()), listed, optional))
        return {**new}


def _own(relation: Relation, needed: frozenset[Field]) -> tuple[Field, ...]:
    return tuple(dict.fromkeys(each for each in relation.fields if each in needed))


def _fields_of(condition: Expr | None) -> frozenset[Field]:
    """The fields of the terms that are noted."""
    found = frozenset[Field]()
    for term in conjuncts(condition) if condition is not None else ():
        member = _membership(term)
        if member is not None or is_plain(term):
            found |= fields_in(term if member is None else member[0])
    return found


def _membership(term: Expr) -> tuple[Expr, Relation] | None:
    """What is surely among the values of the only field of a public relation."""
    pair: tuple[Expr, Relation] | None = None
    if isinstance(term, InRelation):
        pair = term.argument, term.relation
    elif isinstance(term, Call) and term.function == "eq":
        for one, other in (term.arguments, term.arguments[::-1]):
            pair = (one, other.relation) if isinstance(other, Scalar) else pair
    if pair is None or not is_plain(pair[0]) or pair[0].type is not pair[1].fields[0].type:
        return None
    return pair if is_public(pair[1]) and not free_fields(pair[1]) else None


_PICKS = frozenset({"min", "max", "first_value", "last_value", "nth_value", "lag", "lead"})


def _picked(call: AggregateCall | Window) -> Expr | None:
    """The argument of a function whose value, if any, is one of its argument's."""
    if isinstance(call, AggregateCall):
        return call.argument if call.function in _PICKS else None
    has_default = call.function in ("lag", "lead") and len(call.arguments) > 2
    return call.arguments[0] if call.function in _PICKS and not has_default else None


# What facts make equal

MAX_EQUATIONS = 64
"""Equations that are used, each of which goes once through all keys and conditions."""

MAX_CONDITIONS = 2_000
"""Conditions, those included that follow from others."""


def with_public_equals(origin: Origin, is_known: Callable[[Expr], bool]) -> Origin:
    """Put what is listed in place of what is not, wherever every row has both equal.

    Args:
        origin: Keys, conditions and facts.
        is_known: Tells whether the values of all fields of an expression are listed.
    """
    for _ in range(MAX_EQUATIONS):
        pairs = [pair for pair in (_replacement(fact, is_known) for fact in origin.facts) if pair is not None]
        if not pairs:
            break
        # Columns first: what else is said of an expression of them then still ties what they are replaced by.
        origin = _rewritten(origin, *next((pair for pair in pairs if isinstance(pair[0], Column)), pairs[0]))
    return origin


def _replacement(fact: Expr, is_known: Callable[[Expr], bool]) -> tuple[Expr, Expr] | None:
    for one, other in both_ways(equation(fact)):
        if is_plain(one) and not is_known(one) and fields_in(other) and is_known(other):
            target, types = bare(one)
            return target, converted(other, types)
    return None


def _rewritten(origin: Origin, target: Expr, other: Expr) -> Origin:
    def again(expression: Expr) -> Expr:
        return rewrite_expression(expression, lambda part: other if part == target else None)

    sources = tuple(
        replace(source, condition=again(source.condition))
        if isinstance(source, Source) and source.condition is not None
        else source
        for source in origin.sources
    )
    keys, conditions, beneath, facts = (
        tuple(map(again, part)) for part in (origin.keys, origin.conditions, origin.beneath, origin.facts)
    )
    return replace(origin, keys=keys, conditions=conditions, beneath=beneath, facts=facts, sources=sources)


def propagated(conditions: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Conditions, and what those on one column say of columns that others equate with it."""
    equals: dict[Field, frozenset[Field]] = {}
    for left, right in filter(None, map(_equal_columns, conditions)):
        together = frozenset({left, right}) | equals.get(left, frozenset()) | equals.get(right, frozenset())
        equals |= dict.fromkeys(together, together)
    found = dict.fromkeys(conditions)
    for condition in conditions:
        fields = list(fields_in(condition))
        for other in sorted(equals.get(fields[0], ()), key=_number) if len(fields) == 1 else ():
            if len(found) < MAX_CONDITIONS:
                found[substitute(condition, {fields[0]: converted(Column(other), (fields[0].type,))})] = None
    return tuple(found)


def _number(each: Field) -> int:
    return each.number


def _equal_columns(condition: Expr) -> tuple[Field, Field] | None:
    sides = equation(condition)
    left, right = (bare(side)[0] for side in sides) if sides is not None else (None, None)
    return (left.field, right.field) if isinstance(left, Column) and isinstance(right, Column) else None
