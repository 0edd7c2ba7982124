"""The classic way, for comparison alone: ε divided by the columns, Laplace noise from floating point, nothing shared.

Not for use: these samples leak by their floating-point pattern.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np


@dataclass(frozen=True)
class Limits:
    """What one person may contribute."""

    max_rows: int
    max_groups: int
    max_rows_per_group: int
    upper: int


_KEPT = """
SELECT {keys}, sum(n) AS n, sum(s) AS s FROM (
    SELECT *, row_number() OVER (PARTITION BY user_id ORDER BY hash(user_id, {keys})) AS place FROM (
        SELECT user_id, {keys}, least(count(*), {rows}) AS n, sum(income) * least(count(*), {rows}) / count(*) AS s
        FROM (SELECT user_id, {keys}, least(income, {upper}) AS income FROM incomes) GROUP BY ALL
    )
) WHERE place <= {groups} GROUP BY {keys} ORDER BY {keys}
"""
_WHOLE = """
SELECT sum(n), sum(s * n / rows), sum(q * n / rows), count(*) FROM (
    SELECT least(count(*), {rows}) AS n, count(*) AS rows, sum(x) AS s, sum(x * x) AS q
    FROM (SELECT user_id, CAST(least(income, {upper}) AS DOUBLE) AS x FROM incomes) GROUP BY user_id
)
"""

Found = dict[str, tuple[list[list[Any]], str]]


def answers(file: Path, limits: Limits, epsilon: float, repeats: int) -> Found:
    """Answer every query that the classic way has an answer to; each with how its price was used."""
    noise = np.random.default_rng()
    with duckdb.connect(str(file), read_only=True) as database:
        common = {"rows": limits.max_rows_per_group, "groups": limits.max_groups, "upper": limits.upper}
        regions = database.execute(_KEPT.format(keys="region", **common)).fetchall()
        days = database.execute(_KEPT.format(keys="day, region", **common)).fetchall()
        whole = database.execute(_WHOLE.format(rows=limits.max_rows, upper=limits.upper)).fetchall()[0]
    rows, total, squares, units = map(float, whole)
    grouped = limits.max_groups * limits.max_rows_per_group
    found: Found = {}

    def ask(name: str, columns: int, answer: Any) -> None:
        shares = f"Laplace, epsilon {epsilon:g} / {columns}" if columns > 1 else f"Laplace, epsilon {epsilon:g}"
        found[name] = ([answer() for _ in range(repeats)], shares)

    def laplace(sensitivity: float, columns: int) -> float:
        return float(noise.laplace(0.0, sensitivity * columns / epsilon))

    ask("COUNT(*)", 1, lambda: [[rows + laplace(limits.max_rows, 1)]])
    ask("COUNT(DISTINCT user_id)", 1, lambda: [[units + laplace(1, 1)]])
    ask("COUNT(*) by region", 1, lambda: [[key, float(n) + laplace(grouped, 1)] for key, n, _ in regions])
    ask("SUM by region", 1, lambda: [[key, float(s) + laplace(grouped * limits.upper, 1)] for key, _, s in regions])
    ask(
        "AVG by region",
        2,
        lambda: [
            [key, (float(s) + laplace(grouped * limits.upper, 2)) / max(1.0, float(n) + laplace(grouped, 2))]
            for key, n, s in regions
        ],
    )
    ask(
        "COUNT(*) by day, region",
        1,
        lambda: [[str(day), key, float(n) + laplace(grouped, 1)] for day, key, n, _ in days],
    )

    def variance() -> float:
        counted = max(2.0, rows + laplace(limits.max_rows, 3))
        summed = total + laplace(limits.max_rows * limits.upper, 3)
        squared = squares + laplace(limits.max_rows * limits.upper**2, 3)
        return max(0.0, (squared - summed**2 / counted) / (counted - 1))

    ask("VARIANCE", 3, lambda: [[variance()]])
    ask("STDDEV", 3, lambda: [[variance() ** 0.5]])
    return found
