"""Errors: an expression that fails on one person's rows alone tells that they are there, and costs nothing."""

from tests.attacks.arena import Arena, Comparison, Verdict, together
from tests.attacks.naive import Ask, Refused
from tests.engines import HOSTS
from tests.strategies.queries import BOOL, DATE, FLOAT, FORMS, INT, NUMERIC, STAMP, TEXT

COLUMNS = {
    **{INT: ("n", "cost"), FLOAT: ("f", "f"), NUMERIC: ("m", "m"), TEXT: ("note", "note")},
    **{DATE: ("day", "day"), STAMP: ("met", "met"), BOOL: ("(n > 0)", "(f > 0)")},
}
"""By kind of type, the column that is the first operand, and the one that is any other."""
TERMS = {"epsilon": 900, "query": 0.1}
EVERY = 9
"""Of the expressions, so many are left out between two."""


def expressions() -> list[str]:
    """Every function that is allowed, over columns in which the target has the most awkward values of their types."""
    forms = (form for kind in FORMS for form in FORMS[kind] if set(form[1]) <= set(COLUMNS))
    return [form.format(*(COLUMNS[kind][at > 0] for at, kind in enumerate(kinds))) for form, kinds in forms]


def told(ask: Ask, sql: str) -> str:
    """All that a client sees but for the noise."""
    try:
        ask(sql)
    except Refused as refused:
        return str(refused)
    return "an answer"


def verdict(asks: tuple[Ask, Ask], asked: list[str]) -> Verdict:
    """The expressions that fail only where the target is, or in other words there."""
    questions = [f"SELECT COUNT({expression}) FROM visits" for expression in asked]
    telling = [sql for sql in questions if told(asks[0], sql) != told(asks[1], sql)]
    return Verdict(f"{len(telling)} of {len(asked)} functions tell", bool(telling))


def on_engine(arena: Arena, engine: str, asked: list[str]) -> Verdict:
    """The expressions that fail only where the target is, asked of dpsql over an engine."""
    terms = {**TERMS, "engine": engine}
    asks = arena.dpsql(True, **terms), arena.dpsql(False, **terms)
    found = verdict(asks, asked)
    paid, expected = (ask("SELECT epsilon_spent FROM dpsql.budget") for ask in asks)
    assert paid == expected, "what answers and failures cost depends on the data"
    return found


def compare(arena: Arena) -> Comparison:
    asked = expressions() if arena.thorough else expressions()[::EVERY]
    naive = verdict((arena.naive(True).ask, arena.naive(False).ask), asked)
    return Comparison("error oracle", naive, together({engine: on_engine(arena, engine, asked) for engine in HOSTS}))


def test_error_oracle(arena: Arena) -> None:
    compare(arena).check()
