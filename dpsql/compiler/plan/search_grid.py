"""search_grid: cells that limits are searched among: numbers by magnitude, moments by month.

Rule 1: a grid covers the whole range of its type, so it tells nothing of the values.
Rule 2: the cell of a value is made of that value alone, in the engine, and is an integer within the grid for any value.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

from dpsql.compiler.ir.nodes import Call, Cast, Expr, Literal
from dpsql.policy import Bound
from dpsql.sqltypes import SqlType

_OCTAVE = 4
"""Cells for each factor of two: as exact as two digits are."""
_PER_LOG = 5.770780163555854
"""Cells for each factor of e: 4 / ln 2."""
_ROOTS = tuple(Fraction(2 ** (place / _OCTAVE)) for place in range(_OCTAVE))
_DIGITS = 2
_EXPONENTS = {
    SqlType.SMALLINT: (0, 15),
    SqlType.INTEGER: (0, 31),
    SqlType.BIGINT: (0, 63),
    SqlType.REAL: (-40, 128),
    SqlType.DOUBLE: (-40, 1024),
    SqlType.NUMERIC: (-40, 1024),
}
"""Sizes of numbers of each type lie between these powers of two; the first cell holds what is less, down to 0, and a
numeric beyond doubles has no cell."""


@dataclass(frozen=True)
class Magnitudes:
    """Cell 0 is 0; the others hold, on either side of it, numbers whose size is within one quarter of a factor of two.

    Reference: Wilson et al. 2020, section 5.1.1, for the search of bounds among signed powers of two.
    """

    type: SqlType

    @property
    def _first(self) -> int:
        """The quarter octave that cell 1 is."""
        return _EXPONENTS[self.type][0] * _OCTAVE

    @property
    def _cells(self) -> int:
        return _EXPONENTS[self.type][1] * _OCTAVE - self._first

    def cell(self, value: Expr) -> Expr:
        """The cell of a number; NULL for NULL."""
        number = value if value.type is SqlType.DOUBLE else Cast(value, SqlType.DOUBLE)
        side = Cast(_double("sign", number), SqlType.INTEGER)
        return Call("int_multiply", (side, self._size(_double("abs", number))), SqlType.INTEGER)

    def _size(self, number: Expr) -> Expr:
        """The cell of a number above 0; some cell for 0 and for NULL, which LEAST and GREATEST leave out."""
        octaves = _double("multiply", _double("ln", number), Literal(_PER_LOG, SqlType.DOUBLE))
        place = Cast(_double("floor", octaves), SqlType.INTEGER)
        moved = _integer("int_add", place, 1 - self._first)
        return _integer("greatest", _integer("least", moved, self._cells), 1)

    def lower(self, cell: int) -> Fraction:
        """A round number that no number of the cell is below."""
        return -self._greatest(-cell, 0) if cell < 0 else self._least(cell)

    def upper(self, cell: int) -> Fraction:
        """A round number that no number of the cell is above."""
        return -self._least(-cell) if cell < 0 else self._greatest(cell, 1)

    def _least(self, cell: int) -> Fraction:
        """A round number below the cell, or where it begins."""
        if cell == 0 or (cell == 1 and not self.type.is_integer):
            return Fraction(0)
        begins = _power(self._first + cell - 1)
        if self.type.is_integer:
            begins = Fraction(begins.__ceil__())
        return _round(begins, ROUND_FLOOR)

    def _greatest(self, cell: int, missing: int) -> Fraction:
        """A round number above the cell, within the type: its largest power of two, less what is missing of it."""
        if cell == 0:
            return Fraction(0)
        # What ends it may be in it, for logarithms are not exact.
        ends = _power(self._first + cell)
        if not self.type.is_integer:
            return _round(ends, ROUND_CEILING)
        most = 2 ** _EXPONENTS[self.type][1] - missing
        return min(_round(Fraction(ends.__floor__()), ROUND_CEILING), Fraction(most))


@dataclass(frozen=True)
class Months:
    """A cell is a calendar month, counted from the beginning of year 0; timestamptz is cut in the dataset's zone."""

    type: SqlType
    timezone: str

    def cell(self, value: Expr) -> Expr:
        """The month of a moment; NULL for NULL."""
        year, month = (Cast(Call(f"extract_{part}", (value,), SqlType.BIGINT), SqlType.INTEGER) for part in _PARTS)
        months = Call("int_multiply", (year, Literal(12, SqlType.INTEGER)), SqlType.INTEGER)
        return Call("int_add", (months, month), SqlType.INTEGER)

    def lower(self, cell: int) -> Bound:
        """The month's first moment."""
        return self._typed(_first_of(_within(cell)))

    def upper(self, cell: int) -> Bound:
        """The month's last day, or its last microsecond."""
        following = _first_of(_within(cell) + 1)
        return self._typed(following - (timedelta(days=1) if self.type is SqlType.DATE else timedelta(microseconds=1)))

    def _typed(self, moment: datetime) -> Bound:
        if self.type is SqlType.DATE:
            return moment.date()
        return moment.replace(tzinfo=ZoneInfo(self.timezone)).astimezone(UTC) if self._is_zoned else moment

    @property
    def _is_zoned(self) -> bool:
        return self.type is SqlType.TIMESTAMPTZ


_PARTS = ("year", "month")
SearchGrid = Magnitudes | Months


def search_grid(sql_type: SqlType, timezone: str) -> SearchGrid | None:
    """The grid of a type's values; None for a type that has no limits."""
    if sql_type in _EXPONENTS:
        return Magnitudes(sql_type)
    return Months(sql_type, timezone) if sql_type.is_moment else None


def _within(month: int) -> int:
    """A month; of those at the ends of time, the nearest that has limits in every zone."""
    return min(max(month, 2 * 12 + 1), 9998 * 12 + 12)


def _first_of(month: int) -> datetime:
    year, place = divmod(month - 1, 12)
    return datetime(year, place + 1, 1)


def _power(quarters: int) -> Fraction:
    octave, place = divmod(quarters, _OCTAVE)
    return Fraction(2) ** octave * _ROOTS[place]


def _round(number: Fraction, rounding: str) -> Fraction:
    """A number to two digits, upwards or downwards."""
    context = Context(prec=_DIGITS, rounding=rounding)
    return Fraction(context.divide(Decimal(number.numerator), Decimal(number.denominator)))


def _double(function: str, *arguments: Expr) -> Expr:
    return Call(function, arguments, SqlType.DOUBLE)


def _integer(function: str, argument: Expr, constant: int) -> Expr:
    return Call(function, (argument, Literal(constant, SqlType.INTEGER)), SqlType.INTEGER)
