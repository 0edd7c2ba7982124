"""The ledger: who may ask, what was spent, and what was released."""

from pathlib import Path

from dpsql.errors import InvalidParameter
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
    ReleaseRecord,
    ReleaseRequest,
    Scope,
    UserBudgets,
    VerifyReport,
)
from dpsql.ledger.migration import Migration, migrate
from dpsql.ledger.sqlite import SqliteLedger

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
    "ReleaseRecord",
    "ReleaseRequest",
    "Scope",
    "SqliteLedger",
    "UserBudgets",
    "VerifyReport",
    "backup",
    "ledger_file",
    "migrate",
    "open_ledger",
]

_PREFIX = "sqlite:///"
_HINT = "use sqlite:///ledger.sqlite for a path from here, or sqlite:////var/lib/dpsql/ledger.sqlite"


def open_ledger(url: str) -> Ledger:
    """Return the ledger that a URL names, made if there is none yet.

    Raises:
        InvalidParameter: The URL names no kind of ledger that dpsql has.
        LedgerUnavailable: The file cannot be a ledger, or not now.
    """
    return SqliteLedger(ledger_file(url))


def ledger_file(url: str) -> Path:
    """Return the file of the ledger that a URL names.

    Raises:
        InvalidParameter: The URL names no kind of ledger that dpsql has.
    """
    if url.startswith(("postgresql:", "postgres:")):
        raise InvalidParameter("a ledger in Postgres is not available yet", hint=_HINT)
    path = url.removeprefix(_PREFIX)
    if not url.startswith(_PREFIX) or not path or path.endswith("/") or path.startswith(":memory:") or "\0" in path:
        # Neither the scheme nor the path is repeated: a URL may hold a password.
        raise InvalidParameter("the ledger's URL names no ledger file", hint=_HINT)
    return Path(path)
