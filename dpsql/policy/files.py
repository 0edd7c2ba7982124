"""`[tables.NAME] files`: the files of a table, and the types of columns that files do not give."""

import re

from dpsql.policy.columns import read_type
from dpsql.policy.engines import EngineKind
from dpsql.policy.model import FileColumn, FileFormat, Files
from dpsql.policy.node import Node, Shape
from dpsql.policy.source import quoted
from dpsql.sqltypes import SqlType

FILES: Shape = {
    "format": 'format = "parquet"',
    "paths": 'paths = ["visits/*.parquet"]',
    "columns": 'columns = { cost = "decimal(10,2)" }',
    "hive": 'hive = { year = "integer" }',
}
_DECIMAL = re.compile(r"(decimal|numeric) ?\( ?([0-9]{1,2}) ?, ?([0-9]{1,2}) ?\)")
_FROM_TEXT = frozenset(
    {
        *(SqlType.BOOLEAN, SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT, SqlType.REAL, SqlType.DOUBLE),
        *(SqlType.TEXT, SqlType.VARCHAR, SqlType.UUID),
        *(SqlType.DATE, SqlType.TIME, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ),
    }
)
_FOREIGN = frozenset('\\[]{}"')
"""Characters that DuckDB, too, may take for a pattern; a file with one in its name is refused as well."""


def read_files(keys: dict[str, Node], table: Node, name: str, engine: EngineKind) -> Files | None:
    """Return the files of a table: those that it lists, or those of its name in a folder of Parquet files.

    Args:
        keys: The keys of the table.
        table: The table.
        name: Its name.
        engine: The engine of the dataset's url.
    """
    if "files" in keys:
        if not engine.is_embedded:
            raise keys["files"].wrong(
                f"{engine} does not read files", 'remove files, or write: url = "parquet:///data"'
            )
        return _files(keys["files"], engine)
    if not engine.is_folder:
        return None
    paths = (f"{name}.parquet", f"{name}/**/*.parquet")
    if not all(map(_is_path, paths)) or "*" in name:
        raise table.wrong(
            f"{quoted(name)} cannot be part of a file name",
            f"write: files = {{ {FILES['format']}, {FILES['paths']} }}",
        )
    return Files(FileFormat.PARQUET, paths, (), ())


def is_plain(path: str) -> bool:
    """Return True if DuckDB reads the path as that of one plain file."""
    return path.isprintable() and not _FOREIGN & set(path)


def _files(node: Node, engine: EngineKind) -> Files:
    keys = node.fields(FILES, required=("format", "paths"))
    form = FileFormat(keys["format"].choice(known.value for known in FileFormat))
    columns = _columns(keys["columns"]) if "columns" in keys else ()
    hive = _columns(keys["hive"]) if "hive" in keys else ()
    if not form.has_types and not columns:
        raise node.wrong(f"{form.value} files have no types, so columns is required", f"write: {FILES['columns']}")
    named = {column.name.casefold() for column in columns}
    if twice := next((column.name for column in hive if column.name.casefold() in named), None):
        raise keys["hive"].wrong(f"{quoted(twice)} is also in columns", "keep one of the two")
    paths = tuple(_path(each) for each in keys["paths"].elements())
    if form.has_snapshots:
        if not engine.is_file:
            raise keys["format"].wrong(f"tables of format {form.value} are not read from {engine}", FILES["format"])
        _check_snapshot(form, paths, keys)
    return Files(form, paths, columns, hive)


def _check_snapshot(form: FileFormat, paths: tuple[str, ...], keys: dict[str, Node]) -> None:
    """Check that one table is named, which tables record their partitions themselves."""
    if len(paths) != 1 or "*" in paths[0]:
        example = "visits" if form is FileFormat.DELTA else "visits/metadata/v3.metadata.json"
        what = "one folder" if form is FileFormat.DELTA else "one metadata file"
        raise keys["paths"].wrong(f"a table of format {form.value} is {what}", f'write: paths = ["{example}"]')
    if "hive" in keys:
        raise keys["hive"].wrong(f"{form.value} tables record their partitions themselves", "remove hive")


def _path(node: Node) -> str:
    path = node.text()
    if not _is_path(path):
        what = f"{quoted(path)} is not a path below the folder of the data: no leading /, no .. ? [ or {{"
        raise node.wrong(what, f"write: {FILES['paths']}; * is any name, ** any folders")
    return path


def _is_path(path: str) -> bool:
    parts = path.split("/")
    is_below = all(part.strip() and part not in (".", "..") for part in parts) and parts[-1] != "**"
    return is_below and is_plain(path) and "?" not in path and all(part == "**" or "**" not in part for part in parts)


def _columns(node: Node) -> tuple[FileColumn, ...]:
    return tuple(_column(name, member) for name, member in node.members("column").items())


def _column(name: str, node: Node) -> FileColumn:
    told = node.text()
    if (found := _DECIMAL.fullmatch(told.strip().lower())) is not None:
        precision, scale = int(found[2]), int(found[3])
        if not (1 <= precision <= 38 and scale <= precision):
            raise node.wrong(f"{quoted(told)} is beyond decimal(38,38)", f'write: {name} = "decimal(10,2)"')
        return FileColumn(name, SqlType.NUMERIC, (precision, scale))
    sql_type = read_type(node)
    if sql_type is SqlType.NUMERIC:
        raise node.wrong(f"{quoted(told)} without its digits", f'write: {name} = "decimal(10,2)"')
    if sql_type not in _FROM_TEXT:
        raise node.wrong(f"{quoted(told)} cannot be read from text", f'write: {name} = "text"')
    return FileColumn(name, sql_type)
