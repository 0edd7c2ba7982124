"""JDBC: prepared statements until they turn binary, getTables and their like, fetch size, transactions, errors."""

import subprocess
from collections import defaultdict
from typing import Any

import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROWS, VALUES
from tests.clients.machine import HERE, jdbc
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer


@pytest.fixture(scope="module")
def answers(gateway: RunningServer) -> dict[str, list[str]]:
    """What the client was answered, by the names of its questions."""
    address = f"jdbc:postgresql://127.0.0.1:{gateway.port}/clinic"
    command = ["java", "-Duser.timezone=UTC", "-Dfile.encoding=UTF-8", "-cp", str(jdbc()), str(HERE / "Client.java")]
    arguments = [*command, address, VALUES, COUNTS, CODES, ROWS]
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = defaultdict(list)
    for line in done.stdout.splitlines():
        name, _, answer = line.partition("\t")
        found[name].append(answer)
    return dict(found)


def test_queries(answers: dict[str, list[str]], counts: list[Any], elders: int) -> None:
    assert answers["counts"] == [";".join(f"{'null' if sex is None else sex}|{count}" for sex, count in counts)]
    assert "your earlier release" in answers["warning"][0]
    assert (answers["first"], answers["second"]) == (["1"], ["2"])
    assert answers["types"] == ["int4|text|int8"]
    assert answers["elders"] == [str(elders)] * 10
    assert answers["listed"] == ["2"] * 10
    assert answers["parameters"] == ["2024-02-29|12.50|2024-02-29 12:30:00+00"] * 10


def test_values_are_the_same_in_text_and_in_binary(answers: dict[str, list[str]]) -> None:
    first, *others = answers["values"]
    assert first.startswith("t|1|42|5000000000|1.50|0.5|1e+20|naïve|v|2024-02-29|12:30:01.5|2024-02-29 12:30:00.5|")
    assert first.endswith("|00000000-0000-0000-0000-000000000007|null")
    # The driver prints what is binary by Java's own rules.
    assert {other.replace("1.0E20", "1e+20") for other in others} == {first}


def test_browsing(answers: dict[str, list[str]]) -> None:
    assert answers["product"][0].startswith("PostgreSQL 15")
    assert "patients|One row per patient; unit key patient_id" in answers["tables"][0]
    assert answers["columns"] == [
        "patient_id|int4|NO;age|int4|YES;sex|text|YES;city|text|YES;weight|float8|YES",
    ]
    assert answers["key"] == ["patient_id|patients_pkey"]
    assert answers["references"] == ["patients|patient_id"]
    assert (answers["referred"], answers["indexes"]) == (["visits"], ["patients_pkey"])
    assert answers["schemas"] == ["dpsql;information_schema;pg_catalog;public"]
    assert answers["databases"] == ["clinic"]


def test_fetch_size_and_limits(answers: dict[str, list[str]], codes: list[str]) -> None:
    assert answers["fetched"] == [";".join(codes)]
    assert answers["limited"] == [";".join(codes[:2])]


def test_transactions_and_errors(answers: dict[str, list[str]]) -> None:
    assert answers["serializable"] == ["true"]
    (refused,) = answers["refused"]
    assert refused.startswith("42501|") and HINT in refused
    assert (answers["after"], answers["valid"]) == (["1"], ["true"])
