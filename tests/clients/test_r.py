"""R: DBI by RPostgreSQL: values and their classes, parameters, tables, fetching in parts, errors."""

import os
import subprocess
from typing import Any

import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROWS, VALUES
from tests.clients.machine import HERE, r
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer


@pytest.fixture(scope="module")
def answers(gateway: RunningServer) -> dict[str, str]:
    """What the client was answered, by the names of its questions."""
    named = {"PGHOST": "127.0.0.1", "PGPORT": str(gateway.port), "PGDATABASE": "clinic"}
    done = subprocess.run(
        [str(r()), str(HERE / "client.R"), VALUES, COUNTS, CODES, ROWS],
        env=os.environ | named | {"PGUSER": "ana", "PGPASSWORD": "secret", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "NOTICE:  price: free, your earlier release" in done.stderr
    found = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert all(found.values())
    return found


def test_queries(answers: dict[str, str], counts: list[Any], elders: int, codes: list[str]) -> None:
    assert answers["counts"] == ";".join(f"{'NA' if sex is None else sex}|{count}" for sex, count in counts)
    assert answers["elders"] == str(elders)
    assert answers["first"].split(";") + answers["others"].split(";") == codes


def test_values(answers: dict[str, str]) -> None:
    assert answers["values"].startswith("TRUE|1|42|5e+09|1.5|0.5|1e+20|naïve|v|2024-02-29|12:30:01.5|")
    assert answers["values"].endswith("|1 day 02:03:04|00000000-0000-0000-0000-000000000007|NA")
    numbers = ["logical", *["integer"] * 2, *["numeric"] * 4]
    others = ["character", "character", "Date", "character", "POSIXct", "POSIXct", "character", "character", "integer"]
    assert answers["classes"].split("|") == numbers + others


def test_browsing(answers: dict[str, str]) -> None:
    assert answers["tables"] == "patients;visits;prescriptions;doctors;icd10"
    assert answers["fields"] == "patient_id;age;sex;city;weight"
    assert answers["exists"] == "TRUE|FALSE"
    assert len(answers["read"].split(";")) == 3


def test_errors(answers: dict[str, str]) -> None:
    assert "ERROR:  rows of protected tables are not shown" in answers["refused"]
    assert f"HINT:  {HINT}" in answers["refused"]
    assert answers["after"] == "1"
