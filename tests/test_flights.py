"""Questions about New York's departures, asked of real data with real noise, and compared with the truth.

An answer strays from the truth by what the bounds cut and by its noise. The first is below the announced 95 % half
width in every cell, which is tested without noise. So an answer further off than REACH half widths has noise beyond
REACH - 1 of them. For a Gaussian of standard deviation s the half width is 1.96 s, and 4 of them are exceeded with a
probability below 2 exp(-7.84² / 2) < 1e-13; for a Laplace of scale b it is 3 b, and exp(-27) < 2e-12. A mean is off by
(noise of its sum - mean · noise of its count) / noisy count: the announced width holds the first term at least, and the
second is no larger in law, so that 6 (Laplace: 10) half widths are exceeded with a probability below 1e-11. Some 3,500
cells are drawn, so an alarm is false less than once in 20 million runs.
"""

import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from examples.load_flights import load as load_flights
from tests.conftest import ROOT

REACH = {"gaussian": 5.0, "laplace": 10.0}
REACH_OF_MEANS = {"gaussian": 7.0, "laplace": 11.0}


@dataclass(frozen=True)
class Question:
    """What is asked, and the bounds that an analyst who knows aviation narrows for it.

    Attributes:
        words: The question.
        sql: The same in SQL, its group keys first.
        keys: How many these are.
        settings: What is SET before.
        private: True where groups are shown only if enough aircraft are in them.
    """

    words: str
    sql: str
    keys: int = 1
    settings: Mapping[str, int] = field(default_factory=dict)
    private: bool = False


QUESTIONS = [
    Question(
        "How late does each airline leave?",
        "SELECT a.name, COUNT(*) AS departures, AVG(f.dep_delay) AS delay "
        "FROM flights AS f JOIN airlines AS a ON a.carrier = f.carrier GROUP BY a.name",
        settings={"max_groups": 2},  # an aircraft belongs to one airline, or is sold
    ),
    Question(
        "Where do they fly?",
        "SELECT a.name, COUNT(*) AS departures FROM flights AS f JOIN airports AS a ON a.faa = f.dest GROUP BY a.name",
        settings={"max_rows_per_group": 200},  # hardly more than every second day to one place
    ),
    Question(
        "In which month are they late?",
        "SELECT month, COUNT(*) AS departures, AVG(arr_delay) AS delay FROM flights GROUP BY month",
        settings={"max_groups": 12, "max_rows_per_group": 70},  # hardly more than twice a day
    ),
    Question(
        "How late are they in the rain?",
        "SELECT AVG(f.dep_delay) AS delay FROM flights AS f JOIN weather AS w USING (origin, time_hour) "
        "WHERE w.precip > 0",
        keys=0,
        settings={"max_rows": 30},  # it rains in one hour of sixteen or so
    ),
    Question(
        "How often does an aircraft leave New York, and how late is it on average?",
        "SELECT AVG(departures) AS departures, AVG(delay) AS delay FROM ("
        "SELECT tailnum, COUNT(*) AS departures, AVG(dep_delay) AS delay FROM flights GROUP BY tailnum) AS t",
        keys=0,
    ),
    Question(
        "Who built the aircraft, and how many seats do they have?",
        "SELECT manufacturer, COUNT(*) AS aircraft, AVG(seats) AS seats FROM planes GROUP BY manufacturer",
        private=True,
    ),
    Question(
        "How many seats leave from each airport?",
        "SELECT f.origin, SUM(p.seats) AS seats FROM flights AS f JOIN planes AS p ON p.tailnum = f.tailnum "
        "GROUP BY f.origin",
    ),
    Question(
        "How late does one leave by the hour of the day?",
        "SELECT hour, AVG(dep_delay) AS delay FROM flights GROUP BY hour",
        settings={"max_groups": 20, "max_rows_per_group": 70},  # at night the airports rest
    ),
    Question(
        "How many aircraft does each airline send?",
        "SELECT a.name, COUNT(DISTINCT f.tailnum) AS aircraft FROM flights AS f JOIN airlines AS a USING (carrier) "
        "GROUP BY a.name",
        settings={"max_groups": 2},
    ),
    Question(
        "Are old aircraft later?",
        "SELECT p.year < 2000 AS old, AVG(f.arr_delay) AS delay FROM flights AS f JOIN planes AS p USING (tailnum) "
        "GROUP BY old",
        settings={"max_groups": 1},  # each was built once
    ),
    Question(
        "How many of the registered aircraft were ever three hours late?",
        "SELECT COUNT(*) AS aircraft FROM planes AS p "
        "WHERE EXISTS (SELECT 1 FROM flights AS f WHERE f.tailnum = p.tailnum AND f.arr_delay > 180)",
        keys=0,
    ),
    Question(
        "How far do they fly, and how long, in fog and in clear air?",
        "SELECT CASE WHEN w.visib < 1 THEN 'fog' WHEN w.visib < 10 THEN 'haze' ELSE 'clear' END AS air, "
        "AVG(f.distance) AS miles, AVG(f.air_time) AS minutes "
        "FROM flights AS f JOIN weather AS w USING (origin, time_hour) GROUP BY air",
        settings={"max_groups": 3},
    ),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    load_flights(folder / "flights.duckdb")
    return Path(shutil.copy(ROOT / "policies" / "flights.toml", folder))


@pytest.fixture(scope="module")
def truth(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The data as dpsql reads it: a departure without an aircraft, which was cancelled, forms no row."""
    copy = shutil.copy(policy.with_suffix(".duckdb"), tmp_path_factory.mktemp("truth"))
    with duckdb.connect(copy) as connection:
        connection.execute("DELETE FROM flights WHERE tailnum IS NULL")
        yield connection


@pytest.fixture(scope="module")
def analyst(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Connection]:
    ledger = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    with dpsql.connect(policy, user="ida", ledger=f"sqlite:///{ledger}") as connection:
        yield connection


@dataclass(frozen=True)
class Cell:
    """One noisy value with what was announced about it."""

    key: tuple[Any, ...]
    column: str
    value: float
    half_width: float
    mechanism: str
    is_mean: bool


def ask(connection: dpsql.Connection, question: Question) -> list[Cell]:
    """All noisy cells of an answer."""
    with connection.cursor() as cursor:
        for name in ("max_rows", "max_groups", "max_rows_per_group"):
            cursor.execute(f"RESET dpsql.{name}")
        for name, value in question.settings.items():
            cursor.execute(f"SET dpsql.{name} = {value}")
        cursor.execute("SET dpsql.intervals = on")
        cursor.execute(question.sql)
        assert cursor.release is not None
        assert cursor.release.reused or cursor.release.cost["epsilon"] == pytest.approx(0.4)
        assert cursor._result is not None
        assert cursor._result.answer is not None
        columns = [column for column in cursor._result.answer.columns if column.error is not None]
        names = [entry[0] for entry in cursor.description or ()]
        errors = cursor.release.error
        cells = []
        for row in cursor.fetchall():
            values = dict(zip(names, row, strict=True))
            for column in columns:
                assert column.error is not None
                value, *ends = (values[name] for name in (column.name, f"{column.name}_low", f"{column.name}_high"))
                says_nothing = value is None or value in ends  # a mean of few, or one that is clamped to its bounds
                assert not says_nothing or errors[column.name] is None
                width = math.inf if says_nothing else float(ends[1]) - float(ends[0])
                cells.append(
                    Cell(
                        key=row[: question.keys],
                        column=column.name,
                        value=float(value or 0),
                        half_width=width / 2,
                        mechanism=column.error.mechanism,
                        is_mean=errors[column.name] is None,
                    )
                )
    return cells


def true_values(truth: duckdb.DuckDBPyConnection, question: Question) -> dict[tuple[Any, ...], dict[str, float]]:
    """The answer as it is: columns by group."""
    cursor = truth.execute(question.sql)
    names = [entry[0] for entry in cursor.description or ()][question.keys :]
    rows = cursor.fetchall()
    return {row[: question.keys]: dict(zip(names, row[question.keys :], strict=True)) for row in rows}


def check(question: Question, cells: list[Cell], truth: duckdb.DuckDBPyConnection, noise: bool) -> None:
    """Hold each cell to the truth: where nobody is, counts and sums are 0, and a mean says nothing or is NULL."""
    true = true_values(truth, question)
    keys = {cell.key for cell in cells}
    assert keys <= set(true) if question.private else keys >= set(true)
    for cell in cells:
        if cell.is_mean and cell.key not in true:
            continue
        expected = float(true[cell.key][cell.column]) if cell.key in true else 0.0
        reach = (REACH_OF_MEANS if cell.is_mean else REACH)[cell.mechanism] if noise else 1.0
        assert abs(cell.value - expected) <= reach * cell.half_width, f"{cell}: {expected}"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words)
def test_answers_are_as_close_as_announced(
    question: Question, analyst: dpsql.Connection, truth: duckdb.DuckDBPyConnection
) -> None:
    check(question, ask(analyst, question), truth, noise=True)


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words)
def test_the_bounds_cut_less_than_the_announced_error(
    question: Question, policy: Path, tmp_path: Path, truth: duckdb.DuckDBPyConnection
) -> None:
    with dpsql.connect(policy, user="ida", ledger=f"sqlite:///{tmp_path / 'ledger.sqlite'}") as connection:
        check(question, ask(connection, question), truth, noise=False)


def test_the_questions_fit_the_budget(analyst: dpsql.Connection) -> None:
    for question in QUESTIONS:
        ask(analyst, question)
    left = analyst.cursor().execute("SELECT epsilon_remaining, delta_remaining FROM dpsql.budget").fetchone()
    assert left is not None
    assert left[0] > 0
    assert left[1] > 0


def test_answers_are_of_use(analyst: dpsql.Connection) -> None:
    """What an analyst would want to know stands out of the noise, far enough for a chance of error below 1e-6."""
    by_words = {question.words: question for question in QUESTIONS}
    (rain,) = ask(analyst, by_words["How late are they in the rain?"])
    assert rain.value > 20  # 30.9 in truth, and the announced half width is 1.7
    (late,) = ask(analyst, by_words["How many of the registered aircraft were ever three hours late?"])
    assert late.half_width < 0.01 * late.value
    makers = {cell.key for cell in ask(analyst, by_words["Who built the aircraft, and how many seats do they have?"])}
    assert {("BOEING",), ("EMBRAER",)} <= makers
    assert ("JOHN G HESS",) not in makers  # the builder of one aircraft
