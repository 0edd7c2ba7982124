"""`dpsql ledger`: verify, export, copy and migrate the ledger; for the data owner."""

import csv
import json
import re
import sys
from pathlib import Path

import click

from dpsql.cli.command import Group
from dpsql.cli.exact import exact_lines
from dpsql.cli.options import existing_file, existing_ledger, finding_ledger, named_ledger, opened_ledger
from dpsql.ledger import Noted, VerifyReport, copy_ledger, is_file
from dpsql.ledger import backup as back_up
from dpsql.ledger import migrate as migrate_file

_FIELDS = ("seq", "at", "kind", "body", "previous", "hash")


def _hash(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise click.BadParameter("a hash has 64 digits from 0 to f, as `dpsql ledger verify` prints it")
    return text and text.lower()


@click.group(cls=Group)
def ledger() -> None:
    """Verify, copy and upgrade the ledger.

    Example:
      dpsql ledger verify --ledger sqlite:///dpsql-ledger.sqlite
    """


@ledger.command()
@finding_ledger
def init(ledger: str | None, policy: Path | None) -> None:
    """Make the ledger if there is none, and say what is in it.

    `serve --init-ledger` makes one too where it may: in PostgreSQL another role than the gateway's should own them.

    Example:
      dpsql ledger init --ledger postgresql://ledger_owner@host/ledger
    """
    with opened_ledger(ledger, policy) as opened:
        click.echo(_told(opened.verify()))


@ledger.command()
@finding_ledger
@click.option("--head", metavar="HASH", callback=_hash, help="The hash that an earlier verify printed.")
@click.option("--records", metavar="N", type=click.IntRange(0), help="The number of records at that time.")
@click.pass_context
def verify(ctx: click.Context, head: str | None, records: int | None, ledger: str | None, policy: Path | None) -> None:
    """Recompute the hash chain, and every balance from the records; status 1 if something does not fit.

    The hash of the last record, kept elsewhere and given again as --head, proves that no record was cut off since.

    Example:
      dpsql ledger verify --policy clinic.toml
    """
    if records is not None and head is None:
        raise click.UsageError("--records needs --head: give both")
    with existing_ledger(ledger, policy) as opened:
        report = opened.verify(None if head is None else Noted(head, records))
        exact = list(exact_lines(opened)) if report.ok else []
    for problem in report.problems:
        click.echo(f"error: {problem}", err=True)
    click.echo(_told(report))
    for line in exact:
        click.echo(line)
    ctx.exit(0 if report.ok else 1)


@ledger.command()
@finding_ledger
@click.option("--format", type=click.Choice(["json", "csv"]), default="json", show_default=True)
def export(format: str, ledger: str | None, policy: Path | None) -> None:
    """Write every record to standard output, oldest first: one JSON object a line, or CSV.

    The records hold users' queries; of passwords they hold hashes of the verifiers only.

    Example:
      dpsql ledger export --format csv --policy clinic.toml > ledger.csv
    """
    with existing_ledger(ledger, policy) as opened:
        if format == "json":
            for record in opened.export():
                sys.stdout.write(json.dumps(record, sort_keys=True) + "\n")
            return
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_FIELDS)
        for record in opened.export():
            texts = {**record, "body": json.dumps(record["body"], separators=(",", ":"), sort_keys=True)}
            writer.writerow([texts[name] for name in _FIELDS])


@ledger.command()
@finding_ledger
@click.option("--reason", metavar="TEXT", help="Confirm this machine's clock, and say why it may be so far ahead.")
def clock(reason: str | None, ledger: str | None, policy: Path | None) -> None:
    """Show the ledger's time and this machine's; with --reason, have the ledger believe the machine's clock.

    A clock more than 31 days ahead of the last record is not trusted: no budget renews until it is confirmed. Make sure
    that the clock is right first: the ledger's time never goes back.

    Example:
      dpsql ledger clock --policy clinic.toml
      dpsql ledger clock --reason "nobody asked during the summer" --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        status = opened.clock_status() if reason is None else opened.confirm_clock(reason)
    click.echo(f"this machine's clock: {status.machine:%Y-%m-%d %H:%M:%S%z}")
    click.echo(f"the ledger's time:    {status.ledger:%Y-%m-%d %H:%M:%S%z}")
    if status.held:
        click.echo("The clock is not trusted, so no budget renews. To confirm it: dpsql ledger clock --reason TEXT")
    elif status.ledger > status.machine:
        click.echo("The clock is behind the ledger's time. No budget renews until the clock has passed it.")


@ledger.command()
@click.argument("file", type=click.Path(path_type=Path))
@finding_ledger
def backup(file: Path, ledger: str | None, policy: Path | None) -> None:
    """Copy the ledger, in use or not, to the new FILE, and verify the copy.

    A restored copy lacks everything that was spent after the backup. So all users are frozen in it. Compare it with the
    last hash that you noted (`verify --head`), and then run: dpsql budget unfreeze --all-users

    Example:
      dpsql ledger backup ledger-monday.sqlite --policy clinic.toml
    """
    click.echo(f'"{file}": {_told(back_up(existing_file(ledger, policy), file))}')


@ledger.command()
@click.argument("target", metavar="URL")
@finding_ledger
def copy(target: str, ledger: str | None, policy: Path | None) -> None:
    """Copy the ledger to URL, a new file or a database without one, and verify the copy.

    Use it to move a ledger from a file to PostgreSQL, or back. Stop the gateways first, and never use the old ledger
    again: with two ledgers, each budget could be spent twice.

    Example:
      dpsql ledger copy postgresql://ledger_owner@host/ledger --ledger sqlite:///dpsql-ledger.sqlite
    """
    click.echo(_told(copy_ledger(named_ledger(ledger, policy), target)))


@ledger.command()
@finding_ledger
def migrate(ledger: str | None, policy: Path | None) -> None:
    """Upgrade the ledger of an older dpsql to this version; no other process may have it open.

    The records do not change. A file is copied first, and the copy stays next to it; dump a database before you start.

    Example:
      dpsql ledger migrate --ledger sqlite:///dpsql-ledger.sqlite
    """
    url = named_ledger(ledger, policy)
    if not is_file(url):
        from dpsql.ledger.postgres import migrate_database

        migrated = migrate_database(url)
        click.echo("it has the layout of this version" if migrated is None else _told(migrated[1]))
        return
    path = existing_file(ledger, policy)
    done = migrate_file(path)
    if done is None:
        click.echo(f'"{path}" has the layout of this version')
    else:
        click.echo(f'"{path}": {_told(done.report)}\nas it was, with layout {done.layout}: "{done.backup}"')


def _told(report: VerifyReport) -> str:
    return f"{report.records} records, {'whole' if report.ok else 'NOT whole'}; the last has hash {report.head}"
