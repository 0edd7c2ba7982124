"""Node's pg: text and binary, named statements, cursors, several statements at once, transactions, errors."""

import json
import os
import subprocess
from typing import Any

from tests.clients.conftest import CODES, COUNTS, HINT, ROWS, VALUES
from tests.clients.machine import HERE, node
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer


def test_pg(gateway: RunningServer, counts: list[Any], elders: int, codes: list[str]) -> None:
    queries = {"values": VALUES, "counts": COUNTS, "codes": CODES, "rows": ROWS}
    queries["elders"] = "SELECT COUNT(*) AS n FROM patients WHERE age > $1 AND sex = $2"
    command = ["node", str(HERE / "client.js"), str(node()), gateway.dsn, json.dumps(queries)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False, env=_utc())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # JavaScript has one kind of number: bigint and numeric stay text.
    assert found["values"][:9] == [True, 1, 42, "5000000000", "1.50", 0.5, 1e20, "naïve", "v"]
    assert found["values"][9:13] == [
        *("2024-02-29T00:00:00.000Z", "12:30:01.5", "2024-02-29T12:30:00.500Z", "2024-02-29T10:30:00.000Z")
    ]
    assert found["values"][13:] == [
        {"days": 1, "hours": 2, "minutes": 3, "seconds": 4},
        "00000000-0000-0000-0000-000000000007",
        None,
    ]
    assert found["counts"] == [[sex, str(count)] for sex, count in counts]
    assert (found["elders"], found["listed"]) == (str(elders), "2")
    assert found["named"] == list(range(1, 11))
    assert found["binary"] == {"a": 1, "b": 2.5, "c": True}
    assert (found["several"], found["after"]) == ([1, 2], 1)
    assert found["first"] + found["others"] == codes
    assert found["refused"] == ["42501", HINT]
    assert any("your earlier release" in notice for notice in found["notices"])


def _utc() -> dict[str, str]:
    return {**os.environ, "TZ": "UTC"}
