"""Others: what a user sees of the cap, of stored answers and of prices might tell what another user has asked."""

from collections.abc import Callable

from dpsql.errors import Error
from dpsql.gateway.session import Session
from tests.attacks.arena import Arena, Comparison, Verdict
from tests.attacks.naive import Refused

ASKED = "SELECT COUNT(*) FROM people WHERE city = 'town 3'"
BUDGET = "SELECT epsilon_spent, epsilon_remaining, queries, queries_that_fit, last_query_fits, note FROM dpsql.budget"
LOOKS = (
    BUDGET,
    "SELECT COUNT(*) FROM dpsql.releases",
    f"EXPLAIN {ASKED}",
    f"EXPLAIN (FORMAT JSON) {ASKED}",
    "SHOW ALL",
    ASKED,
    "SELECT release, query, reused, price, kept FROM dpsql.releases",
    BUDGET,
    ASKED,
    "SELECT COUNT(*) FROM people WHERE city = 'town 4'",
    "SELECT COUNT(*) FROM people WHERE city = 'town 9'",
    "SELECT release, query, reused, price, kept FROM dpsql.releases",
    BUDGET,
)
"""What the onlooker asks, until the budget is spent."""

Look = Callable[[str], str]
"""What the onlooker is told beside noisy numbers."""


def looks(look: Look) -> list[str]:
    return [look(sql) for sql in LOOKS]


def verdict(connect: Callable[[], Look]) -> Verdict:
    """Two new users look, one before and one after another user has asked."""
    before = looks(connect())
    other = connect()
    for n in range(3):
        other(ASKED.replace("3", str(n + 3)))
    after = looks(connect())
    telling = sum(one != another for one, another in zip(before, after, strict=True))
    return Verdict(f"{telling} of {len(LOOKS)} looks tell", bool(telling))


def compare(arena: Arena) -> Comparison:
    gateway = arena.naive(True, queries=8)

    def naive() -> Look:
        def look(sql: str) -> str:
            try:
                gateway.ask(sql)
            except Refused as refused:
                return str(refused)
            return "an answer"

        return look

    def dpsql() -> Look:
        session = arena.session(True, query=0.2)
        return lambda sql: told(session, sql).replace(session.user, "me")

    return Comparison("what others ask", verdict(naive), verdict(dpsql))


def told(session: Session, sql: str) -> str:
    try:
        (statement,) = session.parse(sql)
        result = session.execute(statement)
    except Error as error:
        return f"{error.sqlstate} {error.message} {error.detail} {error.hint}"
    shown = [] if "FROM people" in sql and "EXPLAIN" not in sql else [result.tag, result.rows]
    return str([shown, result.notices])


def test_others(arena: Arena) -> None:
    compare(arena).check()
