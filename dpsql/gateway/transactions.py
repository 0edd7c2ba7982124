"""transactions: whether a session is in a transaction, and in a failed one; its savepoints; what ROLLBACK undoes.

Rule 1: a transaction holds nothing but settings and cursors: a charge that was made remains, even after ROLLBACK.
Rule 2: what a client sends at once is a transaction without BEGIN: when part of it fails, the rest is undone.
Rule 3: now() is when the transaction began, so equal queries that use it are one release in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dpsql.compiler.sql.statements import (
    CharacteristicsStatement,
    EmptyStatement,
    Modes,
    Statement,
    TransactionStatement,
)
from dpsql.errors import FailedTransaction, LimitExceeded, NoTransaction, UnknownSavepoint
from dpsql.gateway.cursors import Cursors
from dpsql.gateway.query_run import Notice, Result
from dpsql.gateway.settings import Settings, SettingsSnapshot

MAX_SAVEPOINTS = 1000
_ENDS = ("commit", "rollback", "rollback to")


@dataclass(frozen=True)
class _Before:
    """What ROLLBACK goes back to: settings, and the cursors that were open."""

    settings: SettingsSnapshot
    cursors: frozenset[str]


class Transactions:
    """The transactions of one session, one after another.

    Attributes:
        status: I: none; T: in a transaction; E: in a failed one.
        began: When the current or the last one began.
    """

    def __init__(self, settings: Settings, cursors: Cursors) -> None:
        self.status = "I"
        self._settings = settings
        self._cursors = cursors
        self._begin_here()
        self._savepoints: list[tuple[str, _Before]] = []
        self._implicit = False
        self._several = False
        self._failed = False

    @property
    def is_block(self) -> bool:
        """True where what is for the transaction alone outlasts its statement: after BEGIN, and among several."""
        return self.status != "I" or self._several

    def begin_implicit(self, several: bool) -> None:
        """What follows is one transaction without BEGIN, up to `end_implicit`.

        Args:
            several: True for the statements of one text, which are a block to those among them.
        """
        if self.status == "I":
            self._begin_here()
        self._implicit, self._several, self._failed = True, several, False

    def end_implicit(self) -> tuple[tuple[str, str], ...]:
        """End what `begin_implicit` began, unless BEGIN made it more; return the settings that clients are told of."""
        ended = Result("")
        if self._implicit and self.status == "I":
            ended = self.changed("", self._roll_back if self._failed else self._commit)
        self._implicit = self._several = self._failed = False
        return ended.parameters

    def begin_statement(self) -> None:
        """Outside transactions a statement is one by itself."""
        if self.status == "I" and not self._implicit:
            self._begin_here()

    def check(self, statement: Statement) -> None:
        """Refuse what a failed transaction does not run.

        Raises:
            FailedTransaction: It has failed, and this does not end it.
        """
        if self.status != "E" or isinstance(statement, EmptyStatement):
            return
        if not (isinstance(statement, TransactionStatement) and statement.action in _ENDS):
            raise FailedTransaction(
                "current transaction is aborted, commands ignored until end of transaction block", hint="ROLLBACK"
            )

    def fail(self) -> None:
        """Note that something went wrong: a transaction that is open has failed."""
        self._failed = True
        if self.status == "T":
            self.status = "E"

    def run(self, parsed: TransactionStatement) -> Result:
        """Run a transaction command.

        Raises:
            NoTransaction: It needs a transaction, and there is none.
            UnknownSavepoint: There is no savepoint of that name.
            LimitExceeded: There are too many savepoints.
        """
        match parsed.action:
            case "begin" | "start transaction":
                return self._begin(parsed.action.upper(), parsed.modes)
            case "commit" | "rollback":
                return self._end(parsed)
            case _:
                return self._savepoint(parsed.action, parsed.name)

    def characterize(self, parsed: CharacteristicsStatement) -> Result:
        """Run SET TRANSACTION, or SET SESSION CHARACTERISTICS, which is for the transactions to come."""
        if not parsed.session and not self.is_block:
            return Result("SET", notices=(_warning("SET TRANSACTION can only be used in transaction blocks", "25P01"),))
        return self.changed("SET", lambda: self._apply(parsed.modes, "default_" if parsed.session else ""))

    def _begin_here(self) -> None:
        self._start, self.began = self._now(), datetime.now(UTC)

    def _now(self) -> _Before:
        return _Before(self._settings.snapshot(), self._cursors.names)

    def _apply(self, modes: Modes, prefix: str = "") -> None:
        for name, value in modes:
            if prefix or name != "read_only":  # every transaction is read only
                self._settings.set(f"{prefix}transaction_{name}", value, local=not prefix)

    def _begin(self, tag: str, modes: Modes) -> Result:
        warnings = (_warning("there is already a transaction in progress", "25001"),) if self.status != "I" else ()
        if not warnings:
            # What stands before BEGIN in one text is of its transaction.
            if not self._implicit:
                self._begin_here()
            self._savepoints = []
            self.status = "T"
            # From here on it is its own: what the session changes its defaults to is for the next one.
            self._apply(self._settings.transaction_modes())
        self._apply(modes)
        return Result(tag, notices=warnings)

    def _end(self, parsed: TransactionStatement) -> Result:
        if self.status == "I":
            if parsed.chain:
                raise NoTransaction(
                    f"{parsed.action.upper()} AND CHAIN can only be used in transaction blocks", hint="BEGIN"
                )
            warning = _warning("there is no transaction in progress", "25P01")
            if not self._implicit:
                return Result(parsed.action.upper(), notices=(warning,))
            change = self._roll_back if parsed.action == "rollback" else self._commit
            return replace(self._ended(parsed.action.upper(), change), notices=(warning,))
        # A failed transaction has lost its modes by then, as in PostgreSQL.
        modes = self._settings.transaction_modes() if self.status == "T" else ()
        commits = parsed.action == "commit" and self.status == "T"
        self.status = "I"
        ended = self._ended("COMMIT", self._commit) if commits else self._ended("ROLLBACK", self._roll_back)
        if parsed.chain:
            self._begin("BEGIN", modes)
        return ended

    def _ended(self, tag: str, change: Callable[[], None]) -> Result:
        ended = self.changed(tag, change)
        self._begin_here()  # the next one, if there is more in the text
        return ended

    def _commit(self) -> None:
        self._cursors.commit()
        self._settings.commit()

    def _roll_back(self) -> None:
        self._cursors.keep(self._start.cursors)
        self._settings.restore(self._start.settings)

    def _savepoint(self, action: str, name: str) -> Result:
        if self.status == "I":
            called = action.upper() if action == "savepoint" else f"{action.upper()} SAVEPOINT"
            raise NoTransaction(f"{called} can only be used in transaction blocks", hint="BEGIN")
        if action == "savepoint":
            if len(self._savepoints) >= MAX_SAVEPOINTS:
                raise LimitExceeded(f"more than {MAX_SAVEPOINTS} savepoints", hint="RELEASE those no longer needed.")
            self._savepoints.append((name, self._now()))
            return Result("SAVEPOINT")
        found = [at for at, (known, _) in enumerate(self._savepoints) if known == name]
        if not found:
            raise UnknownSavepoint(f'savepoint "{name}" does not exist')
        # Those that were made after it go in either case; of several with one name, the last is meant.
        if action == "release":
            del self._savepoints[found[-1] :]
            return Result("RELEASE")
        del self._savepoints[found[-1] + 1 :]
        self.status = "T"
        before = self._savepoints[-1][1]
        self._cursors.keep(before.cursors)
        return self.changed("ROLLBACK", lambda: self._settings.restore(before.settings))

    def changed(self, tag: str, change: Callable[[], None]) -> Result:
        """Change settings; the result tells those that clients are told of."""
        before = self._settings.reported()
        change()
        return Result(tag, parameters=self._settings.reported_since(before))


def _warning(message: str, sqlstate: str) -> Notice:
    return Notice(message, severity="WARNING", sqlstate=sqlstate)
