"""finite_parts: parts of keys that have finitely many values, although the columns beneath have not.

Such a part is a condition, a whole number of bounded size, an expression that the query compares with constants, or a
function of a moment, as its year. A field over all its values, of a new source, takes its place; the rest of the key
is computed from that field.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.compiler.ir.conditions import bare, compared, constants, converted
from dpsql.compiler.ir.nodes import Call, Case, Cast, Column, Exists, Expr, Field, InRelation, Literal, Scalar, Window
from dpsql.compiler.ir.walk import rewrite_expression, substitute
from dpsql.compiler.values.bounds import Bounded, Interval, interval, narrow
from dpsql.compiler.values.calendar_units import UNITS, Moments, finest_units, narrow_moments, unit_of
from dpsql.compiler.values.grids import is_whole
from dpsql.compiler.values.lineage import Origin
from dpsql.compiler.values.sources import MAX_WHOLE, Lister, Source
from dpsql.sqltypes import INTEGER_RANGES, SqlType

_NEVER_NULL = frozenset({"is_null", "is_true", "is_false", "distinct_from"})


@dataclass
class FiniteParts:
    """Replaces the finite parts of expressions over one origin: keys first, then conditions on the same parts.

    Attributes:
        lister: Makes sources.
        add: Registers a new source.
        is_listed: Returns whether all fields of an expression are listed, with few enough combinations to enumerate.
        bounds: Intervals of numeric fields and of compared expressions.
        moments: Bounds of dates and timestamps that are not listed themselves.
        constants: Expressions that a condition restricts to constants.
        units: For each moment, the unit that determines all key expressions over it.
        present: Fields that conditions compare with constants, and that are therefore not NULL.
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
    ) -> "FiniteParts":
        """The finite parts of an origin's keys, with the bounds that its facts give."""
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
        """An expression whose finite parts are replaced by listed fields.

        Args:
            expression: An expression over the origin's fields.
            make: Whether new parts are replaced too; otherwise only those that were replaced before.
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
        return self._finite(expression) or expression

    def _column(self, source: Source | None) -> Column | None:
        if source is None:
            return None
        self.add(source)
        return Column(source.fields[0])

    # Conditions and whole numbers

    def _finite(self, expression: Expr) -> Column | None:
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
        """A source of the constants that a condition restricts the expression to; the condition still applies."""
        if expression not in self.constants:
            return None
        items, types = self.constants[expression]
        values = tuple(dict.fromkeys(item.value for item in items))
        column = self._column(self.lister.values(values, items[0].type, nulls=False))
        return converted(column, types) if column is not None else None

    # Moments

    def _moment(self, expression: Expr, *, make: bool) -> Expr | None:
        """A function of a date or timestamp, computed from the first instants of a unit that determines its value."""
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
