"""`dpsql ledger`: is the record whole, and a copy of it; for the data owner."""

import csv
import json
import sys
from pathlib import Path

import click

from dpsql.cli.command import Group
from dpsql.cli.options import existing_ledger, finding_ledger

_FIELDS = ("seq", "at", "kind", "body", "previous", "hash")


@click.group(cls=Group)
def ledger() -> None:
    """Check the ledger and copy its records.

    Example:
      dpsql ledger verify --ledger sqlite:///dpsql-ledger.sqlite
    """


@ledger.command()
@finding_ledger
@click.pass_context
def verify(ctx: click.Context, ledger: str | None, policy: Path | None) -> None:
    """Recompute the hash chain, and every balance from the records; status 1 if something does not fit.

    The hash of the last record, kept elsewhere, proves later that none was cut off.

    Example:
      dpsql ledger verify --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        report = opened.verify()
    for problem in report.problems:
        click.echo(f"error: {problem}", err=True)
    click.echo(f"{report.records} records, {'whole' if report.ok else 'NOT whole'}; the last has hash {report.head}")
    ctx.exit(0 if report.ok else 1)


@ledger.command()
@finding_ledger
@click.option("--format", type=click.Choice(["json", "csv"]), default="json", show_default=True)
def export(format: str, ledger: str | None, policy: Path | None) -> None:
    """Write every record to standard output: a JSON array with a record a line, or CSV.

    The records hold users' queries; of passwords they hold hashes of the verifiers only.

    Example:
      dpsql ledger export --format csv --policy clinic.toml > ledger.csv
    """
    with existing_ledger(ledger, policy) as opened:
        if format == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(_FIELDS)
            for record in opened.export():
                texts = {**record, "body": json.dumps(record["body"], separators=(",", ":"), sort_keys=True)}
                writer.writerow([texts[name] for name in _FIELDS])
            return
        separator = "[\n"
        for record in opened.export():
            sys.stdout.write(separator + json.dumps(record, sort_keys=True))
            separator = ",\n"
        sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")
