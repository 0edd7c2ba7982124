"""The ledger: accounts, budgets, spending and released cells."""

import os
import re
from contextlib import closing
from pathlib import Path

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.model import (
    Account,
    BoundDrop,
    BudgetScope,
    BudgetStatus,
    Charge,
    ChargeRecord,
    ClockStatus,
    GrantedRelease,
    GroupBalance,
    HandedRelease,
    Holder,
    Noted,
    NotHeld,
    OwnerRecord,
    Reading,
    ReleaseRecord,
    ReleaseRequest,
    UserBudgets,
    VerifyReport,
)
from dpsql.ledger.sqlite import SqliteLedger, no_ledger
from dpsql.ledger.sqlite_backup import backup
from dpsql.ledger.sqlite_migration import Migration, migrate
from dpsql.policy import Policy

__all__ = [
    "Account",
    "BoundDrop",
    "BudgetScope",
    "BudgetStatus",
    "Charge",
    "ChargeRecord",
    "ClockStatus",
    "GrantedRelease",
    "GroupBalance",
    "HandedRelease",
    "Holder",
    "Ledger",
    "Migration",
    "NotHeld",
    "Noted",
    "OwnerRecord",
    "Reading",
    "ReleaseRecord",
    "ReleaseRequest",
    "SqliteLedger",
    "UserBudgets",
    "VerifyReport",
    "backup",
    "check_anchor",
    "copy_ledger",
    "default_ledger",
    "is_file",
    "ledger_file",
    "migrate",
    "open_ledger",
]

_PREFIX = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_HINT = (
    "Write: sqlite:///ledger.sqlite for a relative path, sqlite:////var/lib/dpsql/ledger.sqlite for an absolute one, "
    "or postgresql://dpsql_gateway@host/ledger"
)


def open_ledger(url: str, *, make: bool = True) -> Ledger:
    """Return the ledger that a URL names.

    Args:
        url: sqlite:///PATH, or postgresql://… as libpq reads it.
        make: Whether it is made if there is none.

    Raises:
        InvalidParameter: The URL names no kind of ledger that dpsql has.
        LedgerUnavailable: What is there cannot be a ledger, or not now; or nothing is, and none is to be made.
    """
    if not is_file(url):
        from dpsql.ledger.postgres import PostgresLedger  # psycopg, which a ledger in a file does without

        return PostgresLedger(url, make=make)
    return SqliteLedger(ledger_file(url), make=make)


def copy_ledger(source: str, target: str) -> VerifyReport:
    """Copy the ledger that a URL names to another URL, where there is none or an empty one; verify the copy.

    Raises:
        InvalidParameter: A URL names no kind of ledger, or the target has records.
        LedgerUnavailable: One of them cannot be used, or the source is not whole.
    """
    with closing(open_ledger(source, make=False)) as old, closing(open_ledger(target)) as new:
        return new.fill(old)


def default_ledger(policy: Policy) -> str:
    """Return the URL of the ledger next to a policy."""
    return f"sqlite:///{policy.path.resolve().parent / 'dpsql-ledger.sqlite'}"


def is_file(url: str) -> bool:
    """Return False for the URL of a ledger in PostgreSQL; that of another kind is refused when it is opened."""
    return not url.startswith(_POSTGRES)


def ledger_file(url: str, *, make: bool = True) -> Path:
    """Return the file of the ledger that a URL names.

    Raises:
        InvalidParameter: The URL names no kind of ledger that dpsql has, or one that is in no file.
        LedgerUnavailable: There is no such file, and none is to be made.
    """
    if not is_file(url):
        raise InvalidParameter(
            "this command is for a ledger in a file, and this one is in PostgreSQL",
            hint="dpsql ledger copy sqlite:///copy.sqlite; or pg_dump --schema=dpsql_ledger --file=ledger.sql URL",
        )
    path = url.removeprefix(_PREFIX)
    if not url.startswith(_PREFIX) or not path or path.endswith("/") or path.startswith(":memory:") or "\0" in path:
        # Neither the scheme nor the path is repeated: a URL may hold a password.
        raise InvalidParameter("this is not the URL of a ledger", hint=_HINT)
    file = Path(path)
    if not make and not file.exists():
        raise no_ledger(file, url)
    return file


def check_anchor(path: Path, ledger: Ledger, *, make: bool) -> None:
    """Refuse a ledger that lacks the record that an anchor names, and note its last record in the anchor.

    An anchor is a file in another place that names the ledger's last record, as `verify` prints it. A ledger without
    that record is an older copy, a new one, or was cut short: what it forgot could be spent again.

    Args:
        path: The anchor.
        ledger: The ledger.
        make: Whether the anchor is made if there is none.

    Raises:
        LedgerUnavailable: The record is not there, or there is no anchor, or it names no record.
        OSError: The anchor cannot be read or written.
    """
    if path.exists():
        ledger.check(_read(path))
    elif not make:
        raise LedgerUnavailable(
            f'there is no anchor "{path}"',
            hint="Put it back. If there never was one, start once with --init-ledger, which makes it.",
        )
    _write(path, ledger)


def _write(path: Path, ledger: Ledger) -> None:
    head = ledger.head()
    draft = path.with_name(f".{path.name}.partial")
    with draft.open("w", encoding="ascii") as file:
        file.write(f"{head.records} {head.head}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _read(path: Path) -> Noted:
    found = re.fullmatch(rb"(\d{1,18}) ([0-9a-f]{64})\n", path.read_bytes())
    if found is None:
        raise LedgerUnavailable(
            f'"{path}" is no anchor: it does not hold a number of records and a hash',
            hint="Write what `dpsql ledger verify` printed last: 1204 9d3f…e1f0",
        )
    return Noted(found[2].decode(), int(found[1]))
