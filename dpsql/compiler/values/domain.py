"""domain: the public set of values that group keys can have together, or None where it is private.

Rule 1: a domain follows from the policy and the query's text alone; rows whose keys lie outside it are dropped.
Rule 2: the number of groups that is named is never exceeded, whatever public tables hold: sensitivities rely on it.
Rule 3: a part of a key may have a finite set of values although the columns beneath have not. The part is replaced by
a field over all its values; the rest of the key is computed from them.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

from dpsql.compiler.ir.nodes import (
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Exists,
    Expr,
    Field,
    InRelation,
    Join,
    Literal,
    Project,
    Relation,
    Scalar,
    SetOperation,
    Window,
)
from dpsql.compiler.ir.walk import fields_in, rewrite_expression
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.values.bounds import Bounded, Interval, interval, narrow
from dpsql.compiler.values.dependencies import bare, compared, constants, converted, propagated, with_public_equals
from dpsql.compiler.values.grids import is_whole
from dpsql.compiler.values.lineage import Domain, Known, Moments, Origin, substitute, trace
from dpsql.compiler.values.projection import UNITS, Images, finest_units, narrow_moments, product, unit_of
from dpsql.compiler.values.sources import MAX_SOURCE as MAX_SOURCE
from dpsql.compiler.values.sources import MAX_WHOLE, Lister, Source
from dpsql.sqltypes import INTEGER_RANGES, SqlType

_NEVER_NULL = frozenset({"is_null", "is_true", "is_false", "distinct_from"})


@dataclass
class Leaves:
    """Replaces parts of expressions over one origin.

    Attributes:
        lister: Makes sources.
        add: Takes note of a new source.
        is_listed: Tells whether all fields of an expression are listed, and few enough to try one by one.
        bounds: Intervals of numeric fields, and of what conditions compare.
        moments: Limits of dates and timestamps that are not listed themselves.
        constants: Expressions that are among constants.
        units: The unit that tells all functions of a moment that the keys have.
        present: Fields that conditions compare with constants, and that are not NULL therefore.
    """

    lister: Lister
    add: Callable[[Source], None]
    is_listed: Callable[[Expr], bool]
    bounds: dict[Bounded, Interval]
    moments: dict[Field, Moments]
    constants: dict[Expr, tuple[tuple[Literal, ...], tuple[SqlType, ...]]]
    units: dict[Field, str]
    present: frozenset[Field]
    _made: dict[Expr, Expr] = field(default_factory=dict)
    _instants: dict[tuple[Field, str], Field] = field(default_factory=dict)

    @classmethod
    def over(
        cls, origin: Origin, lister: Lister, add: Callable[[Source], None], is_listed: Callable[[Expr], bool]
    ) -> "Leaves":
        """The leaves of an origin's keys."""
        bounds, moments = dict(origin.bounds), dict(origin.moments)
        among: dict[Expr, tuple[tuple[Literal, ...], tuple[SqlType, ...]]] = {}
        for fact in origin.facts:
            bounds = narrow(bounds, fact)
            narrow_moments(moments, fact)
            found = constants(fact)
            if found is not None:
                target, types = bare(found[0])
                among.setdefault(target, (found[1], types))
        present = frozenset(found[1] for found in map(compared, origin.conditions) if found is not None)
        return cls(lister, add, is_listed, bounds, moments, among, finest_units(origin.keys), present)

    def reduced(self, expression: Expr, *, make: bool = True) -> Expr:
        """An expression over listed fields, as far as there are some.

        Args:
            expression: An expression over the origin's fields.
            make: Whether further parts may be replaced, or only those that have been.
        """
        if self.is_listed(expression):
            return expression
        if expression not in self._made:
            found = self._replaced(expression, make=make)
            if found == expression or not make:
                return found
            self._made[expression] = found
        return self._made[expression]

    def _replaced(self, expression: Expr, *, make: bool) -> Expr:
        found = self._moment(expression, make=make) or (self._among_constants(expression) if make else None)
        if found is not None:
            return found
        inner = expression
        if not isinstance(expression, Exists | InRelation | Scalar | Window):
            inner = rewrite_expression(
                expression, lambda part: None if part is expression else self.reduced(part, make=make)
            )
        if self.is_listed(inner) or not make:
            return inner
        return self._leaf(expression) or expression

    def _column(self, source: Source | None) -> Column | None:
        if source is None:
            return None
        self.add(source)
        return Column(source.fields[0])

    # Conditions and whole numbers

    def _leaf(self, expression: Expr) -> Column | None:
        """A condition, or a whole number of bounded size."""
        if expression.type is SqlType.BOOLEAN:
            is_exists = isinstance(expression, Exists)
            surely = is_exists or (isinstance(expression, Call) and expression.function in _NEVER_NULL)
            return self._column(self.lister.values((False, True), SqlType.BOOLEAN, not surely))
        if isinstance(expression, Case) or (isinstance(expression, Call) and expression.function == "coalesce"):
            return None  # its branches are fewer
        ends = self.ends(expression) if _has_listed_type(expression) else None
        column = self._column(self.lister.numbers(*ends, expression.type, nulls=True)) if ends is not None else None
        if column is not None and ends is not None:
            self.bounds[column.field] = Interval(*map(Fraction, ends))
        return column

    def ends(self, expression: Expr) -> tuple[int, int] | None:
        """The least and the greatest value of a whole number, if both are known; crossed where it is always NULL."""
        if not is_whole(expression):
            return None
        if isinstance(expression, Call) and expression.function in _ROUNDINGS:
            found = self._float_ends(expression.arguments[0])
            rounded = _ROUNDINGS[expression.function]
            return (rounded(found[0]), rounded(found[1])) if found is not None else None
        known = interval(expression, self.bounds)
        if known.lower is None or known.upper is None:
            return None
        low, high = INTEGER_RANGES.get(expression.type, (-MAX_WHOLE, MAX_WHOLE))
        first, last = max(known.lower.__ceil__(), low), min(known.upper.__floor__(), high)
        return (first, last) if first <= last else (high, low)  # both are numbers of its type

    def _float_ends(self, expression: Expr) -> tuple[float, float] | None:
        """The limits of a number, with the rounding errors that the engine makes there.

        Each operation keeps the order of its operands, rounding included: nothing beyond the limits comes of them.
        """
        if isinstance(expression, Cast) and expression.type is SqlType.DOUBLE and expression.argument.type.is_number:
            return self._float_ends(expression.argument)
        if isinstance(expression, Cast) and expression.is_computed:
            return None
        if isinstance(expression, Call) and expression.function in _CORNERS:
            sides = [self._float_ends(argument) for argument in expression.arguments]
            both = [side for side in sides if side is not None]
            return _corners(expression.function, both) if len(both) == 2 else None
        if isinstance(expression, Call) and expression.function == "negate":
            found = self._float_ends(expression.arguments[0])
            return (-found[1], -found[0]) if found is not None else None
        known = interval(expression, self.bounds)
        if known.lower is None or known.upper is None or max(abs(known.lower), abs(known.upper)) > MAX_WHOLE:
            return None
        low, high = float(known.lower), float(known.upper)
        if isinstance(expression, Column | Literal) or expression.type is not SqlType.DOUBLE:
            return low, high
        return low - abs(low) * _ERROR, high + abs(high) * _ERROR

    # Constants

    def _among_constants(self, expression: Expr) -> Expr | None:
        """What a condition says is among constants; which of them those are is seen to by the condition itself."""
        if expression not in self.constants:
            return None
        items, types = self.constants[expression]
        values = tuple(dict.fromkeys(item.value for item in items))
        column = self._column(self.lister.values(values, items[0].type, nulls=False))
        return converted(column, types) if column is not None else None

    # Moments

    def _moment(self, expression: Expr, *, make: bool) -> Expr | None:
        """A function of a date or timestamp, computed from the instants of a unit that tell its value."""
        use = unit_of(expression)
        if use is None:
            return None
        moment, needed = use
        for unit in dict.fromkeys((self.units.get(moment, needed), needed)):
            if UNITS.index(unit) <= UNITS.index(needed):
                column = self._instants_of(moment, unit, make=make)
                if column is not None:
                    return substitute(expression, {moment: column})
        return None

    def _instants_of(self, moment: Field, unit: str, *, make: bool) -> Column | None:
        first, last = self.moments.get(moment, (None, None))
        if (moment, unit) not in self._instants:
            if not make or first is None or last is None:
                return None
            nulls = moment not in self.present
            column = self._column(self.lister.moments(first, last, unit, moment.type, nulls))
            if column is None:
                return None
            self._instants[moment, unit] = column.field
        return Column(self._instants[moment, unit])


def _has_listed_type(expression: Expr) -> bool:
    """True where a list of whole numbers can be given the expression's very type: numerics differ by their scale."""
    return expression.type is not SqlType.NUMERIC or (isinstance(expression, Cast) and expression.scale == 0)


_ROUNDINGS: dict[str, Callable[[float], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}
_CORNERS: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}
_ERROR = 2.0**-40
"""More than the rounding errors of an expression add up to, relative to its value."""


def _corners(function: str, sides: list[tuple[float, float]]) -> tuple[float, float] | None:
    """The least and the greatest result; each is that of two limits."""
    left, right = sides
    if function == "divide" and right[0] <= 0 <= right[1]:
        return None
    found = [_CORNERS[function](one, other) for one in left for other in right]
    return (min(found), max(found)) if max(map(abs, found)) <= MAX_WHOLE else None


MAX_GROUPS = 100_000
"""Groups that are enumerated at the most; beyond that keys count as private."""


def enumerate_keys(
    keys: tuple[Expr, ...], relation: Relation, catalog: Catalog, fields: Fields
) -> tuple[Relation, int | None] | None:
    """All combinations of key values as a public relation with one field a key, in their order.

    Returns:
        The relation and the number of its rows at the most (None where a public table decides), or None where
        some key is private or there are too many combinations.
    """
    found = DomainFinder(Lister(catalog, fields)).domain(keys, relation)
    return (found.relation, found.size) if found is not None else None


@dataclass(frozen=True)
class DomainFinder:
    """Finds the domains of keys over relations, and over those beneath that they are made of, each once."""

    lister: Lister
    found: dict[tuple[tuple[Expr, ...], Relation], Domain | None] = field(default_factory=dict)

    def domain(self, keys: tuple[Expr, ...], relation: Relation) -> Domain | None:
        """The domain of keys, or None where it is private or too large."""
        at = (keys, relation)
        if at not in self.found:
            domain = self._of_origin(trace(keys, relation, self.lister))
            self.found[at] = domain if domain is not None and domain.estimate <= MAX_GROUPS else None
        return self.found[at]

    def _of_origin(self, origin: Origin) -> Domain | None:
        known = Known(self.lister, self.domain)
        for source in origin.sources:
            known.add(source)
        origin = with_public_equals(origin, known.has)
        origin = replace(origin, facts=propagated(origin.facts))
        leaves = Leaves.over(origin, self.lister, known.add, known.has_few)
        choices = [_choices(key, leaves, known) for key in origin.keys]
        known_choices = [choice for choice in choices if choice is not None]
        if len(known_choices) < len(choices):
            return None
        images = Images(known, _conditions(origin, leaves, known), _lookups(origin, leaves, known), leaves.ends)
        return self._combined(known_choices, images)

    def _combined(self, choices: Sequence[tuple[Expr, ...]], images: Images) -> Domain | None:
        """The domains of keys that are listed together, each group of them crossed with the others."""
        single = [position for position, choice in enumerate(choices) if len(choice) == 1]
        expressions = [choices[position][0] for position in single]
        domains: dict[tuple[int, ...], Domain] = {
            (position,): self._union(choice, images) for position, choice in enumerate(choices) if len(choice) > 1
        }
        for group in images.groups(expressions):
            together = images.together([expressions[each] for each in group])
            if together is not None:
                domains[tuple(single[each] for each in group)] = together
            else:
                domains |= {(single[each],): images.alone(expressions[each]) for each in group}
        return self._crossed(domains)

    def _union(self, choice: Sequence[Expr], images: Images) -> Domain:
        """The values of the branches of CASE or COALESCE; there may be hundreds of constants among them."""
        literals = [each.value for each in choice if isinstance(each, Literal)]
        domains = [images.alone(each) for each in choice if not isinstance(each, Literal)]
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


def _choices(key: Expr, leaves: Leaves, known: Known) -> tuple[Expr, ...] | None:
    """Expressions over known sources of which a key is one: by itself, or by the branches of CASE and COALESCE."""
    reduced = leaves.reduced(key)
    if known.has_few(reduced):
        return (reduced,)
    if isinstance(key, Cast):
        beneath = _choices(key.argument, leaves, known)
        return tuple(replace(key, argument=each) for each in beneath) if beneath is not None else None
    if isinstance(key, Case):
        parts: Sequence[Expr] = [*(value for _, value in key.branches), key.default]
    elif isinstance(key, Call) and key.function == "coalesce":
        parts = key.arguments
    else:
        return None
    found = [_choices(part, leaves, known) for part in parts]
    listed = [choice for choice in found if choice is not None]
    return tuple(dict.fromkeys(each for choice in listed for each in choice)) if len(listed) == len(found) else None


def _conditions(origin: Origin, leaves: Leaves, known: Known) -> tuple[Expr, ...]:
    """The conditions that hold between known sources."""
    everywhere = [leaves.reduced(condition, make=False) for condition in propagated(origin.conditions)]
    beneath = [leaves.reduced(condition, make=False) for condition in propagated(origin.beneath)]
    found = [*everywhere, *(each for each in beneath if not fields_in(each) & origin.kept)]
    return tuple(dict.fromkeys(each for each in found if fields_in(each) and known.has(each)))


def _lookups(origin: Origin, leaves: Leaves, known: Known) -> dict[int, Expr]:
    """The conditions of optional sources between known ones, by their places."""
    found: dict[int, Expr] = {}
    for place, source in enumerate(origin.sources):
        if isinstance(source, Source) and source.condition is not None:
            reduced = leaves.reduced(source.condition, make=False)
            if known.has(reduced):
                found[place] = reduced
    return found
