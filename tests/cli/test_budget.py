import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run

BY_SEX = "SELECT sex,\n COUNT(*) FROM patients GROUP BY sex"


def cells(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


@pytest.fixture
def spent(run: Run, policy: Path) -> Path:
    """Return the policy after ana has asked once, and ben never."""
    run("query", policy, BY_SEX, "--user", "ana", "--epsilon", "0.5")
    run("query", policy, "SELECT 1", "--user", "ben")
    return policy


def test_budgets_are_shown_with_the_cap(run: Run, spent: Path) -> None:
    lines = run("budget", "show", "--policy", spent).stdout.splitlines()
    ana, ben, everybody = (cells(line) for line in lines[2:])
    assert ana[:3] == ["ana", "zcdp", "5"]
    assert 0 < float(ana[3]) < 2
    assert float(ana[3]) + float(ana[4]) == pytest.approx(5, abs=1e-2)
    assert ben[:5] == ["ben", "zcdp", "5", "0", "5"]
    assert everybody[:3] == ["all users", "zcdp", "20"]
    assert 0 < float(everybody[3]) < float(ana[3])


def test_one_users_budget_is_shown_alone(run: Run, spent: Path) -> None:
    lines = run("budget", "show", "--policy", spent, "--user", "ana").stdout.splitlines()
    assert [cells(line)[0] for line in lines] == ["budget of", lines[1].strip(), "ana"]
    assert "has no budget" in run("budget", "show", "--policy", spent, "--user", "nobody", status=1).stderr


def test_a_group_is_guaranteed_less(run: Run, spent: Path) -> None:
    lines = run("budget", "show", "--policy", spent, "--user", "ana", "--group", "3").stdout.splitlines()
    assert cells(lines[0])[-2:] == ["epsilon for 3", "delta for 3"]
    epsilon, delta = (float(cell) for cell in cells(lines[2])[-2:])
    assert epsilon == 15
    assert 1e-6 < delta <= 1
    run("budget", "show", "--policy", spent, "--group", "0", status=2)


def test_history_lists_charges(run: Run, spent: Path) -> None:
    lines = run("budget", "history", "--policy", spent).stdout.splitlines()
    assert len(lines) == 3
    assert cells(lines[2])[2:4] == ["ana", "clinic"]
    assert cells(lines[2])[-1] == " ".join(BY_SEX.split())
    assert len(run("budget", "history", "--policy", spent, "--user", "ben").stdout.splitlines()) == 2


def test_a_whole_ledger_is_verified(run: Run, spent: Path) -> None:
    assert "records, whole; the last has hash" in run("ledger", "verify", "--policy", spent).stdout


def test_a_ledger_that_was_changed_is_not_whole(run: Run, spent: Path) -> None:
    with closing(sqlite3.connect(spent.parent / "dpsql-ledger.sqlite")) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{name}"')
        connection.execute("UPDATE records SET body = replace(body, '\"ana\"', '\"eve\"')")
        connection.commit()
    broken = run("ledger", "verify", "--policy", spent, status=1)
    assert "error: " in broken.stderr
    assert "records, NOT whole" in broken.stdout


def test_records_are_exported_as_json_and_csv(run: Run, spent: Path) -> None:
    records = [json.loads(line) for line in run("ledger", "export", "--policy", spent).stdout.splitlines()]
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert "charge" in {record["kind"] for record in records}
    rows = list(csv.DictReader(io.StringIO(run("ledger", "export", "--policy", spent, "--format", "csv").stdout)))
    assert [row["hash"] for row in rows] == [record["hash"] for record in records]
    assert [json.loads(row["body"]) for row in rows] == [record["body"] for record in records]


def test_an_export_has_no_verifiers(run: Run, spent: Path) -> None:
    run("user", "add", "eve", "--role", "analyst", "--policy", spent, stdin="secret\n")
    assert "SCRAM" not in run("ledger", "export", "--policy", spent).stdout


def test_an_empty_ledger_is_exported(run: Run, spent: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.sqlite'}"
    run("user", "add", "a\nb", "--role", "analyst", "--ledger", url, status=1, stdin="secret\n")
    assert run("ledger", "export", "--ledger", url).stdout == ""
