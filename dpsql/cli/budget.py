"""`dpsql budget`: what was spent, what is left and who spent it; for the data owner."""

from collections.abc import Iterable
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import click

from dpsql.cli.budget_changes import freeze, grant, lower, reset, unfreeze
from dpsql.cli.command import Group
from dpsql.cli.compare import Comparison, compared, comparing
from dpsql.cli.exact import exact_lines
from dpsql.cli.options import existing_ledger, finding_ledger, ledger_option
from dpsql.errors import InvalidParameter
from dpsql.gateway.system_relations import RESETS_ADD_UP, WINDOWS_ADD_UP
from dpsql.gateway.text_table import table_lines
from dpsql.ledger import BudgetScope, BudgetStatus, ChargeRecord, Holder, Ledger, OwnerRecord
from dpsql.ledger.profiles import profiles_loss
from dpsql.policy import Policy, load_policy
from dpsql.privacy.accounting import Spent, group_privacy
from dpsql.privacy.conversion import decimal_text
from dpsql.privacy.cost import Event

_COLUMNS = (
    *("budget of", "accountant", "epsilon", "spent", "left", "delta", "for keys, left", "queries", "renews"),
    "resets",
)
_GROUP_COLUMNS = ("epsilon for {k}", "delta for {k}")
_NONE = Fraction(0)
_PROFILE_COLUMNS = ("epsilon with profiles", "delta with profiles")


@click.group(cls=Group, commands=[grant, lower, reset, freeze, unfreeze])
def budget() -> None:
    """Show budgets and what they were spent on, and change them.

    Example:
      dpsql budget show --policy clinic.toml
    """


@budget.command()
@click.option("--policy", required=True, metavar="POLICY", type=click.Path(path_type=Path), help="Whose budgets.")
@click.option("--user", metavar="NAME", help="Only this user's.")
@click.option("--user-group", metavar="NAME", help="Only the shared budget of this group of users.")
@click.option(
    "--group", metavar="K", type=click.IntRange(1, 10**6), help="Also show the guarantee for K units together."
)
@comparing
@ledger_option
def show(
    policy: Path,
    user: str | None,
    user_group: str | None,
    group: int | None,
    compare: bool,
    delta: Fraction | None,
    plot: Path | None,
    ledger: str | None,
) -> None:
    """Show each user's budget, those that groups of users share, and the cap over all users.

    Under zcdp, "spent" is the share of the budget that is spent, times epsilon. What is left of the cap is shown to the
    data owner only, never to users.

    --compare reports what the same queries would amount to under other analyses, and --plot draws it for the budget
    shown last: all users together, or the one named. These reports limit no query.

    Example:
      dpsql budget show --policy clinic.toml --group 4
      dpsql budget show --policy clinic.toml --user ana --compare --plot ana.png
    """
    loaded = load_policy(policy)
    with existing_ledger(ledger, policy) as opened:
        statuses = _statuses(opened, loaded, user, user_group)
        exact = list(exact_lines(opened, loaded.dataset.name))
        held = opened.clock_status().held
        profiles = profiles_loss(opened, loaded)
        report = list(compared(opened, statuses, Comparison(compare, delta, group, plot)))
    rows = [_row(name, status, group) for name, status in statuses]
    names = _COLUMNS + (() if group is None else tuple(name.format(k=group) for name in _GROUP_COLUMNS))
    if any(profiles):
        names += _PROFILE_COLUMNS
        # The cap, which comes last where all are shown, is charged for them already.
        shown = [(*profiles, status) for _, status in statuses]
        if user is None and user_group is None:
            shown[-1] = (_NONE, _NONE, statuses[-1][1])
        rows = [row + _with(*each) for row, each in zip(rows, shown, strict=True)]
    click.echo("\n".join(table_lines(names, rows, right=(2, 3, 4, 5, 6, 7, 9, *range(10, len(names))))))
    if len(statuses) > 1 and any(status.limit.accountant.shares_rho for _, status in statuses):
        click.echo(
            "Spent is the used share of each budget times its epsilon: a charge is a smaller share of a larger budget, "
            "so all users can show less than one user."
        )
    if any(profiles):
        click.echo(
            "A budget bounds what answers reveal beyond the policy and its profiles. The cap pays for profiles, too."
        )
    if any(status.window is not None for _, status in statuses):
        click.echo(f"A budget that renews bounds one window: {WINDOWS_ADD_UP}. The cap never renews.")
    if any(status.resets for _, status in statuses):
        click.echo(f"A budget that was reset bounds what came after: {RESETS_ADD_UP}. The cap counts both.")
    if held:
        click.echo("warning: this machine's clock is ahead of the ledger, so no budget renews; see: dpsql ledger clock")
    for line in (*exact, *report):
        click.echo(line)


def _statuses(
    ledger: Ledger, policy: Policy, user: str | None, user_group: str | None
) -> list[tuple[str, BudgetStatus]]:
    if user_group is not None:
        if policy.group(user_group) is None:
            raise InvalidParameter(
                f'"{policy.dataset.name}" has no group "{user_group}"', hint=f"dpsql policy show {policy.path}"
            )
        return [(f"group {user_group}", ledger.group_budget(user_group, policy))]
    users = [account.name for account in ledger.accounts() if policy.role(account.role) is not None]
    if user is not None:
        if user not in users:
            raise InvalidParameter(
                f'"{user}" has no budget for "{policy.dataset.name}"', hint="dpsql user list shows the users."
            )
        return [(user, ledger.budget(user, policy))]
    return [
        *((name, ledger.budget(name, policy)) for name in users),
        *((f"group {group.name}", ledger.group_budget(group.name, policy)) for group in policy.groups),
        ("all users", ledger.cap(policy)),
    ]


def _row(name: str, status: BudgetStatus, group: int | None) -> list[str | None]:
    limit, left = status.limit, status.remaining
    row = [
        name,
        limit.accountant.value,
        decimal_text(limit.epsilon),
        decimal_text(limit.epsilon - left.epsilon, 4),
        decimal_text(left.epsilon, 4),
        decimal_text(limit.delta),
        decimal_text(left.delta),
        str(status.charges),
        _moment(status.window_end),
        str(status.resets),
    ]
    if group is not None:
        row += [decimal_text(value, 4) for value in group_privacy(limit, group)]
    return row


def _with(epsilon: Fraction, delta: Fraction, status: BudgetStatus) -> list[str | None]:
    """The (ε, δ) of profiles and of a budget together."""
    return [decimal_text(status.limit.epsilon + epsilon, 4), decimal_text(status.limit.delta + delta, 4)]


@budget.command()
@click.option("--user", metavar="NAME", help="Only this user's.")
@finding_ledger
def history(user: str | None, ledger: str | None, policy: Path | None) -> None:
    """List the charges with their queries, and what the owner changed with the reasons, oldest first.

    Queries are shown with their original text, including constants.

    Example:
      dpsql budget history --user ana --policy clinic.toml
    """
    with existing_ledger(ledger, policy) as opened:
        lines = {record.id: _charge(record) for record in opened.history(user)}
        lines |= {record.id: _change(record) for record in opened.owner_history() if _concerns(record, user)}
    rows = [lines[number] for number in sorted(lines)]
    names = ("record", "at", "user", "dataset", "rho", "epsilon, if pure", "delta", "what", "query or reason")
    click.echo("\n".join(table_lines(names, rows, right=(0, 4, 5, 6))))


def _concerns(record: OwnerRecord, user: str | None) -> bool:
    """Whether a change is of this user: by name, or as one of all."""
    return user is None or record.holder in (Holder(BudgetScope.ALL), Holder(BudgetScope.USER, user))


def _charge(record: ChargeRecord) -> list[str | None]:
    what = ("charge", _line(record.sql))
    return [str(record.id), _moment(record.at), record.user, record.dataset, *_prices(record.price), *what]


def _prices(events: Iterable[Event]) -> list[str | None]:
    spent = Spent.zero().add(events)
    return [decimal_text(value, 4) for value in (spent.rho, spent.pure_epsilon, spent.delta)]


def _change(record: OwnerRecord) -> list[str | None]:
    holder = record.holder
    who = holder.name if holder.scope is BudgetScope.USER else str(holder)
    prices = _prices(record.price) if record.price else [None, None, None]
    by = "" if record.epsilon is None else f"by epsilon {decimal_text(record.epsilon)}, "
    by += "" if not record.delta else f"delta {decimal_text(record.delta)}, "
    why = _line(by + record.reason)
    return [str(record.id), _moment(record.at), who, record.dataset, *prices, record.kind, why]


def _line(text: str) -> str:
    return " ".join(text.split())


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(sep=" ", timespec="seconds")
