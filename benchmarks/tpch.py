"""The error of TPC-H's queries at the policy's price, beside the true values: the table of docs/tpch.md.

    python -m benchmarks.tpch [--scale-factor 1] [--file tpch.duckdb]

Each query of tests/fixtures/tpch.sql is asked once, with the bounds that its `settings` narrow. Medians over the
groups are printed of each column that is computed from customers' rows: the true value, the announced half width of the
95 % interval where there is one, and how far the answer was from the truth, which is noise and what the bounds cut.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb

import dpsql
from examples.load_tpch import load as load_tpch
from tests.fixtures.load import Case, load

POLICY = Path(__file__).parent.parent / "policies" / "tpch.toml"

Row = dict[str, Any]


def number(value: float) -> str:
    """A number for a table."""
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def true_rows(file: Path, cases: list[Case], scale_factor: float) -> list[tuple[list[Row], float]]:
    """Each query's rows by column, and the seconds it took; the connection is closed before dpsql opens the file."""
    answers = []
    with duckdb.connect(str(file), read_only=True) as connection:
        for case in cases:
            start = time.perf_counter()
            cursor = connection.execute(scaled(case.marks.get("raw", case.sql), scale_factor))
            names = [entry[0] for entry in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            answers.append((rows, time.perf_counter() - start))
    return answers


def scaled(sql: str, scale_factor: float) -> str:
    """Query 11 names the scale factor."""
    return sql.replace("0.0001 / 0.01", f"0.0001 / {scale_factor}")


def noisy_rows(connection: dpsql.Connection, case: Case, scale_factor: float) -> tuple[list[Row] | None, float]:
    """The released rows by column, with their intervals (None where nothing is released), and the seconds they took."""
    cursor = connection.cursor()
    for bound in ("max_rows", "max_groups", "max_rows_per_group"):
        cursor.execute(f"RESET dpsql.{bound}")
    for setting in filter(None, case.marks.get("settings", "").split(", ")):
        cursor.execute(f"SET dpsql.{setting}")
    start = time.perf_counter()
    cursor.execute(scaled(case.sql, scale_factor))
    names = [entry[0] for entry in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return rows if cursor.release is not None else None, time.perf_counter() - start


def described(case: Case, true: list[Row], noisy: list[Row] | None) -> str:
    """What the table says about the columns of one query."""
    if noisy is None:
        return "exact: public tables alone"
    keys = list(true[0])[: int(case.marks.get("keys", "0"))]
    by_key = {tuple(row[key] for key in keys): row for row in noisy}
    pairs = [(row, by_key[key]) for row in true if (key := tuple(row[name] for name in keys)) in by_key]
    words = []
    for column, first in true[0].items():
        is_key = column in keys or not isinstance(first, int | float | Decimal)
        if pairs and not is_key and (f"{column}_high" in noisy[0] or not isinstance(first, int)):
            words.append(f"{column} {_column(column, pairs)}")
    return "; ".join(words) or f"{len(noisy)} rows for {len(true)}"


def _column(column: str, pairs: list[tuple[Row, Row]]) -> str:
    usual = number(statistics.median(abs(float(row[column] or 0)) for row, _ in pairs))
    off = number(statistics.median(abs(float(other[column] or 0) - float(row[column] or 0)) for row, other in pairs))
    if f"{column}_high" not in pairs[0][1]:
        return f"{usual} (off by {off})"
    widths = [(float(row[f"{column}_high"]) - float(row[f"{column}_low"])) / 2 for _, row in pairs]
    return f"{usual} ± {number(statistics.median(widths))} (off by {off})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale-factor", type=float, default=1)
    parser.add_argument("--file", type=Path, help="written by examples/load_tpch.py, at that scale factor")
    arguments = parser.parse_args()
    cases = [case for case in load("tpch.sql") if not {"error", "empty"} & set(case.marks)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = folder / "tpch.duckdb"
        if arguments.file is None:
            load_tpch(file, arguments.scale_factor)
        else:
            file.symlink_to(arguments.file.resolve())
        true = true_rows(file, cases, arguments.scale_factor)
        policy = shutil.copy(POLICY, folder)
        print("| | question | bounds narrowed | median of groups: true ± announced | raw, s | answer, s |")
        print("|---|---|---|---|---|---|")
        with dpsql.connect(policy, user="bench", ledger=f"sqlite:///{folder / 'ledger.sqlite'}") as connection:
            connection.cursor().execute("SET dpsql.intervals = on")
            for case, (rows, raw) in zip(cases, true, strict=True):
                noisy, seconds = noisy_rows(connection, case, arguments.scale_factor)
                question = case.marks.get("adapted", "as it is")
                bounds, text = case.marks.get("settings", ""), described(case, rows, noisy)
                print(
                    f"| {case.marks['query']} | {question} | {bounds} | {text} | {raw:.2f} | {seconds:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
