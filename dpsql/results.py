"""results: what a statement gives: rows, notices, changed settings; the same for the wire, the DB-API and the CLI."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.compiler.statements import CopyOptions
from dpsql.engine import Answer
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class ResultColumn:
    """A column of a result."""

    name: str
    type: SqlType


@dataclass(frozen=True)
class Notice:
    """Something the client is told beside the rows."""

    message: str
    severity: str = "NOTICE"
    detail: str | None = None
    hint: str | None = None
    sqlstate: str = "00000"


@dataclass(frozen=True)
class Result:
    """What a statement gave.

    Attributes:
        tag: The command tag, such as "SELECT 3"; "" for an empty statement.
        columns: The columns; None where the statement returns no rows.
        rows: The rows, as Python values of the columns' types.
        notices: What else the client is told.
        parameters: Settings that changed and that clients are told of.
        answer: The release behind the rows; None where there is none.
        copy: How COPY writes the rows; None where they are a result as any.
    """

    tag: str
    columns: tuple[ResultColumn, ...] | None = None
    rows: Sequence[tuple[object, ...]] = ()
    notices: tuple[Notice, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    answer: Answer | None = None
    copy: CopyOptions | None = None


@dataclass(frozen=True)
class Description:
    """The types of a statement's placeholders, and its columns; None where it returns no rows."""

    parameters: tuple[SqlType, ...]
    columns: tuple[ResultColumn, ...] | None
