"""What a prepared copy costs in accuracy: COUNT and SUM of the demo clinic from the table and from its copy.

    python -m benchmarks.prepared [--patients 10000] [--repeats 50]

A copy has `max_rows` rows of each person. Over the table a COUNT is bounded by as many; a SUM is of all rows of a
person, clamped to what that many could add up to. So the copy changes SUM alone, and its notice says so.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import duckdb

import dpsql
from dpsql.backends import prepare_tables
from dpsql.cli.clinic import generate_clinic
from dpsql.policy import load_policy

QUERIES = {
    "COUNT(*)": ("SELECT COUNT(*) FROM visits", "count(*)"),
    "SUM(cost)": ("SELECT SUM(cost) FROM visits", "sum(least(greatest(cost, 0), 5000))"),
    "AVG(cost)": ("SELECT AVG(cost) FROM visits", "avg(least(greatest(cost, 0), 5000))"),
}
FORMS = {"table": "0", "copy": "1"}
_TRUTH = "SELECT {} FROM visits JOIN patients USING (patient_id)"


def main() -> None:
    """Print the median error of each query in each form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        policy = make_clinic(Path(folder), arguments.patients)
        with duckdb.connect(str(Path(folder) / "clinic.duckdb"), read_only=True) as connection:
            truths = {
                name: float(connection.execute(_TRUTH.format(exact)).fetchall()[0][0])
                for name, (_, exact) in QUERIES.items()
            }
        print("| query | from the table | from the copy |\n|---|---|---|")
        for name, (sql, _) in QUERIES.items():
            errors = [median_error(policy, sql, truths[name], ratio, arguments.repeats) for ratio in FORMS.values()]
            print(f"| `{name}` | {' | '.join(f'{error:.2%}' for error in errors)} |", flush=True)


def make_clinic(folder: Path, patients: int) -> Path:
    """The demo clinic with a generous budget and no wide totals, and copies of its tables."""
    generate_clinic(folder / "clinic.duckdb", patients=patients)
    lines = (Path(dpsql.__file__).parent / "cli" / "clinic.toml").read_text(encoding="utf-8").splitlines()
    policy = folder / "clinic.toml"
    text = "\n".join(line for line in lines if not line.startswith("reply_quantum"))
    policy.write_text(text.replace("epsilon = 20,", "epsilon = 10000,").replace("epsilon = 5,", "epsilon = 10000,"))
    prepare_tables(load_policy(policy))
    return policy


def median_error(policy: Path, sql: str, truth: float, ratio: str, repeats: int) -> float:
    """The median relative error of an answer, drawn so often."""
    with dpsql.connect(policy, user="ana") as connection:
        connection.configure({"dpsql.reuse": "off", "dpsql.max_error_ratio": ratio})
        cursor = connection.cursor()
        answers = [float(cursor.execute(sql).fetchall()[0][0]) for _ in range(repeats)]
    return statistics.median(abs(answer - truth) / truth for answer in answers)


if __name__ == "__main__":
    main()
