"""The everyday questions, asked of two peers: the errors of their answers and of dpsql's.

    python -m benchmarks.everyday_peers [--draws 20] [--only clinic] [--environments build/peers] [--profile 0.2]

Peers announce no intervals, so errors alone are compared, on the questions that each peer answers. They are given the
price of a question as (ε, δ) with δ = 10⁻⁶, the cleaned rows that the truth is made of, the policy's bounds, keys and
`max_rows`, and SQL without positions and aliases, which not all of them read.
"""

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from benchmarks.accuracy import PEERS, Answers, peer_system
from benchmarks.everyday import LARGE, NAMES, DataSet, clean, compiled, data_sets, drawn, profile_of, told, with_units
from dpsql.backends import open_backend
from dpsql.compiler.scope.tables import Catalog
from dpsql.policy import Policy, Table, load_policy
from dpsql.privacy.conversion import rho_to_epsilon

DELTA = Fraction(1, 10**6)


def plain(sql: str) -> str:
    """A question without aliases of its columns, whose keys are written out in GROUP BY."""
    query = sqlglot.parse_one(sql, read="postgres", into=exp.Select)
    columns = [each.unalias() for each in query.expressions]
    if isinstance(query.args["from_"].this, exp.Subquery):
        return sql
    group = query.args.get("group")
    keys = [each for each in columns if not each.find(exp.AggFunc)]
    query = query.select(*columns, append=False)
    return (query.group_by(*keys, append=False) if group is not None else query).sql("postgres")


def described(table: Table, connection: duckdb.DuckDBPyConnection, folder: Path) -> dict[str, Any]:
    """A table as it is declared to the peers, with its rows in a file."""
    file = folder / f"{table.name}.parquet"
    unit = None if table.public else table.unit_key or "unit"
    columns: dict[str, dict[str, Any]] = {}
    for column in table.columns:
        kind = "date" if column.type.is_moment else "integer" if column.type.is_integer else "double"
        columns[column.name] = {"type": "text" if column.type.is_text else kind}
        if column.values:
            columns[column.name]["values"] = list(column.values)
        elif column.values_from is not None:
            table_name, name = column.values_from
            listed = connection.execute(f"SELECT DISTINCT {name} FROM {table_name} ORDER BY 1").fetchall()
            columns[column.name]["values"] = [value for (value,) in listed]
        elif isinstance(column.lower, Fraction) and isinstance(column.upper, Fraction):
            columns[column.name] |= {"lower": float(column.lower), "upper": float(column.upper)}
    columns.pop(unit or "", None)
    # Peers are told of a whole number; equal keys stay equal in all tables.
    numbered = f"CAST(hash({unit}) % 2147483647 AS INTEGER) AS {unit}"
    names = ", ".join([*columns, *([numbered] if unit else [])])
    connection.execute(f"COPY (SELECT {names} FROM {table.name}) TO '{file}' (FORMAT parquet)")
    (rows,) = connection.execute(f"SELECT COUNT(*) FROM {table.name}").fetchall()
    most = table.rows_per_unit or 1
    return {"name": table.name, "file": str(file), "rows": rows[0], "unit": unit, "max_rows": most, "columns": columns}


def tasked(data_set: DataSet, policy: Policy, connection: duckdb.DuckDBPyConnection, folder: Path, draws: int) -> Path:
    """What a peer is asked: the tables, the price and the questions."""
    role = policy.roles[0]
    converts = role.budget.accountant.shares_rho
    epsilon = rho_to_epsilon(role.query.epsilon**2 / 2, DELTA) if converts else role.query.epsilon
    task = {
        "tables": [described(table, connection, folder) for table in policy.tables],
        "max_groups": max(table.groups_per_unit or 1 for table in policy.tables),
        "epsilon": float(epsilon),
        "delta": float(DELTA),
        "repeats": draws,
        "seconds": 10,
        "queries": {question.sql: plain(question.sql) for question in data_set.questions},
    }
    path = folder / "task.json"
    path.write_text(json.dumps(task, default=str), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Compared:
    """The median errors of one question's large groups, or of all where none is large.

    Attributes:
        kind: What is asked.
        errors: Of each system that answers; where it has none of the groups, it does not.
    """

    kind: str
    errors: dict[str, float]


def compare(data_set: DataSet, folder: Path, given: argparse.Namespace) -> Iterator[Compared]:
    """Ask dpsql and the peers everything about a data set."""
    file, path = folder / f"{data_set.name}.duckdb", folder / f"{data_set.name}.toml"
    data_set.load(file)
    shutil.copy(data_set.policy, path)
    policy = load_policy(path)
    plain_file = folder / f"{data_set.name}-truth.duckdb"
    shutil.copy(file, plain_file)
    with duckdb.connect(str(plain_file)) as connection, closing(open_backend(policy)) as backend:
        connection.execute(f"SET TimeZone = '{policy.dataset.timezone}'")
        clean(connection, policy)
        task = tasked(data_set, policy, connection, folder, given.draws)
        queries = [question.sql for question in data_set.questions]
        systems = [peer_system(peer, given.environments, task, queries) for peer in PEERS]
        catalog = Catalog(policy, backend.schema, policy.roles[0], profile_of(policy, backend, given.profile))
        for question in data_set.questions:
            truth = connection.execute(with_units(question.sql)).fetchall()
            large = [row for row in truth if row[-1] > LARGE] or truth
            exact = {tuple(map(told, row[:-2])): float(row[-2]) for row in large if row[-2]}
            cells = drawn(compiled(question, catalog), truth, backend, policy, given.draws)
            ours = [cell.relative_error for key, cell in cells.items() if key[:-1] in exact]
            errors = {"dpsql": _median([error for error in ours if error is not None])}
            for system in systems:
                answers = system.answers[question.sql]
                errors[system.name] = _median(list(_errors(answers, exact)))
                print(f"{system.name}: {question.sql}: {answers.error or answers.terms}", file=sys.stderr)
            yield Compared(question.kind, {name: error for name, error in errors.items() if not math.isnan(error)})


def _errors(answers: Answers, exact: dict[tuple[str, ...], float]) -> Iterator[float]:
    """The median error of each row."""
    found: dict[tuple[str, ...], list[float]] = {}
    for run in answers.runs:
        for *keys, value in run:
            key = tuple(map(told, keys))
            if key in exact:
                found.setdefault(key, []).append(abs(float(value) - exact[key]) / abs(exact[key]))
    return map(statistics.median, found.values())


def _median(errors: Sequence[float]) -> float:
    return statistics.median(errors) if errors else math.nan


def table(compared: Sequence[Compared]) -> list[str]:
    """Both sides of each pair of systems, on what both answer."""
    heads = ["", "questions", *(f"{peer.name} answers | its error | dpsql's" for peer in PEERS)]
    lines = [f"| {' | '.join(heads)} |", "|---" * (2 + 3 * len(PEERS)) + "|"]
    for kind in [*dict.fromkeys(each.kind for each in compared), "all"]:
        asked = [each for each in compared if kind in (each.kind, "all")]
        columns = [kind, str(len(asked))]
        for peer in PEERS:
            both = [each.errors for each in asked if {peer.name, "dpsql"} <= each.errors.keys()]
            theirs, ours = (_median([errors[name] for errors in both]) for name in (peer.name, "dpsql"))
            columns += [str(len(both)), _percent(theirs), _percent(ours)]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def _percent(part: float) -> str:
    return "–" if math.isnan(part) else f"{100 * part:.2g} %" if part < 0.1 else f"{100 * part:.1f} %"


def main() -> None:
    """Print the table; what peers say to each question goes to stderr."""
    parser = argparse.ArgumentParser(description="Compare dpsql with two peers on everyday questions.")
    parser.add_argument("--draws", type=int, default=20, help="of the noise of each question; default: %(default)s")
    parser.add_argument("--only", choices=NAMES, help="one data set")
    parser.add_argument("--profile", type=Fraction, default=Fraction(0), help="epsilon of a profile; default: none")
    parser.add_argument("--environments", type=Path, default=Path("build/peers"), help="where peers are installed")
    given = parser.parse_args()
    compared: list[Compared] = []
    with tempfile.TemporaryDirectory() as folder:
        for data_set in data_sets(2026):
            if given.only in (None, data_set.name):
                compared += compare(data_set, Path(folder), given)
    print("\n".join(table(compared)))


if __name__ == "__main__":
    main()
