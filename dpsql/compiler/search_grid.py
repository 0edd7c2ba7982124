"""search_grid: cells that limits are searched among: numbers by magnitude, moments by month.

Rule 1: a grid covers the whole range of its type, so it tells nothing of the values.
Rule 2: the cell of a value is made of that value alone, in the engine, and is an integer within the grid for any value.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

from dpsql.compiler.ir import Call, Case, Cast, Expr, Literal
from dpsql.policy import Bound
from dpsql.sqltypes import SqlType

_OCTAVE = 4
"""Cells for each factor of two: as exact as two digits are."""
_PER_LOG = 5.770780163555854
"""Cells for each factor of e: 4 / ln 2."""
_NUDGE = 1e-9
"""A power of two lies in the cell that it begins, though a logarithm is not exact."""
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
        zero = Literal(0.0, SqlType.DOUBLE)
        negative = Call("int_negate", (self._size(Call("negate", (number,), SqlType.DOUBLE)),), SqlType.INTEGER)
        branches = (
            (Call("gt", (number, zero), SqlType.BOOLEAN), self._size(number)),
            (Call("lt", (number, zero), SqlType.BOOLEAN), negative),
            (Call("eq", (number, zero), SqlType.BOOLEAN), Literal(0, SqlType.INTEGER)),
        )
        return Case(branches, Literal(None, SqlType.INTEGER), SqlType.INTEGER)

    def _size(self, number: Expr) -> Expr:
        """The cell of a number above 0."""
        octaves = _double("multiply", _double("ln", number), Literal(_PER_LOG, SqlType.DOUBLE))
        place = _double("floor", _double("add", octaves, Literal(_NUDGE, SqlType.DOUBLE)))
        moved = _double("add", place, Literal(float(1 - self._first), SqlType.DOUBLE))
        below = _double("least", moved, Literal(float(self._cells), SqlType.DOUBLE))
        return Cast(_double("greatest", below, Literal(1.0, SqlType.DOUBLE)), SqlType.INTEGER)

    def lower(self, cell: int) -> Fraction:
        """A round number that no number of the cell is below."""
        return -self.upper(-cell) if cell < 0 else self._least(cell)

    def upper(self, cell: int) -> Fraction:
        """A round number that no number of the cell is above."""
        return -self._least(-cell) if cell < 0 else self._greatest(cell)

    def _least(self, cell: int) -> Fraction:
        """A round number below the cell, or where it begins."""
        if cell == 0 or (cell == 1 and not self.type.is_integer):
            return Fraction(0)
        begins = _power(self._first + cell - 1)
        if self.type.is_integer:
            begins = Fraction(begins.__ceil__())
        return _round(begins, ROUND_FLOOR)

    def _greatest(self, cell: int) -> Fraction:
        """A round number above the cell, within the type."""
        if cell == 0:
            return Fraction(0)
        ends = _power(self._first + cell)
        if not self.type.is_integer:
            return _round(ends, ROUND_CEILING)
        most = 2 ** _EXPONENTS[self.type][1] - 1
        return min(_round(Fraction(ends.__ceil__() - 1), ROUND_CEILING), Fraction(most))


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
        return self._typed(_first_of(cell))

    def upper(self, cell: int) -> Bound:
        """The month's last day, or its last microsecond."""
        following = _first_of(cell + 1)
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


def _first_of(month: int) -> datetime:
    """The first moment of a month; of months at the ends of time, of the nearest that any zone and the next have."""
    year, place = divmod(min(max(month, 25), 9998 * 12 + 12) - 1, 12)
    return datetime.combine(date(year, place + 1, 1), datetime.min.time())


def _power(quarters: int) -> Fraction:
    octave, place = divmod(quarters, _OCTAVE)
    return Fraction(2) ** octave * _ROOTS[place]


def _round(number: Fraction, rounding: str) -> Fraction:
    """A number to two digits, upwards or downwards."""
    context = Context(prec=_DIGITS, rounding=rounding)
    return Fraction(context.divide(Decimal(number.numerator), Decimal(number.denominator)))


def _double(function: str, *arguments: Expr) -> Expr:
    return Call(function, arguments, SqlType.DOUBLE)
