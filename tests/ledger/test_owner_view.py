"""What the data owner's view reads: budgets, the owner's changes, and the records after one of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.console.facts import Gatherer
from dpsql.console.search import Search
from dpsql.ledger import BudgetScope, Holder, is_file
from dpsql.ledger.ledger import Ledger
from tests.ledger.world import SQL, Clock, Place, charge_only, opened, peopled, policy, requests, tamper

POLICY, OTHER = policy(), policy(name="trials")


@pytest.fixture
def ledger(place: Place, clock: Clock) -> Iterator[Ledger]:
    with closing(peopled(opened(place, clock))) as made:
        yield made


def test_the_view_is_the_same_of_every_ledger(ledger: Ledger, place: Place, clock: Clock) -> None:
    ledger.set_group("ben", "team")
    for user, keys in (("ana", "ab"), ("ben", "bc")):
        charge_only(ledger, user, POLICY, requests(*keys), sql=SQL)
        clock.move(days=1)
    ledger.freeze(Holder(BudgetScope.USER, "ben"), "left")
    records = list(ledger.export())
    found = Gatherer(lambda: POLICY, POLICY, lambda: opened(place, clock)).gather(Search())
    assert [(each.kind, each.name, each.group, each.frozen) for each in found.holdings] == [
        *(("cap", "people", None, False), ("user", "ana", None, False), ("user", "ben", "team", True)),
        *(("group", "team", None, False), ("group", "lab", None, False)),
    ]
    assert [getattr(each.status, "charges", None) for each in found.holdings] == [2, 1, 1, 1, 0]
    assert [(str(day), paid.charges) for day, paid in found.days.items()] == [("2026-01-15", 1), ("2026-01-16", 1)]
    assert [(record.kind, record.reason) for record in found.changes] == [
        *(("account.frozen", "left"), ("account.group", 'now in group "team"')),
    ]
    assert found.found.count == 2 and found.exact == 0
    assert list(ledger.export()) == records


def test_records_are_told_from_one_on(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    records = list(ledger.export())
    assert len(records) > 3
    for number in range(len(records) + 2):
        assert list(ledger.export(number)) == records[number:]


def test_a_record_before_the_first_is_told_too(tmp_path: Path) -> None:
    """It was put there past the ledger: who checks the chain must meet it."""
    place = tmp_path / "ledger.sqlite"
    peopled(opened(place)).close()
    tamper(
        place,
        "DROP TRIGGER records_keep_replaces",
        "INSERT INTO records SELECT -5, at, kind, body, previous, hash FROM records WHERE seq = 1",
    )
    with closing(opened(place)) as ledger:
        assert [record["seq"] for record in ledger.export()] == [-5, 1, 2]
        assert [record["seq"] for record in ledger.export(1)] == [2]


def test_which_ledgers_are_files() -> None:
    assert [is_file(url) for url in ("sqlite:///a", "postgresql://h/d", "postgres://h/d")] == [True, False, False]
