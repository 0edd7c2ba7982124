"""`dpsql user`: who may connect; for the data owner."""

import sys
from pathlib import Path

import click

from dpsql.cli.command import Group
from dpsql.cli.options import existing_ledger, finding_ledger, opened_ledger
from dpsql.errors import InvalidParameter
from dpsql.ledger import Holder, Scope
from dpsql.policy import load_policy
from dpsql.table import table_lines
from dpsql.wire.scram import make_verifier

_password_file = click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the password from the first line of a file.",
)


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
@_password_file
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
        opened.add_account(name, role, _verifier(password_file), user_group)
    click.echo(f'user "{name}" has role "{role}"' + ("" if user_group is None else f' and is in group "{user_group}"'))


@user.command()
@click.argument("name")
@_password_file
@finding_ledger
def passwd(name: str, password_file: Path | None, ledger: str | None, policy: Path | None) -> None:
    """Change a user's password.

    Example:
      dpsql user passwd ana --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        opened.set_verifier(name, _verifier(password_file))
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
@click.option("--none", "none", is_flag=True, help="Out of the group.")
@finding_ledger
def group(name: str, user_group: str | None, none: bool, ledger: str | None, policy: Path | None) -> None:
    """Put a user into a group, or out of it.

    From then on what the user is handed is charged to the group too; what was charged to a former group stays there.

    Example:
      dpsql user group ana --none --policy clinic.toml
      dpsql user group ana --user-group team --policy clinic.toml
    """
    if none == (user_group is not None):
        raise click.UsageError("which group? Give --user-group GROUP, or --none.")
    if policy is not None:
        _check_group(policy, user_group)
    with existing_ledger(ledger, policy) as opened:
        opened.set_group(name, user_group)
    click.echo(f'user "{name}" is in ' + ("no group" if user_group is None else f'group "{user_group}"'))


@user.command()
@click.argument("name")
@finding_ledger
def remove(name: str, ledger: str | None, policy: Path | None) -> None:
    """Remove a user; history and what was spent stay in the ledger.

    Example:
      dpsql user remove ana --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        opened.remove_account(name)
    click.echo(f'user "{name}" is removed')


@user.command()
@click.argument("name")
@click.option("--reason", required=True, metavar="TEXT", help="What was found and mended; it is recorded.")
@finding_ledger
def unfreeze(name: str, reason: str, ledger: str | None, policy: Path | None) -> None:
    """Let a frozen user ask again.

    A user is frozen after three queries that failed on private data: find out why first. The same as
    `dpsql budget unfreeze --user NAME`.

    Example:
      dpsql user unfreeze ana --reason "disk was full" --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        opened.unfreeze(Holder(Scope.USER, name), reason)
    click.echo(f'user "{name}" may ask again')


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


def _verifier(password_file: Path | None) -> str:
    if password_file is not None:
        password = password_file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidParameter("the password is empty", hint="Its first line is the password: FILE, or standard input.")
    return make_verifier(password)
