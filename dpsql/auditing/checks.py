"""checks: reused answers, failures after a charge, and rows without a unit."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpsql.auditing.bound import Bound
from dpsql.auditing.claims import Claim, claims
from dpsql.auditing.classes import own_groups, source_of
from dpsql.auditing.neighbours import MAX_EPSILON, PROBE, Database, Datasets
from dpsql.auditing.stack import Stack
from dpsql.auditing.transcript import Pair, Transcript
from dpsql.auditing.verdict import Finding, Seen, Trials, judge
from dpsql.backends import Backend, ExactRows, open_backend
from dpsql.errors import BackendFailure
from dpsql.policy import Policy, Table
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Accountant

_MOST_RUNS = 80
"""The most runs of a check in which the sides must be equal and noise is small."""
_LAPLACE, _BUDGET = "laplace", Accountant.BASIC
_ONE_GROUP = (("dpsql.max_groups", "1"),)


def reuse(
    datasets: Datasets, folder: Path, databases: tuple[Database, Database], runs: int, times: int, error: float
) -> Finding:
    """Run a query twice, then on another data_version.

    The two answers must be equal and charged once; the answer on the other version must be charged.
    """
    table = datasets.protected[0]
    faults: list[str] = []
    sides: list[list[Seen]] = []
    exact = []
    for database, following in (databases, databases[::-1]):
        with ExitStack() as held:
            stack = held.enter_context(Stack(datasets, database, folder, _BUDGET))
            stack.configure(_LAPLACE, Fraction(1), (*_ONE_GROUP, ("dpsql.reuse", "on")))
            sides.append([_twice(stack, _numbered(table, run), faults) for run in range(runs)])
            exact.append(stack.exact[-1])
            other = Stack(datasets, following, folder, _BUDGET, version="another", ledger=stack.ledger_file)
            held.enter_context(other)
            other.configure(_LAPLACE, Fraction(1), (*_ONE_GROUP, ("dpsql.reuse", "on")))
            if other.ask(_numbered(table, 0)).price == Spent.zero():
                faults.append("an answer of another data_version was reused for free")
    trials = Trials(own_groups(datasets))
    transcript = Transcript((Pair((exact[0], exact[1]), trials.keys),))
    finding = judge("reuse", _LAPLACE, trials, (sides[0], sides[1]), error, transcript=transcript, times=times)
    return replace(finding, faults=tuple(dict.fromkeys([*faults, *finding.faults])))


def _numbered(table: Table, number: int) -> str:
    """A query whose text has not been used."""
    return f"SELECT {PROBE}, COUNT(*) FROM {source_of(table)} WHERE {PROBE} <> -{number + 2} GROUP BY {PROBE}"


def _twice(stack: Stack, sql: str, faults: list[str]) -> Seen:
    """Run a query twice; return both answers joined row by row, with the price and the frame of the first."""
    first, again = stack.ask(sql), stack.ask(sql)
    if again.price != Spent.zero():
        faults.append("a reused answer was charged again")
    if again.rows != first.rows:
        faults.append("a reused answer differs from the first")
    return replace(first.beside(again), frame=first.frame)


def _failing(policy: Policy) -> Backend:
    """An engine that fails once it has read private rows."""
    backend = open_backend(policy)
    read = backend.fetch

    def fail(*arguments: Any, **named: Any) -> ExactRows:
        read(*arguments, **named)
        raise BackendFailure

    backend.fetch = fail  # type: ignore[method-assign]
    return backend


def failure(datasets: Datasets, folder: Path, databases: tuple[Database, Database]) -> Finding:
    """Let the engine fail after it has read; the charge must stay, and both sides must fail alike."""
    sql = f"SELECT COUNT(*) FROM {source_of(datasets.protected[0])}"
    faults: list[str] = []
    told = []
    claim = Claim(0.0, 0.0)
    for database in databases:
        with Stack(datasets, database, folder, _BUDGET, opened=_failing) as stack:
            stack.configure(_LAPLACE, Fraction(1), ())
            price, before = stack.price(sql), stack.spent
            (claim,) = claims(price, stack.limit)
            told.append(stack.ask(sql))
            if stack.spent != before.merge(price):
                faults.append("the charge of a failed query was given back")
    if told[0] != told[1]:
        faults.append("the errors of failed queries differ between the neighbours")
    if None in (seen.refusal for seen in told):
        faults.append("a query that must fail did not fail")
    nothing = Bound(0.0, None, 0)
    return Finding("failure", _LAPLACE, claim.epsilon, claim.delta, nothing, 1, faults=tuple(faults))


def orphans_name(table: Table) -> str:
    """The name of the class about a table's rows without a unit."""
    return f"rows without a unit {table.name}"


def orphans(
    datasets: Datasets,
    folder: Path,
    databases: tuple[Database, Database],
    tables: Sequence[Table],
    runs: int,
    error: float,
) -> Iterator[Finding]:
    """Compare a database with one that also has rows without a unit; answers must not differ."""
    for table in tables:
        if not datasets.has_orphans(table):
            continue
        sides: list[list[Seen]] = []
        for database in databases:
            with Stack(datasets, database, folder, _BUDGET) as stack:
                stack.configure(_LAPLACE, MAX_EPSILON, ())
                sql = f"SELECT COUNT(*) FROM {source_of(table)}"
                sides.append([stack.ask(sql) for _ in range(min(runs, _MOST_RUNS))])
        yield judge(orphans_name(table), _LAPLACE, Trials(), (sides[0], sides[1]), error, Claim(0.0, 0.0))
