"""`dpsql prepare`: makes prepared tables, which have bounded rows of each unit."""

from pathlib import Path

import click

from dpsql.cli.command import Command
from dpsql.cli.options import policy_argument
from dpsql.policy import load_policy


@click.command(cls=Command)
@policy_argument
@click.option(
    "--url",
    metavar="URL",
    help="The PostgreSQL database, as a role that may create tables; by default the policy's url.",
)
def prepare(policy: Path, url: str | None) -> None:
    """Make prepared tables, with bounded rows of each unit, for the protected tables.

    A prepared table has at most max_rows rows of each unit, chosen by a keyed hash. Values of bounded columns are
    clamped, and stored as the integers that queries sum. Counts, sums and averages over it need no further bounding.
    Queries use it where their error stays within max_error_ratio. It belongs to one policy and one data_version: run
    this again when either changes. A running gateway uses new prepared tables after a restart.

    For a DuckDB file or a folder of files, they are in a file next to it. For PostgreSQL, they are in the schema that
    prepared_schema names, which is created if it does not exist. Spark has none.
    Give a password by PGPASSWORD or a password file, not in the URL.

    Example:
      dpsql prepare clinic.toml
      dpsql prepare clinic.toml --url postgresql://owner@host/clinic
    """
    from dpsql.backends import prepare_tables

    where, rows = prepare_tables(load_policy(policy), url)
    for table, count in rows.items():
        click.echo(f"{table}: {count:,} rows")
    click.echo(
        f"written to {where}" if rows else "no table needs a prepared table: the database allows one row per unit"
    )
