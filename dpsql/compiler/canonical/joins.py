"""joins: inner joins of relations, and what is true of their rows, as one relation.

Rule: a condition stands as far down as all the fields are that it names; one that names the row outside a subquery
stands on top, where an engine looks for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.compiler.canonical.expressions import CanonicalSpelling, as_it_is
from dpsql.compiler.canonical.join_order import ordered
from dpsql.compiler.ir.labels import Labels
from dpsql.compiler.ir.nodes import Call, Column, Expr, Field, Filter, Join, Relation, Values
from dpsql.compiler.ir.walk import fields_in
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class JoinedRelations:
    """Inner joins of relations, not yet in an order.

    Attributes:
        parts: The relations.
        terms: What is true of each row.
        written: Fields of what was read, over those of the parts.
    """

    parts: tuple[Relation, ...]
    terms: tuple[Expr, ...]
    written: Mapping[Field, Expr]


@dataclass(frozen=True)
class Assembled:
    """Rows as one relation.

    Attributes:
        relation: The relation.
        written: Fields of what was read, over those of the relation.
        first: Of columns that are equal in each row, the first; for each of the others.
    """

    relation: Relation
    written: Mapping[Field, Expr]
    first: Mapping[Field, Field]


def assembled(rows: JoinedRelations, labels: Labels) -> Assembled:
    """Put the parts into their order, and each condition into its place."""
    parts = tuple(part for part in rows.parts if not _is_nothing(part)) or rows.parts[:1]
    own = frozenset(field for part in parts for field in part.fields)
    spelling, written = CanonicalSpelling(labels, {}, as_it_is), rows.written
    terms, equal = _equal(spelling.together(rows.terms), own)
    if len(parts) > 1:
        parts = ordered(parts, terms, equal, labels)
        for place, part in enumerate(parts):
            labels.mark(part.fields, str(place))
        terms = [spelling.value(term) for term in terms]
        written = {field: spelling.value(expression) for field, expression in rows.written.items()}
    stars: list[Expr] = []
    first: dict[Field, Field] = {}
    for together in equal:
        one = min(together & own, key=labels.fields.__getitem__)
        first |= dict.fromkeys(together & own, one)
        pairs = (Call("eq", (Column(one), Column(each)), SqlType.BOOLEAN) for each in together if each != one)
        stars += map(spelling.value, pairs)
    return Assembled(_joined(parts, spelling.together([*terms, *stars])), written, first)


def filtered(relation: Relation, terms: Sequence[Expr]) -> Relation:
    """The rows for which all terms are true."""
    condition = conjunction(terms)
    return relation if condition is None else Filter(relation, condition)


def conjunction(terms: Sequence[Expr]) -> Expr | None:
    """The condition that all terms are true; None where there are none."""
    if not terms:
        return None
    return Call("and", tuple(terms), SqlType.BOOLEAN) if len(terms) > 1 else terms[0]


def _is_nothing(part: Relation) -> bool:
    """True for the one row without columns that stands where there is no FROM."""
    return isinstance(part, Values) and not part.fields and len(part.rows) == 1


def _equal(terms: Iterable[Expr], own: frozenset[Field]) -> tuple[list[Expr], tuple[frozenset[Field], ...]]:
    """The terms that do not equate two columns, and the sets of columns that the others make equal in each row.

    Whichever two of them a query equates, all are equal where all terms are true; columns of the row outside a subquery
    may be among them.
    """
    equal: dict[Field, frozenset[Field]] = {}
    rest: list[Expr] = []
    for term in terms:
        pair = _equal_columns(term)
        if pair is None or own.isdisjoint(pair):
            rest.append(term)
            continue
        together = frozenset(pair).union(*(equal.get(each, frozenset()) for each in pair))
        equal |= dict.fromkeys(together, together)
    return rest, tuple(dict.fromkeys(equal.values()))


def _equal_columns(term: Expr) -> tuple[Field, Field] | None:
    if not isinstance(term, Call) or term.function != "eq":
        return None
    left, right = term.arguments
    if not isinstance(left, Column) or not isinstance(right, Column) or left.type is not right.type:
        return None
    return (left.field, right.field) if left != right else None  # x = x says that x is not NULL


def _joined(parts: Sequence[Relation], terms: Sequence[Expr]) -> Relation:
    everything = frozenset(field for part in parts for field in part.fields)
    inside = [term for term in terms if fields_in(term) and fields_in(term) <= everything]
    relation: Relation | None = None
    known = frozenset[Field]()
    for part in parts:
        known |= frozenset(part.fields)
        own = [term for term in inside if fields_in(term) <= frozenset(part.fields)]
        across = [term for term in inside if term not in own and fields_in(term) <= known]
        inside = [term for term in inside if term not in own and term not in across]
        side = filtered(part, own)
        if relation is None:
            relation = side
        else:
            relation = Join("inner" if across else "cross", relation, side, conjunction(across))
    if relation is None:
        raise TypeError("something is joined")
    above = [term for term in terms if not fields_in(term) or not fields_in(term) <= everything]
    return filtered(relation, above) if len(parts) > 1 else filtered(parts[0], terms)
