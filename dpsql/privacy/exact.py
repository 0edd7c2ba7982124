"""Exact numbers: what privacy is counted in, and nothing that only looks like it.

A float may be NaN or infinite, a Decimal too, and a text may take for ever to expand; an infinite scale would cost 0.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from dpsql.errors import InvalidParameter

MOST = 10**100
"""No quantity of privacy is larger, and none but 0 smaller than its inverse."""

MAX_DIGITS = 1000
"""Of a numerator or a denominator; arithmetic on longer ones need not end."""

_LONGEST = 10**MAX_DIGITS
_WRITTEN = re.compile(rf"[0-9]{{1,{MAX_DIGITS}}}(/[0-9]{{1,{MAX_DIGITS}}})?")


def check_exact(*values: Fraction | int) -> None:
    """Refuse what is neither a whole number nor a fraction, or out of the reach of every quantity of privacy."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | Fraction):
            raise InvalidParameter(
                f"a {type(value).__name__} is not an exact number", hint="use Fraction('0.1'), for example, or an int"
            )
        numerator, denominator = abs(value.numerator), value.denominator
        if max(numerator, denominator) >= _LONGEST:
            raise InvalidParameter(f"a number has more than {MAX_DIGITS} digits", hint="use a shorter one")
        if numerator and not denominator <= numerator * MOST <= denominator * MOST**2:
            raise InvalidParameter("a number is out of range", hint="use 0, or one between 1e-100 and 1e100")


def check_whole(*values: int) -> None:
    """Refuse what is not a whole number, or out of reach."""
    check_exact(*values)
    if any(isinstance(value, Fraction) for value in values):
        raise InvalidParameter("a Fraction is not a whole number", hint="use an int")


def read_exact(text: object) -> Fraction:
    """Return the number, not negative, that `str` wrote of a Fraction."""
    if not isinstance(text, str) or not _WRITTEN.fullmatch(text):
        raise ValueError("not a fraction")
    numerator, _, denominator = text.partition("/")
    if denominator and not int(denominator):
        raise ValueError("a fraction of nothing")
    value = Fraction(int(numerator), int(denominator or 1))
    check_exact(value)
    return value


def read_signed(text: object) -> Fraction:
    """Return the number that `str` wrote of a Fraction, below 0 too."""
    if isinstance(text, str) and text.startswith("-"):
        return -read_exact(text[1:])
    return read_exact(text)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise InvalidParameter for whatever is wrong with JSON fields that are to be read."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise InvalidParameter(f"these fields are not {what}", hint="read what its own to_json wrote") from None
