"""A ledger in PostgreSQL, wherever a ledger is named: in a command, in the environment, in `dpsql.connect`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dpsql
from dpsql.cli import main
from tests.ledger.world import tamper
from tests.postgres import OwnServer, url_of
from tests.waiting import HANG_SECONDS

SQL = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"

Run = Callable[..., str]


@pytest.fixture
def url(postgres_places: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A database without a ledger."""
    monkeypatch.delenv("DPSQL_LEDGER", raising=False)
    return postgres_places[0]


@pytest.fixture
def run(url: str) -> Run:
    """Return a function that runs `dpsql … --ledger URL`, checks its exit status and returns all that it says."""

    def invoke(*arguments: object, status: int = 0, ledger: str = url) -> str:
        result = CliRunner().invoke(main, [*map(str, arguments), "--ledger", ledger], input="secret\nsecret\n")
        assert result.exit_code == status, result.output
        return result.output

    return invoke


def answers(policy: Path, url: str, user: str) -> list[Any]:
    with dpsql.connect(policy, user=user, ledger=url) as connection:
        return connection.cursor().execute(SQL).fetchall()


def spent(policy: Path, url: str, user: str) -> Any:
    with dpsql.connect(policy, user=user, ledger=url) as connection:
        return connection.cursor().execute("SELECT epsilon_spent FROM dpsql.budget").fetchone()


def test_commands_and_connections_share_it(clinic_policy: Path, url: str, run: Run) -> None:
    for command in ("verify", "export"):
        assert "there is no ledger" in run("ledger", command, status=1)
    for _ in range(2):
        assert "0 records, whole" in run("ledger", "init")
    run("user", "add", "ana", "--role", "analyst")
    first = answers(clinic_policy, url, "ana")
    before = spent(clinic_policy, url, "ana")
    assert answers(clinic_policy, url, "ana") == first
    assert answers(clinic_policy, url, "ben") == first
    assert spent(clinic_policy, url, "ana") == spent(clinic_policy, url, "ben") == before
    assert "ana" in run("budget", "show", "--policy", clinic_policy)
    run("budget", "freeze", "--user", "ana", "--reason", "a test")
    with pytest.raises(dpsql.Error, match="frozen"):
        answers(clinic_policy, url, "ana")
    records = [json.loads(line) for line in run("ledger", "export").splitlines()]
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert f"{len(records)} records, whole" in run("ledger", "verify", "--head", records[-1]["hash"])


def test_the_environment_names_it_too(clinic_policy: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSQL_LEDGER", url)
    result = CliRunner().invoke(main, ["ledger", "init"])
    assert (result.exit_code, "0 records, whole" in result.output) == (0, True)


def test_it_is_copied_to_a_file(run: Run, tmp_path: Path) -> None:
    run("user", "add", "ana", "--role", "analyst")
    copy = f"sqlite:///{tmp_path / 'copy.sqlite'}"
    assert run("ledger", "copy", copy) == run("ledger", "verify", ledger=copy)
    assert "has records" in run("ledger", "copy", copy, status=1)


def test_what_is_for_files_names_what_is_for_servers(run: Run, tmp_path: Path) -> None:
    run("ledger", "init")
    assert "pg_dump --schema=dpsql_ledger" in run("ledger", "backup", tmp_path / "copy.sqlite", status=1)


def test_it_is_brought_to_this_layout(run: Run, url: str) -> None:
    run("user", "add", "ana", "--role", "analyst")
    told = run("ledger", "verify")
    assert "has the layout of this version" in run("ledger", "migrate")
    tamper(url, "DROP TABLE reads", "UPDATE layout SET version = 2")
    assert "dpsql ledger migrate" in run("ledger", "verify", status=1)
    assert run("ledger", "migrate") == told == run("ledger", "verify")


def test_a_dump_that_is_put_back_is_the_same_ledger(
    clinic_policy: Path, each_postgres: OwnServer, run: Run, tmp_path: Path
) -> None:
    with each_postgres.database() as first, each_postgres.database() as second:
        url, other = (url_of(each_postgres.url, dbname=name) for name in (first, second))
        given = answers(clinic_policy, url, "ana")
        told = run("ledger", "verify", ledger=url)
        dump = tmp_path / "ledger.sql"
        for program in (
            ("pg_dump", "--schema=dpsql_ledger", f"--file={dump}", url),
            ("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", other),
        ):
            name, *arguments = program
            subprocess.run([each_postgres.process.bin_path / name, *arguments], check=True, timeout=HANG_SECONDS)
        assert run("ledger", "verify", ledger=other) == told
        assert answers(clinic_policy, other, "ana") == given
        assert run("ledger", "verify", ledger=other).startswith(f"{int(told.split()[0]) + 1} records, whole")
