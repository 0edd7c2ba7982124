import csv
import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run, write_demo

BY_SEX = "SELECT sex,\n COUNT(*) FROM patients GROUP BY sex"


def cells(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


@pytest.fixture(scope="module")
def asked(run: Run, generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which ana has asked once, and ben never."""
    policy = write_demo(tmp_path_factory.mktemp("asked"), generated)
    run("query", policy, BY_SEX, "--user", "ana", "--epsilon", "0.5")
    run("user", "add", "ben", "--role", "analyst", "--policy", policy, stdin="secret\n")
    return policy.parent


@pytest.fixture
def spent(asked: Path, tmp_path: Path) -> Path:
    """Return the policy after that, for one test to spend more."""
    return Path(shutil.copytree(asked, tmp_path / "spent"), "clinic.toml")


def test_budgets_are_shown_with_the_cap(run: Run, spent: Path) -> None:
    lines = run("budget", "show", "--policy", spent).stdout.splitlines()
    ana, ben, everybody = (cells(line) for line in lines[2:-1])
    assert ana[:3] == ["ana", "zcdp", "5"]
    assert 0 < float(ana[3]) < 2
    assert float(ana[3]) + float(ana[4]) == pytest.approx(5, abs=1e-2)
    assert ben[:5] == ["ben", "zcdp", "5", "0", "5"]
    assert everybody[:3] == ["all users", "zcdp", "20"]
    assert 0 < float(everybody[3]) < float(ana[3])
    assert lines[-1].startswith("Spent is the used share of each budget times its epsilon")


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


# Groups of users, and what the owner changes

REASON = ("--reason", "the board said so")


@pytest.fixture
def team(run: Run, policy: Path) -> Path:
    """Return the policy with a group in it, whose budget renews, after its member ana has asked once."""
    text = policy.read_text()
    group = '[groups.team]\nbudget = { epsilon = 2, delta = 1e-6, window = "30 days" }\ndescription = "The team"\n\n'
    policy.write_text(text.replace("[tables.patients]", group + "[tables.patients]", 1))
    for name, *group_of in (("ana", "--user-group", "team"), ("ben",)):
        run("user", "add", name, "--role", "analyst", *group_of, "--policy", policy, stdin="secret\n")
    run("query", policy, BY_SEX, "--user", "ana")
    return policy


def test_groups_are_shown_with_what_windows_and_resets_mean(run: Run, team: Path) -> None:
    shown = run("budget", "show", "--policy", team).stdout.splitlines()
    assert [cells(line)[0] for line in shown[2:6]] == ["ana", "ben", "group team", "all users"]
    assert cells(shown[4])[1:3] == ["zcdp", "2"]
    assert cells(shown[4])[7] == "1"
    assert len(cells(shown[4])[8]) == len("2026-01-01 00:00:00+00:00")
    assert shown[7].startswith("A budget that renews bounds one window: windows add up")
    assert len(shown) == 8
    run("budget", "reset", "--user", "ana", *REASON, "--policy", team)
    shown = run("budget", "show", "--policy", team).stdout.splitlines()
    assert [cells(line)[9] for line in shown[2:6]] == ["1", "0", "0", "0"]
    assert shown[8].startswith("A budget that was reset bounds what came after")


def test_a_groups_budget_is_shown_alone(run: Run, team: Path) -> None:
    lines = run("budget", "show", "--policy", team, "--user-group", "team", "--group", "2").stdout.splitlines()
    assert cells(lines[2])[0] == "group team"
    assert cells(lines[2])[-2] == "4"
    refused = run("budget", "show", "--policy", team, "--user-group", "staff", status=1)
    assert '"clinic" has no group "staff"' in refused.stderr


def test_a_budget_is_granted_lowered_and_reset(run: Run, team: Path) -> None:
    granted = run("budget", "grant", "--user", "ana", "--epsilon", "1.5", "--delta", "1e-7", *REASON, "--policy", team)
    assert granted.stdout.startswith('the budget of user "ana" for "clinic" is epsilon 6.5 and delta 1.1e-06, of which')
    lowered = run("budget", "lower", "--user-group", "team", "--epsilon", "0.5", *REASON, "--policy", team)
    assert lowered.stdout.startswith('the budget of group "team" for "clinic" is epsilon 1.5 and delta 1e-06, of which')
    reset = run("budget", "reset", "--user", "ana", *REASON, "--policy", team).stdout.splitlines()
    assert reset[0].endswith("of which epsilon 6.5 is left")
    assert reset[1] == ("reset once: the guarantees before and after each reset ADD UP, to 2 budgets")
    assert run("ledger", "verify", "--policy", team).stdout.startswith("1")


def test_freezes_are_set_and_lifted(run: Run, team: Path) -> None:
    for whose in (("--user", "ana"), ("--user-group", "team"), ("--all-users",)):
        run("budget", "freeze", *whose, *REASON, "--policy", team)
        assert "frozen by the data owner" in run("query", team, BY_SEX, "--user", "ana", status=1).stderr
        assert "frozen" in run("user", "list", "--policy", team).stdout
        assert "frozen already" in run("budget", "freeze", *whose, *REASON, "--policy", team, status=1).stderr
        run("budget", "unfreeze", *whose, *REASON, "--policy", team)
        run("query", team, BY_SEX, "--user", "ana")


def test_history_tells_what_was_changed_and_why(run: Run, team: Path) -> None:
    run("budget", "grant", "--user", "ana", "--epsilon", "1", "--delta", "1e-7", *REASON, "--policy", team)
    run("budget", "freeze", "--user-group", "team", "--reason", "line one\nline two", "--policy", team)
    run("budget", "freeze", "--all-users", *REASON, "--policy", team)
    run("budget", "freeze", "--user", "ben", *REASON, "--policy", team)
    lines = [cells(line) for line in run("budget", "history", "--policy", team).stdout.splitlines()[2:]]
    assert [(line[2], line[3], *line[-2:]) for line in lines] == [
        ("ana", "", "account.group", 'now in group "team"'),
        ("ana", "clinic", "charge", " ".join(BY_SEX.split())),
        ("ana", "clinic", "budget.granted", "by epsilon 1, delta 1e-07, the board said so"),
        ('group "team"', "", "group.frozen", "line one line two"),
        ("everybody", "", "all.frozen", "the board said so"),
        ("ben", "", "account.frozen", "the board said so"),
    ]
    assert [int(line[0]) for line in lines] == sorted(int(line[0]) for line in lines)
    ana = [cells(line) for line in run("budget", "history", "--policy", team, "--user", "ana").stdout.splitlines()[2:]]
    assert [line[-2] for line in ana] == ["account.group", "charge", "budget.granted", "all.frozen"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--user", "zoe", "--epsilon", "1"), 'no account "zoe"'),
        (("--user-group", "staff", "--epsilon", "1"), 'the policy has no group "staff"'),
        (("--all-users", "--epsilon", "1"), "the cap over all users cannot be changed by a command"),
        (("--user", "ana", "--epsilon", "0"), "epsilon must be between"),
        (("--user", "ana", "--epsilon", "-1"), "epsilon must be between"),
        (("--user", "ana", "--epsilon", "NaN"), "not a valid epsilon"),
        (("--user", "ana", "--epsilon", "much"), "not a valid epsilon"),
        (("--user", "ana", "--epsilon", "1e308"), "not a valid epsilon"),
        (("--user", "ana", "--epsilon", "1e-400"), "not a valid epsilon"),
        (("--user", "ana", "--epsilon", "1." + 40 * "1"), "not a valid epsilon"),
        (("--user", "ana", "--epsilon", "5e-324"), "not a valid epsilon"),
        (("--user", "ana", "--epsilon", "1", "--delta", "-1e-7"), "delta must be 0"),
        (("--user", "ana", "--epsilon", "1", "--delta", "Infinity"), "not a valid delta"),
        (("--user", "ana", "--epsilon", "1", "--reason", ""), "a reason is required"),
    ],
)
def test_nonsense_is_refused_and_writes_nothing(run: Run, team: Path, options: tuple[str, ...], told: str) -> None:
    before = run("ledger", "export", "--policy", team).stdout
    for command in ("grant", "lower"):
        assert told in run("budget", command, *REASON, *options, "--policy", team, status=1).stderr
    assert run("ledger", "export", "--policy", team).stdout == before


def test_a_change_says_of_whom_and_why(run: Run, team: Path) -> None:
    for command in ("grant", "lower", "reset", "freeze", "unfreeze"):
        amount = ("--epsilon", "1") if command in ("grant", "lower") else ()
        nobody = run("budget", command, *amount, *REASON, "--policy", team, status=2)
        assert "give one of --user NAME" in nobody.stderr
        both = ("--user", "ana", "--user-group", "team")
        assert (
            "give one of --user NAME"
            in run("budget", command, *both, *amount, *REASON, "--policy", team, status=2).stderr
        )
        assert "--reason" in run("budget", command, "--user", "ana", *amount, "--policy", team, status=2).stderr
