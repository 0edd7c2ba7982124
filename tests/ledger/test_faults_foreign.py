"""A ledger that another hand wrote numbers into: typed refusals, in finite time, and nothing is charged."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import LedgerUnavailable
from dpsql.ledger import SqliteLedger
from dpsql.ledger.chain import canonical, digest
from tests.ledger.world import SQL, charge_only, new_ledger, policy, requests

Open = Callable[[], SqliteLedger]

POLICY = policy()
NUMBERS: list[Any] = [
    *("nan", "Infinity", "-1", "1e308", "1e-400", "5e-324", "1e999999999", "1/0", "0.1", "", "9" * 5000),
    *(None, True, 0.1, [], {}),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger in which ana was charged once."""
    path = tmp_path / "ledger.sqlite"
    ledger = new_ledger(path)
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.close()
    return path


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the last record says, with a hash that fits, and leave the tables as they should be."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        seq, at, kind, body, previous = connection.execute(
            "SELECT seq, at, kind, body, previous FROM records ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        changed = json.loads(body)
        change(changed)
        text = canonical(changed)
        connection.execute(
            "UPDATE records SET body = ?, hash = ? WHERE seq = ?", (text, digest(seq, at, kind, text, previous), seq)
        )
        for _, sql in triggers:
            connection.execute(sql)


def overwrite(path: Path, table: str, column: str, value: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    """Open the ledger when a test has changed it."""
    ledgers: list[SqliteLedger] = []

    def open_now() -> SqliteLedger:
        ledgers.append(SqliteLedger(path))
        return ledgers[-1]

    yield open_now
    for ledger in ledgers:
        ledger.close()


@pytest.mark.parametrize("field", ["scale", "delta", "conversion_delta", "l0", "linf", "l1", "l2_squared", "mechanism"])
def test_verify_says_which_record_has_an_event_that_is_none(path: Path, opened: Open, field: str) -> None:
    ledger = opened()
    for number in NUMBERS:

        def change(body: dict[str, Any], number: object = number) -> None:
            body["releases"][0]["events"][0][field] = number

        forge(path, change)
        (problem,) = ledger.verify().problems
        assert "has an invalid body" in problem, number


@pytest.mark.parametrize(
    ("table", "column", "field"),
    [("budgets", "spent", "rho"), ("budgets", "spent", "delta"), ("terms", "fixed", "epsilon")],
)
def test_a_total_or_a_limit_that_is_none_charges_nobody(
    path: Path, opened: Open, table: str, column: str, field: str
) -> None:
    ledger = opened()
    with closing(sqlite3.connect(path)) as connection:
        (text,) = connection.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()
    for number in NUMBERS:
        overwrite(path, table, column, json.dumps({**json.loads(text), field: number}))
        charges_nobody(ledger)


@pytest.mark.parametrize(
    "text",
    ["", "{", "nan", "1/0", "1e999999999", "null", "[]", "7.5", "[" * 100_000, '{"rho": NaN}'],
    ids=lambda text: text[:9],
)
@pytest.mark.parametrize(
    ("table", "column"), [("budgets", "spent"), ("budgets", "granted_epsilon"), ("terms", "fixed"), ("terms", "terms")]
)
def test_what_is_not_even_such_a_text_charges_nobody(
    path: Path, opened: Open, table: str, column: str, text: str
) -> None:
    overwrite(path, table, column, text)
    charges_nobody(opened())


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["releases"][0].update(id=7),
        lambda body: body["releases"][0].update(events=[{}]),
        lambda body: body.pop("sql"),
    ],
    ids=["no such release", "no event", "no query"],
)
def test_the_releases_of_a_record_that_is_none_are_not_told(
    path: Path, opened: Open, change: Callable[[dict[str, Any]], None]
) -> None:
    forge(path, change)
    with pytest.raises(LedgerUnavailable, match="invalid record in ledger"):
        opened().releases("ana", POLICY.dataset.name)


def charges_nobody(ledger: SqliteLedger) -> None:
    before = list(ledger.export())
    acts: list[Callable[[], object]] = [
        lambda: charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL),
        lambda: ledger.budget("ana", POLICY),
    ]
    for act in acts:
        with pytest.raises(LedgerUnavailable, match="invalid record in ledger") as refusal:
            act()
        assert "dpsql ledger verify" in str(refusal.value.hint)
    assert list(ledger.export()) == before
    assert not ledger.verify().ok
