"""`dpsql policy profile`: releases the numbers of rows per unit, charged to the cap, and what bounds drop by them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.command import Command
from dpsql.cli.options import exact_number, ledger_option, opened_ledger, policy_argument
from dpsql.gateway.text_table import table_lines
from dpsql.policy import load_policy
from dpsql.policy.profile import RowRanks, TableProfile
from dpsql.privacy.conversion import decimal_text

if TYPE_CHECKING:
    from dpsql.gateway.owner_reads import MadeProfile


@click.command(cls=Command)
@policy_argument
@click.option("--epsilon", metavar="E", required=True, help="The total price, charged to the cap.")
@ledger_option
@click.option("--format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def profile(policy: Path, epsilon: str, ledger: str | None, format: str) -> None:
    """Make a profile, from which the bounds of queries are chosen.

    A profile tells how many rows people have, in total and in each group of each public key. It has noise, and is
    charged to the cap over all users, and to no user, even if the command fails later. The ledger keeps it for this
    data_version. A gateway reads it when it starts. For each query it then chooses the bounds with the smallest
    expected error from bias and noise. No bound is wider than the policy's.

    The budgets of users then hold beyond the policy and its profiles; dpsql budget show prints the sum.

    Example:
      dpsql policy profile clinic.toml --epsilon 0.2
    """
    from dpsql.backends import open_backend
    from dpsql.gateway.owner_reads import make_profile

    price, loaded = exact_number("epsilon", epsilon), load_policy(policy)
    with closing(open_backend(loaded)) as backend, opened_ledger(ledger, policy) as opened:
        made = make_profile(loaded, opened, backend, price)
    if format == "json":
        click.echo(json.dumps(_json(made), ensure_ascii=False))
    else:
        lines = [*_head(loaded.dataset.name, made), *drop_lines(made.profile.tables)]
        click.echo("\n".join(lines))


def _head(dataset: str, made: "MadeProfile") -> Iterator[str]:
    left = made.cap.remaining
    yield f'profile {made.profile.id} of "{dataset}", made with differential privacy'
    yield f"charged to the cap: epsilon {decimal_text(made.cost.epsilon)} ({made.cap.limit.accountant.value})"
    yield f"left of the cap: epsilon {decimal_text(left.epsilon, 4)}, delta {decimal_text(left.delta)}"


def drop_lines(tables: Sequence[TableProfile]) -> Iterator[str]:
    """Yield, for each table, the share of rows that each bound drops."""
    for table in tables:
        yield f"\n{table.table}: share of rows that a contribution bound drops"
        names = ("rows of one unit", *map(str, table.bounds), "± (95 %)")
        rows = [_row(ranks, len(table.bounds)) for ranks in table.ranks]
        yield from (f"  {line}" for line in table_lines(names, rows, right=range(1, len(names))))


def _row(ranks: RowRanks, bounds: int) -> list[str | None]:
    shares = [_percent(ranks.share_dropped(place)) for place in range(bounds)]
    return [str(ranks.grouping), *shares, _percent(ranks.margin(bounds - 1))]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _json(made: "MadeProfile") -> dict[str, object]:
    """The shape of `dpsql policy profile --format json`."""
    from dpsql.gateway.explain import cost_json, remaining_json

    tables = [
        {
            "table": table.table,
            "rows_of_one_unit": str(ranks.grouping),
            "dropped": {str(bound): ranks.share_dropped(place) for place, bound in enumerate(table.bounds)},
        }
        for table in made.profile.tables
        for ranks in table.ranks
    ]
    cost, remaining = cost_json(made.cost), remaining_json(made.cap.remaining)
    return {"profile": made.profile.id, "dropped": tables, "cost": cost, "remaining": remaining}
