"""Derived answers lie within what is announced, class by class: noise is drawn anew, and the answer made of it."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from dpsql.backends.backend import Cancellation
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import QueryParameters, QueryRequest
from dpsql.gateway.reading import ReleaseReader
from dpsql.gateway.release import ReleasedCells
from dpsql.gateway.session import Session
from dpsql.gateway.settings import Reuse, Settings
from dpsql.ledger import GrantedRelease, HandedRelease
from dpsql.privacy.mechanisms import added
from tests.conftest import Lend, MakeEngine, lent_post_processor, silence_noise
from tests.examples import PROFILE
from tests.test_derived import PEOPLE, asks, run

COPIES = 1000
"""The clinic's patients are taken so many times: sums over rows become so many times as large."""
ENOUGH, LEAST = (4_000, 0.93) if PROFILE == "short" else (20_000, 0.941)
"""Answered cells of each class. A smaller part of them lies within 95 % intervals with a probability below 1e-8."""

BY_PEOPLE = f"SELECT sex, age, {{}} {PEOPLE} GROUP BY 1, 2"
BY_PLACE = (
    "SELECT specialty, DATE_TRUNC('month', visited_on), COUNT(*) FROM visits v JOIN doctors d USING (doctor_id) "
    "WHERE visited_on >= '2020-01-01' AND visited_on < '2025-01-01' GROUP BY 1, 2"
)
CLASSES = {
    "subset": (BY_PEOPLE.format("COUNT(*)"), f"SELECT age, COUNT(*) {PEOPLE} GROUP BY 1"),
    "date_trunc": (BY_PLACE, BY_PLACE.replace("month", "quarter")),
    "floor": (BY_PEOPLE.format("COUNT(*)"), f"SELECT sex, FLOOR(age / 2), COUNT(*) {PEOPLE} GROUP BY 1, 2"),
    "case": (
        BY_PEOPLE.format("COUNT(*)"),
        f"SELECT CASE WHEN sex = 'F' THEN 'f' ELSE 'other' END, age / 4, COUNT(*) {PEOPLE} GROUP BY 1, 2",
    ),
    "width_bucket": (
        BY_PEOPLE.format("COUNT(*)"),
        f"SELECT WIDTH_BUCKET(age, 0, 110, 40), sex, COUNT(*) {PEOPLE} GROUP BY 1, 2",
    ),
    "left": (BY_PLACE, BY_PLACE.replace("specialty,", "LEFT(specialty, 2),", 1)),
    "filter": (
        BY_PEOPLE.format("COUNT(*)"),
        f"SELECT age, COUNT(*) FILTER (WHERE sex <> 'X') {PEOPLE} AND sex IN ('F', 'M', 'X') GROUP BY age",
    ),
    "where": (BY_PEOPLE.format("COUNT(*)"), f"SELECT age, COUNT(*) {PEOPLE} AND sex = 'F' GROUP BY age"),
    "average": (BY_PEOPLE.format("AVG(weight)"), f"SELECT age / 5, AVG(weight) {PEOPLE} GROUP BY 1"),
    "variance": (BY_PEOPLE.format("VAR_POP(weight)"), f"SELECT age / 5, VAR_POP(weight) {PEOPLE} GROUP BY 1"),
    "regression": (
        BY_PEOPLE.format("REGR_SLOPE(weight, age)"),
        f"SELECT age / 10, REGR_SLOPE(weight, age) {PEOPLE} GROUP BY 1",
    ),
    "ratio": (
        BY_PEOPLE.format("SUM(weight), COUNT(*)"),
        f"SELECT age / 5, SUM(weight) / COUNT(*) {PEOPLE} GROUP BY 1",
    ),
}


SETTINGS = {"dpsql.epsilon": "0.5", "dpsql.max_error_ratio": "1000", "dpsql.intervals": "on"}


def compiled(engine: Engine, session: Session, sql: str) -> CompiledQuery:
    settings = Settings(engine.policy, engine.role(session.user))
    for name, value in SETTINGS.items():
        settings.set(name, value)
    return QueryRequest(
        engine, session.user, settings, QueryStatement(sql), QueryParameters(), engine.now()
    ).compile_shown()


def exact_cells(engine: Engine, session: Session, sql: str) -> tuple[PlannedRelease, ReleasedCells]:
    """A release, and its cells without noise, which the ledger has then."""
    with pytest.MonkeyPatch.context() as patch:
        silence_noise(patch)
        run(session, sql)
    (planned,) = compiled(engine, session, sql).releases
    handed: tuple[HandedRelease, ...] = engine.ledger.handed(session.user, engine.policy)
    cells = ReleasedCells.from_bytes(engine.ledger.cells(session.user, handed[-1].release))
    return planned, cells.changed({place: COPIES * cell for place, cell in enumerate(cells.cells)})


def noisy(planned: PlannedRelease, exact: ReleasedCells) -> ReleasedCells:
    drawn = {
        place: cell + added(primitive.noise).sample(len(cell))
        for place, (cell, primitive) in enumerate(zip(exact.cells, planned.primitives, strict=True))
    }
    return exact.changed(drawn)


@pytest.mark.parametrize(("first", "then"), CLASSES.values(), ids=CLASSES)
def test_it_lies_within_what_is_announced(
    make_engine: MakeEngine, clinic_policy: Path, lend: Lend, first: str, then: str
) -> None:
    backend = lend(clinic_policy)
    engine = make_engine(clinic_policy, backend=backend)
    reader = ReleaseReader(engine.policy, engine.ledger, backend, lent_post_processor("UTC"), lambda *_: {})
    session = asks(engine, "cleo")
    for name, value in SETTINGS.items():
        session.configure(name, value)
    planned, exact = exact_cells(engine, session, first)
    query = engine.explain("cleo", compiled(engine, session, then), Cancellation(), reuse=Reuse.DERIVED).query
    assert query.derived_from == (1,) and not query.bought

    def answered(cells: ReleasedCells) -> list[tuple[object, ...]]:
        granted = GrantedRelease(planned.key, 1, cells.to_bytes(planned), reused=True)
        return list(reader.read("cleo", query, (granted,), Cancellation()).rows.rows)

    truths = answered(exact)

    def strayed(rows: list[tuple[object, ...]]) -> Iterator[float]:
        """How far each truth is from the middle of its interval, in halves of the interval."""
        for truth, row in zip(truths, rows, strict=True):
            value, (low, high) = truth[-3], row[-2:]
            if value is not None and low is not None and high is not None:
                start, end = float(str(low)), float(str(high))
                yield abs(2 * float(str(value)) - start - end) / (end - start)

    repeats = ceil(ENOUGH / len(list(strayed(truths))))
    told = np.array([each for _ in range(repeats) for each in strayed(answered(noisy(planned, exact)))])
    assert len(told) >= 0.9 * ENOUGH  # a noisy denominator may be too small for an interval
    assert np.mean(told <= 1 + 1e-9) >= LEAST
    assert np.mean(told <= 1 / 1.5) < LEAST
