"""The tables of a catalog in Spark: their columns, the kind of their files, and their outline."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from pyspark.errors import AnalysisException

from dpsql.backends.backend import Cancellation, Unreachable
from dpsql.backends.fit import TablePath
from dpsql.backends.outline import ColumnOutline, Outline, TableOutline, default_schema
from dpsql.backends.spark_sessions import FAILURES, Session, SparkSessions
from dpsql.compiler.dialects.spark import Spark
from dpsql.compiler.ir.schema import EngineColumn, EngineTable
from dpsql.errors import InvalidParameter, InvalidPolicy
from dpsql.policy import Policy
from dpsql.sqltypes import SqlType

_OUTLINE_SECONDS: Final = 60.0
_PARTITIONS: Final = ("# Partition Information", "# col_name")
"""The rows of DESCRIBE before the partition columns: their values are names of folders."""
_DETAILS: Final = "# Detailed Table Information"
"""The row of DESCRIBE before the facts about the table itself."""
_PROVIDER: Final = "parquet"
_MANAGED: Final = "MANAGED"
_SMALL_DIGITS: Final = 18
"""Decimals with at most this many digits are read as integers, which cannot fail; Spark checks those of longer ones."""
_TYPES: Final = {
    "boolean": SqlType.BOOLEAN,
    "tinyint": SqlType.SMALLINT,
    "smallint": SqlType.SMALLINT,
    "int": SqlType.INTEGER,
    "bigint": SqlType.BIGINT,
    "float": SqlType.REAL,
    "double": SqlType.DOUBLE,
    "string": SqlType.TEXT,
    "varchar": SqlType.TEXT,
    "char": SqlType.TEXT,
    "decimal": SqlType.NUMERIC,
    "date": SqlType.DATE,
    "timestamp": SqlType.TIMESTAMPTZ,
    "timestamp_ntz": SqlType.TIMESTAMP,
    "binary": SqlType.BYTEA,
}


@dataclass(frozen=True)
class DescribedTable:
    """A table as Spark describes it.

    Attributes:
        types: The type of each column, as Spark writes it.
        partitions: The partition columns, whose values are names of folders.
        kind: Whether it is a view, and whether Spark manages its files.
        provider: The format of its files.
        comments: The comments on columns.
    """

    types: Mapping[str, str]
    partitions: frozenset[str]
    kind: str
    provider: str
    comments: Mapping[str, str] = field(compare=False)


Tables = dict[TablePath, DescribedTable]
"""Tables by their paths."""


def full_name(catalog: str, path: TablePath) -> str:
    """The name of a table in SQL."""
    return Spark().quote_path((catalog, *path))


def read_tables(session: Session, catalog: str, paths: Iterable[TablePath]) -> Tables:
    """Describe tables; those that do not exist are left out."""
    found: Tables = {}
    for path in paths:
        try:
            told = [tuple(row) for row in session.sql(f"DESCRIBE TABLE EXTENDED {full_name(catalog, path)}").collect()]
        except AnalysisException as error:
            if error.getCondition() not in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                raise
            continue
        names = [name for name, *_ in told]
        details = {name: text for name, text, *_ in told[names.index(_DETAILS) :]} if _DETAILS in names else {}
        columns = list(takewhile(_is_column, told))
        by = told[names.index(_PARTITIONS[0]) + len(_PARTITIONS) :] if _PARTITIONS[0] in names else []
        found[path] = DescribedTable(
            {name: text for name, text, *_ in columns},
            frozenset(name for name, *_ in takewhile(_is_column, by)),
            details.get("Type", "?"),
            details.get("Provider", "no").lower(),
            {name: comment for name, _, comment, *_ in columns if comment},
        )
    return found


def _is_column(row: tuple[str, ...]) -> bool:
    """Whether a row of DESCRIBE is a column; an empty row or a heading follows the last one."""
    return bool(row[0]) and not row[0].startswith("# ")


def check_files(policy: Policy, table: str, name: str, found: DescribedTable, needed: frozenset[str]) -> None:
    """Refuse a table if reading it may fail over a row.

    Raises:
        InvalidPolicy: It is a view, its files are not Parquet, or Spark may fail to read one of its values.
    """
    copy = f"CREATE TABLE {name}_copy USING parquet AS SELECT * FROM {name}"
    if "VIEW" in found.kind or found.provider != _PROVIDER:
        what = "a view" if "VIEW" in found.kind else f"a table of {found.provider} files"
        raise policy.wrong(
            ("tables", table),
            f'"{name}" is {what}; reading it could fail over a row, which tells of that row',
            f"Name a table of Parquet, such as one made by {copy}",
        )
    read = {column: found.types[column] for column in needed | found.partitions}
    fragile = sorted(name for name, kind in read.items() if _is_fragile(kind, is_folder=name in found.partitions))
    if fragile and found.kind != _MANAGED:
        raise policy.wrong(
            ("tables", table),
            f'"{fragile[0]}" of "{name}" is a column of type {read[fragile[0]]} in files or folders that Spark '
            "may not have written; a value that it cannot read fails the query, which tells of its row",
            f"Name a table that Spark wrote and manages, such as one made by {copy}",
        )


def _is_fragile(type_name: str, *, is_folder: bool) -> bool:
    """Whether Spark fails to read some value of a type that another writer put into a file, or a folder's name."""
    if is_folder:
        return not type_name.startswith(("string", "varchar"))
    digits = re.fullmatch(r"decimal\((\d+),\d+\)", type_name)
    return type_name.startswith("timestamp") or (digits is not None and int(digits[1]) > _SMALL_DIGITS)


def table_of(path: TablePath, columns: Mapping[str, str]) -> EngineTable:
    """A table with columns of Spark's types; no key of it is enforced."""
    return EngineTable(path, {name: _column(kind) for name, kind in columns.items()}, frozenset())


def _column(type_name: str) -> EngineColumn:
    """A column of a type; the type's name ends with its collation, unless that is the binary one."""
    kind, _, collation = type_name.partition(" ")
    bare = kind.partition("(")[0]
    sql_type = _TYPES.get(bare, SqlType.ARRAY)
    exact = not collation and (kind if bare == "decimal" else bare) in Spark.exact_types
    return EngineColumn(type_name, sql_type, not_null=False, exact=exact)


def outline_of_spark(url: str) -> Outline:
    """Read the outline of a catalog.

    Raises:
        InvalidParameter: It cannot be reached or read.
    """
    try:
        sessions = SparkSessions(url, "UTC")
        with sessions.session(Cancellation(), _OUTLINE_SECONDS) as session:
            catalog = Spark.quote_name(sessions.catalog)
            schemas = [name for (name,) in session.sql(f"SHOW SCHEMAS IN {catalog}").collect()]
            paths = [
                (schema, table)
                for schema in schemas
                for _, table, is_temporary in session.sql(
                    f"SHOW TABLES IN {catalog}.{Spark.quote_name(schema)}"
                ).collect()
                if not is_temporary
            ]
            found = read_tables(session, sessions.catalog, paths)
    except InvalidPolicy as error:
        raise InvalidParameter(error.message, hint=error.hint) from None
    except Unreachable as error:
        raise InvalidParameter(error.what, hint=error.hint) from None
    except FAILURES as error:
        raise InvalidParameter(f"the catalog cannot be read: {type(error).__name__}") from None
    tables = [_outlined(path, found[path]) for path in paths if path in found]
    return Outline(sessions.catalog, sessions.shown, default_schema(tables, "default"), tuple(tables))


def _outlined(path: tuple[str, str], found: DescribedTable) -> TableOutline:
    columns = tuple(
        ColumnOutline(name, _column(kind).sql_type, kind, found.comments.get(name))
        for name, kind in found.types.items()
    )
    return TableOutline(*path, None, columns, (), ())
