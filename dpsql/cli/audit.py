"""`dpsql audit`: tests the claimed ε by running the whole stack on generated neighbours."""

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.cli.command import Command
from dpsql.cli.options import given_url, policy_argument
from dpsql.gateway.text_table import table_lines
from dpsql.policy import Policy, load_policy
from dpsql.policy.engines import SPARK, engine_of

if TYPE_CHECKING:
    from dpsql.auditing import Finding, Report


@click.command(cls=Command)
@policy_argument
@click.option("--units", type=click.IntRange(10, 10_000), default=400, show_default=True, help="Pairs of neighbours.")
@click.option(
    "--runs", type=click.IntRange(3, 10_000), default=24, show_default=True, help="Runs of a query with groups."
)
@click.option(
    "--single-runs",
    type=click.IntRange(3, 1_000_000),
    default=100,
    show_default=True,
    help="Runs of a query without groups.",
)
@click.option(
    "--draws",
    type=click.IntRange(0, 10_000_000),
    default=200_000,
    show_default=True,
    help="Trials in which only the noise is drawn again.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.999999,
    show_default=True,
    help="Confidence with which all bounds hold together.",
)
@click.option("--with-rows", is_flag=True, help="Audit a copy of the database's own rows (DuckDB), not synthetic rows.")
@click.option(
    "--server",
    metavar="URL",
    help="A server on which databases are created and then dropped: of PostgreSQL, or of Spark if Spark has the data.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Only classes whose names begin so, such as COUNT or join.")
@click.option("--format", type=click.Choice(["table", "json", "markdown"]), default="table", show_default=True)
def audit(policy: Path, format: str, confidence: float, server: str | None, only: tuple[str, ...], **runs: Any) -> None:
    """Test the claimed privacy on generated neighbouring databases with the policy's tables.

    Each class of queries runs many times, from parsing to the ledger, on databases that differ by the rows of units at
    their bounds. How well the answers tell the two apart gives a lower bound on ε. If the bound exceeds the claim, the
    claim is false, and the status is 1. Otherwise nothing is proved.

    The audit reads only the schema of the policy's database, unless --with-rows copies its rows for the time of the
    audit. No budget is charged. DuckDB runs the queries, or a server that --server names. Where Spark holds the data,
    a Spark server runs them, which is started on this machine for the time of the audit unless --server names one.

    Example:
      dpsql audit clinic.toml --only COUNT --only join
    """
    from dpsql.auditing import Extent
    from dpsql.auditing import audit as audited

    loaded, extent = load_policy(policy), Extent(confidence=confidence, only=only, **runs)
    with _server_of(loaded, given_url(server) if server is not None else None) as place:
        report = audited(loaded, extent, lambda finding: _progress(finding, format), place)
    if not report.findings:
        raise click.UsageError(
            "--only matches no class of queries; without it, all classes that the policy allows are audited"
        )
    if format == "json":
        click.echo(json.dumps(_json(report), ensure_ascii=False))
    elif format == "markdown":
        click.echo("\n".join(_markdown(report)))
    else:
        click.echo("\n".join(_lines(report)))
    if not report.holds:
        raise click.exceptions.Exit(1)


@contextmanager
def _server_of(policy: Policy, server: str | None) -> Iterator[str | None]:
    """The server that is named, or one of Spark that runs as long as the context lasts; None if none is needed."""
    if server is not None or engine_of(policy.dataset.url) is not SPARK:
        yield server
        return
    from dpsql.cli.clinic_spark import check_tools, local_server

    check_tools()
    with tempfile.TemporaryDirectory(prefix="dpsql-audit-") as folder, local_server(Path(folder)) as started:
        yield started.url


def _progress(finding: "Finding", format: str) -> None:
    if format != "json":
        click.echo(f"{finding.name}, {finding.mechanism}", err=True)


def _lines(report: "Report") -> list[str]:
    names = [
        "class",
        "noise, accountant",
        "claimed ε",
        "claimed δ",
        "attainable",
        "at least",
        "of the claim",
        "of it",
        "trials",
        "verdict",
    ]
    rows = [
        [
            finding.name,
            finding.mechanism,
            f"{finding.epsilon:.3g}",
            f"{finding.delta:.3g}",
            f"{finding.attainable:.3g}",
            _bound(finding),
            f"{finding.share:.0%}",
            f"{finding.share_of_attainable:.0%}",
            f"{finding.bound.trials}",
            "; ".join(finding.faults) or "not refuted",
        ]
        for finding in report.findings
    ]
    refuted = sum(not finding.holds for finding in report.findings)
    verdict = f"{refuted} refuted" if refuted else "none refuted"
    return [
        *table_lines(names, rows, right=range(2, 9)),
        f"{len(rows)} claims about {report.dataset} on {report.engine}, {verdict}; all bounds hold together with "
        "confidence "
        f"{report.confidence:.10g}",
    ]


def _markdown(report: "Report") -> Iterator[str]:
    """The table of the documentation."""
    yield "| class | noise, accountant | claimed ε, δ | attainable | at least | of the claim | of it | trials |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in report.findings:
        claimed = f"{each.epsilon:.3g}, {each.delta:.3g}"
        shares = [f"{share:.0%}" if of else "–" for share, of in _shares(each)]
        bounds = [f"{each.attainable:.3g}", _bound(each), *shares]
        cells = [each.name, each.mechanism, claimed, *bounds, str(each.bound.trials)]
        yield f"| {' | '.join(cells)} |"


def _shares(finding: "Finding") -> Iterator[tuple[float, float]]:
    """The bound as shares of the claim and of the attainable value, each with that value."""
    yield finding.share, finding.epsilon
    yield finding.share_of_attainable, finding.attainable


def _bound(finding: "Finding") -> str:
    return f"{'δ' if finding.of_delta else 'ε'} {_down(finding.bound.least)}"


def _down(epsilon: float) -> float:
    """Three digits after the point, rounded down."""
    return math.floor(epsilon * 1000) / 1000


def _json(report: "Report") -> dict[str, Any]:
    return {
        "dataset": report.dataset,
        "engine": report.engine,
        "confidence": report.confidence,
        "holds": report.holds,
        "classes": [
            {
                "class": finding.name,
                "mechanism": finding.mechanism,
                "claimed": {"epsilon": finding.epsilon, "delta": finding.delta},
                f"{'delta' if finding.of_delta else 'epsilon'}_at_least": finding.bound.least,
                "attainable": finding.attainable,
                "trials": finding.bound.trials,
                "runs": finding.runs,
                "holds": finding.holds,
                "faults": list(finding.faults),
            }
            for finding in report.findings
        ],
    }
