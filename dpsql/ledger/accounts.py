"""Who may ask: accounts, the groups they are in, and freezes of one, of a group or of all."""

from dpsql.errors import InvalidParameter, PolicyViolation
from dpsql.ledger.ledger import BudgetScope, Holder
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import Transaction
from dpsql.ledger.windows import moment, stamp

MAX_NAME = 63
"""Characters of a name, as in Postgres."""

_FAILURES = "failures"
"""The cause of a freeze that the gateway made."""

_RECORDS = {BudgetScope.USER: "account", BudgetScope.GROUP: "group", BudgetScope.ALL: "all"}
"""What the records call the subject of a freeze."""


def check_name(what: str, name: str) -> None:
    """Refuse what cannot name a user, a role or a group."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidParameter(
            f"{name!r} cannot be the name of a {what}", hint=f"use 1 to {MAX_NAME} printable characters"
        )


def check_reason(reason: str) -> None:
    """Refuse an act of the owner that gives no reason."""
    if not reason.strip():
        raise InvalidParameter(
            "the change needs a reason, which is recorded", hint='--reason "what happened, who asked"'
        )


def unknown(name: str) -> InvalidParameter:
    """Return the refusal of what concerns an account that is not there."""
    return InvalidParameter(f'the ledger has no account "{name}"', hint="`dpsql user list` shows the accounts")


def check_holder(connection: Store, holder: Holder) -> None:
    """Refuse a user or a group that the ledger does not know."""
    if holder.scope is BudgetScope.USER:
        query = "SELECT 1 FROM accounts WHERE name = ? AND removed = 0"
        if connection.execute(query, (holder.name,)).fetchone() is None:
            raise unknown(holder.name)
    if holder.scope is BudgetScope.GROUP:
        query = (
            "SELECT 1 FROM accounts WHERE user_group = ? "
            "UNION SELECT 1 FROM budgets WHERE scope = 'group' AND holder = ?"
        )
        if connection.execute(query, (holder.name, holder.name)).fetchone() is None:
            raise InvalidParameter(
                f'no user is or was in a group "{holder.name}"', hint="`dpsql user list` shows who is in which group"
            )


def active_account(transaction: Transaction, user: str) -> tuple[str, str | None]:
    """Return the role and the group of a user who may ask."""
    row = transaction.one("SELECT role, user_group FROM accounts WHERE name = ? AND removed = 0", user)
    if row is None:
        raise PolicyViolation(
            f'the ledger has no account "{user}"', hint="the data owner adds it: dpsql user add NAME --role ROLE"
        )
    role, group = row
    holders = [Holder(BudgetScope.ALL), Holder(BudgetScope.USER, user)] + (
        [] if group is None else [Holder(BudgetScope.GROUP, group)]
    )
    for holder in holders:
        cause = frozen_by(transaction.connection, holder)
        if cause is not None:
            raise _frozen(holder, cause)
    return role, group


def _frozen(holder: Holder, cause: str) -> PolicyViolation:
    who = {
        BudgetScope.USER: f'the account "{holder.name}" is frozen',
        BudgetScope.GROUP: f'the group "{holder.name}" is frozen',
        BudgetScope.ALL: "all accounts are frozen",
    }[holder.scope]
    why = ": too many of its queries failed while they read private data"
    return PolicyViolation(
        who + (why if cause == _FAILURES else " by the data owner"), hint="ask the data owner, who can unfreeze it"
    )


def frozen_by(connection: Store, holder: Holder) -> str | None:
    """Return the cause of a holder's own freeze; None if it is not frozen."""
    query = "SELECT cause FROM freezes WHERE scope = ? AND holder = ?"
    row = connection.execute(query, (holder.scope.value, holder.name)).fetchone()
    return None if row is None else str(row[0])


def freeze(transaction: Transaction, holder: Holder, reason: str) -> None:
    """Refuse what a user, a group's members or everybody asks from now on."""
    _check_freeze(transaction, holder, reason)
    if frozen_by(transaction.connection, holder) is not None:
        raise InvalidParameter(f"{holder} is frozen already", hint="dpsql budget history shows since when and why")
    transaction.append(f"{_RECORDS[holder.scope]}.frozen", {"name": holder.name, "reason": reason})


def unfreeze(transaction: Transaction, holder: Holder, reason: str) -> None:
    """Let them ask again."""
    _check_freeze(transaction, holder, reason)
    if frozen_by(transaction.connection, holder) is None and not _has_failed(transaction.connection, holder):
        raise InvalidParameter(f"{holder} is not frozen", hint="dpsql budget history shows who is")
    transaction.append(f"{_RECORDS[holder.scope]}.unfrozen", {"name": holder.name, "reason": reason})


def _check_freeze(transaction: Transaction, holder: Holder, reason: str) -> None:
    check_reason(reason)
    check_holder(transaction.connection, holder)


def freeze_after_failures(transaction: Transaction, user: str, most: int) -> None:
    """Freeze a user of whom so many queries have failed on private data."""
    row = transaction.one("SELECT failures FROM accounts WHERE name = ?", user)
    if row is not None and row[0] >= most and frozen_by(transaction.connection, Holder(BudgetScope.USER, user)) is None:
        transaction.append("account.frozen", {"name": user})


def _has_failed(connection: Store, holder: Holder) -> bool:
    """Return whether a user's reads have failed, or may have: that narrows what the user may ask."""
    query = "SELECT failures FROM accounts WHERE name = ? UNION ALL SELECT 1 FROM reads WHERE reader = ?"
    rows = connection.execute(query, (holder.name, holder.name)).fetchall()
    return holder.scope is BudgetScope.USER and any(count > 0 for (count,) in rows)


def set_group(transaction: Transaction, name: str, group: str | None) -> None:
    """Put a user into a group, or into none."""
    if group is not None:
        check_name("group", group)
    row = transaction.one("SELECT user_group FROM accounts WHERE name = ? AND removed = 0", name)
    if row is None:
        raise unknown(name)
    if row[0] == group:
        raise InvalidParameter(f'user "{name}" is in ' + ("no group" if group is None else f'group "{group}"'))
    transaction.append("account.group", {"name": name, "group": group})


CLOCK_CONFIRMED = "clock.confirmed"
"""Kind of the record."""


def confirm_clock(transaction: Transaction, reason: str) -> None:
    """Let the ledger's time go on from what the machine's clock says, far ahead of the ledger's last record.

    A read that is open keeps at least the time that it had left: it has not ended because the time jumped.

    Raises:
        InvalidParameter: No reason, or the clock is believed already.
    """
    check_reason(reason)
    if not transaction.held:
        raise InvalidParameter(
            "the clock is not far ahead of the ledger's last record: there is nothing to confirm",
            hint="`dpsql ledger clock` shows both",
        )
    before = transaction.now
    (until,) = transaction.one("SELECT max(until) FROM reads")
    transaction.believe_clock()
    body = {"scope": BudgetScope.ALL.value, "name": "", "reason": reason}
    if until is not None:
        body["reads_until"] = stamp(transaction.now + (moment(until) - before))
    transaction.append(CLOCK_CONFIRMED, body)
