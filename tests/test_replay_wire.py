"""End to end: all bytes that a client is sent are the same over neighbouring databases, the noisy cells being given.

Queries of the fixtures and of the grammar, refused ones, commands, catalog, cursors and COPY; by both protocols.
`HYPOTHESIS_PROFILE=long` asks every query of the fixtures, and by both.
"""

import ast
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.backends import Backend, ExactCells, open_backend
from dpsql.backends import duckdb as duckdb_module
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.errors import BackendFailure
from dpsql.gateway import session as session_module
from dpsql.policy import Policy, load_policy
from dpsql.privacy.cost import Adjacency
from dpsql.wire.gateway_sessions import Gateway
from dpsql.wire.messages.backend import CommandComplete, DataRow, PortalSuspended
from dpsql.wire.messages.frontend import Bind, Execute, Parse, Sync
from tests.examples import LONG, profile
from tests.fixtures.load import Case, load
from tests.fuzz.inputs import COPIES, CURSORS, SESSION, sql_texts
from tests.postgres import Server
from tests.recorded import Neighbours, Step, extended, simple
from tests.strategies.data import REPLACEMENTS, UNITS, Database, Row, databases
from tests.strategies.distance import TooFar
from tests.strategies.elephant import open_elephant
from tests.strategies.world import Survey, open_survey
from tests.strategies.writer import queries
from tests.test_replay import SCRIPT
from tests.wire.conftest import RunningServer
from tests.wire.rawclient import RawClient
from tests.wire.replies import read_replies
from tests.world import WIDE_POLICY

PRICE = b"price: epsilon"
UNIT = 7
"""Somebody of the wide world with rows in each of its tables."""
_OF_UNIT = (
    "DELETE FROM refills WHERE prescription_id IN (SELECT prescription_id FROM prescriptions WHERE visit_id IN "
    "(SELECT visit_id FROM visits WHERE patient_id = $1))",
    "DELETE FROM prescriptions WHERE visit_id IN (SELECT visit_id FROM visits WHERE patient_id = $1)",
    "DELETE FROM visits WHERE patient_id = $1",
    "DELETE FROM patients WHERE patient_id = $1",
    "DELETE FROM events WHERE person = $1",
)


def nothing() -> None:
    """The rows are there."""


def _opened(policy: Policy) -> Backend:
    """The backend with one thread: public rows that an ORDER BY leaves equal come in the order in which threads end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duckdb_module, "_LOCKED", {**duckdb_module._LOCKED, "threads": 1})
        return open_backend(policy)


@pytest.fixture(scope="module")
def wide(wide_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbours]:
    """The wide world, and the same without one patient."""
    folder = tmp_path_factory.mktemp("neighbours")
    backends = []
    for side in ("with", "without"):
        shutil.copy(wide_policy.with_suffix(".duckdb"), folder / f"{side}.duckdb")
        policy = folder / f"{side}.toml"
        policy.write_text(WIDE_POLICY.replace("wide.duckdb", f"{side}.duckdb"), encoding="utf-8")
        if side == "without":
            with duckdb.connect(str(folder / "without.duckdb")) as connection:
                for statement in _OF_UNIT:
                    (gone,) = connection.execute(statement, [UNIT]).fetchone() or (0,)
                    assert gone, statement
        backends.append(_opened(load_policy(policy)))
    first = load_policy(folder / "with.toml")
    yield Neighbours(first, folder, *((backend, nothing) for backend in backends))
    for backend in backends:
        backend.close()


def asked(cases: Sequence[Case]) -> list[Step]:
    """The queries of a fixture, by one protocol or the other, or by both."""
    script = []
    for number, case in enumerate(cases):
        values = ast.literal_eval(case.marks.get("parameters", "[]"))
        if (LONG or number % 2) and not values:
            script.append(simple(case.sql))
        if LONG or not number % 2 or values:
            script.append(extended(case.sql, values, binary=number % 4 == 0))
    return script


def _portal(sql: str) -> Step:
    """A portal that is read bit by bit."""
    return (Parse(b"s", sql.encode()), Bind(b"p", b"s"), Execute(b"p", 1), Execute(b"p", 2), Execute(b"p"), Sync())


def some(cases: list[Case], step: int) -> list[Case]:
    """Every so many of the cases."""
    return cases if LONG else cases[::step]


def test_the_accepted_queries(wide: Neighbours) -> None:
    cases = some(load("accepted.sql"), 12)
    answers = wide.replayed(asked(cases))
    assert sum(PRICE in answer for answer in answers) > 0.6 * len(cases)


def test_the_refused_queries(wide: Neighbours) -> None:
    """Those with now() are left out: without a table the catalog answers them, and each side has its own time."""
    cases = some([case for case in load("rejected.sql") if "now()" not in case.sql], 8)
    answers = wide.replayed(asked(cases))
    assert sum(b"SERROR" in answer for answer in answers) > 0.7 * len(cases)


BROWSING = tuple(text for text in sql_texts() if "pg_catalog" in text or "information_schema" in text)
PROBES = (
    "SELECT * FROM patients LIMIT 0",
    "SELECT * FROM (SELECT icd, COUNT(*) AS n FROM visits GROUP BY icd) AS t WHERE 1 = 0",
    "SELECT * FROM visits WHERE FALSE",
    "SELECT 1 / COUNT(*) FROM patients WHERE age > 999",
    "SELECT CAST(SUM(cost) AS smallint) FROM visits",
    "SELECT title, (SELECT COUNT(*) FROM patients) FROM icd10 ORDER BY 1 LIMIT 2",
    "SELECT (SELECT city FROM visits GROUP BY city) FROM doctors",
    "EXPLAIN SELECT AVG(cost) FROM visits; EXPLAIN (FORMAT JSON) SELECT city, COUNT(*) FROM visits GROUP BY city",
    "SELECT * FROM dpsql.releases",
    "SELECT * FROM dpsql.budget",
)


def test_commands_cursors_copies_probes_and_the_catalog(wide: Neighbours) -> None:
    texts = [text.decode() for text in (*SESSION, *CURSORS, *COPIES)]
    script = [simple(text) for text in (*texts, "RESET ALL", *PROBES, *BROWSING[:: 1 if LONG else 12])]
    alone = [text for text in (*texts, *PROBES) if text.startswith(("SELECT", "SHOW", "EXPLAIN SELECT", "COPY"))]
    script += [extended(text, binary=True) for text in alone]
    script += [simple(f"COPY ({sql}) TO STDOUT (FORMAT {form})") for sql in PROBES[3:6] for form in ("text", "binary")]
    script += [_portal("SELECT sex, COUNT(*), AVG(weight) FROM patients GROUP BY sex ORDER BY 2 DESC")]
    answers = wide.replayed(script)
    assert not any(b"SERROR" in answer for answer in answers[: len(texts)]), "commands run"
    replies = read_replies(answers[-1])
    assert [kind for kind in map(type, replies) if kind in (DataRow, PortalSuspended, CommandComplete)] == [
        *(DataRow, PortalSuspended, DataRow, DataRow, PortalSuspended, DataRow, CommandComplete)
    ]


# Generated queries over generated rows, poison among them


@pytest.fixture(scope="module", params=[("add_remove", True), ("substitute", False)], ids=["copies", "substitute"])
def survey(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    """By adjacency, and whether there are bounded copies."""
    adjacency, prepared = request.param
    opened = open_survey(tmp_path_factory.mktemp("survey"), adjacency, prepared=prepared)
    yield opened
    opened.close()


def neighbours(survey: Survey, folder: Path, left: Database, right: Database) -> Neighbours:
    """The survey's policy over two databases."""

    def filled(database: Database) -> tuple[Backend, Callable[[], None]]:
        return survey.backend, lambda: survey.fill(database.tables())

    return Neighbours(survey.catalog.policy, folder, filled(left), filled(right))


@profile(3)
@given(
    database=databases(),
    unit=st.sampled_from(range(UNITS)),
    others=REPLACEMENTS,
    texts=st.lists(queries(), min_size=4, max_size=8),
)
def test_generated_queries(
    survey: Survey,
    tmp_path_factory: pytest.TempPathFactory,
    database: Database,
    unit: int,
    others: tuple[Row, ...],
    texts: list[str],
) -> None:
    left = database.shuffled(1)
    replaced = survey.catalog.policy.dataset.adjacency is Adjacency.SUBSTITUTE
    right = database.replaced(unit, others) if replaced else database.without(unit)
    script = [extended(sql, binary=bool(number % 2)) for number, sql in enumerate(texts)]
    script += [simple(f"EXPLAIN {sql}") for sql in texts] + [simple(sql) for sql in texts]
    answers = neighbours(survey, tmp_path_factory.mktemp("replay"), left, right).replayed(script)
    assert not any(BackendFailure.SENTENCE.encode() in answer for answer in answers)


def some_rows() -> Database:
    """Rows of everybody in each table."""
    tables = ("people", "visits", "cards", "letters", "stays")
    rows = [Row(table, unit, 10 * unit + seed) for table in tables for unit in range(UNITS) for seed in range(9)]
    return Database(tuple(enumerate(rows)))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    opened = open_survey(tmp_path_factory.mktemp("survey"), "add_remove")
    yield opened
    opened.close()


ASKED = [simple("SELECT note, COUNT(*), SUM(n) FROM visits GROUP BY note"), extended("SELECT COUNT(*) FROM people")]


def test_over_a_socket(counted: Survey, tmp_path: Path) -> None:
    pair = neighbours(counted, tmp_path, some_rows(), some_rows().without(0))
    answers = pair.replayed([*ASKED, *map(simple, SCRIPT[:6])], by_socket)
    assert sum(PRICE in answer for answer in answers) > 5


def by_socket(gateway: Gateway, database: str, script: Sequence[Step]) -> list[bytes]:
    """By TCP, after a login."""
    server = RunningServer(open_session=lambda user, _: gateway.session(user, database))
    try:
        with RawClient(server.port) as client:
            client.log_in()
            return [b"".join(reply.encode() for reply in client.ask(*step)) for step in script]
    finally:
        server.close()


def test_an_engine_that_fails_says_the_same_whatever_it_says(
    counted: Survey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over either database the engine fails for another reason: neither is told, and the charge stands."""
    reasons = iter([duckdb.ConversionException("Could not convert string 'ann' to INT32"), MemoryError("of one row")])
    fetch = counted.backend.fetch

    def failing(releases: Mapping[int, PlannedRelease], *more: Any) -> Any:
        if any("kind" in planned.sql for planned in releases.values()):
            raise next(reasons)
        return fetch(releases, *more)

    monkeypatch.setattr(counted.backend, "fetch", failing)
    failed = simple("SELECT kind, COUNT(*) FROM visits GROUP BY kind")
    script = [*ASKED, failed, failed, *ASKED, simple("SELECT * FROM dpsql.budget"), simple(SCRIPT[0])]
    answers = neighbours(counted, tmp_path, some_rows(), some_rows().without(0)).replayed(script)
    assert BackendFailure.SENTENCE.encode() in answers[2] and b"SERROR" in answers[3]


@pytest.mark.parametrize("without", [range(UNITS), range(1, UNITS)])
def test_inputs_of_more_than_one_unit_are_too_far(counted: Survey, tmp_path: Path, without: range) -> None:
    right = some_rows()
    for unit in without:
        right = right.without(unit)
    with pytest.raises(TooFar):
        neighbours(counted, tmp_path, some_rows(), right).replayed(ASKED)


def test_a_notice_that_tells_of_rows_is_caught(
    counted: Survey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch: Any = counted.backend.fetch
    read: list[int] = []

    def watched(*arguments: Any) -> Any:
        *before, take = arguments

        def taken(index: int, cells: ExactCells) -> None:
            read.append(int(cells.units.sum()))
            take(index, cells)

        return fetch(*before, taken)

    monkeypatch.setattr(counted.backend, "fetch", watched)
    monkeypatch.setattr(session_module, "answer_notice", lambda *_, **__: f"{PRICE.decode()}, {read[-1]} people")
    with pytest.raises(AssertionError, match="COUNT"):
        neighbours(counted, tmp_path, some_rows(), some_rows().without(0)).replayed(ASKED)


def test_postgres(postgres_server: Server, tmp_path: Path) -> None:
    with open_elephant(postgres_server, tmp_path, "add_remove") as survey:
        pair = neighbours(survey, tmp_path, some_rows(), some_rows().without(1))
        script = [*ASKED, *map(simple, SCRIPT[:14]), *(extended(sql, binary=True) for sql in SCRIPT[7:12])]
        answers = pair.replayed([*script, simple("SELECT * FROM dpsql.releases"), simple(SCRIPT[18])])
    assert sum(PRICE in answer for answer in answers) > 8
