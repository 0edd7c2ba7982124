"""releases: one canonical form of a release for all the ways of writing it.

The same form is bounded, printed, run and used as the key: equal queries become equal SQL, and the key describes what
runs. Subqueries and WITH are inlined; inner joins become one list of relations in one order; conditions are pushed down
and written once; keys, aggregates and columns are sorted by their labels; unused parts are removed.

Rule 1: every relation that is read gets its own fields, because the same relation can occur twice in a tree.
Rule 2: a computed column is inlined at each use, unless an outer join can make it NULL, or it is large, or it contains
a window function or a subquery.
Rule 3: the rows are the same for all contents of the tables; expressions are total, so conditions may be moved.
Rule 4: parts with equal labels keep their order. This can only miss a reuse, never cause a wrong one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpsql.compiler.canonical.expressions import CanonicalSpelling
from dpsql.compiler.canonical.joins import Assembled, JoinedRelations, assembled
from dpsql.compiler.dialects import POST_PROCESSING
from dpsql.compiler.ir.nodes import (
    UNIT_OR_NULL,
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    InList,
    Join,
    Link,
    Project,
    Protected,
    Relation,
    Release,
    Scan,
    Series,
    SetOperation,
    Sort,
    SystemScan,
    UnitScan,
    UnitWindows,
    Unnest,
    Values,
)
from dpsql.compiler.ir.walk import Labels, fields_in, free_fields, is_plain, is_public, operands
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.sql.constant_folding import spelled

MAX_WEIGHT = 32
"""Parts of an expression that is written wherever its column is named."""


@dataclass(frozen=True)
class RelationReader:
    """Reads relations.

    Attributes:
        fields: The source of fields.
        labels: Labels of the fields that are given.
        release: Returns the canonical form of an inner release.
        outer: The expressions of the fields of outer rows, for a correlated subquery.
        depth: The number of enclosing queries.
        kept: Fields that must stay columns.
    """

    fields: Fields
    labels: Labels
    release: Callable[[Release], Release]
    outer: Mapping[Field, Expr] = field(default_factory=dict)
    depth: int = 0
    kept: frozenset[Field] = frozenset()

    def rows(self, relation: Relation, needed: frozenset[Field]) -> JoinedRelations:
        """Return a relation in canonical form, with the fields that are needed."""
        match relation:
            case Filter():
                rows = self.rows(relation.input, needed | fields_in(relation.condition))
                return self._where(rows, relation.condition)
            case Project():
                return self._projected(relation, needed)
            case Join():
                return self._joined(relation, needed)
            case Aggregate():
                return self._aggregated(relation, needed)
            case UnitWindows():
                return self._windowed(relation, needed)
            case Distinct():
                return self._distinct(relation)
            case SetOperation():
                return self._combined(relation, needed)
            case Sort():
                return self._sorted(relation, needed)
            case Release() | SystemScan():
                return self._released(relation, needed)
            case _:
                return self._scanned(relation)

    def assembled(self, relation: Relation, needed: frozenset[Field]) -> Assembled:
        """Read a relation, and put together what it is made of."""
        return assembled(self.rows(relation, needed), self.labels)

    def spelling(self, written: Mapping[Field, Expr]) -> CanonicalSpelling:
        """How expressions over some fields are written."""
        everything = {**self.outer, **written}
        inner = replace(self, outer=everything, depth=self.depth + 1, kept=frozenset())
        return CanonicalSpelling(self.labels, everything, inner.subquery)

    def subquery(self, relation: Relation, columns: frozenset[Field]) -> Relation:
        """A subquery of an expression, with just these columns."""
        made = self.assembled(relation, columns)
        expressions = tuple(made.written[each] for each in relation.fields if each in columns)
        return Project(made.relation, self._new(expressions), expressions) if columns else made.relation

    def _new(self, expressions: Iterable[Expr]) -> tuple[Field, ...]:
        """A new field for each expression."""
        return tuple(self._named(expression, self.labels.of(expression)) for expression in expressions)

    def _named(self, like: Expr | Field | AggregateCall, label: str) -> Field:
        new = self.fields.new(like.type)
        self.labels.give(new, label)
        return new

    # What cannot be taken apart

    def _scanned(self, relation: Scan | UnitScan | Values | Series | Unnest) -> JoinedRelations:
        if isinstance(relation, Unnest):
            relation = replace(relation, arrays=tuple(map(self.spelling({}).value, relation.arrays)))
        if isinstance(relation, Values):
            rows = [tuple(map(spelled, row)) for row in relation.rows]
            relation = replace(relation, rows=tuple(sorted(rows, key=lambda row: list(map(self.labels.of, row)))))
        names = [str(place) for place, _ in enumerate(relation.fields)]
        if isinstance(relation, Scan | UnitScan):
            names[: len(relation.columns)] = [column.name for column in relation.columns]
        whole = f"{self.depth}:{self.labels.of_rows(relation)}"
        new = tuple(self._named(old, f"{whole}.{name}") for old, name in zip(relation.fields, names, strict=True))
        written = dict(zip(relation.fields, map(Column, new), strict=True))
        if isinstance(relation, UnitScan):
            return JoinedRelations((replace(relation, column_fields=new[:-1], unit_field=new[-1]),), (), written)
        return JoinedRelations((replace(relation, fields=new),), (), written)

    def _released(self, relation: Release | SystemScan, needed: frozenset[Field]) -> JoinedRelations:
        """A relation that is made first keeps its fields, and hands on those that are used under new ones."""
        if isinstance(relation, Release):
            relation = self.release(relation)
        whole = self.labels.of_rows(relation)
        for place, each in enumerate(relation.fields):
            self.labels.give(each, f"{self.depth}:{whole}.{place}")
        used = tuple(Column(each) for each in relation.fields if each in needed)
        new = self._new(used)
        written = {column.field: Column(each) for column, each in zip(used, new, strict=True)}
        return JoinedRelations((Project(relation, new, used),), (), written)

    # Conditions and columns

    def _where(self, rows: JoinedRelations, condition: Expr) -> JoinedRelations:
        term = self.spelling(rows.written).truth(condition)
        return replace(rows, terms=(*rows.terms, term))

    def _projected(self, relation: Project, needed: frozenset[Field]) -> JoinedRelations:
        pairs = [
            (each, expression)
            for each, expression in zip(relation.fields, relation.expressions, strict=True)
            if each in needed
        ]
        kept = self.kept | {
            expression.field for each, expression in pairs if each in self.kept and isinstance(expression, Column)
        }
        used = frozenset[Field]().union(*(fields_in(expression) for _, expression in pairs))
        rows = replace(self, kept=kept).rows(relation.input, used)
        spelling = self.spelling(rows.written)
        written = {each: spelling.value(expression) for each, expression in pairs}
        columns = [each for each, expression in written.items() if self._stays(each, expression)]
        # A relation of public tables only is kept whole, because groups are listed from it.
        whole = len(rows.parts) > 1 and is_public(relation.input)
        rows = replace(rows, written=written)
        return self._with_columns(rows, columns) if columns or whole else rows

    def _stays(self, each: Field, expression: Expr) -> bool:
        """True where a column stays one."""
        if isinstance(expression, Column):
            return False
        return each in self.kept or not is_plain(expression) or _weight(expression) > MAX_WEIGHT

    def _with_columns(self, rows: JoinedRelations, columns: Sequence[Field]) -> JoinedRelations:
        """Return the same rows with some fields as computed columns."""
        made = assembled(rows, self.labels)
        others = (fields_in(expression) for each, expression in made.written.items() if each not in columns)
        own = frozenset(made.relation.fields).intersection(frozenset[Field]().union(*others))
        known = [*map(Column, own), *(made.written[each] for each in columns)]
        project, found = self._project(made.relation, known)
        written = {each: found[made.written[each]] for each in columns}
        return JoinedRelations((project,), (), {**made.written, **written})

    def _project(self, relation: Relation, expressions: Iterable[Expr]) -> tuple[Project, dict[Expr, Column]]:
        """A projection to expressions, each once, and the columns that they are; a column remains the same one."""
        distinct = self._by_label(expressions)
        fields = [each.field if isinstance(each, Column) else self._new((each,))[0] for each in distinct]
        return Project(relation, tuple(fields), distinct), dict(zip(distinct, map(Column, fields), strict=True))

    def _by_label(self, expressions: Iterable[Expr]) -> tuple[Expr, ...]:
        return tuple(sorted(dict.fromkeys(expressions), key=self.labels.of))

    # Joins

    def _joined(self, join: Join, needed: frozenset[Field]) -> JoinedRelations:
        used = needed | free_fields(join.right)
        if join.condition is not None:
            used |= fields_in(join.condition)
        if join.kind not in ("inner", "cross"):
            return self._outer(join, used)
        left = self.rows(join.left, used)
        right = replace(self, outer={**self.outer, **left.written}).rows(join.right, used)
        rows = JoinedRelations(left.parts + right.parts, left.terms + right.terms, {**left.written, **right.written})
        return rows if join.condition is None else self._where(rows, join.condition)

    def _outer(self, join: Join, used: frozenset[Field]) -> JoinedRelations:
        """A join that keeps rows without a match; where both sides are kept, their labels put them in order."""
        kind, sides = join.kind, (join.left, join.right)
        if kind == "right":
            kind, sides = "left", sides[::-1]
        left, written = self._side(sides[0], used, nullable=kind != "left")
        right, others = replace(self, outer={**self.outer, **written})._side(sides[1], used, nullable=True)
        written = {**written, **others}
        if kind != "left" and not free_fields(right) and self.labels.of_rows(right) < self.labels.of_rows(left):
            left, right = right, left
        self.labels.mark(left.fields, "0")
        self.labels.mark(right.fields, "1")
        condition = self.spelling(written).truth(join.condition) if join.condition is not None else None
        return JoinedRelations((Join(kind, left, right, condition),), (), written)

    def _side(
        self, relation: Relation, used: frozenset[Field], *, nullable: bool
    ) -> tuple[Relation, Mapping[Field, Expr]]:
        """Return one side of an outer join and its fields; on the nullable side, computed fields become columns."""
        rows = self.rows(relation, used)
        computed = [each for each, found in rows.written.items() if not isinstance(found, Column)]
        if nullable and computed:
            rows = self._with_columns(rows, computed)
        made = assembled(rows, self.labels)
        return made.relation, made.written

    # Groups, windows, and rows that are compared

    def _aggregated(self, relation: Aggregate, needed: frozenset[Field]) -> JoinedRelations:
        pairs = zip(relation.aggregate_fields, relation.aggregates, strict=True)
        calls = {each: call for each, call in pairs if each in needed}
        used = frozenset[Field]().union(*map(fields_in, (*relation.keys, *arguments(calls.values()))))
        made = self.assembled(relation.input, used)
        spelling = self.spelling(made.written)
        keys = dict(zip(relation.key_fields, map(spelling.value, relation.keys), strict=True))
        called = {each: spelling.call(call) for each, call in calls.items()}
        distinct = self._by_label(keys.values())
        computed = sorted(dict.fromkeys(called.values()), key=self.labels.of_call)
        key_fields = self._new(distinct)
        fields = tuple(self._named(call, self.labels.of_call(call)) for call in computed)
        grouped = replace(
            relation,
            input=made.relation,
            key_fields=key_fields,
            keys=distinct,
            aggregate_fields=fields,
            aggregates=tuple(computed),
        )
        by_key = dict(zip(distinct, map(Column, key_fields), strict=True))
        by_call = dict(zip(computed, map(Column, fields), strict=True))
        written = {each: by_key[key] for each, key in keys.items()}
        return JoinedRelations((grouped,), (), written | {each: by_call[call] for each, call in called.items()})

    def _windowed(self, relation: UnitWindows, needed: frozenset[Field]) -> JoinedRelations:
        pairs = zip(relation.window_fields, relation.windows, strict=True)
        windows = {each: window for each, window in pairs if each in needed}
        rows = self.rows(relation.input, needed.union(*map(fields_in, windows.values())))
        if not windows:
            return rows
        made = assembled(rows, self.labels)
        spelling = self.spelling(made.written)
        asked = {each: spelling.window(window) for each, window in windows.items()}
        distinct = sorted(dict.fromkeys(asked.values()), key=self.labels.of)
        fields = self._new(distinct)
        numbered = UnitWindows(made.relation, fields, tuple(distinct), relation.rows)
        by_window = dict(zip(distinct, map(Column, fields), strict=True))
        return JoinedRelations(
            (numbered,), (), {**made.written, **{each: by_window[window] for each, window in asked.items()}}
        )

    def _distinct(self, relation: Distinct) -> JoinedRelations:
        made = self.assembled(relation.input, frozenset(relation.fields))
        project, columns = self._project(made.relation, (made.written[each] for each in relation.fields))
        return JoinedRelations(
            (Distinct(project),), (), {each: columns[made.written[each]] for each in relation.fields}
        )

    def _combined(self, relation: SetOperation, needed: frozenset[Field]) -> JoinedRelations:
        """A set operation; all columns matter where rows are compared, and of a union's sides either may be first."""
        compares = relation.kind != "union" or not relation.all
        places = [place for place, each in enumerate(relation.fields) if compares or each in needed] or [0]
        sides = [self._arm(side, [side.fields[place] for place in places]) for side in (relation.left, relation.right)]
        if relation.kind == "union":
            sides.sort(key=lambda side: (self.labels.of_rows(side[0]), sorted(map(self.labels.of, side[1]))))
        columns = sorted(range(len(places)), key=lambda place: [self.labels.of(side[1][place]) for side in sides])
        arms = []
        for below, expressions in sides:
            chosen = tuple(expressions[place] for place in columns)
            arms.append(Project(below, self._new(chosen), chosen))
        old = [relation.fields[places[place]] for place in columns]
        names = (", ".join(self.labels.of(side[1][place]) for side in sides) for place in columns)
        new = tuple(self._named(each, f"{relation.kind}({name})") for each, name in zip(old, names, strict=True))
        whole = SetOperation(relation.kind, relation.all, arms[0], arms[1], new)
        return JoinedRelations((whole,), (), dict(zip(old, map(Column, new), strict=True)))

    def _arm(self, side: Relation, columns: Sequence[Field]) -> tuple[Relation, list[Expr]]:
        made = self.assembled(side, frozenset(columns))
        return made.relation, [made.written[each] for each in columns]

    def _sorted(self, relation: Sort, needed: frozenset[Field]) -> JoinedRelations:
        """An order matters only where it decides which rows there are."""
        if relation.limit is None and relation.offset == 0:
            return self.rows(relation.input, needed)
        ordered = frozenset[Field]().union(*(fields_in(term.expression) for term in relation.order))
        made = self.assembled(relation.input, needed | ordered)
        written = {each: found for each, found in made.written.items() if each in needed}
        used = frozenset[Field]().union(*map(fields_in, written.values())) & frozenset(made.relation.fields)
        fields = tuple(sorted(used, key=self.labels.fields.__getitem__))
        order = self.spelling(made.written).order(relation.order)
        return JoinedRelations((Sort(made.relation, fields, order, relation.limit, relation.offset),), (), written)


def arguments(calls: Iterable[AggregateCall]) -> tuple[Expr, ...]:
    """What aggregates are called with: arguments and filters."""
    return tuple(part for call in calls for part in call.operands)


def _weight(expression: Expr) -> int:
    """How long an expression is as text: a guard names what it guards twice."""
    items = len(expression.items) if isinstance(expression, InList) else 0
    whole = 1 + items + sum(map(_weight, operands(expression)))
    spelling = POST_PROCESSING.functions[expression.function] if isinstance(expression, Call) else None
    return 2 * whole if spelling is not None and spelling.raw and not spelling.passes_raw else whole


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
