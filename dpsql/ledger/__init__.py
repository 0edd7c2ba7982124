"""The ledger: who may ask, what was spent, and what was released."""

from contextlib import closing
from pathlib import Path

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.backup import backup
from dpsql.ledger.ledger import (
    Account,
    BudgetStatus,
    Charge,
    ChargeRecord,
    GrantedRelease,
    GroupBalance,
    Holder,
    Ledger,
    Noted,
    OwnerRecord,
    PaidRelease,
    ReleaseRecord,
    ReleaseRequest,
    Scope,
    UserBudgets,
    VerifyReport,
)
from dpsql.ledger.migration import Migration, migrate
from dpsql.ledger.postgres import PostgresLedger
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.ledger.stored import StoredLedger

__all__ = [
    "Account",
    "BudgetStatus",
    "Charge",
    "ChargeRecord",
    "GrantedRelease",
    "GroupBalance",
    "Holder",
    "Ledger",
    "Migration",
    "Noted",
    "OwnerRecord",
    "PaidRelease",
    "PostgresLedger",
    "ReleaseRecord",
    "ReleaseRequest",
    "Scope",
    "SqliteLedger",
    "UserBudgets",
    "VerifyReport",
    "backup",
    "copy_ledger",
    "is_file",
    "ledger_file",
    "migrate",
    "open_ledger",
]

_PREFIX = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_HINT = (
    "use sqlite:///ledger.sqlite for a path from here, sqlite:////var/lib/dpsql/ledger.sqlite, or for several gateways "
    "postgresql://dpsql_gateway@host/ledger"
)


def open_ledger(url: str, *, make: bool = True) -> StoredLedger:
    """Return the ledger that a URL names.

    Args:
        url: sqlite:///PATH, or postgresql://… as libpq reads it.
        make: Whether it is made if there is none.

    Raises:
        InvalidParameter: The URL names no kind of ledger that dpsql has.
        LedgerUnavailable: What is there cannot be a ledger, or not now; or nothing is, and none is to be made.
    """
    if not is_file(url):
        return PostgresLedger(url, make=make)
    return SqliteLedger(ledger_file(url, make=make))


def copy_ledger(source: str, target: str) -> VerifyReport:
    """Copy the ledger that a URL names to another URL, where there is none or an empty one; verify the copy.

    Raises:
        InvalidParameter: A URL names no kind of ledger, or the target has records.
        LedgerUnavailable: One of them cannot be used, or the source is not whole.
    """
    with closing(open_ledger(source, make=False)) as old, closing(open_ledger(target)) as new:
        return new.fill(old)


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
        raise InvalidParameter("the ledger's URL names no ledger", hint=_HINT)
    file = Path(path)
    if not make and not file.exists():
        raise LedgerUnavailable(f'there is no ledger "{file}"', hint="Name the one that `dpsql serve` was given.")
    return file
