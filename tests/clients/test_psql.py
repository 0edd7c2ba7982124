"""psql, the tests' own and the system's: scripts, variables, \\gset, \\gexec, \\copy, errors with their hints."""

import os
import subprocess
from typing import Any

import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROWS
from tests.clients.machine import psqls
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer


def psql(program: str, gateway: RunningServer, script: str) -> subprocess.CompletedProcess[str]:
    options = [program, "-X", "-q", "-A", "-t", "-F", "|", "-d", gateway.dsn]
    environment = {**os.environ, "PGCLIENTENCODING": "UTF8"}
    return subprocess.run(
        options, input=script, capture_output=True, encoding="utf-8", timeout=HANG_SECONDS, check=False, env=environment
    )


@pytest.mark.parametrize("program", psqls())
def test_scripts(program: str, gateway: RunningServer, counts: list[Any], codes: list[str]) -> None:
    script = f"""
        SET dpsql.notices = off;
        {COUNTS};
        SELECT COUNT(*) AS doctors FROM doctors \\gset
        SELECT :doctors > 0;
        \\copy ({CODES}) TO STDOUT
        BEGIN;
        {ROWS};
        SELECT 1;
        ROLLBACK;
        \\set FETCH_COUNT 7
        {CODES};
        \\d patients
        \\conninfo
    """
    done = psql(program, gateway, script)
    lines = done.stdout.splitlines()
    assert lines[: len(counts)] == [f"{sex or ''}|{count}" for sex, count in counts]
    rest = lines[len(counts) :]
    assert rest[0] == "t"
    assert rest[1 : len(codes) + 1] == codes == rest[len(codes) + 1 : 2 * len(codes) + 1]
    assert any(line.startswith("weight|double precision") for line in rest)
    assert f"HINT:  {HINT}" in done.stderr
    assert "current transaction is aborted" in done.stderr


@pytest.mark.parametrize("program", psqls())
def test_variables_and_several_results(program: str, gateway: RunningServer, elders: int) -> None:
    script = """
        \\set age 60
        SET dpsql.notices = off;
        SELECT COUNT(*) FROM patients WHERE age > :age AND sex = :'sex';
        SELECT 1 \\; SELECT 2;
        PREPARE p (integer) AS SELECT $1 + 1;
        EXECUTE p (41);
        SELECT 'SELECT 7' AS x \\gexec
    """
    done = psql(program, gateway, f"\\set sex F\n{script}")
    assert done.stdout.split() == [str(elders), "1", "2", "42", "7"]
    assert done.stderr == ""
