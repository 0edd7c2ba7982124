"""filtering: WHERE over rows of any status, and what its equations with the row around a subquery mean."""

from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.compiler.expressions.null_rejection import is_not_true
from dpsql.compiler.ir.conditions import TRUE, all_of, conjuncts, is_null, negated
from dpsql.compiler.ir.nodes import (
    Call,
    Case,
    Column,
    Exists,
    Expr,
    Field,
    Filter,
    Join,
    Link,
    Literal,
    Project,
    Protected,
    Relation,
    Status,
)
from dpsql.compiler.ir.walk import fields_in, free_fields
from dpsql.compiler.relations.clauses import Clauses
from dpsql.compiler.relations.joins import (
    Equalities,
    linking,
    plain_column,
    refuse_unlisted,
    shows_absence,
    with_same_unit,
)
from dpsql.compiler.scope.resolve import Scope


@dataclass(frozen=True)
class Filtering:
    """Filters the rows of one scope."""

    clauses: Clauses
    scope: Scope

    def where(self, status: Status, condition: Expr, node: exp.Expr) -> Status:
        """Return the rows for which a condition is true.

        Raises:
            UndefinedColumn: The condition reads a key that is not listed.
            UnsupportedQuery: The answer would reveal which public rows have no match.
        """
        refuse_unlisted(condition, self.scope, self.clauses.at(node), self._links(status))
        condition = all_of(*map(_where_true, conjuncts(condition)))
        if not isinstance(status, Protected):
            return replace(status, relation=_pushed(status.relation, conjuncts(condition)))
        status = replace(status, absent=self._absent(status, condition, node))
        status, condition = _without_match(status, condition)
        outer = self._linked_to(status, condition)
        if outer is None:
            return replace(status, relation=Filter(status.relation, condition))
        whole = with_same_unit(condition, status.unit, outer)
        links = status.links | {Link((), (outer,))}
        return replace(status, relation=Filter(status.relation, whole), linked=outer, links=links)

    def _links(self, status: Status) -> frozenset[Field]:
        around = [scope.protected for scope in self.scope.around()]
        found = [each for each in (status, *around) if isinstance(each, Protected)]
        return frozenset(field for each in found for link in each.links for field in link.fields)

    def _linked_to(self, status: Protected, condition: Expr) -> Field | None:
        """The unit of the row around, where the condition lets through rows of that unit only."""
        equal = Equalities((condition,))
        around = [scope.protected for scope in self.scope.around() if scope.protected is not None]
        linked = [each.unit for each in around if linking(status, each, equal)]
        return linked[0] if linked and status.linked is None else None

    def _absent(self, status: Protected, condition: Expr, node: exp.Expr) -> frozenset[Field] | None:
        if status.absent is None or is_not_true(condition, status.absent):
            return None
        if fields_in(condition) & status.absent:
            raise shows_absence(self.clauses.at(node))
        return status.absent


def _where_true(term: Expr) -> Expr:
    """A condition that is true where the term is: that of CASE whose first value alone is true."""
    if not isinstance(term, Case) or term.branches[0][1] != TRUE:
        return term
    others = (*(value for _, value in term.branches[1:]), term.default)
    return term.branches[0][0] if all(isinstance(o, Literal) and not o.value for o in others) else term


def _without_match(status: Protected, condition: Expr) -> tuple[Protected, Expr]:
    """LEFT JOIN … WHERE key IS NULL, which is NOT EXISTS: each row that is kept is there once, and counts as one.

    The key is NULL in no row that matches: it is the unit, or is equal to something in the join's condition.
    """
    join, kept = status.relation, status.kept
    if kept is None or not isinstance(join, Join) or join.condition is None:
        return status, condition
    sides = (join.left, join.right)
    other = next((each for each in sides if each is not kept.relation), None)
    if other is None or free_fields(other) or all(each is not kept.relation for each in sides):
        return status, condition
    equal = (term.arguments for term in conjuncts(join.condition) if isinstance(term, Call) and term.function == "eq")
    present = {plain_column(side) for sides in equal for side in sides} & set(other.fields)
    missing = [is_null(Column(field)) for field in other.fields if field in present]
    rest = [term for term in conjuncts(condition) if term not in missing]
    if len(rest) == len(conjuncts(condition)):
        return status, condition
    nobody = negated(Exists(Filter(other, join.condition)))
    assigned: dict[Field, Expr] = {field: Column(field) for field in kept.relation.fields}
    assigned |= {field: Literal(None, field.type) for field in other.fields}
    relation = Project(Filter(kept.relation, nobody), tuple(assigned), tuple(assigned.values()))
    return replace(kept, relation=relation, links=status.links, absent=status.absent), all_of(*rest)


def _pushed(relation: Relation, terms: tuple[Expr, ...]) -> Relation:
    """The rows for which all terms are true, each tested as far down in inner joins as its fields are.

    A comma join of public tables is read before what it is joined with: without this it would be read whole.
    """
    if isinstance(relation, Join) and relation.kind in ("inner", "cross"):
        sides = (relation.left, relation.right)
        inside = [tuple(term for term in terms if _is_about(term, side)) for side in sides]
        left, right = (_pushed(side, found) for side, found in zip(sides, inside, strict=True))
        relation = replace(relation, left=left, right=right)
        terms = tuple(term for term in terms if term not in inside[0] and term not in inside[1])
    if not terms:
        return relation
    return Filter(relation, all_of(*terms))


def _is_about(term: Expr, side: Relation) -> bool:
    fields = fields_in(term)
    return bool(fields) and fields <= frozenset(side.fields)
