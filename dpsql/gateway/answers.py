"""answers: what the engine gives: a query's rows with their price, or what they would cost."""

from dataclasses import dataclass, replace

from dpsql.compiler.plan.query_plan import CompiledQuery, OutputColumn
from dpsql.gateway.prices import Cost, Quotation, of_query, together
from dpsql.gateway.reading import Made
from dpsql.gateway.release import ReleasedRows
from dpsql.ledger import BudgetStatus, Charge
from dpsql.privacy.accounting import Spent


@dataclass(frozen=True)
class Answer:
    """A query's released rows, what they cost and how exact they are.

    Attributes:
        columns: The columns, with the error of each noisy one.
        rows: The rows.
        query: The plan they came from.
        charge: What was charged; None where nothing was released.
        earlier: What was charged before for less exact answers to the same question.
        full: The rows with the limits of their intervals, where these are not among the columns.
        fresh: Where it is combined of what was bought and of what the user had: what the first alone tells.
    """

    columns: tuple[OutputColumn, ...]
    rows: ReleasedRows
    query: CompiledQuery
    charge: Charge | None
    earlier: tuple[Charge, ...] = ()
    full: ReleasedRows | None = None
    fresh: "Answer | None" = None

    @property
    def limited(self) -> tuple[int, ...]:
        """Places of the columns followed by their limits; none where a target has had the limits taken out."""
        return self.query.limited if len(self.columns) == len(self.query.columns) else ()

    def without_limits(self) -> "Answer":
        """The answer without the limits of its intervals, for one who did not ask for them."""
        kept = [place for place in range(len(self.columns)) if place not in self.query.ends]
        columns = tuple(self.columns[place] for place in kept)
        fresh = None if self.fresh is None else self.fresh.without_limits()
        return replace(self, columns=columns, rows=self.rows.only(kept), full=self.rows, fresh=fresh)

    @property
    def cost(self) -> Cost | None:
        """What was charged, for the earlier answers too; None where nothing was released."""
        if self.charge is None:
            return None
        if self.earlier:
            return together(self.charge.limit, [charge.price for charge in (*self.earlier, self.charge)])
        return of_query(self.query, self.charge.price, self.charge.limit)

    @property
    def derived_from(self) -> tuple[int, ...]:
        """The user's numbers of the releases whose cells were added up for it; none where it has its own."""
        return self.query.derived_from

    @property
    def consistent_with(self) -> tuple[int, ...]:
        """The user's numbers of the other releases that it was made to add up with."""
        return self.query.consistent_with

    @property
    def reused(self) -> bool:
        """True if this user already had every release."""
        return self.charge is not None and all(
            granted.reused for charge in (*self.earlier, self.charge) for granted in charge.releases
        )


def answer_of(made: Made, charge: Charge | None) -> Answer:
    """The results of the releases of a charge."""
    fresh = None if made.fresh is None else answer_of(made.fresh, charge)
    return Answer(made.query.columns, made.rows, made.query, charge, fresh=fresh)


@dataclass(frozen=True)
class Explanation:
    """What a query would do and cost; nothing was read and nothing spent.

    Attributes:
        query: The query.
        quotation: What it would be charged now.
        target: What dpsql.target_error asks for; None where it asks for nothing.
        rounds: The dearest queries that there may be until the target is met; none where the query is all there is.
        most: What these would be charged now.
    """

    query: CompiledQuery
    quotation: Quotation
    target: str | None
    rounds: tuple[CompiledQuery, ...]
    most: Quotation

    @property
    def charged(self) -> tuple[CompiledQuery, ...]:
        """The most that is charged, one statement after another."""
        return self.rounds or (self.query,)

    @property
    def dearest(self) -> Cost:
        """What all rounds to the target would be charged at the most; the cost where there is no target."""
        return self.most.cost if self.rounds else self.cost

    @property
    def spends(self) -> Spent:
        """What the query's releases cost one who has none of them."""
        return self.query.spends

    @property
    def derived_from(self) -> tuple[int, ...]:
        """The user's numbers of the releases whose cells would be added up for it."""
        return self.query.derived_from

    @property
    def reused(self) -> bool:
        """True if the user's earlier releases would be reused at no charge."""
        return self.cost.free and (self.spends != Spent.zero() or self.query.anew is not None)

    @property
    def cost(self) -> Cost:
        """What the query would be charged."""
        return of_query(self.query, self.quotation.charges[0].spent, self.status.limit)

    @property
    def status(self) -> BudgetStatus:
        """The current budget."""
        return self.quotation.status
