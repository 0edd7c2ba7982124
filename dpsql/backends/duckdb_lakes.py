"""Tables of Delta Lake and Iceberg: the files of a snapshot, and how DuckDB's extensions read it.

Rule 1: the snapshot is fixed when a policy is loaded: the latest version of a Delta table, or the metadata file that
    the policy names for an Iceberg table. Its files never change, so all scans of an answer see the same rows.
Rule 2: its data files are listed together with the file that names them, so that a removed or changed file is found
    before a read.
Rule 3: a table is refused if its files are read with deletes that are not listed, since a scan with a filter reads
    those anew, or with deletes by values.
Rule 4: extensions are loaded only if the operator has installed them, and are never downloaded.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.policy import FileFormat

_EXTENSIONS: Final = {FileFormat.DELTA: ("delta",), FileFormat.ICEBERG: ("avro", "iceberg")}
_LOG: Final = "_delta_log"
_METADATA: Final = (".json", ".avro", ".puffin")


class LakeError(Exception):
    """A snapshot cannot be read.

    Attributes:
        what: What is wrong.
        hint: What the data owner can do about it.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


def load_extensions(database: duckdb.DuckDBPyConnection, form: FileFormat) -> None:
    """Load what reads a table format.

    Raises:
        LakeError: The operator has not installed it.
    """
    for name in _EXTENSIONS[form]:
        try:
            database.execute(f"LOAD {name}")
        except duckdb.Error:
            raise LakeError(
                f"DuckDB {duckdb.__version__} has no extension {name} here",
                f"Install it beforehand, as the user of the gateway: "
                f"python3 -c \"import duckdb; duckdb.execute('INSTALL {name}')\"",
            ) from None


def snapshot_files(form: FileFormat, place: str) -> list[str]:
    """Return the files of the snapshot that a table has now, the one that says them first.

    Args:
        form: The table format.
        place: The folder of a Delta table, or the metadata file of an Iceberg table.

    Raises:
        LakeError: The extension is not there, or it cannot read the table.
    """
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as database:
        load_extensions(database, form)
        try:
            return list(_delta_files(database, place) if form is FileFormat.DELTA else _iceberg_files(database, place))
        except duckdb.Error:
            form_of = "folder of a Delta table" if form is FileFormat.DELTA else "metadata file of an Iceberg table"
            raise LakeError(f'"{place}" is not the {form_of}', "Its writer's own program tells more.") from None


def _delta_files(database: duckdb.DuckDBPyConnection, place: str) -> Iterator[str]:
    version = max((int(path.stem) for path in Path(place, _LOG).glob("*.json") if path.stem.isdecimal()), default=0)
    yield os.path.join(place, _LOG, f"{version:020}.json")
    listed = f"SELECT data_file, have_deletes FROM delta_list_files({DuckDB.quote_text(place)}, version => {version})"
    for file, has_deletes in database.execute(listed).fetchall():
        if has_deletes is not False:
            hint = "Spark's REORG TABLE with APPLY (PURGE) writes files without."
            raise LakeError(f'"{file}" has a deletion vector', hint)
        yield file


def _iceberg_files(database: duckdb.DuckDBPyConnection, place: str) -> Iterator[str]:
    yield place
    named = DuckDB.quote_text(place)
    deletes = f"SELECT file_path FROM iceberg_metadata({named}) WHERE status <> 'DELETED' AND content = "
    for (file,) in database.execute(f"{deletes} 'EQUALITY_DELETES'").fetchall():
        raise LakeError(f'"{file}" deletes rows by their values', "Spark's rewrite_data_files writes files without.")
    listed = (
        f"SELECT manifest_list FROM iceberg_snapshots({named}) "
        f"UNION SELECT manifest_path FROM iceberg_metadata({named}) "
        f"UNION SELECT file_path FROM iceberg_metadata({named}) WHERE status <> 'DELETED'"
    )
    yield from (file.removeprefix("file://") for (file,) in database.execute(listed).fetchall())


@dataclass(frozen=True)
class LakeSnapshot:
    """A snapshot of a table, on a connection that has loaded its extension.

    Attributes:
        database: The connection.
        form: The table format.
        paths: Of its files, the one that says them first.
    """

    database: duckdb.DuckDBPyConnection
    form: FileFormat
    paths: Sequence[str]

    def attach(self, name: str) -> str:
        """Make the snapshot readable, whatever is written later; returns what stands in FROM.

        Args:
            name: What a Delta table is attached as.
        """
        first = Path(self.paths[0])
        if self.form is FileFormat.ICEBERG:
            return f"iceberg_scan({DuckDB.quote_text(str(first))})"
        place, alias = DuckDB.quote_text(str(first.parent.parent)), DuckDB.quote_name(name)
        self.database.execute(f"ATTACH {place} AS {alias} (TYPE delta, PIN_SNAPSHOT, VERSION {int(first.stem)})")
        return f"{alias}.main.{alias}"

    @property
    def parquet(self) -> list[str]:
        """Its files that are no metadata: those with rows, and those that say which of them are deleted."""
        return [path for path in self.paths if Path(path).suffix not in _METADATA]
