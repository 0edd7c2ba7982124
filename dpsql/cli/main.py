"""The command `dpsql`: one file a command or group beside this one."""

import click

from dpsql.cli.audit import audit
from dpsql.cli.budget import budget
from dpsql.cli.command import Group
from dpsql.cli.console import console
from dpsql.cli.demo import demo
from dpsql.cli.ledger import ledger
from dpsql.cli.policy import policy
from dpsql.cli.prepare import prepare
from dpsql.cli.query import explain, query
from dpsql.cli.serve import serve
from dpsql.cli.user import user


@click.group(cls=Group, commands=[demo, serve, query, explain, policy, prepare, user, budget, ledger, console, audit])
@click.version_option(package_name="dpsql")
def main() -> None:
    """Answer SQL with differential privacy.

    Status 0: done. 1: refused or failed, with the reason on standard error. 2: wrong usage.

    Example:
      dpsql demo
    """
