"""`dpsql budget show --compare` and `--plot`: reports on the charges under other analyses; they limit nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from fractions import Fraction
from math import nan
from pathlib import Path
from typing import Any, TypeVar

import click

from dpsql.cli.plot import Curve, Drawing, check_plot, draw
from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.gateway.text_table import table_lines
from dpsql.ledger import BudgetStatus, Ledger
from dpsql.ledger.spending import spending
from dpsql.privacy.accounting import Spent
from dpsql.privacy.conversion import decimal
from dpsql.privacy.cost import Event
from dpsql.privacy.reports import ANALYSES, Dash, epsilon_of_group, gate, history

_GATES_NOTHING = (
    "For comparison only: the cost of the same queries under other analyses, rounded up. "
    "Only the accountant of the budget limits queries."
)
_CAVEAT = (
    "These values hold only if the queries were fixed in advance. "
    "If answers influenced later queries, only the accountant's own value holds."
)
_POINTS = 40

F = TypeVar("F", bound=Callable[..., Any])


def _parse_delta(ctx: click.Context, param: click.Parameter, text: str | None) -> Fraction | None:
    """Return the exact value of δ."""
    if text is None:
        return None
    try:
        delta = Decimal(text)
        possible = Decimal("1e-30") <= delta < 1
    except InvalidOperation:
        possible = False
    if not possible:
        raise click.BadParameter(f'"{text}" is not a valid delta: give a number from 1e-30 to 1, such as 1e-6')
    return Fraction(delta)


def comparing(command: F) -> F:
    """Give a command the options of a `Comparison`."""
    options = (
        click.option("--compare", is_flag=True, help="Also show the cost of the queries under other analyses."),
        click.option(
            "--delta", metavar="D", callback=_parse_delta, help="Compare at this delta instead of the budget's."
        ),
        click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw it: .png or .svg."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Comparison:
    """The requested comparison.

    Attributes:
        table: Whether all budgets are compared in writing.
        delta: The δ of the reports; None for each budget's own.
        units: A number of privacy units for group privacy; None for one unit only.
        plot: The file for the plot of the last budget; None for no plot.
    """

    table: bool
    delta: Fraction | None
    units: int | None
    plot: Path | None


@dataclass(frozen=True, slots=True)
class BudgetHistory:
    """A budget with its charges.

    Attributes:
        name: The user, the group or "all users".
        status: The budget.
        charges: The events of each charge, oldest first.
        delta: The δ of the report.
    """

    name: str
    status: BudgetStatus
    charges: Sequence[Sequence[Event]]
    delta: Fraction


def compared(ledger: Ledger, statuses: Sequence[tuple[str, BudgetStatus]], asked: Comparison) -> Iterator[str]:
    """Yield the lines of the requested comparison, and draw the requested plot.

    Args:
        ledger: The ledger with the charges.
        statuses: The budgets with their names; the last one is drawn.
        asked: The requested comparison.
    """
    if asked.plot is not None:
        check_plot(asked.plot)
    elif not asked.table:
        if asked.delta is not None:
            raise click.UsageError("--delta needs --compare or --plot.")
        return
    histories = read_histories(ledger, statuses if asked.table else statuses[-1:], asked.delta)
    if asked.table:
        yield from ("", _GATES_NOTHING, _CAVEAT)
        for budget in histories:
            yield ""
            yield from comparison(budget, asked.units)
    if asked.plot is not None:
        draw(drawing(histories[-1]), asked.plot)
        yield f"drawn: {asked.plot}"


def read_histories(
    ledger: Ledger, statuses: Sequence[tuple[str, BudgetStatus]], delta: Fraction | None
) -> list[BudgetHistory]:
    """Return the budgets with their charges.

    Args:
        ledger: The ledger with the charges.
        statuses: The budgets as they were shown, each with its name.
        delta: At which δ to report; None for each budget's own.

    Raises:
        LedgerUnavailable: The charges do not add up to what the budgets have spent.
    """
    charges = spending(ledger.export())
    histories = []
    for name, status in statuses:
        # Charges after the status was read are omitted.
        found = [charge for number in status.numbers for charge in charges.get(number, [])][: status.charges]
        if not _adds_up(found, status.spent):
            raise LedgerUnavailable(
                f'the charges of "{name}" do not add up to the spending: the ledger changed while it was read',
                hint="Run it again; if that does not help, dpsql ledger verify.",
            )
        histories.append(BudgetHistory(name, status, found, status.limit.delta if delta is None else delta))
    return histories


def _adds_up(charges: Sequence[Sequence[Event]], spent: Spent) -> bool:
    total = Spent.zero()
    for events in charges:
        total = total.add(events)
    return (total.rho, total.pure_epsilon, total.delta) == (spent.rho, spent.pure_epsilon, spent.delta)


def comparison(budget: BudgetHistory, units: int | None) -> Iterator[str]:
    """Yield the lines of a budget's report; with `units`, also for several privacy units together."""
    queries = len(budget.charges)
    yield f"{budget.name}, {queries} {'query' if queries == 1 else 'queries'}, at delta = {float(budget.delta):g}:"
    names = ["kind", "analysis", "epsilon", *([] if units is None else [f"epsilon for {units}"]), "remark"]
    yield from table_lines(names, list(_rows(budget, units)), right=range(2, len(names) - 1))


def _rows(budget: BudgetHistory, units: int | None) -> Iterator[list[str | None]]:
    limit = budget.status.limit
    counted = gate(limit, budget.status.spent)
    told = counted.reason if isinstance(counted, Dash) else f"refuses beyond {shown(limit.epsilon)}"
    yield ["gate", limit.accountant.value, shown(counted), *([] if units is None else [None]), told]
    events = Counter(event for charge in budget.charges for event in charge)
    for analysis in ANALYSES:
        found = [epsilon_of_group(analysis, events, budget.delta, each) for each in (1, units) if each is not None]
        reasons = dict.fromkeys(each.reason for each in found if isinstance(each, Dash))
        yield ["report", analysis.name, *map(shown, found), "; ".join(reasons)]


def shown(epsilon: Fraction | Dash) -> str:
    """Return ε to four digits, rounded up."""
    if isinstance(epsilon, Dash):
        return "–"
    digits = decimal(epsilon, Context(prec=4, rounding=ROUND_CEILING))
    return f"{float(digits):.4g}"


def drawing(budget: BudgetHistory) -> Drawing:
    """Return the lines to draw for a budget: ε after each query, or after about 40 of them.

    Raises:
        InvalidParameter: Nothing was charged.
    """
    if not budget.charges:
        raise InvalidParameter(
            f'"{budget.name}" has no charges yet, so there is nothing to draw',
            hint="--user NAME draws another budget.",
        )
    last = len(budget.charges)
    places = {1, *(-(-last * point // _POINTS) for point in range(1, _POINTS + 1))}
    limit = budget.status.limit
    counted = [(0, 0.0)]
    reported = {analysis.name: [(0, 0.0)] for analysis in ANALYSES}
    spent, events = budget.status.spent.cleared(), Counter[Event]()
    for place, charge in enumerate(budget.charges, start=1):
        spent = spent.add(charge)
        events.update(charge)
        if place in places:
            counted.append((place, _height(gate(limit, spent))))
            ran = history(events)
            for analysis in ANALYSES:
                reported[analysis.name].append((place, _height(analysis.epsilon(ran, budget.delta))))
    return Drawing(
        title=f"{budget.name}: ε against the number of queries",
        height=f"ε at δ = {float(budget.delta):g}",
        note=_CAVEAT,
        limit=float(limit.epsilon),
        gate=Curve(limit.accountant.value, counted),
        reports=[Curve(name, points) for name, points in reported.items()],
    )


def _height(epsilon: Fraction | Dash) -> float:
    return nan if isinstance(epsilon, Dash) else float(epsilon)
