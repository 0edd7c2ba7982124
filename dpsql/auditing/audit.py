"""audit: runs query classes on neighbouring databases through the whole stack, and tests the claims.

Rule 1: no query runs on the policy's own database, and nothing is charged to its ledger.
Rule 2: both sides run the same queries in the same order, so that their ledgers are alike, too.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, reduce
from pathlib import Path

from dpsql.auditing import checks
from dpsql.auditing.classes import QueryClass, query_classes
from dpsql.auditing.neighbours import RESIDENTS, Database, DatasetRows, Datasets, NotAuditable, datasets, neighbours
from dpsql.auditing.served import served
from dpsql.auditing.stack import Stack
from dpsql.auditing.transcript import Pair, Transcript
from dpsql.auditing.verdict import Finding, Seen, Trials, judge
from dpsql.backends import open_backend
from dpsql.policy import Policy
from dpsql.policy.engines import DUCKDB, POSTGRES, SPARK, EngineKind, engine_of
from dpsql.privacy.cost import Accountant

MECHANISMS = {"laplace": Accountant.BASIC, "gaussian": Accountant.ZCDP}
"""Each kind of noise, and the budget that it is charged to."""

_FEW_UNITS = 10


@dataclass(frozen=True)
class Extent:
    """The extent of an audit.

    Attributes:
        units: The units that are added or removed; each is one trial in a run of a query with groups.
        runs: Runs of a query with groups, on each side.
        single_runs: Runs of a query without groups, on each side.
        draws: The approximate number of trials on each side whose noise alone is drawn again; 0 for none.
        confidence: The joint confidence of all bounds.
        only: Prefixes of the names of classes; empty for all classes.
        mechanisms: The kinds of noise.
        with_rows: Whether the rows of the policy's database are copied in addition to the invented ones.
    """

    units: int = 400
    runs: int = 24
    single_runs: int = 100
    draws: int = 200_000
    confidence: float = 1 - 1e-6
    only: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = tuple(MECHANISMS)
    with_rows: bool = False

    def wants(self, name: str) -> bool:
        """Whether a class is audited."""
        return not self.only or name.startswith(self.only)


@dataclass(frozen=True)
class _Asked:
    """A query class with a mechanism and an accountant."""

    query: QueryClass
    mechanism: str
    accountant: Accountant

    @property
    def epsilon(self) -> Fraction:
        """The price of each query."""
        return self.query.gaussian_epsilon if self.mechanism == "gaussian" else self.query.epsilon


def _all_asked(classes: Sequence[QueryClass], mechanisms: Sequence[str]) -> Iterator[_Asked]:
    for mechanism in mechanisms:
        for each in classes:
            for accountant in each.accountants or (MECHANISMS[mechanism],):
                # Under the other accountants, Gaussian noise has no price, or its δ uses up the budget.
                if mechanism != "gaussian" or accountant.shares_rho:
                    yield _Asked(each, mechanism, accountant)


@dataclass(frozen=True)
class Report:
    """What an audit found.

    Attributes:
        dataset: The dataset's name.
        engine: The name of the engine that ran the queries.
        confidence: The joint confidence of all bounds.
        findings: One per class and mechanism.
    """

    dataset: str
    engine: str
    confidence: float
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether no claim was refuted."""
        return all(finding.holds for finding in self.findings)


def audit(
    policy: Policy, extent: Extent, tell: Callable[[Finding], None] = lambda _: None, server: str | None = None
) -> Report:
    """Audit the stack under a policy.

    Guarantee: for a sound stack, the probability that any claim is refuted is at most 1 − confidence. Each bound has
        its share of that; everything else is compared exactly.
    Assumes: noise is independent from cell to cell and from query to query.

    Args:
        policy: The policy; the schema of its database is read, and its rows only if `extent` says so.
        extent: The extent of the audit.
        tell: Called with each finding.
        server: URL of a server on which databases are made for the audit: a Spark server if Spark holds the policy's
            data, else a PostgreSQL server; None for DuckDB, which does not stand for Spark.

    Raises:
        NotAuditable: The databases cannot be made.
    """
    engine = _engine(policy, server)
    if engine is POSTGRES and extent.with_rows:
        raise NotAuditable(
            "--with-rows and --server cannot be used together", hint="Leave out --with-rows or --server."
        )
    backend = open_backend(policy)
    try:
        made = datasets(policy, backend.schema, extent.units, extent.runs, with_rows=extent.with_rows)
    finally:
        backend.close()
    classes = [each for each in query_classes(made) if extent.wants(each.name)]
    asked = [*_all_asked(classes, extent.mechanisms)]
    error = (1 - extent.confidence) / (len(asked) + 1 + len(made.protected))
    findings = []
    with tempfile.TemporaryDirectory(prefix="dpsql-audit-") as folder, ExitStack() as held:

        def written(of: Datasets, rows: DatasetRows) -> Database:
            file = of.write(Path(folder), rows)
            if server is None:
                return Database(f"{DUCKDB.start}{file}")
            return held.enter_context(served(of, file, server))

        for finding in _findings(made, Path(folder), written, asked, extent, error):
            findings.append(finding)
            tell(finding)
    return Report(policy.dataset.name, engine.name, extent.confidence, tuple(findings))


def _engine(policy: Policy, server: str | None) -> EngineKind:
    """The engine that runs the queries. Spark's SQL bounds units in other ways than the others', so Spark runs it."""
    wanted = SPARK if engine_of(policy.dataset.url) is SPARK else POSTGRES
    if server is None and wanted is POSTGRES:
        return DUCKDB
    if server is None or server.partition("://")[0] not in wanted.schemes:
        raise NotAuditable(
            f"the audit of this policy needs a {wanted} server",
            hint=f"--server is the URL of a {wanted} server of tests, such as {wanted.example}",
        )
    return wanted


def _findings(
    made: Datasets,
    folder: Path,
    written: Callable[[Datasets, DatasetRows], Database],
    asked: Sequence[_Asked],
    extent: Extent,
    error: float,
) -> Iterator[Finding]:
    @cache
    def databases(whole: bool) -> tuple[Datasets, tuple[Database, Database]]:
        # A query without groups concerns one unit. The database has few others, so that the query can run often.
        of, name = (replace(made, units=_FEW_UNITS), "few_{}") if whole else (made, "{}")
        one, other = (written(of, replace(rows, name=name.format(rows.name))) for rows in neighbours(of))
        return of, (one, other)

    for each in asked:
        of, (with_units, without) = databases(each.query.is_whole)
        # Each class has its own ledgers, because the large δ of selections would use up a shared budget.
        with (
            Stack(of, with_units, folder, each.accountant, delta=each.query.delta) as there,
            Stack(of, without, folder, each.accountant, delta=each.query.delta) as away,
        ):
            yield _judged(each, (there, away), extent, error)
    if extent.wants("reuse"):
        yield checks.reuse(made, folder, databases(False)[1], extent.runs, extent.draws // made.units, error)
    if extent.wants("failure"):
        yield checks.failure(made, folder, databases(False)[1])
    without_unit = [table for table in made.protected if extent.wants(checks.orphans_name(table))]
    if without_unit:
        lost = written(made, replace(neighbours(made)[1], name="orphans", orphans=True))
        yield from checks.orphans(made, folder, (lost, databases(False)[1][1]), without_unit, extent.single_runs, error)


def _transcript(stacks: tuple[Stack, Stack], trials: Trials) -> Transcript:
    """The releases in which each unit has its own groups; a side with a refused query has fewer."""
    pairs = (Pair(sides, trials.keys) for sides in zip(*(stack.exact for stack in stacks), strict=False))
    return Transcript(tuple(pair for pair in pairs if pair.sides[0].lies_in(trials.keys)))


def _runs_of(delta: Fraction | None) -> int:
    """Return the number of queries with this δ that a budget covers."""
    return int(Fraction(9, 10) / delta) if delta else sys.maxsize


def _judged(asked: _Asked, stacks: tuple[Stack, Stack], extent: Extent, error: float) -> Finding:
    each = asked.query
    runs = extent.single_runs if each.is_whole else min(extent.runs, _runs_of(each.delta))
    times = max(3, int(extent.draws * each.share) // max(1, len(each.trials.keys)))
    seen: list[list[Seen]] = []
    for stack in stacks:
        stack.configure(asked.mechanism, asked.epsilon, each.settings)
        asks = each.sql
        if each.residents is not None:
            residents = each.residents(stack.selection(each.sql[0].format(1, 1)))
            asks = tuple(sql.format(*(min(RESIDENTS, most) for most in residents)) for sql in each.sql)
        seen.append([reduce(Seen.beside, map(stack.ask, asks)) for _ in range(runs)])
    transcript = _transcript(stacks, each.trials)
    name = f"{asked.mechanism}, {asked.accountant.value}"
    return judge(
        each.name,
        name,
        each.trials,
        (seen[0], seen[1]),
        error,
        transcript=transcript,
        times=times,
        of_delta=each.of_delta,
    )
