"""stack: a session over an engine over one of the audit's databases, with a ledger of its own."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

from dpsql.auditing.judge import Seen
from dpsql.auditing.worlds import ROLES, Worlds
from dpsql.backends import Backend, open_backend
from dpsql.engine import Engine
from dpsql.errors import Error
from dpsql.ledger import open_ledger
from dpsql.policy import Policy
from dpsql.privacy.cost import Accountant
from dpsql.privacy.totals import Spent
from dpsql.session import Session

_USER = "auditor"


class Stack:
    """Everything from the text of a query to its rows."""

    def __init__(
        self,
        worlds: Worlds,
        path: Path,
        folder: Path,
        accountant: Accountant,
        *,
        version: str = "audit",
        ledger: Path | None = None,
        opened: Callable[[Policy], Backend] = open_backend,
    ) -> None:
        """Name what is opened.

        Args:
            worlds: What is audited.
            path: The database.
            folder: Where a new ledger is made.
            accountant: How the budget adds up.
            version: Of the data.
            ledger: One that there is already.
            opened: What opens the database.
        """
        self.policy = worlds.at(path, accountant, version)
        self._role = ROLES[accountant]
        self._opened = opened
        self.ledger_file = ledger or Path(mkdtemp(dir=folder)) / "ledger.sqlite"
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Open it."""
        ledger = open_ledger(f"sqlite:///{self.ledger_file}")
        self._held.callback(ledger.close)
        if ledger.account(_USER) is None:
            ledger.add_account(_USER, self._role)
        self.engine = Engine(self.policy, ledger, self._opened(self.policy))
        self._held.callback(self.engine.close)
        self.session = Session(self.engine, _USER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._held.close()

    def configure(self, mechanism: str, epsilon: Fraction, settings: Sequence[tuple[str, str]]) -> None:
        """Set what queries are asked under; each is a fresh, paid answer."""
        named = [("dpsql.reuse", "off"), ("dpsql.mechanism", mechanism), ("dpsql.epsilon", str(float(epsilon)))]
        for name, value in [*named, *settings]:
            self.session.configure(name, value)

    def ask(self, sql: str) -> Seen:
        """Ask one query."""
        (statement,) = self.session.parse(sql)
        try:
            result = self.session.execute(statement)
        except Error as error:
            return Seen((error.detail, error.hint), (), Spent.zero(), f"{error.message} ({error.sqlstate})")
        charge = result.answer.charge if result.answer is not None else None
        frame = (result.columns, result.notices, result.tag.replace(str(len(result.rows)), "n"))
        return Seen(frame, tuple(result.rows), charge.price if charge is not None else Spent.zero())

    def price(self, sql: str) -> Spent:
        """What a query would be charged."""
        (statement,) = self.session.parse(sql)
        return self.session.explain(statement).cost.spent

    @property
    def spent(self) -> Spent:
        """What the budget holds."""
        return self.engine.ledger.budget(_USER, self.policy).spent
