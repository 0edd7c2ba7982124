"""key_values: rewrites expressions over rows as expressions over the keys of a release, where the keys determine them.

Rule 1: an expression can be rewritten if it contains the key itself, or if the key is finer: a month determines the
year, ten years of age determine twenty, three letters determine two.
Rule 2: keys are used directly, or in expressions that post-processing computes exactly as every engine does. This
excludes numerics, whose released keys have other digits, and functions that depend on a database's locale.
Rule 3: a comparison with a constant is rewritten only if the constant is the start of a unit of time or of a quotient.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from math import gcd

from dpsql.compiler.canonical.descriptions import DescribedRelease
from dpsql.compiler.ir.conditions import compared
from dpsql.compiler.ir.nodes import Call, Cast, Column, Expr, Field, Literal
from dpsql.compiler.ir.walk import fields_in, is_plain, operands, rewrite_expression
from dpsql.compiler.values.calendar_units import UNITS, instant, truncated, unit_of
from dpsql.compiler.values.grids import is_whole
from dpsql.sqltypes import SqlType

_MOST_PARTS = 100
"""How many finer keys are looked for: by letters, or by divisors."""
_LOCAL = (
    *("lower", "upper", "initcap", "ilike", "regexp"),
    *("exp", "power", "ln", "log", "cbrt", "degrees", "radians"),
    *("sin", "cos", "tan", "cot", "asin", "acos", "atan"),
)
"""What the names of functions begin with whose values follow the locale, or the digits of the engine's arithmetic."""
_MOMENTS = (SqlType.DATE, SqlType.TIMESTAMP)
_DAY = timedelta(days=1)
_FROM = {"gt": "ge", "le": "lt"}
"""Comparisons with the last one before a band, and those with the first one in it that say the same."""


@dataclass(frozen=True)
class KeyValues:
    """Writes expressions over the keys of a release.

    Attributes:
        asked: The release whose expressions are written.
        keys: The fields of the other release's keys, by their digests.
        texts: The digests of expressions that are known.
    """

    asked: DescribedRelease
    keys: Mapping[str, Field]
    texts: dict[Expr, str]

    def over(self, expression: Expr) -> Expr | None:
        """An expression over key values; None if they do not determine it."""
        if not is_plain(expression):
            return None
        written = rewrite_expression(expression, self._known)
        if not fields_in(written) <= frozenset(self.keys.values()):
            return None
        return written if isinstance(written, Column) or _is_the_same_anywhere(written) else None

    def _known(self, part: Expr) -> Expr | None:
        """A part of an expression over key values; None where its own parts are to be looked at."""
        key = self._number(part)
        if key is not None:
            return key
        return self._of_unit(part) or self._comparison(part) or self._band(part) or self._of_part(part)

    def _key(self, part: Expr) -> Column | None:
        if isinstance(part, Literal):
            return None
        if part not in self.texts:
            self.texts[part] = self.asked.text(part)
        found = self.keys.get(self.texts[part])
        return Column(found) if found is not None and found.type is part.type else None

    def _number(self, part: Expr) -> Column | Cast | None:
        """A key, or a whole number of which the key is the same in double precision, as FLOOR(age / 10) is."""
        key = self._key(part)
        if key is not None or part.type not in (SqlType.SMALLINT, SqlType.INTEGER):
            return key
        same = self._key(Cast(part, SqlType.DOUBLE))
        return None if same is None else Cast(same, part.type)

    # Moments

    def _units(self, moment: Field, coarsest: str) -> Iterator[tuple[str, Expr]]:
        """The keys that are the first instants of units no coarser than one, as timestamps, the coarsest first."""
        for unit in reversed(UNITS[: UNITS.index(coarsest) + 1]):
            key = self._key(_first(moment, unit))
            if key is not None:
                yield unit, key if key.type is SqlType.TIMESTAMP else Cast(key, SqlType.TIMESTAMP)

    def _of_unit(self, part: Expr) -> Expr | None:
        """A function of a moment, of the first instant of its unit, which has the same value."""
        found = unit_of(part)
        if found is None or isinstance(part, Column) or found[0].type not in _MOMENTS:
            return None
        moment, needed = found
        key = next((key for _, key in self._units(moment, needed)), None)
        if key is None:
            return None
        first = key if moment.type is SqlType.TIMESTAMP else Cast(key, moment.type)
        return rewrite_expression(part, lambda each: first if each == Column(moment) else None)

    def _comparison(self, part: Expr) -> Expr | None:
        """A comparison of a moment with the first instant of a unit, or with the last day before one."""
        function, moment, start = _start(part) or ("", None, 0)
        if moment is None or not isinstance(start, datetime):
            return None
        for unit, key in self._units(moment, "year"):
            if truncated(start, unit) == start:
                return Call(function, (key, Literal(_at(start), SqlType.TIMESTAMP)), SqlType.BOOLEAN)
        return None

    # Numbers and texts

    def _band(self, part: Expr) -> Expr | None:
        """A comparison of a whole number with the first one of a quotient above 0: below, quotients are cut upwards."""
        function, number, start = _start(part) or ("", None, 0)
        if number is None or not isinstance(start, int) or start < 1:
            return None
        for divisor in (each for each in range(min(start, _MOST_PARTS), 1, -1) if start % each == 0):
            key = self._number(_quotient(number, divisor))
            if key is not None:
                return Call(function, (key, Literal(start // divisor, number.type)), SqlType.BOOLEAN)
        return None

    def _of_part(self, part: Expr) -> Expr | None:
        """The beginning of a longer beginning; a quotient of a quotient by a divisor of the divisor."""
        if not isinstance(part, Call) or part.function not in ("left", "int_divide"):
            return None
        whole, literal = part.arguments
        number = literal.value if isinstance(literal, Literal) else None
        if not isinstance(number, int) or number < 1:
            return None
        if part.function == "left":
            finer = [(longer, number) for longer in range(number + 1, number + _MOST_PARTS)]
        else:
            finer = [
                (each, number // each) for each in range(min(number - 1, _MOST_PARTS), 1, -1) if number % each == 0
            ]
        for other, rest in finer:
            key = self._number(Call(part.function, (whole, Literal(other, literal.type)), part.type))
            if key is not None:
                return Call(part.function, (key, Literal(rest, literal.type)), part.type)
        return None


def _is_the_same_anywhere(expression: Expr) -> bool:
    """True for expressions that engines compute alike from key values in text form."""
    is_local = isinstance(expression, Call) and expression.function.startswith(_LOCAL)
    is_known = expression.type is not SqlType.NUMERIC or isinstance(expression, Literal) or is_whole(expression)
    if is_local or not is_known:
        return False
    return all(map(_is_the_same_anywhere, operands(expression)))


def decisive(tested: Sequence[Expr], keys: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return keys that determine others and decide conditions, as coarse as bands of numbers and units of time allow.

    Args:
        tested: The conditions.
        keys: The other keys.
    """
    columns = {field for condition in tested for field in fields_in(condition)}
    found = list(keys)
    for column in sorted(columns, key=lambda field: field.number):
        if Column(column) in found:
            continue
        same = [key for key in found if _grain(key, column) is not None]
        grains = [_grain(part, column) for part in (*same, *(each for each in tested if column in fields_in(each)))]
        key = _coarsest(column, grains)
        key = next((each for each in same if _uncast(each) == _uncast(key)), key)
        found = [*(each for each in found if each not in same), key]
    return tuple(found)


def _uncast(key: Expr) -> Expr:
    """What a key tells, which is a value that it is cast from. A cast of a moment to its day tells less."""
    while isinstance(key, Cast) and key.type is not SqlType.DATE:
        key = key.argument
    return key


def _grain(part: Expr, column: Field) -> int | datetime | str | None:
    """The number or moment that a condition compares with, or the divisor or unit of a key of a column; else None."""
    start = _start(part)
    if start is not None and start[1] == column:
        return start[2]
    part = _uncast(part)
    unit = unit_of(part)
    if unit is not None and unit[0] == column and not isinstance(part, Column):
        return unit[1]
    if isinstance(part, Call) and part.function == "int_divide":
        whole, literal = part.arguments
        divisor = literal.value if isinstance(literal, Literal) and whole == Column(column) else None
        return divisor if isinstance(divisor, int) else None
    return None


def _coarsest(column: Field, grains: Sequence[int | datetime | str | None]) -> Expr:
    """The coarsest key of a column that has all of some grains; the column itself if there is none."""
    numbers = [each for each in grains if isinstance(each, int)]
    if len(numbers) == len(grains) and min(numbers) > 0 and 1 < (divisor := gcd(*numbers)) <= _MOST_PARTS:
        return _quotient(column, divisor)
    for unit in reversed(UNITS) if column.type in _MOMENTS else ():
        if all(_has_grain(unit, each) for each in grains):
            return _first(column, unit)
    return Column(column)


def _has_grain(unit: str, grain: int | datetime | str | None) -> bool:
    """Whether the first instants of a unit tell of a grain."""
    if isinstance(grain, datetime):
        return truncated(grain, unit) == grain
    return isinstance(grain, str) and UNITS.index(unit) <= UNITS.index(grain)


def _start(part: Expr) -> tuple[str, Field, int | datetime] | None:
    """A comparison as ge or lt, of a whole number or a moment with the first one of a band; None for others."""
    function, column, values = compared(part) or ("", None, ())
    if column is None or len(values) != 1 or _FROM.get(function, function) not in _FROM.values():
        return None
    (end,) = values
    after = function in _FROM
    if column.type.is_integer and isinstance(end, int):
        return _FROM.get(function, function), column, end + after
    if column.type not in _MOMENTS or not isinstance(end, date):
        return None
    start = instant(end)
    if column.type is SqlType.DATE and start.time() != time.min:
        return None
    if after and (column.type is not SqlType.DATE or start.date() == date.max):
        return None
    return _FROM.get(function, function), column, start + after * _DAY


def _first(moment: Field, unit: str) -> Expr:
    """The first instant of the unit that a moment is in."""
    first: Expr = Call(f"date_trunc_{unit}", (Column(moment),), SqlType.TIMESTAMP)
    return Cast(first, SqlType.TIMESTAMPTZ) if moment.type is SqlType.DATE else first


def _quotient(number: Field, divisor: int) -> Expr:
    return Call("int_divide", (Column(number), Literal(divisor, number.type)), number.type)


def _at(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)
