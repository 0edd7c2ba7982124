"""The one error tree: raised by the DB-API, encoded on the wire, printed by the CLI.

Error:
├─ InterfaceError                 wrong use of the Python face, class HY; never on the wire: RowOutOfRange HY107
└─ DatabaseError
   ├─ ProgrammingError            InvalidSyntax 42601 · UndefinedTable 42P01 · UndefinedColumn 42703
   │                              AmbiguousColumn 42702
   │                              UndefinedFunction 42883 · UndefinedParameter 42P02
   │                              DatatypeMismatch 42804 · GroupingError 42803
   │                              UndefinedObject 42704 · CardinalityViolation 21000
   │                              PolicyViolation 42501
   │                              UnknownStatement 26000 · UnknownPortal 34000 · UnknownDatabase 3D000
   │                              DuplicateStatement 42P05 · DuplicateCursor 42P03
   ├─ NotSupportedError           UnsupportedQuery 0A000
   ├─ DataError                   InvalidParameter 22023 · InvalidText 22P02 · NumberOutOfRange 22003
   │                              DivisionByZero 22012
   ├─ OperationalError            BudgetExhausted 53400 · InvalidPolicy F0000 · LedgerUnavailable 58030
   │                              BackendFailure 58000 · DatabaseUnavailable 57P03
   │                              QueryCanceled 57014 · AuthenticationFailed 28P01 · ProtocolViolation 08P01
   │                              LimitExceeded 54001 · TooManyConnections 53300 · ServerShutdown 57P01
   │                              TooManyStatements 53000 · UnknownSavepoint 3B001 · CursorState 55000
   │                              ResultsTooLarge 53200
   └─ InternalError               GuaranteeMismatch XX000 · FailedTransaction 25P02 · NoTransaction 25P01

Rule 1: a message depends on SQL text, policy and ledger only, never on private data.
Rule 2: a leaf's PEP 249 base is the one psycopg gives the same SQLSTATE; class HY, which no server sends, is that of
    call-level interfaces (ISO/IEC 9075-3), and InterfaceError's.
"""

import logging
import traceback
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar


class Warning(Exception):
    """PEP 249 warning; dpsql sends notices instead and never raises it."""


class Error(Exception):
    """Base of every error dpsql raises on purpose.

    Attributes:
        message: What was wrong, in one sentence.
        detail: More about it, or None.
        hint: A query, line or command that would work, or None.
        position: 1-based character index into the SQL text, or None.
        queries: Queries that may work, the best first; compiling adds the first that does to the hint.
        notices: Notices for the client before the error, such as what was charged.
    """

    sqlstate: ClassVar[str] = "XX000"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
        queries: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.position = position
        self.queries = tuple(queries)
        self.notices: tuple[str, ...] = ()

    def __init_subclass__(cls, code: str | None = None) -> None:
        """Declare the SQLSTATE of a leaf where the leaf is declared."""
        if code is not None:
            cls.sqlstate = code


class InterfaceError(Error, code="HY000"):
    """The Python interface was used wrongly (a closed cursor, no result to fetch)."""


class DatabaseError(Error):
    """Base of the errors that concern the query, the policy, the budget or the engine."""


class ProgrammingError(DatabaseError):
    """The query itself is wrong."""


class NotSupportedError(DatabaseError):
    """The query is well formed, but outside what dpsql answers."""


class DataError(DatabaseError):
    """A value is wrong."""


class OperationalError(DatabaseError):
    """Budget, policy, ledger, engine, authentication or protocol."""


class InternalError(DatabaseError):
    """dpsql's own state forbids going on."""


class IntegrityError(DatabaseError):
    """Named by PEP 249; never raised, for dpsql writes nothing."""


class RowOutOfRange(InterfaceError, IndexError, code="HY107"):
    """The scroll target is outside the result set; also an IndexError, as PEP 249 requires."""


class InvalidSyntax(ProgrammingError, code="42601"):
    """The text is not a statement of the dialect."""


class UndefinedTable(ProgrammingError, code="42P01"):
    """No such relation in the policy, for this user."""


class UndefinedColumn(ProgrammingError, code="42703"):
    """No such column in the relations of FROM."""


class AmbiguousColumn(ProgrammingError, code="42702"):
    """More than one relation of FROM has the column."""


class UndefinedFunction(ProgrammingError, code="42883"):
    """No such function, or not for these argument types."""


class UndefinedParameter(ProgrammingError, code="42P02"):
    """A placeholder has no value."""


class UndefinedObject(ProgrammingError, code="42704"):
    """No such setting, type, schema or role."""


class DatatypeMismatch(ProgrammingError, code="42804"):
    """An expression has the wrong type for its place."""


class GroupingError(ProgrammingError, code="42803"):
    """A column stands outside GROUP BY and outside an aggregate."""


class CardinalityViolation(ProgrammingError, code="21000"):
    """A scalar subquery returns more than one row."""

    SENTENCE: ClassVar[str] = "more than one row returned by a subquery used as an expression"

    def __init__(self) -> None:
        super().__init__(self.SENTENCE, hint="Aggregate it, or add LIMIT 1.")


class PolicyViolation(ProgrammingError, code="42501"):
    """The policy does not permit the query, for example because it returns rows of a protected table."""


class UnknownStatement(ProgrammingError, code="26000"):
    """No prepared statement of that name."""


class DuplicateStatement(ProgrammingError, code="42P05"):
    """A prepared statement of that name exists."""


class DuplicateCursor(ProgrammingError, code="42P03"):
    """A cursor of that name exists."""


class CursorState(OperationalError, code="55000"):
    """A cursor that only goes forward was asked to go back."""


class UnknownPortal(ProgrammingError, code="34000"):
    """No portal of that name."""


class UnknownDatabase(ProgrammingError, code="3D000"):
    """The gateway serves no policy of that name."""


class UnsupportedQuery(NotSupportedError, code="0A000"):
    """A construct outside the allow-list."""


class InvalidParameter(DataError, code="22023"):
    """A setting or an argument is out of its range."""


class InvalidText(DataError, code="22P02"):
    """A literal is not of the type its place asks for."""


class NumberOutOfRange(DataError, code="22003"):
    """A number does not fit its type."""


class DivisionByZero(DataError, code="22012"):
    """Constants are divided by zero; a value of a table that is divided by zero gives NULL."""


class BudgetExhausted(OperationalError, code="53400"):
    """The query's price exceeds the remaining budget.

    Attributes:
        requested: Epsilon of the query, in the user's words.
        remaining: Epsilon that would still fit one query, rounded down; None where it may not be told.
    """

    def __init__(
        self,
        message: str,
        *,
        requested: Fraction,
        remaining: Fraction | None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.requested = requested
        self.remaining = remaining


class InvalidPolicy(OperationalError, code="F0000"):
    """A policy file does not say something valid."""


class LedgerUnavailable(OperationalError, code="58030"):
    """The ledger cannot be read or durably written: nothing is answered."""


class BackendFailure(OperationalError, code="58000"):
    """The engine failed. The message is the same for every cause; it says whether the query was charged.

    Args:
        charged: False where the query was charged nothing, which depends on its plan and the ledger alone.
    """

    SENTENCE: ClassVar[str] = "the query failed in the database; its charge is kept"
    UNCHARGED: ClassVar[str] = "the query failed in the database; nothing was charged"

    def __init__(self, *, charged: bool = True) -> None:
        super().__init__(self.SENTENCE if charged else self.UNCHARGED)


class DatabaseUnavailable(OperationalError, code="57P03"):
    """The engine cannot be reached, or is not what it was at the start; nothing was charged."""


class QueryCanceled(OperationalError, code="57014"):
    """Cancelled by the user or by the time limit; a charge made stands."""


class AuthenticationFailed(OperationalError, code="28P01"):
    """User or password is wrong; which of them is not told."""


class ProtocolViolation(OperationalError, code="08P01"):
    """Malformed protocol data, or a message not allowed in the current state."""


class LimitExceeded(OperationalError, code="54001"):
    """A statement, its result, or what a session holds is larger than a documented limit."""


class TooManyConnections(OperationalError, code="53300"):
    """The gateway's limit on connections is reached."""


class TooManyStatements(OperationalError, code="53000"):
    """The gateway's limit on a user's statements in some time is reached; nothing was charged."""


class ResultsTooLarge(OperationalError, code="53200"):
    """The results that a user, or all users, hold take too much memory; a charge made stands."""


class ServerShutdown(OperationalError, code="57P01"):
    """The gateway is stopping."""


class GuaranteeMismatch(InternalError, code="XX000"):
    """The guarantee recomputed from the finished plan is not the one the compiler claims."""


class NoTransaction(InternalError, code="25P01"):
    """A savepoint outside a transaction."""


class UnknownSavepoint(OperationalError, code="3B001"):
    """No savepoint of that name."""


class FailedTransaction(InternalError, code="25P02"):
    """A statement in a transaction that has failed; ROLLBACK ends it."""


def reasons(kind: type[DatabaseError] = DatabaseError) -> Iterator[type[DatabaseError]]:
    """Yield the errors of this file that have an SQLSTATE of their own: all that a gateway refuses with."""
    for each in kind.__subclasses__():
        if each.__module__ != __name__:
            continue
        if "sqlstate" in vars(each):
            yield each
        yield from reasons(each)


def log_bug(error: Exception) -> None:
    """Write the type of an unexpected exception and where it was raised to the log."""
    frames = traceback.extract_tb(error.__traceback__)
    places = "; ".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    logging.getLogger("dpsql").error("unexpected %s at %s", type(error).__qualname__, places)
