"""joins: joins of two relations, by the privacy status of each.

Rule 1: rows of two protected relations meet only if they surely are of the same unit, and the SQL compares the units.
Rule 2: no join makes a protected row without a unit: public rows that an outer join keeps are groups of zero people.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from dpsql.compiler.expressions.null_rejection import is_not_true
from dpsql.compiler.ir.conditions import all_of, conjuncts
from dpsql.compiler.ir.functions import MAX_ELEMENTS
from dpsql.compiler.ir.nodes import (
    UNIT_OR_NULL,
    Aggregate,
    Call,
    Cast,
    Column,
    Expr,
    Field,
    Filter,
    InRelation,
    Join,
    Link,
    Project,
    Protected,
    Public,
    Relation,
    Release,
    Released,
    Scan,
    Series,
    SetOperation,
    Sort,
    Status,
    SystemScan,
    UnitScan,
    Unnest,
    Values,
    Window,
)
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.ir.walk import calls_in, expressions, fields_in, free_fields, inputs, operands, relations_in
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.resolve import Scope
from dpsql.compiler.sql.constant_folding import COMPARISONS
from dpsql.compiler.values.calendar_units import series_length
from dpsql.errors import LimitExceeded, UndefinedColumn, UnsupportedQuery
from dpsql.policy import PolicyColumn, Table
from dpsql.sqltypes import SqlType


class Equalities:
    """Which fields are equal wherever all of some conditions are true."""

    def __init__(self, conditions: Iterable[Expr] = ()) -> None:
        """Note the equations of two columns among the conditions."""
        self._leaders: dict[Field, Field] = {}
        for condition in conditions:
            for term in conjuncts(condition):
                if isinstance(term, Call) and term.function == "eq":
                    left, right = (plain_column(side) for side in term.arguments)
                    if left is not None and right is not None and not self.same(left, right):
                        self._leaders[self._leader(left)] = self._leader(right)

    def _leader(self, field: Field) -> Field:
        while field in self._leaders:
            field = self._leaders[field]
        return field

    def same(self, left: Field, right: Field) -> bool:
        """True where the two are surely equal."""
        return self._leader(left) == self._leader(right)


def plain_column(expression: Expr) -> Field | None:
    """The column of an expression, beneath casts that keep different values different; None for other expressions."""
    while isinstance(expression, Cast) and _keeps_apart(expression.argument.type, expression.type):
        expression = expression.argument
    return expression.field if isinstance(expression, Column) else None


def _keeps_apart(source: SqlType, target: SqlType) -> bool:
    order = (SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT)
    widens = source in order and target in order and order.index(source) <= order.index(target)
    return widens or (source.is_text and target.is_text)


def linking(left: Protected, right: Protected, equal: Equalities) -> bool:
    """True if equal fields on both sides lead to the same unit, and the types of both units compare without a cast."""
    return left.unit.type.is_alike(right.unit.type) and any(
        _is_same_way(mine.way, other.way)
        and len(mine.fields) == len(other.fields)
        and all(equal.same(a, b) for a, b in zip(mine.fields, other.fields, strict=True))
        for mine in left.links
        for other in right.links
    )


def _is_same_way(left: tuple[str, ...], right: tuple[str, ...]) -> bool:
    unit = ((), UNIT_OR_NULL)
    return left == right or (left in unit and right in unit)


def with_same_unit(condition: Expr | None, left: Field, right: Field) -> Expr:
    """Return the condition with an equation of the two units: equal keys alone do not prove equal units."""
    same = _same_unit(left, right)
    terms = conjuncts(condition) if condition is not None else ()
    if same in terms or _same_unit(right, left) in terms:
        return condition or same
    return all_of(*terms, same)


def _same_unit(left: Field, right: Field) -> Call:
    sides: list[Expr] = [Column(left), Column(right)]
    if left.type is not right.type:
        if not (left.type.is_integer and right.type.is_integer) and not (left.type.is_text and right.type.is_text):
            raise TypeError("units of unlike types were never compared: a conversion could make one of two")
        wide = _wider(left.type)
        sides = [side if side.type is wide else Cast(side, wide) for side in sides]
    return Call("eq", tuple(sides), SqlType.BOOLEAN)


def _wider(sql_type: SqlType) -> SqlType:
    """The type in which units of unlike types, both whole numbers or both texts, stay apart."""
    return SqlType.BIGINT if sql_type.is_integer else SqlType.TEXT


@dataclass(frozen=True)
class Joiner:
    """Joins relations.

    Attributes:
        schema: What the engine's schema enforces.
        fields: The source of fields.
        unit: What one unit is, in words.
        key: The name of its key, for hints.
    """

    schema: EngineSchema
    fields: Fields
    unit: str
    key: str

    def join(
        self, kind: str, sides: tuple[Status, Status], condition: Expr | None, known: Equalities, at: int | None
    ) -> Status:
        """The join of two relations.

        Args:
            kind: inner, left, right, full or cross.
            sides: The relations to the left and right of JOIN.
            condition: ON; None for a cross join.
            known: The equations that hold in the rows that remain, including ON.
            at: The position of the join in the text.

        Raises:
            UnsupportedQuery: Rows of different units could meet, or the answer would reveal which rows have a match.
            LimitExceeded: Constants would make too many rows.
        """
        left, right = sides
        refuse_too_many(left.relation, right.relation, at)
        if isinstance(left, Protected) and isinstance(right, Protected):
            return self._of_units(kind, left, right, condition, known, at)
        if isinstance(left, Protected):
            return self._with_public(kind, left, right, condition, at, protected_left=True)
        if isinstance(right, Protected):
            return self._with_public(kind, right, left, condition, at, protected_left=False)
        relation = Join(kind, left.relation, right.relation, condition)
        return Public(relation) if isinstance(left, Public) and isinstance(right, Public) else Released(relation)

    # Protected with public

    def _with_public(
        self,
        kind: str,
        protected: Protected,
        other: Status,
        condition: Expr | None,
        at: int | None,
        *,
        protected_left: bool,
    ) -> Protected:
        keeps_protected = kind == "full" or kind == ("left" if protected_left else "right")
        keeps_public = kind == "full" or kind == ("right" if protected_left else "left")
        absent = self._absent_with_public(protected, other, condition, at, (keeps_protected, keeps_public))
        joined = ("left" if protected_left else "right") if keeps_protected else "matched" if keeps_public else kind
        pair = (protected.relation, other.relation) if protected_left else (other.relation, protected.relation)
        one_row = protected.one_row and matches_once(self.schema, other.relation, condition)
        return replace(protected, relation=Join(joined, *pair, condition), one_row=one_row, absent=absent)

    def _absent_with_public(
        self, protected: Protected, other: Status, condition: Expr | None, at: int | None, keeps: tuple[bool, bool]
    ) -> frozenset[Field] | None:
        """The fields that are NULL in the rows without a unit after a join with a public relation."""
        keeps_protected, keeps_public = keeps
        was = protected.absent
        if was is not None and condition is not None and not is_not_true(condition, was):
            if fields_in(condition) & was:
                raise shows_absence(at)
            # Rows without a unit meet public rows like all others.
            if keeps_public:
                raise shows_absence(at)
            return was
        if was is not None and condition is not None and keeps_protected and not keeps_public:
            return was | frozenset(other.relation.fields)
        if was is not None and condition is None:
            return was
        if keeps_public and keeps_protected and was is not None:
            raise shows_absence(at)
        return frozenset(protected.relation.fields) if keeps_public else None

    # Protected with protected

    def _of_units(
        self, kind: str, left: Protected, right: Protected, condition: Expr | None, known: Equalities, at: int | None
    ) -> Protected:
        # Both of the unit around, or LATERAL about the unit before it: nothing is left to compare.
        same = right.linked is not None and (left.linked == right.linked or left.is_unit(Column(right.linked)))
        if not same and not linking(left, right, known):
            raise UnsupportedQuery(
                f"rows of different {self.unit}s cannot be joined",
                hint=f"Join on {self.key}, or on the keys that lead to it, or aggregate one side first, in a CTE.",
                position=at,
            )
        kind = "inner" if kind == "cross" else kind
        whole = condition if same else with_same_unit(condition, left.unit, right.unit)
        relation = Join(kind if whole is not None else "cross", left.relation, right.relation, whole)
        # A full join keeps rows of both sides that do not match, though they are of one unit.
        most = sum if kind == "full" else max
        joined = Protected(
            relation,
            left.unit,
            most((left.rows_per_unit, right.rows_per_unit)),
            most((left.groups_per_unit, right.groups_per_unit)),
            most((left.rows_per_group, right.rows_per_group)),
            left.one_row and right.one_row and kind != "full",
            _links(kind, left, right),
            left.linked,
            self._absent_of_units(kind, left, right, at),
        )
        if kind == "left":
            return replace(joined, kept=left)
        if kind == "right":
            return replace(joined, unit=right.unit, kept=right)
        return self._with_either_unit(joined, left.unit, right.unit) if kind == "full" else joined

    @staticmethod
    def _absent_of_units(kind: str, left: Protected, right: Protected, at: int | None) -> frozenset[Field] | None:
        """Rows without a unit match none, for their unit is NULL: they remain where the join keeps their side."""
        if kind == "full" and (left.absent is not None or right.absent is not None):
            raise shows_absence(at)
        if kind == "left" and left.absent is not None:
            return left.absent | frozenset(right.relation.fields)
        if kind == "right" and right.absent is not None:
            return right.absent | frozenset(left.relation.fields)
        return None

    def _with_either_unit(self, joined: Protected, left: Field, right: Field) -> Protected:
        unit = self.fields.new(left.type if left.type is right.type else _wider(left.type))
        sides = tuple(
            Column(side) if side.type is unit.type else Cast(Column(side), unit.type) for side in (left, right)
        )
        below = joined.relation
        assigned: dict[Field, Expr] = {field: Column(field) for field in below.fields}
        assigned[unit] = Call("coalesce", sides, unit.type)
        relation = Project(below, tuple(assigned), tuple(assigned.values()))
        return replace(joined, relation=relation, unit=unit, links=joined.links | {Link((), (unit,))})


def shows_absence(at: int | None) -> UnsupportedQuery:
    """The error for a query whose answer would reveal which public rows have no match."""
    return UnsupportedQuery(
        "this would reveal which public rows have no match",
        hint="Use COUNT(column) or SUM(column) of the protected side, an inner join, or a CTE that aggregates first.",
        position=at,
    )


def _links(kind: str, left: Protected, right: Protected) -> frozenset[Link]:
    """The ways to the unit after a join; a unit that an outer join may leave NULL is not the unit any more."""

    def kept(links: frozenset[Link], *, nullable: bool) -> frozenset[Link]:
        if not nullable:
            return links
        return frozenset(replace(link, way=UNIT_OR_NULL) if link.way == () else link for link in links)

    mine = kept(left.links, nullable=kind in ("right", "full"))
    return mine | kept(right.links, nullable=kind in ("left", "full"))


def matches_once(schema: EngineSchema, relation: Relation, condition: Expr | None) -> bool:
    """True where the engine's schema lets a row match one row of a public table at the most."""
    table, columns = _scanned(relation)
    if table is None or condition is None:
        return False
    own = frozenset(relation.fields)
    fixed: set[str] = set()
    for term in conjuncts(condition):
        if not isinstance(term, Call) or term.function != "eq":
            continue
        for mine, other in (term.arguments, term.arguments[::-1]):
            field = plain_column(mine)
            if field is not None and field in columns and not fields_in(other) & own:
                fixed.add(columns[field].name)
    engine = schema.tables[table.name]
    # A key read as another type may make one value of two.
    kept = {c.name for c in columns.values() if c.name in fixed and engine.columns[c.name].sql_type is c.type}
    return bool(kept) and engine.is_unique(frozenset(kept))


def _scanned(relation: Relation) -> tuple[Table | None, Mapping[Field, PolicyColumn]]:
    """The table whose rows a relation is, each at most once, and the columns its fields are."""
    if isinstance(relation, Scan):
        return relation.table, dict(zip(relation.fields, relation.columns, strict=True))
    if isinstance(relation, Filter):
        return _scanned(relation.input)
    if isinstance(relation, Project):
        table, inner = _scanned(relation.input)
        pairs = zip(relation.fields, relation.expressions, strict=True)
        return table, {f: inner[e.field] for f, e in pairs if isinstance(e, Column) and e.field in inner}
    return None, {}


def is_single(relation: Relation) -> bool:
    """True where a relation surely has one row at the most."""
    match relation:
        case Aggregate():
            return not relation.keys
        case Release():
            return not relation.aggregate.keys
        case Values():
            return len(relation.rows) <= 1
        case Sort():
            return (relation.limit is not None and relation.limit <= 1) or is_single(relation.input)
        case Filter() | Project():
            return is_single(relation.input)
    return False


MAX_GENERATED: Final = 1_000_000


def refuse_too_many(left: Relation, right: Relation, at: int | None) -> None:
    """Check the rows that a join makes up.

    Raises:
        LimitExceeded: They are too many.
    """
    if generated(left) * generated(right) > MAX_GENERATED:
        raise _too_many(at)


def generated(relation: Relation) -> int:
    """How many rows are made of constants and arrays for each row of the tables; 1 where none are."""
    match relation:
        case Values():
            return max(len(relation.rows), 1)
        case Series():
            return max(series_length(relation.start, relation.stop, relation.unit), 1)
        case Join():
            return generated(relation.left) * generated(relation.right)
        case SetOperation():
            return generated(relation.left) + generated(relation.right)
        case Unnest():
            return MAX_ELEMENTS
        case Scan() | UnitScan() | SystemScan() | Release():
            return 1
        case Aggregate() if not relation.keys:
            return 1
        case _:
            return generated(relation.input)


def refuse_too_much_work(relation: Relation, at: int | None) -> None:
    """Check the rows that a query makes up, also in subqueries, which run for each row that they refer to.

    Raises:
        LimitExceeded: They are too many.
    """
    if _made_in(relation) > MAX_GENERATED:
        raise _too_many(at)


def _made_in(relation: Relation) -> int:
    """How many rows are made for each row of the tables, and elements read for them, in the step of the most."""
    read = max((_read_by(call) for each in expressions(relation) for call in calls_in(each)), default=0)
    elements = prod(map(generated, _direct(relation))) * read
    return max([generated(relation), elements, *(times * _made_in(part) for part, times in _runs(relation))])


def _read_by(call: Call) -> int:
    """How many elements of an array or of JSON a call reads, each of which may be made of others; 0 for other calls."""
    if call.function not in _READING:
        return 0
    is_made = any(each.function in _MAKING for each in calls_in(call.arguments[0]))
    return MAX_ELEMENTS**2 if is_made else MAX_ELEMENTS


_MAKING = frozenset({"string_to_array", "array_slice"})
_READING = frozenset({"array_has", "array_slice", "json_contains", "json_has_key"})


def _direct(relation: Relation) -> tuple[Relation, ...]:
    """The inputs of a relation without subqueries in its expressions."""
    nested = sum(len(relations_in(expression)) for expression in expressions(relation))
    return inputs(relation)[: len(inputs(relation)) - nested]


def _runs(relation: Relation) -> Iterator[tuple[Relation, int]]:
    """The inputs and subqueries of a relation, and how often each runs for each row of the tables."""
    nested = [part for expression in expressions(relation) for part in relations_in(expression)]
    direct = _direct(relation)
    for part in direct:
        is_right = isinstance(relation, Join) and part is relation.right
        is_lateral = is_right and not free_fields(part).isdisjoint(direct[0].fields)
        yield part, generated(direct[0]) if is_lateral else 1
    rows = prod(map(generated, direct))
    yield from ((part, rows if free_fields(part) else 1) for part in nested)


def _too_many(at: int | None) -> LimitExceeded:
    return LimitExceeded(
        f"generate_series, VALUES and UNNEST produce more than {MAX_GENERATED:,} rows together",
        hint="Use fewer values. Where a condition reads an array, each of its elements counts as one: test it in a "
        "subquery of FROM first.",
        position=at,
    )


def copies(relation: Relation, matched: frozenset[Field] = frozenset()) -> int:
    """The greatest number of rows that series, VALUES and arrays make of one row.

    An equation matches a row with one moment of a series, and with those rows of VALUES that agree on its fields.
    Notices and wide totals depend on that, no sensitivity.

    Args:
        relation: The rows.
        matched: The fields that conditions above equate with others.
    """
    match relation:
        case Series() if matched.intersection(relation.fields):
            return 1
        case Values():
            places = [place for place, field in enumerate(relation.fields) if field in matched]
            return max(Counter(tuple(row[place] for place in places) for row in relation.rows).values(), default=0)
        case Series() | Unnest():
            return generated(relation)
        case Join():
            matched |= _equated(relation.condition)
            return copies(relation.left, matched) * copies(relation.right, matched)
        case SetOperation():
            return max(copies(relation.left), copies(relation.right))
        case Project():
            pairs = zip(relation.fields, relation.expressions, strict=True)
            read = (fields_in(expression) for field, expression in pairs if field in matched)
            return copies(relation.input, matched.union(*read))
        case Filter():
            return copies(relation.input, matched | _equated(relation.condition))
        case Scan() | UnitScan() | SystemScan() | Release() | Aggregate():
            return 1
        case _:
            return copies(relation.input, matched)


def _equated(condition: Expr | None) -> frozenset[Field]:
    """The fields of both sides of equations."""
    terms = conjuncts(condition) if condition is not None else ()
    sides = (map(fields_in, term.arguments) for term in terms if isinstance(term, Call) and term.function == "eq")
    return frozenset(field for left, right in sides if left and right and left != right for field in left | right)


def refuse_unlisted(expression: Expr, scope: Scope, at: int | None, links: frozenset[Field] = frozenset()) -> None:
    """Refuse an expression that reads a key that the policy does not list.

    Args:
        expression: The expression; its subqueries were checked when they were lowered.
        scope: The scope of the expression.
        at: The position of the expression in the text.
        links: Fields that unlisted keys may be compared with.

    Raises:
        UndefinedColumn: The expression reads such a key.
    """
    unlisted = scope.unlisted
    if unlisted and _looks_at(expression, unlisted, links | unlisted):
        raise UndefinedColumn(
            "this key may only be used in joins, GROUP BY, ORDER BY, COUNT and IS NULL",
            hint="It is a key to the privacy unit, and the policy does not list it as a column.",
            position=at,
        )


def _looks_at(expression: Expr, hidden: frozenset[Field], links: frozenset[Field]) -> bool:
    if isinstance(expression, Call) and expression.function in COMPARISONS:
        sides = [plain_column(side) for side in expression.arguments]
        if all(side is not None and side in links for side in sides):
            return False
    is_null = isinstance(expression, Call) and expression.function == "is_null"
    if is_null and plain_column(operands(expression)[0]) in hidden:
        return False
    if isinstance(expression, InRelation) and plain_column(expression.argument) in hidden:
        return False  # checked when it was lowered: the key is compared with keys of its own unit
    parts = operands(expression)
    if isinstance(expression, Window):
        keys = (*expression.partition, *(term.expression for term in expression.order))
        keys += expression.arguments if expression.function == "count" else ()
        values = expression.arguments if expression.function != "count" else ()
        parts = (*values, *(key for key in keys if plain_column(key) not in hidden))
    if not parts:
        return plain_column(expression) in hidden
    return any(_looks_at(part, hidden, links) for part in parts)
