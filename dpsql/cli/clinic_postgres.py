"""Load the demo clinic into a PostgreSQL database, with keys, foreign keys and comments as a clinic would have them."""

import tempfile
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg

_CHUNK: Final = 1 << 20
_DEFINITIONS: Final = b"""
CREATE TABLE icd10 (code text PRIMARY KEY, title text);
COMMENT ON TABLE icd10 IS 'The diagnoses and their codes';

CREATE TABLE doctors (doctor_id integer PRIMARY KEY, specialty text, city text);
COMMENT ON TABLE doctors IS 'One row per doctor; the list hangs in the hall';

CREATE TABLE patients (patient_id integer PRIMARY KEY, age integer, sex text, city text, weight double precision);
COMMENT ON TABLE patients IS 'One row per patient';
COMMENT ON COLUMN patients.age IS 'years';
COMMENT ON COLUMN patients.weight IS 'kg';

CREATE TABLE visits (visit_id integer PRIMARY KEY, patient_id integer REFERENCES patients,
    doctor_id integer REFERENCES doctors, visited_on date, cost numeric(10, 2), duration_min integer, icd text,
    city text);
COMMENT ON TABLE visits IS 'One row per visit of a patient to a doctor';
COMMENT ON COLUMN visits.cost IS 'euros';

CREATE TABLE prescriptions (prescription_id integer PRIMARY KEY, visit_id integer, drug text, dose double precision,
    boxes smallint);
COMMENT ON TABLE prescriptions IS 'One row per drug prescribed at a visit';
"""
# Some rows have no partner, as in real tables: these keys bind new rows alone.
_LOOSE_KEYS: Final = b"""
ALTER TABLE visits ADD FOREIGN KEY (icd) REFERENCES icd10 NOT VALID;
ALTER TABLE prescriptions ADD FOREIGN KEY (visit_id) REFERENCES visits NOT VALID;
ANALYZE;
"""
_TABLES: Final = ("icd10", "doctors", "patients", "visits", "prescriptions")


def load_clinic(file: Path, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Copy a clinic from a DuckDB file into tables of the schema that comes first, in one transaction."""
    with connection.transaction(), tempfile.TemporaryDirectory() as folder:
        connection.execute(_DEFINITIONS)
        with duckdb.connect(str(file), read_only=True) as source:
            for table in _TABLES:
                path = Path(folder) / f"{table}.csv"
                source.execute(f"COPY {table} TO '{path}' (HEADER false, NULLSTR '\\N')")
                _copy(path, table, connection)
        connection.execute(_LOOSE_KEYS)


def _copy(path: Path, table: str, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    statement = f"COPY {table} FROM STDIN (FORMAT csv, NULL '\\N')".encode()
    with path.open("rb") as file, connection.cursor() as cursor, cursor.copy(statement) as copy:
        while chunk := file.read(_CHUNK):
            copy.write(chunk)
