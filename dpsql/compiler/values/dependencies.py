"""dependencies: which fields of a relation are determined by others, such as the unit.

Rule: a dependency follows from unique keys that the engine enforces, and from the shape of a relation; never from
data or from bounds of a policy. Relations that are not handled here have no dependencies.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dpsql.compiler.ir.conditions import compared, conjuncts, equation
from dpsql.compiler.ir.nodes import (
    Aggregate,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Project,
    Protected,
    Relation,
    Release,
    Scan,
    Sort,
    UnitScan,
    UnitWindows,
)
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.ir.walk import fields_in, free_fields, windows_in
from dpsql.policy import PolicyColumn, Table
from dpsql.sqltypes import SqlType

_OF_ALL_ROWS = frozenset({"count", "count_rows", "sum", "avg", "min", "max"})
"""Window functions that have one value in all rows of their partition, unless there is an order."""
_NOTHING = frozenset[Field]()


def in_one_group(protected: Protected, keys: Iterable[Expr], schema: EngineSchema) -> bool:
    """True if all rows of a unit have the same keys.

    Guarantee: a unit has rows in one group at the most, in every database that the engine's schema allows.
    Assumes: keys are functions of fields and of what is made before, and read nothing else.
    Reference: Armstrong, Dependency Structures of Data Base Relationships, 1974, for functional dependencies.
    """
    fixed = Dependencies(schema).fixed(protected.relation, frozenset({protected.unit}))
    return all(_is_fixed(key, fixed) for key in keys)


@dataclass(frozen=True)
class Dependencies:
    """Finds what depends on what.

    Attributes:
        schema: What the engine enforces.
    """

    schema: EngineSchema
    _found: dict[tuple[int, frozenset[Field]], frozenset[Field]] = field(default_factory=dict)

    def fixed(self, relation: Relation, by: frozenset[Field]) -> frozenset[Field]:
        """The fields of a relation that have one value in all rows that agree on those of its fields that are in `by`.

        Values are the same, and not only equal to the engine: a function of them has one value, too.
        """
        by &= frozenset(relation.fields)
        at = id(relation), by
        if at not in self._found:
            self._found[at] = by | self._beside(relation, by)
        return self._found[at]

    def _beside(self, relation: Relation, by: frozenset[Field]) -> frozenset[Field]:
        match relation:
            case UnitScan():
                unit = {relation.unit_field: relation.table.unit_key} if relation.table.unit_key is not None else {}
                return self._scanned(relation.table, relation.columns, relation.column_fields, by, unit)
            case Scan():
                return self._scanned(relation.table, relation.columns, relation.fields, by, {})
            case Filter():
                return self._filtered(relation, by)
            case Project():
                inner = self.fixed(relation.input, _handed_on(relation.fields, relation.expressions, by))
                return _fixed_among(relation.fields, relation.expressions, inner)
            case Aggregate():
                return self._grouped(relation, by)
            case UnitWindows():
                return self._numbered(relation, by)
            case Join():
                return self._joined(relation, by)
            case Release() if not relation.aggregate.keys:
                return frozenset(relation.fields)  # one row
            case Distinct() | Sort():
                return self.fixed(relation.input, by) & frozenset(relation.fields)
            case _:
                return _NOTHING

    def _scanned(
        self,
        table: Table,
        columns: tuple[PolicyColumn, ...],
        fields: tuple[Field, ...],
        by: frozenset[Field],
        unit: dict[Field, str],
    ) -> frozenset[Field]:
        """All columns, where `by` has a key that the engine enforces."""
        engine = self.schema.tables[table.name]
        # A column that is read as another type may have one value where the engine has two.
        named = {
            field: column.name
            for column, field in zip(columns, fields, strict=True)
            if engine.columns[column.name].sql_type is column.type
        }
        names = {name for field, name in (named | unit).items() if field in by and engine.columns[name].not_null}
        return frozenset((*fields, *unit)) if engine.is_unique(frozenset(names)) else _NOTHING

    def _filtered(self, relation: Filter, by: frozenset[Field]) -> frozenset[Field]:
        found = self._with_equal(relation.condition, self.fixed(relation.input, by))
        again = self.fixed(relation.input, found)
        return frozenset(relation.fields) if _is_first_of_each(relation, again) else again

    def _grouped(self, relation: Aggregate, by: frozenset[Field]) -> frozenset[Field]:
        """Keys, and what else a group has where its keys are fixed."""
        inner = self.fixed(relation.input, _handed_on(relation.key_fields, relation.keys, by))
        keys = by | _fixed_among(relation.key_fields, relation.keys, inner)
        return frozenset(relation.fields) if keys.issuperset(relation.key_fields) else keys

    def _numbered(self, relation: UnitWindows, by: frozenset[Field]) -> frozenset[Field]:
        """Add window functions of whole partitions: they have one value for all rows of a partition."""
        inner = self.fixed(relation.input, by)
        whole = (
            field
            for field, window in zip(relation.window_fields, relation.windows, strict=True)
            if window.function in _OF_ALL_ROWS
            and not window.order
            and window.frame is None
            and all(_is_fixed(part, inner) for part in window.partition)
        )
        return inner | frozenset(whole)

    def _joined(self, join: Join, by: frozenset[Field]) -> frozenset[Field]:
        if join.kind in ("left", "right"):
            return self._kept(join, by)
        if join.kind not in ("inner", "cross", "matched"):
            return _NOTHING
        # A side that refers to rows of the other side is another relation for each of them.
        sides = [side for side in (join.left, join.right) if not free_fields(side)]
        found = by
        while True:
            more = found.union(*(self.fixed(side, found) for side in sides))
            more = self._with_equal(join.condition, more) & frozenset(join.fields)
            if more == found:
                return found
            found = more

    def _kept(self, join: Join, by: frozenset[Field]) -> frozenset[Field]:
        """The side that is kept; and the other, if rows that agree are matched by the same rows or by none."""
        kept, other = (join.left, join.right) if join.kind == "left" else (join.right, join.left)
        found = self.fixed(kept, by)
        if join.condition is None or free_fields(other):
            return found
        matched = self.fixed(other, self._with_equal(join.condition, found) - frozenset(kept.fields))
        return found | matched if _is_fixed(join.condition, found | matched) else found

    @staticmethod
    def _with_equal(condition: Expr | None, fixed: frozenset[Field]) -> frozenset[Field]:
        """Return the fields, and those that a condition equates with expressions of them."""
        found = set(fixed)
        for left, right in filter(None, map(equation, conjuncts(condition) if condition is not None else ())):
            for one, other in ((left, right), (right, left)):
                column = _told_by(one)
                if column is not None and _is_fixed(other, fixed):
                    found.add(column)
        return frozenset(found)


def _is_fixed(expression: Expr, fixed: frozenset[Field]) -> bool:
    return fields_in(expression) <= fixed and not windows_in(expression)


def _handed_on(fields: Iterable[Field], expressions: Iterable[Expr], by: frozenset[Field]) -> frozenset[Field]:
    """The fields beneath that those of `by` are."""
    pairs = zip(fields, expressions, strict=True)
    return frozenset(each.field for field, each in pairs if field in by and isinstance(each, Column))


def _fixed_among(fields: Iterable[Field], expressions: Iterable[Expr], inner: frozenset[Field]) -> frozenset[Field]:
    return frozenset(field for field, each in zip(fields, expressions, strict=True) if _is_fixed(each, inner))


def _is_first_of_each(relation: Filter, fixed: frozenset[Field]) -> bool:
    """True where the rows that agree are numbered together, and one of them is kept, as DISTINCT ON does."""
    windows = relation.input
    if not isinstance(windows, UnitWindows):
        return False
    numbers = {
        field
        for field, window in zip(windows.window_fields, windows.windows, strict=True)
        if window.function == "row_number" and all(_is_fixed(part, fixed) for part in window.partition)
    }
    return any(_kept_place(term) in numbers for term in conjuncts(relation.condition))


def _kept_place(term: Expr) -> Field | None:
    """The number, counted from 1, that a condition lets have one value only."""
    function, field, values = compared(term) or ("", None, ())
    return field if function == "eq" or (function == "le" and values == (1,)) else None


def _told_by(expression: Expr) -> Field | None:
    """The column that an expression determines: the column itself, or a cast of it to a wider type; else None."""
    while isinstance(expression, Cast):
        source, target = expression.argument.type, expression.type
        texts = (SqlType.TEXT, SqlType.VARCHAR)
        if not (source.is_integer and target.is_integer) and not (source in texts and target in texts):
            return None
        expression = expression.argument
    return expression.field if isinstance(expression, Column) else None
