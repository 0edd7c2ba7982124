"""joins: inner joins of relations as one relation in a canonical order, with the conditions on their rows.

Rule 1: a condition is pushed down as far as all of its fields are available. A condition that refers to a row outside
the subquery stays on top, where engines expect it.
Rule 2: a relation that refers to another one, as with LATERAL, comes after it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.compiler.canonical.expressions import CanonicalSpelling, as_it_is
from dpsql.compiler.ir.conditions import all_of
from dpsql.compiler.ir.nodes import Call, Column, Expr, Field, Filter, Join, Relation, Values
from dpsql.compiler.ir.walk import Labels, fields_in, free_fields
from dpsql.sqltypes import SqlType

MAX_ROUNDS = 16
"""Rounds in which relations of one label are told apart; those that still look alike stay as they are written."""


Equal = Collection[frozenset[Field]]
"""Sets of columns that are equal in each row."""


def ordered(relations: Sequence[Relation], terms: Sequence[Expr], equal: Equal, labels: Labels) -> tuple[Relation, ...]:
    """Return the relations sorted by their labels and conditions; relations with a common condition are adjacent.

    Args:
        relations: The joined relations.
        terms: The conditions on each row, except equations.
        equal: The sets of equal fields.
        labels: Labels of all fields.
    """
    places = _places(relations, terms, equal, labels)
    own = [frozenset(relation.fields) for relation in relations]
    everything = frozenset[Field]().union(*own)
    needs = [free_fields(relation) & everything for relation in relations]
    ties = [*(fields_in(term) & everything for term in terms), *equal]
    found: list[int] = []
    known = frozenset[Field]()
    left = set(range(len(relations)))
    while left:
        ready = [index for index in left if needs[index] <= known]
        tied = [index for index in ready if any(tie & known and tie & own[index] for tie in ties)]
        found.append(min(tied or ready, key=places.__getitem__))
        known |= own[found[-1]]
        left.remove(found[-1])
    return tuple(relations[index] for index in found)


def _places(
    relations: Sequence[Relation], terms: Sequence[Expr], equal: Equal, labels: Labels
) -> list[tuple[int, int]]:
    """Return the place of each relation; relations with equal labels are distinguished by their conditions.

    If some remain equal, one of them is chosen, which may distinguish the others: this is colour refinement.
    Reference: Weisfeiler & Leman 1968, "The reduction of a graph to canonical form".
    """
    colours = _ranks([labels.of_rows(relation) for relation in relations])
    for _ in range(MAX_ROUNDS):
        count = len(set(colours))
        if count == len(colours):
            break
        finer = _ranks(_refined(relations, terms, equal, labels, colours))
        if len(set(finer)) == count:
            alike = next(index for index, colour in enumerate(finer) if finer.count(colour) > 1)
            finer = _ranks([(colour, index != alike) for index, colour in enumerate(finer)])
        colours = finer
    return [(colour, index) for index, colour in enumerate(colours)]


def _refined(
    relations: Sequence[Relation], terms: Sequence[Expr], equal: Equal, labels: Labels, colours: Sequence[int]
) -> list[tuple[int, list[str]]]:
    """Return the colour of each relation, and the conditions on it with the colours of the other relations."""
    found = []
    for index, relation in enumerate(relations):
        marks = [
            (field, "this" if other == index else str(colours[other]))
            for other, each in enumerate(relations)
            for field in each.fields
        ]
        marked = labels.marked(marks)
        spelling = CanonicalSpelling(marked, {}, as_it_is)
        own = frozenset(relation.fields)
        said = [marked.of(spelling.truth(term)) for term in terms if fields_in(term) & own]
        said += [f"equal {sorted(map(marked.fields.__getitem__, together))}" for together in equal if together & own]
        found.append((colours[index], sorted(said)))
    return found


def _ranks(values: Sequence[object]) -> list[int]:
    """The place of each value among the different ones."""
    ranks = {value: rank for rank, value in enumerate(sorted({repr(value) for value in values}))}
    return [ranks[repr(value)] for value in values]


@dataclass(frozen=True)
class JoinedRelations:
    """Inner joins of relations, not yet in an order.

    Attributes:
        parts: The relations.
        terms: The conditions on each row.
        written: The original fields, as expressions over the fields of the parts.
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
    return Filter(relation, all_of(*terms)) if terms else relation


def _is_nothing(part: Relation) -> bool:
    """True for the row without columns that replaces a missing FROM."""
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
    return (left.field, right.field) if left != right else None  # x = x only means that x is not NULL


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
            relation = Join("inner" if across else "cross", relation, side, all_of(*across) if across else None)
    if relation is None:
        raise TypeError("something is joined")
    above = [term for term in terms if not fields_in(term) or not fields_in(term) <= everything]
    return filtered(relation, above) if len(parts) > 1 else filtered(parts[0], terms)
