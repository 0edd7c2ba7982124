"""connectorx, and Polars on top of it: by COPY in binary and in CSV, by a cursor, and by the simple protocol.

It runs in a process of its own: while it waits for the gateway it lets no other thread of Python run.
"""

import json
import subprocess
import sys
from typing import Any

from tests.clients.conftest import CODES, COUNTS, ROWS
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer

SCRIPT = """
import json, sys
import connectorx, polars
dsn, counts, codes, rows = sys.argv[1:]
def read(sql, **options):
    return [list(row.values()) for row in connectorx.read_sql(dsn, sql, return_type="arrow", **options).to_pylist()]
doctors = "SELECT doctor_id, specialty FROM doctors"
types = '''SELECT true AS a, 42 AS b, 5000000000 AS c, 1.50 AS d, 0.5::float8 AS e, 'naïve' AS f,
    date '2024-02-29' AS g, timestamp '2024-02-29 12:30:00.5' AS h, NULL::text AS i'''
told = {protocol: read(counts, protocol=protocol) for protocol in ("binary", "csv", "cursor", "simple")}
told["codes"] = read(codes)
told["types"] = list(map(str, *read(types)))
told["parts"] = sorted(read(doctors, partition_on="doctor_id", partition_num=2)) == sorted(read(doctors))
told["polars"] = list(map(list, polars.read_database_uri(counts, dsn, engine="connectorx").rows()))
try:
    read(rows)
except RuntimeError as refused:
    told["refused"] = str(refused)
print(json.dumps(told))
"""


def test_reads(gateway: RunningServer, counts: list[Any], codes: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, gateway.dsn, COUNTS, CODES, ROWS],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for way in ("binary", "csv", "cursor", "simple", "polars"):
        assert [tuple(row) for row in told[way]] == counts
    assert told["codes"] == [[code] for code in codes]
    assert told["types"] == [
        *(
            "True",
            "42",
            "5000000000",
            "1.5000000000",
            "0.5",
            "naïve",
            "2024-02-29",
            "2024-02-29 12:30:00.500000",
            "None",
        )
    ]
    assert told["parts"]
    assert "rows of protected tables are not shown" in told["refused"]
