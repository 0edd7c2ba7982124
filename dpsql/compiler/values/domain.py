"""domain: the public set of values that group keys can have together, or None where it is private.

It is found in four steps, each in a file of its own:

1. `lineage` follows the keys down to their `sources`: the policy's lists, public tables, and relations beneath unions
   and outer joins, whose domains are found in the same way. The conditions on the way are noted.
2. Fields that the conditions equate with listed values are replaced by these (`lineage.with_public_equals`).
3. `finite_parts` replaces parts of keys that have finitely many values although their columns do not.
4. `projection` crosses the sources of keys that belong together, applies the conditions, and computes the keys.

Rule 1: a domain follows from the policy and the query's text alone; rows whose keys lie outside it are dropped.
Rule 2: for all contents of public tables, there are at most `Domain.size` groups: sensitivities rely on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from dpsql.compiler.ir.nodes import (
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Join,
    Literal,
    Project,
    Relation,
    SetOperation,
)
from dpsql.compiler.ir.walk import fields_in
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.values.finite_parts import FiniteParts
from dpsql.compiler.values.lineage import Origin, propagated, trace, with_public_equals
from dpsql.compiler.values.projection import Domain, KnownSources, Projections, product
from dpsql.compiler.values.sources import MAX_SOURCE as MAX_SOURCE
from dpsql.compiler.values.sources import Lister, Source

MAX_GROUPS = 100_000
"""Groups that are enumerated at the most; beyond that keys count as private."""


def enumerate_keys(
    keys: tuple[Expr, ...], relation: Relation, catalog: Catalog, fields: Fields
) -> tuple[Relation, int | None] | None:
    """Return all combinations of key values as a public relation with one field for each key, in the order of the keys.

    Returns:
        The relation and its maximal number of rows (None if a public table decides), or None if a key is private or
        there are too many combinations.
    """
    found = DomainFinder(Lister(catalog, fields)).domain(keys, relation)
    return (found.relation, found.size) if found is not None else None


@dataclass(frozen=True)
class DomainFinder:
    """Finds the domains of keys over relations, and over those beneath that they are made of, each once."""

    lister: Lister
    found: dict[tuple[tuple[Expr, ...], Relation], Domain | None] = field(default_factory=dict)

    def domain(self, keys: tuple[Expr, ...], relation: Relation) -> Domain | None:
        """The domain of keys, or None if it is private or too large."""
        at = (keys, relation)
        if at not in self.found:
            domain = self._of_origin(trace(keys, relation, self.lister))
            self.found[at] = domain if domain is not None and domain.estimate <= MAX_GROUPS else None
        return self.found[at]

    def _of_origin(self, origin: Origin) -> Domain | None:
        """The domain of keys that are written over sources."""
        known = KnownSources(self.lister, self.domain)
        for source in origin.sources:
            known.add(source)
        origin = with_public_equals(origin, known.has)
        origin = replace(origin, facts=propagated(origin.facts))
        finite = FiniteParts.over(origin, self.lister, known.add, known.has_few)
        choices = [_choices(key, finite, known) for key in origin.keys]
        known_choices = [choice for choice in choices if choice is not None]
        if len(known_choices) < len(choices):
            return None
        projections = Projections(
            known, _conditions(origin, finite, known), _lookups(origin, finite, known), finite.ends
        )
        return self._combined(known_choices, projections)

    def _combined(self, choices: Sequence[tuple[Expr, ...]], projections: Projections) -> Domain | None:
        """The domains of keys that are listed together, each group of them crossed with the others."""
        single = [position for position, choice in enumerate(choices) if len(choice) == 1]
        expressions = [choices[position][0] for position in single]
        domains: dict[tuple[int, ...], Domain] = {
            (position,): self._union(choice, projections) for position, choice in enumerate(choices) if len(choice) > 1
        }
        for group in projections.groups(expressions):
            together = projections.together([expressions[each] for each in group])
            if together is not None:
                domains[tuple(single[each] for each in group)] = together
            else:
                domains |= {(single[each],): projections.alone(expressions[each]) for each in group}
        return self._crossed(domains)

    def _union(self, choice: Sequence[Expr], projections: Projections) -> Domain:
        """The values of the branches of CASE or COALESCE; there may be hundreds of constants among them."""
        literals = [each.value for each in choice if isinstance(each, Literal)]
        domains = [projections.alone(each) for each in choice if not isinstance(each, Literal)]
        if literals:
            source = self.lister.values(tuple(literals), choice[0].type, nulls=False)
            domains.append(Domain(source.relation, source.size, len(literals)))
        sizes = [domain.size for domain in domains if domain.size is not None]
        estimate = sum(domain.estimate for domain in domains)
        union = self._united([domain.relation for domain in domains])
        return Domain(Distinct(union), sum(sizes) if len(sizes) == len(domains) else None, estimate)

    def _united(self, relations: Sequence[Relation]) -> Relation:
        """Relations of one field below one another; in halves, so that what nests them is not deep."""
        if len(relations) == 1:
            return relations[0]
        half = len(relations) // 2
        left, right = self._united(relations[:half]), self._united(relations[half:])
        return SetOperation("union", True, left, right, (self.lister.fields.new(left.fields[0].type),))

    def _crossed(self, domains: dict[tuple[int, ...], Domain]) -> Domain | None:
        """Domains of some keys each, by their positions, as one of all keys in their order; None for no keys."""
        relation: Relation | None = None
        fields: dict[int, Field] = {}
        for positions, domain in sorted(domains.items(), key=lambda item: item[0]):
            fields |= zip(positions, domain.relation.fields, strict=True)
            relation = domain.relation if relation is None else Join("cross", relation, domain.relation, None)
        if relation is None:
            return None
        ordered = tuple(fields[position] for position in sorted(fields))
        if ordered != relation.fields:
            new = tuple(self.lister.fields.new(each.type) for each in ordered)
            relation = Project(relation, new, tuple(map(Column, ordered)))
        size = product(domain.size for domain in domains.values())
        return Domain(relation, size, prod(domain.estimate for domain in domains.values()))


def _choices(key: Expr, finite: FiniteParts, known: KnownSources) -> tuple[Expr, ...] | None:
    """Expressions over known sources, one of which gives the key: the key itself, or branches of CASE and COALESCE."""
    reduced = finite.reduced(key)
    if known.has_few(reduced):
        return (reduced,)
    if isinstance(key, Cast):
        beneath = _choices(key.argument, finite, known)
        return tuple(replace(key, argument=each) for each in beneath) if beneath is not None else None
    if isinstance(key, Case):
        branches: Sequence[Expr] = [*(value for _, value in key.branches), key.default]
    elif isinstance(key, Call) and key.function == "coalesce":
        branches = key.arguments
    else:
        return None
    found = [_choices(branch, finite, known) for branch in branches]
    listed = [choice for choice in found if choice is not None]
    return tuple(dict.fromkeys(each for choice in listed for each in choice)) if len(listed) == len(found) else None


def _conditions(origin: Origin, finite: FiniteParts, known: KnownSources) -> tuple[Expr, ...]:
    """The conditions that hold between known sources."""
    everywhere = [finite.reduced(condition, make=False) for condition in propagated(origin.conditions)]
    beneath = [finite.reduced(condition, make=False) for condition in propagated(origin.beneath)]
    found = [*everywhere, *(each for each in beneath if not fields_in(each) & origin.kept)]
    return tuple(dict.fromkeys(each for each in found if fields_in(each) and known.has(each)))


def _lookups(origin: Origin, finite: FiniteParts, known: KnownSources) -> dict[int, Expr]:
    """The conditions of optional sources between known ones, by their places."""
    found: dict[int, Expr] = {}
    for place, source in enumerate(origin.sources):
        if isinstance(source, Source) and source.condition is not None:
            reduced = finite.reduced(source.condition, make=False)
            if known.has(reduced):
                found[place] = reduced
    return found
