"""Reconstruction: counts over many subsets, solved for everybody's secret bit (Dinur & Nissim 2003)."""

from collections.abc import Sequence

import numpy as np

from tests.attacks.arena import BOUND, EPSILON, OTHERS, Arena, Comparison, Verdict, beats
from tests.attacks.naive import Ask, Refused

SUBSETS_AT_ONCE = 20


def reconstructed(ask: Ask, pays: Sequence[int], questions: int) -> list[bool]:
    """Who is sick, as far as answers tell; the attacker knows what everybody earns.

    A product's remainder says who is in a subset: about half of the people, another half for every factor.
    """
    rows: list[list[bool]] = []
    found: list[float] = []
    for question in range(questions):
        factors = [1 + 2 * (question * SUBSETS_AT_ONCE + n) for n in range(SUBSETS_AT_ONCE)]
        counts = (f"COUNT(*) FILTER (WHERE pay * {factor} % 10007 < 5003)" for factor in factors)
        try:
            (row,) = ask(f"SELECT {', '.join(counts)} FROM people WHERE sick AND pay <= {pays[-1]}")
        except Refused:
            break
        found += map(float, map(str, row))
        rows += [[pay * factor % 10007 < 5003 for pay in pays] for factor in factors]
    solved = np.linalg.lstsq(np.array(rows, dtype=float), np.array(found), rcond=None)[0]
    return [bool(bit > 0.5) for bit in solved]


def compare(arena: Arena) -> Comparison:
    """Who is sick is counted or not, so of each the bit is guessed right no more often than whether they are there."""
    people, questions = (OTHERS, 250) if arena.thorough else (250, 40)
    database = arena.naive(False).database
    known = database.execute(f"SELECT pay, sick FROM people ORDER BY pay LIMIT {people}").fetchall()

    def verdict(ask: Ask, note: str = "") -> Verdict:
        bits = reconstructed(ask, [pay for pay, _ in known], questions)
        right = sum(bit == sick for bit, (_, sick) in zip(bits, known, strict=True))
        return Verdict(f"right: {right / people:.0%} of people{note}", beats(right, people, BOUND))

    dpsql = arena.dpsql(False, query=EPSILON / 2)
    return Comparison(
        "reconstruction", verdict(arena.naive(False, scale=2).ask), verdict(dpsql, f" (bound {BOUND:.0%})")
    )


def test_reconstruction(arena: Arena) -> None:
    compare(arena).check()
