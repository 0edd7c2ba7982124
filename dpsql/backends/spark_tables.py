"""What Spark tells of the tables of a catalog: their columns, of which kind their files are, and their outline."""

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
from dpsql.sqltypes import SqlType

_OUTLINE_SECONDS: Final = 60.0
_DETAILS: Final = "# Detailed Table Information"
"""What stands before what Spark tells of a table beside its columns."""
_PROVIDER: Final = "parquet"
_MANAGED: Final = "MANAGED"
_SMALL_DIGITS: Final = 18
"""Digits of decimals that are read as whole numbers, which cannot fail; of others Spark checks the digits."""
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
    """What Spark tells of a table.

    Attributes:
        types: The type of each column, in Spark's words.
        kind: Whether it is a view, or a table whose files Spark manages.
        provider: What its files are.
        comments: What is told of columns.
    """

    types: Mapping[str, str]
    kind: str
    provider: str
    comments: Mapping[str, str] = field(compare=False)


Tables = dict[TablePath, DescribedTable]
"""By the path of a table, what it is."""


def full_name(catalog: str, path: TablePath) -> str:
    """The name of a table in SQL."""
    return Spark().quote_path((catalog, *path))


def read_tables(session: Session, catalog: str, paths: Iterable[TablePath]) -> Tables:
    """What tables are; those that there are not are left out."""
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
        columns = list(takewhile(lambda row: row[0] and not row[0].startswith("# "), told))
        found[path] = DescribedTable(
            {name: text for name, text, *_ in columns},
            details.get("Type", "?"),
            details.get("Provider", "no").lower(),
            {name: comment for name, _, comment, *_ in columns if comment},
        )
    return found


def check_files(at: str, name: str, found: DescribedTable, needed: frozenset[str]) -> None:
    """Refuse what may fail over a row as it is read.

    Raises:
        InvalidPolicy: It is a view, or of other files than Parquet, or of files whose values may fail.
    """
    copy = f"CREATE TABLE {name}_copy USING parquet AS SELECT * FROM {name}"
    if "VIEW" in found.kind or found.provider != _PROVIDER:
        what = "a view" if "VIEW" in found.kind else f"a table of {found.provider} files"
        raise InvalidPolicy(
            f'{at}: "{name}" is {what}; reading it could fail over a row, which tells of that row',
            hint=f"Name a table of Parquet, such as one made by {copy}",
        )
    fragile = sorted(column for column in needed if _is_fragile(found.types[column]))
    if fragile and found.kind != _MANAGED:
        raise InvalidPolicy(
            f'{at}: "{fragile[0]}" of "{name}" is a {found.types[fragile[0]]} in files that others may have written; '
            "reading one that Spark cannot hold fails, which tells of its row",
            hint=f"Name a table that Spark wrote and manages, such as one made by {copy}",
        )


def _is_fragile(type_name: str) -> bool:
    """Whether a file can have a value of a type that fails as Spark reads it."""
    digits = re.fullmatch(r"decimal\((\d+),\d+\)", type_name)
    return type_name.startswith("timestamp") or (digits is not None and int(digits[1]) > _SMALL_DIGITS)


def table_of(path: TablePath, columns: Mapping[str, str]) -> EngineTable:
    """A table with columns of Spark's types; no key of it is a fact."""
    return EngineTable(path, {name: _column(kind) for name, kind in columns.items()}, frozenset())


def _column(type_name: str) -> EngineColumn:
    """A column of a type; a collation other than the binary one is told behind it."""
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
