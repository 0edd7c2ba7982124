"""agreement: whether all rows of a unit have the same keys: where two rows agree on the unit, must they on a key?

It is proved again, for `verify`, from the tree of a plan and the engine's schema, from the rows down to the tables.

Rule 1: two rows agree on a field where its value is the same in both, spelling included.
Rule 2: nothing is assumed of unknown relations. A prepared table keeps no key of its table.
Rule 3: nothing here shares code with the lowering of queries, with `values.dependencies`, or with what reads equations
in `ir.conditions`. Facts come from the policy and the engine's schema.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from dpsql.compiler.ir.conditions import conjuncts
from dpsql.compiler.ir.nodes import (
    Aggregate,
    Call,
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
    Scan,
    Sort,
    UnitScan,
    UnitWindows,
    Window,
)
from dpsql.compiler.ir.schema import EngineTable
from dpsql.compiler.ir.walk import fields_in, free_fields, windows_in
from dpsql.compiler.scope.tables import Catalog
from dpsql.sqltypes import SqlType

Alike = frozenset[Field]
"""Fields that two rows are taken to agree on, by value and spelling."""

_WHOLE = {SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT}
_TEXT = {SqlType.TEXT, SqlType.VARCHAR}
_ONE_SPELLING = {
    *_WHOLE,
    *_TEXT,
    *(SqlType.CHAR, SqlType.BOOLEAN, SqlType.DATE, SqlType.TIME, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ, SqlType.UUID),
}


@dataclass(frozen=True)
class TwoRows:
    """Follows two rows of a relation down to the tables: where they agree on some fields, must they on another?

    Attributes:
        catalog: The policy, and the engine's schema.
        is_copy: Tells whether a relation is read from a prepared table.
    """

    catalog: Catalog
    is_copy: Callable[[Relation], bool]
    _proved: dict[tuple[int, Field, Alike], bool] = dataclass_field(default_factory=dict)

    def agree_on(self, expression: Expr, relation: Relation, alike: Alike) -> bool:
        """True where two rows that agree on some fields surely give an expression one value.

        Args:
            expression: An expression over the fields of the relation.
            relation: The relation.
            alike: The fields.
        """
        return not windows_in(expression) and all(self._agree(each, relation, alike) for each in fields_in(expression))

    def _agree(self, field: Field, relation: Relation, alike: Alike) -> bool:
        if field in alike or field not in relation.fields:
            return field in alike
        at = id(relation), field, alike
        if at not in self._proved:
            self._proved[at] = not self.is_copy(relation) and self._must_agree(field, relation, alike)
        return self._proved[at]

    def _must_agree(self, field: Field, relation: Relation, alike: Alike) -> bool:
        match relation:
            case UnitScan() | Scan():
                return self._are_one_row(relation, alike)
            case Filter():
                return self._filtered(field, relation, alike)
            case Project():
                of = dict(zip(relation.fields, relation.expressions, strict=True))
                return self.agree_on(of[field], relation.input, _below(of, alike))
            case Aggregate():
                return self._grouped(field, relation, alike)
            case UnitWindows():
                return self._numbered(field, relation, alike)
            case Join():
                return self._joined(field, relation, alike)
            case Distinct() | Sort():
                return self._agree(field, relation.input, alike)
            case Release():
                return not relation.aggregate.keys
            case _:
                return False

    def _are_one_row(self, scan: UnitScan | Scan, alike: Alike) -> bool:
        """True if the engine has a unique key among the fields on which two rows agree."""
        engine = self.catalog.schema.tables[scan.table.name]
        columns = dict(
            zip(scan.column_fields if isinstance(scan, UnitScan) else scan.fields, scan.columns, strict=True)
        )
        names = {
            column.name
            for field, column in columns.items()
            if field in alike and _read_as_is(engine, column.name, field)
        }
        if isinstance(scan, UnitScan) and scan.unit_field in alike and scan.table.unit_key is not None:
            names.add(scan.table.unit_key)
        return engine.is_unique(frozenset(name for name in names if engine.columns[name].not_null))

    def _filtered(self, field: Field, relation: Filter, alike: Alike) -> bool:
        inner = relation.input
        known = alike
        for one, other in _columns_equal(relation.condition):
            if self.agree_on(other, inner, known):
                known |= {one}
        if self._agree(field, inner, known):
            return True
        # If one row number per partition is kept, two rows that agree on the partition are one row.
        kept = {one for one, other in _columns_equal(relation.condition) if isinstance(other, Literal)}
        kept |= {one for term in conjuncts(relation.condition) for one in _only_first(term)}
        return isinstance(inner, UnitWindows) and any(
            number in kept and window.function == "row_number" and self._in_one_part(window, inner, known)
            for number, window in zip(inner.window_fields, inner.windows, strict=True)
        )

    def _in_one_part(self, window: Window, relation: UnitWindows, alike: Alike) -> bool:
        return all(self.agree_on(part, relation.input, alike) for part in window.partition)

    def _grouped(self, field: Field, relation: Aggregate, alike: Alike) -> bool:
        of = dict(zip(relation.key_fields, relation.keys, strict=True))
        below = _below(of, alike)

        def is_fixed(key: Field) -> bool:
            return key in alike or self.agree_on(of[key], relation.input, below)

        return is_fixed(field) if field in of else all(map(is_fixed, of))

    def _numbered(self, field: Field, relation: UnitWindows, alike: Alike) -> bool:
        windows = dict(zip(relation.window_fields, relation.windows, strict=True))
        if field not in windows:
            return self._agree(field, relation.input, alike)
        window = windows[field]
        is_whole = window.frame is None and not window.order
        is_whole = is_whole and window.function in ("avg", "count", "count_rows", "max", "min", "sum")
        return is_whole and self._in_one_part(window, relation, alike)

    # Joins

    def _joined(self, field: Field, join: Join, alike: Alike) -> bool:
        if join.kind in ("left", "right"):
            kept, other = (join.left, join.right) if join.kind == "left" else (join.right, join.left)
            return self._beside(field, kept, other, join.condition, alike)
        return join.kind in ("inner", "cross", "matched") and self._met(field, join, alike)

    def _met(self, field: Field, join: Join, alike: Alike) -> bool:
        """Rows that are there because they meet the condition."""
        known, before = alike, None
        while known != before:
            before = known
            for one, other in _columns_equal(join.condition):
                if one in join.fields and all(self._on_a_side(each, join, known) for each in fields_in(other)):
                    known |= {one}
        return self._on_a_side(field, join, known)

    def _on_a_side(self, field: Field, join: Join, alike: Alike) -> bool:
        return field in alike or any(
            self._agree(field, side, alike) for side in (join.left, join.right) if not free_fields(side)
        )

    def _beside(self, field: Field, kept: Relation, other: Relation, condition: Expr | None, alike: Alike) -> bool:
        """An outer join: each row of the preserved side, with a row of the other or with NULLs."""
        if field in kept.fields:
            return self._agree(field, kept, alike)
        if condition is None or free_fields(other):
            return False
        anchors = frozenset(
            one for one, said in _columns_equal(condition) if one in other.fields and self.agree_on(said, kept, alike)
        )

        def is_fixed(each: Field) -> bool:
            return self._agree(each, kept, alike) or self._agree(each, other, anchors)

        # Otherwise, of two rows that agree, one could have a match and the other none.
        return self._agree(field, other, anchors) and all(map(is_fixed, fields_in(condition)))


def _below(of: dict[Field, Expr], alike: Alike) -> Alike:
    """The fields on which two rows of the input agree, as fields of the output."""
    return frozenset(each.field for field, each in of.items() if field in alike and isinstance(each, Column))


def _read_as_is(engine: EngineTable, name: str, field: Field) -> bool:
    """True if values that the engine distinguishes stay distinct."""
    return engine.columns[name].sql_type is field.type


def _columns_equal(condition: Expr | None) -> Iterator[tuple[Field, Expr]]:
    """Columns and what a condition requires them to equal, including the spelling."""
    for term in conjuncts(condition) if condition is not None else ():
        if isinstance(term, Call) and term.function == "eq" and len({part.type for part in term.arguments}) == 1:
            for one, other in (term.arguments, term.arguments[::-1]):
                column = _widened(one)
                if column is not None and one.type in _ONE_SPELLING and not windows_in(other):
                    yield column, other


def _widened(expression: Expr) -> Field | None:
    """The column of an expression that is only a column, possibly cast to another integer or text type."""
    while isinstance(expression, Cast):
        kinds = {expression.type, expression.argument.type}
        if not (kinds <= _WHOLE or kinds <= _TEXT):
            return None
        expression = expression.argument
    return expression.field if isinstance(expression, Column) else None


def _only_first(term: Expr) -> Iterator[Field]:
    """The row number, counted from 1, that a condition limits to 1."""
    if isinstance(term, Call) and term.function == "le":
        number, most = term.arguments
        if isinstance(number, Column) and isinstance(most, Literal) and most.value == 1:
            yield number.field
