"""The outline of a DuckDB file, and of a folder or a bucket of Parquet files."""

from pathlib import Path
from typing import Final

import duckdb

from dpsql.backends.duckdb_facts import sql_type
from dpsql.backends.duckdb_files import read_columns
from dpsql.backends.file_folders import FileFolder, FolderError, LocalFolder
from dpsql.backends.outline import ColumnOutline, ForeignKey, Outline, TableOutline, default_schema
from dpsql.errors import InvalidParameter
from dpsql.policy.engines import PARQUET
from dpsql.sqltypes import SqlType

_COLUMNS: Final = """
    SELECT schema_name, table_name, column_name, data_type, comment FROM duckdb_columns()
    WHERE database_name = current_database() AND NOT internal ORDER BY schema_name, table_name, column_index"""
_COMMENTS: Final = """
    SELECT schema_name, table_name, comment FROM duckdb_tables() WHERE database_name = current_database()
    UNION ALL SELECT schema_name, view_name, comment FROM duckdb_views() WHERE database_name = current_database()"""
_KEYS: Final = """
    SELECT schema_name, table_name, constraint_column_names, referenced_table, referenced_column_names
    FROM duckdb_constraints() WHERE database_name = current_database()
    AND constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY') ORDER BY ALL"""


_ALL: Final = "**/*.parquet"


def outline_of_duckdb(file: str) -> Outline:
    """Read the outline of a file.

    Raises:
        InvalidParameter: It cannot be read.
    """
    path = Path(file).resolve()
    if not path.is_file():
        hint = "duckdb:///clinic.duckdb is a file in this directory, duckdb:////srv/clinic.duckdb an absolute path."
        raise InvalidParameter(f"there is no file {path}", hint=hint)
    try:
        with duckdb.connect(str(path), read_only=True, config={"enable_external_access": False}) as database:
            columns, comments, keys = (database.execute(sql).fetchall() for sql in (_COLUMNS, _COMMENTS, _KEYS))
    except duckdb.Error:
        hint = "A program that has the file open for writing must close it; a CSV or Parquet file is no database."
        raise InvalidParameter(f"{path} is not a DuckDB file that can be read now", hint=hint) from None
    told = {(schema, table): comment for schema, table, comment in comments}
    tables = []
    for place in dict.fromkeys((schema, table) for schema, table, *_ in columns):
        listed = [row[2:] for row in columns if row[:2] == place]
        found = [row[2:] for row in keys if row[:2] == place]
        tables.append(
            TableOutline(
                *place,
                told.get(place),
                tuple(ColumnOutline(name, sql_type(kind), kind, comment) for name, kind, comment in listed),
                tuple(tuple(here) for here, other, _ in found if other is None),
                tuple(
                    ForeignKey((place[0], other), tuple(zip(here, there, strict=True)))
                    for here, other, there in found
                    if other is not None
                ),
            )
        )
    return Outline(path.stem, f"duckdb:///{path}", default_schema(tables, "main"), tuple(tables))


def outline_of_folder(folder: str) -> Outline:
    """Read the outline of a folder of Parquet files: each of them, and each folder with some, is a table.

    Raises:
        InvalidParameter: It is no folder, or the first file of a table cannot be read.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        hint = "parquet:///data is a folder in this directory, parquet:////srv/data an absolute path."
        raise InvalidParameter(f"there is no folder {root}", hint=hint)
    return _outline(LocalFolder(str(root)), f"{PARQUET.start}{root}")


def outline_of_bucket(url: str) -> Outline:
    """Read the outline of the Parquet objects of a bucket; as that of a folder.

    Raises:
        InvalidParameter: What reads it is not installed, or the first object of a table cannot be read.
        DatabaseUnavailable: It cannot be listed now.
    """
    try:
        from dpsql.backends.object_store import ObjectFolder
    except ImportError:
        raise InvalidParameter("what reads S3 is not installed", hint="pip install 'dpsql[s3]'") from None
    return _outline(ObjectFolder(url), url)


def _outline(folder: FileFolder, url: str) -> Outline:
    try:
        found = {path: state for path, state in folder.look((_ALL,))(_ALL) if state is not None}
    except FolderError as error:
        raise InvalidParameter(error.what, hint=error.hint) from None
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as database:
        folder.attach(database, found)
        first: dict[str, str] = {}
        for path in sorted(found):
            first.setdefault(path.removeprefix(f"{folder.name}/").partition("/")[0], path)
        tables = [_table_of(database, folder.name, path) for path in first.values()]
    return Outline(Path(folder.name).name, url, PARQUET.default_schema, tuple(tables))


def _table_of(database: duckdb.DuckDBPyConnection, folder: str, first: str) -> TableOutline:
    """A table of a folder: its columns are those of its first file, and those in the names of folders."""
    try:
        found = read_columns(database, first)
    except duckdb.Error:
        raise InvalidParameter(f"{first} is not a Parquet file that can be read now") from None
    parts = first.removeprefix(f"{folder}/").split("/")
    hive = tuple(part.partition("=")[0] for part in parts[:-1] if "=" in part)
    columns = [ColumnOutline(name, sql_type(kind), kind, None) for name, kind in found.items() if name not in hive]
    columns += [ColumnOutline(name, SqlType.TEXT, "VARCHAR", None) for name in hive]
    name = parts[0].removesuffix(".parquet") if len(parts) == 1 else parts[0]
    return TableOutline(PARQUET.default_schema, name, None, tuple(columns), (), (), hive)
