"""Tables that are files: read as the policy says and never guessed; what is not what was listed is not read."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.backends import Backend, duckdb_files, open_backend
from dpsql.errors import BackendFailure, DatabaseUnavailable, InvalidParameter, InvalidPolicy
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from tests.backends.test_postgres import read
from tests.conftest import MakeEngine, silence_noise

HEAD = """
version = 1
[dataset]
name = "clinic"
url = "parquet:///data"
privacy_unit = "patient"
budget = {{ epsilon = 1e4, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 1e4, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.visits]
unit_key = "patient_id"
max_rows = 5
{files}
[tables.visits.columns]
cost = {{ type = "decimal", lower = 0, upper = 50, step = 0.01 }}
"""
ONCE = {"max_rows": "max_rows = 1"}
TEXTS = 'columns = { patient_id = "integer", cost = "decimal(10,2)" }'
CSV = f'files = {{ format = "csv", paths = ["*.csv"], {TEXTS} }}'
JSON = f'files = {{ format = "json", paths = ["*.json"], {TEXTS} }}'
HIVE = 'files = { format = "parquet", paths = ["visits/*/*.parquet"], hive = { year = "integer" } }'
ROWS = "SELECT CAST(patient_id AS VARCHAR) || ' ' || CAST(cost AS VARCHAR) AS v0 FROM \"dpsql.files\".main.visits"


class Folder:
    """A policy, and the folder that it is about."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, path / "data"
        self.data.mkdir()
        self.opened: list[Backend] = []

    def parquet(self, name: str = "visits.parquet", rows: str = "(1, 2.5), (1, 3), (2, 4)", **types: str) -> Path:
        """A file of rows."""
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kinds = {"patient_id": "INTEGER", "cost": "DECIMAL(10, 2)"} | types
        columns = ", ".join(f"{column}::{kind} AS {column}" for column, kind in kinds.items())
        duckdb.execute(f"COPY (SELECT {columns} FROM (VALUES {rows}) v({', '.join(kinds)})) TO '{path}'")
        return path

    def text(self, name: str, text: str | bytes) -> Path:
        """A file of a text."""
        path = self.data / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def policy(self, files: str = "", **changes: str) -> Path:
        """The policy's file."""
        text = HEAD.format(files=files)
        for before, after in changes.items():
            text = re.sub(rf"^{before} = .*$", after, text, flags=re.MULTILINE)
        path = self.path / "policy.toml"
        path.write_text(text, encoding="utf-8")
        return path

    def open(self, files: str = "", **changes: str) -> Backend:
        """The data, as the policy reads them."""
        self.opened.append(open_backend(load_policy(self.policy(files, **changes))))
        return self.opened[-1]

    def rows(self, files: str = "", **changes: str) -> list[str | None]:
        """All rows of visits."""
        found: list[str | None] = sorted(
            read(self.open(files, **changes), ROWS).columns[0].tolist(), key=lambda row: (row is None, row)
        )
        return found

    def refused(self, files: str = "", **changes: str) -> str:
        """Why the data are refused when they are opened, with its hint."""
        with pytest.raises(InvalidPolicy) as caught:
            self.open(files, **changes)
        assert caught.value.hint
        return f"{caught.value} {caught.value.hint}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    for backend in made.opened:
        backend.close()


THREE = ["1 2.50", "1 3.00", "2 4.00"]


# What is read


def test_parquet_is_a_file_or_a_folder_of_the_tables_name(folder: Folder) -> None:
    folder.parquet()
    folder.parquet("visits/2024/a.parquet", "(3, 5)")
    folder.parquet("visits/b.parquet", "(4, 6)")
    folder.parquet("visitors.parquet", "(5, 7)")
    assert folder.rows() == [*THREE, "3 5.00", "4 6.00"]


def test_partitions_are_read_as_the_policy_says(folder: Folder) -> None:
    for year in ("2023", "x", "__HIVE_DEFAULT_PARTITION__"):
        folder.parquet(f"visits/year={year}/a.parquet", "(1, 2)")
    backend = folder.open(HIVE)
    found = read(backend, 'SELECT CAST(year AS VARCHAR) AS v0 FROM "dpsql.files".main.visits ORDER BY year')
    assert found.columns[0].tolist() == ["2023", None, None]
    assert backend.schema.tables["visits"].columns["year"].type_name == "INTEGER"


def test_a_column_that_is_also_in_the_folders_names_is_that_of_the_folders(folder: Folder) -> None:
    folder.parquet("visits/year=2023/a.parquet", "(1, 2, 7)", year="INTEGER")
    found = read(folder.open(HIVE), 'SELECT CAST(year AS VARCHAR) AS v0 FROM "dpsql.files".main.visits')
    assert found.columns[0].tolist() == ["2023"]


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        (CSV, "a.csv", 'note,patient_id,cost\nx,1,2.5\n"a,\n""b""",1,3\n,2,4.004\n'),
        (CSV, "a.csv", b"\xef\xbb\xbfpatient_id,cost\r\n1,2.5\r\n1,3\r\n2,4\r\n"),
        (
            JSON,
            "a.json",
            '{"cost": 2.5, "patient_id": 1}\n{"patient_id": 1, "cost": "3", "z": []}\n{"patient_id": 2, "cost": 4}',
        ),
    ],
)
def test_texts_are_read_as_the_policys_types(folder: Folder, files: str, name: str, text: str) -> None:
    folder.text(name, text)
    assert folder.rows(files) == THREE


def test_a_text_of_no_letters_is_no_null(folder: Folder) -> None:
    folder.text("a.csv", 'patient_id,cost\n"",1\n,2\n')
    assert folder.rows(CSV.replace("integer", "text")) == [" 1.00", None]


def test_no_value_decides_a_type(folder: Folder) -> None:
    folder.text("a.csv", "patient_id,cost\n1,2.5\n2,dear\n3,1e99\nx,1\n")
    folder.text("b.csv", "patient_id,cost\n4,2024-01-01\n")
    assert folder.rows(CSV) == ["1 2.50", *[None] * 4]


KEYS = ("1", "1.2", "01", " 1", "+1", "1.0", "1e0", "", "99999999999")


@pytest.mark.parametrize(
    ("files", "name", "line"),
    [(CSV, "a.csv", '"{}",1\n'), (JSON, "a.json", '{{"patient_id": "{}", "cost": 1}}\n')],
)
def test_keys_that_the_file_tells_apart_are_not_one(folder: Folder, files: str, name: str, line: str) -> None:
    """Else two patients would be one, who then moves cells by twice the claim: these are nobody's rows."""
    folder.text(name, ("patient_id,cost\n" if files is CSV else "") + "".join(map(line.format, KEYS)))
    assert folder.rows(files) == ["1 1.00", *[None] * (len(KEYS) - 1)]


def test_numbers_that_json_rounds_are_no_keys(folder: Folder) -> None:
    numbers = ("0.1234567890123456788", "0.1234567890123456789", "100000000000000000000", '"x"', "[1.0]", "7")
    folder.text("a.json", "".join(f'{{"patient_id": {number}, "cost": 1}}\n' for number in numbers))
    assert folder.rows(JSON.replace("integer", "text")) == ["7 1.00", "x 1.00", *[None] * 4]


def test_tables_of_a_database_and_files_beside_it(folder: Folder) -> None:
    with duckdb.connect(str(folder.path / "clinic.duckdb")) as database:
        database.execute("CREATE TABLE visits AS SELECT 9 AS patient_id, 9.0 AS cost")
        database.execute("CREATE TABLE doctors AS SELECT 'ann' AS name")
    folder.text("a.csv", "patient_id,cost\n1,2.5\n")
    public = '[tables.doctors]\npublic = true\ncolumns = { name = { type = "text" } }\n'
    changes = {"url": 'url = "duckdb:///clinic.duckdb"', "version": f"version = 1\n{public}"}
    backend = folder.open(CSV.replace("*.csv", "data/*.csv"), **changes)
    assert read(backend, ROWS).columns[0].tolist() == ["1 2.50"]
    assert read(backend, "SELECT name AS v0 FROM main.doctors").columns[0].tolist() == ["ann"]


# Nothing is left out on trust


def test_files_enforce_no_key(folder: Folder, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patient with a thousand rows counts as often as the policy says, where it says once."""
    folder.parquet(rows=", ".join(["(1, 2)"] * 1000 + ["(2, 2)"]))
    silence_noise(monkeypatch)
    backend = folder.open(**ONCE)
    engine = make_engine(folder.policy(**ONCE), backend=backend)
    table = backend.schema.tables["visits"]
    assert not table.unique_keys and not any(column.not_null for column in table.columns.values())
    session = Session(engine, "ana")
    (statement,) = session.parse("SELECT COUNT(*), SUM(CASE WHEN cost > 0 THEN 1 END) FROM visits")
    assert session.execute(statement).rows == ((2, 2),)


def test_a_folder_lets_nothing_else_be_read_or_written(folder: Folder) -> None:
    folder.parquet()
    other = folder.parquet("other.parquet")
    database = folder.open()._database  # type: ignore[attr-defined]
    for sql in (
        f"SELECT * FROM read_parquet('{other}')",
        "SELECT * FROM read_text('/etc/passwd')",
        f"COPY (SELECT 1) TO '{folder.data}/new.parquet'",
        f"ATTACH '{folder.data}/new.duckdb'",
        "SET enable_external_access = true",
        "SET allowed_paths = ['/etc/passwd']",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CREATE PERSISTENT SECRET s (TYPE s3)",
    ):
        with pytest.raises(duckdb.Error):
            database.execute(sql)


# What is not what was listed


def rewrite(folder: Folder) -> None:
    folder.parquet(rows="(1, 2.5), (1, 3), (2, 5)")


def touch(folder: Folder) -> None:
    os.utime(folder.data / "visits.parquet", (0, 0))


def replace_by_another(folder: Folder) -> None:
    found = (folder.data / "visits.parquet").stat()
    made = folder.parquet("new.parquet", rows="(1, 2.5), (1, 3), (2, 5)")
    os.utime(made, ns=(found.st_atime_ns, found.st_mtime_ns))
    made.replace(folder.data / "visits.parquet")


def add(folder: Folder) -> None:
    folder.parquet("visits/new.parquet")


def remove(folder: Folder) -> None:
    (folder.data / "visits.parquet").unlink()


def remove_all(folder: Folder) -> None:
    folder.data.rename(folder.path / "gone")


def break_up(folder: Folder) -> None:
    os.truncate(folder.data / "visits.parquet", 100)


CHANGES = (rewrite, touch, replace_by_another, add, remove, remove_all, break_up)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_refused_before_the_read(
    folder: Folder, make_engine: MakeEngine, change: Callable[[Folder], None]
) -> None:
    folder.parquet()
    engine = make_engine(folder.policy())
    session = Session(engine, "ana")
    (statement,) = session.parse("SELECT COUNT(*) FROM visits")
    change(folder)
    with pytest.raises(DatabaseUnavailable, match=r"was changed, added or removed .*nothing was charged") as refused:
        session.execute(statement)
    assert refused.value.hint and "data_version" in refused.value.hint
    assert "parquet" not in f"{refused.value}"
    (budget,) = session.parse("SELECT epsilon_spent FROM dpsql.budget")
    assert session.execute(budget).rows[0][0] == 0


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_read_of_files_that_changed_is_no_answer(
    folder: Folder, change: Callable[[Folder], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder.parquet()
    backend = folder.open()
    change(folder)
    with pytest.raises(BackendFailure):
        read(backend, 'SELECT CAST(count(*) AS VARCHAR) AS v0 FROM "dpsql.files".main.visits')
    assert all("visits" not in message for message in caplog.messages)


def test_files_that_change_while_they_are_opened_are_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parquet()
    made = duckdb_files.create_views

    def then_written(*args: object) -> None:
        made(*args)  # type: ignore[arg-type]
        touch(folder)

    monkeypatch.setattr("dpsql.backends.duckdb.create_views", then_written)
    assert "was replaced or written while it was opened" in folder.refused()


def test_other_bytes_of_the_same_files_are_another_database(folder: Folder) -> None:
    """A gateway that loads the policy again reads what is there, though the old list is still open."""
    folder.parquet()
    assert folder.rows() == THREE
    folder.parquet(rows="(7, 8)")
    assert folder.rows() == ["7 8.00"]
    assert folder.rows(unit_key='unit_key = "cost"') == ["7 8.00"]


# Bad files


def test_a_fault_in_the_middle_of_a_parquet_file_is_a_failure_of_the_read(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """DuckDB's own words quote the value."""
    notes = pa.array([b"canary \xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"patient_id": [1], "cost": [2], "note": notes}), folder.data / "visits.parquet")
    backend = folder.open()
    with pytest.raises(BackendFailure) as failed:
        read(backend, 'SELECT note AS v0 FROM "dpsql.files".main.visits')
    assert caplog.messages == ["engine query failed: InvalidInputException"]
    assert "canary" not in f"{failed.value!r} {failed.value.__cause__}"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("text", pa.array([b"ann", b"\xff\xfe"], pa.binary()).view(pa.string())),
        ("timestamp", pa.array([0, 2**62], pa.int64()).view(pa.timestamp("ms"))),
    ],
)
def test_a_value_that_fails_who_reads_it_refuses_the_policy(folder: Folder, kind: str, value: pa.Array) -> None:
    """Else the filter of a query, which decides what is read, would tell whose it is."""
    costs = pa.array([1, 2], pa.int32())
    table = pa.table({"patient_id": pa.array([1, 2], pa.int32()), "cost": costs, "note": value})
    pq.write_table(table, folder.data / "visits.parquet", coerce_timestamps=None)
    note = f'cost = {{ type = "integer", lower = 0, upper = 9 }}\nnote = {{ type = "{kind}" }}'
    with pytest.raises(InvalidPolicy, match="has a value that DuckDB cannot read"):
        open_backend(load_policy(folder.policy(cost=note)))
    folder.opened += [open_backend(load_policy(folder.policy()))] if kind == "text" else []


def test_parquet_that_is_none(folder: Folder) -> None:
    path = folder.parquet()
    os.truncate(path, path.stat().st_size - 9)
    assert '.parquet" is not a whole Parquet file' in folder.refused()
    path.write_bytes(b"")
    assert '.parquet" is not a whole Parquet file' in folder.refused()


@pytest.mark.parametrize(
    "types", [{"cost": "DOUBLE"}, {"cost": "INTEGER"}, {"more": "INTEGER"}, {"patient_id": "BIGINT"}], ids=str
)
def test_files_of_other_schemas(folder: Folder, types: dict[str, str]) -> None:
    folder.parquet()
    folder.parquet("visits/b.parquet", "(1, 2, 3)" if "more" in types else "(1, 2)", **types)
    assert 'b.parquet" does not have the columns of' in folder.refused()


def test_columns_that_parquet_does_not_have_as_the_policy_says(folder: Folder) -> None:
    folder.parquet()
    declared = 'files = {{ format = "parquet", paths = ["*.parquet"], columns = {{ {} }} }}'
    assert folder.rows(declared.format('cost = "decimal(10,2)", patient_id = "integer"')) == THREE
    assert '"cost" is DECIMAL(10,2)' in folder.refused(declared.format('cost = "decimal(12,2)"'))
    assert '"note" is not a column' in folder.refused(declared.format('note = "text"'))


def test_nanoseconds_that_are_cut_are_no_key(folder: Folder) -> None:
    moments = pa.table({"patient_id": pa.array([1, 2], pa.timestamp("ns")), "cost": [1, 2]})
    pq.write_table(moments, folder.data / "visits.parquet", use_deprecated_int96_timestamps=True)
    assert '"patient_id" is INT96, which cannot be a key' in folder.refused()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("patient_id,cost\n1,2\n3\n", "line 3, is not CSV"),
        ("patient_id,cost\n1,2,canary\n", "line 2, is not CSV"),
        ('patient_id,cost\n1,"canary\n2,3\n', "is not CSV"),
        (b"patient_id,cost\n1,\xff\xfe\n", "is not CSV of the columns in its header, in UTF-8"),
        ("1,2\n3,canary\n", 'have no column "patient_id" They have: 1, 2'),
        ("", "has no header"),
        ("patient_id,,cost\n1,2,3\n", "has no header"),
        ("x" * 200_000, "cannot be read"),
        ("patient_id,Cost,cost\n1,2,3\n", "has no header"),
        (b"\x1f\x8b\x08\x00canary", "is compressed"),
        (b"PK\x03\x04,cost,patient_id\n1,2,3\n", "is compressed, so reading it could fail midway Unpack it"),
    ],
    ids=str,
)
def test_csv_that_is_none(folder: Folder, text: str | bytes, told: str) -> None:
    folder.text("a.csv", text)
    refused = folder.refused(CSV)
    assert told in refused and "canary" not in refused.replace("canary\n", ""), refused


def test_files_are_read_beforehand_as_queries_read_them(folder: Folder) -> None:
    """Each is CSV; together, one has other ends of lines than were found in the first."""
    folder.text("a.csv", "patient_id,cost\n1,2.5\n")
    folder.text("b.csv", "patient_id,cost\r\n1,3\r\n2,4\r\n")
    assert folder.rows(CSV) == THREE
    folder.text("b.csv", "patient_id,cost\n1,3\n2\n")
    assert 'b.csv", line 3, is not CSV' in folder.refused(CSV)


def test_csv_of_other_headers(folder: Folder) -> None:
    folder.text("a.csv", "patient_id,cost\n1,2\n")
    folder.text("b.csv", "cost,patient_id\n1,2\n")
    assert 'b.csv" does not have the header of' in folder.refused(CSV)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"patient_id": 1}\n{"patient_id": \n', "is not JSON of one object a line"),
        ('[{"patient_id": 1}]\n', "is not JSON"),
        ('{"patient_id": 1}\n5\n', "is not JSON"),
        (b'{"patient_id": "\xff"}\n', "is not JSON"),
        (b"(\xb5/\xfd{}", "is compressed"),
    ],
    ids=str,
)
def test_json_that_is_none(folder: Folder, text: str | bytes, told: str) -> None:
    folder.text("a.json", text)
    assert told in folder.refused(JSON)


@pytest.mark.parametrize("files", [CSV, JSON, ""])
def test_files_that_may_not_be_read(folder: Folder, files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs the tests may read anything, so the system's answer is given in its place."""
    made = folder.parquet() if not files else folder.text("a.csv" if files is CSV else "a.json", "patient_id,cost\n")

    def denied(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    def denied_there(*_: object) -> None:
        raise duckdb.IOException(f'IO Error: Cannot open file "{made}": Permission denied')

    policy = load_policy(folder.policy(files))
    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(duckdb_files, "read_columns", denied_there)
    with pytest.raises(InvalidPolicy, match="may not be read by this user"):
        open_backend(policy)


def test_a_folder_that_may_not_be_looked_through(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parquet("visits/year=2024/a.parquet")
    looked = os.scandir

    def denied(path: str) -> object:
        if "year" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return looked(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert 'year=2024" cannot be looked through: Permission denied chmod' in folder.refused()


def test_a_partition_that_is_not_there_or_twice(folder: Folder) -> None:
    folder.parquet("visits/a/a.parquet")
    assert 'a.parquet" is not in one folder year=…' in folder.refused(HIVE)
    (folder.data / "visits" / "a").rename(folder.data / "visits" / "Year=1")
    assert 'a.parquet" is not in one folder year=…' in folder.refused(HIVE)
    (folder.data / "visits" / "Year=1").rename(folder.data / "visits" / "year=1")
    folder.open(HIVE)
    folder.parquet("visits/year=1/year=2/a.parquet")
    assert "is not in one folder" in folder.refused(HIVE.replace("/*/*", "/**/*"))


# Which files are a table's


def test_there_is_no_file_or_folder(folder: Folder) -> None:
    assert "there is no file visits.parquet or visits/**/*.parquet in" in folder.refused()
    assert "there is no file" in folder.refused(url='url = "parquet:///nowhere"')
    (folder.data / "visits.parquet").mkdir()
    assert 'visits.parquet" is not a readable file' in folder.refused()


def test_too_many_files(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parquet("visits/a.parquet")
    folder.parquet("visits/b.parquet")
    monkeypatch.setattr(duckdb_files, "MAX_FILES", 1)
    assert "more than 1 files" in folder.refused()


@pytest.mark.parametrize("name", ["a*b", "a?b", "a[1]", "a{b}", 'a"b', "a\nb"])
def test_a_name_that_the_engine_could_take_for_a_pattern(folder: Folder, name: str) -> None:
    made = folder.parquet("visits/a.parquet")
    made.rename(made.with_name(f"{name}.parquet"))
    assert "is not a readable file" in folder.refused()


def test_one_file_is_of_one_table(folder: Folder) -> None:
    """Public under one name, its rows would be read unprotected."""
    folder.parquet()
    public = "[tables.open]\npublic = true\n"
    files = 'files = { format = "parquet", paths = ["visits.parquet"] }\n'
    version = f"version = 1\n{public}{files}"
    assert 'visits.parquet" is a file of "open", too' in folder.refused(version=version)
    (folder.data / "open.parquet").hardlink_to(folder.data / "visits.parquet")
    assert 'visits.parquet" is a file of "open", too' in folder.refused(version=f"version = 1\n{public}")
    (folder.data / "open.parquet").unlink()
    (folder.data / "open.parquet").symlink_to("visits.parquet")
    assert 'visits.parquet" is a file of "open", too' in folder.refused(version=f"version = 1\n{public}")


def test_links_that_lead_out(folder: Folder) -> None:
    outside = folder.path / "elsewhere"
    folder.parquet().rename(folder.path / "visits.parquet")
    (folder.data / "visits.parquet").symlink_to(folder.path / "visits.parquet")
    assert "is a link that leads out of" in folder.refused()
    (folder.data / "visits.parquet").unlink()
    outside.mkdir()
    (folder.path / "visits.parquet").rename(outside / "a.parquet")
    (folder.data / "visits").symlink_to(outside)
    assert "is a link that leads out of" in folder.refused()
    (folder.data / "visits").unlink()
    (folder.data / "real").mkdir()
    (outside / "a.parquet").rename(folder.data / "real" / "a.parquet")
    (folder.data / "visits").symlink_to("real")
    assert folder.rows() == THREE
    (folder.data / "real" / "up").symlink_to("..")
    assert folder.rows() == THREE
    (folder.data / "real" / "out").symlink_to(outside)
    assert "is a link that leads out of" in folder.refused()


# Drafts


def test_a_folder_is_outlined(folder: Folder) -> None:
    from dpsql.cli.draft import draft_policy

    folder.parquet("people.parquet", met="TIMESTAMP", rows="(1, 2, '2024-01-01')")
    folder.parquet("visits/year=2024/a.parquet")
    folder.text("notes.txt", "none")
    (folder.data / "empty").mkdir()
    text = draft_policy(f"parquet:///{folder.data}")
    assert re.findall(r"^\[tables\.(\w+)\]", text, re.MULTILINE) == ["people", "visits"]
    assert 'files = { format = "parquet", paths = ["visits/**/*.parquet"], hive = { year = "text" } }' in text
    assert 'met = { type = "timestamp without time zone"' in text or 'met = { type = "timestamp"' in text
    finished = text.replace("max_rows = 10", 'unit_key = "patient_id"\nmax_rows = 10')
    path = folder.path / "drafted.toml"
    path.write_text(finished, encoding="utf-8")
    folder.opened.append(open_backend(load_policy(path)))


def test_what_cannot_be_outlined(folder: Folder) -> None:
    from dpsql.backends import read_outline

    for url, told in (
        (f"parquet:///{folder.path}/none", "there is no folder"),
        (f"parquet:///{folder.data}", "contains no readable table"),
    ):
        with pytest.raises(InvalidParameter, match=told):
            read_outline(url)
    folder.text("bad.parquet", "PAR1")
    with pytest.raises(InvalidParameter, match=r"bad\.parquet is not a Parquet file"):
        read_outline(f"parquet:///{folder.data}")


# Prepared tables


@pytest.mark.parametrize(("files", "name"), [("", ""), (CSV, "a.csv")])
def test_files_are_prepared(folder: Folder, files: str, name: str) -> None:
    from dpsql.backends import prepare_tables

    folder.text(name, "patient_id,cost\n1,2\n1,3\n2,4\n") if name else folder.parquet()
    where, rows = prepare_tables(load_policy(folder.policy(files, **ONCE)))
    assert (Path(where), rows) == (folder.path / "data.clinic.prepared", {"visits": 2})
    backend = folder.open(files, **ONCE)
    assert not isinstance(backend.schema.copies["visits"], str)
