"""`dpsql policy suggest`: its options; `suggested_limits` does the work."""

from pathlib import Path

import click

from dpsql.cli.command import Command
from dpsql.cli.options import ledger_option, policy_argument


@click.command(cls=Command)
@policy_argument
@click.option("--epsilon", metavar="E", help="The price of the search, charged to the cap.")
@click.option("--exact", is_flag=True, help="Search without noise; the ledger records that no guarantee covers it.")
@click.option("--tighter", is_flag=True, help="Include columns that have bounds.")
@click.option("--only", metavar="NAME", multiple=True, help="Only this TABLE or TABLE.COLUMN; can be repeated.")
@click.option(
    "--quantile", metavar="Q", help="The fraction of units with at most these rows and groups; by default 0.95."
)
@ledger_option
@click.option("--format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def suggest(
    policy: Path,
    epsilon: str | None,
    exact: bool,
    tighter: bool,
    only: tuple[str, ...],
    quantile: str | None,
    ledger: str | None,
    format: str,
) -> None:
    """Suggest bounds: lower and upper of columns, max_rows, max_groups and max_rows_per_group of tables.

    The command searches for them in the data, with differential privacy. The price is charged to the cap over all
    users, and not to a user; a failed search is charged too. The output is lines for the policy.

    Bounds that are known without the data are better, and cost nothing.

    Example:
      dpsql policy suggest clinic.toml --epsilon 0.5
      dpsql policy suggest clinic.toml --epsilon 0.2 --only visits.cost
    """
    if exact == (epsilon is not None):
        raise click.UsageError(
            "no price is given: use --epsilon 0.5, for example, or --exact for a search without a guarantee."
        )
    if exact and quantile is not None:
        raise click.UsageError("--quantile needs --epsilon: --exact drops no rows.")
    from dpsql.cli.suggested_limits import suggest_limits

    suggest_limits(policy, ledger, epsilon, quantile, only, tighter=tighter, format=format)
