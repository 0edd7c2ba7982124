from pathlib import Path

import pytest

from dpsql.ledger import SqliteLedger, open_ledger
from dpsql.wire.scram import Verifier, make_verifier
from tests.cli.conftest import Run


def has_password(ledger: Path, user: str, password: str) -> bool:
    opened = open_ledger(f"sqlite:///{ledger}")
    try:
        account = opened.account(user)
    finally:
        opened.close()
    assert account is not None
    assert account.verifier is not None
    known = Verifier.parse(account.verifier)
    return make_verifier(password, known.salt, known.iterations) == account.verifier


@pytest.fixture
def ledger(policy: Path) -> Path:
    return policy.parent / "dpsql-ledger.sqlite"


def test_a_password_comes_from_standard_input(run: Run, policy: Path, ledger: Path) -> None:
    added = run("user", "add", "ana", "--role", "analyst", "--policy", policy, stdin="s3cret pass\nmore\n")
    assert added.stdout == 'user "ana" has role "analyst"\n'
    assert has_password(ledger, "ana", "s3cret pass")
    run("user", "passwd", "ana", "--policy", policy, stdin="other\n")
    assert has_password(ledger, "ana", "other")


def test_a_password_comes_from_a_file(run: Run, ledger: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from file\r\nmore")
    run("user", "add", "ana", "--role", "x", "--ledger", f"sqlite:///{ledger}", "--password-file", secret)
    assert has_password(ledger, "ana", "from file")
    missing = run(
        *("user", "add", "ben", "--role", "x", "--ledger", f"sqlite:///{ledger}", "--password-file", tmp_path / "no"),
        status=1,
    )
    assert "No such file" in missing.stderr


def test_users_are_listed_and_removed(run: Run, policy: Path) -> None:
    for name in ("ana", "ben"):
        run("user", "add", name, "--role", "analyst", "--policy", policy, stdin="secret\n")
    listed = run("user", "list", "--policy", policy).stdout.splitlines()
    assert [[part.strip() for part in line.split("|")[:4]] for line in listed[2:]] == [
        ["ana", "analyst", "yes", "active"],
        ["ben", "analyst", "yes", "active"],
    ]
    run("user", "remove", "ben", "--policy", policy)
    assert "ben" not in run("user", "list", "--policy", policy).stdout


def test_a_frozen_user_is_shown_and_let_go(run: Run, policy: Path, ledger: Path) -> None:
    run("user", "add", "ana", "--role", "analyst", "--policy", policy, stdin="secret\n")
    opened = SqliteLedger(ledger)
    for key in ("a", "b", "c"):
        opened.record_failure("ana", [key])
    opened.close()
    assert "frozen" in run("user", "list", "--policy", policy).stdout
    run("user", "unfreeze", "ana", "--policy", policy, status=2)
    run("user", "unfreeze", "ana", "--reason", "disk was full", "--policy", policy)
    assert "active" in run("user", "list", "--policy", policy).stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "ana", "--role", "owner"), 'the policy has no role "owner"'),
        (("add", "a\nb", "--role", "analyst"), "cannot be the name"),
        (("passwd", "nobody"), 'no account "nobody"'),
        (("remove", "nobody"), 'no account "nobody"'),
        (("unfreeze", "ana", "--reason", "x"), "is not frozen"),
        (("add", "ana", "--role", "analyst"), "exists"),
    ],
)
def test_mistakes_are_status_1(run: Run, policy: Path, arguments: tuple[str, ...], told: str) -> None:
    run("user", "add", "ana", "--role", "analyst", "--policy", policy, stdin="secret\n")
    assert told in run("user", *arguments, "--policy", policy, status=1, stdin="secret\n").stderr


def test_an_empty_password_is_refused(run: Run, policy: Path) -> None:
    refused = run("user", "add", "ana", "--role", "analyst", "--policy", policy, status=1, stdin="\n")
    assert "the password is empty" in refused.stderr and "--password-file FILE" in refused.stderr


def test_the_ledger_must_be_told_and_exist(run: Run, policy: Path, ledger: Path) -> None:
    assert "no ledger is named" in run("user", "list", status=2).stderr
    for arguments in (
        ("user", "list"),
        ("ledger", "verify"),
        ("ledger", "export", "--format", "csv"),
        ("budget", "history"),
    ):
        assert "there is no ledger" in run(*arguments, "--policy", policy, status=1).stderr
    assert not ledger.exists()


def test_users_are_put_into_groups_and_out_of_them(run: Run, policy: Path) -> None:
    policy.write_text(f"{policy.read_text()}\n[groups.team]\nbudget = {{ epsilon = 2, delta = 1e-6 }}\n")

    def groups() -> list[str]:
        lines = run("user", "list", "--policy", policy).stdout.splitlines()[2:]
        return [line.split("|")[4].strip() for line in lines]

    added = run(
        *("user", "add", "ana", "--role", "analyst", "--user-group", "team", "--policy", policy), stdin="secret\n"
    )
    assert added.stdout == 'user "ana" has role "analyst" and is in group "team"\n'
    run("user", "add", "ben", "--role", "analyst", "--policy", policy, stdin="secret\n")
    assert groups() == ["team", ""]
    assert "in no group" in run("user", "group", "ana", "--none", "--policy", policy).stdout
    run("user", "group", "ben", "--user-group", "team", "--policy", policy)
    assert groups() == ["", "team"]
    for wrong in ((), ("--none", "--user-group", "team")):
        assert "no group is named" in run("user", "group", "ana", *wrong, "--policy", policy, status=2).stderr
    refused = run("user", "group", "ana", "--user-group", "staff", "--policy", policy, status=1)
    assert 'the policy has no group "staff"' in refused.stderr
    assert "It has: team" in refused.stderr
    refused = run(
        *("user", "add", "eva", "--role", "analyst", "--user-group", "staff", "--policy", policy),
        status=1,
        stdin="secret\n",
    )
    assert 'the policy has no group "staff"' in refused.stderr


def test_a_policy_without_groups_says_so(run: Run, policy: Path) -> None:
    run("user", "add", "ana", "--role", "analyst", "--policy", policy, stdin="secret\n")
    refused = run("user", "group", "ana", "--user-group", "team", "--policy", policy, status=1)
    assert "hint: Add [groups.NAME]" in refused.stderr
    ledger = f"sqlite:///{policy.parent / 'dpsql-ledger.sqlite'}"
    run("user", "group", "ana", "--user-group", "team", "--ledger", ledger)  # which has no policy to check
    refused = run("query", policy, "SELECT COUNT(*) FROM patients", "--user", "ana", status=1)
    assert 'has no group "team"' in refused.stderr


def test_a_password_is_not_longer_than_clients_send(run: Run, policy: Path) -> None:
    asked = ("user", "add", "ana", "--role", "analyst", "--policy", policy)
    told = run(*asked, status=1, stdin="ö" * 501 + "\n").stderr
    assert "the password is longer than 1,000 bytes" in told
    run(*asked, stdin="ö" * 500 + "\n")
