"""A database file that is replaced, written or prepared under a gateway: a reload reads what is there."""

import re
import shutil
from pathlib import Path

import duckdb
import psycopg
import pytest

from tests.cli.conftest import Program, Run
from tests.cli.test_operation import change, reload
from tests.cli.test_serve import Start, connect

COUNT = "SELECT COUNT(*) FROM patients"
COSTS = "SELECT COUNT(*) FROM visits WHERE cost >= 0"


@pytest.fixture
def ledger(run: Run, policy: Path) -> str:
    """Return a ledger in which ana has a password, of a policy whose noise is next to nothing."""
    text = policy.read_text().replace("max_epsilon = 1.0", "max_epsilon = 50")
    text = re.sub(r"^budget = { epsilon = \d+", "budget = { epsilon = 900", text, flags=re.MULTILINE)
    text = text.replace("query = { epsilon = 0.1,", "query = { epsilon = 20,")
    policy.write_text(text)
    url = f"sqlite:///{policy.parent / 'ledger.sqlite'}"
    run("user", "add", "ana", "--role", "analyst", "--ledger", url, stdin="secret\n")
    return url


def replacement(policy: Path, *statements: str) -> Path:
    """A copy of the database beside it, changed."""
    path = policy.with_name("new.duckdb")
    shutil.copy(policy.with_name("clinic.duckdb"), path)
    with duckdb.connect(str(path)) as database:
        for statement in statements:
            database.execute(statement)
    return path


def put(policy: Path, *statements: str) -> None:
    """Rename a changed copy over the database."""
    replacement(policy, *statements).replace(policy.with_name("clinic.duckdb"))


def count(connection: "psycopg.Connection[tuple[object, ...]]", sql: str = COUNT) -> int:
    row = connection.execute(sql.encode()).fetchone()
    assert row is not None and isinstance(row[0], int)
    return row[0]


def serve(start: Start, policy: Path, ledger: str) -> Program:
    return start("serve", policy, "--port", 0, "--ledger", ledger)


def is_prepared(connection: "psycopg.Connection[tuple[object, ...]]", sql: str) -> bool:
    """Whether a query would read a prepared table."""
    (plan,) = connection.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode()).fetchone() or ()
    assert isinstance(plan, dict)
    return bool(plan["forms"][0]["prepared"])


HALF = tuple(
    f"DELETE FROM {table} WHERE {which} % 2 = 0"
    for table, which in (
        ("prescriptions", "(SELECT patient_id FROM visits v WHERE v.visit_id = prescriptions.visit_id)"),
        ("visits", "patient_id"),
        ("patients", "patient_id"),
    )
)


def test_a_file_renamed_over_the_old_one_is_read_after_a_reload(policy: Path, ledger: str, start: Start) -> None:
    program = serve(start, policy, ledger)
    with connect(program) as connection:
        before = count(connection)
        put(policy, *HALF)
        assert count(connection) == before, "until it is told, the old file is what the policy describes"
        change(policy, 'data_version = "', 'data_version = "new ')
        assert "were reloaded" in reload(program)
        after = count(connection)
        assert after < before - 100
    assert program.stop() == 0
    program = serve(start, policy, ledger)
    with connect(program) as connection:
        assert count(connection) == after
    assert program.stop() == 0


@pytest.mark.parametrize(
    ("change_of", "reason"),
    [
        ("ALTER TABLE patients DROP COLUMN weight", 'the database\'s table has no column "weight"'),
        ("DROP TABLE prescriptions", 'the database has no table "main.prescriptions"'),
    ],
)
def test_a_file_that_lacks_what_the_policy_names_is_not_loaded(
    policy: Path, ledger: str, start: Start, change_of: str, reason: str
) -> None:
    program = serve(start, policy, ledger)
    with connect(program) as connection:
        before = count(connection)
        put(policy, *HALF, change_of)
        change(policy, 'data_version = "', 'data_version = "new ')
        said = reload(program)
        assert "the policies are unchanged: " in said
        assert reason in said
        assert count(connection) == before
    assert program.stop() == 0


def test_copies_that_were_made_anew_are_read_after_a_reload(policy: Path, ledger: str, start: Start, run: Run) -> None:
    program = serve(start, policy, ledger)
    with connect(program) as connection:
        before = count(connection, COSTS)
        assert not is_prepared(connection, COSTS)
        run("prepare", policy)
        assert "were reloaded" in reload(program)
        assert is_prepared(connection, COSTS), "copies of the file that is open"
        put(policy, *HALF)
        change(policy, 'data_version = "', 'data_version = "new ')
        assert "were reloaded" in reload(program)
        assert not is_prepared(connection, COSTS), "copies of another file"
        assert count(connection, COSTS) < before * 0.8
        run("prepare", policy)
        assert "were reloaded" in reload(program)
        assert is_prepared(connection, COSTS)
        assert count(connection, f"{COSTS} AND cost >= 0.01") < before * 0.8
    assert program.stop() == 0


def test_a_file_that_is_written_under_the_gateway_is_not_read_until_a_reload(
    policy: Path, ledger: str, start: Start
) -> None:
    program = serve(start, policy, ledger)
    with connect(program) as connection:
        before = count(connection)
        spent = connection.execute("SELECT * FROM dpsql.budget").fetchall()
        shutil.copyfile(replacement(policy, *HALF), policy.with_name("clinic.duckdb"))
        with pytest.raises(psycopg.OperationalError, match="was written while it was open; nothing was charged"):
            count(connection, COSTS)
        assert connection.execute("SELECT * FROM dpsql.budget").fetchall() == spent
        change(policy, 'data_version = "', 'data_version = "new ')
        assert "were reloaded" in reload(program)
        assert count(connection) < before - 100
    assert program.stop() == 0
