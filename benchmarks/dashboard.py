"""How many of an explorer's questions one budget answers: without reuse, with exact reuse, and with derived answers.

    python -m benchmarks.dashboard [--patients 50000]

The questions are those of somebody who looks around in the demo's clinic: an overview, then filters and drill-downs of
it, then coarser groups and totals; and all of them once more the next day. Each is asked at the demo's default price.
"a budget" is how many such questions the demo's budget pays. The error is the median of |count - truth| / truth over
all counts of 1,000 patients or more: in answers that were derived, and in all.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.queries import make_engine
from dpsql.gateway.session import Session
from dpsql.privacy.conversion import epsilon_to_rho

MODES = (("off", "1"), ("exact", "1"), ("derived", "1"), ("derived", "2"), ("derived", "5"), ("derived", "20"))
"""What may answer, and how many times the error of a fresh answer a derived one may have."""
LARGE = 1000
BUDGET = epsilon_to_rho(Fraction(5), Fraction(1, 2 * 10**6))
"""The demo's budget, of whose δ one half is for private groups."""
EVERYBODY = "FROM patients WHERE age BETWEEN 0 AND 110 AND sex IN ('F', 'M', 'X')"
AGES = "CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'old' END"


def questions() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """The questions of one day: keys, values, and rows."""
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


def asked_as(keys: tuple[str, ...], values: str, rows: str) -> str:
    """A question in SQL."""
    by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*keys, values])} {rows}{by}"


def counts(rows: list[tuple[Any, ...]], keys: int) -> dict[tuple[str, ...], int]:
    """The first value of each row by its keys."""
    return {tuple(str(key).removesuffix(".0") for key in row[:keys]): row[keys] for row in rows}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=50_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        engine, backend = make_engine(Path(temporary), Path(temporary), arguments.patients)
        cursor = backend._database.cursor()
        cursor.execute(backend._use)
        print("reuse          asked   free  derived      rho  a budget        error   of all")
        for reuse, ratio in MODES:
            user = f"{reuse}, {ratio} x"
            engine.ledger.add_account(user, engine.policy.roles[0].name)
            session = Session(engine, user)
            for setting in (f"SET dpsql.reuse = {reuse}", f"SET dpsql.max_error_ratio = {ratio}"):
                session.execute(session.parse(setting)[0])
            asked = free = sums = 0
            errors: list[tuple[float, bool]] = []
            for question in [*questions(), *questions()]:
                sql, keys = asked_as(*question), len(question[0])
                answer = session.execute(session.parse(sql)[0]).answer
                if answer is None or answer.charge is None:
                    raise RuntimeError("every question is about patients")
                asked, free = asked + 1, free + answer.charge.free
                truth = counts(cursor.execute(sql.replace("FLOOR(age /", "FLOOR(age //")).fetchall(), keys)
                told = counts(list(answer.rows.rows), keys)
                large = {group: exact for group, exact in truth.items() if exact >= LARGE}
                is_derived = bool(answer.derived_from)
                sums += is_derived
                errors += [(abs(told[group] - exact) / exact, is_derived) for group, exact in large.items()]
            spent = engine.ledger.budget(user, engine.policy).spent.rho
            derived = [error for error, is_derived in errors if is_derived]
            shown = f"{100 * statistics.median(derived):10.2f} %" if derived else f"{'-':>12}"
            every = 100 * statistics.median(error for error, _ in errors)
            fits = float(BUDGET / spent) * asked
            print(
                f"{user:12} {asked:6} {free:6} {sums:8} {float(spent):8.3f} {fits:9,.0f} {shown} {every:6.2f} %",
                flush=True,
            )
        engine.close()
        engine.ledger.close()


if __name__ == "__main__":
    main()
