"""What bounding cuts: told from the policy alone, and counted where the owner sets a share of the price for it."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import Cancellation, open_backend
from dpsql.compiler.parts import PartKind
from dpsql.compiler.planned import CompiledQuery
from dpsql.errors import InvalidPolicy
from dpsql.explain import bounding_notice, explanation_json
from dpsql.policy import Policy, load_policy
from dpsql.privacy.cost import Event, loss
from dpsql.session import Session
from tests.compiler.plans import Planner
from tests.conftest import MakeEngine
from tests.copies import copied
from tests.postgres import Server

POLICY = """
version = 1
[dataset]
name = "shop"
url = "duckdb:///shop.duckdb"
schema = "main"
privacy_unit = "buyer"
budget = { epsilon = 100, delta = 1e-4 }
[roles.analyst]
budget = { epsilon = 100, delta = 1e-4, accountant = "zcdp" }
query = { epsilon = 1, delta = 1e-6, bias_share = 0.05 }
[tables.orders]
unit_key = "buyer"
max_rows = 4
max_groups = 2
max_rows_per_group = 2
[tables.orders.columns]
kind = { type = "text", values = ["a", "b"] }
note = { type = "text" }
price = { type = "integer", lower = 0, upper = 10 }
weight = { type = "integer", lower = 0, upper = 10 }
[tables.buyers]
unit_key = "buyer"
max_rows = 1
[tables.buyers.columns]
age = { type = "integer", lower = 18, upper = 90 }
sex = { type = "text", values = ["F", "M"] }
"""
# Buyer 1 has five orders; 2 has three in one group; 3 has one too dear; 4 nothing of it; 5 is too young.
DATA = """
CREATE TABLE orders (buyer INTEGER, kind VARCHAR, note VARCHAR, price INTEGER, weight INTEGER);
INSERT INTO orders VALUES (1, 'a', 'n', 1, 1), (1, 'a', 'n', 1, 1), (1, 'b', 'n', 1, 1), (1, 'b', 'n', 1, 1),
    (1, 'b', 'n', 1, 1), (2, 'a', 'n', 2, 2), (2, 'a', 'n', 2, 2), (2, 'a', 'n', 2, 2), (3, 'a', 'n', 11, 5),
    (3, 'b', 'n', 5, -1), (4, 'b', 'n', 10, 0), (4, 'a', 'n', NULL, NULL);
CREATE TABLE buyers (buyer INTEGER PRIMARY KEY, age INTEGER, sex VARCHAR);
INSERT INTO buyers VALUES (1, 30, 'F'), (2, 40, 'M'), (3, 90, 'F'), (4, 18, 'F'), (5, 12, 'M');
"""
CUTS = {
    "SELECT COUNT(*) FROM orders": [1],
    "SELECT SUM(price) FROM orders": [2],
    "SELECT AVG(weight) FROM orders": [2],
    "SELECT SUM(price) FILTER (WHERE price < 8) FROM orders": [1],
    "SELECT SUM(price), SUM(weight), COUNT(*) FROM orders WHERE buyer > 0": [2],
    "SELECT SUM(LEAST(price, 5)) FROM orders": [1],
    "SELECT kind, SUM(price) FROM orders WHERE kind IS NOT NULL GROUP BY kind": [2, 1],
    "SELECT AVG(age) FROM buyers": [1],
    "SELECT sex, SUM(age) FROM buyers WHERE sex IS NOT NULL GROUP BY sex": [0, 1],
    "SELECT CORR(price, weight) FROM orders": [2],
    "SELECT MEDIAN(price) FROM orders": [2],
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("shop")
    with duckdb.connect(str(folder / "shop.duckdb")) as connection:
        connection.execute(DATA)
    text = POLICY.replace("[tables.orders.columns]", '[tables.orders.columns]\nbuyer = { type = "integer" }')
    (folder / "shop.toml").write_text(text, encoding="utf-8")
    return load_policy(folder / "shop.toml")


@pytest.fixture(scope="module")
def postgres_policy(policy: Policy, postgres_server: Server) -> Iterator[Policy]:
    with copied(policy.path.with_suffix(".duckdb"), postgres_server) as url:
        path = policy.path.with_name("postgres.toml")
        path.write_text(policy.path.read_text(encoding="utf-8").replace("duckdb:///shop.duckdb", url), encoding="utf-8")
        yield load_policy(path)


def changed(policy: Policy, before: str, after: str) -> Path:
    """The policy with something else in it."""
    text = policy.path.read_text(encoding="utf-8")
    assert before in text
    path = policy.path.with_name("changed.toml")
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    return path


def cut_cells(policy: Policy, sql: str) -> list[int]:
    """The exact counts of units of whom something is cut."""
    (planned,) = Planner(policy).compile(sql).releases
    backend = open_backend(policy)
    cells = backend.fetch({0: planned}, (), Cancellation()).releases[0].cells
    backend.close()
    (place,) = [i for i, part in enumerate(planned.parts) if part.part.kind is PartKind.CUT]
    return [int(cell) for cell in cells[place]]


@pytest.mark.parametrize("sql", CUTS)
def test_units_are_counted_of_whom_something_is_cut(policy: Policy, sql: str) -> None:
    assert cut_cells(policy, sql) == CUTS[sql]


@pytest.mark.parametrize("sql", CUTS)
def test_postgres_counts_the_same(postgres_policy: Policy, sql: str) -> None:
    assert cut_cells(postgres_policy, sql) == CUTS[sql]


def test_one_unit_changes_the_count_by_one_at_the_most(policy: Policy) -> None:
    """Whatever its rows are: it is counted once in each group that it counts in."""
    path = policy.path.with_suffix(".duckdb")
    for sql, whole in CUTS.items():
        for buyer in range(1, 6):
            with duckdb.connect(str(path)) as connection:
                connection.execute("BEGIN")
                connection.execute("CREATE TABLE kept AS SELECT * FROM orders WHERE buyer = ?", [buyer])
                connection.execute("CREATE TABLE known AS SELECT * FROM buyers WHERE buyer = ?", [buyer])
                connection.execute("COMMIT")
                connection.execute("DELETE FROM orders WHERE buyer = ?", [buyer])
                connection.execute("DELETE FROM buyers WHERE buyer = ?", [buyer])
            without = cut_cells(policy, sql)
            with duckdb.connect(str(path)) as connection:
                connection.execute("INSERT INTO orders SELECT * FROM kept")
                connection.execute("INSERT INTO buyers SELECT * FROM known")
                connection.execute("DROP TABLE kept")
                connection.execute("DROP TABLE known")
            assert all(0 <= one - other <= 1 for one, other in zip(whole, without, strict=True))


# What it costs


def spent(event: Event) -> Fraction:
    found = loss(event)
    return found.rho if event.conversion_delta == 0 else found.basic_epsilon or Fraction(0)


def cut_events(query: CompiledQuery) -> list[Event]:
    return [part.noise.event for made in query.releases for part in made.parts if part.part.kind is PartKind.CUT]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*), SUM(price) FROM orders",
        "SELECT note, COUNT(*), SUM(price) FROM orders GROUP BY note",
        "SELECT kind, SUM(price) FROM orders GROUP BY ROLLUP (kind)",
    ],
)
def test_the_share_is_that_of_the_price_and_no_more_is_paid(policy: Policy, sql: str) -> None:
    query = Planner(policy).compile(sql)
    assert query.price is not None
    of_cuts = sum(map(spent, cut_events(query)))
    assert query.price.rho * Fraction("0.0499999") < of_cuts <= query.price.rho * Fraction("0.05")
    assert query.spends.rho <= query.price.rho


@pytest.mark.parametrize("accountant", ["basic", "pure"])
def test_every_currency_has_a_share(policy: Policy, accountant: str) -> None:
    path = changed(policy, 'delta = 1e-4, accountant = "zcdp" }', f'delta = 1e-4, accountant = "{accountant}" }}')
    if accountant == "pure":
        text = path.read_text(encoding="utf-8").replace(', delta = 1e-4, accountant = "pure"', ', accountant = "pure"')
        path.write_text(text.replace("query = { epsilon = 1, delta = 1e-6,", "query = { epsilon = 1, delta = 0,"))
    query = Planner(load_policy(path)).compile("SELECT COUNT(*), SUM(price) FROM orders")
    (event,) = cut_events(query)
    epsilon = loss(event).basic_epsilon
    assert epsilon is not None and Fraction("0.0499") < epsilon <= Fraction("0.05")


def test_nothing_is_counted_where_nothing_is_cut_or_no_share_is_set(policy: Policy) -> None:
    planner = Planner(policy)
    assert cut_events(planner.compile("SELECT COUNT(*) FROM buyers")) == []
    # What has no noise has no price, and gets none.
    assert planner.compile("SELECT DISTINCT kind FROM orders").spends.rho == 0
    unset = Planner(load_policy(changed(policy, ", bias_share = 0.05", "")))
    assert cut_events(unset.compile("SELECT SUM(price) FROM orders")) == []


@pytest.mark.parametrize("share", ["0", "0.0001", "0.6", "1", '"a"'])
def test_a_share_is_a_part(policy: Policy, share: str) -> None:
    with pytest.raises(InvalidPolicy, match="bias_share"):
        load_policy(changed(policy, "bias_share = 0.05", f"bias_share = {share}"))


# What is said


def test_the_notice_tells_the_count(policy: Policy, make_engine: MakeEngine) -> None:
    session = Session(make_engine(policy), "ana")
    for sql in ("SELECT SUM(price) FROM orders", "SELECT kind, SUM(price) AS s FROM orders GROUP BY kind"):
        (statement,) = session.parse(sql)
        (notice,) = session.execute(statement).notices
        assert notice.detail is not None
        assert notice.detail.startswith("of one unit at most ")
        assert "values beyond their limits are moved to them; that concerns about " in notice.detail
        assert "units (± " in notice.detail
        again = session.execute(statement).notices[0]
        assert again.detail == notice.detail  # the same release
        explained = session.explain(statement)
        told = bounding_notice(explained.query)
        assert told is not None and "concerns" not in told and explanation_json(explained)["bounding"] == told


@pytest.mark.usefixtures("no_noise")
def test_the_count_is_that_of_all_groups(policy: Policy, make_engine: MakeEngine) -> None:
    session = Session(make_engine(policy), "ana")
    (statement,) = session.parse("SELECT kind, SUM(price) AS s FROM orders GROUP BY kind")
    (notice,) = session.execute(statement).notices
    assert "concerns about 3 units" in str(notice.detail)
