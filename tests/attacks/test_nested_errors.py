"""Nested errors: of expressions within expressions, one that fails over the target's rows alone tells of them.

Every form of the grammar is asked over the target's poison, intervals are scaled by extreme numbers, and every form has
extreme operands; then chance nests forms.
"""

import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from tests.attacks.arena import Arena, Comparison, Verdict, asking, together
from tests.attacks.naive import Ask, NaiveGateway
from tests.attacks.test_errors import told
from tests.conftest import closing_engine
from tests.engines import HOSTS
from tests.spark import adapted_policy
from tests.strategies.poison import (
    POLICY,
    SEED,
    SHAPES,
    Part,
    Shape,
    every_form,
    extremes,
    parts,
    scaled_intervals,
    statements,
)

QUESTIONS = 8
THOROUGH = 4_000
AT_ONCE = 6
"""Nested expressions in one question."""
TOGETHER = 24
"""Expressions of one form in one question."""
EVERY = 29
"""One of 29 forms with extreme operands is asked in the short profile."""

Question = tuple[Shape, Sequence[Part]]

Open = Callable[[], Ask]
"""Lets a new user ask, who has caused no failure yet."""


class Neighbours:
    """A user of the database with the target, and one of that without."""

    def __init__(self, present: Open, absent: Open) -> None:
        self._users = present, absent
        self._asks = present(), absent()
        self.answered = 0
        self.telling: list[str] = []

    def ask(self, shape: Shape, asked: Sequence[Part]) -> None:
        """Note the questions, of as few expressions as possible, whose fate depends on the target."""
        sql = shape(asked)
        one, other = (told(ask, sql) for ask in self._asks)
        if one == other == "an answer":
            self.answered += len(asked)
            return
        if one != other:
            self._asks = self._users[0](), self._users[1]()
        if len(asked) > 1:
            self.ask(shape, asked[: len(asked) // 2])
            self.ask(shape, asked[len(asked) // 2 :])
        elif one != other:
            self.telling.append(f"{sql}: {one}, but {other}")

    def attacked(self, questions: Iterable[Question], told_of: str = "") -> Verdict:
        """What many questions come to; the text names the first that tells, and where they come from."""
        asked = 0
        for shape, expressions in questions:
            asked += len(expressions)
            self.ask(shape, expressions)
        assert self.answered > asked / 2, "most questions are refused"
        first = f"{told_of}: {self.telling[0]}" if self.telling else ""
        return Verdict(f"{len(self.telling)} of {self.answered} tell{first}", bool(self.telling))


def forms(every: int) -> Iterator[Question]:
    """Every form, intervals by extreme numbers, and one of `every` forms with extreme operands."""
    asked = [*every_form(), *scaled_intervals(), *extremes()[::every]]
    for number, start in enumerate(range(0, len(asked), TOGETHER)):
        yield SHAPES[number % 2], asked[start : start + TOGETHER]


def by_chance(seed: int, questions: int) -> Iterator[Question]:
    """Nested forms."""
    chance = random.Random(seed)
    for _ in range(questions):
        yield chance.choice(SHAPES), parts(chance, AT_ONCE)


def gateway(arena: Arena, engine: str, present: bool) -> Engine:
    """dpsql over the database with the target, or without."""
    folder = arena.folder / f"poison-{engine}-{present}"
    folder.mkdir()
    url = arena.held(arena.hosts[engine].make(*statements(engine, present=present)))
    policy = folder / "poison.toml"
    text = POLICY.format(url=url)
    policy.write_text(adapted_policy(text, url) if engine == "spark" else text, encoding="utf-8")
    return arena.held(closing_engine(policy, folder))


def users(opened: Engine) -> Open:
    """New users of dpsql."""
    numbers = count()

    def open_user() -> Ask:
        user = f"user{next(numbers)}"
        opened.ledger.add_account(user, "analyst")
        return asking(Session(opened, user))

    return open_user


def naive(arena: Arena, present: bool) -> Open:
    """The naive gateway, whoever asks."""
    url = arena.held(arena.hosts["duckdb"].make(*statements("duckdb", present=present)))
    gateway = NaiveGateway(Path(url.removeprefix("duckdb:///")))
    arena.held(gateway.database)
    return lambda: gateway.ask


def compare(arena: Arena) -> Comparison:
    seed, questions, every = (secrets.randbits(32), THOROUGH, 1) if arena.thorough else (SEED, QUESTIONS, EVERY)
    fallen = Neighbours(naive(arena, True), naive(arena, False)).attacked(by_chance(SEED, QUESTIONS))
    verdicts = {
        engine: Neighbours(*(users(gateway(arena, engine, present)) for present in (True, False))).attacked(
            chain(forms(every), by_chance(seed, questions)), f", seed {seed}"
        )
        for engine in HOSTS
    }
    return Comparison("nested error oracle", fallen, together(verdicts))


def test_nested_error_oracle(arena: Arena) -> None:
    compare(arena).check()
