"""Averaging: the same question again and again, in other words and in many columns, until the noise cancels out."""

from statistics import fmean

from tests.attacks.arena import OTHERS, Arena, Comparison
from tests.attacks.naive import Ask, Refused

COLUMNS = ", ".join(f"COUNT(*) + {n} - {n}" for n in range(10))
SPELLINGS = (
    "SELECT {columns} FROM people WHERE age >= 0 /* {n} */",
    "SELECT {columns} FROM people AS p WHERE NOT p.age < 0 AND {n} = {n}",
    "SELECT {columns} FROM (SELECT age AS a{n} FROM people) AS t WHERE 0 <= a{n}",
)
TIMES = 15


def answers(ask: Ask) -> list[float]:
    """All the answers there are to be had."""
    found: list[float] = []
    for n in range(TIMES):
        try:
            (row,) = ask(SPELLINGS[n % len(SPELLINGS)].format(n=n, columns=COLUMNS))
        except Refused:
            break
        found += map(float, map(str, row))
    return found


def guess(ask: Ask) -> bool:
    return fmean(answers(ask)) > OTHERS + 0.5


def compare(arena: Arena) -> Comparison:
    return arena.game("averaging", guess, naive={"scale": 1}, query=0.25)


def test_averaging(arena: Arena) -> None:
    compare(arena).check()


def test_an_answer_that_is_given_again_has_the_same_noise(arena: Arena) -> None:
    """By default nothing is paid twice, so there is nothing to average."""
    ask = arena.dpsql(True, query=0.25)
    ask("SET dpsql.reuse = on")
    found = answers(ask)
    assert len(found) == TIMES * 10 and len(set(found)) == 1
