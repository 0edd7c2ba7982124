"""In which proportions primitives share a price, so that the error that is seen is least.

Rule: proportions are exact fractions, and follow from the plan alone; whatever they are, shares add up to the price.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from dpsql.errors import InvalidParameter
from dpsql.privacy.cost import Accountant
from dpsql.privacy.exact import check_exact

_BITS = 16


def proportions(accountant: Accountant, weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return positive parts for which Σ wᵢ·vᵢ is least, to within 2⁻¹⁶ of a part, where vᵢ is the variance of a share.

    Guarantee: noise of variance vᵢ = c/sᵢ (zcdp, rdp: a share sᵢ of ρ) is shared out by √wᵢ, noise of variance c/sᵢ²
        (pure, basic, advanced: a share of ε) by ∛wᵢ. For Σsᵢ = 1, Cauchy-Schwarz gives Σ wᵢ/sᵢ ≥ (Σ√wᵢ)², and
        Hölder's inequality Σ wᵢ/sᵢ² ≥ (Σ∛wᵢ)³; both are equalities there, and nowhere else.
    Assumes: nothing of privacy: the guarantee is that of the shares, whatever they are.
    Reference: Li, Hay, Rastogi, Miklau & McGregor 2010, on budgets for sets of queries; the proof is the line above.

    Args:
        accountant: The currency.
        weights: How much the variance of each primitive matters, for noise that is scaled to a sensitivity of 1.
    """
    check_exact(*weights)
    if not weights or min(weights) <= 0:
        raise InvalidParameter("weights are positive", hint="leave out what has no noise")
    root = _square_root if accountant.shares_rho else _cube_root
    return tuple(Fraction(max(1, root(weight)), 1 << _BITS) for weight in weights)


def _square_root(value: Fraction) -> int:
    """√value in units of 2⁻¹⁶, rounded down."""
    return math.isqrt((value.numerator << 2 * _BITS) // value.denominator)


def _cube_root(value: Fraction) -> int:
    """∛value in units of 2⁻¹⁶, rounded down, by bisection."""
    cube = (value.numerator << 3 * _BITS) // value.denominator
    low, high = 0, 1 << (cube.bit_length() // 3 + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**3 <= cube else (low, middle)
    return low
