"""`dpsql prepare`: bounded copies of the tables, so that queries need no pass over each unit's rows."""

from pathlib import Path

import click

from dpsql.cli.command import Command
from dpsql.cli.options import policy_argument
from dpsql.policy import load_policy


@click.command(cls=Command)
@policy_argument
@click.option(
    "--url", metavar="URL", help="The PostgreSQL database, as a role that may make tables; else the policy's."
)
def prepare(policy: Path, url: str | None) -> None:
    """Make bounded copies of the protected tables.

    A copy has max_rows rows of each unit, chosen by a keyed hash, as the policy lets queries see them, and the values
    of bounded columns within their limits, as the integers that queries add up. Counts, sums and averages over it need
    no further bounding, and are taken from it where their error is no larger than max_error_ratio allows. It belongs to
    one policy and one data_version: of others it is never read, so run this again when either changes. A gateway reads
    a new copy once it is started again.

    Copies of a DuckDB file are in a file beside it; PostgreSQL has them in the schema that prepared_schema names, which
    is made if it is not there. A password belongs in PGPASSWORD or in a password file, not in the URL.

    Example:
      dpsql prepare clinic.toml
      dpsql prepare clinic.toml --url postgresql://owner@host/clinic
    """
    from dpsql.backends import prepare_tables

    where, rows = prepare_tables(load_policy(policy), url)
    for table, count in rows.items():
        click.echo(f"{table}: {count:,} rows")
    click.echo(f"written to {where}" if rows else "no table needs a copy: the database allows each unit one row")
