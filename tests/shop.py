"""A shop, of whose orders bounds drop most: its policy and rows for tests of wide totals."""

from pathlib import Path

import duckdb

from dpsql.policy import Policy, load_policy

POLICY = """
version = 1
[dataset]
name = "shop"
url = "duckdb:///shop.duckdb"
schema = "main"
privacy_unit = "buyer"
budget = { epsilon = 10000, delta = 1e-4 }
[roles.analyst]
budget = { epsilon = 10000, delta = 1e-4, accountant = "zcdp" }
query = { epsilon = 1, delta = 1e-6, wide_share = 0.1, max_epsilon = 5000 }
[tables.orders]
unit_key = "buyer"
max_rows = 2
max_groups = 2
max_rows_per_group = 2
[tables.orders.columns]
buyer = { type = "integer" }
kind = { type = "text", values = ["a", "b"] }
size = { type = "integer", values_from = "sizes.size" }
note = { type = "text" }
price = { type = "integer", lower = 0, upper = 10 }
change = { type = "integer", lower = -5, upper = 5 }
[tables.buyers]
unit_key = "buyer"
max_rows = 1
[tables.buyers.columns]
age = { type = "integer", lower = 18, upper = 90 }
[tables.sizes]
public = true
[tables.sizes.columns]
size = { type = "integer" }
"""
# Buyer 1 has ten orders, of which eight count in the wide total; one of buyer 3 is of no kind that there is.
DATA = """
CREATE TABLE orders (buyer INTEGER, kind VARCHAR, size INTEGER, note VARCHAR, price INTEGER, change INTEGER);
INSERT INTO orders SELECT 1, 'a', 1, 'n', 3, -1 FROM range(10);
INSERT INTO orders VALUES (2, 'a', 1, 'n', 5, 2), (2, 'b', 2, 'n', 10, 3), (2, 'b', 2, 'm', 12, 1),
    (3, 'c', 1, 'm', 1, 1), (3, NULL, NULL, 'm', NULL, 1), (4, 'b', 3, NULL, 0, 0);
CREATE TABLE buyers (buyer INTEGER PRIMARY KEY, age INTEGER);
INSERT INTO buyers VALUES (1, 30), (2, 40);
CREATE TABLE sizes (size INTEGER);
INSERT INTO sizes VALUES (1), (2);
"""


def shop(folder: Path, rows: str) -> Policy:
    with duckdb.connect(str(folder / "shop.duckdb")) as connection:
        connection.execute(rows)
    (folder / "shop.toml").write_text(POLICY, encoding="utf-8")
    return load_policy(folder / "shop.toml")


def changed(policy: Policy, before: str, after: str) -> Path:
    """The policy with something else in it."""
    assert before in POLICY
    path = policy.path.with_name("changed.toml")
    path.write_text(POLICY.replace(before, after, 1), encoding="utf-8")
    return path
