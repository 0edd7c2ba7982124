"""`dpsql user`: who may connect; for the data owner."""

from pathlib import Path

import click

from dpsql.cli.command import Group
from dpsql.cli.options import existing_ledger, finding_ledger, opened_ledger
from dpsql.cli.passwords import password_file_option, read_password
from dpsql.errors import InvalidParameter
from dpsql.gateway.text_table import table_lines
from dpsql.ledger import BudgetScope, Holder
from dpsql.policy import load_policy
from dpsql.wire.scram import make_verifier


@click.group(cls=Group)
def user() -> None:
    """Add, change, list and remove users.

    A password is asked for, or read from the first line of standard input where that is no terminal.

    Example:
      dpsql user add ana --role analyst --policy clinic.toml
    """


@user.command()
@click.argument("name")
@click.option("--role", required=True, metavar="ROLE", help="A role of the policy.")
@click.option("--user-group", metavar="GROUP", help="A group of the policy, whose budget its members share.")
@password_file_option
@finding_ledger
def add(
    name: str,
    role: str,
    user_group: str | None,
    password_file: Path | None,
    ledger: str | None,
    policy: Path | None,
) -> None:
    """Add a user with a password.

    A name that was removed comes back with its history and with what it has spent, but in no group unless one is named.

    Example:
      dpsql user add ana --role analyst --policy clinic.toml
      pwgen 20 1 | dpsql user add ben --role analyst --ledger sqlite:///ledger.sqlite
    """
    if policy is not None:
        _check_role(policy, role)
        _check_group(policy, user_group)
    with opened_ledger(ledger, policy) as opened:
        opened.add_account(name, role, make_verifier(read_password(password_file)), user_group)
    click.echo(f'user "{name}" has role "{role}"' + ("" if user_group is None else f' and is in group "{user_group}"'))


@user.command()
@click.argument("name")
@password_file_option
@finding_ledger
def passwd(name: str, password_file: Path | None, ledger: str | None, policy: Path | None) -> None:
    """Change a user's password; gateways end the user's sessions within two seconds.

    Example:
      dpsql user passwd ana --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        opened.set_verifier(name, make_verifier(read_password(password_file)))
    click.echo(f'user "{name}" has a new password')


@user.command(name="list")
@finding_ledger
def list_(ledger: str | None, policy: Path | None) -> None:
    """List the users.

    Example:
      dpsql user list --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        rows = [
            (
                account.name,
                account.role,
                "yes" if account.verifier else "no",
                "frozen" if account.frozen else "active",
                account.group,
                account.created.isoformat(sep=" ", timespec="seconds"),
            )
            for account in opened.accounts()
        ]
    click.echo("\n".join(table_lines(("user", "role", "password", "state", "group", "created"), rows)))


@user.command()
@click.argument("name")
@click.option("--user-group", metavar="GROUP", help="A group of the policy, whose budget its members share.")
@click.option("--none", "none", is_flag=True, help="Remove the user from the group.")
@finding_ledger
def group(name: str, user_group: str | None, none: bool, ledger: str | None, policy: Path | None) -> None:
    """Put a user into a group, or out of it.

    From then on what the user is handed is charged to the group too; what was charged to a former group stays there.

    Example:
      dpsql user group ana --none --policy clinic.toml
      dpsql user group ana --user-group team --policy clinic.toml
    """
    if none == (user_group is not None):
        raise click.UsageError("no group is named: give --user-group GROUP, or --none.")
    if policy is not None:
        _check_group(policy, user_group)
    with existing_ledger(ledger, policy) as opened:
        opened.set_group(name, user_group)
    click.echo(f'user "{name}" is in ' + ("no group" if user_group is None else f'group "{user_group}"'))


@user.command()
@click.argument("name")
@finding_ledger
def remove(name: str, ledger: str | None, policy: Path | None) -> None:
    """Remove a user; sessions end, history and what was spent stay in the ledger.

    Example:
      dpsql user remove ana --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        opened.remove_account(name)
    click.echo(f'user "{name}" is removed')


@user.command()
@click.argument("name")
@finding_ledger
def disconnect(name: str, ledger: str | None, policy: Path | None) -> None:
    """End a user's sessions on all gateways of the ledger, within two seconds; the user may connect again.

    To keep the user out, freeze the user, change the password, or remove the user.

    Example:
      dpsql user disconnect ana --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        opened.end_sessions(name)
    click.echo(f'the sessions of user "{name}" end')


@user.command()
@click.argument("name")
@click.option("--reason", required=True, metavar="TEXT", help="What was found and fixed; the ledger records it.")
@finding_ledger
def unfreeze(name: str, reason: str, ledger: str | None, policy: Path | None) -> None:
    """Let a frozen user ask again.

    A user is frozen after three queries that failed on private data: find out why first. The same as
    `dpsql budget unfreeze --user NAME`.

    Example:
      dpsql user unfreeze ana --reason "disk was full" --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        opened.unfreeze(Holder(BudgetScope.USER, name), reason)
    click.echo(f'user "{name}" may run queries again')


def _check_role(policy: Path, role: str) -> None:
    loaded = load_policy(policy)
    if loaded.role(role) is None:
        names = ", ".join(known.name for known in loaded.roles)
        raise InvalidParameter(f'the policy has no role "{role}"', hint=f"It has: {names}")


def _check_group(policy: Path, group: str | None) -> None:
    loaded = load_policy(policy)
    if group is not None and loaded.group(group) is None:
        names = ", ".join(known.name for known in loaded.groups)
        raise InvalidParameter(
            f'the policy has no group "{group}"', hint=f"It has: {names}" if names else "Add [groups.NAME]"
        )
