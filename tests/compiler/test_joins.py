"""Joins and unions of units that are texts of several types, and of units that cannot meet."""

from pathlib import Path

import duckdb
import pytest

from dpsql.errors import DatatypeMismatch
from dpsql.gateway.session import Session
from tests.conftest import MakeEngine

ROWS = {
    "people": ("id VARCHAR PRIMARY KEY, age INTEGER, notes JSON", "('a', 30, '{}'), ('b', 40, '{}'), ('c', 50, NULL)"),
    "calls": (
        "who VARCHAR, day INTEGER, number INTEGER, minutes INTEGER",
        "('a', 1, 1, 1), ('a', 1, 2, 2), ('d', 2, 1, 4), ('A', 2, NULL, 8), (NULL, 3, 1, 16)",
    ),
    "words": (
        "day INTEGER, number INTEGER, word VARCHAR",
        "(1, 1, 'x'), (1, 1, 'y'), (1, 3, 'x'), (2, 1, 'x'), (2, NULL, 'y'), (3, 1, 'y')",
    ),
    "orders": ("number INTEGER, items INTEGER", "(1, 3), (2, 5)"),
}
POLICY = """
version = 1
[dataset]
name = "texts"
url = "duckdb:///texts.duckdb"
privacy_unit = "person"
budget = { epsilon = 1000, delta = 1e-3 }
[roles.analyst]
budget = { epsilon = 1000, delta = 1e-3 }
query = { epsilon = 1, delta = 1e-9, max_epsilon = 10 }

[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
id = { type = "text" }
age = { type = "integer", lower = 0, upper = 110 }
notes = { type = "json" }

[tables.calls]
unit_key = "who"
max_rows = 9
max_groups = 9
max_rows_per_group = 9
[tables.calls.columns]
who = { type = "varchar" }
minutes = { type = "integer", lower = 0, upper = 100 }

[tables.words]
unit_via = { table = "calls", on = { day = "day", number = "number" } }
max_rows = 9
[tables.words.columns]
day = { type = "integer" }
number = { type = "integer" }
word = { type = "text", values = ["x", "y"] }

[tables.orders]
unit_key = "number"
max_rows = 1
[tables.orders.columns]
items = { type = "integer", lower = 0, upper = 100 }
"""


@pytest.fixture
def analyst(tmp_path: Path, make_engine: MakeEngine, no_noise: None) -> Session:
    """A session over people whose keys are text, varchar and integer."""
    with duckdb.connect(str(tmp_path / "texts.duckdb")) as connection:
        for name, (columns, rows) in ROWS.items():
            connection.execute(f"CREATE TABLE {name} ({columns}); INSERT INTO {name} VALUES {rows}")
    policy = tmp_path / "texts.toml"
    policy.write_text(POLICY, encoding="utf-8")
    return Session(make_engine(policy), "ana")


def ask(analyst: Session, sql: str) -> list[tuple[object, ...]]:
    (statement,) = analyst.parse(sql)
    return list(analyst.execute(statement).rows)


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT COUNT(*), SUM(minutes) FROM people JOIN calls ON who = id", (2, 3)),
        ("SELECT COUNT(*), SUM(minutes) FROM people LEFT JOIN calls ON who = id", (4, 3)),
        ("SELECT COUNT(*), SUM(minutes), SUM(age) FROM people FULL JOIN calls ON who = id", (6, 15, 150)),
        ("SELECT COUNT(*), SUM(n) FROM (SELECT age AS n FROM people UNION ALL SELECT minutes FROM calls) t", (7, 135)),
        ("SELECT COUNT(*) FROM (SELECT id FROM people UNION SELECT who FROM calls) t", (5,)),
        ("SELECT COUNT(*) FROM (SELECT who FROM calls INTERSECT SELECT id FROM people) t", (1,)),
        ("SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM calls WHERE who = id AND minutes > 1)", (1,)),
    ],
)
def test_units_of_two_types_of_text_are_the_same_where_their_texts_are(
    analyst: Session, sql: str, answer: tuple[int, ...]
) -> None:
    assert ask(analyst, sql) == [answer]


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT COUNT(*) FROM words", (3,)),
        ("SELECT COUNT(*), SUM(minutes) FROM calls c JOIN words w ON w.day = c.day AND c.number = w.number", (3, 6)),
        (
            "SELECT COUNT(*), SUM(minutes) FROM (SELECT day, number, minutes FROM calls) c "
            "JOIN (SELECT number, day FROM words WHERE word = 'x') w USING (number, day)",
            (2, 5),
        ),
        ("SELECT COUNT(*), SUM(n) FROM (SELECT day, number, COUNT(*) AS n FROM words GROUP BY day, number) t", (2, 3)),
    ],
)
def test_two_columns_together_lead_to_the_unit(analyst: Session, sql: str, answer: tuple[int, ...]) -> None:
    assert ask(analyst, sql) == [answer]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT COUNT(*) FROM (SELECT age FROM people UNION ALL SELECT items FROM orders) t",
            "unit keys of types text and integer cannot be combined",
        ),
        ("SELECT COUNT(*) FROM people a JOIN people b USING (id, notes)", "values of type json cannot be compared"),
        ("SELECT COUNT(*) FROM people JOIN orders ON id = number", "text"),
    ],
)
def test_values_of_unlike_types_do_not_meet(analyst: Session, sql: str, message: str) -> None:
    with pytest.raises(DatatypeMismatch, match=message):
        ask(analyst, sql)
