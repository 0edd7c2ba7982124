"""`dpsql policy suggest`: lines that a policy takes, what they cost, and what is refused."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpsql.ledger import open_ledger
from dpsql.policy import Policy, load_policy
from tests.cli.conftest import Run

KILLED = """
import os, signal, sys
from dpsql.backends import DuckDBBackend
from dpsql.cli import main
DuckDBBackend.fetch = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


@pytest.fixture
def bare(policy: Path) -> Path:
    """The clinic's policy with fewer limits."""
    text = policy.read_text()
    for limits in (", lower = 0, upper = 5000", ", lower = 2020-01-01, upper = 2026-12-31"):
        assert limits in text
        text = text.replace(limits, "", 1)
    policy.write_text(text)
    return policy


def spent(policy: Path) -> Any:
    ledger = open_ledger(f"sqlite:///{policy.with_name('dpsql-ledger.sqlite')}", make=False)
    try:
        return ledger.cap(load_policy(policy)).spent.rho
    finally:
        ledger.close()


def pasted(policy: Path, text: str) -> Policy:
    """The policy with the suggested lines in place of its own."""
    written = policy.read_text()
    table = ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
            continue
        name = re.match(r"(\w+) = ", line)
        if name is not None:
            section = re.search(rf"^\[{re.escape(table)}\]\n(?:(?!^\[).*\n)*", written, flags=re.MULTILINE)
            assert section is not None
            changed = re.sub(rf"^{name[1]} = .*$", line.replace("\\", r"\\"), section[0], flags=re.MULTILINE)
            if changed == section[0]:
                changed += f"{line}\n"
            written = written.replace(section[0], changed)
    policy.write_text(written)
    return load_policy(policy)


def test_the_lines_go_into_the_policy(run: Run, bare: Path) -> None:
    result = run("policy", "suggest", bare, "--epsilon", "3")
    found = tomllib.loads(result.stdout)["tables"]
    assert found.keys() == {"visits", "prescriptions"}
    assert found["visits"]["columns"].keys() == {"visited_on", "cost"}
    assert found["visits"]["columns"]["cost"].keys() == {"type", "lower", "upper", "step", "description"}
    assert found["prescriptions"].keys() == {"max_rows", "max_groups", "max_rows_per_group"}
    assert "Charged to the cap: epsilon 3 (zcdp)." in result.stdout
    loaded = pasted(bare, result.stdout)
    visits = loaded.table("visits")
    assert visits is not None
    cost = visits.column("cost")
    assert cost is not None
    assert cost.upper is not None
    assert visits.rows_per_unit == found["visits"]["max_rows"]


def test_json(run: Run, policy: Path) -> None:
    result = run("policy", "suggest", policy, "--epsilon", "2", "--only", "visits.cost", "--format", "json")
    found = json.loads(result.stdout)
    assert found.keys() == {"suggestions", "exact", "cost", "remaining"}
    assert found["exact"] is False
    assert found["cost"] == {"epsilon": 2.0, "delta": 0.0, "rho": pytest.approx(2)}
    assert found["remaining"]["epsilon"] < 20
    low, high = found["suggestions"]
    assert (low["table"], low["column"], low["setting"], low["now"]) == ("visits", "cost", "lower", 0)
    assert (high["setting"], high["now"]) == ("upper", 5000)
    assert low["value"] <= high["value"]
    assert high["ranks"] > 0
    assert spent(policy) == pytest.approx(2)


def test_dates_and_groups_of_one_column(run: Run, policy: Path) -> None:
    result = run("policy", "suggest", policy, "--epsilon", "3", "--only", "visits.visited_on", "--only", "visits.icd")
    visits = tomllib.loads(result.stdout)["tables"]["visits"]
    assert visits.keys() == {"max_groups", "max_rows_per_group", "columns"}
    assert visits["columns"]["visited_on"]["lower"].day == 1
    assert visits["columns"]["visited_on"]["lower"] < visits["columns"]["visited_on"]["upper"]


def test_what_is_already_limited_is_looked_at_when_asked(run: Run, policy: Path) -> None:
    plain = run("policy", "suggest", policy, "--epsilon", "1", "--only", "patients", status=1)
    assert "there is nothing to suggest" in plain.stderr
    assert "--tighter" in plain.stderr
    result = run("policy", "suggest", policy, "--epsilon", "1", "--only", "patients", "--tighter")
    assert tomllib.loads(result.stdout)["tables"]["patients"]["columns"].keys() == {"age", "weight"}


def test_exact_limits_are_loud_and_on_record(run: Run, policy: Path) -> None:
    result = run("policy", "suggest", policy, "--exact", "--only", "visits.cost")
    assert "NO GUARANTEE" in result.stderr
    assert "EXACT" in result.stdout
    assert tomllib.loads(result.stdout)["tables"]["visits"]["columns"]["cost"]["upper"] > 5000
    assert spent(policy) == 0
    for shown in (("budget", "show"), ("ledger", "verify")):
        told = run(*shown, "--policy", policy).stdout
        assert re.search(r'warning: record \d+, .*: values of "clinic" were taken from the data exactly', told)
        assert "visits.cost" in told
    assert "values.exact" in run("budget", "history", "--policy", policy).stdout
    found = json.loads(run("policy", "suggest", policy, "--exact", "--only", "visits.cost", "--format", "json").stdout)
    assert (found["exact"], found["remaining"], found["cost"]["epsilon"]) == (True, None, 0)


def test_a_noisy_search_is_no_warning(run: Run, policy: Path) -> None:
    run("policy", "suggest", policy, "--epsilon", "1", "--only", "visits.cost")
    assert "warning" not in run("budget", "show", "--policy", policy).stdout
    history = run("budget", "history", "--policy", policy).stdout
    assert "cap.charged" in history
    assert "policy suggest: visits.cost" in history
    assert "0.5" in history
    assert "gate" in run("budget", "show", "--policy", policy, "--compare").stdout


def test_a_kill_before_the_read_keeps_the_charge(policy: Path) -> None:
    arguments = ["policy", "suggest", str(policy), "--epsilon", "1"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, check=False)
    assert killed.returncode == -9
    assert killed.stdout == b""
    assert spent(policy) == pytest.approx(0.5)


USAGE = {
    "no price": ([], "no price is given"),
    "both": (["--epsilon", "1", "--exact"], "no price is given"),
    "quantile of exact": (["--exact", "--quantile", "0.9"], "--exact drops no rows"),
}
REFUSED = {
    "zero": (["--epsilon", "0"], "epsilon is out of range"),
    "negative": (["--epsilon", "-1"], "epsilon is out of range"),
    "no number": (["--epsilon", "much"], "is not a valid epsilon"),
    "too much": (["--epsilon", "90"], 'the cap of "clinic" does not cover this'),
    "quantile": (
        ["--epsilon", "1", "--quantile", "1"],
        "the quantile must be between 0 and 1, with at most three digits, not 1",
    ),
    "unknown table": (["--epsilon", "1", "--only", "nobody"], 'the policy has no "nobody"'),
    "unknown column": (["--epsilon", "1", "--only", "visits.nothing"], 'the policy has no "visits.nothing"'),
    "public": (["--epsilon", "1", "--only", "icd10"], '"icd10" is public'),
    "no limits": (["--epsilon", "1", "--only", "patients.city"], 'there is nothing to suggest for "patients.city"'),
}


@pytest.mark.parametrize(("options", "message"), USAGE.values(), ids=USAGE)
def test_wrong_usage(run: Run, policy: Path, options: list[str], message: str) -> None:
    assert message in run("policy", "suggest", policy, *options, status=2).stderr


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_spend_nothing(run: Run, policy: Path, options: list[str], message: str) -> None:
    assert message in run("policy", "suggest", policy, *options, status=1).stderr
    if policy.with_name("dpsql-ledger.sqlite").exists():
        assert spent(policy) == 0


def test_a_refusal_as_json(run: Run, policy: Path) -> None:
    result = run("policy", "suggest", policy, "--epsilon", "90", "--format", "json", status=1)
    assert json.loads(result.stdout)["error"]["sqlstate"] == "53400"


def test_a_column_without_values(run: Run, tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "empty.duckdb")) as database:
        database.execute("CREATE TABLE people (id INTEGER, age INTEGER)")
    policy = tmp_path / "empty.toml"
    policy.write_text(
        'version = 1\n[dataset]\nname = "empty"\nurl = "duckdb:///empty.duckdb"\nprivacy_unit = "person"\n'
        "budget = { epsilon = 5, delta = 1e-6 }\n[roles.analyst]\n"
        "budget = { epsilon = 1, delta = 1e-6 }\nquery = { epsilon = 0.1 }\n"
        '[tables.people]\nunit_key = "id"\nmax_rows = 3\n[tables.people.columns]\nage = { type = "integer" }\n'
    )
    result = run("policy", "suggest", policy, "--exact")
    assert "# age: no value was found" in result.stdout
    assert "max_rows =" not in result.stdout
    run("policy", "suggest", policy, "--epsilon", "1")  # a choice among cells that hold nothing is a choice, too
