"""A budget for exactly so many answers, and what no fault may break."""

from collections.abc import Collection
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from dpsql.ledger import Ledger, SqliteLedger
from dpsql.policy import Policy, load_policy
from dpsql.privacy.accounting import Spent
from dpsql.wire.scram import make_verifier

L = TypeVar("L", bound=Ledger)

PRICE = Fraction(1, 10)
PASSWORD = "secret"

_POLICY = """
version = 1

[dataset]
name = "clinic"
url = "duckdb:///{data}"
privacy_unit = "patient"
budget = {{ epsilon = {cap}, accountant = "pure" }}

[roles.analyst]
budget = {{ epsilon = {budget}, accountant = "pure" }}
query = {{ epsilon = 0.1, max_epsilon = 1 }}

[tables.patients]
unit_key = "patient_id"
max_rows = 1
[tables.patients.columns]
age = {{ type = "integer", lower = 0, upper = 110 }}
sex = {{ type = "text", values = ["F", "M", "X"] }}
weight = {{ type = "double", lower = 1, upper = 300, step = 0.1 }}
"""


def write_policy(path: Path, data: Path, *, answers: int, cap: int = 10_000) -> Path:
    """Write a policy: a user's budget is for exactly so many answers, that of all users together for the cap."""
    text = _POLICY.format(data=data, budget=float(answers * PRICE), cap=float(cap * PRICE))
    path.write_text(text, encoding="utf-8")
    return path


def new_ledger(path: Path, users: Collection[str] = ("ana",)) -> SqliteLedger:
    """Return a ledger in a file, in which the users have a password."""
    return with_passwords(SqliteLedger(path), users)


def with_passwords(ledger: L, users: Collection[str] = ("ana",)) -> L:
    """Add users who have a password."""
    for user in users:
        ledger.add_account(user, "analyst", make_verifier(PASSWORD))
    return ledger


def question(number: int) -> str:
    """Return a query of its own for each number; all have one price."""
    return f"SELECT COUNT(*) FROM patients WHERE age > {number % 100} AND weight > {number // 100}"


def charges(ledger: Ledger, policy: Path | Policy, users: Collection[str] = ("ana",)) -> list[str]:
    """Return the queries that were charged, once the ledger has been found to hold.

    Its records and balances agree, what each user has spent is the sum of that user's charges, what the cap has is the
    sum of all, and no limit is exceeded. Nobody has been handed another's release.
    """
    rules = policy if isinstance(policy, Policy) else load_policy(policy)
    report = ledger.verify()
    assert report.ok, report.problems
    history = ledger.history()
    assert {record.user for record in history} <= set(users)
    total = Fraction(0)
    for user in users:
        own = Spent.zero()
        for record in history:
            own = own.add(record.price) if record.user == user else own
        status = ledger.budget(user, rules)
        assert status.spent == own
        assert own.pure_epsilon is not None
        assert own.pure_epsilon <= status.limit.epsilon
        assert own.pure_epsilon == PRICE * sum(record.user == user for record in history)
        total += own.pure_epsilon
    cap = ledger.cap(rules)
    assert cap.spent.pure_epsilon == total <= cap.limit.epsilon
    return [record.sql for record in history]
