"""`dpsql audit`: what runs of the whole stack prove about the ε that is claimed, on generated neighbours."""

import json
import math
from pathlib import Path
from typing import Any

import click

from dpsql.auditing import Extent, Finding, Report
from dpsql.auditing import audit as audited
from dpsql.cli.command import Command
from dpsql.cli.options import policy_argument
from dpsql.policy import load_policy
from dpsql.table import table_lines


@click.command(cls=Command)
@policy_argument
@click.option("--units", type=click.IntRange(10, 10_000), default=1000, show_default=True, help="Pairs of neighbours.")
@click.option("--runs", type=click.IntRange(2, 10_000), default=8, show_default=True, help="Of a query with groups.")
@click.option(
    "--single-runs", type=click.IntRange(2, 1_000_000), default=400, show_default=True, help="Of one without groups."
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.999,
    show_default=True,
    help="With which all bounds hold together.",
)
@click.option("--with-rows", is_flag=True, help="On a copy of the database's own rows (DuckDB), not of made-up ones.")
@click.option("--only", multiple=True, metavar="NAME", help="Classes whose names begin so, such as COUNT or join.")
@click.option("--format", type=click.Choice(["table", "json"]), default="table", show_default=True)
def audit(policy: Path, format: str, confidence: float, only: tuple[str, ...], **runs: Any) -> None:
    """Try to refute the privacy that is claimed, on databases made up in the shape of the policy's.

    Query classes are asked many times, through everything from parsing to the ledger, on databases that differ by the
    rows of units at their limits. What tells the two apart gives a lower bound on ε: where it is above the claim, the
    claim is false, and the status is 1. Where it is not, nothing is proved.

    Of the policy's own database the schema alone is read, unless --with-rows copies it for as long as the audit takes.
    Nobody's budget is charged.

    Example:
      dpsql audit clinic.toml --only COUNT --only join
    """
    extent = Extent(confidence=confidence, only=only, **runs)
    report = audited(load_policy(policy), extent, lambda finding: _progress(finding, format))
    if not report.findings:
        raise click.UsageError("no class of that name: without --only, all that the policy allows are audited")
    if format == "json":
        click.echo(json.dumps(_json(report), ensure_ascii=False))
    else:
        click.echo("\n".join(_lines(report)))
    if not report.holds:
        raise click.exceptions.Exit(1)


def _progress(finding: Finding, format: str) -> None:
    if format == "table":
        click.echo(f"{finding.name}, {finding.mechanism}", err=True)


def _lines(report: Report) -> list[str]:
    names = ["class", "mechanism", "claimed ε", "claimed δ", "ε at least", "trials", "verdict"]
    rows = [
        [
            finding.name,
            finding.mechanism,
            f"{finding.epsilon:.3g}",
            f"{finding.delta:.3g}",
            f"{_down(finding.bound.epsilon)}",
            f"{finding.bound.trials}",
            "; ".join(finding.faults) or "not refuted",
        ]
        for finding in report.findings
    ]
    refuted = sum(not finding.holds for finding in report.findings)
    verdict = f"{refuted} refuted" if refuted else "none refuted"
    return [
        *table_lines(names, rows, right=range(2, 6)),
        f"{len(rows)} claims about {report.dataset}, {verdict}; all bounds hold together with confidence "
        f"{report.confidence:.10g}",
    ]


def _down(epsilon: float) -> float:
    """Three digits after the point, rounded down."""
    return math.floor(epsilon * 1000) / 1000


def _json(report: Report) -> dict[str, Any]:
    return {
        "dataset": report.dataset,
        "confidence": report.confidence,
        "holds": report.holds,
        "classes": [
            {
                "class": finding.name,
                "mechanism": finding.mechanism,
                "claimed": {"epsilon": finding.epsilon, "delta": finding.delta},
                "epsilon_at_least": finding.bound.epsilon,
                "trials": finding.bound.trials,
                "runs": finding.runs,
                "holds": finding.holds,
                "faults": list(finding.faults),
            }
            for finding in report.findings
        ],
    }
