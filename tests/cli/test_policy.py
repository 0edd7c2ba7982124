import tomllib
from pathlib import Path

import duckdb
import pytest

from dpsql.policy import load_policy
from tests.cli.conftest import Run

AWKWARD = '''
CREATE TABLE people ("person id" INTEGER PRIMARY KEY, "naïve ""name""" VARCHAR, born DATE, paid DECIMAL(9,2),
  ok BOOLEAN, seen TIMESTAMP, "at" TIMESTAMPTZ, noon TIME, score DOUBLE, tags VARCHAR[],
  kind ENUM ('canary one', 'canary two'),
  extra STRUCT(a INTEGER), raw BLOB, span INTERVAL, id UUID, "odd
line" INTEGER);
INSERT INTO people ("person id", "naïve ""name""", paid) VALUES (4711, 'canary three', 98765.43);
CREATE SCHEMA "other schema";
CREATE TABLE "other schema"."to]do" (a INTEGER, b INTEGER, UNIQUE (a, b));
CREATE VIEW seen AS SELECT * FROM people;
'''


@pytest.fixture
def awkward(tmp_path: Path) -> Path:
    path = tmp_path / "awk ward.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(AWKWARD)
    return path


def test_a_draft_is_toml_whatever_the_names(run: Run, awkward: Path) -> None:
    text = run("policy", "init", f"duckdb:///{awkward}").stdout
    draft = tomllib.loads(text)
    assert draft["dataset"]["name"] == "awk ward"
    assert draft["dataset"]["url"] == f"duckdb:///{awkward}"
    assert set(draft["tables"]) == {"people", "seen", "other schema.to]do"}
    columns = draft["tables"]["people"]["columns"]
    assert columns["person id"] == {"type": "integer"}
    assert 'naïve "name"' in columns
    assert "odd\nline" in columns
    assert columns["at"] == {"type": "timestamptz"}
    assert columns["paid"] == {"type": "decimal"}
    assert "tags" not in columns
    assert "extra" not in columns
    assert "TODO" in text
    assert '"person id"' in text


def test_a_draft_has_nothing_of_the_values(run: Run, awkward: Path) -> None:
    text = run("policy", "init", f"duckdb:///{awkward}").stdout
    for value in ("canary", "4711", "98765"):
        assert value not in text


def test_a_draft_is_no_policy_before_somebody_says_whose_rows_these_are(run: Run, policy: Path) -> None:
    draft = policy.parent / "draft.toml"
    text = run("policy", "init", f"duckdb:///{policy.parent / 'clinic.duckdb'}").stdout
    draft.write_text(text)
    assert "neither unit_key nor unit_via" in run("policy", "check", draft, status=1).stderr
    text = text.replace("[tables.patients]\n", '[tables.patients]\nunit_key = "patient_id"\n')
    text = text.replace("[tables.visits]\n", '[tables.visits]\nunit_key = "patient_id"\n')
    text = text.replace(
        "[tables.prescriptions]\n",
        '[tables.prescriptions]\nunit_via = { table = "visits", on = { visit_id = "visit_id" } }\n',
    )
    for public in ("doctors", "icd10"):
        start = text.index(f"[tables.{public}]")
        end = text.index("\nmax_rows", start)
        text = text[:start] + f"[tables.{public}]\npublic = true\n" + text[text.index("\n", end + 1) + 1 :]
    draft.write_text(text)
    checked = run("policy", "check", draft).stdout
    assert 'valid; dataset "clinic" has 3 protected and 2 public tables' in checked


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://reader@host/db", "from PostgreSQL is not available"),
        ("clinic.duckdb", "names no DuckDB file"),
        ("duckdb:///", "names no DuckDB file"),
        ("duckdb:///nowhere.duckdb", "there is no file"),
    ],
)
def test_what_cannot_be_drafted_from_is_refused(run: Run, url: str, told: str) -> None:
    assert told in run("policy", "init", url, status=1).stderr


def test_files_that_are_no_database_or_have_no_table_are_refused(run: Run, tmp_path: Path) -> None:
    junk = tmp_path / "junk.duckdb"
    junk.write_text("x" * 5000)
    assert "not a DuckDB file" in run("policy", "init", f"duckdb:///{junk}", status=1).stderr
    empty = tmp_path / "empty.duckdb"
    duckdb.connect(str(empty)).close()
    assert "has no tables" in run("policy", "init", f"duckdb:///{empty}", status=1).stderr


def test_check_looks_into_the_database(run: Run, policy: Path) -> None:
    assert "3 protected and 2 public" in run("policy", "check", policy).stdout
    policy.write_text(policy.read_text().replace("weight =", "height ="))
    assert 'no column "height"' in run("policy", "check", policy, status=1).stderr


def test_groups_of_users_are_shown(run: Run, policy: Path) -> None:
    text = policy.read_text()
    for line in ("# [groups.team]", '# budget = { epsilon = 8, delta = 1e-6, window = "30 days" }'):
        assert line in text
        text = text.replace(line, line[2:])
    policy.write_text(f'{text}\n[groups.lab]\nbudget = {{ epsilon = 2, delta = 1e-6 }}\ndescription = "The lab"\n')
    shown = run("policy", "show", policy).stdout.splitlines()
    terms = "delta 1e-06, 5e-07 of it for private keys; zcdp"
    assert f'group "team", shared by its members: epsilon 8, {terms}; renews every 30 days' in shown
    assert f'group "lab", shared by its members: epsilon 2, {terms}; never renews: The lab' in shown


def test_show_fills_in_the_defaults(run: Run, policy: Path) -> None:
    shown = run("policy", "show", policy).stdout
    assert "epsilon 20, delta 1e-06, 5e-07 of it for private keys; zcdp; never renews" in shown
    assert "rows of one patient (by way of visits) that count: 40" in shown
    prescriptions = load_policy(policy).table("prescriptions")
    assert prescriptions is not None
    assert f"{prescriptions.max_rows_per_group} in each of {prescriptions.max_groups} groups" in shown
    for line in (
        ("age", "integer", "0 to 110", "public: each within the limits"),
        ("city", "text", "", "private: costs delta"),
        ("weight", "double precision", "1 to 300, step 0.1", "no"),
        ("visited_on", "date", "2020-01-01 to 2026-12-31", "public: each within the limits"),
        ("icd", "text", "", "public: icd10.code"),
        ("title", "text", "", "public"),
    ):
        assert line in {tuple(part.strip() for part in row.split("|")) for row in shown.splitlines()}
