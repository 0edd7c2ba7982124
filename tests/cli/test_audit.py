"""`dpsql audit`: a table, JSON, and a status that says whether a claim was refuted."""

import json
from pathlib import Path

import pytest

from dpsql.privacy.mechanisms import DiscreteLaplace
from tests.auditing.conftest import write
from tests.cli.conftest import Run

FEW = ("--units", "30", "--runs", "6", "--single-runs", "3", "--only", "COUNT people")


def test_claims_that_are_not_refuted(run: Run, tmp_path: Path) -> None:
    policy = write(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = run("audit", policy, *FEW, "--confidence", "0.9999999", "--with-rows")
    assert sorted(tmp_path.iterdir()) == before
    heads, _, one, other, told = result.stdout.splitlines()
    assert heads.split(" | ")[0].strip() == "class"
    assert [cell.strip() for cell in one.split("|")[:3]] == ["COUNT people", "laplace, basic", "1"]
    assert other.split("|")[0].strip() == "COUNT people"
    assert one.endswith("not refuted")
    assert told.startswith("2 claims about small on DuckDB, none refuted")


def test_a_claim_that_is_refuted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, size: [0] * size)
    result = run("audit", write(tmp_path), *FEW, "--format", "json", status=1)
    report = json.loads(result.stdout)
    assert (report["engine"], report["holds"]) == ("DuckDB", False)
    refuted, other = report["classes"]
    assert (refuted["class"], refuted["mechanism"], refuted["holds"]) == ("COUNT people", "laplace, basic", False)
    assert refuted["claimed"] == {"epsilon": 1.0, "delta": 0.0}
    assert refuted["epsilon_at_least"] > 1
    assert len(refuted["faults"]) == 1
    assert (other["mechanism"], other["holds"]) == ("gaussian, zcdp", True)


def test_the_table_of_the_documentation(run: Run, tmp_path: Path) -> None:
    told = run("audit", write(tmp_path), *FEW, "--only", "delta", "--format", "markdown").stdout.splitlines()
    assert told[0].startswith("| class | noise, accountant |")
    assert [line.split(" | ")[0] for line in told[2:]] == [
        "| COUNT people",
        "| delta of visits",
        "| delta of threshold visits",
    ] * 2
    assert [line.split(" | ")[4][0] for line in told[2:]] == ["ε", "δ", "δ"] * 2


def test_a_class_that_is_not_there(run: Run, tmp_path: Path) -> None:
    assert "--only matches no class of queries" in run("audit", write(tmp_path), "--only", "nothing", status=2).output


def test_the_environment_has_the_token_of_a_server(run: Run, tmp_path: Path) -> None:
    server = "spark://localhost:1/spark_catalog?token=${NO_TOKEN}"
    told = run("audit", write(tmp_path), "--server", server, status=1).stderr
    assert "${NO_TOKEN} is not in the environment" in told


def test_a_policy_of_spark_needs_java(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless --server names a Spark server."""
    policy = write(tmp_path)
    text = policy.read_text(encoding="utf-8")
    policy.write_text(text.replace("duckdb:///small.duckdb", "spark://localhost:1/spark_catalog"), encoding="utf-8")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = run("audit", policy, status=1).stderr
    assert "Java is not installed" in told and "apt-get install default-jre-headless" in told
