"""prepared_statements: what PREPARE names, and the arguments that EXECUTE gives it."""

from dataclasses import dataclass, field

from dpsql.compiler.sql.statements import ExecuteStatement, QueryStatement
from dpsql.errors import DuplicateStatement, InvalidSyntax, LimitExceeded, UnknownStatement
from dpsql.sqltypes import ARRAYS, SqlType

MAX_STATEMENTS = 1000

_AS_THEY_ARE = ARRAYS | {SqlType.UNKNOWN, SqlType.JSON, SqlType.JSONB, SqlType.BYTEA}
"""Types that an argument is not cast to."""


@dataclass(frozen=True)
class PreparedQuery:
    """A query and the types of its placeholders, declared or inferred."""

    query: QueryStatement
    types: tuple[SqlType, ...]


@dataclass
class PreparedStatements:
    """The statements that one session has prepared by SQL, by name."""

    _named: dict[str, PreparedQuery] = field(default_factory=dict)

    def __getitem__(self, name: str) -> PreparedQuery:
        self._check_known(name)
        return self._named[name]

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken, or one more than there may be.

        Raises:
            DuplicateStatement: There is one of that name.
            LimitExceeded: There are too many.
        """
        if name in self._named:
            raise DuplicateStatement(f'prepared statement "{name}" already exists', hint=f"Write: DEALLOCATE {name}")
        if len(self._named) >= MAX_STATEMENTS:
            raise LimitExceeded(f"more than {MAX_STATEMENTS} prepared statements", hint="Write: DEALLOCATE ALL")

    def add(self, name: str, prepared: PreparedQuery) -> None:
        """Keep a statement."""
        self._named[name] = prepared

    def forget(self, name: str | None) -> None:
        """Forget one, or all.

        Raises:
            UnknownStatement: There is none of that name.
        """
        if name is None:
            self._named.clear()
        else:
            self._check_known(name)
            del self._named[name]

    def _check_known(self, name: str) -> None:
        if name not in self._named:
            raise UnknownStatement(
                f'prepared statement "{name}" does not exist', hint=f"Write: PREPARE {name} AS SELECT 1"
            )


def arguments_query(executed: ExecuteStatement, prepared: PreparedQuery) -> QueryStatement | None:
    """Return a query for the arguments, each of its placeholder's type; None where there are none.

    It is compiled as any query is: nothing in the arguments is trusted.

    Raises:
        InvalidSyntax: There are more or fewer of them than placeholders.
    """
    expected, given = len(prepared.types), len(executed.arguments)
    if expected != given:
        raise InvalidSyntax(
            f'wrong number of parameters for prepared statement "{executed.name}"',
            detail=f"Expected {expected} parameters but got {given}.",
        )
    items = (
        f"({text})" if kind in _AS_THEY_ARE else f"CAST(({text}) AS {kind.value})"
        for text, kind in zip(executed.arguments, prepared.types, strict=True)
    )
    return QueryStatement(f"SELECT {', '.join(items)}") if given else None
