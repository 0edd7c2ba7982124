"""Accounts, groups and freezes: who may run queries, and who is frozen."""

from dpsql.errors import InvalidParameter, PolicyViolation
from dpsql.ledger.chain import sha256
from dpsql.ledger.model import Account, BudgetScope, Holder
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import Transaction, moment, stamp

MAX_NAME = 63
"""Characters of a name, as in Postgres."""

_FAILURES = "failures"
"""The cause of a freeze that the gateway made."""

_RECORDS = {BudgetScope.USER: "account", BudgetScope.GROUP: "group", BudgetScope.ALL: "all"}
"""What the records call the subject of a freeze."""


def check_name(what: str, name: str) -> None:
    """Refuse an invalid name of a user, a role or a group."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidParameter(
            f"{name!r} cannot be the name of a {what}", hint=f"Use 1 to {MAX_NAME} printable characters."
        )


def check_reason(reason: str) -> None:
    """Refuse an act of the owner that gives no reason."""
    if not reason.strip():
        raise InvalidParameter(
            "a reason is required; it is recorded in the ledger", hint='Write: --reason "what happened, who asked"'
        )


def unknown(name: str) -> InvalidParameter:
    """Return the error for an unknown account."""
    return InvalidParameter(f'the ledger has no account "{name}"', hint="`dpsql user list` shows the accounts.")


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
                f'no user is or was in a group "{holder.name}"', hint="`dpsql user list` shows who is in which group."
            )


def active_account(transaction: Transaction, user: str) -> tuple[str, str | None]:
    """Return the role and the group of a user who may ask."""
    row = transaction.one("SELECT role, user_group FROM accounts WHERE name = ? AND removed = 0", user)
    if row is None:
        raise PolicyViolation(
            f'the ledger has no account "{user}"', hint="The data owner adds it: dpsql user add NAME --role ROLE"
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
        who + (why if cause == _FAILURES else " by the data owner"), hint="Ask the data owner, who can unfreeze it."
    )


def frozen_by(connection: Store, holder: Holder) -> str | None:
    """Return the cause of a holder's own freeze; None if it is not frozen."""
    query = "SELECT cause FROM freezes WHERE scope = ? AND holder = ?"
    row = connection.execute(query, (holder.scope.value, holder.name)).fetchone()
    return None if row is None else str(row[0])


def freeze(transaction: Transaction, holder: Holder, reason: str) -> None:
    """Freeze a user, a group or all users: their queries are refused from now on."""
    _check_freeze(transaction, holder, reason)
    if frozen_by(transaction.connection, holder) is not None:
        raise InvalidParameter(f"{holder} is frozen already", hint="`dpsql budget history` shows since when, and why.")
    transaction.append(f"{_RECORDS[holder.scope]}.frozen", {"name": holder.name, "reason": reason})


def unfreeze(transaction: Transaction, holder: Holder, reason: str) -> None:
    """Unfreeze a user, a group, or all users."""
    _check_freeze(transaction, holder, reason)
    if frozen_by(transaction.connection, holder) is None and not _has_failed(transaction.connection, holder):
        raise InvalidParameter(f"{holder} is not frozen", hint="`dpsql budget history` shows who is.")
    transaction.append(f"{_RECORDS[holder.scope]}.unfrozen", {"name": holder.name, "reason": reason})


def _check_freeze(transaction: Transaction, holder: Holder, reason: str) -> None:
    check_reason(reason)
    check_holder(transaction.connection, holder)


def freeze_after_failures(transaction: Transaction, user: str, most: int) -> None:
    """Freeze a user once `most` of the user's queries have failed on private data."""
    row = transaction.one("SELECT failures FROM accounts WHERE name = ?", user)
    if row is not None and row[0] >= most and frozen_by(transaction.connection, Holder(BudgetScope.USER, user)) is None:
        transaction.append("account.frozen", {"name": user})


def _has_failed(connection: Store, holder: Holder) -> bool:
    """Return whether reads of a user have failed or may have failed, which limits further queries."""
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


def add_account(transaction: Transaction, name: str, role: str, verifier: str | None, group: str | None) -> None:
    """Add a user; a name used before comes back with its history and its spent budgets, but not in its group."""
    check_name("user", name)
    check_name("role", role)
    if _is_there(transaction, name):
        raise InvalidParameter(f'the account "{name}" exists', hint="Choose another name, or remove it first.")
    transaction.append("account.added", {"name": name, "role": role, "verifier": _digest(verifier)})
    _put_verifier(transaction, name, verifier)
    if group is not None:
        set_group(transaction, name, group)


def ensure_account(transaction: Transaction, name: str, role: str) -> None:
    """Add a user without a password, unless the ledger has the user."""
    if not _is_there(transaction, name):
        add_account(transaction, name, role, None, None)


def set_verifier(transaction: Transaction, name: str, verifier: str | None) -> None:
    """Change a user's SCRAM verifier."""
    _require(transaction, name)
    transaction.append("account.verifier", {"name": name, "verifier": _digest(verifier)})
    _put_verifier(transaction, name, verifier)


def end_sessions(transaction: Transaction, name: str) -> None:
    """Record a user's verifier once more, which ends the user's sessions as a change of it does."""
    _require(transaction, name)
    (digest,) = transaction.one("SELECT verifier_digest FROM accounts WHERE name = ?", name)
    transaction.append("account.verifier", {"name": name, "verifier": digest})


def set_role(transaction: Transaction, name: str, role: str) -> None:
    """Change a user's role."""
    check_name("role", role)
    _require(transaction, name)
    transaction.append("account.role", {"name": name, "role": role})


def remove_account(transaction: Transaction, name: str) -> None:
    """Remove a user."""
    _require(transaction, name)
    transaction.append("account.removed", {"name": name})
    _put_verifier(transaction, name, None)


def _is_there(transaction: Transaction, name: str) -> bool:
    return transaction.one("SELECT 1 FROM accounts WHERE name = ? AND removed = 0", name) is not None


def _require(transaction: Transaction, name: str) -> None:
    if not _is_there(transaction, name):
        raise unknown(name)


def _digest(verifier: str | None) -> str | None:
    """Return the digest of a verifier for the records; these are exported, so they must not contain the verifier."""
    return None if verifier is None else sha256(verifier)


def _put_verifier(transaction: Transaction, name: str, verifier: str | None) -> None:
    transaction.connection.execute("DELETE FROM verifiers WHERE name = ?", (name,))
    if verifier is not None:
        transaction.connection.execute("INSERT INTO verifiers VALUES (?, ?)", (name, verifier))


_ACCOUNT = (
    "SELECT a.name, a.role, v.verifier, EXISTS (SELECT 1 FROM freezes f WHERE f.scope = 'all' "
    "OR f.scope = 'user' AND f.holder = a.name OR f.scope = 'group' AND f.holder = a.user_group), a.created, "
    "a.user_group FROM accounts a LEFT JOIN verifiers v ON v.name = a.name WHERE a.removed = 0"
)


def find_account(connection: Store, name: str) -> Account | None:
    """Return a user, or None if there is none of that name."""
    row = connection.execute(f"{_ACCOUNT} AND a.name = ?", (name,)).fetchone()
    return None if row is None else _account(row)


def list_accounts(connection: Store) -> tuple[Account, ...]:
    """Return all users by name."""
    return tuple(map(_account, connection.execute(f"{_ACCOUNT} ORDER BY a.name")))


def _account(row: tuple[str, str, str | None, int, str, str | None]) -> Account:
    name, role, verifier, frozen, created, group = row
    return Account(name, role, verifier, bool(frozen), moment(created), group)


CLOCK_CONFIRMED = "clock.confirmed"
"""Kind of the record."""


def confirm_clock(transaction: Transaction, reason: str) -> None:
    """Accept the machine's clock although it is far ahead of the ledger's last record.

    A read that is open keeps at least the time that it had left: it has not ended because the time jumped.

    Raises:
        InvalidParameter: No reason, or the clock is believed already.
    """
    check_reason(reason)
    if not transaction.held:
        raise InvalidParameter(
            "the clock is not far ahead of the ledger's last record: there is nothing to confirm",
            hint="`dpsql ledger clock` shows both.",
        )
    before = transaction.now
    (until,) = transaction.one("SELECT max(until) FROM reads")
    transaction.believe_clock()
    body = {"scope": BudgetScope.ALL.value, "name": "", "reason": reason}
    if until is not None:
        body["reads_until"] = stamp(transaction.now + (moment(until) - before))
    transaction.append(CLOCK_CONFIRMED, body)
