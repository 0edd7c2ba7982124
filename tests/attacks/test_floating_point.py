"""Floating point: which numbers noise can make depends on what it was added to (Mironov 2012).

Laplace noise of numpy is scale·log(k·2⁻⁵²) or, above 0, −scale·log(k·2⁻⁵³) for a whole number k. An answer that no such
k gives is not noise alone, so there was something that it was added to. What dpsql answers lies on one lattice,
whatever the data.
"""

import math
from decimal import Decimal

import pytest

from tests.attacks.arena import TARGET, Arena, Comparison
from tests.attacks.naive import Ask

SCALE = 8
QUESTION = f"SELECT {', '.join(f'COUNT(*) FILTER (WHERE age > {n})' for n in range(12))} FROM people WHERE {TARGET}"
"""One answer to 1 is taken for one to 0 about every fourth time."""


def is_noise_alone(answer: float) -> bool:
    """Whether numpy's sampler gives this very number."""
    unit = 2.0**-53 if answer > 0 else 2.0**-52
    near = round(math.exp(-abs(answer) / SCALE) / unit)
    return any(SCALE * math.log(k * unit) == -abs(answer) for k in range(max(near - 8, 1), near + 9))


def guess(ask: Ask) -> bool:
    (answers,) = ask(QUESTION)
    return not all(is_noise_alone(float(str(answer))) for answer in answers)


def compare(arena: Arena) -> Comparison:
    return arena.game("floating point", guess, naive={"scale": SCALE})


def test_floating_point(arena: Arena) -> None:
    compare(arena).check()


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_answers_lie_on_one_lattice(arena: Arena, present: bool, mechanism: str) -> None:
    """That of the column's step, where the engine's own sums of doubles would have digits of their order."""
    ask = arena.dpsql(present, epsilon=900, accountant="zcdp", query=0.5)
    ask(f"SET dpsql.mechanism = '{mechanism}'")
    for n in range(3):
        ((count, total),) = ask(f"SELECT COUNT(*), SUM(f) FROM visits WHERE cost <> {n}")
        assert Decimal(str(count)) % 1 == Decimal(str(total)) * 2 % 1 == 0
