"""What the data owner's view reads: releases of everybody, newest first, and the records after one of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.ledger import is_file
from dpsql.ledger.stored import StoredLedger
from tests.ledger.world import SQL, Clock, Place, opened, peopled, policy, requests, tamper

POLICY, OTHER = policy(), policy(name="trials")


@pytest.fixture
def ledger(place: Place, clock: Clock) -> Iterator[StoredLedger]:
    with closing(peopled(opened(place, clock))) as made:
        yield made


def test_releases_of_everybody_are_told_newest_first(ledger: StoredLedger) -> None:
    assert ledger.paid("clinic", 10) == []
    for user, each, keys in (("ana", POLICY, "ab"), ("ana", OTHER, "a"), ("ben", POLICY, "bc"), ("ana", POLICY, "a")):
        for release in ledger.charge(user, each, requests(*keys), sql=f"{SQL} -- {user}").releases:
            if release.payload is None:
                ledger.store(release.release_id, b"cells")
    found = ledger.paid("clinic", 10)
    assert [(paid.record.release_id, paid.user, paid.made) for paid in found] == [
        *((5, "ben", True), (4, "ben", False), (2, "ana", True), (1, "ana", True)),
    ]
    assert [(paid.record.key, paid.record.reused, paid.record.kept) for paid in found] == [
        *(("c", 0, True), ("b", 0, True), ("b", 0, True), ("a", 1, True)),
    ]
    assert {paid.user: paid.record.sql for paid in found} == {"ana": f"{SQL} -- ana", "ben": f"{SQL} -- ben"}
    own = [paid.record for paid in reversed(found) if paid.user == "ana"]
    assert own == ledger.releases("ana", "clinic")
    assert [paid.record.release_id for paid in ledger.paid("trials", 10)] == [3]
    assert ledger.paid("clinic", 2) == found[:2]
    assert ledger.paid("clinic", 2, 4) == found[2:]
    assert ledger.paid("clinic", 10, 1) == []


def test_records_are_told_from_one_on(ledger: StoredLedger) -> None:
    ledger.charge("ana", POLICY, requests("a"), sql=SQL)
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
