"""A wide world for tests of semantics: the clinic, a table of many types with poison in it, and PostgreSQL as oracle.

The policy's bounds cut nothing, and what dpsql leaves out by law (rows without a unit, NaN, infinities, moments
outside years 1 to 9999) the oracle's copy leaves out as well. So without noise both must give the same answer.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from tests.postgres import Connection, Server

WIDE_POLICY = """
version = 1

[dataset]
name = "wide"
url = "duckdb:///wide.duckdb"
privacy_unit = "patient"
budget = { epsilon = 10000, delta = 1e-3 }

[roles.analyst]
budget = { epsilon = 10000, delta = 1e-3 }
query = { epsilon = 1, delta = 1e-9, max_epsilon = 10 }

[tables.patients]
unit_key = "patient_id"
max_rows = 1
[tables.patients.columns]
age = { type = "integer", lower = -100, upper = 1000 }
sex = { type = "text", values = ["F", "M", "X"] }
city = { type = "text" }
weight = { type = "double", lower = 0, upper = 10000, step = 0.1 }

[tables.visits]
unit_key = "patient_id"
max_rows = 400
max_groups = 400
max_rows_per_group = 400
[tables.visits.columns]
doctor_id = { type = "integer", values_from = "doctors.doctor_id" }
visited_on = { type = "date", lower = 2020-01-01, upper = 2026-12-31 }
cost = { type = "decimal", lower = -1000, upper = 100000, step = 0.01 }
duration_min = { type = "integer", lower = -100, upper = 20000 }
icd = { type = "text" }
city = { type = "text" }

[tables.prescriptions]
unit_via = { table = "visits", on = { visit_id = "visit_id" } }
max_groups = 400
max_rows_per_group = 400
[tables.prescriptions.columns]
drug = { type = "text" }
dose = { type = "double", lower = -10, upper = 1000000000, step = 0.001 }
boxes = { type = "smallint", lower = 0, upper = 1000 }

[tables.refills]
unit_via = { table = "prescriptions", on = { prescription_id = "prescription_id" } }
max_groups = 400
max_rows_per_group = 400
[tables.refills.columns]
amount = { type = "integer", values = [1, 2, 3] }

[tables.events]
unit_key = "person"
max_rows = 20
max_groups = 20
max_rows_per_group = 20
[tables.events.columns]
person = { type = "bigint" }
n = { type = "integer", lower = -2147483648, upper = 2147483647 }
big = { type = "bigint", lower = -1000000000000, upper = 1000000000000 }
small = { type = "smallint", lower = -100, upper = 100 }
x = { type = "double", lower = -1000, upper = 1000, step = 0.25 }
r = { type = "real", lower = -1000, upper = 1000, step = 0.25 }
price = { type = "numeric", lower = -1000, upper = 1000, step = 0.001 }
word = { type = "text" }
ok = { type = "boolean" }
day = { type = "date", lower = 2020-01-01, upper = 2030-12-31 }
moment = { type = "timestamp" }
zoned = { type = "timestamptz" }
clock = { type = "time" }
tag = { type = "uuid" }

[tables.icd10]
public = true
[tables.icd10.columns]
code = { type = "text", nullable = false }
title = { type = "text" }

[tables.doctors]
public = true
[tables.doctors.columns]
doctor_id = { type = "integer", nullable = false }
specialty = { type = "text" }
city = { type = "text" }

[tables.samples]
public = true
[tables.samples.columns]
id = { type = "integer" }
n = { type = "integer" }
big = { type = "bigint" }
small = { type = "smallint" }
x = { type = "double" }
r = { type = "real" }
price = { type = "numeric" }
word = { type = "text" }
ok = { type = "boolean" }
day = { type = "date" }
moment = { type = "timestamp" }
zoned = { type = "timestamptz" }
clock = { type = "time" }
tag = { type = "uuid" }
"""

_COLUMNS = """n INTEGER, big BIGINT, small SMALLINT, x {double}, r REAL, price NUMERIC(10, 3), word {text}, ok BOOLEAN,
    day DATE, moment TIMESTAMP, zoned TIMESTAMPTZ, clock TIME, tag UUID"""
_DUCKDB = _COLUMNS.format(double="DOUBLE", text="VARCHAR")
_POSTGRES = _COLUMNS.format(double="DOUBLE PRECISION", text="TEXT")

# Values at the edges of their types; the last rows hold what dpsql reads as NULL.
_SAMPLES = """
    (1, 0, 0, 0, 0.0, 0.0, 0.000, '', true, '2024-02-29', '2024-02-29 12:34:56', '2024-02-29 12:34:56+00', '00:00:00',
        '00000000-0000-0000-0000-000000000001'),
    (2, 7, 7, 7, 7.5, 7.5, 7.125, 'Alpha', false, '2024-12-31', '2024-12-31 23:59:59.999', '2024-12-31 23:59:59+00',
        '23:59:59', '00000000-0000-0000-0000-000000000002'),
    (3, -7, -7, -7, -7.5, -7.5, -7.125, 'beta', NULL, '2025-01-01', '2025-01-01 00:00:00', '2025-01-01 00:00:00+00',
        '12:30:00', '00000000-0000-0000-0000-000000000003'),
    (4, 2147483647, 1000000000000, 100, 999.75, 999.75, 999.999, '100%', true, '2021-01-03', '2021-01-03 06:00:00',
        '2021-01-03 06:00:00+00', '06:15:00', '00000000-0000-0000-0000-000000000004'),
    (5, -2147483648, -1000000000000, -100, -999.75, -999.75, -999.999, 'under_score', false, '2020-01-01',
        '2020-01-01 00:00:00.000001', '2020-01-01 01:00:00+01', '06:15:00.5', '00000000-0000-0000-0000-000000000005'),
    (6, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (7, 3, 3, 3, 2.5, 2.5, 2.500, 'ALPHA', true, '2024-03-31', '2024-03-31 02:30:00', '2024-03-31 02:30:00+00',
        '01:02:03', '00000000-0000-0000-0000-000000000007'),
    (8, 2, 2, 2, 0.25, 0.25, 0.001, 'back\\slash', false, '2026-07-05', '2026-07-05 18:00:00', '2026-07-05 18:00:00+00',
        '18:00:00', '00000000-0000-0000-0000-000000000008'),
    (9, 1, 1, 1, 1.5, 1.5, 0.500, ' spaced ', true, '2022-06-15', '2022-06-15 09:00:00', '2022-06-15 09:00:00+00',
        '09:00:00', '00000000-0000-0000-0000-000000000009'),
    (10, -1, -1, -1, -1.5, -1.5, -0.500, '12', false, '2023-10-29', '2023-10-29 02:30:00', '2023-10-29 02:30:00+00',
        '02:30:00', '00000000-0000-0000-0000-00000000000a')
"""
_POISON = """
    INSERT INTO {table} ({key}, n, x, r, moment, zoned) VALUES
        (11, 5, 'NaN', 'NaN', 'infinity', '-infinity'), (12, 6, 'inf', '-inf', '-infinity', 'infinity')
"""
_CLEANED = {
    "icd10": "SELECT code, title FROM icd10",
    "doctors": "SELECT doctor_id, specialty, city FROM doctors",
    "patients": "SELECT patient_id, age, sex, city, CASE WHEN isfinite(weight) THEN weight END FROM patients",
    "visits": "SELECT * FROM visits WHERE patient_id IS NOT NULL",
    "prescriptions": """SELECT p.prescription_id, p.visit_id, p.drug, CASE WHEN isfinite(p.dose) THEN p.dose END,
        p.boxes FROM prescriptions p JOIN visits v ON v.visit_id = p.visit_id WHERE v.patient_id IS NOT NULL""",
    "refills": """SELECT r.* FROM refills r JOIN prescriptions p ON p.prescription_id = r.prescription_id
        JOIN visits v ON v.visit_id = p.visit_id WHERE v.patient_id IS NOT NULL""",
    "samples": "SELECT * REPLACE ({finite}) FROM samples",
    "events": "SELECT * REPLACE ({finite}) FROM events WHERE person IS NOT NULL",
}
_FINITE = ", ".join(f"CASE WHEN isfinite({name}) THEN {name} END AS {name}" for name in ("x", "r", "moment", "zoned"))
_TABLES = {
    "icd10": "code TEXT, title TEXT",
    "doctors": "doctor_id INTEGER, specialty TEXT, city TEXT",
    "patients": "patient_id INTEGER, age INTEGER, sex TEXT, city TEXT, weight DOUBLE PRECISION",
    "visits": """visit_id INTEGER, patient_id INTEGER, doctor_id INTEGER, visited_on DATE, cost NUMERIC(10, 2),
        duration_min INTEGER, icd TEXT, city TEXT""",
    "prescriptions": "prescription_id INTEGER, visit_id INTEGER, drug TEXT, dose DOUBLE PRECISION, boxes SMALLINT",
    "refills": "refill_id INTEGER, prescription_id INTEGER, amount INTEGER",
    "samples": f"id INTEGER, {_POSTGRES}",
    "events": f"person BIGINT, {_POSTGRES}",
}


def add_events(path: Path) -> None:
    """Add refills (of prescriptions), samples (public) and events (three rows a person) to a DuckDB file."""
    with duckdb.connect(str(path)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE TABLE refills (refill_id INTEGER, prescription_id INTEGER, amount INTEGER)")
        connection.execute(
            "INSERT INTO refills SELECT row_number() OVER (), prescription_id, n FROM prescriptions, "
            "(VALUES (1), (2), (3)) AS v (n) WHERE prescription_id % (n * 2 + 1) = 0"
        )
        connection.execute("INSERT INTO refills VALUES (-1, NULL, 1), (-2, -5, 2)")
        connection.execute(f"CREATE TABLE samples (id INTEGER, {_DUCKDB})")
        connection.execute(f"INSERT INTO samples VALUES {_SAMPLES}")
        connection.execute(f"CREATE TABLE events (person BIGINT, {_DUCKDB})")
        # Person p has samples p, p + 1 and p + 2, so every value belongs to several persons; one has none.
        connection.execute(
            "INSERT INTO events SELECT (s.id + k) % 10 + 1, s.* EXCLUDE (id) FROM samples s, range(3) r(k)"
        )
        connection.execute("INSERT INTO events SELECT NULL, s.* EXCLUDE (id) FROM samples s")
        connection.execute(_POISON.format(table="samples", key="id"))
        connection.execute(_POISON.format(table="events", key="person"))


@contextmanager
def postgres_oracle(wide: Path, folder: Path, server: Server) -> Iterator[Connection]:
    """A session on a PostgreSQL server that sees the wide world as dpsql reads it."""
    with server.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET statement_timeout = '20s'")
        # A copy: DuckDB opens a file once in a process, or always with the same configuration.
        _copy(Path(shutil.copy(wide, folder / "oracle.duckdb")), connection)
        yield connection


def _copy(wide: Path, connection: Connection) -> None:
    with duckdb.connect(str(wide), read_only=True) as source:
        source.execute("SET TimeZone = 'UTC'")
        for table, columns in _TABLES.items():
            connection.execute(f"CREATE TEMPORARY TABLE {table} ({columns})")
            select = _CLEANED[table].replace("{finite}", _FINITE)
            names = "CAST(COLUMNS(*) AS VARCHAR)"
            rows = source.execute(f"SELECT {names} FROM ({select})").fetchall()
            with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        # Correlated subqueries look up one patient or doctor at a time.
        connection.execute("CREATE INDEX ON visits (patient_id)")
        connection.execute("CREATE INDEX ON visits (doctor_id)")
        connection.execute("ANALYZE visits")
