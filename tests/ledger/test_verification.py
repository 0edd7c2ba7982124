"""Whatever is changed behind the ledger's back is found; the file itself refuses the plainest of it."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple, replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.errors import LedgerUnavailable
from dpsql.ledger import BudgetScope, Holder, Noted, SqliteLedger, VerifyReport
from dpsql.ledger.chain import ORIGIN, Record, flaw, link
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.schema import TABLES
from dpsql.ledger.sqlite_checks import flaws
from dpsql.ledger.store import Store
from dpsql.ledger.verification import replay, verify
from tests.ledger.world import SQL, TEAM, Clock, charge_only, new_ledger, policy, requests

POLICY = policy()
TRIGGERS = ("records_keep_updates", "records_keep_deletes", "records_keep_replaces")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with some of everything in it."""
    path = tmp_path_factory.mktemp("original") / "ledger.sqlite"
    clock = Clock()
    ledger = new_ledger(path, clock)
    ledger.set_verifier("ana", "SCRAM-SHA-256$4096:salt$stored:server")
    for user, key in (("ana", "a"), ("ana", "b"), ("ben", "a"), ("ana", "a")):
        clock.move(minutes=1)
        for release in charge_only(ledger, user, POLICY, requests(key), sql=SQL).releases:
            if release.payload is None:
                ledger.store(release.release_id, f"rows of {key}".encode())
    eva = Holder(BudgetScope.USER, "eva")
    ledger.add_account("eva", "analyst", None, "team")
    charge_only(ledger, "eva", POLICY, requests("d"), sql=SQL)
    ledger.grant(eva, POLICY, Fraction(1, 3), Fraction(0), "more")
    ledger.lower(eva, POLICY, Fraction(1, 4), Fraction(0), "less")
    ledger.reset(eva, POLICY, "anew")
    ledger.freeze(TEAM, "stop")
    ledger.record_failure("ben", ["c"])
    assert ledger.verify().ok
    ledger.close()
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a copy of it."""
    path = tmp_path / "copy.sqlite"
    shutil.copy(original, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def checked(connection: sqlite3.Connection) -> VerifyReport:
    with closing(SqliteLedger(path_of(connection))) as ledger:
        return ledger.verify()


def path_of(connection: sqlite3.Connection) -> Path:
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])


def forced(connection: sqlite3.Connection, *statements: str) -> VerifyReport:
    """Change records as somebody does who takes the triggers away for it."""
    triggers = [
        connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0] for name in TRIGGERS
    ]
    for name in TRIGGERS:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in (*statements, *triggers):
        connection.execute(statement)
    return checked(connection)


def test_an_untouched_ledger_holds(original: Path, copy: sqlite3.Connection) -> None:
    report = checked(copy)
    assert report.ok
    seq, head = copy.execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
    assert (report.records, report.head) == (seq, head)


def test_an_empty_ledger_holds(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    assert ledger.verify() == VerifyReport(0, ORIGIN, ())
    ledger.close()


def test_a_disk_that_takes_nothing_is_no_fault_of_a_record(copy: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        fresh.executescript(TABLES)
        fresh.execute("PRAGMA query_only = on")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            replay(copy, fresh)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET body = '{}' WHERE seq = 3",
        "DELETE FROM records WHERE seq = 3",
        "INSERT OR REPLACE INTO records SELECT 3, at, kind, body, previous, hash FROM records WHERE seq = 4",
        "REPLACE INTO records SELECT seq, at, kind, body, previous, hash FROM records ORDER BY seq DESC LIMIT 1",
    ],
)
def test_the_file_refuses_to_change_records(copy: sqlite3.Connection, statement: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        copy.execute(statement)


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["UPDATE records SET body = replace(body, 'ana', 'bob') WHERE seq = 4"], "record 4 was changed"),
        (["UPDATE records SET at = '2025-01-01T00:00:00.000000+00:00' WHERE seq = 4"], "record 4 was changed"),
        (["UPDATE records SET kind = 'reuse' WHERE kind = 'charge' AND seq = 9"], "record 9 was changed"),
        (["UPDATE records SET previous = hash WHERE seq = 4"], "record 4 was changed"),
        (["UPDATE records SET hash = previous WHERE seq = 4"], "record 4 was changed"),
        (["DELETE FROM records WHERE seq = 1"], "record 1 is missing"),
        (["DELETE FROM records WHERE seq = 4"], "record 4 is missing"),
        (
            ["DELETE FROM records WHERE seq = 4", "UPDATE records SET seq = seq - 1 WHERE seq > 4"],
            "record 4 was changed",
        ),
        (["DELETE FROM records WHERE kind = 'failure'"], "which the records do not say"),
        (
            [
                "UPDATE records SET seq = -1 WHERE seq = 4",
                "UPDATE records SET seq = 4 WHERE seq = 5",
                "UPDATE records SET seq = 5 WHERE seq = -1",
            ],
            "record 4 was changed",
        ),
    ],
)
def test_changed_records_are_found(copy: sqlite3.Connection, statements: list[str], problem: str) -> None:
    report = forced(copy, *statements)
    assert not report.ok
    assert problem in report.problems[0]


def chain(connection: sqlite3.Connection) -> list[Record]:
    query = "SELECT seq, at, kind, body, previous, hash FROM records ORDER BY seq"
    return [Record(*row) for row in connection.execute(query)]


def test_every_edit_of_every_character_of_every_record_is_found(original: Path) -> None:
    with closing(sqlite3.connect(original)) as connection:
        records = chain(connection)
    for before, record in zip([None, *records], records, strict=False):
        assert flaw(record, before) is None
        for name in ("at", "kind", "body", "previous", "hash"):
            text = getattr(record, name)
            for place, old in enumerate(text):
                for new in ("", chr(ord(old) ^ 1), old + old):
                    changed = replace(record, **{name: text[:place] + new + text[place + 1 :]})
                    assert flaw(changed, before) is not None
        for seq in (record.seq - 1, record.seq + 1, -record.seq):
            assert flaw(replace(record, seq=seq), before) is not None


def flawed(records: list[Record]) -> bool:
    return any(flaw(record, before) for before, record in zip([None, *records], records, strict=False))


def numbered(records: list[Record]) -> list[Record]:
    return [replace(record, seq=seq) for seq, record in enumerate(records, 1)]


def test_every_removal_and_every_swap_of_records_is_found(original: Path) -> None:
    """With the numbers as they were, or closed up; but for the last record, for which its hash must be noted."""
    with closing(sqlite3.connect(original)) as connection:
        records = chain(connection)
    assert not flawed(records)
    for place in range(len(records) - 1):
        left = records[:place] + records[place + 1 :]
        assert flawed(left)
        assert flawed(numbered(left))
    for one, other in combinations(range(len(records)), 2):
        swapped = list(records)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        assert flawed(swapped)
        assert flawed(numbered(swapped))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_chain_that_was_written_anew_is_found_by_the_noted_hash(original: Path, data: st.DataObject) -> None:
    """Whoever can write the file can compute hashes; what a report said, kept elsewhere, he cannot change."""
    with closing(sqlite3.connect(original)) as source, closing(sqlite3.connect(":memory:")) as forged:
        source.backup(forged)
        records = chain(forged)
        noted = Noted(records[-1].hash, data.draw(st.sampled_from([None, len(records)])))
        assert verify(forged, flaws(forged), noted).ok
        first = data.draw(st.integers(0, len(records) - 1))
        cut = data.draw(st.booleans())
        forged.executescript("".join(f"DROP TRIGGER {name};" for name in TRIGGERS))
        head, rest = records[first - 1].hash if first else ORIGIN, []
        for seq, record in enumerate(records[first + cut :], first + 1):
            body = json.loads(record.body)
            if not cut and seq == first + 1:
                body["forged"] = data.draw(st.text(max_size=3))
            rest.append(link(seq, record.at, record.kind, body, head))
            head = rest[-1].hash
        forged.execute("DELETE FROM records WHERE seq > ?", (first,))
        forged.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", map(astuple, rest))
        source.rollback()
        triggers = source.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        forged.executescript("".join(f"{sql};" for (sql,) in triggers))
        assert not verify(forged, flaws(forged), noted).ok


NOT_THERE = ("last known record is missing: records were truncated or replaced",)


def test_a_noted_record_is_looked_for(copy: sqlite3.Connection) -> None:
    records = chain(copy)
    with closing(SqliteLedger(path_of(copy))) as ledger:
        for number, record in enumerate(records, 1):
            assert ledger.verify(Noted(record.hash)).ok
            assert ledger.verify(Noted(record.hash, number)).ok
            assert ledger.verify(Noted(record.hash, number - 1)).problems == NOT_THERE
        assert ledger.verify(Noted(ORIGIN)).ok
        assert ledger.verify(Noted(ORIGIN, 0)).ok
        assert ledger.verify(Noted(ORIGIN, 1)).problems == NOT_THERE
        assert ledger.verify(Noted(records[-1].hash, len(records) + 1)).problems == NOT_THERE
        assert ledger.verify(Noted("f" * 64)).problems == NOT_THERE


def test_records_cut_off_with_all_that_followed_from_them_are_found_by_the_noted_hash(
    original: Path, tmp_path: Path
) -> None:
    """As by one who puts an older copy back."""
    path = tmp_path / "older.sqlite"
    with closing(new_ledger(path, Clock())) as ledger, closing(SqliteLedger(original)) as whole:
        report = whole.verify()
        assert ledger.verify().ok
        assert ledger.verify(Noted(report.head, report.records)).problems == NOT_THERE
        assert whole.verify(Noted(ledger.verify().head, 2)).ok


def test_all_records_cut_off_are_found(copy: sqlite3.Connection) -> None:
    report = forced(copy, "DELETE FROM records")
    assert (report.records, report.head) == (0, ORIGIN)
    assert len(report.problems) > 5


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE budgets SET spent = replace(spent, '1/5', '1/10')", "budgets"),
        ("UPDATE budgets SET charges = 0", "budgets"),
        ("UPDATE budgets SET window_start = '2030-01-01T00:00:00.000000+00:00'", "budgets"),
        ("DELETE FROM budgets WHERE holder = 'ana'", "budgets"),
        ('UPDATE terms SET fixed = replace(fixed, \'"epsilon":"1"\', \'"epsilon":"9"\')', "terms"),
        ("UPDATE accounts SET role = 'owner' WHERE name = 'ana'", "accounts"),
        ("UPDATE accounts SET failures = 0", "accounts"),
        ("UPDATE accounts SET user_group = NULL WHERE name = 'eva'", "accounts"),
        ("DELETE FROM freezes", "freezes"),
        ("INSERT INTO freezes VALUES ('all', '', 'owner')", "freezes"),
        ("DELETE FROM shared", "shared"),
        ("UPDATE budgets SET resets = 0 WHERE holder = 'eva'", "budgets"),
        ("UPDATE budgets SET granted_epsilon = '5' WHERE holder = 'eva'", "budgets"),
        ("UPDATE budgets SET last_charge = NULL", "budgets"),
        ("INSERT INTO accounts VALUES ('eve', 'analyst', NULL, '2026', 0, 0, NULL)", "accounts"),
        ("INSERT INTO caps VALUES ('more', 9, 'add_remove')", "caps"),
        ("UPDATE datasets SET cap = 'more'", "datasets"),
        ("INSERT INTO releases VALUES (9, 9, 'ben', 2, 'clinic', 'b', '', 0)", "releases"),
        ("UPDATE releases SET reused = 7", "releases"),
        ("UPDATE stored SET key = 'c' WHERE key = 'b'", "stored"),
        ("DELETE FROM quarantine", "quarantine"),
        ("UPDATE totals SET stored_bytes = 0", "totals"),
    ],
)
def test_tampered_balances_are_found(copy: sqlite3.Connection, statement: str, table: str) -> None:
    assert copy.execute(statement).rowcount >= 1
    report = checked(copy)
    assert report.problems
    assert all(problem.startswith(table) for problem in report.problems)
    assert report.records > 0


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE verifiers SET verifier = 'mine'", 'the verifier of "ana" is not the one that was set'),
        ("DELETE FROM verifiers", 'the verifier of "ana" is not the one that was set'),
        ("INSERT INTO verifiers VALUES ('ben', 'mine')", 'the verifier of "ben" is not the one that was set'),
        ("INSERT INTO verifiers VALUES ('eve', 'mine')", 'the verifier of "eve" is not the one that was set'),
        ("UPDATE payloads SET payload = x'00' WHERE release = 1", "release 1 is not what was stored"),
        ("DELETE FROM payloads WHERE release = 1", "release 1 is not what was stored"),
        ("INSERT INTO payloads VALUES (9, x'00')", "release 9 is not what was stored"),
    ],
)
def test_tampered_content_is_found(copy: sqlite3.Connection, statement: str, problem: str) -> None:
    assert copy.execute(statement).rowcount == 1
    assert checked(copy).problems == (problem,)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP TRIGGER records_keep_updates", "the trigger records_keep_updates was altered, added or removed"),
        (
            "CREATE TRIGGER free AFTER UPDATE ON budgets BEGIN UPDATE budgets SET charges = 0; END",
            "the trigger free was altered, added or removed",
        ),
        ("DROP INDEX releases_held", "the index releases_held was altered, added or removed"),
        ("ALTER TABLE quarantine ADD COLUMN x TEXT", "the table quarantine was altered, added or removed"),
    ],
)
def test_an_altered_schema_is_found(copy: sqlite3.Connection, statement: str, problem: str) -> None:
    with closing(SqliteLedger(path_of(copy))) as ledger:
        copy.execute(statement)
        assert ledger.verify().problems == (problem,)


def test_damage_is_found(copy: sqlite3.Connection, tmp_path: Path) -> None:
    page = copy.execute("SELECT rootpage FROM sqlite_master WHERE name = 'releases_held'").fetchone()[0]
    copy.close()
    path = tmp_path / "copy.sqlite"
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 + 3 : (page - 1) * 4096 + 5] = b"\0\0"  # an index without its entries
    with closing(SqliteLedger(path)) as ledger:
        path.write_bytes(content)
        report = ledger.verify()
    assert report.problems
    assert all(problem.startswith("the file is damaged") for problem in report.problems)


def append(connection: sqlite3.Connection, kind: str, body: dict[str, object], **changed: object) -> VerifyReport:
    """Append a record as somebody does who can compute hashes."""
    seq, at, head = connection.execute("SELECT seq, at, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
    record = link(seq + 1, str(changed.get("at", at)), kind, body, str(changed.get("previous", head)))
    connection.execute(
        "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
        (record.seq, record.at, record.kind, record.body, record.previous, record.hash),
    )
    return checked(connection)


def test_a_forged_record_does_not_follow(copy: sqlite3.Connection) -> None:
    assert "does not follow" in append(copy, "failure", {"user": "ana", "keys": []}, previous=ORIGIN).problems[0]


def test_a_forged_record_from_the_past_is_found(copy: sqlite3.Connection) -> None:
    assert "is dated before" in append(copy, "failure", {"user": "ana", "keys": []}, at="2020").problems[0]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("budget.forgiven", {}),
        ("charge", {}),
        ("failure", {"user": "ana", "keys": 7}),
        ("budget.granted", {"budget": 1, "epsilon": "much", "delta": "0"}),
        ("budget.reset", {"budget": 77}),
        ("group.frozen", {"name": "team", "reason": "again"}),
        ("account.added", {"name": "eve", "role": None, "verifier": None}),
    ],
)
def test_a_forged_record_that_says_nonsense_is_found(
    copy: sqlite3.Connection, kind: str, body: dict[str, object]
) -> None:
    assert "has an invalid body" in append(copy, kind, body).problems[0]


def test_a_forged_record_without_its_effect_is_found(copy: sqlite3.Connection) -> None:
    assert "which the records say" in "".join(append(copy, "failure", {"user": "ana", "keys": ["z"]}).problems)


def test_charges_go_on_while_a_ledger_is_verified(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)

    def charge(store: Store) -> list[str]:
        charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
        return []

    monkeypatch.setattr(ledger._storage, "flaws", charge)
    assert ledger.verify().ok


def test_a_damaged_answer_is_not_given_again(copy: sqlite3.Connection) -> None:
    """Nobody is charged for it either: another user is refused as well as the one who paid for it."""
    copy.execute("UPDATE payloads SET payload = substr(payload, 2) WHERE release = 1")
    copy.commit()
    (path,) = [row[2] for row in copy.execute("PRAGMA database_list") if row[1] == "main"]
    with closing(SqliteLedger(Path(path), clock=Clock())) as ledger:
        before = list(ledger.export())
        for user in ("ana", "ben"):
            with pytest.raises(LedgerUnavailable, match="release 1 of the ledger is not what was stored"):
                charge_only(ledger, user, POLICY, requests("a"), sql=SQL)
        assert list(ledger.export()) == before


def test_records_chain_canonical_json(copy: sqlite3.Connection) -> None:
    for (body,) in copy.execute("SELECT body FROM records"):
        assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
