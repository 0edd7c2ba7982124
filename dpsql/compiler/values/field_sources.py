"""field_sources: the sources of one relation's fields, by field."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod

from dpsql.compiler.ir.nodes import Column, Expr, Field, Project, Relation, SetOperation
from dpsql.compiler.ir.walk import fields_in
from dpsql.compiler.values.lineage import is_plain
from dpsql.compiler.values.sources import MAX_SOURCE, Arms, Lister, Source


@dataclass(frozen=True)
class Domain:
    """The values of some keys together.

    Attributes:
        relation: A public relation with one field a key; no row comes twice.
        size: How many rows it has at the most; None where a public table or a released relation decides.
        estimate: How many it is taken to have.
    """

    relation: Relation
    size: int | None
    estimate: int


@dataclass
class Known:
    """Sources, each known by its place in the list.

    Attributes:
        lister: Makes sources.
        domain: Finds the domain of keys over a relation beneath.
        sources: The sources.
    """

    lister: Lister
    domain: Callable[[tuple[Expr, ...], Relation], Domain | None]
    sources: list[Source | Arms] = field(default_factory=list)
    _places: dict[Field, int] = field(default_factory=dict)
    _listed: dict[tuple[int, tuple[Field, ...]], Source | None] = field(default_factory=dict)

    def add(self, source: Source | Arms) -> None:
        """Take note of a source."""
        self._places |= dict.fromkeys(source.fields, len(self.sources))
        self.sources.append(source)

    def places(self, expressions: Iterable[Expr]) -> frozenset[int]:
        """The places of the sources that expressions take values from."""
        return frozenset(self._places[each] for expression in expressions for each in fields_in(expression))

    def has(self, expression: Expr) -> bool:
        """True where an expression is a function of fields whose values are listed."""
        return is_plain(expression) and all(map(self._has_field, sorted(fields_in(expression), key=_number)))

    def _has_field(self, each: Field) -> bool:
        return each in self._places and self.listed(self._places[each], frozenset({each})) is not None

    def has_few(self, expression: Expr) -> bool:
        """True where these values are besides few enough to be tried one by one."""
        if not self.has(expression):
            return False
        used = fields_in(expression)
        found = [self.listed(place, used) for place in sorted(self.places((expression,)))]
        known = [source for source in found if source is not None]
        return len(known) == len(found) and prod(source.most or 1 for source in known) <= MAX_SOURCE

    def listed(self, place: int, used: frozenset[Field]) -> Source | None:
        """A source as rows of all its fields, or of those that are used where that makes them fewer."""
        source = self.sources[place]
        if isinstance(source, Source):
            return source
        fields = tuple(each for each in source.fields if each in used)
        if (place, fields) not in self._listed:
            self._listed[place, fields] = self._of_arms(source, fields)
        return self._listed[place, fields]

    def _of_arms(self, source: Arms, fields: tuple[Field, ...]) -> Source | None:
        found = []
        for relation, expressions in source.arms:
            written = dict(zip(source.fields, expressions, strict=True))
            found.append(self.domain(tuple(written[each] for each in fields), relation))
        domains = [domain for domain in found if domain is not None]
        if len(domains) < len(found):
            return None
        rows = domains[0].relation
        for domain in domains[1:]:
            new = tuple(self.lister.fields.new(each.type) for each in fields)
            rows = SetOperation("union", True, rows, domain.relation, new)
        rows = self.lister.with_absent(rows) if source.optional else rows
        sizes = [domain.size for domain in domains if domain.size is not None]
        size = sum(sizes) + source.optional if len(sizes) == len(domains) else None
        listed = Project(rows, fields, tuple(map(Column, rows.fields)))
        return Source(listed, size, typical=sum(domain.estimate for domain in domains))


def _number(each: Field) -> int:
    return each.number
