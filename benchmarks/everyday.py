"""Whether announced intervals hold: everyday questions of four data sets, at the default price and policy.

    python -m benchmarks.everyday [--draws 200] [--only clinic] [--wide-share 0.1] [--profile 0.2] [--questions]

Each question is compiled and read once, and its noise is drawn anew for each draw. A cell is one noisy number of one
row. Its truth is what the same SQL says of the same rows without dpsql, less what the policy says is no data: values
are moved to their declared limits, and rows that belong to nobody are left out. The interval is that of
`SET dpsql.intervals = on`, which is what notices and notebooks announce. A profile is made as `dpsql demo` makes one.

A question is *accepted* if it is answered, its intervals hold in 90 % of draws or more (95 %, less what chance takes
from 200 draws of one cell once in a thousand times), and the median error of its large groups is 10 % at most.
"""

import argparse
import math
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from benchmarks.everyday_questions import CLINIC, FLIGHTS, GERMAN_HEALTH, TPCH, Question
from dpsql.backends import Backend, Cancellation, open_backend
from dpsql.cli.clinic import generate_clinic
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.scope.lowering import Constants
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import Error
from dpsql.gateway.owner_reads import make_profile
from dpsql.gateway.release import PostProcessor, release
from dpsql.gateway.settings import Settings
from dpsql.ledger import open_ledger
from dpsql.policy import Policy, Table, load_policy
from dpsql.policy.profile import Profile
from examples.load_flights import load as load_flights
from examples.load_german_health import load as load_german_health
from examples.load_tpch import load as load_tpch

ROOT = Path(__file__).parent.parent
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TPCH_SCALE = 0.1
LARGE = 1000
"""A group of more units is large."""


@dataclass(frozen=True)
class DataSet:
    """Rows, the policy over them, and what is asked of them."""

    name: str
    policy: Path
    load: Callable[[Path], object]
    questions: tuple[Question, ...]


NAMES = ("clinic", "german_health", "flights", "tpch")


def data_sets(seed: int) -> tuple[DataSet, ...]:
    """All of them; the seed is that of the clinic's rows."""
    policies = ROOT / "policies"
    return (
        DataSet("clinic", ROOT / "dpsql" / "cli" / "clinic.toml", partial(generate_clinic, seed=seed), CLINIC),
        DataSet("german_health", policies / "german_health.toml", load_german_health, GERMAN_HEALTH),
        DataSet("flights", policies / "flights.toml", load_flights, FLIGHTS),
        DataSet("tpch", policies / "tpch.toml", partial(load_tpch, scale_factor=TPCH_SCALE), TPCH),
    )


@dataclass
class Cell:
    """What was drawn of one number: its distances from the truth, and half the widths of its intervals.

    Attributes:
        truth: The number without noise.
        units: How many persons, or other units, are in its row.
        errors: The distances.
        halves: The halves.
        inside: How often the interval held the truth.
        missing: How often there was no number.
    """

    truth: float
    units: int
    errors: list[float] = field(default_factory=list)
    halves: list[float] = field(default_factory=list)
    inside: int = 0
    missing: int = 0

    def draw(self, value: Any, low: Any, high: Any) -> None:
        """Take what one draw says; a NULL, or a number without an interval, is missing."""
        if value is None or low is None or high is None:
            self.missing += 1
            return
        self.errors.append(abs(float(value) - self.truth))
        self.halves.append((float(high) - float(low)) / 2)
        self.inside += float(low) <= self.truth <= float(high)

    @property
    def width_ratio(self) -> float | None:
        """The median announced half width over the error that 95 % of the draws stay below."""
        if len(self.errors) < 2:
            return None
        realised = statistics.quantiles(self.errors, n=20)[-1]
        return statistics.median(self.halves) / realised if realised else None

    @property
    def relative_error(self) -> float | None:
        """The median distance from the truth, over the truth."""
        return statistics.median(self.errors) / abs(self.truth) if self.errors and self.truth else None


@dataclass(frozen=True)
class Measured:
    """The cells of a question, or why it has none."""

    data_set: str
    question: Question
    cells: tuple[Cell, ...]
    refusal: str | None = None


@dataclass(frozen=True)
class Terms:
    """How everything is asked.

    Attributes:
        draws: Of the noise of each question.
        wide_share: The part of each price for wide totals; None for the policy's.
        profile: What a profile costs the cap; 0 for none.
        narrowed: By what each `max_rows` is divided, so that bounds drop much.
    """

    draws: int
    wide_share: str | None
    profile: Fraction
    narrowed: int


def measure(data_set: DataSet, folder: Path, terms: Terms) -> Iterator[Measured]:
    """Ask all questions of a data set."""
    file = folder / f"{data_set.name}.duckdb"
    data_set.load(file)
    text, path = data_set.policy.read_text(encoding="utf-8"), folder / f"{data_set.name}.toml"
    if terms.wide_share is not None:
        share = f", wide_share = {terms.wide_share}" if float(terms.wide_share) else ""
        text = re.sub(r"^(query = \{.*?)(, wide_share = [\d.]+)? \}", rf"\1{share} }}", text, flags=re.MULTILINE)
    if terms.narrowed > 1:
        text = re.sub(r"^max_(groups|rows_per_group) = .*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^max_rows = (\d+)", partial(_narrower, terms.narrowed), text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    policy = load_policy(path)
    plain = folder / f"{data_set.name}-truth.duckdb"
    shutil.copy(file, plain)
    with duckdb.connect(str(plain)) as connection, closing(open_backend(policy)) as backend:
        connection.execute(f"SET TimeZone = '{policy.dataset.timezone}'")
        clean(connection, policy)
        catalog = Catalog(policy, backend.schema, policy.roles[0], profile_of(policy, backend, terms.profile))
        for question in data_set.questions:
            try:
                query = compiled(question, catalog)
            except Error as error:
                yield Measured(data_set.name, question, (), error.message)
                continue
            exact = connection.execute(with_units(question.sql)).fetchall()
            yield Measured(data_set.name, question, tuple(drawn(query, exact, backend, policy, terms.draws).values()))


def _narrower(part: int, found: re.Match[str]) -> str:
    return f"max_rows = {math.ceil(int(found[1]) / part)}"


def profile_of(policy: Policy, backend: Backend, epsilon: Fraction) -> Profile | None:
    """A profile as `dpsql policy profile` makes one."""
    if not epsilon:
        return None
    with closing(open_ledger(f"sqlite:///{policy.path.with_suffix('.sqlite')}")) as ledger:
        return make_profile(policy, ledger, backend, epsilon).profile


def clean(connection: duckdb.DuckDBPyConnection, policy: Policy) -> None:
    """Put values within the limits of the policy, and leave out rows that belong to nobody."""
    private = [table for table in policy.tables if not table.public]
    for table in sorted(private, key=lambda each: each.unit_key is None):
        connection.execute(
            f"CREATE TEMP TABLE {table.name} AS SELECT {_columns(connection, table)}, {_unit(table)} AS unit "
            f"FROM main.{table.name} AS t WHERE unit IS NOT NULL"
        )


def _columns(connection: duckdb.DuckDBPyConnection, table: Table) -> str:
    replaced, columns = [], {column.name: column for column in table.columns}
    for name, type_name, *_ in connection.execute(f"DESCRIBE main.{table.name}").fetchall():
        column = columns.get(name)
        if column is None or type_name not in NUMBERS or column.lower is None:
            continue
        text = f"LEAST(GREATEST({name}, {_decimal(column.lower)}), {_decimal(column.upper)})"
        replaced.append(f"CASE WHEN isfinite({name}::DOUBLE) THEN {text} END::{type_name} AS {name}")
    return f"* REPLACE ({', '.join(replaced)})" if replaced else "*"


def _decimal(limit: Any) -> str:
    return repr(float(limit))


NUMBERS = ("SMALLINT", "INTEGER", "BIGINT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(15,2)")


def _unit(table: Table) -> str:
    """Whose a row is."""
    if table.unit_key is not None:
        return f"t.{table.unit_key}"
    (via,) = table.unit_via
    (own, other), *_ = via.on
    return f"(SELECT any_value(o.unit) FROM {via.table} AS o WHERE o.{other} = t.{own})"


def with_units(sql: str) -> str:
    """A question that tells last of how many units each of its rows is; a derived table has one row a unit."""
    query = sqlglot.parse_one(sql, read="postgres", into=exp.Select)
    table = query.args["from_"].this
    units = "COUNT(*)" if isinstance(table, exp.Subquery) else f"COUNT(DISTINCT {table.alias_or_name}.unit)"
    return query.select(units).sql("duckdb")


def compiled(question: Question, catalog: Catalog) -> CompiledQuery:
    """Plan a question as a new session would, with intervals."""
    policy = catalog.policy
    settings = Settings(policy, catalog.role)
    settings.set("dpsql.intervals", "on")
    constants = Constants(NOW, "ana", policy.dataset.name, "PostgreSQL 15.0 (dpsql)")
    return compile_query(QueryStatement(question.sql), catalog, settings.query(NOW, "ana"), constants)


def drawn(
    query: CompiledQuery, exact: Sequence[Sequence[Any]], backend: Backend, policy: Policy, draws: int
) -> dict[tuple[Any, ...], Cell]:
    """Draw the noise again and again, and compare each noisy number with the truth of its row; by key and place."""
    found = backend.fetch(dict(enumerate(query.releases)), query.reads(query.releases), Cancellation())
    public = {read.table: found.public[read.sql] for read in query.public_reads}
    ends = query.ends
    plain = [place for place in range(len(query.columns)) if place not in ends]
    keys = [at for at, place in enumerate(plain) if place not in query.limited]
    cells: dict[tuple[Any, ...], Cell] = {}
    for row in exact:
        key = tuple(told(row[at]) for at in keys)
        for at, place in enumerate(plain):
            if place in query.limited and row[at] is not None:
                cells[(*key, place)] = Cell(float(row[at]), row[-1])
    with closing(PostProcessor(policy.dataset.timezone)) as post:
        for _ in range(draws):
            noisy = [release(planned, found.releases[i]) for i, planned in enumerate(query.releases)]
            for row in post.run(query, noisy, public, {}, Cancellation()).rows:
                key = tuple(told(row[plain[at]]) for at in keys)
                for place in query.limited:
                    if (*key, place) in cells:
                        cells[(*key, place)].draw(row[place], row[place + 1], row[place + 2])
    return cells


def told(value: Any) -> str:
    """A key as both engines tell it: numbers of any type, and the day of a moment."""
    if isinstance(value, datetime):
        return str(value.date())
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


# What is printed


def summary(name: str, measured: Sequence[Measured]) -> str:
    """One row of a table: of cells, all draws together."""
    cells = [cell for each in measured for cell in each.cells if cell.errors]
    inside, number = sum(cell.inside for cell in cells), sum(len(cell.errors) for cell in cells)
    missing = sum(cell.missing for each in measured for cell in each.cells)
    unseen = sum(not cell.errors for each in measured for cell in each.cells)
    ratios = [ratio for cell in cells if (ratio := cell.width_ratio) is not None]
    refused = sum(each.refusal is not None for each in measured)
    accepted = sum(map(is_accepted, measured))
    return (
        f"| {name} | {len(measured)} | {refused} | {accepted} | {len(cells)} "
        f"| {_percent(inside / number if number else math.nan)} | {_number(ratios)} | {_percent(_error(cells))} "
        f"| {_percent(_error(_large(cells)))} | {missing} | {unseen} |"
    )


HEADS = ("", "questions", "refused", "accepted", "cells", "inside", "half width / error", "median error")
HEAD = f"| {' | '.join((*HEADS, f'of groups above {LARGE:,} units', 'NULL', 'unseen'))} |\n{'|---' * (len(HEADS) + 3)}|"


def is_accepted(measured: Measured) -> bool:
    """Whether a person would accept the answers to a question."""
    cells = [cell for cell in measured.cells if cell.errors]
    errors = _error(_large(cells) or cells)
    number = sum(len(cell.errors) for cell in cells)
    return bool(number) and sum(cell.inside for cell in cells) >= 0.9 * number and not errors > 0.1


def _large(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.units > LARGE]


def _error(cells: Sequence[Cell]) -> float:
    """The median error of cells, each its own median over the draws."""
    errors = [error for cell in cells if (error := cell.relative_error) is not None]
    return statistics.median(errors) if errors else math.nan


def _number(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "–"


def _percent(part: float) -> str:
    return "–" if math.isnan(part) else f"{100 * part:.2g} %" if part < 0.1 else f"{100 * part:.1f} %"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Whether announced intervals hold.")
    parser.add_argument("--draws", type=int, default=200, help="of the noise of each question; default: %(default)s")
    parser.add_argument("--only", choices=NAMES, help="one data set")
    parser.add_argument(
        "--wide-share", metavar="SHARE", help="of each price for wide totals, or 0; default: the policy's"
    )
    parser.add_argument("--profile", type=Fraction, default=Fraction(0), help="epsilon of a profile; default: none")
    parser.add_argument("--narrowed", type=int, default=1, metavar="K", help="divide each max_rows; default: by 1")
    parser.add_argument("--seed", type=int, default=2026, help="of the rows of the clinic; default: %(default)s")
    parser.add_argument("--questions", action="store_true", help="print a row for each question, too")
    given = parser.parse_args()
    terms = Terms(given.draws, given.wide_share, given.profile, given.narrowed)
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for data_set in data_sets(given.seed):
            if given.only in (None, data_set.name):
                measured += measure(data_set, Path(folder), terms)
    print(HEAD)
    for name in dict.fromkeys(each.data_set for each in measured):
        print(summary(name, [each for each in measured if each.data_set == name]))
    for kind in dict.fromkeys(each.question.kind for each in measured):
        print(summary(kind, [each for each in measured if each.question.kind == kind]))
    print(summary("all", measured))
    if given.questions:
        print(f"\n{HEAD}")
        for each in measured:
            print(summary(f"`{each.question.sql}`", [each]))
    for each in measured:
        if each.refusal is not None:
            print(f"refused: {each.question.sql}: {each.refusal}")


if __name__ == "__main__":
    main()
