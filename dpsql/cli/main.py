"""The command `dpsql`: one file a command or group next to this one.

A command's file is imported when the command runs: engines, parser and accountants take most of a second.
"""

import click

from dpsql.cli.command import Group

SUMMARIES = {
    "audit": "Test the privacy claims on neighbouring databases.",
    "budget": "Show budgets and what they were spent on, and change them.",
    "console": "Show budgets, spending, releases and health in a browser.",
    "demo": "Make a synthetic clinic, and serve it on this machine.",
    "explain": "Show the price and the error of a query in advance.",
    "ledger": "Verify, copy and upgrade the ledger.",
    "policy": "Draft, check and show policies, and suggest bounds.",
    "prepare": "Make prepared tables, with bounded rows of each unit.",
    "query": "Answer one query, and charge it to a user's budget.",
    "serve": "Serve the databases of policies to PostgreSQL clients.",
    "user": "Add, change, list and remove users.",
}
"""The commands, each with its line in `dpsql --help`."""


class Commands(Group):
    """The commands, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        return sorted(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        return command(cmd_name) if cmd_name in SUMMARIES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines of `SUMMARIES`; click would import every command for its own."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUMMARIES[name]) for name in self.list_commands(ctx)])


def command(name: str) -> click.Command:
    """Import one command of `SUMMARIES`."""
    found: click.Command
    match name:
        case "audit":
            from dpsql.cli.audit import audit as found
        case "budget":
            from dpsql.cli.budget import budget as found
        case "console":
            from dpsql.cli.console import console as found
        case "demo":
            from dpsql.cli.demo import demo as found
        case "explain":
            from dpsql.cli.query import explain as found
        case "ledger":
            from dpsql.cli.ledger import ledger as found
        case "policy":
            from dpsql.cli.policy import policy as found
        case "prepare":
            from dpsql.cli.prepare import prepare as found
        case "query":
            from dpsql.cli.query import query as found
        case "serve":
            from dpsql.cli.serve import serve as found
        case "user":
            from dpsql.cli.user import user as found
        case _:
            raise KeyError(name)
    return found


@click.group(cls=Commands)
@click.version_option(package_name="dpsql")
def main() -> None:
    """Answer SQL with differential privacy.

    Status 0: done. 1: refused or failed, with the reason on standard error. 2: wrong usage.

    Example:
      dpsql demo
    """
