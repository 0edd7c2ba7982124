"""`dpsql prepare`: bounded copies of the tables, so that queries need no pass over each unit's rows."""

from pathlib import Path

import click

from dpsql.backends import prepare_copies
from dpsql.cli.command import Command
from dpsql.cli.options import policy_argument
from dpsql.policy import load_policy


@click.command(cls=Command)
@policy_argument
def prepare(policy: Path) -> None:
    """Make bounded copies of the protected tables.

    A copy has max_rows rows of each unit, chosen by a keyed hash, as the policy lets queries see them. Counts, sums and
    averages over it need no further bounding, and are taken from it where their error is no larger than
    max_error_ratio allows. It belongs to one policy and one data_version: of others it is never read, so run this again
    when either changes. A gateway reads a new copy once it is started again.

    Example:
      dpsql prepare clinic.toml
    """
    where, rows = prepare_copies(load_policy(policy))
    for table, count in rows.items():
        click.echo(f"{table}: {count:,} rows")
    click.echo(f"written to {where}" if rows else "no table needs a copy: the database allows each unit one row")
