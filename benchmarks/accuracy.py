"""The error of answers at one total price, beside the classic split and two peers, on the same rows and bounds.

    python -m benchmarks.accuracy [--rows 1000000] [--repeats 50] [--environments DIR] [--write docs/accuracy.md]

Each peer gets a virtual environment of its own under DIR, made at the first run from PyPI; what cannot be installed or
asked is printed as its error. A file that is written to has the tables between its two markers replaced.
"""

import argparse
import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import classic, incomes
from dpsql.backends import Backend, Cancellation, open_backend
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.scope.lowering import Constants
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.release import PostProcessor, release
from dpsql.policy import Policy, load_policy
from dpsql.privacy.conversion import rho_to_epsilon
from dpsql.privacy.cost import Accountant

EPSILON, DELTA = Fraction(1), Fraction(1, 10**6)
UPPER = 100_000
REGIONS = tuple(f"region {number}" for number in range(incomes.REGIONS))

QUERIES = {
    "COUNT(*)": "SELECT COUNT(*) AS n FROM incomes",
    "COUNT(*) by region": "SELECT region, COUNT(*) AS n FROM incomes GROUP BY region",
    "SUM by region": "SELECT region, SUM(income) AS n FROM incomes GROUP BY region",
    "AVG by region": "SELECT region, AVG(income) AS n FROM incomes GROUP BY region",
    "COUNT(DISTINCT user_id)": "SELECT COUNT(DISTINCT user_id) AS n FROM incomes",
    "VARIANCE": "SELECT VARIANCE(income) AS n FROM incomes",
    "STDDEV": "SELECT STDDEV(income) AS n FROM incomes",
    "MEDIAN": "SELECT MEDIAN(income) AS n FROM incomes",
    "COUNT(*) by day, region": "SELECT day, region, COUNT(*) AS n FROM incomes GROUP BY day, region",
}
DAYS = "COUNT(*) by day, region"

_POLICY = """
version = 1

[dataset]
name = "accuracy"
url = "duckdb:///{file}"
privacy_unit = "user"
budget = {{ epsilon = 1, delta = 1e-6 }}

[roles.analyst]
budget = {{ epsilon = 1, delta = 1e-6, accountant = "basic" }}
query = {{ epsilon = 1, delta = 1e-6, max_epsilon = 1 }}

[tables.incomes]
unit_key = "user_id"
max_rows = {bounds.max_rows}
max_groups = {bounds.max_groups}
max_rows_per_group = {bounds.max_rows_per_group}
[tables.incomes.columns]
day = {{ type = "date", lower = 2026-01-01, upper = 2026-12-31, nullable = false }}
region = {{ type = "text", values = {regions}, nullable = false }}
income = {{ type = "integer", lower = 0, upper = {upper} }}
"""

BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"

Row = Sequence[Any]
Run = Sequence[Row]


@dataclass(frozen=True)
class Bounds:
    """What one person may contribute."""

    max_rows: int
    max_groups: int
    max_rows_per_group: int

    def __str__(self) -> str:
        return f"{self.max_groups} × {self.max_rows_per_group}"


@dataclass(frozen=True)
class Answers:
    """A system's answers to one query: each run has rows of keys and a value; or why there are none."""

    runs: Sequence[Run]
    terms: str
    error: str | None = None


@dataclass(frozen=True)
class System:
    name: str
    answers: dict[str, Answers]


@dataclass(frozen=True)
class Error:
    """How far answers are off, as parts of the mean of the truth.

    Attributes:
        noise: Root of the mean square of the distance from the system's own mean, over repeats and groups.
        total: The same of the distance from the truth, bounding included.
        groups: How many groups a run released, on average.
    """

    noise: float
    total: float
    groups: float


def error_of(answers: Answers, truth: dict[tuple[str, ...], float]) -> Error:
    """Measure the answers to one query."""
    values: dict[tuple[str, ...], list[float]] = {}
    for run in answers.runs:
        for row in run:
            values.setdefault(tuple(map(str, row[:-1])), []).append(float(row[-1]))
    noise, total, count = 0.0, 0.0, 0
    for key, found in values.items():
        mean = sum(found) / len(found)
        exact = truth.get(key, 0.0)
        noise += sum((value - mean) ** 2 for value in found) * len(found) / max(1, len(found) - 1)
        total += sum((value - exact) ** 2 for value in found)
        count += len(found)
    unit = sum(map(abs, truth.values())) / len(truth)
    return Error(
        math.sqrt(noise / count) / unit,
        math.sqrt(total / count) / unit,
        sum(map(len, answers.runs)) / len(answers.runs),
    )


# dpsql


class Dpsql:
    """Compiles each query, reads its exact rows once, and releases them anew for each repeat."""

    def __init__(self, policy: Policy, backend: Backend) -> None:
        self._policy = policy
        self._backend = backend

    def answers(self, sql: str, accountant: Accountant, epsilon: Fraction, delta: Fraction, repeats: int) -> Answers:
        role = self._policy.roles[0]
        role = replace(role, budget=replace(role.budget, accountant=accountant))
        now = datetime(2026, 1, 1, tzinfo=UTC)
        settings = QuerySettings(epsilon, delta, "auto", now)
        catalog = Catalog(self._policy, self._backend.schema, role)
        constants = Constants(now, "bench", "accuracy", "")
        query = compile_query(QueryStatement(sql), catalog, settings, constants)
        exact = self._backend.fetch(dict(enumerate(query.releases)), (), Cancellation())
        runs = []
        with closing(PostProcessor("UTC")) as post:
            for _ in range(repeats):
                cells = [release(planned, exact.releases[i]) for i, planned in enumerate(query.releases)]
                runs.append(post.run(query, cells, {}, {}, Cancellation()).rows)
        primitives = [primitive for planned in query.releases for primitive in planned.primitives]
        names = ", ".join(type(primitive.noise).__name__ for primitive in primitives)
        return Answers(runs, f"price {float(epsilon):.4g}: {names}")


def zcdp_price(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The price in zcdp, ρ = price²/2, of one query that is (ε, δ)-DP in all, rounded down to a thousandth."""
    price = Fraction(0)
    while rho_to_epsilon((price + Fraction(1, 1000)) ** 2 / 2, delta) <= epsilon:
        price += Fraction(1, 1000)
    return price


def dpsql_systems(policy: Policy, bounds: Bounds, repeats: int) -> list[System]:
    with closing(open_backend(policy)) as backend:
        asked = Dpsql(policy, backend)
        price = zcdp_price(EPSILON, DELTA)
        budgets = (
            (f"dpsql, basic, {bounds}", Accountant.BASIC, EPSILON, DELTA),
            (f"dpsql, zcdp, {bounds}", Accountant.ZCDP, price, Fraction(0)),
        )
        return [
            System(name, {each: asked.answers(sql, accountant, e, d, repeats) for each, sql in QUERIES.items()})
            for name, accountant, e, d in budgets
        ]


# Peers


@dataclass(frozen=True)
class Peer:
    """A system that is installed beside.

    Attributes:
        name: What it is called in the tables.
        pythons: Interpreters that it supports, the first that is there is taken.
        packages: What is installed.
        script: What asks it.
    """

    name: str
    pythons: tuple[str, ...]
    packages: tuple[str, ...]
    script: str


PEERS = (
    Peer(
        "SmartNoise SQL 1.0.10",
        ("python3.10", "python3.11"),
        ("smartnoise-sql==1.0.10", "setuptools<80", "duckdb<1.4"),
        "smartnoise_runs.py",
    ),
    Peer("Qrlew 0.9.27", ("python3.11", "python3.10"), ("pyqrlew==0.9.27", "duckdb"), "qrlew_runs.py"),
)


def interpreter(peer: Peer, environments: Path) -> Path:
    """The Python of a peer's environment, which is made if it is not there."""
    folder = environments / peer.script.removesuffix("_runs.py")
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        for name in peer.pythons:
            found = shutil.which(name)
            works = found is not None and subprocess.run([found, "--version"], capture_output=True).returncode == 0
            if found is not None and works:
                subprocess.run([found, "-m", "venv", "--clear", str(folder)], check=True)
                break
        else:
            raise RuntimeError(f"there is none of {', '.join(peer.pythons)}")
        command = [str(python), "-m", "pip", "install", "--quiet", *peer.packages]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip: {done.stderr.strip().splitlines()[-1][:200]}")
        (folder / "installed").touch()
    return python


def peer_system(peer: Peer, environments: Path, task: Path, queries: Iterable[str]) -> System:
    """Ask a peer everything; where it cannot be, the error is its answer to each query."""
    try:
        python = interpreter(peer, environments)
        script = Path(__file__).with_name("peers") / peer.script
        done = subprocess.run([str(python), str(script), str(task)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1][:200])
        found = json.loads(done.stdout)
    except (OSError, RuntimeError, subprocess.CalledProcessError, ValueError) as error:
        return System(peer.name, dict.fromkeys(queries, Answers((), "", f"{type(error).__name__}: {error}")))
    return System(
        peer.name,
        {name: Answers(each.get("runs", ()), each.get("terms", ""), each.get("error")) for name, each in found.items()},
    )


# The tables


def truths(file: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """The exact answers, of incomes moved into the bounds."""
    with duckdb.connect(str(file), read_only=True) as database:
        found = {}
        for name, sql in QUERIES.items():
            clamped = sql.replace("(income)", f"(least(income, {UPPER}))")
            rows = database.execute(clamped).fetchall()
            found[name] = {tuple(map(str, row[:-1])): float(row[-1]) for row in rows}
    return found


def tables(systems: Sequence[System], truth: dict[str, dict[tuple[str, ...], float]]) -> list[str]:
    """Two tables in Markdown, and what each system made of the price."""
    lines = ["Noise alone, around each system's own mean:", "", *_table(systems, truth, lambda error: error.noise)]
    lines += ["", "From the exact answer, what bounding cuts off included:", ""]
    lines += _table(systems, truth, lambda error: error.total)
    lines += ["", f"Groups released of {len(truth[DAYS]):,} by day and region:", "", "| system | groups |", "|---|---|"]
    for system in systems:
        answers = system.answers[DAYS]
        shown = f"{error_of(answers, truth[DAYS]).groups:,.0f}" if answers.runs else "–"
        lines.append(f"| {system.name} | {shown} |")
    lines += ["", "What was drawn at the price, and what could not be asked:", ""]
    for system in systems:
        for name, answers in system.answers.items():
            runs = f"{len(answers.runs)} runs; " if answers.runs else ""
            lines.append(f"- {system.name}, {name}: {runs}{answers.error or answers.terms}")
    return lines


def _table(
    systems: Sequence[System], truth: dict[str, dict[tuple[str, ...], float]], measure: Callable[[Error], float]
) -> list[str]:
    lines = [f"| query | {' | '.join(system.name for system in systems)} |", "|---" * (len(systems) + 1) + "|"]
    for name in QUERIES:
        cells = []
        for system in systems:
            answers = system.answers[name]
            cells.append(_percent(measure(error_of(answers, truth[name]))) if answers.runs else "–")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"


def write(path: Path, lines: Sequence[str]) -> None:
    """Replace what is between the markers of a file."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--units", type=int, help="by default one for 20 rows")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=40, help="for one query of a peer; then its runs end")
    parser.add_argument("--max-rows", type=int, default=50)
    parser.add_argument("--groups", nargs="+", default=["5x10", "20x50"], metavar="GROUPSxROWS", help="of dpsql")
    parser.add_argument("--environments", type=Path, default=Path("build/peers"), help="where peers are installed")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    choices = [Bounds(given.max_rows, *map(int, each.split("x"))) for each in given.groups]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = folder / "accuracy.duckdb"
        incomes.make_file(file, given.rows, given.units or given.rows // 20)
        truth = truths(file)
        systems = []
        for bounds in choices:
            policy = folder / "accuracy.toml"
            policy.write_text(_POLICY.format(file=file, bounds=bounds, regions=list(REGIONS), upper=UPPER))
            systems += dpsql_systems(load_policy(policy), bounds, given.repeats)
        systems += [System(f"classic, {bounds}", classic_answers(file, bounds, given.repeats)) for bounds in choices]
        if not given.no_peers:
            task = task_file(folder, file, given)
            systems += [peer_system(peer, given.environments, task, QUERIES) for peer in PEERS]
    lines = tables(systems, truth)
    print("\n".join(lines))
    if given.write is not None:
        write(given.write, lines)


def classic_answers(file: Path, bounds: Bounds, repeats: int) -> dict[str, Answers]:
    limits = classic.Limits(bounds.max_rows, bounds.max_groups, bounds.max_rows_per_group, UPPER)
    found = classic.answers(file, limits, float(EPSILON), repeats)
    return {name: Answers(*found[name]) if name in found else Answers((), "", "not defined") for name in QUERIES}


def task_file(folder: Path, file: Path, given: argparse.Namespace) -> Path:
    """What a peer is asked: the rows, the bounds and the queries."""
    rows = folder / "incomes.parquet"
    with duckdb.connect(str(file), read_only=True) as database:
        database.execute(f"COPY (SELECT *, day AS visit_day FROM incomes) TO '{rows}' (FORMAT parquet)")
    columns = {
        "visit_day": {"type": "date"},
        "region": {"type": "text", "values": REGIONS},
        "income": {"type": "integer", "lower": 0, "upper": UPPER},
    }
    table = {"name": "incomes", "file": str(rows), "rows": given.rows, "unit": "user_id", "max_rows": given.max_rows}
    task = {
        "tables": [{**table, "columns": columns}],
        "max_groups": incomes.REGIONS,
        "epsilon": float(EPSILON),
        "delta": float(DELTA),
        "repeats": given.repeats,
        "seconds": given.seconds,
        # "day" is a word of SmartNoise's grammar.
        "queries": {name: re.sub(r"\bday\b", "visit_day", sql) for name, sql in QUERIES.items()},
    }
    path = folder / "task.json"
    path.write_text(json.dumps(task), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
