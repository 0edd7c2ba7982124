"""`dpsql ledger`: checks, exports, copies and migrations, as typed."""

import csv
import io
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dpsql.ledger import SqliteLedger
from tests.cli.conftest import Run

BY_SEX = "SELECT sex,\n COUNT(*) FROM patients GROUP BY sex"
LAYOUT_1 = Path(__file__).parent.parent / "ledger" / "layouts" / "layout1.sql"


@pytest.fixture
def spent(run: Run, policy: Path) -> Path:
    """Return the policy after ana has asked once."""
    run("query", policy, BY_SEX, "--user", "ana", "--epsilon", "0.5")
    return policy


def head_of(text: str) -> tuple[str, str]:
    """Return the hash and the number of records that a command told."""
    words = text.rpartition('": ')[2].split()
    return words[-1], words[0]


def test_a_noted_hash_is_looked_for(run: Run, spent: Path) -> None:
    head, records = head_of(run("ledger", "verify", "--policy", spent).stdout)
    run("query", spent, BY_SEX, "--user", "ben")
    for noted in (("--head", head), ("--head", head.upper(), "--records", records)):
        assert "whole; the last has hash" in run("ledger", "verify", *noted, "--policy", spent).stdout
    cut = run("ledger", "verify", "--head", head, "--records", int(records) + 1, "--policy", spent, status=1)
    assert "records were truncated or replaced" in cut.stderr
    assert "NOT whole" in cut.stdout
    assert run("ledger", "verify", "--head", "0" * 63 + "1", "--policy", spent, status=1).stderr


@pytest.mark.parametrize("noted", [("--head", "abc"), ("--head", "x" * 64), ("--records", "5"), ("--head", "")])
def test_what_cannot_have_been_noted_is_wrong_usage(run: Run, spent: Path, noted: tuple[str, str]) -> None:
    told = run("ledger", "verify", *noted, "--policy", spent, status=2).stderr
    assert "give both" in told or "64 digits" in told


def test_an_export_is_one_record_a_line(run: Run, spent: Path) -> None:
    lines = run("ledger", "export", "--policy", spent).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert all(set(record) == {"seq", "at", "kind", "body", "previous", "hash"} for record in records)
    rows = list(csv.reader(io.StringIO(run("ledger", "export", "--policy", spent, "--format", "csv").stdout)))
    assert rows[0] == ["seq", "at", "kind", "body", "previous", "hash"]
    assert [row[5] for row in rows[1:]] == [record["hash"] for record in records]


def test_a_backup_tells_what_to_note(run: Run, spent: Path) -> None:
    target = spent.parent / "monday.sqlite"
    told = run("ledger", "backup", target, "--policy", spent).stdout
    head, records = head_of(told)
    assert f'"{target}"' in told
    run("query", spent, BY_SEX, "--user", "ben")
    run("ledger", "verify", "--head", head, "--records", records, "--policy", spent)
    run("ledger", "verify", "--head", head, "--records", records, "--ledger", f"sqlite:///{target}")
    assert "overwrites nothing" in run("ledger", "backup", target, "--policy", spent, status=1).stderr
    assert "no ledger" in run("ledger", "backup", target, "--ledger", "sqlite:///none.sqlite", status=1).stderr


def test_a_ledger_in_postgres_is_not_copied_or_migrated_as_a_file(run: Run, tmp_path: Path) -> None:
    for command in (("backup", tmp_path / "copy.sqlite"), ("migrate",)):
        refused = run("ledger", *command, "--ledger", "postgresql://owner:secret@host/ledger", status=1).stderr
        assert "secret" not in refused


def test_an_older_ledger_is_migrated_as_its_refusal_says(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(LAYOUT_1.read_text())
    url = f"sqlite:///{path}"
    hint = run("ledger", "verify", "--ledger", url, status=1).stderr.strip().rpartition("dpsql ")[2]
    told = run(*hint.split()).stdout
    assert "97 records, whole" in told
    assert f'as it was, with layout 1: "{path}.layout-1"' in told
    assert "97 records, whole" in run("ledger", "verify", "--ledger", url).stdout
    assert "has the layout of this version" in run("ledger", "migrate", "--ledger", url).stdout


def test_the_clock_is_shown_and_confirmed_where_it_is_far_ahead(run: Run, policy: Path) -> None:
    place = policy.parent / "dpsql-ledger.sqlite"
    url = ("--ledger", f"sqlite:///{place}")
    then = datetime.now(UTC) - timedelta(days=32)
    with closing(SqliteLedger(place, clock=lambda: then)) as ledger:
        ledger.add_account("ana", "analyst")
    shown = run("ledger", "clock", *url).stdout
    assert f"{then:%Y-%m-%d %H:%M:%S%z}" in shown
    assert "not trusted" in shown
    assert "dpsql ledger clock" in run("budget", "show", "--policy", policy).stdout
    told = run("ledger", "clock", "--reason", "a long holiday", *url).stdout
    assert f"{then:%Y-%m-%d}" not in told
    assert "not trusted" not in told
    assert "nothing to confirm" in run("ledger", "clock", "--reason", "again", *url, status=1).stderr
    assert "dpsql ledger clock" not in run("budget", "show", "--policy", policy).stdout
    assert "clock.confirmed" in run("budget", "history", "--policy", policy).stdout
    ahead = datetime.now(UTC) + timedelta(days=7)
    with closing(SqliteLedger(place, clock=lambda: ahead)) as ledger:
        ledger.set_role("ana", "analyst")
    assert "until the clock has passed it" in run("ledger", "clock", *url).stdout
    assert run("ledger", "verify", *url)
