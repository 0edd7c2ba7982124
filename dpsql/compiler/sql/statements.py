"""statements: what a session may be told, each kind a class; `sql` is a statement's own text."""

from dataclasses import dataclass

from dpsql.sqltypes import SqlType

QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "("})
"""The first words of queries."""

Modes = tuple[tuple[str, str], ...]
"""What is said of a transaction: isolation, read_only or deferrable, each with its value as SHOW gives it."""


@dataclass(frozen=True)
class QueryStatement:
    """A query; `sql` is its own text and `offset` where that starts in what was sent."""

    sql: str
    offset: int = 0


@dataclass(frozen=True)
class ExplainStatement:
    """EXPLAIN of a query; `json` is true for (FORMAT JSON)."""

    query: QueryStatement
    sql: str
    json: bool = False


@dataclass(frozen=True)
class WorkloadStatement:
    """EXPLAIN (WORKLOAD) of all queries that follow in the text; `json` is true for FORMAT JSON."""

    queries: tuple[QueryStatement, ...]
    sql: str
    json: bool = False


@dataclass(frozen=True)
class SetStatement:
    """SET name = value; value is None for DEFAULT, and `local` is true for SET LOCAL."""

    name: str
    value: str | None
    sql: str
    local: bool = False


@dataclass(frozen=True)
class ShowStatement:
    """SHOW name."""

    name: str
    sql: str


@dataclass(frozen=True)
class ResetStatement:
    """RESET name, or RESET ALL where name is None."""

    name: str | None
    sql: str


@dataclass(frozen=True)
class TransactionStatement:
    """A transaction command: begin, start transaction, commit, rollback, savepoint, release or rollback to.

    `name` is that of the savepoint, in the last three; `modes` are of the first two; `chain` is true for AND CHAIN.
    """

    action: str
    sql: str
    name: str = ""
    modes: Modes = ()
    chain: bool = False


@dataclass(frozen=True)
class CharacteristicsStatement:
    """SET TRANSACTION; `session` is true for SET SESSION CHARACTERISTICS AS TRANSACTION."""

    modes: Modes
    session: bool
    sql: str


@dataclass(frozen=True)
class DiscardStatement:
    """DISCARD ALL and its lesser forms."""

    what: str
    sql: str


@dataclass(frozen=True)
class DeallocateStatement:
    """DEALLOCATE name, or ALL where name is None."""

    name: str | None
    sql: str


@dataclass(frozen=True)
class PrepareStatement:
    """PREPARE name (types) AS query; a type that is not named is None."""

    name: str
    types: tuple[SqlType | None, ...]
    query: QueryStatement
    sql: str


@dataclass(frozen=True)
class ExecuteStatement:
    """EXECUTE name (arguments); the arguments are texts of expressions without columns."""

    name: str
    arguments: tuple[str, ...]
    sql: str


@dataclass(frozen=True)
class DeclareStatement:
    """DECLARE name CURSOR FOR query; `scroll` is None without SCROLL and NO SCROLL."""

    name: str
    query: QueryStatement
    hold: bool
    scroll: bool | None
    sql: str


@dataclass(frozen=True)
class FetchStatement:
    """FETCH, or MOVE if `move` is True.

    Attributes:
        name: The cursor.
        direction: forward, backward, absolute or relative.
        count: The number of rows, or the row number; None for all.
        move: True if no rows are returned.
        sql: The statement's text.
    """

    name: str
    direction: str
    count: int | None
    move: bool
    sql: str


@dataclass(frozen=True)
class CloseStatement:
    """CLOSE name, or ALL where name is None."""

    name: str | None
    sql: str


@dataclass(frozen=True)
class CopyOptions:
    """How COPY writes rows, as in the manual; a NULL is written as `null`."""

    format: str = "text"
    header: bool = False
    delimiter: str = "\t"
    null: str = "\\N"
    quote: str = '"'
    escape: str = '"'
    force_quote: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class CopyStatement:
    """COPY (query) TO STDOUT; a table stands for the query that selects from it."""

    query: QueryStatement
    options: CopyOptions
    sql: str


@dataclass(frozen=True)
class ListenStatement:
    """LISTEN and UNLISTEN: NOTIFY does not exist, so no notification arrives."""

    word: str
    sql: str


@dataclass(frozen=True)
class LockStatement:
    """LOCK TABLE … IN ACCESS SHARE MODE: who only reads has nothing to wait for."""

    sql: str


@dataclass(frozen=True)
class EmptyStatement:
    """A text of blanks and comments."""

    sql: str = ""


Statement = (
    QueryStatement
    | ExplainStatement
    | WorkloadStatement
    | SetStatement
    | ShowStatement
    | ResetStatement
    | TransactionStatement
    | CharacteristicsStatement
    | DiscardStatement
    | DeallocateStatement
    | PrepareStatement
    | ExecuteStatement
    | DeclareStatement
    | FetchStatement
    | CloseStatement
    | CopyStatement
    | ListenStatement
    | LockStatement
    | EmptyStatement
)
