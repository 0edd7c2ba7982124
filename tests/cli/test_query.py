import csv
import io
import json
from pathlib import Path

import pytest

from dpsql.cli import answers
from tests.cli.conftest import Run

BY_SEX = "SELECT sex, COUNT(*) AS n, AVG(age) FROM patients GROUP BY sex ORDER BY sex"


def test_a_table_is_aligned_and_the_price_goes_to_standard_error(run: Run, policy: Path) -> None:
    result = run("query", policy, BY_SEX, "--user", "ana")
    lines = result.stdout.splitlines()
    assert [part.strip() for part in lines[0].split("|")] == ["sex", "n", "avg"]
    assert lines[-1] == "(4 rows)"
    assert "\nNOTICE: avg is worse than ± 10 % in " in result.stderr
    assert "; price: epsilon 0.1 (rho 0.005); remaining: epsilon 4.94" in result.stderr


def test_csv_is_read_back(run: Run, policy: Path) -> None:
    result = run("query", policy, BY_SEX, "--user", "ana", "--format", "csv")
    rows = list(csv.reader(io.StringIO(result.stdout)))
    assert rows[0] == ["sex", "n", "avg"]
    assert [row[0] for row in rows[1:]] == ["F", "M", "X", ""]


def test_json_has_rows_errors_price_and_what_is_left(run: Run, policy: Path) -> None:
    answer = json.loads(run("query", policy, BY_SEX, "--user", "ana", "--format", "json").stdout)
    assert [column["name"] for column in answer["columns"]] == ["sex", "n", "avg"]
    assert [column["type"] for column in answer["columns"]] == ["text", "bigint", "double precision"]
    assert answer["columns"][0]["stderr"] is None
    assert answer["columns"][1]["stderr"] > 0
    assert [row[0] for row in answer["rows"]] == ["F", "M", "X", None]
    assert answer["cost"] == {"epsilon": 0.1, "delta": 0.0, "rho": 0.005}
    assert 4.9 < answer["remaining"]["epsilon"] < 5
    assert answer["reused"] is False
    again = json.loads(run("query", policy, BY_SEX, "--user", "ana", "--format", "json").stdout)
    assert again["rows"] == answer["rows"]
    assert again["cost"] == {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
    assert again["remaining"] == answer["remaining"]
    assert again["reused"] is True


def test_json_writes_numbers_as_numbers_and_moments_as_text(run: Run, policy: Path) -> None:
    sql = "SELECT 1.50::numeric(4,2) AS a, 2::numeric(4,0) AS b, DATE '2026-01-02' AS c, NULL AS d"
    answer = json.loads(run("query", policy, sql, "--user", "ana", "--format", "json").stdout)
    assert answer["rows"] == [[1.5, 2, "2026-01-02", None]]
    assert answer["cost"] == {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
    assert answer["remaining"]["epsilon"] == 5.0


def test_the_price_and_other_settings_are_options(run: Run, policy: Path) -> None:
    options = ("--user", "ana", "--epsilon", "0.5", "--mechanism", "laplace", "--format", "json")
    answer = json.loads(run("query", policy, BY_SEX, *options).stdout)
    assert answer["cost"]["epsilon"] == 0.5
    quiet = run("query", policy, BY_SEX, "--user", "ana", "--set", "dpsql.notices=off")
    assert quiet.stderr == ""


def test_a_new_user_is_added_by_the_first_charge(run: Run, policy: Path) -> None:
    def users() -> str:
        return run("user", "list", "--policy", policy).stdout

    told = "ana is a new user: the first query that is charged adds it, with budget epsilon 5, delta 1e-06\n"
    assert run("explain", policy, BY_SEX, "--user", "ana").stderr == told
    for refused in ("SELEC 1", "SELECT * FROM patients", "SELECT COUNT(*) FROM nothing"):
        assert run("query", policy, refused, "--user", "ana", status=1).stderr.startswith(told)
    settings = (("--epsilon", "7"), ("--set", "dpsql.nothing=1"))
    assert "must be between" in run("query", policy, BY_SEX, "--user", "ana", *settings[0], status=1).stderr
    assert "dpsql.nothing" in run("query", policy, BY_SEX, "--user", "ana", *settings[1], status=1).stderr
    assert run("query", policy, "SELECT 1", "--user", "ana").stderr == told
    assert run("query", policy, "SELECT epsilon_limit FROM dpsql.budget", "--user", "ana").stderr == told
    assert "ana" not in users()
    assert run("query", policy, BY_SEX, "--user", "ana").stderr.startswith(told)
    assert "ana" in users()
    assert "new user" not in run("query", policy, BY_SEX, "--user", "ana").stderr


def test_settings_are_options(run: Run, policy: Path) -> None:
    assert run("query", policy, "SHOW dpsql.notices", "--user", "ana", "--set", "dpsql.notices = off").stdout
    run("query", policy, BY_SEX, "--user", "ana", "--set", "dpsql.notices", status=2)


def test_statements_without_rows_show_their_tag(run: Run, policy: Path) -> None:
    assert run("query", policy, "SET dpsql.epsilon = 0.2", "--user", "ana").stdout == "SET\n"
    answer = json.loads(run("query", policy, "SET dpsql.epsilon = 0.2", "--user", "ana", "--format", "json").stdout)
    assert answer["columns"] == answer["rows"] == []


def test_a_refusal_has_message_detail_and_hint(run: Run, policy: Path) -> None:
    refused = run("query", policy, "SELECT * FROM patients", "--user", "ana", status=1)
    assert refused.stdout == ""
    assert refused.stderr.splitlines()[1:] == [
        "error: rows of protected tables are not shown (42501, at character 8)",
        'detail: Each row of "patients" belongs to one patient.',
        "hint: Aggregate them. Write: SELECT COUNT(*) FROM patients",
    ]


def test_a_refusal_in_json_is_an_object_on_standard_output(run: Run, policy: Path) -> None:
    for command in ("query", "explain"):
        refused = run(command, policy, "SELECT COUNT(*) FROM nowhere", "--user", "ana", "--format", "json", status=1)
        error = json.loads(refused.stdout)["error"]
        assert set(error) == {"sqlstate", "message", "detail", "hint", "position"}
        assert error["sqlstate"] == "42P01"
        assert error["position"] == 22


def test_one_statement_at_a_time(run: Run, policy: Path) -> None:
    run("query", policy, "SELECT 1; SELECT 2", "--user", "ana", status=1)


def test_what_does_not_fit_is_refused(run: Run, policy: Path) -> None:
    text = policy.read_text().replace(
        "budget = { epsilon = 5, delta = 1e-6, a", "budget = { epsilon = 1, delta = 1e-6, a"
    )
    policy.write_text(text)
    run("query", policy, BY_SEX, "--user", "ana", "--epsilon", "0.2")
    refused = run("query", policy, BY_SEX, "--user", "ana", "--epsilon", "0.9", "--format", "json", status=1)
    assert json.loads(refused.stdout)["error"]["sqlstate"] == "53400"


def test_wrong_usage_is_status_2(run: Run, policy: Path) -> None:
    run("query", policy, BY_SEX, status=2)
    run("query", policy, BY_SEX, "--user", "ana", "--format", "xml", status=2)
    run("nothing", status=2)


def test_a_policy_that_is_not_there_is_status_1(run: Run, tmp_path: Path) -> None:
    assert "no such file" in run("query", tmp_path / "no.toml", "SELECT 1", "--user", "ana", status=1).stderr


def test_a_new_user_of_a_policy_with_several_roles_needs_one(run: Run, policy: Path) -> None:
    text = policy.read_text()
    role = text[text.index("[roles.analyst]") : text.index("[tables.patients]")]
    policy.write_text(text.replace(role, role + role.replace("[roles.analyst]", "[roles.intern]")))
    assert "needs a role" in run("query", policy, BY_SEX, "--user", "ana", status=1).stderr
    run("query", policy, BY_SEX, "--user", "ana", "--role", "intern")


def test_the_ledger_is_beside_the_policy_or_where_the_option_says(
    run: Run, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("query", policy, BY_SEX, "--user", "ana")
    assert (policy.parent / "dpsql-ledger.sqlite").exists()
    run("query", policy, BY_SEX, "--user", "ana", "--ledger", f"sqlite:///{policy.parent / 'other.sqlite'}")
    assert (policy.parent / "other.sqlite").exists()
    monkeypatch.setenv("DPSQL_LEDGER", f"sqlite:///{policy.parent / 'third.sqlite'}")
    run("query", policy, BY_SEX, "--user", "ana")
    assert (policy.parent / "third.sqlite").exists()


def test_a_bug_is_told_without_its_text(run: Run, policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a patient's name")

    monkeypatch.setattr(answers, "open_connection", fail)
    failed = run("query", policy, BY_SEX, "--user", "ana", status=1)
    assert "dpsql itself failed: KeyError" in failed.stderr
    assert "patient's name" not in failed.output
    failed = run("query", policy, BY_SEX, "--user", "ana", "--format", "json", status=1)
    assert json.loads(failed.stdout)["error"]["sqlstate"] == "XX000"
    assert "patient's name" not in failed.output


def test_values_cannot_take_over_the_terminal(run: Run, policy: Path) -> None:
    shown = run("query", policy, "SELECT 'a\nb\x1b[2J' AS x", "--user", "ana").stdout
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 4


def test_explain_tells_price_and_plan_and_spends_nothing(run: Run, policy: Path) -> None:
    shown = run("explain", policy, "SELECT city, COUNT(*) FROM patients GROUP BY city", "--user", "ana").stdout
    assert shown.startswith("Price: epsilon 0.1 (rho 0.005), delta 1e-09\n")
    plan, _, sql = shown.partition("SQL of release 1:\n")
    assert "\nRelease 1: " in plan and "SELECT" not in plan
    assert sql.startswith("  engine SQL:\n") and "Post-processing SQL:\n" in sql
    plan = json.loads(run("explain", policy, "EXPLAIN " + BY_SEX, "--user", "ana", "--format", "json").stdout)
    assert plan["price"] == {"epsilon": 0.1, "delta": 0.0, "rho": 0.005}
    assert plan["remaining"]["epsilon"] == 5.0
    assert set(plan["columns"][1]) == {"name", "mechanism", "sensitivity", "stderr", "plus_minus_95"}
    assert set(plan["columns"][1]["sensitivity"]) == {"l0", "linf", "l1", "l2"}
    assert len(plan["engine_sql"]) == 1
    assert plan["post_sql"].startswith("SELECT")
    run("explain", policy, "SHOW ALL", "--user", "ana", status=1)


def test_explain_of_several_tells_what_they_cost_together(run: Run, policy: Path) -> None:
    several = f"{BY_SEX}; SELECT COUNT(*) FROM doctors;\nSELECT COUNT(*)\nFROM patients; {BY_SEX}"
    told = json.loads(run("explain", policy, several, "--user", "ana", "--format", "json").stdout)
    assert set(told) == {"statements", "joint"}
    assert [statement["price"]["rho"] for statement in told["statements"]] == [0.005, 0.0, 0.005, 0.005]
    assert told["joint"]["price"] == {"epsilon": pytest.approx(0.02**0.5), "delta": 0.0, "rho": 0.01}
    assert (told["joint"]["fits"], told["joint"]["first_refused"]) == (True, None)
    assert told["joint"]["remaining"]["epsilon"] < told["statements"][0]["remaining"]["epsilon"]
    lines = run("explain", policy, several, "--user", "ana").stdout.splitlines()
    titles = [line for line in lines if line.startswith("Statement ")]
    assert titles[2] == "Statement 3: SELECT COUNT(*) FROM patients"
    assert lines[-2] == "All 4 statements together: epsilon 0.141421 (rho 0.01), within the budget"
    dear = json.loads(run("explain", policy, several, "--user", "ana", "--epsilon", "0.8", "--format", "json").stdout)
    assert (dear["joint"]["fits"], dear["joint"]["first_refused"]) == (False, 3)
    run("explain", policy, f"{BY_SEX}; SHOW ALL", "--user", "ana", status=1)


def test_a_target_is_an_option_and_the_price_of_all_rounds_is_told(run: Run, policy: Path) -> None:
    target = ("--user", "ana", "--target-error", "40 %")
    plan = json.loads(run("explain", policy, BY_SEX, *target, "--format", "json").stdout)
    assert plan["target"]["error"] == "40 %"
    answer = json.loads(run("query", policy, BY_SEX, *target, "--format", "json").stdout)
    assert plan["price"]["rho"] <= answer["cost"]["rho"] <= plan["target"]["most"]["rho"]
    assert answer["cost"]["epsilon"] == pytest.approx((2 * answer["cost"]["rho"]) ** 0.5)
    assert "for " in answer["notices"][0] and "target 40 % of the median size met: " in answer["notices"][0]
    refused = run("query", policy, BY_SEX, "--user", "ana", "--target-error", "0.1", status=1)
    assert "(22023)" in refused.stderr and "SET dpsql.target_error = '" in refused.stderr
    missed = run(
        "query",
        policy,
        "SELECT COUNT(*) FROM patients WHERE age > 109",
        "--user",
        "ana",
        "--set",
        "dpsql.target_error=1 %",
    )
    assert "WARNING: target 1 % of the median size missed: " in missed.stderr
