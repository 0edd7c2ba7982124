"""Wide totals: which are bought, what they count, their noise and their price."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import duckdb
import pytest

from dpsql.backends import Cancellation, open_backend
from dpsql.compiler.aggregates.wide_totals import WIDTH
from dpsql.compiler.plan.query_plan import CompiledQuery, WideTotal
from dpsql.compiler.plan.verify import verify
from dpsql.errors import GuaranteeMismatch, InvalidPolicy
from dpsql.policy import Policy, load_policy
from dpsql.privacy.cost import Adjacency, Event, loss, row_sensitivity
from tests.compiler.plans import Planner
from tests.engines import Host
from tests.shop import DATA, POLICY, changed, shop

TOTALS = {
    "SELECT COUNT(*) FROM orders": [8 + 3 + 2 + 1],
    "SELECT kind, COUNT(*) FROM orders GROUP BY kind": [8 + 3 + 1 + 1],
    "SELECT size, COUNT(*) FROM orders GROUP BY size": [8 + 3 + 2],
    "SELECT kind, size, COUNT(*) FROM orders GROUP BY kind, size": [8 + 3 + 1],
    "SELECT kind, COUNT(price) FROM orders GROUP BY kind": [8 + 3 + 1],
    "SELECT kind, COUNT(*) FILTER (WHERE price > 4) FROM orders GROUP BY kind": [3],
    "SELECT kind, COUNT(*), COUNT(*) FILTER (WHERE price > 4), SUM(price) FROM orders GROUP BY kind": [13, 3],
    "SELECT kind, AVG(price) FROM orders GROUP BY kind": [12],
    "SELECT SUM(price) FROM orders": [10 * 3 + 25 + 1],
    "SELECT kind, SUM(price) FROM orders WHERE kind IS NOT NULL GROUP BY kind": [30 + 25],
    "SELECT note, COUNT(*) FROM orders GROUP BY note": [14],
    "SELECT COUNT(*) FROM orders WHERE kind = 'a'": [8 + 1],
    # A unit is counted in at most two groups, and in the wide total in at most eight.
    "SELECT kind, size, COUNT(DISTINCT buyer) FROM orders GROUP BY kind, size": [1 + 2 + 1],
    "SELECT kind, size, COUNT(DISTINCT o.buyer) FROM buyers b LEFT JOIN orders o ON o.buyer = b.buyer GROUP BY 1, 2": [
        3
    ],
    "SELECT kind, size, COUNT(DISTINCT buyer) FILTER (WHERE price > 4) FROM orders GROUP BY kind, size": [2],
    "SELECT note, COUNT(DISTINCT buyer), COUNT(price) FROM orders GROUP BY note": [8 + 3 + 1 + 1, 1 + 2 + 1 + 1],
    # Rows per buyer, of which two are expected, and eight in the wide total.
    "SELECT AVG(n) FROM (SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer) AS t": [8 + 3 + 2 + 1],
    "SELECT SUM(n), COUNT(*) FROM (SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer) AS t": [8 + 3 + 2 + 1],
    "SELECT AVG(n), SUM(n), SUM(m) FROM (SELECT buyer, COUNT(*) AS n, COUNT(price) AS m FROM orders GROUP BY 1) AS t": [
        14,
        14,
        13,
    ],
    "SELECT n > 1, AVG(n) FROM (SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer) AS t GROUP BY 1": [14],
    "SELECT AVG((SELECT COUNT(*) FROM orders o WHERE o.buyer = b.buyer)) FROM buyers b": [8 + 3],
    "SELECT SUM(n) FROM (SELECT buyer, SUM(price) AS n FROM orders GROUP BY buyer) AS t": [30 + 27 + 1],
    "SELECT AVG(n) FROM (SELECT o.buyer, COUNT(*) AS n FROM orders o JOIN buyers b USING (buyer) GROUP BY 1) AS t": [
        11
    ],
    "SELECT AVG(n) FROM (SELECT DISTINCT ON (buyer) buyer, RANK() OVER (PARTITION BY buyer ORDER BY price, size) AS n "
    "FROM orders ORDER BY buyer, n DESC) AS t": [1 + 3 + 2 + 1],
}
UNBOUGHT = [
    "SELECT COUNT(*) FROM buyers",
    "SELECT SUM(age) FROM buyers",
    "SELECT COUNT(DISTINCT buyer) FROM orders",
    "SELECT SUM(change) FROM orders",
    "SELECT MEDIAN(price) FROM orders",
    "SELECT VARIANCE(price) FROM orders",
    "SELECT DISTINCT kind FROM orders",
    "SELECT kind FROM orders GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 1",
    "SELECT AVG(LEAST(n, 2)) FROM (SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer) AS t",
    "SELECT AVG(10 - n) FROM (SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer) AS t",
    "SELECT SUM(exp(n)) FROM (SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer) AS t",  # in other steps
    "SELECT AVG(age) FROM buyers",
    # Of rows that are made, a wide total could drop most too.
    "SELECT COUNT(*) FROM orders, generate_series(1, 30)",
    "SELECT note, COUNT(DISTINCT buyer), SUM(price) FROM orders, UNNEST(ARRAY[1, 2]) GROUP BY note",
    "SELECT AVG(n) FROM (SELECT buyer, COUNT(*) AS n FROM orders, generate_series(1, 30) GROUP BY buyer) AS t",
    "SELECT AVG((SELECT COUNT(*) FROM orders o, (VALUES (1), (2)) v WHERE o.buyer = b.buyer)) FROM buyers b",
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return shop(tmp_path_factory.mktemp("shop"), DATA)


@pytest.fixture(scope="module")
def each_policy(policy: Policy, host: Host) -> Iterator[Policy]:
    with host.serve(policy.path.with_suffix(".duckdb")) as url:
        path = policy.path.with_name("each.toml")
        path.write_text(POLICY.replace("duckdb:///shop.duckdb", url), encoding="utf-8")
        yield load_policy(path)


def wide_cells(policy: Policy, sql: str) -> list[int]:
    """The exact wide totals of a query's cells."""
    query = Planner(policy).compile(sql)
    backend = open_backend(policy)
    found = backend.fetch(dict(enumerate(query.releases)), (), Cancellation())
    backend.close()
    return [int(found.releases[each.wide].cells[each.wide_cell][0]) for each in query.wide_totals]


@pytest.mark.parametrize("sql", TOTALS)
def test_a_wide_total_is_that_of_the_rows_of_all_groups(each_policy: Policy, sql: str) -> None:
    assert wide_cells(each_policy, sql) == TOTALS[sql]


def test_settings_narrow_the_rows_of_a_wide_total(policy: Policy) -> None:
    planner = Planner(load_policy(changed(policy, "max_rows = 2", "max_rows = 5")))
    query = planner.compile("SELECT COUNT(*) FROM orders", max_rows="3")
    (total,) = query.wide_totals
    assert query.releases[total.wide].contribution.rows_per_group == WIDTH * 3


@pytest.mark.parametrize("sql", UNBOUGHT)
def test_none_is_bought_where_it_would_tell_nothing(policy: Policy, sql: str) -> None:
    assert Planner(policy).compile(sql).wide_totals == ()


def test_none_is_bought_without_a_share_or_under_a_target(policy: Policy) -> None:
    sql = "SELECT COUNT(*) FROM orders"
    assert Planner(policy).compile(sql, target_error="50").wide_totals == ()
    unset = Planner(load_policy(changed(policy, ", wide_share = 0.1", "")))
    assert unset.compile(sql).wide_totals == ()


def test_none_is_bought_for_sums_of_too_many_digits(policy: Policy) -> None:
    wider = Planner(
        load_policy(changed(policy, '"integer", lower = 0, upper = 10', f'"bigint", lower = 0, upper = {2**48}'))
    )
    assert wider.compile("SELECT SUM(price) FROM orders").wide_totals == ()


# Sensitivity


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("lower", [0, -3])
def test_the_sensitivity_is_that_of_all_small_vectors(adjacency: Adjacency, lower: int) -> None:
    """Brute force: every unit with up to three rows, beside every other one, where a total takes two rows of a unit."""
    rows, values = 2, (lower, 0, 2)
    units = [unit for n in range(4) for unit in itertools.product(values, repeat=n)]

    def counted(unit: Sequence[int]) -> int:
        return min(len(unit), rows)

    def summed(unit: Sequence[int]) -> int:
        return min(max(sum(unit), rows * min(lower, 0)), rows * 2)

    others: list[tuple[int, ...]] = units if adjacency is Adjacency.SUBSTITUTE else [()]
    of_count = max(abs(counted(one) - counted(other)) for one in units for other in others)
    of_sum = max(abs(summed(one) - summed(other)) for one in units for other in others)
    assert of_count == rows
    assert of_sum == (rows * (2 - lower) if adjacency is Adjacency.SUBSTITUTE else rows * max(2, -lower))


@pytest.mark.parametrize("adjacency", Adjacency)
def test_rows_of_sampled_units_move_as_rows_do(adjacency: Adjacency) -> None:
    """Brute force: every unit with up to three rows in each of three groups, of which two count in all, one in each."""
    rows = 2
    units = list(itertools.product(range(4), repeat=3))

    def kept(unit: Sequence[int]) -> tuple[int, ...]:
        """The first groups' rows; any choice by the unit's own rows would do."""
        left, found = rows, []
        for count in unit:
            found.append(min(count, 1, left))
            left -= found[-1]
        return tuple(found)

    def of_sampled(unit: Sequence[int]) -> tuple[int, ...]:
        counted = kept(unit)
        return counted if sum(unit) > sum(counted) else (0,) * len(counted)

    def norms(cell: Callable[[Sequence[int]], tuple[int, ...]]) -> tuple[int, int, int]:
        others = units if adjacency is Adjacency.SUBSTITUTE else [(0, 0, 0)]
        moves = [[a - b for a, b in zip(cell(x), cell(y), strict=True)] for x in units for y in others]
        return (
            max(sum(map(bool, move)) for move in moves),
            max(sum(map(abs, move)) for move in moves),
            max(sum(each**2 for each in move) for move in moves),
        )

    found, claimed = norms(of_sampled), norms(kept)
    assert all(mine <= theirs for mine, theirs in zip(found, claimed, strict=True)) and max(found) > 0
    noised = row_sensitivity(adjacency, l0=3, rows=rows, per_cell=1, lower=0, upper=1, grouped=True)
    assert claimed[1] <= noised.l1 and claimed[2] <= noised.l2_squared


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
def test_the_noise_is_made_for_so_many_rows(policy: Policy, adjacency: str) -> None:
    """L1 = L2 = W·R of a count, and W·R times the range of a sum, under both adjacencies."""
    path = changed(policy, 'privacy_unit = "buyer"', f'privacy_unit = "buyer"\nadjacency = "{adjacency}"')
    planner = Planner(load_policy(path))
    rows_of_each = "(SELECT buyer, COUNT(*) AS n FROM orders GROUP BY buyer) AS t"
    for sql, largest in (
        ("SELECT kind, COUNT(*) FROM orders GROUP BY kind", 1),
        ("SELECT SUM(price) FROM orders", 10),
        (f"SELECT AVG(n) FROM {rows_of_each}", 1),
        (f"SELECT SUM(n) FROM {rows_of_each}", 1),
    ):
        query = planner.compile(sql)
        (total,) = query.wide_totals
        sensitivity = query.releases[total.wide].primitives[total.wide_cell].noise.sensitivity
        most = WIDTH * 2 * largest
        assert (sensitivity.l0, sensitivity.linf, sensitivity.l1, sensitivity.l2_squared) == (1, most, most, most**2)


def test_one_unit_moves_a_wide_total_by_no_more(policy: Policy) -> None:
    """Whatever its rows are: buyer 1 has more than count."""
    file = policy.path.with_suffix(".duckdb")
    for sql, whole in TOTALS.items():
        for buyer in range(1, 5):
            with duckdb.connect(str(file)) as connection:
                connection.execute("CREATE TABLE kept AS SELECT * FROM orders WHERE buyer = ?", [buyer])
                connection.execute("DELETE FROM orders WHERE buyer = ?", [buyer])
            without = wide_cells(policy, sql)
            with duckdb.connect(str(file)) as connection:
                connection.execute("INSERT INTO orders SELECT * FROM kept")
                connection.execute("DROP TABLE kept")
            most = WIDTH * 2 * (10 if "SUM(price)" in sql and "COUNT" not in sql else 1)
            assert all(0 <= one - other <= most for one, other in zip(whole, without, strict=True))


def test_a_wide_total_of_more_rows_than_it_is_noised_for_is_refused(policy: Policy) -> None:
    planner = Planner(policy)
    query = planner.compile("SELECT kind, COUNT(*) FROM orders GROUP BY kind")
    (total,) = query.wide_totals
    (fewer, _) = planner.compile("SELECT COUNT(*) FROM orders").releases
    planted = list(query.releases)
    planted[total.wide] = replace(planted[total.wide], primitives=fewer.primitives)
    with pytest.raises(GuaranteeMismatch):
        verify(replace(query, releases=tuple(planted)), planner.catalog)


def test_a_wide_total_is_one_row(policy: Policy) -> None:
    planner = Planner(policy)
    query = planner.compile("SELECT kind, COUNT(*) FROM orders GROUP BY kind")
    with pytest.raises(GuaranteeMismatch, match="wide total"):
        verify(replace(query, wide_totals=(WideTotal(1, 0, 0, 0),)), planner.catalog)


# What it costs


def spent(event: Event) -> Fraction:
    found = loss(event)
    return found.rho if event.conversion_delta == 0 else found.basic_epsilon or Fraction(0)


def wide_events(query: CompiledQuery) -> list[Event]:
    """What the cells cost that tell what bounds drop."""
    totals = query.wide_totals
    places = {place for each in totals for place in (each.wide, each.bounded) if place is not None}
    beside = {(each.release, each.sampled) for each in totals if each.sampled is not None}
    return [
        *(event for place in places for event in query.releases[place].events),
        *(query.releases[place].primitives[cell].noise.event for place, cell in beside),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*), COUNT(price) FROM orders",
        "SELECT note, COUNT(*), SUM(price) FROM orders GROUP BY note",
        "SELECT kind, size, COUNT(*) FROM orders GROUP BY ROLLUP (kind, size)",
    ],
)
def test_the_share_is_that_of_the_price_and_no_more_is_paid(policy: Policy, sql: str) -> None:
    query = Planner(policy).compile(sql)
    assert query.price is not None
    of_totals = sum(map(spent, wide_events(query)))
    assert query.price.rho * Fraction("0.0999999") < of_totals <= query.price.rho * Fraction("0.1")
    assert query.spends.rho <= query.price.rho


@pytest.mark.parametrize("accountant", ["basic", "pure"])
def test_every_currency_has_a_share(policy: Policy, accountant: str) -> None:
    path = changed(policy, 'delta = 1e-4, accountant = "zcdp" }', f'delta = 1e-4, accountant = "{accountant}" }}')
    if accountant == "pure":
        text = path.read_text(encoding="utf-8").replace(', delta = 1e-4, accountant = "pure"', ', accountant = "pure"')
        path.write_text(text.replace("query = { epsilon = 1, delta = 1e-6,", "query = { epsilon = 1, delta = 0,"))
    (event,) = wide_events(Planner(load_policy(path)).compile("SELECT COUNT(*) FROM orders"))
    epsilon = loss(event).basic_epsilon
    assert epsilon is not None and Fraction("0.0999") < epsilon <= Fraction("0.1")


@pytest.mark.parametrize("share", ["0", "0.0001", "0.6", "1", '"a"'])
def test_a_share_is_a_part(policy: Policy, share: str) -> None:
    with pytest.raises(InvalidPolicy, match="wide_share"):
        load_policy(changed(policy, "wide_share = 0.1", f"wide_share = {share}"))


def test_the_key_of_older_policies_is_read(policy: Policy) -> None:
    older = load_policy(changed(policy, "wide_share = 0.1", "bias_share = 0.05"))
    assert older.roles[0].query.wide_share == Fraction(1, 20)
    with pytest.raises(InvalidPolicy, match="old name of wide_share"):
        load_policy(changed(policy, "wide_share = 0.1", "bias_share = 0.05, wide_share = 0.1"))
