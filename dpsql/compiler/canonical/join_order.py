"""join_order: relations that are joined in one order, whatever the order in which FROM names them.

Rule: a relation that refers to another, as LATERAL may, comes after it.
"""

from collections.abc import Collection, Sequence

from dpsql.compiler.canonical.expressions import CanonicalSpelling, as_it_is
from dpsql.compiler.ir.labels import Labels
from dpsql.compiler.ir.nodes import Expr, Field, Relation
from dpsql.compiler.ir.walk import fields_in, free_fields

MAX_ROUNDS = 16
"""Rounds in which relations of one label are told apart; those that still look alike stay as they are written."""


Equal = Collection[frozenset[Field]]
"""Sets of columns that are equal in each row."""


def ordered(relations: Sequence[Relation], terms: Sequence[Expr], equal: Equal, labels: Labels) -> tuple[Relation, ...]:
    """Relations by their labels and by what is said of each, those next to one another that something ties.

    Args:
        relations: What is joined.
        terms: What is true of each row, besides what is equal.
        equal: What is equal.
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
    """The place of each relation: relations of one label are told apart by what is said of them.

    One of those that nothing tells apart yet is chosen, which may tell the others apart: this is colour refinement.
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
    """The colour of each relation, and what is said of it and of the colours of others."""
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
