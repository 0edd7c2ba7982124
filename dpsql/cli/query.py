"""`dpsql query`, one statement, and `dpsql explain`, one or several: in this process."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from dpsql.cli.command import Command
from dpsql.cli.options import ledger_option, policy_argument

_of_a_query = (
    policy_argument,
    click.argument("sql"),
    click.option(
        "--user", required=True, metavar="NAME", help="The user who runs the query and whose budget is charged."
    ),
    click.option("--role", metavar="ROLE", help="The role of a user who is new to the ledger."),
    click.option("--epsilon", metavar="E", help="The query's price, instead of the role's."),
    click.option("--delta", metavar="D", help="δ for private group keys, instead of the role's."),
    click.option("--mechanism", metavar="M", help="auto, laplace or gaussian."),
    click.option(
        "--target-error",
        metavar="T",
        help="Target error, as in '5 %' or 50; dpsql charges the smallest epsilon that meets it.",
    ),
    click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Another setting, as in dpsql.intervals=on."
    ),
    ledger_option,
)


def _asking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say who asks what, and under which settings."""
    return reduce(lambda made, option: option(made), reversed(_of_a_query), command)


@click.command(cls=Command)
@_asking
@click.option("--format", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
def query(sql: str, format: str, **options: Any) -> None:
    """Answer one query, and charge it to a user's budget.

    The rows go to standard output. The price and the error go to standard error.

    Example:
      dpsql query clinic.toml "SELECT sex, COUNT(*) FROM patients GROUP BY sex" --user ana
    """
    from dpsql.cli.answers import answer

    answer(sql, format, **options)


@click.command(cls=Command)
@_asking
@click.option("--format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain(sql: str, format: str, **options: Any) -> None:
    """Show the price, the error and the engine SQL of a query; no private row is read, and nothing is charged.

    For several queries, it also shows their joint price, and whether the budget covers it.

    Example:
      dpsql explain clinic.toml "SELECT city, COUNT(*) FROM patients GROUP BY city" --user ana
    """
    from dpsql.cli.answers import tell

    tell(sql, format, **options)
