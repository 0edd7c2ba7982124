"""Cursors, prepared statements and COPY in SQL; wherever a cursor goes, PostgreSQL's goes too."""

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.errors import (
    CursorState,
    DuplicateCursor,
    DuplicateStatement,
    InvalidSyntax,
    InvalidText,
    LimitExceeded,
    NoTransaction,
    PolicyViolation,
    UndefinedColumn,
    UnknownPortal,
    UnknownStatement,
    UnsupportedQuery,
)
from dpsql.gateway.cursors import MAX_CURSORS
from dpsql.gateway.engine import Engine
from dpsql.gateway.prepared_statements import MAX_STATEMENTS
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session

SERIES = "SELECT n FROM generate_series(1, 5) AS s (n)"
COUNTS = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
_NUMBERS = st.integers(-7, 7).map(str)
DIRECTIONS = st.one_of(
    st.sampled_from(
        ["", "NEXT", "PRIOR", "FIRST", "LAST", "ALL", "FORWARD", "BACKWARD", "FORWARD ALL", "BACKWARD ALL"]
    ),
    st.builds("{} {}".format, st.sampled_from(["", "ABSOLUTE", "RELATIVE", "FORWARD", "BACKWARD"]), _NUMBERS),
)


def run(session: Session, sql: str, *values: object) -> Result:
    result = None
    for statement in session.parse(sql):
        result = session.execute(statement, values)
    assert result is not None
    return result


def spent(engine: Engine) -> int:
    return engine.ledger.budget("ana", engine.policy).charges


@pytest.fixture
def shared(wide_engine: Engine) -> Iterator[Session]:
    session = Session(wide_engine, "ana")
    yield session
    session.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["FETCH", "MOVE"]), DIRECTIONS), min_size=1, max_size=12))
def test_a_cursor_goes_where_postgres_goes(
    shared: Session, postgres: psycopg.Connection, steps: list[tuple[str, str]]
) -> None:
    run(shared, f"BEGIN; DECLARE c SCROLL CURSOR FOR {SERIES}")
    with postgres.transaction(force_rollback=True):
        postgres.execute(f"DECLARE c SCROLL CURSOR FOR {SERIES}")
        for word, direction in steps:
            ours, theirs = run(shared, f"{word} {direction} FROM c"), postgres.execute(f"{word} {direction} FROM c")
            assert ours.tag == theirs.statusmessage
            if word == "FETCH":
                assert list(ours.rows) == theirs.fetchall()
    run(shared, "ROLLBACK")


def test_a_cursor_is_charged_when_it_is_declared(engine: Engine, session: Session) -> None:
    declared = run(session, f"BEGIN; DECLARE c CURSOR FOR {COUNTS}")
    assert (declared.tag, declared.columns, spent(engine)) == ("DECLARE CURSOR", None, 1)
    assert declared.notices
    rows = [run(session, "FETCH 1 FROM c").rows[0] for _ in range(4)]
    assert list(run(session, "FETCH c").rows) == []
    assert spent(engine) == 1
    assert list(run(session, COUNTS).rows) == rows
    fetched = run(session, "FETCH BACKWARD 1 FROM c")
    assert fetched.columns is not None
    assert [column.name for column in fetched.columns] == ["sex", "count"]


def test_no_scroll_goes_forward_only(session: Session) -> None:
    run(session, f"BEGIN; DECLARE c NO SCROLL CURSOR FOR {SERIES}; FETCH 3 FROM c")
    for back in ("PRIOR", "BACKWARD 2", "ABSOLUTE 1", "-1", "RELATIVE 0"):
        run(session, "SAVEPOINT s")
        with pytest.raises(CursorState):
            run(session, f"FETCH {back} FROM c")
        run(session, "ROLLBACK TO s")
    assert list(run(session, "FETCH RELATIVE 2 FROM c").rows) == [(5,)]


def test_cursors_end_with_their_transaction(session: Session) -> None:
    with pytest.raises(NoTransaction):
        run(session, f"DECLARE c CURSOR FOR {SERIES}")
    run(session, f"BEGIN; DECLARE c CURSOR FOR {SERIES}; DECLARE h CURSOR WITH HOLD FOR {SERIES}; COMMIT")
    assert list(run(session, "FETCH h").rows) == [(1,)]
    with pytest.raises(UnknownPortal):
        run(session, "FETCH c")
    run(session, f"BEGIN; DECLARE i CURSOR WITH HOLD FOR {SERIES}; ROLLBACK")
    assert list(run(session, "FETCH h").rows) == [(2,)]
    with pytest.raises(UnknownPortal):
        run(session, "CLOSE i")
    run(session, f"BEGIN; SAVEPOINT s; DECLARE j CURSOR FOR {SERIES}; ROLLBACK TO s")
    with pytest.raises(UnknownPortal):
        run(session, "MOVE j")
    run(session, "ROLLBACK")
    assert run(session, "CLOSE h").tag == "CLOSE CURSOR"
    assert run(session, "CLOSE ALL").tag == "CLOSE CURSOR ALL"


def test_names_of_cursors_are_taken_once_and_are_not_endless(engine: Engine, session: Session) -> None:
    run(session, f"DECLARE c CURSOR WITH HOLD FOR {SERIES}")
    with pytest.raises(DuplicateCursor):
        run(session, f"DECLARE c CURSOR WITH HOLD FOR {COUNTS}")
    for number in range(MAX_CURSORS - 1):
        run(session, f"DECLARE c{number} CURSOR WITH HOLD FOR SELECT 1")
    with pytest.raises(LimitExceeded):
        run(session, f"DECLARE d CURSOR WITH HOLD FOR {COUNTS}")
    assert spent(engine) == 0
    assert run(session, "DISCARD ALL").tag == "DISCARD ALL"
    with pytest.raises(UnknownPortal):
        run(session, "FETCH c")


def test_a_cursor_with_parameters(session: Session) -> None:
    (statement,) = session.parse("DECLARE c CURSOR WITH HOLD FOR SELECT COUNT(*) FROM patients WHERE age > $1")
    described = session.describe(statement)
    assert (len(described.parameters), described.columns) == (1, None)
    session.execute(statement, [40])
    (fetch,) = session.parse("FETCH c")
    columns = session.describe(fetch).columns
    assert columns is not None
    assert columns[0].name == "count"
    (move,) = session.parse("MOVE c")
    assert session.describe(move).columns is None


def test_prepare_execute_deallocate(engine: Engine, session: Session) -> None:
    assert run(session, "PREPARE p AS SELECT COUNT(*) FROM patients WHERE age > $1 AND sex = $2").tag == "PREPARE"
    assert spent(engine) == 0
    answer = run(session, "EXECUTE p (20 + 20, 'F')")
    assert (answer.tag, spent(engine)) == ("SELECT 1", 1)
    assert run(session, "SELECT COUNT(*) FROM patients WHERE age > 40 AND sex = 'F'").rows == answer.rows
    assert run(session, "EXECUTE p ('40', 'F')").rows == answer.rows
    assert spent(engine) == 1
    (statement,) = session.parse("EXECUTE p (1, 'F')")
    columns = session.describe(statement).columns
    assert columns is not None
    assert columns[0].name == "count"
    with pytest.raises(DuplicateStatement):
        run(session, "PREPARE p AS SELECT 1")
    assert run(session, "DEALLOCATE p").tag == "DEALLOCATE"
    for missing in ("EXECUTE p (1, 'F')", "DEALLOCATE p"):
        with pytest.raises(UnknownStatement):
            run(session, missing)
    run(session, "PREPARE q AS SELECT 1; DEALLOCATE ALL")
    with pytest.raises(UnknownStatement):
        run(session, "EXECUTE q")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", InvalidSyntax),
        ("(1, 2)", InvalidSyntax),
        ("('x')", InvalidText),
        ("((SELECT COUNT(*) FROM patients))", UnsupportedQuery),
        ("((SELECT COUNT(*) FROM icd10))", UnsupportedQuery),
        ("((SELECT queries FROM dpsql.budget))", UnsupportedQuery),
        ("(age)", UndefinedColumn),
        ("(1) AS integer), (2)", InvalidSyntax),
    ],
)
def test_arguments_are_constants(engine: Engine, session: Session, arguments: str, error: type[Exception]) -> None:
    run(session, "PREPARE p (integer) AS SELECT COUNT(*) FROM patients WHERE age > $1")
    with pytest.raises(error):
        run(session, f"EXECUTE p {arguments}")
    assert spent(engine) == 0


def test_prepared_statements_are_not_endless(session: Session) -> None:
    for number in range(MAX_STATEMENTS):
        run(session, f"PREPARE p{number} AS SELECT 1")
    with pytest.raises(LimitExceeded):
        run(session, "PREPARE one_more AS SELECT 1")


def test_what_is_wrong_with_a_prepared_query_is_said_at_once(session: Session) -> None:
    with pytest.raises(PolicyViolation):
        run(session, "PREPARE p AS SELECT * FROM patients")


def test_copy_is_a_query_written_otherwise(engine: Engine, session: Session) -> None:
    copied = run(session, f"COPY ({COUNTS}) TO STDOUT (FORMAT csv, FORCE_QUOTE (sex))")
    assert (copied.tag, spent(engine)) == ("COPY 4", 1)
    assert copied.copy is not None
    assert run(session, COUNTS).rows == copied.rows
    (statement,) = session.parse(f"COPY ({COUNTS}) TO STDOUT")
    assert session.describe(statement).columns is None
    with pytest.raises(UndefinedColumn):
        run(session, "COPY (SELECT COUNT(*) FROM visits) TO STDOUT (FORMAT csv, FORCE_QUOTE (nothing))")
    assert spent(engine) == 1


def test_copy_of_a_protected_table_is_refused(session: Session) -> None:
    with pytest.raises(PolicyViolation):
        run(session, "COPY patients TO STDOUT")
    assert run(session, "COPY icd10 (code) TO STDOUT").tag.startswith("COPY ")


def test_nobody_is_heard(session: Session) -> None:
    assert [run(session, sql).tag for sql in ("LISTEN a", "UNLISTEN a", "UNLISTEN *")] == ["LISTEN"] + ["UNLISTEN"] * 2
