"""NoisyRows: the intervals of an answer beside its numbers, and how they are written."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.gateway.confidence_intervals import ConfidenceInterval, NoisyRows
from dpsql.gateway.notices import value_text

MEANS = "SELECT sex, COUNT(*) AS n, AVG(age) AS m, COUNT(*) / 2.0 AS h FROM patients GROUP BY sex"


@pytest.fixture
def connection(clinic_policy: Path, tmp_path: Path) -> Iterator[dpsql.Connection]:
    with dpsql.connect(clinic_policy, user="ana", ledger=f"sqlite:///{tmp_path / 'ledger.sqlite'}") as opened:
        yield opened


def test_limits_become_intervals(connection: dpsql.Connection) -> None:
    result = connection.run(MEANS, settings={"dpsql.intervals": "on"})
    noisy = NoisyRows.of(result)
    assert [column.name for column in noisy.columns] == ["sex", "n", "m", "h"]
    assert [column.noisy for column in noisy.columns] == [False, True, True, True]
    assert [column.error is not None for column in noisy.columns] == [False, True, True, False]
    assert noisy.epsilon is not None and float(noisy.epsilon) == 0.1
    raws: Sequence[tuple[Any, ...]] = result.rows
    for row, intervals, raw in zip(noisy.rows, noisy.intervals, raws, strict=True):
        assert row == (raw[0], raw[1], raw[4], raw[7])
        assert intervals == (
            None,
            ConfidenceInterval(raw[2], raw[3]),
            None if raw[4] is None else ConfidenceInterval(raw[5], raw[6]),
            ConfidenceInterval(raw[8], raw[9]),
        )


def test_what_the_plan_does_not_tell_is_told_row_by_row(connection: dpsql.Connection) -> None:
    result = connection.run(MEANS)
    limits = connection.run(MEANS, settings={"dpsql.intervals": "on"}).rows
    noisy = NoisyRows.of(result)
    assert noisy.rows == tuple(result.rows)
    (column,) = [column for column in noisy.columns if column.name == "n"]
    assert column.error is not None and column.error.plus_minus_95 is not None
    pairs: Any = zip(noisy.rows, noisy.intervals, limits, strict=True)
    for row, (key, of_count, of_mean, of_half), limit in pairs:
        margin = column.error.plus_minus_95
        assert key is None
        assert of_count == ConfidenceInterval(row[1] - margin, row[1] + margin)
        assert of_mean == (None if row[2] is None else ConfidenceInterval(limit[5], limit[6]))
        assert of_half == ConfidenceInterval(limit[8], limit[9])


def test_the_error_of_an_array_is_that_of_each_number(connection: dpsql.Connection) -> None:
    connection.configure({"dpsql.target_error": "20 %"})
    result = connection.run("SELECT HISTOGRAM(age, 20, 60, 2) AS h FROM patients")
    assert NoisyRows.of(result).intervals == ((None,),)
    assert result.answer is not None
    rows: Sequence[tuple[Any, ...]] = result.rows
    ((counts,),) = rows
    error = result.answer.columns[0].error
    assert error is not None and error.plus_minus_95 is not None
    assert error.explained.startswith("each count ± ")
    assert error.plus_minus_95 <= sorted(map(abs, counts))[2] / 5


def test_an_answer_to_a_target_has_its_limits_taken_out(connection: dpsql.Connection) -> None:
    connection.configure({"dpsql.target_error": "50 %"})
    noisy = NoisyRows.of(connection.run("SELECT COUNT(*) AS n, AVG(age) AS m FROM patients"))
    assert [column.name for column in noisy.columns] == ["n", "m"]
    assert [len(row) for row in noisy.rows] == [2]
    of_count, of_mean = noisy.intervals[0]
    assert of_count is not None and of_mean is not None


def test_a_value_without_limits_is_within_infinity(connection: dpsql.Connection, no_noise: None) -> None:
    sql = "SELECT 1 / (SUM(age) + 0.5) AS r, SUM(age) / 0 AS z FROM patients WHERE city = 'Nowhere'"
    result = connection.run(sql, settings={"dpsql.intervals": "on"})
    noisy = NoisyRows.of(result)
    assert [column.noisy for column in noisy.columns] == [True, True]
    assert noisy.rows == ((2.0, None),)
    assert noisy.intervals == ((ConfidenceInterval(-math.inf, math.inf), None),)


def test_what_is_not_released_has_no_intervals(connection: dpsql.Connection) -> None:
    for sql in ("SELECT epsilon_limit FROM dpsql.budget", "SHOW dpsql.epsilon"):
        noisy = NoisyRows.of(connection.run(sql))
        assert noisy.intervals == ((None,),)
        assert noisy.epsilon is None
        assert len(noisy.rows) == 1


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (2046, ConfidenceInterval(1967, 2125), "2,046 ± 79"),
        (-57, ConfidenceInterval(-136, 22), "-57 ± 79"),
        (3.14159, ConfidenceInterval(2.8277, 3.4556), "3.14 ± 0.32"),
        (3.14159, ConfidenceInterval(2.9, 5.0), "3.1 ± 1.9"),
        (12345.678, ConfidenceInterval(0, 24691.4), "12,346 ± 13,000"),
        (0.5, ConfidenceInterval(0.5, 0.5), "0.5 ± 0"),
        (1.5, ConfidenceInterval(-math.inf, math.inf), "1.5 ± ∞"),
        (0.00012, ConfidenceInterval(0.00011, 0.00013), "0.000120 ± 0.000010"),
    ],
)
def test_a_number_has_the_places_that_its_interval_is_worth(
    value: float, interval: ConfidenceInterval, text: str
) -> None:
    assert value_text(value, interval) == text
