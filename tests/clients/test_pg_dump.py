"""pg_dump: it reads the whole catalog; then the rows of public tables come, and those of protected ones are refused."""

import os
import subprocess

import pytest

from tests.clients.machine import pg_dumps
from tests.wire.conftest import RunningServer


@pytest.fixture(params=pg_dumps())
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pg_dump(program: str, gateway: RunningServer, *words: str) -> subprocess.CompletedProcess[str]:
    command = [program, *words, "-d", gateway.dsn]
    environment = {**os.environ, "PGCLIENTENCODING": "UTF8"}
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False, env=environment)


def test_it_writes_the_schema(program: str, gateway: RunningServer) -> None:
    done = pg_dump(program, gateway, "--schema-only")
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("CREATE TABLE public.patients (", "CREATE TABLE public.doctors (", "CREATE VIEW dpsql.budget AS"):
        assert line in done.stdout


@pytest.mark.parametrize("words", [(), ("--inserts",), ("--table", "patients")])
def test_rows_of_protected_tables_are_refused_in_the_usual_words(
    program: str, gateway: RunningServer, words: tuple[str, ...]
) -> None:
    done = pg_dump(program, gateway, *words)
    assert done.returncode == 1
    assert "HINT:  Aggregate them. Write: SELECT COUNT(*) FROM " in done.stderr
    rows = done.stdout.partition("COPY public.patients (patient_id, age, sex, city, weight) FROM stdin;")[2]
    assert not rows.strip() and "INSERT INTO public.patients" not in done.stdout


@pytest.mark.parametrize("words", [(), ("--inserts",)])
def test_it_writes_a_public_table(
    program: str, gateway: RunningServer, codes: list[str], words: tuple[str, ...]
) -> None:
    done = pg_dump(program, gateway, "--table", "icd10", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(code in done.stdout for code in codes)
