"""A health economist's questions, asked of real people with real noise, and compared with the truth.

A noisy cell strays further than REACH times its standard error with a probability below 1e-9 (Gaussian) or 2e-8
(Laplace); some 150 cells are drawn here, so an alarm is false less than once in 200,000 runs. A mean is held to the
bound that follows from the reach of its sum and its count.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.compiler.aggregates.base import ColumnError
from dpsql.compiler.aggregates.total import MeanEstimate
from dpsql.gateway.answers import Answer
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace

REACH = {"gaussian": 6.2, "laplace": 12.6}


@dataclass(frozen=True)
class Question:
    """What is asked, in SQL with `keys` leading columns, and where the truth clamps as the policy does."""

    words: str
    sql: str
    keys: int = 1
    truth: str | None = None


QUESTIONS = [
    Question(
        "How many visits to a doctor in each year, and how many interviews?",
        "SELECT year, SUM(docvis), COUNT(*) FROM rwm5yr GROUP BY year ORDER BY year",
        truth="SELECT year, SUM(LEAST(docvis, 52)), COUNT(*) FROM rwm5yr GROUP BY year ORDER BY year",
    ),
    Question(
        "Who sees the doctor more often, women or men?",
        "SELECT female, AVG(docvis) FROM rwm5yr GROUP BY female",
        truth="SELECT female, AVG(LEAST(docvis, 52)) FROM rwm5yr GROUP BY female",
    ),
    Question(
        "What do households earn, by education?",
        "SELECT edlevel, AVG(hhninc), COUNT(*) FROM rwm5yr GROUP BY edlevel",
        truth="SELECT edlevel, AVG(LEAST(hhninc, 20)), COUNT(*) FROM rwm5yr GROUP BY edlevel",
    ),
    Question(
        "What share is out of work, by sex?",
        "SELECT female, AVG(outwork), SUM(outwork) FROM rwm5yr GROUP BY female",
    ),
    Question("How old are they?", "SELECT AVG(age) FROM rwm5yr", keys=0),
    Question(
        "How many days in hospital, by year?",
        "SELECT year, SUM(hospvis) FROM rwm5yr WHERE hospvis BETWEEN 0 AND 60 GROUP BY year",
    ),
    Question(
        "What share is self-employed, by sex?",
        "SELECT female, AVG(self) FROM rwm5yr GROUP BY female",
    ),
    Question(
        "How many persons, and how many of them were ever out of work?",
        "SELECT COUNT(DISTINCT id), COUNT(DISTINCT id) FILTER (WHERE outwork = 1) FROM rwm5yr",
        keys=0,
    ),
    Question(
        "Do visits rise with age?",
        "SELECT CASE WHEN age < 35 THEN 'young' WHEN age < 50 THEN 'middle' ELSE 'old' END AS band, "
        "AVG(CASE WHEN docvis > 10 THEN 1 ELSE 0 END) FROM rwm5yr GROUP BY band",
    ),
    Question(
        "How many interviews with the married and with parents?",
        "SELECT married, kids, COUNT(*) FROM rwm5yr GROUP BY married, kids",
        keys=2,
    ),
    Question(
        "How many never saw a doctor in a year?",
        "SELECT year, COUNT(*) FILTER (WHERE docvis = 0) FROM rwm5yr GROUP BY year",
    ),
    Question(
        "How long did women and men go to school, if they work?",
        "SELECT female, AVG(educ) FROM rwm5yr WHERE outwork = 0 GROUP BY female",
    ),
]


@pytest.fixture(scope="module")
def truth(german_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    copy = tmp_path_factory.mktemp("truth") / "truth.duckdb"
    shutil.copy(german_policy.with_suffix(".duckdb"), copy)
    with duckdb.connect(str(copy), read_only=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def economist(german_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Connection]:
    ledger = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    with dpsql.connect(german_policy, user="eva", ledger=f"sqlite:///{ledger}") as connection:
        yield connection


def reach(answer: Answer, error: ColumnError, cell: int) -> float:
    """How far a cell may stray, in grid units."""
    noise = answer.query.releases[error.release].primitives[cell].noise
    assert isinstance(noise, DiscreteLaplace | DiscreteGaussian)
    kind = "laplace" if isinstance(noise, DiscreteLaplace) else "gaussian"
    return REACH[kind] * max(noise.stderr, 0.5)


def allowance(answer: Answer, error: ColumnError, true_value: float, count: float) -> float:
    """How far a column's value may be from the truth."""
    if not isinstance(error.estimate, MeanEstimate):
        assert error.stderr is not None
        return REACH[error.mechanism] * error.stderr
    grid = error.estimate.grid
    of_sum, of_count = (reach(answer, error, cell) for cell in (error.estimate.sum_cell, error.estimate.count_cell))
    offset = abs(Fraction(true_value) / grid.step - grid.centre)
    assert count > of_count, "the group is too small for a bound"
    # |mean' - mean| <= (|noise of the sum| + |mean - centre| * |noise of the count|) / noisy count; and the grid.
    return float(grid.step * ((Fraction(of_sum) + offset * Fraction(of_count)) / Fraction(count - of_count) + 1))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words)
def test_answers_are_as_close_as_announced(
    question: Question, economist: dpsql.Connection, truth: duckdb.DuckDBPyConnection
) -> None:
    with economist.cursor() as cursor:
        cursor.execute(question.sql)
        result = cursor._result
        assert result is not None
        answer = result.answer
        assert answer is not None
        rows = cursor.fetchall()
    raw = truth.execute(question.truth or question.sql).fetchall()
    sizes = truth.execute(count_query(question)).fetchall()
    true = {row[: question.keys]: row[question.keys :] for row in raw}
    counts = {row[: question.keys]: row[-1] for row in sizes}
    assert set(true) <= {row[: question.keys] for row in rows}
    for row in rows:
        key = row[: question.keys]
        for index, column in enumerate(answer.columns[question.keys :]):
            assert column.error is not None
            is_mean = isinstance(column.error.estimate, MeanEstimate)
            if row[question.keys + index] is None:  # its noisy count is not positive
                assert is_mean and key not in true
                continue
            value = float(row[question.keys + index])
            if key not in true:  # NULL, and other groups nobody is in
                assert is_mean or abs(value) <= allowance(answer, column.error, 0.0, 0.0)
                continue
            expected = float(true[key][index])
            assert abs(value - expected) <= allowance(answer, column.error, expected, counts[key])


def count_query(question: Question) -> str:
    """The same groups with the number of their rows."""
    head, _, tail = question.sql.partition(" FROM rwm5yr")
    keys = head.removeprefix("SELECT ").split(", ")[: question.keys]
    return f"SELECT {', '.join([*keys, 'COUNT(*)'])} FROM rwm5yr{tail.partition(' ORDER BY')[0]}"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT AVG({docvis}) FROM rwm5yr",
        "SELECT AVG({hospvis}) FROM rwm5yr",
        "SELECT AVG({hhninc}) FROM rwm5yr",
    ],
)
def test_the_policys_bounds_cut_little(sql: str, truth: duckdb.DuckDBPyConnection) -> None:
    """What clamping moves is small beside the answer: the bias that the error does not announce."""
    clamps = {"docvis": "LEAST(docvis, 52)", "hospvis": "LEAST(hospvis, 60)", "hhninc": "LEAST(hhninc, 20)"}
    (plain,) = truth.execute(sql.format(**{name: name for name in clamps})).fetchone() or (0,)
    (clamped,) = truth.execute(sql.format(**clamps)).fetchone() or (0,)
    assert abs(clamped - plain) < 0.03 * plain


def test_the_questions_fit_the_budget(economist: dpsql.Connection) -> None:
    for question in QUESTIONS:
        economist.cursor().execute(question.sql)
    left = economist.cursor().execute("SELECT epsilon_remaining, delta_remaining FROM dpsql.budget").fetchone()
    assert left is not None
    assert 0 < left[0] < 5
    assert left[1] == 0  # every key is public: nothing is set aside for private ones


def test_no_answer_is_exact(economist: dpsql.Connection, truth: duckdb.DuckDBPyConnection) -> None:
    """Five counts that were all true would be noise that is missing: at this scale less than once in 1e10 runs."""
    rows = economist.cursor().execute(QUESTIONS[0].sql).fetchall()
    raw = dict(truth.execute("SELECT year, COUNT(*) FROM rwm5yr GROUP BY year").fetchall())
    assert [row[2] for row in rows if row[0] in raw] != [raw[row[0]] for row in rows if row[0] in raw]
