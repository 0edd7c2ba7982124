"""audit: ask query classes on neighbouring databases through the whole stack, and judge what was seen.

Rule 1: no query is asked of the policy's own database, and nothing is charged to its ledger.
Rule 2: both sides are asked the same in the same order, so that their ledgers, too, are alike.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dpsql.auditing import checks
from dpsql.auditing.classes import QueryClass, query_classes
from dpsql.auditing.judge import Finding, Seen, judge
from dpsql.auditing.stack import Stack
from dpsql.auditing.worlds import Worlds, neighbours, worlds
from dpsql.backends import open_backend
from dpsql.policy import Policy
from dpsql.privacy.cost import Accountant

MECHANISMS = {"laplace": Accountant.BASIC, "gaussian": Accountant.ZCDP}
"""Each kind of noise, and the budget that it is charged to."""


@dataclass(frozen=True)
class Extent:
    """How thorough an audit is.

    Attributes:
        units: Units that come and go: as many trials has a run of a query with groups.
        runs: Runs of a query with groups, on each side.
        single_runs: Runs of a query without groups, on each side.
        confidence: With which all bounds together hold.
        only: Beginnings of the names of classes; all of them if there are none.
        mechanisms: The kinds of noise.
        with_rows: Whether the rows of the policy's database are copied beside those that are made up.
    """

    units: int = 1000
    runs: int = 8
    single_runs: int = 400
    confidence: float = 0.999
    only: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = tuple(MECHANISMS)
    with_rows: bool = False

    def wants(self, name: str) -> bool:
        """Whether a class is audited."""
        return not self.only or name.startswith(self.only)


@dataclass(frozen=True)
class Report:
    """What an audit found.

    Attributes:
        dataset: The dataset's name.
        confidence: With which all bounds together hold.
        findings: One a class and mechanism.
    """

    dataset: str
    confidence: float
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether no claim was refuted."""
        return all(finding.holds for finding in self.findings)


def audit(policy: Policy, extent: Extent, tell: Callable[[Finding], None] = lambda _: None) -> Report:
    """Audit the stack under a policy.

    Guarantee: of a sound stack it refutes some claim with a probability of 1 − confidence at the most: each of the
        bounds has its share of that, and all else is compared, not estimated.
    Assumes: noise is independent from cell to cell and from query to query.

    Args:
        policy: The policy; the schema of its database is read, and its rows only if that is wanted.
        extent: How thorough it is.
        tell: Told of each finding as it is made.
    """
    backend = open_backend(policy)
    try:
        made = worlds(policy, backend.schema, extent.units, extent.runs, with_rows=extent.with_rows)
    finally:
        backend.close()
    classes = [each for each in query_classes(made) if extent.wants(each.name)]
    error = (1 - extent.confidence) / (len(extent.mechanisms) * len(classes) + 1 + len(made.protected))
    findings = []
    with tempfile.TemporaryDirectory(prefix="dpsql-audit-") as folder:
        for finding in _findings(made, Path(folder), classes, extent, error):
            findings.append(finding)
            tell(finding)
    return Report(policy.dataset.name, extent.confidence, tuple(findings))


def _findings(made: Worlds, folder: Path, classes: list[QueryClass], extent: Extent, error: float) -> Iterator[Finding]:
    one, other = (made.write(folder, rows) for rows in neighbours(made))
    for mechanism in extent.mechanisms:
        accountant = MECHANISMS[mechanism]
        with Stack(made, one, folder, accountant) as there, Stack(made, other, folder, accountant) as away:
            for each in classes:
                yield _asked(each, mechanism, accountant, (there, away), extent, error)
    if extent.wants("reuse"):
        yield checks.reuse(made, folder, (one, other), extent.runs, error)
    if extent.wants("failure"):
        yield checks.failure(made, folder, (one, other))
    without_unit = [table for table in made.protected if extent.wants(checks.nobody_name(table))]
    if without_unit:
        lost = made.write(folder, replace(neighbours(made)[1], name="nobody", nobody=True))
        yield from checks.nobody(made, folder, (lost, other), without_unit, extent.single_runs, error)


def _asked(
    asked: QueryClass,
    mechanism: str,
    accountant: Accountant,
    stacks: tuple[Stack, Stack],
    extent: Extent,
    error: float,
) -> Finding:
    runs = extent.single_runs if asked.is_whole else extent.runs
    seen: list[list[Seen]] = []
    for stack in stacks:
        stack.configure(mechanism, asked.epsilon, asked.settings)
        seen.append([stack.ask(asked.sql) for _ in range(runs)])
    return judge(asked.name, mechanism, accountant, asked.trials, (seen[0], seen[1]), error)
