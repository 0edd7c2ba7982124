"""Sequelize over pg: it sets its time zone as an interval, reads tables and keys, counts, and is refused rows."""

import json
import subprocess

from dpsql.gateway.engine import Engine
from tests.clients.conftest import released
from tests.clients.machine import HERE, node
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer


def test_sequelize(gateway: RunningServer, clinic: Engine) -> None:
    command = ["node", str(HERE / "client.js"), str(node()), gateway.dsn, "sequelize"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["tables"]) >= {"patients", "visits"}
    assert sorted(found["columns"]) == ["age", "city", "patient_id", "sex", "weight"]
    assert found["foreign"] == ["patient_id", "patients", "patient_id"]
    ((count,),) = released(clinic, "SELECT count(*) AS \"count\" FROM patients WHERE sex = 'F'")
    assert found["count"] == count
    assert (found["inside"], found["refused"]) == ({"a": 1}, "42501")
