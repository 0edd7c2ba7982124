"""confidence_intervals: <column>_low and <column>_high beside each noisy column, from what is released anyway.

Rule: limits are made of the noise's law and of released cells, so they cost nothing and tell nothing more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dpsql.compiler.aggregates.error_propagation import Limits, Shifts, Source, parts, rounded, smooth
from dpsql.compiler.aggregates.provenance import origins
from dpsql.compiler.aggregates.registry import FUNCTIONS
from dpsql.compiler.ir.nodes import (
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Project,
    Relation,
    Release,
    Scalar,
    SetOperation,
    Sort,
    SystemScan,
)
from dpsql.compiler.ir.walk import fields_in, nodes, relations_in, windows_in
from dpsql.compiler.scope.lowering import Fields, Lowered
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class _Carried:
    """A relation with the limits of one of its fields as further columns."""

    relation: Relation
    low: Field
    high: Field
    sources: frozenset[Source]

    @property
    def limits(self) -> Limits:
        return Limits(Column(self.low), Column(self.high), self.sources)


def with_margins(lowered: Lowered, fields: Fields, *, every: bool = True) -> Lowered:
    """Add the limits of a 95 % interval after each noisy column, an aggregate of protected rows or computed of such.

    Args:
        lowered: The query.
        fields: The source of further fields.
        every: False to leave out columns of which the plan tells one error for all rows.
    """
    relation, carrier = lowered.relation, _Carrier(fields)
    columns: list[tuple[str, Field]] = []
    limited: list[int] = []
    for name, field in lowered.columns:
        columns.append((name, field))
        carried = carrier.carry(relation, field) if every or _differs_by_row(relation, field) else None
        if carried is None:
            continue
        relation = carried.relation
        limited.append(len(columns) - 1)
        columns += [(f"{name}_low", carried.low), (f"{name}_high", carried.high)]
    # A column that stands twice has its limits twice, which are other fields.
    kept = tuple(dict.fromkeys(field for _, field in columns))
    projected = Project(relation, kept, tuple(map(Column, kept)))
    status = replace(lowered.status, relation=projected)
    return Lowered(status, tuple(columns), limited=tuple(limited), invented=lowered.invented)


@dataclass(frozen=True)
class _Carrier:
    """Hands limits up through relations; `fields` is the source of further fields."""

    fields: Fields

    def carry(self, relation: Relation, field: Field) -> _Carried | None:
        """The same rows with the limits of `field` as further columns.

        None where the field has none, or where further columns would make two rows of one.
        """
        match relation:
            case Release():
                return _aggregated(relation, field)
            case Project():
                return self._projected(relation, field)
            case SetOperation(kind="union", all=True):
                return self._united(relation, field)
            case Join():
                return self._joined(relation, field)
            case Filter() | Sort() | Distinct():
                carried = self.carry(relation.input, field) if _is_even(relation, field) else None
                return replace(carried, relation=_over(relation, carried)) if carried is not None else None
            case _:
                return None

    def _projected(self, relation: Project, field: Field) -> _Carried | None:
        expression = relation.expressions[relation.fields.index(field)]
        taken = rounded(expression)
        inner = smooth(taken.inner)
        if inner is None:
            return None
        below, known = relation.input, dict[Expr, Limits]()
        for part in parts(inner):
            if _is_exact(relation.input, part):
                continue
            found = self._limits(below, part)
            if found is None:
                return None
            below, known[part] = found
        if not known:
            return None
        shifts = Shifts(inner, known)
        below, (low, high) = self._computed(below, shifts)
        absent = Call("is_null", (expression,), SqlType.BOOLEAN)
        ends = [_unless(absent, Cast(taken.around(each), SqlType.DOUBLE)) for each in (low, high)]
        new = self.fields.new(SqlType.DOUBLE), self.fields.new(SqlType.DOUBLE)
        projected = Project(below, (*relation.fields, *new), (*relation.expressions, *ends))
        return _Carried(projected, *new, frozenset().union(*(each.sources for each in known.values())))

    def _computed(self, below: Relation, shifts: Shifts) -> tuple[Relation, tuple[Expr, Expr]]:
        """The limits of what is computed below them; a value as it is has them already."""
        if len(shifts.known) == 1 and isinstance(shifts.expression, Cast):
            (limits,) = shifts.known.values()
            return below, (limits.low, limits.high)
        computed = {self.fields.new(SqlType.DOUBLE): each for each in shifts.computed}
        handed_on = {field: Column(field) for field in below.fields}
        widened = Project(below, (*handed_on, *computed), (*handed_on.values(), *computed.values()))
        return widened, shifts.limits(tuple(computed))

    def _limits(self, below: Relation, part: Column | Scalar) -> tuple[Relation, Limits] | None:
        """A relation with the limits of a noisy value that is computed with above it."""
        if isinstance(part, Column):
            carried = self.carry(below, part.field) if part.field in below.fields else None
            return (carried.relation, carried.limits) if carried is not None else None
        carried = self.carry(part.relation, part.relation.fields[0])
        if carried is None:
            return None
        ends = (Project(carried.relation, (end,), (Column(end),)) for end in (carried.low, carried.high))
        low, high = (Scalar(end, SqlType.DOUBLE) for end in ends)
        return below, Limits(low, high, carried.sources)

    def _joined(self, relation: Join, field: Field) -> _Carried | None:
        on_left = field in relation.left.fields
        carried = self.carry(relation.left if on_left else relation.right, field)
        if carried is None:
            return None
        side = carried.relation
        joined = replace(relation, left=side) if on_left else replace(relation, right=side)
        return replace(carried, relation=joined)

    def _united(self, relation: SetOperation, field: Field) -> _Carried | None:
        """Each arm brings its own limits, as its last columns."""
        place = relation.fields.index(field)
        arms, sources = [], frozenset[Source]()
        for arm in (relation.left, relation.right):
            carried = self.carry(arm, arm.fields[place])
            if carried is None:
                return None
            handed_on = (*arm.fields, carried.low, carried.high)
            arms.append(Project(carried.relation, handed_on, tuple(map(Column, handed_on))))
            sources |= carried.sources
        low, high = self.fields.new(SqlType.DOUBLE), self.fields.new(SqlType.DOUBLE)
        united = replace(relation, left=arms[0], right=arms[1], fields=(*relation.fields, low, high))
        return _Carried(united, low, high, sources)


def _aggregated(relation: Release, field: Field) -> _Carried | None:
    found = origins(relation, field)
    if not found or relation.picks is not None or not FUNCTIONS[found[0].call.function].has_interval:
        return None
    return _Carried(relation, *found[0].limits, frozenset({(field, found[0].call)}))


def _differs_by_row(relation: Relation, field: Field) -> bool:
    """True of averages and the like, and of what is computed of noisy columns."""
    found = origins(relation, field)
    return not found or any(not FUNCTIONS[origin.call.function].even_interval for origin in found)


def _is_even(relation: Filter | Sort | Distinct, field: Field) -> bool:
    """False where rows that are alike may differ in their limits, and would not be alike with them."""
    if not isinstance(relation, Distinct):
        return True
    found = origins(relation, field)
    return len(found) == 1 and FUNCTIONS[found[0].call.function].even_interval


def _over(relation: Filter | Sort | Distinct, carried: _Carried) -> Relation:
    if isinstance(relation, Sort):
        return replace(relation, input=carried.relation, fields=(*relation.fields, carried.low, carried.high))
    return replace(relation, input=carried.relation)


def _unless(absent: Expr, value: Expr) -> Case:
    return Case(((absent, Literal(None, SqlType.DOUBLE)),), value, SqlType.DOUBLE)


# Values without noise


def _is_exact(relation: Relation, part: Expr) -> bool:
    """True where an expression over a relation's rows surely has no noise in it."""
    if windows_in(part) or any(map(_is_noisy, relations_in(part))):
        return False
    return all(field in relation.fields and _is_exact_field(relation, field) for field in fields_in(part))


def _is_exact_field(relation: Relation, field: Field) -> bool:
    if not _is_noisy(relation):
        return True
    match relation:
        case Release():
            return field in relation.aggregate.key_fields and field not in relation.picked_fields
        case Project():
            return _is_exact(relation.input, relation.expressions[relation.fields.index(field)])
        case Filter() | Sort() | Distinct():
            return _is_exact_field(relation.input, field)
        case Join():
            return _is_exact_field(relation.left if field in relation.left.fields else relation.right, field)
        case SetOperation():
            place = relation.fields.index(field)
            return all(_is_exact_field(arm, arm.fields[place]) for arm in (relation.left, relation.right))
        case _:
            return False


def _is_noisy(relation: Relation) -> bool:
    found: Iterable[Relation] = nodes(relation)
    return any(isinstance(node, Release | SystemScan) for node in found)
