"""The exact loss of compositions of small discrete mechanisms: what every bound is measured against."""

import math
from collections.abc import Iterable

Loss = dict[float, float]
"""Probability of each privacy loss; of what the other database makes impossible, at infinity."""


def laplace_loss(shift: int, scale: float) -> Loss:
    """Return the loss of discrete Laplace noise that moves: (|z − s| − |z|)/b."""
    q = math.exp(-1 / scale)
    law: Loss = {}
    for z in range(-int(50 * scale) - shift, int(50 * scale) + 2 * shift):
        loss = round((abs(z - shift) - abs(z)) / scale, 12)
        law[loss] = law.get(loss, 0) + (1 - q) / (1 + q) * q ** abs(z)
    return law


def gaussian_loss(shift: int, variance: float) -> Loss:
    """Return the loss of discrete Gaussian noise that moves: (s² − 2sz)/2σ²."""
    reach = int(12 * math.sqrt(variance)) + shift
    weights = {z: math.exp(-z * z / 2 / variance) for z in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {round((shift**2 - 2 * shift * z) / 2 / variance, 12): weight / total for z, weight in weights.items()}


def selection_loss(epsilon: float) -> Loss:
    """Return the loss of randomized response."""
    return {epsilon: 1 / (1 + math.exp(-epsilon)), -epsilon: 1 / (1 + math.exp(epsilon))}


def composed(laws: Iterable[Loss]) -> Loss:
    """Return the loss of all of them together: each is drawn by itself, and losses add up."""
    whole: Loss = {0.0: 1.0}
    for law in laws:
        sums: Loss = {}
        for loss, probability in whole.items():
            for more, part in law.items():
                key = round(loss + more, 9)
                sums[key] = sums.get(key, 0) + probability * part
        whole = {loss: probability for loss, probability in sums.items() if probability > 1e-25}
    return whole


def delta_of(law: Loss, epsilon: float) -> float:
    """Return the least δ with which the law is (ε, δ)-DP."""
    return math.fsum(p * -math.expm1(epsilon - loss) for loss, p in law.items() if loss > epsilon)


def epsilon_of(law: Loss, delta: float) -> float:
    """Return the least ε ≥ 0 with which the law is (ε, δ)-DP."""
    low, high = 0.0, max(law)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(law, middle) <= delta else (middle, high)
    return high
