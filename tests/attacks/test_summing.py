"""Summing: floats have another sum in another order, so one person can move a sum by more than all of their own values.

The target has two rows that cancel out, which by themselves are 0 in any sum of a person; the first one stands before
everybody's rows and swallows them (Casacuberta et al. 2022). And the same rows have several sums, by the order in which
they lie on the disk and by the number of threads: whoever reads one to the last digit learns from it more than rows.
"""

import duckdb
import pytest

from dpsql.backends import Cancellation, DuckDBBackend
from dpsql.backends import duckdb as duckdb_module
from dpsql.compiler.sql.statements import QueryStatement
from tests.attacks.arena import Arena, Comparison, Verdict, number
from tests.attacks.naive import Ask

SWALLOWING = """
    CREATE OR REPLACE TABLE visits AS
        SELECT 1000 AS person, 0 AS cost, 0::BIGINT AS n, 1e22::DOUBLE AS f, 0::DECIMAL(18, 2) AS m, 'a' AS note,
            DATE '2024-01-01' AS day, TIMESTAMP '2024-01-01' AS met
        UNION ALL FROM visits WHERE person < 1000
        UNION ALL SELECT 1000, 0, 0, -1e22, 0, 'b', DATE '2024-01-01', TIMESTAMP '2024-01-01'
"""
"""The target's rows: one before the others', and one behind them."""
TOTAL = sum(i % 50 for i in range(3000))
"""Of the others."""
CROWD = """
    CREATE OR REPLACE TABLE visits AS
        SELECT i AS person, 0 AS cost, i AS n, hash(i) % 5000 / 100::DOUBLE AS f, 0::DECIMAL(18, 2) AS m, 'a' AS note,
            DATE '2024-01-01' AS day, TIMESTAMP '2024-01-01' AS met
        FROM range(200000) r (i) ORDER BY {order}
"""
ORDERS = {"by number": "i", "by lot": "hash(i)"}
THREADS = (1, 2, 4)
SUMS = "SELECT COUNT(*), SUM(f), AVG(f), VAR_POP(f) FROM visits"


def guess(ask: Ask) -> bool:
    return number(ask, "SELECT SUM(f) FROM visits") < TOTAL / 2


def naive_sums(arena: Arena, order: str, threads: int) -> str:
    """What the naive gateway has before its noise."""
    file = arena.file("naive", True, order)
    with duckdb.connect(str(file), read_only=True, config={"threads": threads}) as database:
        return str(database.execute(SUMS).fetchall())


def dpsql_sums(arena: Arena, order: str, threads: int) -> str:
    """What dpsql has before its noise."""
    session, engine = arena.session(True), arena.engine(True)  # over other rows: a plan does not depend on them
    query = engine.compile(session.user, QueryStatement(SUMS), session._settings.query(engine.now(), session.user))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duckdb_module, "_LOCKED", {**duckdb_module._LOCKED, "threads": threads})
        backend = DuckDBBackend(str(arena.file("dpsql", True, order)), engine.policy)
    try:
        exact = backend.fetch(dict(enumerate(query.releases)), (), Cancellation())
        return str([[part.tolist() for part in cells.cells] for cells in exact.releases.values()])
    finally:
        backend.close()


def compare(arena: Arena) -> Comparison:
    arena.add("swallowing", SWALLOWING)
    for name, order in ORDERS.items():
        arena.add(name, CROWD.format(order=order))
    right = arena.game("order of sums, threads", guess, naive={"scale": 100}, data="swallowing")
    ways = [(order, threads) for order in ORDERS for threads in (THREADS if arena.thorough else THREADS[::2])]

    def verdict(found: Verdict, sums: set[str]) -> Verdict:
        text = f"{found.text}, {len(sums)} results of {len(ways)} sums"
        return Verdict(text, found.succeeded or len(sums) > 1)

    naive = verdict(right.naive, {naive_sums(arena, *way) for way in ways})
    dpsql = verdict(right.dpsql, {dpsql_sums(arena, *way) for way in ways})
    return Comparison(right.attack, naive, dpsql)


def test_summing(arena: Arena) -> None:
    compare(arena).check()
