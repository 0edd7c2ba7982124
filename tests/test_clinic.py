from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from dpsql.cli.clinic import CITIES, DIAGNOSES, DOSES, SEXES, generate_clinic

PATIENTS = 500

COLUMNS = {
    "patients": [
        ("patient_id", "INTEGER"),
        ("age", "INTEGER"),
        ("sex", "VARCHAR"),
        ("city", "VARCHAR"),
        ("weight", "DOUBLE"),
    ],
    "visits": [
        ("visit_id", "INTEGER"),
        ("patient_id", "INTEGER"),
        ("doctor_id", "INTEGER"),
        ("visited_on", "DATE"),
        ("cost", "DECIMAL(10,2)"),
        ("duration_min", "INTEGER"),
        ("icd", "VARCHAR"),
        ("city", "VARCHAR"),
    ],
    "prescriptions": [
        ("prescription_id", "INTEGER"),
        ("visit_id", "INTEGER"),
        ("drug", "VARCHAR"),
        ("dose", "DOUBLE"),
        ("boxes", "SMALLINT"),
    ],
    "doctors": [("doctor_id", "INTEGER"), ("specialty", "VARCHAR"), ("city", "VARCHAR")],
    "icd10": [("code", "VARCHAR"), ("title", "VARCHAR")],
}
KEYS = {table: columns[0][0] for table, columns in COLUMNS.items()}
FULL = {"doctors.specialty", "icd10.title"}  # public columns without NULLs
NULLABLE = [
    (table, column)
    for table, columns in COLUMNS.items()
    for column, _ in columns
    if column != KEYS[table] and f"{table}.{column}" not in FULL
]


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        found: list[tuple[object, ...]] = connection.execute(sql).fetchall()
        return found


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    # As text, for NaN does not equal itself.
    return {table: rows(path, f"SELECT CAST(t AS VARCHAR) FROM {table} t ORDER BY ALL") for table in COLUMNS}


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clinic") / "clinic.duckdb"
    generate_clinic(path, patients=PATIENTS)
    return path


@pytest.fixture(scope="module")
def read(clinic: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(str(clinic), read_only=True) as connection:
        yield connection


def value(connection: duckdb.DuckDBPyConnection, sql: str) -> float:
    row = connection.execute(sql).fetchone()
    assert row is not None
    return float(row[0])


def test_tables_and_columns(read: duckdb.DuckDBPyConnection) -> None:
    found = read.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    ).fetchall()
    assert sorted(found) == sorted((table, *column) for table, columns in COLUMNS.items() for column in columns)


def test_primary_keys(read: duckdb.DuckDBPyConnection) -> None:
    found = read.execute(
        "SELECT table_name, constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'"
    ).fetchall()
    assert {table: columns for table, columns in found} == {table: [key] for table, key in KEYS.items()}


def test_sizes(read: duckdb.DuckDBPyConnection) -> None:
    visits = value(read, "SELECT COUNT(*) FROM visits")
    assert value(read, "SELECT COUNT(*) FROM patients") == PATIENTS
    assert 18 < visits / PATIENTS < 22
    assert 0.5 < value(read, "SELECT COUNT(*) FROM prescriptions") / visits < 0.7
    assert value(read, "SELECT COUNT(*) FROM doctors") == 200
    assert value(read, "SELECT COUNT(*) FROM icd10") == len(DIAGNOSES) == 40


def test_the_same_seed_gives_the_same_rows(clinic: Path, tmp_path: Path) -> None:
    generate_clinic(tmp_path / "again.duckdb", patients=PATIENTS)
    generate_clinic(tmp_path / "other.duckdb", patients=PATIENTS, seed=7)
    assert content(tmp_path / "again.duckdb") == content(clinic)
    assert content(tmp_path / "other.duckdb")["patients"] != content(clinic)["patients"]


def test_progress_rises_to_one_and_an_earlier_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    path.write_text("an earlier file")
    (tmp_path / "clinic.duckdb.partial").write_text("an interrupted run")
    shares: list[float] = []
    generate_clinic(path, patients=20, progress=shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert rows(path, "SELECT COUNT(*) FROM patients") == [(20,)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", range(4))
def test_a_clinic_of_one_patient(tmp_path: Path, seed: int) -> None:
    generate_clinic(tmp_path / "clinic.duckdb", patients=1, seed=seed)
    assert rows(tmp_path / "clinic.duckdb", "SELECT COUNT(*) FROM patients") == [(1,)]


@pytest.mark.parametrize(("table", "column"), NULLABLE)
def test_nulls_are_present_and_few(read: duckdb.DuckDBPyConnection, table: str, column: str) -> None:
    share = value(read, f"SELECT AVG(CAST({column} IS NULL AS INTEGER)) FROM {table}")
    assert 0 < share < 0.08


@pytest.mark.parametrize(
    "outlier",
    [
        "patients WHERE age = 130",
        "patients WHERE age = -1",
        "patients WHERE isnan(weight)",
        "patients WHERE isinf(weight)",
        "visits WHERE cost = 99999.99",
        "visits WHERE cost < 0",
        "visits WHERE duration_min > 1440",
        "visits WHERE icd NOT IN (SELECT code FROM icd10)",
        "prescriptions WHERE visit_id NOT IN (SELECT visit_id FROM visits)",
        "prescriptions WHERE isinf(dose)",
        "prescriptions WHERE boxes = 999",
    ],
)
def test_outliers_are_present_and_few(read: duckdb.DuckDBPyConnection, outlier: str) -> None:
    table = outlier.split()[0]
    assert 0 < value(read, f"SELECT COUNT(*) FROM {outlier}") <= 1 + value(read, f"SELECT COUNT(*) / 1000 FROM {table}")


def test_values_stay_in_their_domains(read: duckdb.DuckDBPyConnection) -> None:
    assert {sex for (sex,) in read.execute("SELECT DISTINCT sex FROM patients").fetchall()} == {*SEXES, None}
    assert {drug for (drug,) in read.execute("SELECT DISTINCT drug FROM prescriptions").fetchall()} <= {*DOSES, None}
    assert not value(
        read, "SELECT COUNT(*) FROM visits WHERE visited_on NOT BETWEEN DATE '2020-01-01' AND DATE '2026-10-31'"
    )
    assert not value(read, "SELECT COUNT(*) FROM visits WHERE doctor_id NOT IN (SELECT doctor_id FROM doctors)")


def test_visits_are_skewed_enough_for_bounds_to_cut(read: duckdb.DuckDBPyConnection) -> None:
    per_patient = "(SELECT COUNT(*) AS n FROM visits WHERE patient_id IS NOT NULL GROUP BY patient_id)"
    assert value(read, f"SELECT MEDIAN(n) FROM {per_patient}") < 16
    assert 0.03 < value(read, f"SELECT AVG(CAST(n > 50 AS INTEGER)) FROM {per_patient}") < 0.15
    assert value(read, f"SELECT MAX(n) FROM {per_patient}") <= 300


def test_cities_are_few_large_ones_and_a_long_tail(read: duckdb.DuckDBPyConnection) -> None:
    sizes = dict(read.execute("SELECT city, COUNT(*) FROM patients WHERE city IS NOT NULL GROUP BY city").fetchall())
    assert sum(sizes[city] for city in CITIES) > 0.6 * PATIENTS
    assert sum(1 for size in sizes.values() if size <= 3) > 20


def test_the_answers_tell_something(read: duckdb.DuckDBPyConnection) -> None:
    joined = "visits JOIN patients USING (patient_id) WHERE cost BETWEEN 0 AND 5000 AND age"
    assert value(read, f"SELECT AVG(cost) FROM {joined} BETWEEN 65 AND 110") > 1.5 * value(
        read, f"SELECT AVG(cost) FROM {joined} BETWEEN 0 AND 17"
    )
    assert value(read, "SELECT AVG(cost) FROM visits WHERE icd = 'M17'") > 3 * value(
        read, "SELECT AVG(cost) FROM visits WHERE icd = 'J00'"
    )
    assert not value(
        read, "SELECT COUNT(*) FROM visits JOIN patients USING (patient_id) WHERE icd = 'O80' AND sex = 'M'"
    )
    average = "SELECT AVG(weight) FROM patients WHERE isfinite(weight) AND weight < 300 AND age > 20 AND sex"
    assert value(read, f"{average} = 'M'") > value(read, f"{average} = 'F'") + 5
