"""Files as tables of a policy: lists them, and creates the views through which DuckDB reads them.

Rule 1: the files of each table are listed with their states when a policy is loaded. If a file is changed, added or
    removed later, nothing is read, and results read meanwhile are discarded: all scans of an answer see one list.
Rule 2: no type is guessed. Parquet declares its types. CSV, JSON and names of folders are read as text, and a text that
    is not a value of the policy's type is NULL. All files are read completely when a policy is loaded, so that no query
    meets a damaged file.
Rule 3: files enforce no constraints: their tables have no unique key and no NOT NULL, so bounding is never left out.
"""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import duckdb

from dpsql.backends.duckdb_lakes import LakeError, LakeSnapshot, load_extensions, snapshot_files
from dpsql.backends.file_folders import FileFolder, FileState, FolderError, Listed, LocalFolder, Matching, file_state
from dpsql.backends.fit import key_columns, needed_columns, path_of
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.errors import InvalidPolicy
from dpsql.policy import FileColumn, FileFormat, Files, Policy, Table
from dpsql.policy.engines import engine_of
from dpsql.policy.files import is_plain
from dpsql.sqltypes import SqlType

VIEWS: Final = "dpsql.files"
"""The database of the views: no table of a policy has a dot in its name, or it is its schema's."""
MAX_FILES = 10_000
"""Of a table: each query looks at all of them."""
_HEADER_BYTES = 1 << 20
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ", b"\x04\x22\x4d\x18", b"PK\x03\x04")
_TYPES: Final = {**DuckDB.types, SqlType.REAL: "FLOAT", SqlType.TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE"}
_NARROWER: Final = {
    "SMALLINT": ("TINYINT",),
    "INTEGER": ("TINYINT", "SMALLINT"),
    "BIGINT": ("TINYINT", "SMALLINT", "INTEGER"),
}
"""Types of files whose values are as many in a table's type."""
_DELETED: Final = {"file_path": "VARCHAR", "pos": "BIGINT"}
"""The columns of an Iceberg file that says which rows of others are deleted."""
_UNREADABLE: Final = "has a value that DuckDB cannot read"
"""A text that is not UTF-8, or a moment in milliseconds that is none in microseconds: it fails what reads it."""
_DENIED: Final = ("may not be read by this user", "chmod or chown it, and look at its folder.")


def open_folder(policy: Policy, path: str) -> FileFolder:
    """The folder of the files of a policy's tables.

    Args:
        policy: The policy.
        path: That of its url: a folder, or a database file, whose folder then has the files.

    Raises:
        InvalidPolicy: What reads an object store is not installed.
    """
    engine = engine_of(policy.dataset.url)
    if not engine.is_folder:
        return LocalFolder(os.path.dirname(path))
    if engine.is_file:
        return LocalFolder(path)
    try:
        from dpsql.backends.object_store import ObjectFolder
    except ImportError:
        what = f"what reads {engine} is not installed"
        raise policy.wrong(("dataset", "url"), what, "pip install 'dpsql[s3]'") from None
    return ObjectFolder(path)


def list_files(policy: Policy, folder: FileFolder, known: Listed = MappingProxyType({})) -> Listed:
    """List the files of each table that is made of files.

    Args:
        policy: The policy.
        folder: Where they are.
        known: What was listed before: it says the files of snapshots, of which the states alone are listed again.

    Raises:
        InvalidPolicy: There are none or too many, or one is not to be read as a table's.
        DatabaseUnavailable: The folder cannot be listed now.
    """
    made = [(table.name, table.files) for table in policy.tables if table.files is not None]
    patterns = [path for _, files in made if not files.format.has_snapshots for path in files.paths]
    matching = folder.look(patterns) if patterns else None
    listed: dict[str, dict[str, FileState]] = {}
    for name, files in made:
        if matching is not None and not files.format.has_snapshots:
            listed[name] = _files_of(name, files.paths, folder.name, matching, policy)
        else:
            listed[name] = _snapshot_of(name, files, folder.name, policy, known.get(name, ()))
    owners: dict[tuple[int | str, ...], str] = {}
    for name, found in listed.items():
        for file, state in found.items():
            # Under two names, one table's rows could be protected and the other's not.
            if (other := owners.setdefault(state.identity, name)) != name:
                raise _wrong(policy, name, f'"{file}" is a file of "{other}", too', "Name it in one of the two.")
    return listed


def is_changed(policy: Policy, folder: FileFolder, listed: Listed) -> bool:
    """Whether files are not those that were listed.

    Raises:
        DatabaseUnavailable: The folder cannot be listed now.
    """
    try:
        return list_files(policy, folder, listed) != listed
    except InvalidPolicy:
        return True


def create_views(database: duckdb.DuckDBPyConnection, policy: Policy, folder: FileFolder, listed: Listed) -> None:
    """Make a view of each table's files, in a database of their own, which is attached as VIEWS.

    Raises:
        InvalidPolicy: A file cannot be read, or does not have the columns that it ought to have.
    """
    database.execute(f"ATTACH ':memory:' AS {DuckDB.quote_name(VIEWS)}")
    folder.attach(database, {file: state for files in listed.values() for file, state in files.items()})
    for table in policy.tables:
        if (files := table.files) is not None:
            schema, name = (DuckDB.quote_name(each) for each in path_of(table, policy))
            database.execute(f"CREATE SCHEMA IF NOT EXISTS {DuckDB.quote_name(VIEWS)}.{schema}")
            select = _TableFiles(database, folder, policy, table, files, tuple(listed[table.name])).select()
            database.execute(f"CREATE VIEW {DuckDB.quote_name(VIEWS)}.{schema}.{name} AS {select}")


def read_columns(database: duckdb.DuckDBPyConnection, file: str) -> dict[str, str]:
    """The columns of a Parquet file with their types, as its footer says them; fails as DuckDB does."""
    reader = f"read_parquet([{DuckDB.quote_text(file)}], hive_partitioning = false)"
    return {name: kind for name, kind, *_ in database.execute(f"DESCRIBE SELECT * FROM {reader}").fetchall()}


def _wrong(policy: Policy, table: str, what: str, hint: str) -> InvalidPolicy:
    return policy.wrong(("tables", table, "files"), what, hint)


# Which files there are


def _files_of(
    table: str, patterns: Sequence[str], folder: str, matching: Matching, policy: Policy
) -> dict[str, FileState]:
    found: dict[str, FileState] = {}
    for pattern in patterns:
        try:
            for file, state in matching(pattern):
                _add_file(found, file, state, table, policy)
        except FolderError as error:
            raise _wrong(policy, table, error.what, error.hint) from None
    if not found:
        named = " or ".join(patterns)
        raise _wrong(policy, table, f"there is no file {named} in {folder}", "Paths start from that folder.")
    return dict(sorted(found.items()))


def _snapshot_of(table: str, files: Files, root: str, policy: Policy, known: Iterable[str]) -> dict[str, FileState]:
    """The files of a table's snapshot, in the order of their names but for the first, which says them."""
    found: dict[str, FileState] = {}
    place = os.path.realpath(os.path.join(root, *files.paths[0].split("/")))
    try:
        paths = list(known) or snapshot_files(files.format, place)
    except LakeError as error:
        raise _wrong(policy, table, error.what, error.hint) from None
    for file in (paths[0], *sorted(set(paths[1:]))):
        if os.path.commonpath((root, os.path.realpath(file))) != root:
            raise _wrong(
                policy, table, f'"{file}" is not below {root}', "All files of a table must be below that folder."
            )
        _add_file(found, file, file_state(file), table, policy)
    return found


def _add_file(found: dict[str, FileState], file: str, state: FileState | None, table: str, policy: Policy) -> None:
    if state is None or not is_plain(file) or set("*?") & set(file):
        raise _wrong(policy, table, f'"{file}" is not a readable file', "Rename or remove it.")
    found[file] = state
    if len(found) > MAX_FILES:
        raise _wrong(policy, table, f"more than {MAX_FILES:,} files", "Write fewer, larger files.")


# What is in them


@dataclass(frozen=True)
class _TableFiles:
    """A table's files, while the view of them is made."""

    database: duckdb.DuckDBPyConnection
    folder: FileFolder
    policy: Policy
    table: Table
    files: Files
    paths: tuple[str, ...]

    def select(self) -> str:
        """SQL that reads the table."""
        self._check_hive()
        formats = {FileFormat.PARQUET: self._parquet, FileFormat.CSV: self._csv, FileFormat.JSON: self._json}
        columns, reader = formats.get(self.files.format, self._snapshot)()
        hive = [self._typed(column, DuckDB.quote_name(column.name)) for column in self.files.hive]
        return f"SELECT {', '.join([*columns, *hive])} FROM {reader}"

    def _wrong(self, what: str, hint: str) -> InvalidPolicy:
        return _wrong(self.policy, self.table.name, what, hint)

    def _check_hive(self) -> None:
        """The folders of each file name each partition once."""
        for path in self.paths:
            names = [part.partition("=")[0] for part in path.split("/")[:-1] if "=" in part]
            for column in self.files.hive:
                if [name for name in names if name.casefold() == column.name.casefold()] != [column.name]:
                    what = f'"{path}" is not in one folder {column.name}=…'
                    raise self._wrong(what, f"Files of a partitioned table are in folders such as {column.name}=2024.")

    def _read(self, function: str, **options: str) -> str:
        """A table function over the files; whatever it could guess is said."""
        types = ", ".join(f"{DuckDB.quote_text(column.name)}: 'VARCHAR'" for column in self.files.hive)
        options["hive_partitioning"] = "true" if types else "false"
        if types:
            options |= {"hive_types": f"{{{types}}}", "hive_types_autocast": "false"}
        names = ", ".join(map(DuckDB.quote_text, self.paths))
        return f"{function}([{names}], {', '.join(f'{name} = {value}' for name, value in options.items())})"

    def _is_key(self, column: FileColumn) -> bool:
        return column.name in key_columns(self.table, self.policy)

    def _typed(self, column: FileColumn, text: str) -> str:
        """A text as a column's type, NULL where it is none; a key only if it is spelled as DuckDB prints it.

        Two keys that the file tells apart would else be one: 1.2 and 1.4 are the same integer.
        """
        value = text
        if not column.type.is_text:
            value = f"TRY_CAST({text} AS {_type_name(column)})"
            if self._is_key(column):
                value = f"CASE WHEN CAST({value} AS VARCHAR) = {text} THEN {value} END"
        return f"{value} AS {DuckDB.quote_name(column.name)}"

    @contextmanager
    def _reading(self, paths: Sequence[str], what: str, hint: str) -> Iterator[None]:
        """Read files; values may be in what is said of a fault, of which its file and its line alone are told."""
        try:
            yield
        except (OSError, csv.Error, duckdb.Error) as error:
            path = next((path for path in paths if path in str(error)), paths[0])
            if isinstance(error, PermissionError) or "Permission denied" in str(error):
                what, hint = _DENIED
            line = re.match(r"Invalid Input Error: CSV Error on Line: (\d+)", str(error))
            at = f", line {line[1]}," if line is not None else ""
            raise self._wrong(f'"{path}"{at} {what}', hint) from None

    # Parquet

    def _parquet(self) -> tuple[list[str], str]:
        first = self._footer(self.paths[0])
        for path in self.paths[1:]:
            if list(self._footer(path).items()) != list(first.items()):
                what = f'"{path}" does not have the columns of "{self.paths[0]}"'
                raise self._wrong(what, "All files of a table have the same columns of the same types, in one order.")
        self._check_types(first)
        hive = {column.name.casefold() for column in self.files.hive}
        columns = [DuckDB.quote_name(name) for name in first if name.casefold() not in hive]
        options = {"union_by_name": "false", "binary_as_string": "false"}
        reader = self._read("read_parquet", **options)
        self._read_through(reader, _UNREADABLE, self._needed(columns))
        return columns, reader

    def _check_types(self, found: Mapping[str, str]) -> None:
        for column in self.files.columns:
            if (kind := found.get(column.name)) != _type_name(column):
                told = f"is {kind} in the files" if kind is not None else "is not a column of the files"
                raise self._wrong(
                    f'"{column.name}" {told}', "Remove it from files.columns: Parquet files declare their columns."
                )

    def _needed(self, columns: Sequence[str]) -> list[str]:
        """Those columns that the policy names: the others may have values that cannot be read."""
        needed = set(map(DuckDB.quote_name, needed_columns(self.table, self.policy)))
        return [name for name in columns if name in needed]

    def _snapshot(self) -> tuple[list[str], str]:
        snapshot = LakeSnapshot(self.database, self.files.format, self.paths)
        try:
            load_extensions(self.database, self.files.format)
        except LakeError as error:
            raise self._wrong(error.what, error.hint) from None
        with self._reading(self.paths, "is not in a snapshot that DuckDB can read", "Its writer's program tells more."):
            reader = snapshot.attach(f"{VIEWS}.{self.table.name}")
            found = {name: kind for name, kind, *_ in self.database.execute(f"DESCRIBE FROM {reader}").fetchall()}
        for path in snapshot.parquet:
            self._check_keys(path, found)
        self._check_types(found)
        columns = list(map(DuckDB.quote_name, found))
        self._read_through(reader, _UNREADABLE, self._needed(columns))
        return columns, reader

    def _check_keys(self, path: str, types: Mapping[str, str]) -> None:
        """Values of keys that a file of a snapshot tells apart stay apart in the table: 1.2 and 1.4 are one integer."""
        held = {name.casefold(): kind for name, kind in self._footer(path).items()}
        if held == _DELETED:
            return
        for key in sorted(key_columns(self.table, self.policy) & types.keys()):
            wanted, kind = types[key], held.get(key.casefold(), "no column")
            if kind not in (wanted, *_NARROWER.get(wanted, ())):
                what = f'"{key}" is {wanted} in the table, and {kind} in "{path}"'
                raise self._wrong(
                    what, "Its writer rewrites the files with the names and types of the table's columns."
                )

    def _footer(self, path: str) -> dict[str, str]:
        """The columns of a file with their types."""
        with self._reading([path], "is not a whole Parquet file", "Write it again, or remove it."):
            found = read_columns(self.database, path)
            keys = key_columns(self.table, self.policy)
            # Their nanoseconds are cut: moments that the file tells apart would be one key.
            cut = f"SELECT name FROM parquet_schema({DuckDB.quote_text(path)}) WHERE type = 'INT96'"
            coarse = keys.intersection(name for (name,) in self.database.execute(cut).fetchall())
        if coarse:
            raise self._wrong(f'"{min(coarse)}" is INT96, which cannot be a key', "Write it as INT64 microseconds.")
        return found

    # Texts

    def _check_unpacked(self) -> None:
        for path in self.paths:
            with self._reading([path], "cannot be read", "Look at its disk."), self.folder.open(path) as file:
                is_packed = file.read(8).startswith(_COMPRESSED)
            if is_packed:
                raise self._wrong(
                    f'"{path}" is compressed, so reading it could fail midway', "Unpack it, or use Parquet."
                )

    def _csv(self) -> tuple[list[str], str]:
        self._check_unpacked()
        header = self._header(self.paths[0])
        for path in self.paths[1:]:
            if self._header(path) != header:
                what = f'"{path}" does not have the header of "{self.paths[0]}"'
                raise self._wrong(what, "All files of a table have the same columns, in one order.")
        self._check_named(header)
        listed = ", ".join(f"{DuckDB.quote_text(name)}: 'VARCHAR'" for name in header)
        options = {
            **{"columns": f"{{{listed}}}", "auto_detect": "false", "header": "true", "skip": "0", "comment": "''"},
            **{"delim": "','", "quote": "'\"'", "escape": "'\"'", "nullstr": "''", "allow_quoted_nulls": "false"},
            **{"strict_mode": "true", "null_padding": "false", "ignore_errors": "false", "union_by_name": "false"},
            **{"compression": "'none'", "encoding": "'utf-8'"},
        }
        reader = self._read("read_csv", **options)
        self._read_through(reader, "is not CSV of the columns in its header, in UTF-8")
        return [self._typed(column, DuckDB.quote_name(column.name)) for column in self.files.columns], reader

    def _header(self, path: str) -> list[str]:
        """The first line of a CSV file."""
        with self._reading([path], "cannot be read", "Look at its disk."), self.folder.open(path) as file:
            text = file.read(_HEADER_BYTES).decode("utf-8-sig", "replace")
            names = next(csv.reader(io.StringIO(text, newline="")), [])
        if not names or not all(names) or len({name.casefold() for name in names}) != len(names):
            raise self._wrong(f'"{path}" has no header', "Its first line names its columns, each once: patient_id,cost")
        return names

    def _check_named(self, header: Sequence[str]) -> None:
        for column in self.files.columns:
            if column.name not in header:
                raise self._wrong(f'the files have no column "{column.name}"', f"They have: {', '.join(header)}")

    def _json(self) -> tuple[list[str], str]:
        self._check_unpacked()
        # A number with a fraction is rounded before it is a text: of keys, texts and whole numbers are read alone.
        kinds = {column.name: "JSON" if self._is_key(column) else "VARCHAR" for column in self.files.columns}
        listed = ", ".join(f"{DuckDB.quote_text(name)}: '{kind}'" for name, kind in kinds.items())
        options = {
            **{
                "columns": f"{{{listed}}}",
                "auto_detect": "false",
                "format": "'newline_delimited'",
                "records": "'true'",
            },
            **{"ignore_errors": "false", "union_by_name": "false", "compression": "'uncompressed'"},
        }
        reader = self._read("read_json", **options)
        self._read_through(reader, "is not JSON of one object a line, in UTF-8")
        columns = []
        for column in self.files.columns:
            text = DuckDB.quote_name(column.name)
            if self._is_key(column):
                text = f"CASE WHEN json_type({text}) IN ('VARCHAR', 'BIGINT', 'UBIGINT') THEN {text} ->> '$' END"
            columns.append(self._typed(column, f"({text})"))
        return columns, reader

    def _read_through(self, reader: str, what: str, columns: Sequence[str] = ("COLUMNS(*)",)) -> None:
        """Read the files to their ends, together as queries will, so that no query finds a fault."""
        with self._reading(self.paths, what, "Write it again, or remove it."):
            counted = ", ".join(f"count({column})" for column in columns) or "count(*)"
            self.database.execute(f"SELECT {counted} FROM {reader}").fetchall()


def _type_name(column: FileColumn) -> str:
    return f"DECIMAL({column.digits[0]},{column.digits[1]})" if column.digits is not None else _TYPES[column.type]
