"""unions: set operations of protected relations.

Rule: rows of two units never become one, and no row decides about another unit's row: rows are compared together with
their unit, or not at all.
"""

from dataclasses import replace

from sqlglot import exp

from dpsql.compiler.ir.nodes import Cast, Column, Field, Link, Project, Protected, SetOperation
from dpsql.compiler.relations.clauses import Clauses
from dpsql.compiler.relations.joins import shows_absence
from dpsql.compiler.scope.lowering import Lowered
from dpsql.errors import DatatypeMismatch, UndefinedColumn, UnsupportedQuery
from dpsql.sqltypes import SqlType


def combined(
    clauses: Clauses,
    node: exp.SetOperation,
    operation: tuple[str, bool],
    sides: tuple[Lowered, Lowered],
    arms: tuple[Project, ...],
    names: tuple[str, ...],
) -> Lowered:
    """UNION, INTERSECT or EXCEPT [ALL] of protected relations.

    Args:
        clauses: The statement's clauses.
        node: The set operation in the syntax tree.
        operation: union, intersect or except, and whether duplicates remain (ALL).
        sides: The two relations.
        arms: Their columns in common types, then the unit.
        names: The columns' names.

    Raises:
        UnsupportedQuery: Rows of different units would be compared.
        DatatypeMismatch: The types of the two units differ.
    """
    kind, keeps_all = operation
    left, right = (side.status for side in sides)
    if not isinstance(left, Protected) or not isinstance(right, Protected):
        raise TypeError("both sides are protected")
    if left.absent is not None or right.absent is not None:
        raise shows_absence(clauses.at(node))
    pairs = list(zip(sides[0].columns, sides[1].columns, strict=True))
    units = [left.is_unit(Column(a)) and right.is_unit(Column(b)) for (_, a), (_, b) in pairs]
    if left.linked != right.linked or not (any(units) or (kind == "union" and keeps_all)):
        raise UnsupportedQuery(
            f"{kind.upper()} would compare rows of different {clauses.catalog.policy.dataset.privacy_unit}s",
            hint="Use UNION ALL, or select the unit key at the same position on both sides.",
            position=clauses.at(node),
        )
    hides = [a in sides[0].unlisted or b in sides[1].unlisted for (_, a), (_, b) in pairs]
    if any(is_hidden and not is_unit for is_hidden, is_unit in zip(hides, units, strict=True)) and kind != "union":
        raise UndefinedColumn(
            "a unit key can only be compared with a unit key",
            hint="Select the unit key at the same position on both sides.",
            position=clauses.at(node),
        )
    first, second = _with_like_units(clauses, node, arms)
    if any(field.type is SqlType.INTERVAL for field in first.fields) and not (kind == "union" and keeps_all):
        raise DatatypeMismatch(
            "rows with intervals cannot be compared",
            hint="Use UNION ALL.",
            position=clauses.at(node),
        )
    fields = tuple(clauses.fields.new(field.type) for field in first.fields)
    relation = SetOperation(kind, keeps_all, first, second, fields)
    links = {Link((), (fields[-1],))} | {Link((), (f,)) for f, is_unit in zip(fields, units, strict=False) if is_unit}
    columns = tuple(zip(names, fields, strict=False))
    shared = [{n for n, f in side.hidden if s.is_unit(Column(f))} for side, s in zip(sides, (left, right), strict=True)]
    hidden = tuple((name, fields[-1]) for name in sorted(shared[0] & shared[1]))
    unlisted = frozenset(field for (_, field), is_hidden in zip(columns, hides, strict=True) if is_hidden)
    unlisted |= {field for _, field in hidden}
    status = _limited(operation, left, right, only_units=all(units))
    status = replace(status, relation=relation, unit=fields[-1], links=frozenset(links))
    return Lowered(status, columns, hidden, unlisted)


def _limited(operation: tuple[str, bool], left: Protected, right: Protected, *, only_units: bool) -> Protected:
    """What one unit may bring: both arms' rows together, or those of the left one."""
    kind, keeps_all = operation
    if only_units and not keeps_all:
        return replace(left, rows_per_unit=1, groups_per_unit=1, rows_per_group=1, one_row=True)
    if kind != "union":
        return left
    return replace(
        left,
        rows_per_unit=left.rows_per_unit + right.rows_per_unit,
        groups_per_unit=left.groups_per_unit + right.groups_per_unit,
        rows_per_group=left.rows_per_group + right.rows_per_group,
        one_row=False,
    )


def _with_like_units(clauses: Clauses, node: exp.SetOperation, arms: tuple[Project, ...]) -> tuple[Project, Project]:
    first, second = arms
    types = (first.fields[-1].type, second.fields[-1].type)
    if types[0] is types[1]:
        return first, second
    if not all(each.is_integer for each in types) and not all(each.is_text for each in types):
        raise DatatypeMismatch(
            f"unit keys of types {types[0].value} and {types[1].value} cannot be combined",
            position=clauses.at(node),
        )
    wide = SqlType.BIGINT if types[0].is_integer else SqlType.TEXT
    return _with_unit(clauses, first, wide), _with_unit(clauses, second, wide)


def _with_unit(clauses: Clauses, arm: Project, wide: SqlType) -> Project:
    unit: Field = clauses.fields.new(wide)
    return Project(arm.input, (*arm.fields[:-1], unit), (*arm.expressions[:-1], Cast(arm.expressions[-1], wide)))
