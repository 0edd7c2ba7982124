"""opening: `connect`: a policy's database, its ledger and a user, in this process."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from dpsql.backends import open_backend
from dpsql.dbapi.connection import Connection
from dpsql.errors import InvalidParameter, PolicyViolation
from dpsql.gateway.engine import Engine
from dpsql.ledger import Ledger, default_ledger, open_ledger
from dpsql.ledger.accounts import check_name
from dpsql.policy import Policy, load_policy


def connect(
    policy: str | Path,
    *,
    user: str,
    role: str | None = None,
    ledger: str | None = None,
    epsilon: float | str | None = None,
    delta: float | str | None = None,
    mechanism: str | None = None,
    target_error: float | str | None = None,
) -> Connection:
    """Open a policy's database for one user, in this process.

    Args:
        policy: Path of the policy file.
        user: Who asks; a user the ledger does not know is added, unless the connection is refused.
        role: The role such a user gets; not needed where the policy has one only.
        ledger: URL of the ledger; by default dpsql-ledger.sqlite next to the policy.
        epsilon: Price of a query, instead of the role's.
        delta: δ for private group keys, instead of the role's.
        mechanism: "auto", "laplace" or "gaussian".
        target_error: Error of answers, such as "5 %" or 50: the smallest price that meets it is charged.

    Raises:
        InvalidPolicy: The policy or its database is not usable.
        LedgerUnavailable: The ledger is not usable.
        InvalidParameter: A setting is out of range.
    """
    settings = {"epsilon": epsilon, "delta": delta, "mechanism": mechanism, "target_error": target_error}
    connection = open_connection(policy, user, role, ledger, {f"dpsql.{name}": v for name, v in settings.items()})
    with ExitStack() as opened:
        opened.callback(connection.close)
        connection.engine.ledger.add_expected(user)
        opened.pop_all()
    return connection


def open_connection(
    policy: str | Path, user: str, role: str | None, ledger: str | None, settings: Mapping[str, object]
) -> Connection:
    """Open a connection as `connect` does, but add a new user only with the first charge.

    Args:
        policy: Path of the policy file.
        user: Who asks.
        role: The role of a new user.
        ledger: URL of the ledger.
        settings: Settings by their names; None leaves a setting unchanged.
    """
    _check_texts(policy=str(policy) if isinstance(policy, Path) else policy, user=user, role=role, ledger=ledger)
    loaded = load_policy(Path(policy))
    with ExitStack() as opened:
        kept = open_ledger(ledger if ledger is not None else default_ledger(loaded))
        opened.callback(kept.close)
        is_new = _expect_user(kept, loaded, user, role)
        engine = Engine(loaded, kept, open_backend(loaded))
        opened.callback(engine.close)
        connection = Connection(engine, user, new_user=is_new)
        opened.pop_all()
        opened.callback(connection.close)
        connection.configure({name: value for name, value in settings.items() if value is not None})
        opened.pop_all()
    return connection


def _check_texts(**given: object) -> None:
    for name, value in given.items():
        if not (isinstance(value, str) or (value is None and name in ("role", "ledger"))):
            raise InvalidParameter(f"{name} is a text, not {type(value).__name__}", hint=f'connect(…, {name}="…")')


def _expect_user(ledger: Ledger, policy: Policy, user: str, role: str | None) -> bool:
    """Have the ledger expect a user it does not know; returns whether it does not."""
    check_name("user", user)
    if ledger.account(user) is not None:
        return False
    names = [known.name for known in policy.roles]
    hint = f"connect(…, role=…), or --role in a shell, with one of: {', '.join(names)}"
    if role is None and len(names) > 1:
        raise PolicyViolation(f'user "{user}" is new and needs a role', hint=hint)
    if role is not None and role not in names:
        raise PolicyViolation(f'the policy has no role "{role}"', hint=hint)
    ledger.expect(user, role if role is not None else names[0])
    return True
