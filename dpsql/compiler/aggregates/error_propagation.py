"""error_propagation: confidence intervals of noisy columns, and of expressions over them.

The expression is recomputed with one value at a time at its limits. The independent changes are added in quadrature.
That is exact for sums, and close to Fieller's interval for ratios (MOVER, Zou & Donner 2008; Donner & Zou 2012).
The limits of a column follow it as <column>_low and <column>_high.

Rule 1: only expressions that are continuous in their values have limits; roundings are allowed around them.
Rule 2: limits depend on the distribution of the noise and on released cells only, so they cost nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from dpsql.compiler.aggregates.registry import FUNCTIONS
from dpsql.compiler.aggregates.release_leaf import origins
from dpsql.compiler.ir.conditions import all_of, conjuncts, equation, is_null, negated
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
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

Source = tuple[Field, AggregateCall]
"""An aggregate of a release: its field and what it is."""

_SMOOTH = frozenset({"add", "subtract", "multiply", "divide", "negate", "abs", "sqrt", "cbrt", "exp", "ln", "log10"})
_WHOLE = {"int_add": "add", "int_subtract": "subtract", "int_multiply": "multiply", "int_negate": "negate"}
_ROUNDINGS = frozenset({"floor", "ceil", "trunc", "round", "round_digits", "trunc_digits"})
_ZERO = Literal(0, SqlType.DOUBLE)


@dataclass(frozen=True)
class Limits:
    """The limits of a noisy value, and the aggregates whose noise it contains."""

    low: Expr
    high: Expr
    sources: frozenset[Source]

    def shares(self, other: "Limits") -> bool:
        """Whether some noise may be in both."""
        return any(_share(one, two) for one in self.sources for two in other.sources)


@dataclass(frozen=True)
class Rounded:
    """An expression in two parts: monotonic roundings, and the expression inside them."""

    around: Callable[[Expr], Expr]
    inner: Expr


def rounded(expression: Expr) -> Rounded:
    """Take the roundings off an expression."""
    if isinstance(expression, Cast) and expression.type.is_number and expression.argument.type.is_number:
        outer, kind, scale = rounded(expression.argument), expression.type, expression.scale
        return Rounded(lambda value: Cast(outer.around(value), kind, scale), outer.inner)
    if isinstance(expression, Call) and expression.function in _ROUNDINGS:
        first, *digits = expression.arguments
        outer, call = rounded(first), expression
        return Rounded(lambda value: Call(call.function, (outer.around(value), *digits), call.type), outer.inner)
    if isinstance(expression, Call) and expression.function == "int_divide":
        quotient = Call("divide", expression.arguments, SqlType.DOUBLE)
        return Rounded(lambda value: Call("trunc", (value,), SqlType.DOUBLE), quotient)
    return Rounded(lambda value: value, expression)


def smooth(expression: Expr) -> Expr | None:
    """Return the expression in DOUBLE, without guards for NULL results; None if it may be discontinuous."""
    match expression:
        case Column() | Literal() | Scalar():
            return Cast(expression, SqlType.DOUBLE) if expression.type.is_number else None
        case Cast():
            plain = (expression.scale is None or expression.is_computed) and not expression.type.is_integer
            widened = expression.type.is_integer and expression.argument.type.is_integer
            return smooth(expression.argument) if expression.type.is_number and (plain or widened) else None
        case Case():
            values = [value for _, value in expression.branches] + [expression.default]
            told = [value for value in values if not (isinstance(value, Literal) and value.value is None)]
            return smooth(told[0]) if len(told) == 1 else None
        case Call(function="nullif" | "coalesce"):
            return smooth(expression.arguments[0])
        case Call():
            name = _WHOLE.get(expression.function, expression.function)
            parts = [smooth(part) for part in expression.arguments]
            known = tuple(part for part in parts if part is not None)
            is_smooth = name in _SMOOTH and len(known) == len(parts)
            return Call(name, known, SqlType.DOUBLE) if is_smooth else None
        case _:
            return None


def parts(expression: Expr) -> tuple[Column | Scalar, ...]:
    """The values that a smooth expression is made of, each once."""
    return tuple(dict.fromkeys(_parts(expression)))


def _parts(expression: Expr) -> Iterator[Column | Scalar]:
    if isinstance(expression, Column | Scalar):
        yield expression
    elif isinstance(expression, Cast):
        yield from _parts(expression.argument)
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from _parts(argument)


@dataclass(frozen=True)
class Shifts:
    """A smooth expression of noisy values, computed anew with each of them at its limits.

    Attributes:
        expression: The expression.
        known: The limits of its noisy values; the others are exact.
    """

    expression: Expr
    known: Mapping[Expr, Limits]

    @property
    def computed(self) -> tuple[Expr, ...]:
        """What has to be computed: the expression, then for each noisy value the same at its low and high limit."""
        return (self.expression, *(self._at(part, end) for part in self.known for end in self._ends(part)))

    def limits(self, fields: Sequence[Field]) -> tuple[Expr, Expr]:
        """The limits, of fields that hold what was computed."""
        value, *moved = map(Column, fields)
        pairs = dict(zip(self.known, zip(moved[::2], moved[1::2], strict=True), strict=True))
        # GREATEST skips NULL, and NULL here means that there is no limit.
        told = (negated(is_null(_sum([value, *moved]))), *self._divisors)
        low = _double("subtract", value, self._reach(pairs, lambda end: _double("subtract", value, end)))
        high = _double("add", value, self._reach(pairs, lambda end: _double("subtract", end, value)))
        nothing = Literal(None, SqlType.DOUBLE)
        condition = all_of(*told)
        return Case(((condition, low),), nothing, SqlType.DOUBLE), Case(((condition, high),), nothing, SqlType.DOUBLE)

    def _reach(self, pairs: Mapping[Expr, tuple[Column, Column]], distance: Callable[[Expr], Expr]) -> Expr:
        squares = []
        for group in self._groups():
            moves = [Call("greatest", (*map(distance, pairs[part]), _ZERO), SqlType.DOUBLE) for part in group]
            squares.append(Call("power", (_sum(moves), Literal(2, SqlType.DOUBLE)), SqlType.DOUBLE))
        return Call("sqrt", (_sum(squares),), SqlType.DOUBLE)

    def _groups(self) -> list[list[Expr]]:
        """The noisy values, those together that share noise."""
        groups: list[list[Expr]] = []
        for part, limits in self.known.items():
            near = [group for group in groups if any(limits.shares(self.known[other]) for other in group)]
            groups = [group for group in groups if group not in near]
            groups.append([*(other for group in near for other in group), part])
        return groups

    @property
    def _divisors(self) -> tuple[Expr, ...]:
        """Conditions under which no noisy divisor may be 0."""
        found = []
        for divisor in dict.fromkeys(_divisors(self.expression)):
            for part in parts(divisor):
                if part in self.known:
                    low, high = (self._at(part, end, divisor) for end in self._ends(part))
                    found.append(Call("gt", (_double("multiply", low, high), _ZERO), SqlType.BOOLEAN))
        return tuple(found)

    def _ends(self, part: Expr) -> tuple[Expr, Expr]:
        return self.known[part].low, self.known[part].high

    def _at(self, part: Expr, end: Expr, expression: Expr | None = None) -> Expr:
        """The expression with a value at one of its limits."""
        return _replaced(self.expression if expression is None else expression, part, end)


def _replaced(expression: Expr, part: Expr, end: Expr) -> Expr:
    if expression == part:
        return end
    if isinstance(expression, Cast):
        return Cast(_replaced(expression.argument, part, end), expression.type)
    if isinstance(expression, Call):
        found = tuple(_replaced(argument, part, end) for argument in expression.arguments)
        return Call(expression.function, found, expression.type)
    return expression


def _divisors(expression: Expr) -> Iterator[Expr]:
    if isinstance(expression, Cast):
        yield from _divisors(expression.argument)
    if isinstance(expression, Call):
        if expression.function == "divide":
            yield expression.arguments[1]
        for argument in expression.arguments:
            yield from _divisors(argument)


def _share(one: Source, two: Source) -> bool:
    """Whether two aggregates may be made of the same noisy cell: a count, or the sum of the same numbers."""
    if one[0] == two[0]:
        return True
    first, second = one[1], two[1]
    numbers = {first.argument, first.other} & {second.argument, second.other}
    return first.filter == second.filter and bool(numbers - {None}) and {first.function, second.function} != {"sum"}


def _sum(terms: Sequence[Expr]) -> Expr:
    return reduce(lambda left, right: _double("add", left, right), terms)


def _double(function: str, left: Expr, right: Expr) -> Call:
    return Call(function, (left, right), SqlType.DOUBLE)


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
    """Add the limits of a 95 % interval after each noisy column: aggregates of protected rows, and expressions of them.

    Args:
        lowered: The query.
        fields: The source of further fields.
        every: False to leave out columns for which the plan gives one error for all rows.
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
    # A column that is selected twice has its limits twice, under different fields.
    kept = tuple(dict.fromkeys(field for _, field in columns))
    projected = Project(relation, kept, tuple(map(Column, kept)))
    status = replace(lowered.status, relation=projected)
    return replace(lowered, status=status, columns=tuple(columns), limited=tuple(limited))


@dataclass(frozen=True)
class _Carrier:
    """Hands limits up through relations; `fields` is the source of further fields."""

    fields: Fields

    def carry(self, relation: Relation, field: Field) -> _Carried | None:
        """The same rows with the limits of `field` as further columns.

        None if the field has no limits, or if further columns would turn one row into two.
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
            case Aggregate(keys=()) if _is_one_group(relation.input):
                return self._picked(relation, field)
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
        absent = is_null(expression)
        ends = [_unless(absent, Cast(taken.around(each), SqlType.DOUBLE)) for each in (low, high)]
        new = self.fields.new(SqlType.DOUBLE), self.fields.new(SqlType.DOUBLE)
        projected = Project(below, (*relation.fields, *new), (*relation.expressions, *ends))
        return _Carried(projected, *new, frozenset().union(*(each.sources for each in known.values())))

    def _computed(self, below: Relation, shifts: Shifts) -> tuple[Relation, tuple[Expr, Expr]]:
        """Return the relation and the limits of an expression; a single value already has its limits."""
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

    def _picked(self, relation: Aggregate, field: Field) -> _Carried | None:
        """The aggregates of the only group that a subquery is about: each is the least of one value."""
        picked = relation.aggregates[relation.aggregate_fields.index(field)].argument
        carried = self.carry(relation.input, picked.field) if isinstance(picked, Column) else None
        if carried is None:
            return None
        ends = [AggregateCall("min", Column(end), False, None, end.type) for end in (carried.low, carried.high)]
        low, high = self.fields.new(SqlType.DOUBLE), self.fields.new(SqlType.DOUBLE)
        shown = (*relation.aggregate_fields, low, high)
        picks = (*relation.aggregates, *ends)
        return replace(
            carried,
            relation=replace(relation, input=carried.relation, aggregate_fields=shown, aggregates=picks),
            low=low,
            high=high,
        )

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


def _is_one_group(relation: Relation) -> bool:
    """True where each key of released groups is equated with something else: one group is left, or none."""
    if not (isinstance(relation, Filter) and isinstance(relation.input, Release)):
        return False
    keys, equated = relation.input.aggregate.key_fields, set[Expr]()
    for sides in filter(None, map(equation, conjuncts(relation.condition))):
        for one, other in (sides, sides[::-1]):
            if fields_in(other).isdisjoint(relation.input.fields):
                equated.add(one)
    return equated.issuperset(map(Column, keys))


def _aggregated(relation: Release, field: Field) -> _Carried | None:
    found = origins(relation, field)
    if not found or relation.picks is not None or not FUNCTIONS[found[0].call.function].has_interval:
        return None
    return _Carried(relation, *found[0].limits, frozenset({(field, found[0].call)}))


def _differs_by_row(relation: Relation, field: Field) -> bool:
    """True for averages and similar functions, for expressions of noisy columns, and for unions of several columns."""
    found = origins(relation, field)
    return len(found) != 1 or not FUNCTIONS[found[0].call.function].even_interval


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
    """True if an expression over a relation's rows surely contains no noise."""
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
