"""The data owner's changes of budgets: grant, lower, reset, freeze and unfreeze; each is recorded with its reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dpsql.cli.command import Command
from dpsql.cli.options import exact_number, existing_ledger, finding_ledger, ledger_option
from dpsql.gateway.system_relations import times
from dpsql.ledger import BudgetScope, BudgetStatus, Holder
from dpsql.policy import Policy, load_policy
from dpsql.privacy.conversion import decimal_text

F = TypeVar("F", bound=Callable[..., Any])

_user = click.option("--user", metavar="NAME", help="Of this user.")
_user_group = click.option("--user-group", metavar="NAME", help="The budget of this group of users.")
_everybody = click.option("--all-users", is_flag=True, help="All budgets, in every dataset of the ledger.")
_cap = click.option("--all-users", is_flag=True, hidden=True, help="Refused: the cap is changed in the policy.")
_policy = click.option(
    "--policy", required=True, metavar="POLICY", type=click.Path(path_type=Path), help="The policy of the budget."
)
_reason = click.option("--reason", required=True, metavar="TEXT", help="The reason, which the ledger records.")
_delta = click.option(
    "--delta", metavar="D", default="0", show_default=True, help="By how much delta changes in the same direction."
)


def _of_a_budget(command: F) -> F:
    """Give a command the options for the budget, the policy and the reason."""
    for option in (ledger_option, _reason, _policy, _cap, _user_group, _user):
        command = option(command)
    return command


def _of_a_freeze(command: F) -> F:
    """Give a command the options for the frozen users and the reason."""
    for option in (finding_ledger, _reason, _everybody, _user_group, _user):
        command = option(command)
    return command


@click.command(cls=Command)
@_of_a_budget
@click.option("--epsilon", required=True, metavar="E", help="By how much epsilon is raised.")
@_delta
def grant(epsilon: str, delta: str, reason: str, policy: Path, ledger: str | None, **whose: Any) -> None:
    """Give a user or a group more than the policy says.

    The grant is added to the policy's budget, and stays if the policy changes. The cap over all users is changed in
    the policy only.

    Example:
      dpsql budget grant --user ana --epsilon 1 --reason "asked for one more table" --policy clinic.toml
    """
    holder, loaded = _holder(**whose), load_policy(policy)
    amounts = exact_number("epsilon", epsilon), exact_number("delta", delta)
    with existing_ledger(ledger, policy) as opened:
        status = opened.grant(holder, loaded, *amounts, reason)
    click.echo(_now(holder, loaded, status))


@click.command(cls=Command)
@_of_a_budget
@click.option("--epsilon", required=True, metavar="E", help="By how much epsilon is lowered.")
@_delta
def lower(epsilon: str, delta: str, reason: str, policy: Path, ledger: str | None, **whose: Any) -> None:
    """Reduce the budget of a user or a group; spent budget stays spent.

    Example:
      dpsql budget lower --user-group team --epsilon 2 --reason "two have left" --policy clinic.toml
    """
    holder, loaded = _holder(**whose), load_policy(policy)
    amounts = exact_number("epsilon", epsilon), exact_number("delta", delta)
    with existing_ledger(ledger, policy) as opened:
        status = opened.lower(holder, loaded, *amounts, reason)
    click.echo(_now(holder, loaded, status))


@click.command(cls=Command)
@_of_a_budget
def reset(reason: str, policy: Path, ledger: str | None, **whose: Any) -> None:
    """Let a user or a group spend the whole budget again.

    The guarantees before and after a reset ADD UP: after n resets, up to n + 1 budgets may be spent. The cap over all
    users is not reset.

    Example:
      dpsql budget reset --user ana --reason "a new study, approved" --policy clinic.toml
    """
    holder, loaded = _holder(**whose), load_policy(policy)
    with existing_ledger(ledger, policy) as opened:
        status = opened.reset(holder, loaded, reason)
    click.echo(_now(holder, loaded, status))
    click.echo(
        f"reset {times(status.resets)}: the guarantees before and after each reset ADD UP, to "
        f"{status.resets + 1} budgets"
    )


@click.command(cls=Command)
@_of_a_freeze
def freeze(reason: str, ledger: str | None, policy: Path | None, **whose: Any) -> None:
    """Refuse every query of a user, of a group's members or of all users, until they are unfrozen.

    Example:
      dpsql budget freeze --all-users --reason "the release is being checked" --policy clinic.toml
    """
    holder = _holder(**whose)
    with existing_ledger(ledger, policy) as opened:
        opened.freeze(holder, reason)
    click.echo(f"{holder}: frozen")


@click.command(cls=Command)
@_of_a_freeze
def unfreeze(reason: str, ledger: str | None, policy: Path | None, **whose: Any) -> None:
    """Allow the queries of frozen users again.

    Example:
      dpsql budget unfreeze --all-users --reason "checked" --policy clinic.toml
    """
    holder = _holder(**whose)
    with existing_ledger(ledger, policy) as opened:
        opened.unfreeze(holder, reason)
    click.echo(f"{holder} may run queries again")


def _holder(user: str | None, user_group: str | None, all_users: bool) -> Holder:
    named = [Holder(BudgetScope.USER, user)] if user is not None else []
    named += [Holder(BudgetScope.GROUP, user_group)] if user_group is not None else []
    named += [Holder(BudgetScope.ALL)] if all_users else []
    if len(named) != 1:
        raise click.UsageError("give one of --user NAME and --user-group NAME.")
    return named[0]


def _now(holder: Holder, policy: Policy, status: BudgetStatus) -> str:
    limit, left = status.limit, status.remaining
    return (
        f'the budget of {holder} for "{policy.dataset.name}" is epsilon {decimal_text(limit.epsilon)} and delta '
        f"{decimal_text(limit.delta)}, of which epsilon {decimal_text(left.epsilon, 4)} is left"
    )
