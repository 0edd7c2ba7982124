"""Tables of Delta Lake and Iceberg: a snapshot is read as it was when the policy was loaded, or nothing is read.

The extensions are those of the oldest DuckDB (tests/test_packages.py), where nothing here is skipped.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.backends import Cancellation
from dpsql.backends.duckdb_files import _TableFiles
from dpsql.backends.file_folders import LocalFolder
from dpsql.errors import DatabaseUnavailable, InvalidPolicy
from dpsql.policy import load_policy
from tests.backends.test_duckdb_files import Folder
from tests.backends.test_postgres import read

DELTA = 'files = { format = "delta", paths = ["visits"] }'
ICEBERG = 'files = {{ format = "iceberg", paths = ["{}"] }}'
ROWS = "SELECT CAST(patient_id AS VARCHAR) || ' ' || CAST(cost AS VARCHAR) AS v0 FROM \"dpsql.files\".main.visits"
FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("patient_id", "integer"), ("cost", "decimal(10,2)"), ("year", "integer"))
]
TABLE = {
    "id": "t",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps({"type": "struct", "fields": FIELDS}),
    "partitionColumns": ["year"],
    "configuration": {},
    "createdTime": 0,
}
VECTOR = "^Bg9^0rr910000000000iXQKl0rr91000315c8Xg00062"
"""A Roaring bitmap of the rows 0 and 2, as Delta Lake writes it in Z85."""


def has_extensions(*names: str) -> bool:
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as database:
        try:
            for name in names:
                database.execute(f"LOAD {name}")
        except duckdb.Error:
            return False
        return True


needs_delta = pytest.mark.skipif(not has_extensions("delta"), reason="DuckDB's extension is not installed")
needs_iceberg = pytest.mark.skipif(not has_extensions("avro", "iceberg"), reason="DuckDB's extension is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    for backend in made.opened:
        backend.close()


def commit(folder: Folder, version: int, *actions: Mapping[str, object]) -> Path:
    """A version of the Delta table."""
    path = folder.data / "visits" / "_delta_log" / f"{version:020}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    return path


def added(path: Path, year: int, name: str | None = None) -> dict[str, object]:
    """A data file of a version."""
    about = {"path": name or str(path.name), "partitionValues": {"year": str(year)}, "size": path.stat().st_size}
    return {"add": {**about, "modificationTime": 0, "dataChange": True}}


def delta(folder: Folder) -> Path:
    """A Delta table of one version; its data file."""
    path = folder.parquet("visits/a.parquet")
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    commit(folder, 0, protocol, {"metaData": TABLE}, added(path, 2023))
    return path


@pytest.mark.skipif(has_extensions("delta"), reason="DuckDB's extension is installed")
def test_without_the_extension_the_policy_is_refused(folder: Folder) -> None:
    delta(folder)
    refused = folder.refused(DELTA)
    assert "has no extension delta here" in refused and "INSTALL delta" in refused
    folder.text("v1.metadata.json", "{}")
    assert "has no extension avro here" in folder.refused(ICEBERG.format("v1.metadata.json"))


@needs_delta
def test_a_delta_table_is_that_of_its_latest_version_when_it_was_opened(folder: Folder) -> None:
    delta(folder)
    second = folder.parquet("visits/b.parquet", "(3, 5)")
    commit(folder, 1, added(second, 2024))
    backend = folder.open(DELTA)
    assert sorted(read(backend, ROWS).columns[0].tolist()) == ["1 2.50", "1 3.00", "2 4.00", "3 5.00"]
    years = 'SELECT DISTINCT CAST(year AS VARCHAR) AS v0 FROM "dpsql.files".main.visits ORDER BY v0'
    assert read(backend, years).columns[0].tolist() == ["2023", "2024"]
    commit(folder, 2, added(folder.parquet("visits/c.parquet", "(4, 6)"), 2024))
    assert read(backend, ROWS).count == 4
    assert read(folder.open(DELTA), ROWS).count == 5


@needs_delta
def test_a_snapshot_without_a_file_is_refused_before_a_read(folder: Folder) -> None:
    path = delta(folder)
    backend = folder.open(DELTA)
    path.unlink()
    with pytest.raises(DatabaseUnavailable, match=r"was changed, added or removed .*nothing was charged"):
        backend.check((), (), Cancellation())
    assert "a.parquet" in folder.refused(DELTA)


@needs_delta
def test_deletion_vectors_are_refused(folder: Folder) -> None:
    """A scan with a filter reads them anew, so that two scans of an answer could see different rows."""
    path = delta(folder)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    deletes_first = {"storageType": "i", "pathOrInlineDv": VECTOR, "sizeInBytes": 36, "cardinality": 2}
    file: dict[str, Any] = added(path, 2023)
    file["add"] |= {"deletionVector": deletes_first, "stats": json.dumps({"numRecords": 3})}
    commit(folder, 1, protocol, {"remove": {"path": path.name, "dataChange": True}}, file)
    assert 'a.parquet" has a deletion vector' in folder.refused(DELTA)


@needs_delta
def test_what_is_no_delta_table_of_the_folder_is_refused(folder: Folder, tmp_path: Path) -> None:
    (folder.data / "visits").mkdir()
    assert "is not the folder of a Delta table" in folder.refused(DELTA)
    path = delta(folder)
    outside = path.rename(tmp_path / "outside.parquet")
    removed: dict[str, object] = {"remove": {"path": "a.parquet", "dataChange": True}}
    commit(folder, 1, removed, added(outside, 2023, "../../outside.parquet"))
    assert "is not below" in folder.refused(DELTA)


@needs_delta
def test_moments_that_are_cut_are_no_keys(folder: Folder) -> None:
    path = delta(folder)
    table = pa.table({"patient_id": pa.array([1], pa.timestamp("ns")), "cost": pa.array([2], pa.int64())})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    fields = [{**FIELDS[0], "type": "timestamp"}, {**FIELDS[1], "type": "long"}, FIELDS[2]]
    schema = json.dumps({"type": "struct", "fields": fields})
    commit(folder, 1, {"metaData": {**TABLE, "schemaString": schema}}, added(path, 2023))
    assert '"patient_id" is INT96, which cannot be a key' in folder.refused(DELTA)


@needs_delta
@pytest.mark.parametrize("kind", ["DOUBLE", "DECIMAL(5, 1)", "VARCHAR", "BIGINT"])
def test_keys_that_a_file_tells_apart_are_not_one_in_the_table(folder: Folder, kind: str) -> None:
    """DuckDB casts what a file has to the table's type: the patients 0.6 and 1.4 would be one."""
    delta(folder)
    other = folder.parquet("visits/b.parquet", "(0.6, 2), (1.4, 3)", patient_id=kind)
    commit(folder, 1, added(other, 2023))
    assert '"patient_id" is INTEGER in the table, and ' in folder.refused(DELTA)


@needs_delta
def test_files_may_have_narrower_keys_and_other_types_of_other_columns(folder: Folder) -> None:
    delta(folder)
    other = folder.parquet("visits/b.parquet", "(3, 5.25)", patient_id="SMALLINT", cost="DOUBLE")
    commit(folder, 1, added(other, 2023))
    assert sorted(read(folder.open(DELTA), ROWS).columns[0].tolist()) == ["1 2.50", "1 3.00", "2 4.00", "3 5.25"]
    commit(folder, 2, added(folder.parquet("visits/c.parquet", "(3, 'much')", cost="VARCHAR"), 2023))
    assert "has a value that DuckDB cannot read" in folder.refused(DELTA)


@needs_delta
def test_a_key_under_another_name_in_a_file_is_refused(folder: Folder) -> None:
    """Nothing tells its type there: so it is where names of columns are mapped."""
    delta(folder)
    path = folder.data / "visits" / "c.parquet"
    pq.write_table(pa.table({"number": pa.array([1.4]), "cost": pa.array(["2.50"])}), path)
    commit(folder, 1, added(path, 2023))
    assert '"patient_id" is INTEGER in the table, and no column in' in folder.refused(DELTA)


def test_a_file_of_deleted_rows_has_no_keys(folder: Folder) -> None:
    """As Iceberg has them; one whose columns are of other types may have rows."""
    policy = load_policy(folder.policy(ICEBERG.format("v1.metadata.json")))
    (table,) = (table for table in policy.tables if table.name == "visits")
    assert table.files is not None
    with duckdb.connect() as database:
        files = _TableFiles(database, LocalFolder("."), policy, table, table.files, ())
        for kind, is_refused in (("BIGINT", False), ("DOUBLE", True)):
            path = folder.data / "deletes.parquet"
            duckdb.execute(f"COPY (SELECT 'a' AS file_path, 1::{kind} AS pos) TO '{path}'")
            with pytest.raises(InvalidPolicy, match="no column in") if is_refused else nullcontext():
                files._check_keys(str(path), {"patient_id": "INTEGER"})


@pytest.fixture
def iceberg(folder: Folder) -> Iterator[tuple[Folder, str]]:
    """An Iceberg table of two snapshots; the name of its metadata file."""
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = catalogs.SqlCatalog("c", uri=f"sqlite:///{folder.path}/catalog.db", warehouse=str(folder.data))
    catalog.create_namespace("n")
    rows = pa.table({"patient_id": pa.array([1, 2], pa.int32()), "cost": pa.array(["2.50", "4.00"])})
    rows = rows.set_column(1, "cost", rows["cost"].cast(pa.decimal128(10, 2)))
    table = catalog.create_table("n.visits", schema=rows.schema)
    table.append(rows)
    table.append(rows.slice(1))
    yield folder, str(Path(table.metadata_location.removeprefix("file://")).relative_to(folder.data))
    catalog.close()


@needs_iceberg
def test_an_iceberg_table_is_that_of_the_metadata_file(iceberg: tuple[Folder, str]) -> None:
    folder, name = iceberg
    backend = folder.open(ICEBERG.format(name))
    assert sorted(read(backend, ROWS).columns[0].tolist()) == ["1 2.50", "2 4.00", "2 4.00"]
    listed = [Path(path) for path in backend._listed["visits"]]  # type: ignore[attr-defined]
    assert {path.suffix for path in listed} == {".json", ".avro", ".parquet"}
    for path in listed:
        moved = path.rename(path.with_suffix(".gone"))
        with pytest.raises(DatabaseUnavailable):
            backend.check((), (), Cancellation())
        moved.rename(path)
    folder.text("other.json", "{}")
    assert "is not the metadata file of an Iceberg table" in folder.refused(ICEBERG.format("other.json"))


@needs_iceberg
def test_deletes_by_values_are_refused(iceberg: tuple[Folder, str]) -> None:
    folder, name = iceberg
    assert 'deletes.parquet" deletes rows by their values' in folder.refused(ICEBERG.format(with_deletes(folder, name)))


def with_deletes(folder: Folder, name: str) -> str:
    """The metadata file of one more snapshot, in which the rows of patient 2 are deleted."""
    manifest = pytest.importorskip("pyiceberg.manifest")
    table = pytest.importorskip("pyiceberg.table").StaticTable.from_metadata(str(folder.data / name))
    before, number = table.current_snapshot(), 1

    class DeleteManifest(manifest.ManifestWriterV2):  # type: ignore[name-defined, misc]  # pyiceberg may not be there
        def content(self) -> object:
            return manifest.ManifestContent.DELETES

    file = folder.data / "deletes.parquet"
    field = pa.field("patient_id", pa.int32(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table({"patient_id": pa.array([2], pa.int32())}, schema=pa.schema([field])), file)
    about = manifest.DataFile.from_args(
        content=manifest.DataFileContent.EQUALITY_DELETES,
        file_path=str(file),
        file_format=manifest.FileFormat.PARQUET,
        partition=manifest.Record(),
        record_count=1,
        file_size_in_bytes=file.stat().st_size,
        equality_ids=[1],
    )
    order = before.sequence_number + 1
    written = table.io.new_output(str(folder.data / "deletes.avro"))
    with DeleteManifest(table.spec(), table.schema(), written, number, "null") as deletes:
        deletes.add_entry(
            manifest.ManifestEntry.from_args(
                status=manifest.ManifestEntryStatus.ADDED,
                snapshot_id=number,
                sequence_number=order,
                file_sequence_number=order,
                data_file=about,
            )
        )
    listed = table.io.new_output(str(folder.data / "list.avro"))
    with manifest.write_manifest_list(2, listed, number, before.snapshot_id, order, "null") as manifests:
        manifests.add_manifests([*before.manifests(table.io), deletes.to_manifest_file()])
    metadata = json.loads((folder.data / name).read_text(encoding="utf-8"))
    snapshot = {**metadata["snapshots"][-1], "snapshot-id": number, "parent-snapshot-id": before.snapshot_id}
    snapshot |= {"sequence-number": order, "manifest-list": str(folder.data / "list.avro")}
    metadata |= {"current-snapshot-id": number, "last-sequence-number": order}
    metadata |= {"snapshots": [*metadata["snapshots"], snapshot], "refs": {}}
    folder.text("v9.metadata.json", json.dumps(metadata))
    return "v9.metadata.json"
