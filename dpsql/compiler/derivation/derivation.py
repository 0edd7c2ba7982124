"""derivation: computes the cells of one release as sums of the cells of another, stored one.

Let S be a release with public groups, or with none, whose cells y_s = x_s + Z_s are released, and Q another one. S
answers Q if each group of Q is a union of groups of S, and each cell of Q the sum of the exact cells of S in them: then
Σ y_s is the exact cell of Q and the noises of as many cells.

Guarantee: none is needed: it is post-processing of what was released (Dwork & Roth 2014, proposition 2.1).
Assumes: nothing for privacy. For the sums to be those of Q, that the rows of S and of Q are of one family; that every
    term of S is one of Q, and every other term of Q, of its rows or of one of its cells, is a function of S's key
    values, as the keys of Q are; that each row of Q has key values that S lists, since the key is one of Q too, or the
    engine or Q's own terms keep its fields within their domains; that units are added up only where all rows of a unit
    are in one group of S. What bounds drop of S and not of Q is counted as an error by `errors`.
Reference: Hay et al., Boosting the Accuracy of Differentially Private Histograms, 2010, for sums of noisy cells;
    Kotsogiannis et al., PrivateSQL, 2019, for answers from noisy views.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from dpsql.compiler.aggregates.release_leaf import from_text
from dpsql.compiler.canonical.descriptions import (
    DescribedKey,
    DescribedRelease,
    ReleaseDescription,
    filters,
    is_merged,
    keeps_within_domain,
    merging,
    without,
)
from dpsql.compiler.derivation.key_values import KeyValues, decisive
from dpsql.compiler.dialects import POST_PROCESSING
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir.conditions import TRUE, all_of, is_null
from dpsql.compiler.ir.nodes import Column, Expr, Field, Release, UnitScan
from dpsql.compiler.ir.primitives import MAX_CELL, Primitive
from dpsql.compiler.ir.walk import is_plain, operands, substitute
from dpsql.compiler.plan.bounded_releases import public_read
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.values.dependencies import in_one_group
from dpsql.privacy.mechanisms import AddedNoise, added, variance
from dpsql.sqltypes import SqlType

T = TypeVar("T")
UNTOLD = Fraction(10**100)
"""The variance of a cell that a release does not tell: it has no weight."""


@dataclass(frozen=True)
class Derivation:
    """How the cells of a release are computed from those of another, which is table r0 of the SQL.

    Attributes:
        places: For each cell, that of the other release which is added up; None where that does not tell it.
        domain: The groups that are listed, as table q0; None where there are no groups.
        terms: One row: for each cell, the most cells that are added up in a group.
        cells: The rows: keys as text, then the cells.
        members: For each group of the other release: its keys, where it is added up for each cell, and for which keys.
        spares: True where bounds may drop fewer rows in a fresh release: a filter keeps some of a unit's rows only.
    """

    places: tuple[int | None, ...]
    domain: PublicRead | None
    terms: str
    cells: str
    members: str
    spares: bool


def derivation(
    have: ReleaseDescription, want: PlannedRelease, catalog: Catalog, texts: dict[Expr, str] | None = None
) -> Derivation | None:
    """How a release is computed from a described one; None if that is not possible.

    Args:
        have: The described one.
        want: The release.
        catalog: The policy and its schema.
        texts: The digests of expressions of the release that are known; others are added.
    """
    asked = want.described
    if asked is None or not may_answer(have, asked.description):
        return None
    fields = tuple(Field(-1 - place, key.type) for place, key in enumerate(have.keys))
    known = {} if texts is None else texts
    values = KeyValues(asked, {key.text: field for key, field in zip(have.keys, fields, strict=True)}, known)
    rest = [term for term in asked.terms if asked.text(term) not in have.terms]
    keys: tuple[Expr, ...] | None = _all(map(values.over, asked.keys))
    terms: tuple[Expr, ...] | None = _all(map(values.over, rest))
    cells = [_cell(have, primitive, asked, values) for primitive in asked.primitives]
    if keys is None or terms is None or not any(cells):
        return None
    if not lists_every_row(have, asked.description.keys, asked, catalog):
        return None
    conditions = [TRUE if each is None else all_of(*each[1]) for each in cells]
    places = tuple(None if each is None else each[0] for each in cells)
    domain = None
    if want.query.tree.enumeration is not None:
        domain = public_read(want.query.tree.enumeration.relation, "q0", catalog)
    text = _Sums(fields, keys, all_of(*terms), conditions, places, catalog)
    tested = (*rest, *_tested(have, asked.primitives, places, asked))
    spares = _spares(have, asked, tested, catalog)
    return Derivation(places, domain, text.terms(), text.cells(asked.keys), text.members(), spares)


def _tested(
    have: ReleaseDescription, primitives: Sequence[Primitive], places: Sequence[int | None], asked: DescribedRelease
) -> Iterator[Expr]:
    """The conditions of cells that the cells added up for them do not have."""
    for primitive, place in zip(primitives, places, strict=True):
        if place is not None:
            yield from (term for term in filters(primitive) if asked.text(term) not in have.cells[place].terms)


def _spares(have: ReleaseDescription, asked: DescribedRelease, tested: Sequence[Expr], catalog: Catalog) -> bool:
    """Whether conditions that only one of two releases has keep some rows of a unit and leave out others."""
    if have.one_group:
        return False
    protected = asked.release.protected
    rows = replace(protected, relation=without(protected.relation, tested))
    return not in_one_group(rows, tested, catalog.schema)


def may_answer(have: ReleaseDescription, asked: ReleaseDescription) -> bool:
    """False where a look at two descriptions is enough to see that one does not answer the other."""
    if have.family != asked.family or asked.cell_texts.isdisjoint(have.cell_texts):
        return False
    return have.terms <= asked.terms and not _bounds_differ(have, asked)


def wider(have: ReleaseDescription, asked: DescribedRelease) -> Release | None:
    """The release by the keys of another one, without the terms that these keys express; None if none is wider.

    Guarantee: its cells have the sensitivity of those that are asked: each row is in one group, so a unit moves them
        by no more. Each cell that is asked is one of them, or a sum of some.
    Assumes: the release is planned, verified and charged as any other. The caller checks what it derives by `errors`.
    Reference: docs/mechanisms.md, "What is missing is bought".
    """
    told = _lacking(have, asked)
    parts = (part for whole in (*asked.keys, *told) for part in _parts(whole))
    known = {asked.text(part): part for part in parts}
    keys: tuple[Expr, ...] | None = _all(known.get(key.text) for key in have.keys)
    if not told or keys is None:
        return None
    return _by(asked, keys, told)


def with_merged_groups(have: ReleaseDescription, asked: DescribedRelease) -> Release | None:
    """The release by the keys of another one, in which the groups of each sum that is asked are merged.

    The groups of no sum are left as they are. They cost nothing more, and make later sums more exact.

    Guarantee: as `wider`: each row is in one group.
    Assumes: as `wider`.
    Reference: docs/mechanisms.md, "Sums of many groups".

    Returns:
        The release; None if the keys of the other one do not tell those that are asked, or its cells are others.
    """
    told = _lacking(have, asked)
    known = {asked.text(part): part for whole in (*asked.keys, *asked.terms) for part in _parts(whole)}
    mine = {asked.text(key) for key in asked.keys}
    keys: tuple[Expr, ...] | None = _all(known.get(key.text) for key in have.keys)
    if not told or keys is None or not mine <= {key.text for key in have.keys}:
        return None
    if not frozenset(asked.description.cells) <= frozenset(have.cells):
        return None
    condition = all_of(*told)
    written = (key if asked.text(key) in mine else merging(condition, key) for key in keys)
    return _by(asked, (*written, is_merged(condition)), told)


def merges_sums(have: ReleaseDescription, asked: DescribedRelease) -> bool:
    """Whether a release is one that `with_merged_groups` makes for another one."""
    told = {key.merged[0] for key in have.keys if key.merged is not None}
    alone = {key.text for key in have.keys if key.merged is None}
    if not told or alone != told | {key.text for key in asked.description.keys}:
        return False
    return told == {asked.text(is_merged(all_of(*_lacking(have, asked))))}


def _lacking(have: ReleaseDescription, asked: DescribedRelease) -> tuple[Expr, ...]:
    """The terms of a release that another one does not have."""
    return tuple(term for term, text in zip(asked.terms, asked.term_texts, strict=True) if text not in have.terms)


def _by(asked: DescribedRelease, keys: tuple[Expr, ...], dropped: Container[Expr]) -> Release:
    """A release by other keys, without some of its terms."""
    release = asked.release
    rows = without(release.protected.relation, dropped)
    named = tuple(Field(-1 - place, key.type) for place, key in enumerate(keys))
    aggregate = replace(release.aggregate, input=rows, key_fields=named, keys=keys)
    return replace(release, protected=replace(release.protected, relation=rows), aggregate=aggregate)


def union(asked: DescribedRelease, other: DescribedRelease) -> Release | None:
    """The release by the keys of two, without the terms that only one of them has: keys decide these, too.

    Guarantee: as `wider`: each row is in one group.
    Assumes: as `wider`.
    Reference: docs/mechanisms.md, "Workloads".

    Args:
        asked: The release whose cells it has.
        other: The release whose keys are added.

    Returns:
        The release; None if they are of different families or bounds, or if it is the first one.
    """
    if asked.description.family != other.description.family or asked.description.rows != other.description.rows:
        return None
    mine = {number: field for field, number in asked.numbers.items()}
    columns: dict[Field, Expr] = {field: Column(mine[number]) for field, number in other.numbers.items()}
    own = asked.description.terms & other.description.terms
    dropped = tuple(term for term in asked.terms if asked.text(term) not in own)
    theirs = tuple(term for term in other.terms if other.text(term) not in own)
    if not all(map(is_plain, (*other.keys, *dropped, *theirs))):
        return None
    told = (*dropped, *(substitute(term, columns) for term in theirs))
    wanted = decisive(told, (*asked.keys, *(substitute(key, columns) for key in other.keys)))
    keys = tuple({asked.text(key): key for key in wanted}.values())
    if set(keys) == set(asked.keys) and not dropped:
        return None
    return _by(asked, keys, dropped)


@dataclass(frozen=True)
class CellError:
    """The expected square of the error of a cell.

    Attributes:
        noise: That of its noise.
        bias: That of what bounds drop.
    """

    noise: Fraction
    bias: Fraction

    @property
    def whole(self) -> Fraction:
        """That of both."""
        return self.noise + self.bias


def errors(
    have: ReleaseDescription,
    noises: Sequence[AddedNoise],
    found: Derivation,
    terms: Sequence[int],
    want: PlannedRelease,
    groups: tuple[int, int],
) -> tuple[tuple[CellError, CellError], ...] | None:
    """The error of each cell: derived, and in a full release; None if that is unknown.

    Bounds drop rows of either. What a profile expects of them is spread over groups; of a fresh release no more is
    expected than of the derived one, as the same rows of a unit count in both. Where a filter spares a unit some of its
    rows, bounds may drop none of the others in a fresh release: nothing is expected of it there.

    Args:
        have: The release that is there.
        noises: The noise of its cells.
        found: How the cells are made of its cells.
        terms: For each cell, the most cells that are added up.
        want: The release that is asked.
        groups: How many groups the first has, and the second.
    """
    asked = want.described
    if asked is None:
        raise TypeError("what is derived is described")
    mine, fresh = have.bias, asked.bias
    if have.rows is None or (mine is None and fresh is None and not found.spares):
        mine = fresh = Fraction(0)
    if mine is None or fresh is None:
        return None
    fresh = Fraction(0) if found.spares else fresh / max(1, groups[1]) ** 2
    pairs = []
    for place, count, planned in zip(found.places, terms, want.primitives, strict=True):
        size = _size(planned.primitive) ** 2
        derived, bias = CellError(UNTOLD, Fraction(0)), fresh
        if place is not None:
            bias = mine * Fraction(count, max(1, groups[0])) ** 2
            derived = CellError(max(1, count) * variance(noises[place]), size * bias)
        pairs.append((derived, CellError(variance(added(planned.noise)), size * min(fresh, bias))))
    return tuple(pairs)


def _size(primitive: Primitive) -> Fraction:
    """What a dropped row is expected to take from a cell."""
    most = max(1, max(-primitive.lower, primitive.upper) // primitive.cap)
    return most * (primitive.row_weight or Fraction(1))


def _bounds_differ(have: ReleaseDescription, asked: ReleaseDescription) -> bool:
    """True if a different number of a unit's rows counts; a profile gives the cost of that in coarser groups."""
    if have.rows is None:
        return False
    if have.rows != asked.rows:
        return True
    if have.bias is not None and asked.bias is not None:
        return have.per_group != asked.per_group
    same_groups = have.keys == asked.keys and have.terms == asked.terms and have.per_group == asked.per_group
    return not same_groups and (have.per_group < have.rows or asked.per_group < have.rows)


def _cell(
    have: ReleaseDescription, primitive: Primitive, asked: DescribedRelease, values: KeyValues
) -> tuple[int, tuple[Expr, ...]] | None:
    """Which cell is added up for a cell, and for which groups."""
    if primitive.counts_units and not have.one_group:
        return None
    own = {asked.text(term): term for term in filters(primitive)}
    wanted = asked.description.cells[asked.primitives.index(primitive)]
    for place, cell in enumerate(have.cells):
        if cell.text != wanted.text or not cell.terms <= wanted.terms:
            continue
        terms: tuple[Expr, ...] | None = _all(values.over(term) for text, term in own.items() if text not in cell.terms)
        if terms is not None:
            return place, terms
    return None


def _parts(expression: Expr) -> Iterator[Expr]:
    yield expression
    for part in operands(expression):
        yield from _parts(part)


def _all(found: Iterable[T | None]) -> tuple[T, ...] | None:
    listed = tuple(found)
    known = tuple(each for each in listed if each is not None)
    return known if len(known) == len(listed) else None


def lists_every_row(
    have: ReleaseDescription, keys: Sequence[DescribedKey], asked: DescribedRelease, catalog: Catalog
) -> bool:
    """True where each row of a release with some keys has key values that the other one lists.

    Args:
        have: The other one.
        keys: The keys.
        asked: What tells the terms and the relations of the release.
        catalog: The policy and its schema.
    """
    own = {key.text for key in keys}
    fields = {number: field for field, number in asked.numbers.items()}
    used = {fields.get(number) for key in have.keys if key.text not in own for number in key.fields}
    return all(each is not None and _is_within(each, asked, catalog) for each in used)


def _is_within(field: Field, asked: DescribedRelease, catalog: Catalog) -> bool:
    """True where each row has a value of a field's domain, or NULL where that is one of them."""
    for relation in asked.relations:
        if isinstance(relation, UnitScan) and field in relation.column_fields:
            column = relation.columns[relation.column_fields.index(field)]
            lists_null = column.nullable or catalog.is_not_null(relation.table, column.name)
            is_listed = column.type is SqlType.BOOLEAN and column.values is None
            if lists_null and (is_listed or is_null(Column(field)) in asked.terms):
                return True
    return keeps_within_domain(field, asked.relations, asked.terms)


@dataclass(frozen=True)
class _Sums:
    """Writes the SQL of sums over the cells of table r0.

    Attributes:
        fields: The keys of r0.
        keys: The groups, over these.
        condition: Which rows of r0 are added up.
        conditions: For each sum, which of them.
        places: For each sum, the cell; None where there is none.
        catalog: The policy and its schema.
    """

    fields: tuple[Field, ...]
    keys: tuple[Expr, ...]
    condition: Expr
    conditions: Sequence[Expr]
    places: Sequence[int | None]
    catalog: Catalog

    def terms(self) -> str:
        """One row: the largest number of cells in a sum."""
        counts = ", ".join(
            f"{'0' if cell is None else f'count(*) FILTER (WHERE f{place})'} AS n{place}"
            for place, cell in enumerate(self.places)
        )
        groups = ", ".join(f"g{place}" for place, _ in enumerate(self.keys))
        most = ", ".join(f"coalesce(max(n{place}), 0)" for place, _ in enumerate(self.places))
        by = f" GROUP BY {groups}" if groups else ""
        return f"SELECT {most}, count(*) FROM (SELECT {counts} FROM ({self._rows()}) WHERE w{by})"

    def cells(self, keys: Sequence[Expr]) -> str:
        """One row a group, in the order of the groups that are listed."""
        sums = ", ".join(
            f"CAST({0 if cell is None else self._sum(cell, place)} AS BIGINT) AS x{place}"
            for place, cell in enumerate(self.places)
        )
        if not keys:
            return f"SELECT {sums} FROM ({self._rows()}) WHERE w"
        names = ", ".join(f"v{place}" for place, _ in enumerate(keys))
        same = " AND ".join(
            f"g{place} IS NOT DISTINCT FROM {from_text(f'v{place}', key.type)}" for place, key in enumerate(keys)
        )
        order = ", ".join(f"{from_text(f'v{place}', key.type)} NULLS LAST" for place, key in enumerate(keys))
        return (
            f"SELECT {names}, {sums} FROM q0 LEFT JOIN (SELECT * FROM ({self._rows()}) WHERE w) ON {same} "
            f"GROUP BY {names} ORDER BY {order}"
        )

    def members(self) -> str:
        """One row a group of r0: its keys, whether it is added up, for which cells, and the keys of its sum."""
        keys = [f"k{place}" for place, _ in enumerate(self.fields)]
        used = [f"coalesce(w AND f{place}, false)" for place, _ in enumerate(self.places)]
        groups = [f"CAST(g{place} AS VARCHAR)" for place, _ in enumerate(self.keys)]
        return f"SELECT {', '.join([*keys, 'coalesce(w, false)', *used, *groups])} FROM ({self._rows()})"

    def _sum(self, cell: int, place: int) -> str:
        return f"greatest(least(coalesce(sum(p{cell}) FILTER (WHERE f{place}), 0), {MAX_CELL}), -{MAX_CELL})"

    def _rows(self) -> str:
        """The rows of r0 with their groups g0 …, whether they are added up at all (w), and for which sums (f0 …)."""
        renderer = Renderer(POST_PROCESSING, self.catalog.schema, self.catalog.policy)
        made = {f"g{place}": key for place, key in enumerate(self.keys)} | {"w": self.condition}
        made |= {f"f{place}": condition for place, condition in enumerate(self.conditions)}
        typed = [f"{from_text(f'k{i}', field.type)} AS {renderer.name(field)}" for i, field in enumerate(self.fields)]
        items = [f"{renderer.expression(expression)} AS {name}" for name, expression in made.items()]
        return f"SELECT *, {', '.join(items)} FROM (SELECT {', '.join(['*', *typed])} FROM r0)"
