"""`dpsql policy profile`: what is told, what it costs, what `policy check` and `budget show` say of it afterwards."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpsql.ledger import open_ledger
from dpsql.ledger.profiles import newest_profile
from dpsql.policy import load_policy
from dpsql.policy.profile import Profile
from tests.cli.conftest import Run
from tests.cli.test_suggest import KILLED, spent

SHARES = re.compile(r"^  in (?:all|one .+?) +\|(?: +[0-9.]+ % \|){6} +[0-9.]+ %$", re.MULTILINE)


def kept(policy: Path) -> Profile | None:
    ledger = open_ledger(f"sqlite:///{policy.with_name('dpsql-ledger.sqlite')}", make=False)
    try:
        return newest_profile(ledger, load_policy(policy))
    finally:
        ledger.close()


def test_a_profile_is_made_and_told(run: Run, policy: Path) -> None:
    told = run("policy", "profile", policy, "--epsilon", "2").stdout
    made = kept(policy)
    assert made is not None
    first, charged, left, *tables = told.splitlines()
    assert first == f'profile {made.id} of "clinic", made with differential privacy'
    assert charged == "charged to the cap: epsilon 2 (zcdp)"
    assert left.startswith("left of the cap: epsilon 1")
    assert tables[1] == "visits: share of rows that a contribution bound drops"
    assert len(SHARES.findall(told)) == 6
    assert spent(policy) == pytest.approx(2)


def test_json(run: Run, policy: Path) -> None:
    found = json.loads(run("policy", "profile", policy, "--epsilon", "2", "--format", "json").stdout)
    made = kept(policy)
    assert made is not None
    assert found.keys() == {"profile", "dropped", "cost", "remaining"}
    assert found["profile"] == made.id
    assert found["cost"] == {"epsilon": 2.0, "delta": 0.0, "rho": pytest.approx(2)}
    first = found["dropped"][0]
    assert (first["table"], first["rows_of_one_unit"]) == ("visits", "in all")
    assert first["dropped"].keys() == {"1", "2", "5", "10", "20", "50"}
    assert 0 <= first["dropped"]["50"] <= first["dropped"]["1"] <= 1


def test_check_tells_what_bounds_drop_by_it(run: Run, policy: Path) -> None:
    made = run("policy", "profile", policy, "--epsilon", "1").stdout
    checked = run("policy", "check", policy).stdout
    found = kept(policy)
    assert found is not None
    assert checked.partition(f"profile {found.id}:\n")[2] == made.partition("\n\n")[2].join(["\n", ""])
    policy.write_text(policy.read_text().replace('data_version = "2026-11"', 'data_version = "2027-01"'))
    assert (
        f"profile: none in {policy.with_name('dpsql-ledger.sqlite')} (dpsql policy profile"
        in run("policy", "check", policy).stdout
    )


def test_the_budget_shows_the_sum(run: Run, policy: Path) -> None:
    run("policy", "profile", policy, "--epsilon", "0.2")
    run("user", "add", "ana", "--role", "analyst", "--policy", policy, stdin="a long password\n")
    told = run("budget", "show", "--policy", policy).stdout
    assert (
        "A budget bounds what answers reveal beyond the policy and its profiles. The cap pays for profiles, too."
        in told
    )
    head, _, ana, cap = (line.split(" | ") for line in told.splitlines()[:4])
    assert [name.strip() for name in head[-2:]] == ["epsilon with profiles", "delta with profiles"]
    assert 5.2 < float(ana[-2]) < 6.5
    assert float(ana[-1]) == pytest.approx(1.5e-6)
    assert [float(each) for each in cap[-2:]] == [20, 1e-6]
    alone = run("budget", "show", "--policy", policy, "--user", "ana").stdout
    assert alone.splitlines()[2].split(" | ")[-2:] == ana[-2:]


def test_what_is_refused(run: Run, policy: Path) -> None:
    assert "Missing option '--epsilon'" in run("policy", "profile", policy, status=2).stderr
    assert "does not cover this" in run("policy", "profile", policy, "--epsilon", "500", status=1).stderr
    assert kept(policy) is None


def test_a_kill_keeps_the_charge(policy: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "policy", "profile", str(policy), "--epsilon", "2"], check=False
    )
    assert killed.returncode == -9
    assert spent(policy) == pytest.approx(2)
    assert kept(policy) is None
