"""coercion: the common types of expressions that are compared or combined, as PostgreSQL would choose them.

Rule: arithmetic that involves numeric, real or double precision is done in double precision, and what comes of
numerics is rounded to one; integers stay integers. A comparison never converts in a way that could fail on some row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from dpsql.compiler.ir.nodes import COMPUTED_SCALE, MAX_PRECISION, Cast, Expr, Literal
from dpsql.compiler.ir.walk import as_numeric, in_double, is_nearest
from dpsql.compiler.sql.constant_folding import spelled
from dpsql.compiler.sql.literals import Parameters
from dpsql.errors import DatatypeMismatch
from dpsql.sqltypes import SqlType

_INTEGER_ORDER = (SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT)


@dataclass(frozen=True)
class Coercion:
    """Implicit conversions within one query; they also infer the types of its parameters."""

    parameters: Parameters

    def to(self, expression: Expr, target: SqlType, at: int | None = None) -> Expr:
        """Return `expression` as a value of `target`.

        Raises:
            DatatypeMismatch: There is no implicit conversion.
            InvalidText: A quoted constant is not of that type.
        """
        source = expression.type
        if source is target:
            return expression
        if isinstance(expression, Literal) and (source is SqlType.UNKNOWN or expression.value is None):
            if expression.parameter is not None and source is SqlType.UNKNOWN:
                self.parameters.types[expression.parameter] = target
            return self.parameters.read(replace(expression, type=target), at)
        if target is SqlType.DOUBLE and in_double(expression) is not expression:
            return in_double(expression)
        widening = source.is_number and target.is_number
        texts = source.is_text and target.is_text
        moments = source.is_moment and target.is_moment
        if widening or texts or moments or (source.is_json and target.is_json):
            return Cast(expression, target)
        raise DatatypeMismatch(
            f"this must be of type {target.value}, not type {source.value}",
            position=at,
            hint=f"Cast it to {target.value}.",
        )

    def unify(self, expressions: Sequence[Expr], at: int | None = None) -> tuple[Expr, ...]:
        """Cast expressions to their common type, and numerics to one scale, unless all are constants that fit one."""
        target = common_type(expressions, at)
        if target is not SqlType.NUMERIC or len(expressions) == 1:
            return tuple(self.to(e, target, at) for e in expressions)
        numbers = [self.to(e, target, at) if e.type is SqlType.UNKNOWN else e for e in expressions]
        constants = tuple(each for each in map(_as_decimal, numbers) if each is not None)
        if len(constants) == len(numbers) and _fit_one_scale(constants):
            return constants
        return tuple(self.scaled(e, at) for e in numbers)

    def rounded(self, number: Expr) -> Expr:
        """A number in double precision; a numeric that is computed is rounded first, so that 100 * 0.29 is 29."""
        inner = in_double(number)
        if inner is number or is_nearest(inner):
            return self.to(number, SqlType.DOUBLE)
        return Cast(number, SqlType.DOUBLE)

    def scaled(self, expression: Expr, at: int | None = None) -> Expr:
        """A number as a numeric of a scale that all have, for the engine would choose one that not all values fit."""
        return Cast(self.to(expression, SqlType.NUMERIC, at), SqlType.NUMERIC, COMPUTED_SCALE)

    def computed(
        self, make: Callable[[tuple[Expr, ...]], Expr], expressions: Sequence[Expr], at: int | None = None
    ) -> Expr:
        """Return a function of expressions in their common type; with numerics it is computed in DOUBLE PRECISION."""
        target = common_type(expressions, at)
        if target is SqlType.REAL and any(e.type not in (SqlType.REAL, SqlType.UNKNOWN) for e in expressions):
            return Cast(make(tuple(self.to(e, SqlType.DOUBLE, at) for e in expressions)), SqlType.REAL)
        if target is not SqlType.NUMERIC or sum(e.type is not SqlType.UNKNOWN for e in expressions) == 1:
            return make(tuple(self.to(e, target, at) for e in expressions))
        return as_numeric(make(tuple(self.to(e, SqlType.DOUBLE, at) for e in expressions)))

    def unify_compared(self, expressions: Sequence[Expr], places: Sequence[int | None]) -> tuple[Expr, ...]:
        """Bring the sides of a comparison to a type in which they compare without conversion errors.

        Args:
            expressions: The sides.
            places: The position of each side in the text.
        """
        target = common_type(expressions, places[0])
        if target is SqlType.REAL and any(e.type is not SqlType.REAL for e in expressions):
            target = SqlType.DOUBLE
        if target in (SqlType.NUMERIC, SqlType.DOUBLE):
            numbers = (
                self.to(e, target, at) if e.type is SqlType.UNKNOWN else e
                for e, at in zip(expressions, places, strict=True)
            )
            return tuple(map(self.rounded, numbers))
        if target is SqlType.TIMESTAMPTZ and str(self.parameters.zone) == "UTC":
            clocks = [clock for clock in map(_on_the_clock, expressions) if clock is not None]
            if len(clocks) == len(expressions):
                expressions, target = clocks, SqlType.TIMESTAMP
        return tuple(self.to(e, target, at) for e, at in zip(expressions, places, strict=True))


def _as_decimal(expression: Expr) -> Literal | None:
    """Return an integer or numeric constant, or NULL, as numeric; None for other expressions."""
    if not isinstance(expression, Literal) or expression.parameter is not None:
        return None
    return Literal(None if expression.value is None else Decimal(str(expression.value)), SqlType.NUMERIC)


def _fit_one_scale(constants: Sequence[Literal]) -> bool:
    """Return whether one numeric type of the engines can hold all the constants."""
    numbers = [constant.value for constant in constants if isinstance(constant.value, Decimal)]
    scale = max((max(0, -int(number.as_tuple().exponent)) for number in numbers), default=0)
    return scale + max((number.adjusted() + 1 for number in numbers), default=0) <= MAX_PRECISION


def _on_the_clock(expression: Expr) -> Expr | None:
    """Return a date or timestamp, also one that was converted to an instant in UTC; None for other instants.

    In UTC no hour is skipped or repeated, so these values compare as the instants do. A column that is compared with a
    constant thus keeps its type, and the constant bounds its values.
    """
    if expression.type is not SqlType.TIMESTAMPTZ:
        return expression
    if isinstance(expression, Cast):
        return expression.argument if expression.argument.type.is_moment else None  # else the text of an element
    value = spelled(expression).value if isinstance(expression, Literal) else None
    return Literal(value.replace(tzinfo=None), SqlType.TIMESTAMP) if isinstance(value, datetime) else None


def common_type(expressions: Sequence[Expr], at: int | None = None) -> SqlType:
    """The type that values of a CASE, COALESCE, comparison or UNION column take together.

    Raises:
        DatatypeMismatch: They have none.
    """
    types = [e.type for e in expressions if e.type is not SqlType.UNKNOWN]
    if not types:
        return SqlType.TEXT
    first = types[0]
    if all(t is first for t in types):
        return first
    if all(t.is_integer for t in types):
        return max(types, key=_INTEGER_ORDER.index)
    if all(t.is_number for t in types):
        return next((each for each in (SqlType.DOUBLE, SqlType.REAL) if each in types), SqlType.NUMERIC)
    if all(t.is_text for t in types):
        return SqlType.TEXT if first is SqlType.CHAR else first
    if all(t.is_moment for t in types):
        return SqlType.TIMESTAMPTZ if SqlType.TIMESTAMPTZ in types else SqlType.TIMESTAMP
    names = sorted({t.value for t in types})
    raise DatatypeMismatch(f"types {' and '.join(names)} cannot be matched", position=at)
