"""The only randomness: exact integer samplers over the operating system's entropy, vectorised over cells.

Rule 1: no float influences a decision. If fixed-point bounds do not decide, the decision is computed exactly.
Rule 2: entropy comes from os.urandom at each call. No generator state is kept, so a fork repeats nothing.

All noise is derived from one distribution. An exponential variable E has independent binary digits: the digit of value
v is 1 with probability 1/(1 + exp(v)). So ⌊b·E⌋, which is geometric with P[X ≥ x] = exp(−x/b), has digits of values
2ⁱ/b, and P[E ≥ γ] = exp(−γ) is the coin that the discrete Gaussian's rejection step needs.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import InvalidParameter, LimitExceeded
from dpsql.privacy.conversion import UP, check_exact, ln

Whole = NDArray[np.int64] | NDArray[np.object_]
"""Whole numbers of 64 bits, or of any length."""

MAX_SCALE = 2**56
MIN_SCALE = Fraction(1, 2**6)

_CHUNK = 8192
_FIRST_BITS = 8
_SECOND_BITS = 64
_GUARD_DIGITS = 40
_MOST_HALVINGS = 128
_LN_2 = Fraction(ln(Decimal(2), UP))
_ERROR = Decimal("1e-30")
_LARGEST = 2**63 - 1
_SHIFTS = np.arange(8, dtype=np.uint8)[:, np.newaxis]
# Fixed-point units of the Gaussian's rejection step: E and γ in 2⁻¹⁶, distances over σ in 2⁻⁵⁶, of which 24 bits are
# kept to square.
_COIN_BITS = 16
_COIN_SCALE = Fraction(2**_COIN_BITS)
_RATIO_BITS = 56
_DROPPED_BITS = 32


def check_scale(scale: Fraction, *, power: int = 1) -> None:
    """Refuse a scale (a variance for power 2) that the samplers do not draw: not between 2⁻⁶ and 2⁵⁶.

    Above, 2⁷ times it would not fit 64 bits; below, there is no noise to speak of.
    """
    check_exact(scale)
    if scale < MIN_SCALE**power:
        raise InvalidParameter("the scale of the noise is below 1/64 of a grid unit", hint="Use a smaller epsilon.")
    if scale > MAX_SCALE**power:
        raise LimitExceeded(
            "the noise would not fit 64-bit integers",
            detail="The scale of the noise, in units of the column's step, is above 2^56.",
            hint="Give the column a coarser step or tighter bounds in the policy, or use a larger epsilon.",
        )


def discrete_laplace(scale: Fraction, size: int) -> NDArray[np.int64]:
    """Return independent draws of the law P[Z = z] ∝ exp(−|z|/scale) over the integers.

    Guarantee: exact for every rational scale; a draw beyond ±(2⁶³ − 1), of probability below 2⁻¹⁸¹, saturates.
    Assumes: os.urandom is uniform; 2⁻⁶ ≤ scale ≤ 2⁵⁶.
    Reference: Canonne, Kamath & Steinke 2020, algorithm 2, with its geometric drawn digit by digit.
    """
    check_scale(scale)
    return _fill(size, lambda count: _laplace(scale, count), 64)


def discrete_gaussian(variance: Fraction, size: int) -> NDArray[np.int64]:
    """Return independent draws of the law P[Z = z] ∝ exp(−z²/2·variance) over the integers.

    Guarantee: exact for every rational variance.
    Assumes: os.urandom is uniform; 2⁻¹² ≤ variance ≤ 2¹¹².
    Reference: Canonne, Kamath & Steinke 2020, algorithm 3; its coin exp(−γ) is E ≥ γ for an exponential E.
    """
    check_scale(variance, power=2)
    return _fill(size, _Proposal.of(variance).draw, 2)


def bernoulli(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return independent booleans, each true with probability exactly (2⁶⁴·high + low)/2¹²⁸.

    Guarantee: exact.
    Assumes: os.urandom is uniform.
    Reference: a uniform 128-bit number is below p·2¹²⁸ with probability p.
    """
    first, second = _words(high.size), _words(high.size)
    below: NDArray[np.bool_] = (first < high) | ((first == high) & (second < low))
    return below


def exponential(losses: Whole, sizes: Whole, scale: Fraction) -> int:
    """Return an index i with P ∝ sizes[i]·exp(−losses[i]/scale).

    Guarantee: exact. With whole numbers kᵢ ≤ gapᵢ/(scale·ln 2), an index is drawn in proportion to sizes[i]·2^−kᵢ,
        and taken with probability 2^kᵢ·exp(−gapᵢ/scale), else another one is drawn.
    Assumes: os.urandom is uniform; scale within check_scale's limits; there are losses; sizes are positive; all sizes
        together, and the distance of any two losses, are numbers of their type.
    Reference: McSherry & Talwar 2007; rejection of what is not taken, which is about half of them at the most.
    """
    gaps = losses - losses.min()
    halvings = _halvings(gaps, scale)
    held = np.zeros(_MOST_HALVINGS + 1, dtype=sizes.dtype)
    np.add.at(held, halvings, sizes)
    bounds = list(accumulate(size << _MOST_HALVINGS - place for place, size in enumerate(held.tolist())))
    while True:
        drawn = below(bounds[-1])
        place = bisect_right(bounds, drawn)
        alike = np.flatnonzero(halvings == place)
        # Uniform over what the candidates of this place hold together.
        point = (bounds[place] - 1 - drawn) >> _MOST_HALVINGS - place
        found = int(alike[np.searchsorted(np.cumsum(sizes[alike]), point, side="right")])
        if _is_taken(int(gaps[found]), place, scale):
            return found


def permute_and_flip(gaps: NDArray[np.int64], scale: Fraction) -> int:
    """Return an index: of those whose coin of probability exp(−gaps[i]/scale) shows heads, any one.

    Guarantee: exact. Going through the candidates in an order drawn at random and taking the first whose coin shows
        heads is to toss all coins and take any one of those.
    Assumes: os.urandom is uniform; scale within check_scale's limits; gaps are not negative, and one is 0.
    Reference: McKenna & Sheldon 2020, algorithm 1.
    """
    passed = np.flatnonzero(_geometric(scale, gaps.size) >= gaps)
    return int(passed[below(passed.size)])


def below(count: int) -> int:
    """Return a uniform whole number from 0 up to, not including, `count`.

    Guarantee: exact.
    Assumes: os.urandom is uniform; count ≥ 1.
    Reference: rejection of what is not below.
    """
    bits = (count - 1).bit_length()
    while True:
        drawn = int.from_bytes(os.urandom(bits // 8 + 1), "little") & ((1 << bits) - 1)
        if drawn < count:
            return drawn


def _octets(count: int) -> NDArray[np.uint8]:
    return np.frombuffer(os.urandom(count), dtype=np.uint8)


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def _fill(size: int, propose: Callable[[int], NDArray[np.int64]], spare: int) -> NDArray[np.int64]:
    """Return size accepted proposals, drawn in chunks that fit the cache, with 1/spare more than are needed."""
    drawn = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        wanted = min(size - filled, _CHUNK)
        batch = propose(wanted + wanted // spare + 8)[: size - filled]
        drawn[filled : filled + batch.size] = batch
        filled += batch.size
    return drawn


@dataclass(frozen=True)
class _Digits:
    """Fixed-point probabilities of the digits of ⌊scale·E⌋; the last row is of all beyond them together.

    Attributes:
        width: The number of digits.
        first: The first 8 bits of each probability, as a column.
        second: The 64 bits that follow.
    """

    width: int
    first: NDArray[np.uint8]
    second: NDArray[np.uint64]


@lru_cache(maxsize=512)
def _digits(scale: Fraction) -> _Digits:
    floors = _floors(scale, _FIRST_BITS + _SECOND_BITS)
    first = np.array([floor >> _SECOND_BITS for floor in floors], dtype=np.uint8)
    second = np.array([floor % 2**_SECOND_BITS for floor in floors], dtype=np.uint64)
    return _Digits(len(floors) - 1, first[:, np.newaxis], second)


@lru_cache(maxsize=512)
def _floors(scale: Fraction, bits: int) -> tuple[int, ...]:
    """Return ⌊2^bits·p⌋, exactly, for each digit of ⌊scale·E⌋ and, last, for P[E ≥ 2^width/scale].

    2^width ≥ 63·scale, so what lies beyond has probability e⁻⁶³ at most, and the digits fit 62 bits at MAX_SCALE.
    """
    width = (math.ceil(63 * scale) - 1).bit_length()
    precision = bits // 3 + _GUARD_DIGITS
    while True:
        context = Context(prec=precision, Emax=MAX_EMAX, Emin=MIN_EMIN)
        # exp(1/scale), 1/scale ≤ 64, is off by 33 ulps at most; up to 62 squarings double that and add one each:
        # less than 10^(22 − precision) of the value in the end.
        error = Decimal(1).scaleb(22 - precision)
        power = context.divide(Decimal(scale.denominator), Decimal(scale.numerator)).exp(context)
        floors: list[int] = []
        for row in range(width + 1):
            value = context.divide(Decimal(2**bits), context.add(power, 1 if row < width else 0))
            slack = context.multiply(value, error)
            below, above = math.floor(context.subtract(value, slack)), math.floor(context.add(value, slack))
            if below != above:
                break
            floors.append(below)
            power = context.multiply(power, power)
        else:
            return tuple(floors)
        precision *= 2


def _coin(scale: Fraction, row: int, known_bits: int) -> bool:
    """Return true with the row's probability, given that the first bits of a uniform number equal those of it."""
    while True:
        known_bits += _SECOND_BITS
        drawn = int.from_bytes(os.urandom(8), "little")
        wanted = _floors(scale, known_bits)[row] % 2**_SECOND_BITS
        if drawn != wanted:
            return bool(drawn < wanted)


def _geometric(scale: Fraction, count: int) -> NDArray[np.int64]:
    """Return draws of ⌊scale·E⌋: P[X ≥ x] = exp(−x/scale)."""
    digits = _digits(scale)
    drawn = _octets((digits.width + 1) * count).reshape(-1, count)
    bits = drawn < digits.first
    rows, columns = np.nonzero(drawn == digits.first)
    more, wanted = _words(rows.size), digits.second[rows]
    bits[rows, columns] = more < wanted
    for i in np.flatnonzero(more == wanted):
        bits[rows[i], columns[i]] = _coin(scale, int(rows[i]), _FIRST_BITS + _SECOND_BITS)
    values = np.zeros(count, dtype=np.int64)
    for start in range(0, digits.width, 8):
        octet = bits[start : min(start + 8, digits.width)].view(np.uint8)
        packed = np.bitwise_or.reduce(octet << _SHIFTS[: len(octet)], axis=0)
        values |= packed.astype(np.int64) << start
    for column in np.flatnonzero(bits[digits.width]):
        values[column] = _beyond(scale, digits.width, int(values[column]))
    return values


def _beyond(scale: Fraction, width: int, value: int) -> int:
    """Return a draw known to lie beyond the digits: by memorylessness, how far beyond is geometric again."""
    value += 1 << width
    while _coin(scale, width, 0):
        value += 1 << width
    return min(value, _LARGEST)


def _laplace(scale: Fraction, count: int) -> NDArray[np.int64]:
    """Return up to count draws: a geometric magnitude with a sign, without the second zero."""
    magnitude = _geometric(scale, count)
    negative = (_octets(count) & 1).astype(np.bool_)
    signed = np.where(negative, -magnitude, magnitude)
    drawn: NDArray[np.int64] = signed[~(negative & (magnitude == 0))]
    return drawn


@dataclass(frozen=True)
class _Proposal:
    """Laplace proposals of scale t = ⌊σ⌋ + 1, accepted with probability exp(−γ), γ = (|y| − σ²/t)²/2σ².

    Attributes:
        variance: σ².
        scale: t.
        shift: Low bits of |y| that the bounds on γ leave out; 0 for σ below 2²⁷.
        cap: ⌊64σ/2^shift⌋ or 1: beyond it γ is only bounded from below.
        unit: ⌊2⁵⁶·2^shift/σ⌋.
        centre: ⌊2⁵⁶·(σ²/t)/σ⌋.
    """

    variance: Fraction
    scale: int
    shift: int
    cap: int
    unit: int
    centre: int

    @classmethod
    @lru_cache(maxsize=512)
    def of(cls, variance: Fraction) -> "_Proposal":
        """Return the constants of a variance."""
        scale = math.isqrt(int(variance)) + 1
        shift = max(0, scale.bit_length() - 28)
        return cls(
            variance,
            scale,
            shift,
            cap=math.isqrt(int(variance * 4**6)) >> shift,
            unit=math.isqrt(int(4 ** (_RATIO_BITS + shift) / variance)),
            centre=math.isqrt(int(variance * 4**_RATIO_BITS / scale**2)),
        )

    def draw(self, count: int) -> NDArray[np.int64]:
        """Return the accepted of about count proposals."""
        proposed = _laplace(Fraction(self.scale), count)
        coin = _geometric(_COIN_SCALE, proposed.size)
        below, above = self._bounds(np.abs(proposed))
        accepted = coin >= above
        for i in np.flatnonzero(~accepted & (coin >= below)):
            accepted[i] = self._settle(int(proposed[i]), int(coin[i]))
        return proposed[accepted]

    def _bounds(self, magnitude: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, in units of 2⁻¹⁶, bounds on γ: a coin below the first surely fails, from the second on surely passes.

        Every product below stays under 2⁶³: steps·unit ≤ 64·2⁵⁶, and squares are of 31 bits.
        """
        steps = magnitude >> self.shift
        capped = np.minimum(steps, self.cap)
        # |y|/σ lies between capped·unit and (capped + 1)·(unit + 1), in 2⁻⁵⁶; with no bit left out, capped·(unit + 1).
        least = capped * self.unit - (self.centre + 1)
        most = least + 1 + capped + (self.unit + 1 if self.shift else 0)
        near = np.maximum(np.maximum(least, -most), 0) >> _DROPPED_BITS
        far = (np.maximum(most, -least) >> _DROPPED_BITS) + 1
        halves = 2 * (_RATIO_BITS - _DROPPED_BITS) + 1 - _COIN_BITS
        below = near * near >> halves
        above = (far * far >> halves) + 1
        return below, np.where(steps > self.cap, _LARGEST, above)

    def _settle(self, proposed: int, coin: int) -> bool:
        """Tell whether E ≥ γ, given ⌊2¹⁶·E⌋: draws further digits of E until that is certain."""
        gamma = (abs(proposed) - self.variance / self.scale) ** 2 / (2 * self.variance)
        low, scale = coin / _COIN_SCALE, _COIN_SCALE
        while low < gamma < low + 1 / scale:
            scale *= 2
            # The digit worth 1/scale is the lowest of ⌊scale·E⌋.
            if _coin(scale, 0, 0):
                low += 1 / scale
        return low >= gamma


def _halvings(gaps: Whole, scale: Fraction) -> NDArray[np.int64]:
    """Return whole numbers k ≤ gap/(scale·ln 2), less than that by little more than 1 unless they are the greatest.

    Up to MAX_SCALE every product stays under 2⁶³.
    """
    shift = 0 if scale > 2**24 else 32
    unit = math.ceil(_LN_2 * scale * 2**shift)
    nearest = np.minimum(gaps, -(-_MOST_HALVINGS * unit >> shift))
    halvings: NDArray[np.int64] = np.minimum((nearest << shift) // unit, _MOST_HALVINGS).astype(np.int64)
    return halvings


def _is_taken(gap: int, halvings: int, scale: Fraction) -> bool:
    """Return true with probability 2^halvings·exp(−gap/scale): draws digits of a number until that is certain."""
    bits = drawn = 0
    while True:
        bits += _SECOND_BITS
        drawn = drawn << _SECOND_BITS | int.from_bytes(os.urandom(8), "little")
        lower, upper = _share_of_bound(gap, halvings, scale, bits)
        if drawn < lower:
            return True
        if drawn >= upper:
            return False


def _share_of_bound(gap: int, halvings: int, scale: Fraction, bits: int) -> tuple[int, int]:
    """Return bounds on 2^(bits + halvings)·exp(−gap/scale), which is 2^bits at most."""
    context = Context(prec=bits // 3 + _GUARD_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)
    rate = context.divide(Decimal(gap * scale.denominator), Decimal(scale.numerator))
    if rate > bits + halvings:
        return 0, 1
    share = context.multiply(context.exp(context.minus(rate)), Decimal(2 ** (bits + halvings)))
    # A rate of r is off by r/2 ulps at most, and 39 digits of the share are behind its point.
    return math.floor(context.subtract(share, _ERROR)), math.ceil(context.add(share, _ERROR))
