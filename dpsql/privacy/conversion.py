"""Exact privacy numbers, and conversions between zero-concentrated and approximate DP.

Floats and Decimals can be NaN or infinite, and an infinite scale would cost 0. A text can take very long to expand.

Rule 1: floats only choose the order α and display numbers. Every α > 1 gives a valid bound. The bound itself is
evaluated once, in Decimal, with each step rounded in the conservative direction.
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from dpsql.errors import InvalidParameter

MOST = 10**100
"""No quantity of privacy is larger, and none but 0 smaller than its inverse."""

MAX_DIGITS = 1000
"""Of a numerator or a denominator; arithmetic on longer ones need not end."""

NORMAL_95 = 1.96
"""Half the width of a 95 % interval of a normal law, in standard deviations; for display."""

_LONGEST = 10**MAX_DIGITS
_WRITTEN = re.compile(rf"[0-9]{{1,{MAX_DIGITS}}}(/[0-9]{{1,{MAX_DIGITS}}})?")


def check_exact(*values: Fraction | int) -> None:
    """Refuse values that are not integers or fractions, or out of range for every privacy quantity."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | Fraction):
            raise InvalidParameter(
                f"a {type(value).__name__} is not an exact number",
                hint="Use an int or a Fraction, such as Fraction('0.1').",
            )
        numerator, denominator = abs(value.numerator), value.denominator
        if max(numerator, denominator) >= _LONGEST:
            raise InvalidParameter(f"a number has more than {MAX_DIGITS} digits", hint="Use a shorter one.")
        if numerator and not denominator <= numerator * MOST <= denominator * MOST**2:
            raise InvalidParameter("a number is out of range", hint="Use 0, or one between 1e-100 and 1e100.")


def check_whole(*values: int) -> None:
    """Refuse values that are not integers, or out of range."""
    check_exact(*values)
    if any(isinstance(value, Fraction) for value in values):
        raise InvalidParameter("a Fraction is not a whole number", hint="Use an int.")


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
    """Raise InvalidParameter for any fault in JSON fields."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise InvalidParameter(f"these fields are not {what}", hint="Read the result of its own to_json.") from None


MIN_EPSILON = Fraction(1, 10**12)
MAX_EPSILON = Fraction(10**6)
MIN_DELTA = Fraction(1, 10**30)
_MAX_RHO = Fraction(10**14)

UP = Context(prec=60, rounding=ROUND_CEILING, Emax=MAX_EMAX, Emin=MIN_EMIN)
DOWN = Context(prec=60, rounding=ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN)


def check_epsilon(epsilon: Fraction) -> None:
    """Refuse an ε that is not between 10⁻¹² and 10⁶."""
    check_exact(epsilon)
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise InvalidParameter("epsilon is out of range", hint="Use an epsilon between 1e-12 and 1e6, such as 0.1.")


def check_delta(delta: Fraction) -> None:
    """Refuse a δ that is not between 10⁻³⁰ and 1."""
    check_exact(delta)
    if not MIN_DELTA <= delta < 1:
        raise InvalidParameter("delta is out of range", hint="Use a delta between 1e-30 and 1, such as 1e-6.")


def decimal(value: Fraction, context: Context) -> Decimal:
    """Return the value rounded to the context's digits, in its direction."""
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def ln(value: Decimal, context: Context) -> Decimal:
    """Return a bound on the logarithm, above it for UP and below it for DOWN; ln itself is correct to half an ulp."""
    return _outward(value.ln(context), context)


def exp(value: Decimal, context: Context) -> Decimal:
    """Return a bound on the exponential, above it for UP and below it for DOWN; exp is correct to half an ulp."""
    return _outward(value.exp(context), context)


def root_up(value: Fraction) -> Fraction:
    """Return √value, value > 0: exact where it is rational, else rounded up by less than 2⁻⁶⁰ of itself."""
    return _roots(value)[1]


def root_down(value: Fraction) -> Fraction:
    """Return √value, value > 0: exact where it is rational, else rounded down by less than 2⁻⁶⁰ of itself."""
    return _roots(value)[0]


def _roots(value: Fraction) -> tuple[Fraction, Fraction]:
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root**2 == value:
        return root, root
    shift = max(0, 64 - (value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    floor = math.isqrt((value.numerator << 2 * shift) // value.denominator)
    return Fraction(floor, 1 << shift), Fraction(floor + 1, 1 << shift)


def _outward(value: Decimal, context: Context) -> Decimal:
    return value.next_plus(context) if context is UP else value.next_minus(context)


def rho_to_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    """Return an ε, rounded up, such that ρ-zCDP implies (ε, δ)-DP.

    Guarantee: min over α > 1 of αρ + ln(1/(αδ))/(α−1) + ln(1−1/α), from above.
    Assumes: ρ-zCDP under the same neighbouring relation; 10⁻³⁰ ≤ δ < 1.
    Reference: Canonne, Kamath & Steinke 2020, proposition 12 with corollary 13.
    """
    check_delta(delta)
    check_exact(rho)
    if not 0 <= rho <= _MAX_RHO:
        raise InvalidParameter("rho is out of range", hint="Use a rho between 0 and 1e14.")
    return _rho_to_epsilon(rho, delta)


@lru_cache(maxsize=1024)
def _rho_to_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    if rho == 0:
        return Fraction(0)
    order = _order(lambda a: float(rho) * a * a + math.log1p(a), -_log(delta), delta)
    epsilon = UP.add(UP.multiply(UP.add(1, order), decimal(rho, UP)), _offset(order, delta))
    with localcontext(UP):
        return max(Fraction(0), Fraction(epsilon.quantize(Decimal("1e-25"))))


def epsilon_to_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest ρ, rounded down, such that rho_to_epsilon(ρ, δ) ≤ ε.

    Guarantee: max over α > 1 of (ε − ln(1/(αδ))/(α−1) − ln(1−1/α))/α, from below, and checked by conversion back.
    Assumes: 10⁻¹² ≤ ε ≤ 10⁶ and 10⁻³⁰ ≤ δ < 1.
    Reference: Canonne, Kamath & Steinke 2020, proposition 12 with corollary 13, solved for ρ.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    return _epsilon_to_rho(epsilon, delta)


@lru_cache(maxsize=1024)
def _epsilon_to_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    order = _best_order(epsilon, delta)
    numerator = DOWN.subtract(decimal(epsilon, DOWN), _offset(order, delta))
    rho = Fraction(Context(prec=15, rounding=ROUND_FLOOR).divide(numerator, UP.add(1, order)))
    while rho_to_epsilon(rho, delta) > epsilon:
        rho = rho * (10**12 - 1) / 10**12
    return rho


def best_order(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the order α, α − 1 to three digits, at which (ε, δ) leaves about the most room for Gaussian noise."""
    check_epsilon(epsilon)
    check_delta(delta)
    return 1 + Fraction(Context(prec=3).plus(_best_order(epsilon, delta)))


def order_offset(order: Fraction, delta: Fraction) -> Fraction:
    """Return ln(1/(αδ))/(α−1) + ln(1−1/α), rounded up: what converting a divergence to (ε, δ) adds to it.

    Assumes: α − 1 is a decimal of at most 60 digits, as best_order gives.
    Reference: Canonne, Kamath & Steinke 2020, proposition 12.
    """
    return Fraction(_offset(decimal(order - 1, DOWN), delta))


def _best_order(epsilon: Fraction, delta: Fraction) -> Decimal:
    """Return α − 1 for the order at which (ε, δ) leaves the most ρ."""
    log = _log(delta)

    def negative_epsilon(a: float) -> float:
        # At the best order ρ = (ln(1/δ) − ln α)/(α−1)²; put into ε(ρ, δ) this leaves one unknown, α = 1 + a.
        gap = -log - math.log1p(a)
        return -(gap * (1 + 2 * a) / a / a + math.log(a) - math.log1p(a))

    return _order(negative_epsilon, -float(epsilon), delta)


def _log(delta: Fraction) -> float:
    return math.log1p(-float(1 - delta)) if delta > Fraction(1, 2) else math.log(delta)


def _order(increasing: Callable[[float], float], target: float, delta: Fraction) -> Decimal:
    """Return α − 1 where the increasing function of it reaches the target, to about 16 digits."""
    low, high = math.log(1e-25), math.log(1 / float(delta))
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(math.exp(middle)) < target else (low, middle)
    return Decimal(repr(math.exp((low + high) / 2)))


def _offset(order: Decimal, delta: Fraction) -> Decimal:
    """Return ln(1/(αδ))/(α−1) + ln(1−1/α) at α = 1 + order, rounded up."""
    log_alpha = ln(UP.add(1, order), DOWN)
    tail = UP.subtract(UP.minus(ln(decimal(delta, DOWN), DOWN)), log_alpha)
    return UP.add(UP.divide(tail, order), UP.subtract(ln(order, UP), log_alpha))


@lru_cache(maxsize=256)
def exact_text(value: Fraction) -> str:
    """Return an exact decimal number with all its digits, as it is written in a policy and after SET."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{(Decimal(value.numerator) / Decimal(value.denominator)).normalize():f}"


def decimal_text(value: Fraction | None, digits: int = 6) -> str | None:
    """Return a privacy number for people, to so many significant digits."""
    return None if value is None else f"{float(value):.{digits}g}"
