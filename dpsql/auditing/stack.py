"""stack: a session with its own engine and ledger, on one of the audit's databases."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

from dpsql.auditing.draws import Drawable
from dpsql.auditing.neighbours import ROLES, Database, Datasets
from dpsql.auditing.verdict import Seen
from dpsql.backends import Backend, Cancellation, ExactRows, open_backend
from dpsql.backends.backend import NO_INPUTS, Inputs, Take
from dpsql.compiler.plan.pricing import Selection
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import Error
from dpsql.gateway.engine import Engine
from dpsql.gateway.notices import answer_notice, bounding_notice
from dpsql.gateway.query_run import Notice, Result
from dpsql.gateway.release import ReleasedCells
from dpsql.gateway.session import Session
from dpsql.ledger import BoundDrop, SqliteLedger
from dpsql.policy import Policy
from dpsql.privacy.accounting import Limit, Spent
from dpsql.privacy.cost import Accountant

_USER = "auditor"


class _KeepingLedger(SqliteLedger):
    """A ledger that also keeps the released noisy cells for the audit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kept: list[ReleasedCells] = []

    def store(
        self, release_id: int, payload: bytes, *, ends: int | None = None, dropped: Sequence[BoundDrop] = ()
    ) -> None:
        self._kept.append(ReleasedCells.from_bytes(payload))
        super().store(release_id, payload, ends=ends, dropped=dropped)

    def taken(self) -> tuple[ReleasedCells, ...]:
        """Return the cells that were stored since the last call."""
        kept, self._kept = self._kept, []
        return tuple(kept)


class Stack:
    """All that runs a query, from its text to its rows."""

    def __init__(
        self,
        datasets: Datasets,
        database: Database,
        folder: Path,
        accountant: Accountant,
        *,
        version: str = "audit",
        delta: Fraction | None = None,
        ledger: Path | None = None,
        opened: Callable[[Policy], Backend] = open_backend,
    ) -> None:
        """Prepare a stack; `with` opens it.

        Args:
            datasets: The policy under audit.
            database: The database.
            folder: The folder for a new ledger.
            accountant: The accountant of the budget.
            version: The data_version.
            delta: δ of queries with private groups; None for the audit's own.
            ledger: An existing ledger to use instead of a new one.
            opened: The function that opens the database.
        """
        self.policy = datasets.at(database, accountant, version, delta)
        self._role = ROLES[accountant]
        self._opened = opened
        self.ledger_file = ledger or Path(mkdtemp(dir=folder)) / "ledger.sqlite"
        self._held = ExitStack()
        self._exact: dict[str, Drawable] = {}

    def __enter__(self) -> Self:
        """Open the ledger, the database and a session."""
        self._ledger = _KeepingLedger(self.ledger_file)
        self._held.callback(self._ledger.close)
        if self._ledger.account(_USER) is None:
            self._ledger.add_account(_USER, self._role)
        self.engine = Engine(self.policy, self._ledger, self._keeping(self._opened(self.policy)))
        self._held.callback(self.engine.close)
        self.session = Session(self.engine, _USER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them."""
        self._held.close()

    def configure(self, mechanism: str, epsilon: Fraction, settings: Sequence[tuple[str, str]]) -> None:
        """Set price, mechanism and other settings; unless these say otherwise, no answer is reused."""
        self._exact.clear()
        named = [("dpsql.reuse", "off"), ("dpsql.mechanism", mechanism), ("dpsql.epsilon", str(float(epsilon)))]
        for name, value in [*named, *settings]:
            self.session.configure(name, value)

    def _keeping(self, backend: Backend) -> Backend:
        """The backend, changed so that exact cells are kept; noise can then be drawn again."""
        fetch = backend.fetch

        def keep(
            releases: Mapping[int, PlannedRelease],
            public: tuple[PublicRead, ...],
            cancellation: Cancellation,
            inputs: Inputs = NO_INPUTS,
            take: Take = lambda *_: None,
        ) -> ExactRows:
            found = fetch(releases, public, cancellation, inputs)
            for index, planned in releases.items():
                self._exact[planned.key] = Drawable(planned, found.releases[index])
                take(index, found.releases[index])
            return found

        backend.fetch = keep  # type: ignore[method-assign, assignment]
        return backend

    @property
    def exact(self) -> tuple[Drawable, ...]:
        """The exact cells of all releases since `configure`."""
        return tuple(self._exact.values())

    def selection(self, sql: str) -> Selection:
        """Return how the private groups of a query are selected."""
        (statement,) = self.session.parse(sql)
        selection = self.session.explain(statement).query.releases[0].selection
        if selection is None:
            raise TypeError("a query with private groups selects them")
        return selection

    def ask(self, sql: str) -> Seen:
        """Run one query, and return what it showed; an error is a part of that."""
        (statement,) = self.session.parse(sql)
        try:
            result = self.session.execute(statement)
        except Error as error:
            told = f"{error.message} ({error.sqlstate})"
            return Seen((error.detail, error.hint), (), Spent.zero(), refusal=told)
        finally:
            released = self._ledger.taken()
        charge = result.answer.charge if result.answer is not None else None
        frame = (result.columns, _notices(result), result.tag.replace(str(len(result.rows)), "n"))
        price, limit = (charge.price, charge.limit) if charge is not None else (Spent.zero(), None)
        return Seen(frame, tuple(result.rows), price, released, limit)

    def price(self, sql: str) -> Spent:
        """Return what a query would be charged."""
        (statement,) = self.session.parse(sql)
        return self.session.explain(statement).cost.spent

    @property
    def limit(self) -> Limit:
        """The limit of the user's budget."""
        return self._ledger.budget(_USER, self.policy).limit

    @property
    def spent(self) -> Spent:
        """The spending of the user's budget."""
        return self._ledger.budget(_USER, self.policy).spent


def _notices(result: Result) -> tuple[Notice, ...]:
    """The notices, with the notice of the answer replaced by the one that it has without rows.

    This notice describes noisy rows, so it may differ between the sides. Only the text that the plan and the released
    rows give is replaced; if a notice says anything else, the sides are found to differ.
    """
    if result.answer is None:
        return result.notices
    told = answer_notice(result.answer, calibrated=True)
    bare = replace(result.answer, rows=replace(result.answer.rows, rows=(), dropped=()), full=None)
    without = Notice(answer_notice(bare, calibrated=True) or "", detail=bounding_notice(bare.query))
    return tuple(without if notice.message == told else notice for notice in result.notices)
