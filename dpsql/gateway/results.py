"""results: what a statement gives: rows, notices, changed settings; the same for the wire, the DB-API and the CLI."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.compiler.sql.statements import CopyOptions
from dpsql.gateway.engine import Answer
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class ResultColumn:
    """A column of a result.

    Attributes:
        name: Its name.
        type: Its type.
        oid: PostgreSQL's type, where the catalog knows it better than `type` says; None for that of `type`.
    """

    name: str
    type: SqlType
    oid: int | None = None


class ObjectName(str):
    """The text of a value of type regclass, regtype and their like, which is an OID as well."""

    oid: int

    @classmethod
    def of(cls, text: str, oid: int) -> "ObjectName":
        """A name with the OID that it stands for."""
        made = cls(text)
        made.oid = oid
        return made


@dataclass(frozen=True)
class Notice:
    """Something the client is told beside the rows."""

    message: str
    severity: str = "NOTICE"
    detail: str | None = None
    hint: str | None = None
    sqlstate: str = "00000"

    @property
    def text(self) -> str:
        """The message, with its detail on a line of its own."""
        return self.message if self.detail is None else f"{self.message}\nDETAIL: {self.detail}"


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
    """What a statement takes and returns.

    Attributes:
        parameters: The types of its placeholders.
        columns: Its columns; None where it returns no rows.
        parameter_oids: PostgreSQL's types of the placeholders, where the catalog knows them better; else ().
        elements: Of each placeholder that is an array, the type of its items; None of the others.
    """

    parameters: tuple[SqlType, ...]
    columns: tuple[ResultColumn, ...] | None
    parameter_oids: tuple[int, ...] = ()
    elements: tuple[SqlType | None, ...] = ()
