"""How many questions one budget answers: without reuse, with exact reuse, and with derived answers.

    python -m benchmarks.dashboard [--patients 50000]
    python -m benchmarks.dashboard --stored 10000

Users ask about the demo's patients, each question at the demo's default price. The explorer asks for an overview,
then for filters and drill-downs of it, then for coarser groups and totals; and for all of them once more the next day.
The dashboard has four charts; its filters are set to a sex, to ages, and to both, and all of it is looked at again the
next day. "superset" is a dashboard over patients and visits, in Superset's own SQL (superset.sql), on two days. The
counter asks for an overview, then for 200 counts of ages drawn by lot. "subsets" and "ranges" are Turbo's workloads of
200 counts, drawn with equal chances (0) or by a Zipf law (1), over public data (turbo.py).
"a budget" is how many such questions the demo's budget pays. The error is the median of |count - truth| / truth over
all counts of 1,000 units or more: in answers that were derived, and in all. "inside" is the share of these counts whose
truth lies within the announced interval. "in messages" sends the four charts of a setting as one message, and the
explorer's questions of a day by fours.

`--stored` measures instead what that many stored releases add to the processor time of a derived answer: the median of
the differences between a user who has them and one who has one release, of 200 pairs of questions.
"""

import argparse
import functools
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks import turbo
from benchmarks.queries import make_engine
from dpsql.backends import DuckDBBackend
from dpsql.gateway.confidence_intervals import NoisyRows
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder
from dpsql.privacy.conversion import epsilon_to_rho

MODES = (("off", "1"), ("exact", "1"), ("derived", "1"), ("derived", "2"), ("derived", "5"))
"""What may answer, and how many times the error of a fresh answer a derived one may have."""
LARGE = 1000
BUDGET = epsilon_to_rho(Fraction(5), Fraction(1, 2 * 10**6))
"""The demo's budget, of whose δ one half is for private groups."""
EVERYBODY = "FROM patients WHERE age BETWEEN 0 AND 110 AND sex IN ('F', 'M', 'X')"
AGES = "CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'old' END"


Question = tuple[tuple[str, ...], str, str]
"""Keys, values, and rows."""


def explored() -> Iterator[Question]:
    """What the explorer asks on one day."""
    yield ("sex", "age"), "COUNT(*), AVG(weight)", EVERYBODY
    for sex in ("F", "M", "X"):
        women = f"{EVERYBODY} AND sex = '{sex}'"
        yield ("age",), "COUNT(*), AVG(weight)", women
        for low in range(0, 100, 20):
            yield ("age",), "COUNT(*)", f"{women} AND age BETWEEN {low} AND {low + 19}"
    for low in range(0, 100, 10):
        yield ("sex", "age"), "COUNT(*)", f"{EVERYBODY} AND age BETWEEN {low} AND {low + 9}"
    for width in (5, 10, 20):
        yield ("sex", f"FLOOR(age / {width})"), "COUNT(*), AVG(weight)", EVERYBODY
        yield (f"FLOOR(age / {width})",), "COUNT(*)", EVERYBODY
    yield ("sex",), "COUNT(*)", EVERYBODY
    yield (AGES,), "COUNT(*)", EVERYBODY
    yield (), "COUNT(*), AVG(weight)", EVERYBODY


def charted() -> Iterator[Question]:
    """What a dashboard asks on one day: each chart, under each setting of its two filters."""
    sexes = ("", *(f" AND sex IN ('{sex}')" for sex in ("F", "M", "X")))
    ages = ("", *(f" AND age >= {low} AND age < {low + 20}" for low in range(0, 100, 20)))
    for sex, age in itertools.product(sexes, ages):
        rows = EVERYBODY + sex + age
        yield (), "COUNT(*)", rows
        yield ("sex",), "COUNT(*)", rows
        yield ("FLOOR(age / 10)",), "COUNT(*)", rows
        yield ("sex", "FLOOR(age / 10)"), "COUNT(*), AVG(weight)", rows


def counted() -> Iterator[Question]:
    """Counts of ages: the lots are the same in each run."""
    lots = random.Random(1)
    yield ("sex", "age"), "COUNT(*)", EVERYBODY
    for _ in range(200):
        low, high = sorted(lots.sample(range(111), 2))
        yield ("sex",), "COUNT(*)", f"{EVERYBODY} AND age BETWEEN {low} AND {high}"


def asked_as(keys: tuple[str, ...], values: str, rows: str) -> str:
    """A question in SQL."""
    by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*keys, values])} {rows}{by}"


def charts() -> list[str]:
    """The statements of Superset."""
    text = Path(__file__).with_name("superset.sql").read_text()
    return [each.strip() for each in text.split("\n\n", 1)[1].split(";")][:-1]


OF_CLINIC = {
    "explorer": [asked_as(*question) for question in explored()] * 2,
    "dashboard": [asked_as(*question) for question in charted()] * 2,
    "superset": charts() * 2,
    "counter": [asked_as(*question) for question in counted()],
}
OF_DEPARTURES = {
    f"{make.__name__} {exponent}": list(make(exponent, 200))
    for make, exponent in itertools.product((turbo.subsets, turbo.ranges), (0, 1))
}


def counts(rows: Iterable[tuple[Any, ...]], keys: int) -> dict[tuple[str, ...], int]:
    """The first value of each row by its keys."""
    return {tuple(_spelled(key) for key in row[:keys]): row[keys] for row in rows}


def _spelled(key: object) -> str:
    """A key as text: of a number without a fraction, and of the first moment of a day, that is left out."""
    return str(key).removesuffix("+00:00").removesuffix(" 00:00:00").removesuffix(".0")


def made_session(engine: Engine, user: str, *settings: str) -> Session:
    """A new user's session."""
    engine.ledger.add_account(user, engine.policy.roles[0].name)
    session = Session(engine, user)
    for setting in settings:
        session.execute(session.parse(f"SET {setting}")[0])
    return session


def truth_of(backend: DuckDBBackend, sql: str, keys: int) -> dict[tuple[str, ...], int]:
    """The exact counts."""
    cursor = backend._database.cursor()
    cursor.execute(backend._use)
    cursor.execute("CREATE OR REPLACE TEMP MACRO to_date(day, format) AS CAST(day AS DATE)")
    return counts(cursor.execute(sql.replace("FLOOR(age /", "FLOOR(age //")).fetchall(), keys)


def measure(
    world: tuple[Engine, DuckDBBackend], name: str, asked_for: list[str], reuse: str, ratio: str, together: int = 1
) -> str:
    """A row of the table: one user's sequence, some questions in one message."""
    engine, backend = world
    user = f"{name}, {reuse}, {ratio} x" if together == 1 else f"{name}, in messages"
    session = made_session(engine, user, f"dpsql.reuse = {reuse}", f"dpsql.max_error_ratio = {ratio}")
    exact = functools.cache(functools.partial(truth_of, backend))
    free = sums = inside = 0
    errors: list[tuple[float, bool]] = []
    texts = ("; ".join(asked_for[at : at + together]) for at in range(0, len(asked_for), together))
    for statement in (statement for text in texts for statement in session.parse(text)):
        answer = session.execute(statement).answer
        if answer is None or answer.charge is None:
            raise RuntimeError("every question is about protected rows")
        noisy = NoisyRows.of_answer(answer)
        keys = next(place for place, column in enumerate(noisy.columns) if column.noisy)
        told = dict(zip(counts(noisy.rows, keys), zip(noisy.rows, noisy.intervals, strict=True), strict=True))
        is_derived = bool(answer.derived_from)
        free, sums = free + answer.charge.free, sums + is_derived
        for group, count in exact(statement.sql, keys).items():
            if count >= LARGE and group in told:
                row, intervals = told[group]
                errors.append((abs(row[keys] - count) / count, is_derived))
                interval = intervals[keys]
                inside += interval is not None and interval.low <= count <= interval.high
    spent = engine.ledger.budget(user, engine.policy).spent.rho
    derived = [error for error, is_derived in errors if is_derived]
    shown = f"{100 * statistics.median(derived):8.2f} %" if derived else f"{'-':>10}"
    every = 100 * statistics.median(error for error, _ in errors)
    fits = float(BUDGET / spent) * len(asked_for)
    share = 100 * inside / len(errors)
    counted = f"{len(asked_for):6} {free:6} {sums:8} {float(spent):8.3f} {fits:9,.0f}"
    return f"{user:24} {counted} {shown} {every:6.2f} % {share:6.1f} %"


def stored(engine: Engine, count: int) -> str:
    """What stored releases of one user add to a derived answer."""
    many, one = (made_session(engine, user, "dpsql.reuse = exact") for user in ("many", "one"))
    kinds = [asked_as(*question) for question in (*explored(), *charted())]
    for number in range(count):
        if number and number % 4000 == 0:  # each costs at least 1/10,000 of the budget
            engine.ledger.reset(Holder(BudgetScope.USER, "many"), engine.policy, "benchmark")
        seconds(many, f"SET dpsql.epsilon = {Decimal(12 * 10**6 + number) / 10**9}")
        seconds(many, kinds[number % len(kinds)])
    engine.ledger.reset(Holder(BudgetScope.USER, "many"), engine.policy, "benchmark")
    for session in (many, one):
        seconds(session, "SET dpsql.epsilon = 1")
        seconds(session, asked_as(("sex", "age"), "COUNT(*)", EVERYBODY))
        seconds(session, "SET dpsql.epsilon = 0.02")
        seconds(session, "SET dpsql.reuse = derived")
    rows = (f"{EVERYBODY} AND sex = '{sex}' AND age < {age}" for age in range(2, 102) for sex in ("F", "M"))
    asked = [asked_as(("age",), "COUNT(*)", each) for each in rows]
    pairs = [(seconds(many, sql), seconds(one, sql)) for sql in asked]
    more = statistics.median(mine - theirs for mine, theirs in pairs)
    alone = statistics.median(theirs for _, theirs in pairs)
    return f"{count:,} stored releases add {1000 * more:.1f} ms to the {1000 * alone:.1f} ms of a derived answer"


def seconds(session: Session, sql: str) -> float:
    """The processor time of a statement."""
    begun = time.process_time()
    session.execute(session.parse(sql)[0])
    return time.process_time() - begun


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=50_000)
    parser.add_argument("--stored", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        engine, backend = make_engine(Path(temporary), Path(temporary), arguments.patients)
        if arguments.stored:
            print(stored(engine, arguments.stored))
            return
        print("who, reuse                asked   free  derived      rho  a budget      error   of all   inside")
        worlds = ((engine, backend), OF_CLINIC), (turbo.make_engine(Path(temporary)), OF_DEPARTURES)
        for world, sequences in worlds:
            for (name, asked_for), (reuse, ratio) in itertools.product(sequences.items(), MODES):
                print(measure(world, name, asked_for, reuse, ratio), flush=True)
        for name in ("explorer", "dashboard"):
            print(measure((engine, backend), name, OF_CLINIC[name], "derived", "1", 4), flush=True)
        for (each, _), _ in worlds:
            each.close()
            each.ledger.close()


if __name__ == "__main__":
    main()
