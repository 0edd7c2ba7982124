"""belonging: to which unit each row of a relation belongs, and whether a unit has at most one row.

Both are proved again, for `verify`, from the tree of a plan and the engine's schema, from the tables up.

Rule 1: a row belongs to a unit where it is made of rows of that unit, and of public rows. A relation that could mix
units is refused, and so is one that is not known.
Rule 2: nothing is assumed of unknown relations. A prepared table keeps no key of its table.
Rule 3: nothing here shares code with the lowering of queries, with `values.dependencies`, or with what reads equations
in `ir.conditions`. Facts come from the policy and the engine's schema.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.conditions import all_of, conjuncts
from dpsql.compiler.ir.nodes import (
    Aggregate,
    Call,
    Cast,
    Column,
    Distinct,
    Exists,
    Expr,
    Field,
    Filter,
    InRelation,
    Join,
    Literal,
    Project,
    Relation,
    Release,
    Scalar,
    Scan,
    Series,
    SetOperation,
    Sort,
    UnitScan,
    UnitWindows,
    Unnest,
    Values,
)
from dpsql.compiler.ir.schema import EngineSchema, PreparedSource
from dpsql.compiler.ir.walk import expressions, fields_in, operands
from dpsql.errors import GuaranteeMismatch
from dpsql.sqltypes import SqlType

Units = frozenset[Field]


@dataclass(frozen=True)
class Belonging:
    """To which unit the rows of a relation belong.

    Attributes:
        units: Fields that are the unit of each row, never NULL: of the row itself, or of the row around a subquery.
        once: Whether a unit has one row at the most.
        either: After a full join the units of its two sides, of which one at least is there.
    """

    units: Units
    once: bool
    either: tuple[Units, Units] | None = None


@dataclass(frozen=True)
class Owners:
    """Finds to which unit rows belong.

    Attributes:
        schema: What the engine enforces.
        leaves: Relations that are read from an input, or from a prepared table.
    """

    schema: EngineSchema
    leaves: Mapping[Relation, Leaf]

    def of(self, relation: Relation) -> Belonging | None:
        """The unit to which the rows belong; None if they are public.

        Raises:
            GuaranteeMismatch: A row could come from several units, or its unit is unknown.
        """
        leaf = self.leaves.get(relation) if self.leaves else None
        if leaf is not None and not isinstance(leaf.table, PreparedSource):
            return None
        match relation:
            case Scan() | Values() | Series() | Unnest():
                return None
            case UnitScan():
                key = relation.table.unit_key
                once = key is not None and self.schema.tables[relation.table.name].is_unique(frozenset({key}))
                return Belonging(frozenset({relation.unit_field}), once and leaf is None)
            case Join():
                return self._joined(relation)
            case Filter(input=Join(kind="inner" | "cross") as join) if _is_never((relation.condition,)):
                return self._joined(replace(join, kind="inner", condition=all_of(join.condition, relation.condition)))
            case SetOperation():
                return self._combined(relation)
            case Filter() | Project() | Aggregate() | UnitWindows() | Distinct() | Sort():
                below = self.of(relation.input)
                self.check(expressions(relation), below)
                return None if below is None else self._made(relation, below)
            case _:
                raise GuaranteeMismatch("unknown kind of relation")

    def check(self, found: Iterable[Expr], below: Belonging | None) -> None:
        """Check that subqueries in an expression read rows of the outer row's unit, or public rows.

        Raises:
            GuaranteeMismatch: One is about others.
        """
        for subquery in (part for expression in found for part in _subqueries(expression)):
            inner = self.of(subquery.relation)
            units = below.units if below is not None else frozenset()
            if inner is None:
                continue
            around = (inner.units - frozenset(subquery.relation.fields)) & units
            if not around and not _asks_for_unit(subquery, units, inner):
                raise GuaranteeMismatch("a subquery reads rows of other units than the outer row's")

    def _made(
        self, relation: Filter | Project | Aggregate | UnitWindows | Distinct | Sort, below: Belonging
    ) -> Belonging:
        around = below.units - frozenset(relation.input.fields)
        match relation:
            case Filter():
                once = below.once or _keeps_one_row(relation, below.units, around)
                return replace(below, units=_equal(below.units, (relation.condition,)), once=once)
            case Project():
                pairs = zip(relation.fields, relation.expressions, strict=True)
                own = {field for field, expression in pairs if _is_unit(expression, below)}
                found = Belonging(around | own, below.once)
            case Aggregate():
                own = {f for f, key in zip(relation.key_fields, relation.keys, strict=True) if _is_unit(key, below)}
                found = Belonging(around | own, below.once or len(own) == len(relation.keys))
            case UnitWindows():
                if not around and not all(any(_is_unit(p, below) for p in w.partition) for w in relation.windows):
                    raise GuaranteeMismatch("a window contains rows of several units")
                found = below
            case Distinct():
                found = replace(below, once=below.once or below.units >= frozenset(relation.fields))
            case _:
                raise GuaranteeMismatch("a limit would apply to rows of several units together")
        if not found.units:
            raise GuaranteeMismatch("rows of several units would be combined")
        return found

    # Joins

    def _joined(self, join: Join) -> Belonging | None:
        if not frozenset(join.left.fields).isdisjoint(join.right.fields):
            raise GuaranteeMismatch("both sides of a join have the same field")
        if join.kind in ("inner", "cross"):
            return self._met(join)
        left, right = self.of(join.left), self.of(join.right)
        units = (left.units if left is not None else frozenset()) | (right.units if right is not None else frozenset())
        condition = () if join.condition is None else (join.condition,)
        self.check(condition, Belonging(units, False) if units else None)
        if left is None and right is None:
            return None
        if left is None or right is None:
            return self._with_public(join, left, right)
        pairs = [(one, other) for pair in _equations(condition) for one, other in (pair, pair[::-1])]
        met = left.units & right.units or any(a in left.units and b in right.units for a, b in pairs)
        if not met and not _is_never(condition):
            raise GuaranteeMismatch("rows of different units would be joined")
        once = left.once and right.once
        match join.kind:
            case "left":
                return Belonging(left.units, once)
            case "right":
                return Belonging(right.units, once)
            case "full":
                return Belonging(left.units & right.units, False, (left.units, right.units))
            case _:
                raise GuaranteeMismatch("unknown kind of join")

    def _met(self, join: Join) -> Belonging | None:
        """Nested inner joins: all of their conditions hold for each row."""
        parts, conditions = _inner(join, self.leaves)
        found = [(part, self.of(part)) for part in parts]
        owned = [belonging for _, belonging in found if belonging is not None]
        if not owned:
            self.check(conditions, None)
            return None
        units, waiting = _equal(owned[0].units, conditions), owned[1:]
        while same := [each for each in waiting if not units.isdisjoint(each.units)]:
            units = _equal(units.union(*(each.units for each in same)), conditions)
            waiting = [each for each in waiting if units.isdisjoint(each.units)]
        if _is_never(conditions):
            units = units.union(*(each.units for each in waiting))
        elif waiting:
            raise GuaranteeMismatch("rows of different units would be joined")
        self.check(conditions, Belonging(units, False))
        others = [part for part, belonging in found if belonging is None]
        return Belonging(units, all(each.once for each in owned) and self._meet_once(others, conditions))

    def _meet_once(self, others: list[Relation], conditions: tuple[Expr, ...]) -> bool:
        """Whether each public relation has at most one row for each row of the rest, one after another."""
        waiting = others
        while waiting:
            unknown = frozenset(field for part in waiting for field in part.fields)
            left = [part for part in waiting if not self.matches_once(part, conditions, unknown)]
            if len(left) == len(waiting):
                return False
            waiting = left
        return True

    def _with_public(self, join: Join, left: Belonging | None, right: Belonging | None) -> Belonging:
        other, kept = (join.right, "left") if right is None else (join.left, "right")
        found = left or right
        if found is None or join.kind not in ("matched", kept):
            raise GuaranteeMismatch("rows without a unit would be combined with rows of units")
        conditions = () if join.condition is None else (join.condition,)
        units = found.units if join.kind == kept else _equal(found.units, conditions)
        return Belonging(units, found.once and self.matches_once(other, conditions, frozenset(other.fields)))

    def matches_once(self, other: Relation, conditions: tuple[Expr, ...], unknown: Units) -> bool:
        """Whether a row matches at most one row of a public relation.

        Args:
            other: The public relation.
            conditions: What holds of the rows that meet.
            unknown: Fields that the row does not decide, those of the relation among them.
        """
        return self._has_one_row(other) or self._is_keyed(other, conditions, unknown)

    def _has_one_row(self, relation: Relation) -> bool:
        match relation:
            case Aggregate():
                return not relation.keys
            case Release():
                return not relation.aggregate.keys
            case Values():
                return len(relation.rows) <= 1
            case Sort():
                return (relation.limit is not None and relation.limit <= 1) or self._has_one_row(relation.input)
            case Filter() | Project():
                return self._has_one_row(relation.input)
            case _:
                return False

    def _is_keyed(self, relation: Relation, conditions: tuple[Expr, ...], unknown: Units) -> bool:
        """Whether conditions fix a unique key of the one public table that a relation is."""
        scan, columns = _table_columns(relation)
        if scan is None or scan in self.leaves:
            return False
        fixed = set()
        for term in _terms(conditions):
            if isinstance(term, Call) and term.function == "eq":
                for mine, other in (term.arguments, term.arguments[::-1]):
                    column = columns.get(_field_of(mine))
                    if column is not None and not fields_in(other) & unknown:
                        fixed.add(column)
        engine, types = self.schema.tables[scan.table.name], {c.name: c.type for c in scan.columns}
        return engine.is_unique(frozenset(name for name in fixed if engine.columns[name].sql_type is types[name]))

    def _combined(self, relation: SetOperation) -> Belonging | None:
        left, right = self.of(relation.left), self.of(relation.right)
        if left is None and right is None:
            return None
        if left is None or right is None:
            raise GuaranteeMismatch("rows without a unit would be combined with rows of units")
        places = zip(relation.fields, relation.left.fields, relation.right.fields, strict=True)
        units = frozenset(field for field, one, other in places if one in left.units and other in right.units)
        around = (left.units & right.units) - frozenset(relation.left.fields) - frozenset(relation.right.fields)
        if not units and not around:
            raise GuaranteeMismatch("rows of several units would be combined")
        of_units = not relation.all and units >= frozenset(relation.fields)
        return Belonging(units | around, of_units or (relation.kind in ("intersect", "except") and left.once))


def _subqueries(expression: Expr) -> Iterator[Exists | InRelation | Scalar]:
    """The subqueries of an expression, except nested ones."""
    for part in operands(expression):
        yield from _subqueries(part)
    if isinstance(expression, Exists | InRelation | Scalar):
        yield expression


def _asks_for_unit(subquery: Exists | InRelation | Scalar, units: Units, inner: Belonging) -> bool:
    """Whether the subquery only tests if the row's own unit is in a relation; it reveals nothing of other units."""
    is_asked = isinstance(subquery, InRelation) and _field_of(subquery.argument) in units
    return is_asked and subquery.relation.fields[0] in inner.units


def _field_of(expression: Expr) -> Field | None:
    """The field of an expression that is a field, possibly under an injective cast."""
    while isinstance(expression, Cast) and _keeps_apart(expression.argument.type, expression.type):
        expression = expression.argument
    return expression.field if isinstance(expression, Column) else None


def _keeps_apart(source: SqlType, target: SqlType) -> bool:
    widths = {SqlType.SMALLINT: 2, SqlType.INTEGER: 4, SqlType.BIGINT: 8}
    widens = source in widths and target in widths and widths[source] <= widths[target]
    return widens or (source.is_text and target.is_text) or source is target


def _is_unit(expression: Expr, below: Belonging) -> bool:
    if below.either is not None and isinstance(expression, Call) and expression.function == "coalesce":
        sides = [_field_of(argument) for argument in expression.arguments]
        pairs = [zip(order, below.either, strict=True) for order in (sides, sides[::-1]) if len(sides) == 2]
        return any(all(field in units for field, units in pair) for pair in pairs)
    return _field_of(expression) in below.units


def _inner(relation: Relation, leaves: Mapping[Relation, Leaf]) -> tuple[tuple[Relation, ...], tuple[Expr, ...]]:
    """The relations and the conditions of nested inner joins; a join may be read from an input."""
    if not isinstance(relation, Join) or relation.kind not in ("inner", "cross") or (leaves and relation in leaves):
        return (relation,), ()
    sides = _inner(relation.left, leaves), _inner(relation.right, leaves)
    own = () if relation.condition is None else (relation.condition,)
    return sides[0][0] + sides[1][0], sides[0][1] + sides[1][1] + own


def _is_never(conditions: tuple[Expr, ...]) -> bool:
    """Whether a constant among conditions, false or NULL, keeps all rows from meeting."""
    constants = [term for term in _terms(conditions) if isinstance(term, Literal) and term.parameter is None]
    return any(term.value is None or term.value is False for term in constants)


def _terms(conditions: Iterable[Expr]) -> Iterator[Expr]:
    for condition in conditions:
        yield from conjuncts(condition)


def _equations(conditions: Iterable[Expr]) -> Iterator[tuple[Field, Field]]:
    for term in _terms(conditions):
        if isinstance(term, Call) and term.function == "eq":
            one, other = map(_field_of, term.arguments)
            if one is not None and other is not None:
                yield one, other


def _equal(units: Units, conditions: Iterable[Expr]) -> Units:
    """The units, and the equalities that hold between them."""
    equations, found = [*_equations(conditions)], units
    while more := {f for pair in equations for f in pair if not found.isdisjoint(pair)} - found:
        found |= more
    return found


def _keeps_one_row(relation: Filter, units: Units, around: Units) -> bool:
    """Whether one row of each unit is kept by its number, or no row at all."""
    if any(isinstance(term, Literal) and term.value is False for term in _terms((relation.condition,))):
        return True
    below = relation.input
    if not isinstance(below, UnitWindows):
        return False
    numbers = {
        field
        for field, window in zip(below.window_fields, below.windows, strict=True)
        if window.function == "row_number"
        and (around or window.partition)
        and all(_field_of(part) in units for part in window.partition)
    }
    least: set[tuple[Field | None, object]] = set()
    most: set[tuple[Field | None, object]] = set()
    for term in _terms((relation.condition,)):
        if isinstance(term, Call) and term.function in ("ge", "le", "between"):
            number, *ends = term.arguments
            sides = {"ge": (least,), "le": (most,)}.get(term.function, (least, most))
            for side, end in zip(sides, ends, strict=True):
                if _field_of(number) in numbers and isinstance(end, Literal):
                    side.add((_field_of(number), end.value))
    return not least.isdisjoint(most)


def _table_columns(relation: Relation) -> tuple[Scan | None, Mapping[Field | None, str]]:
    """The public table that a relation's rows come from, each at most once, with the column of each field."""
    match relation:
        case Scan():
            return relation, {field: c.name for field, c in zip(relation.fields, relation.columns, strict=True)}
        case Filter():
            return _table_columns(relation.input)
        case Project():
            scan, inner = _table_columns(relation.input)
            pairs = zip(relation.fields, relation.expressions, strict=True)
            return scan, {f: inner[e.field] for f, e in pairs if isinstance(e, Column) and e.field in inner}
        case _:
            return None, {}
