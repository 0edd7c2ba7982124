"""A ledger moves from a file to PostgreSQL and back: the same records, balances and answers, or nothing."""

from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger import BudgetScope, Holder, SqliteLedger, copy_ledger
from dpsql.ledger.ledger import Ledger
from tests.ledger.world import SQL, TEAM, Clock, charge_only, new_ledger, opened, policy, requests, tamper

POLICY = policy()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A ledger with some of everything in it."""
    path = tmp_path / "ledger.sqlite"
    with closing(new_ledger(path)) as ledger:
        ledger.set_verifier("ana", "SCRAM-SHA-256$4096:salt$stored:server")
        for user, key in (("ana", "a"), ("ben", "a"), ("ana", "b"), ("ana", "a")):
            for release in charge_only(ledger, user, POLICY, requests(key), sql=SQL).releases:
                if release.payload is None:
                    ledger.store(release.release_id, f"\0cells of {key}\xff".encode("latin-1"))
        ledger.set_group("ben", "team")
        charge_only(ledger, "ben", POLICY, requests("b"), sql=SQL)
        ledger.grant(Holder(BudgetScope.USER, "ana"), POLICY, Fraction(1, 3), Fraction(0), "more")
        ledger.freeze(TEAM, "stop")
        ledger.record_failure("ana", ["c"])
    return path


def told(ledger: Ledger) -> list[object]:
    """All that there is to know of a ledger."""
    report = ledger.verify()
    assert report.ok
    users = [(ledger.budgets(user, POLICY), ledger.releases(user, "clinic")) for user in ("ana", "ben")]
    return [report, list(ledger.export()), ledger.accounts(), users, ledger.cap(POLICY), ledger.owner_history()]


def test_a_copy_is_the_same_ledger(source: Path, postgres_places: list[str], tmp_path: Path) -> None:
    shared, back = postgres_places[0], tmp_path / "back.sqlite"
    report = copy_ledger(f"sqlite:///{source}", shared)
    assert copy_ledger(shared, f"sqlite:///{back}") == report
    with closing(opened(source)) as first:
        expected = told(first)
    for place in (shared, back):
        with closing(opened(place)) as copy:
            assert told(copy) == expected
            (release,) = charge_only(copy, "ana", POLICY, requests("a"), sql=SQL).releases
            assert (release.reused, release.payload) == (True, b"\0cells of a\xff")
            assert copy.verify().ok


def test_what_is_not_empty_is_not_overwritten(source: Path, postgres_places: list[str]) -> None:
    copy_ledger(f"sqlite:///{source}", postgres_places[0])
    with pytest.raises(InvalidParameter, match="has records"):
        copy_ledger(f"sqlite:///{source}", postgres_places[0])
    with pytest.raises(LedgerUnavailable, match="there is no ledger"):
        copy_ledger(f"sqlite:///{source}-none", postgres_places[1])


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE payloads SET payload = x'00'"],
        ["DROP TRIGGER records_keep_updates"],
        [
            "DROP TRIGGER records_keep_updates",
            "UPDATE records SET body = replace(body, 'ana', 'eve')",
            "CREATE TRIGGER records_keep_updates BEFORE UPDATE ON records\n"
            "    BEGIN SELECT RAISE(ABORT, 'records are append-only'); END",
        ],
    ],
    ids=["an answer", "the schema", "a record"],
)
def test_of_a_ledger_that_is_not_whole_nothing_is_kept(
    source: Path, postgres_places: list[str], statements: list[str]
) -> None:
    tamper(source, *statements)
    with pytest.raises(LedgerUnavailable, match="not whole"):
        copy_ledger(f"sqlite:///{source}", postgres_places[0])
    with closing(opened(postgres_places[0], Clock())) as copy:
        assert copy.verify().records == 0
        assert copy.accounts() == ()
    with closing(SqliteLedger(source)) as first:
        assert not first.verify().ok
