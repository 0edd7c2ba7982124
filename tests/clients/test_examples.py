"""The examples, by the commands of examples/README.md: each prints the same table, what it cost, and a refusal."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from dpsql.gateway.engine import Engine
from tests.clients.conftest import HINT, released
from tests.clients.machine import jdbc, node, psqls, r
from tests.conftest import ROOT
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer

ELDERS = "SELECT sex, COUNT(*) AS patients FROM patients WHERE age > 60 GROUP BY sex ORDER BY sex"
NULLS = {"None", "null", "NA", "not told"}
ROW = re.compile(rf"^\W*(?:\d\W+)?(F|M|X|{'|'.join(NULLS)})[^\w-]+(-?\d+)\W*$", re.MULTILINE)
"""A row of the table, however it is drawn: perhaps its number, then the key and the count."""

README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| [^|]+ \| `([^`]+)` \|", README, re.MULTILINE)
PROGRAMS = {
    **{"psql": psqls()[0], "python": sys.executable, "Rscript": r()},
    **{"node": "node" if node() else None, "java": "java" if jdbc() else None},
}
"""What the commands call; those that are not here are not run, and the session names them."""
RUN = [command for command in COMMANDS if PROGRAMS[command.split()[0]]]


def run(command: str, clinic: Engine, gateway: RunningServer, password: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(command)
    places = {"postgresql.jar": str(jdbc()), "demo/clinic.toml": str(clinic.policy.path)}
    environment = {
        **{"PGHOST": "127.0.0.1", "PGPORT": str(gateway.port), "PGDATABASE": "clinic"},
        **{"PGUSER": "ana", "PGPASSWORD": password, "NODE_PATH": str(node())},
        **{"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8", "JAVA_TOOL_OPTIONS": "-Dstdout.encoding=UTF-8"},
    }
    return subprocess.run(
        [str(PROGRAMS[program]), *(places.get(argument, argument) for argument in arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_SECONDS,
        check=False,
    )


def test_the_readme_names_every_example_and_no_other() -> None:
    files = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    asked = {re.findall(r"examples/(\S+)", command)[0] for command in COMMANDS}
    assert len(asked) == 6
    assert asked <= files
    others = {name for name in files - asked - {"README.md"} if not name.startswith("load_")}
    assert {name for name in others if f"`{name}`" not in README} == set()


@pytest.mark.parametrize("command", RUN)
def test_an_example_prints_the_table_the_price_and_the_refusal(
    command: str, clinic: Engine, gateway: RunningServer
) -> None:
    expected = released(clinic, ELDERS)
    spent = clinic.ledger.budgets("ana", clinic.policy).own.spent
    done = run(command, clinic, gateway, "secret")
    assert done.returncode == 0, done.stderr
    table = [(None if key in NULLS else key, int(count)) for key, count in ROW.findall(done.stdout)]
    assert table == expected
    told = done.stdout + done.stderr
    assert "price: free, your earlier release" in told or "'epsilon': 0.0" in told
    assert "rows of protected tables are not shown" in told
    assert HINT in told
    assert clinic.ledger.budgets("ana", clinic.policy).own.spent == spent


@pytest.mark.parametrize("command", [command for command in RUN if "in_process" not in command])
def test_an_example_that_is_not_let_in_fails(command: str, clinic: Engine, gateway: RunningServer) -> None:
    done = run(command, clinic, gateway, "wrong")
    assert done.returncode != 0
    assert "password authentication failed" in done.stderr
    assert ROW.findall(done.stdout) == []
