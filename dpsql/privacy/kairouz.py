"""Kairouz, Oh & Viswanath: the composition of ε-DP mechanisms, exactly where they are alike, in closed form otherwise.

Rule: every step is a Decimal of 60 digits, rounded so that the result is never below the theorem's.
"""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from dpsql.privacy.conversion import DOWN, UP, decimal, exp, ln, root_up
from dpsql.privacy.cost import ZERO
from dpsql.privacy.totals import up


def homogeneous(epsilon: Fraction, times: int, delta: Fraction) -> Fraction:
    """Return the least ε̃, rounded up, with which so many ε-DP mechanisms are together (ε̃, δ)-DP.

    Guarantee: the composition is at worst that of randomized response, and of it δ(ε̃) is the maximum over m of
        A(m) − e^ε̃·B(m), where A and B are the probabilities that at most m of the answers are lies if each is one
        with probability 1/(1 + e^ε), and with e^ε/(1 + e^ε). So e^ε̃ = max (A(m) − δ)/B(m): A up, B down.
    Assumes: 0 < δ < 1; the ε of each mechanism is fixed beforehand, what it is asked may be adaptive.
    Reference: Kairouz, Oh & Viswanath 2015, theorem 3.3, at every ε̃ and not at its k/2 corners alone.
    """
    least = decimal(delta, DOWN)
    odds = exp(UP.minus(decimal(epsilon, DOWN)), UP), exp(DOWN.minus(decimal(epsilon, UP)), DOWN)  # e^−ε of a lie
    truth = UP.divide(1, DOWN.add(1, odds[1]))
    lie = DOWN.divide(odds[1], UP.add(1, odds[1]))
    upper = exp(UP.multiply(times, ln(truth, UP)), UP)
    lower = exp(DOWN.multiply(times, ln(lie, DOWN)), DOWN)
    over, under, most = Decimal(0), Decimal(0), Decimal(1)
    for lies in range((times + 1) // 2):  # with as many lies as truths nothing is lost
        over, under = UP.add(over, upper), DOWN.add(under, lower)
        if over > least:
            most = max(most, UP.divide(UP.subtract(over, least), under))
        left, right = Decimal(times - lies), Decimal(lies + 1)
        upper = UP.multiply(UP.divide(UP.multiply(upper, left), right), odds[0])
        lower = DOWN.divide(DOWN.divide(DOWN.multiply(lower, left), right), odds[0])
    return min(times * epsilon, max(ZERO, Fraction(ln(most, UP)))) if most > 1 else ZERO


def heterogeneous(epsilons: Mapping[Fraction, int], delta: Fraction) -> Fraction:
    """Return an ε̃, rounded up, with which mechanisms of different ε, each so many times, are together (ε̃, δ)-DP.

    Guarantee: the least of Σε, M + √(2Σε²·ln(1/δ)) and M + √(2Σε²·ln(e + √Σε²/δ)), where M = Σε(e^ε − 1)/(e^ε + 1)
        is what is lost on average; and of as many mechanisms of the largest ε.
    Assumes: 0 < δ < 1; the ε are fixed beforehand, what the mechanisms are asked may be adaptive.
    Reference: Kairouz, Oh & Viswanath 2015, theorem 3.5; an ε-DP mechanism is one of every larger ε too.
    """
    total = sum((up(epsilon * times) for epsilon, times in epsilons.items()), ZERO)
    mean = sum((up(epsilon * times * _tanh(epsilon)) for epsilon, times in epsilons.items()), ZERO)
    squares = sum((up(epsilon**2 * times) for epsilon, times in epsilons.items()), ZERO)
    inverse = UP.divide(1, decimal(delta, DOWN))
    root = decimal(root_up(squares), UP)
    logs = ln(inverse, UP), ln(UP.add(exp(Decimal(1), UP), UP.multiply(root, inverse)), UP)
    largest = homogeneous(max(epsilons), sum(epsilons.values()), delta)
    return min(total, largest, *(mean + root_up(2 * squares * Fraction(log)) for log in logs))


def _tanh(epsilon: Fraction) -> Fraction:
    """Return (e^ε − 1)/(e^ε + 1), rounded up, which is at most ε/2."""
    twice = DOWN.divide(2, UP.add(exp(decimal(epsilon, UP), UP), 1))
    return min(epsilon / 2, Fraction(UP.subtract(1, twice)))
