"""Catalog, statistics, EXPLAIN: what a database tells about its tables beside their rows."""

from contextlib import ExitStack, closing

from dpsql.catalog.catalog import Catalogs
from dpsql.gateway.session import Session
from tests.attacks.arena import Arena, Comparison, Verdict, asking
from tests.attacks.naive import Ask, Refused

QUESTIONS = (
    "SELECT SUM(estimated_size) FROM duckdb_tables()",
    "SELECT COUNT(*), MAX(stats) FROM pragma_storage_info('visits')",
    "EXPLAIN SELECT COUNT(*) FROM visits",
    "EXPLAIN (FORMAT JSON) SELECT cost, COUNT(*) FROM visits GROUP BY cost",
    "EXPLAIN SELECT COUNT(*) FROM visits WHERE note = 'Nowhere'",
    "SELECT MAX(stats(note)) FROM visits",
    "SELECT MAX(rowid) FROM visits",
    "SELECT COUNT(*), MIN(oid), MAX(reltuples), MAX(relpages) FROM pg_catalog.pg_class WHERE relname = 'visits'",
    "SELECT relname, reltuples, relpages, relallvisible FROM pg_catalog.pg_class",
    "SELECT COUNT(*), MAX(most_common_vals) FROM pg_catalog.pg_stats",
    "SELECT SUM(n_live_tup) FROM pg_catalog.pg_stat_user_tables",
    "SELECT SUM(seq_scan) FROM pg_catalog.pg_statio_user_tables",
    "SELECT MAX(pg_total_relation_size(c.oid)) FROM pg_catalog.pg_class AS c",
    "SELECT MAX(pg_relation_size('visits'))",
    "SELECT MAX(pg_database_size(current_database()))",
    "SELECT COUNT(*), MAX(query) FROM pg_catalog.pg_stat_activity",
    "SELECT table_name, COUNT(*) FROM information_schema.columns GROUP BY table_name ORDER BY table_name",
    "SELECT COUNT(*), MAX(character_maximum_length) FROM information_schema.columns",
    "SELECT COUNT(*) FROM dpsql.releases",
    "SELECT table_name, column_name, lower, upper FROM dpsql.columns",
    "SHOW ALL",
)


def told(ask: Ask, sql: str) -> str:
    try:
        return str(ask(sql))
    except Refused as refused:
        return str(refused)


def verdict(with_target: Ask, without: Ask) -> Verdict:
    """Whatever is not the same for two databases that differ in a person tells about that person."""
    telling = [sql for sql in QUESTIONS if told(with_target, sql) != told(without, sql)]
    return Verdict(f"{len(telling)} of {len(QUESTIONS)} texts tell", bool(telling))


def compare(arena: Arena) -> Comparison:
    with ExitStack() as held:
        asks = []
        for present in (True, False):
            user = arena.session(present).user
            catalogs = held.enter_context(closing(Catalogs({"arena": arena.engine(present)})))
            asks.append(asking(Session(arena.engine(present), user, catalogs.provider("arena", user))))
        return Comparison("catalog, EXPLAIN", verdict(arena.naive(True).ask, arena.naive(False).ask), verdict(*asks))


def test_catalog(arena: Arena) -> None:
    compare(arena).check()
