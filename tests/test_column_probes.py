"""Clients that look at a protected table get its columns, no rows, and a notice that says why; free of charge."""

import pytest

from dpsql.errors import Error
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session

PROBES = (
    "SELECT * FROM visits LIMIT 1",
    "SELECT visits.* FROM visits LIMIT 100 OFFSET 20",
    'SELECT * FROM (SELECT * FROM visits) "q01" LIMIT 11',
    "SELECT visited_on, icd FROM visits LIMIT 5",
)
"""The first looks of inspectdb, of a data browser, of dbplyr and of ibis."""


def run(session: Session, sql: str) -> list[Result]:
    """What each statement of a text gives."""
    return [session.execute(statement) for statement in session.parse(sql)]


@pytest.mark.parametrize("probe", PROBES)
def test_columns_are_shown_and_no_rows(session: Session, probe: str) -> None:
    before = run(session, "SELECT epsilon_spent FROM dpsql.budget")[0].rows
    (result,) = run(session, probe)
    assert list(result.rows) == []
    assert "visited_on" in [column.name for column in result.columns or ()]
    assert [notice.message for notice in result.notices] == ["rows of protected tables are not returned"]
    assert list(run(session, "SELECT epsilon_spent FROM dpsql.budget")[0].rows) == list(before)


def test_the_notice_is_shown_with_intervals_and_without_notices(session: Session) -> None:
    run(session, "SET dpsql.intervals = on; SET dpsql.notices = off")
    (result,) = run(session, PROBES[0])
    assert len(result.notices) == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM visits",
        "SELECT * FROM visits WHERE icd = 'I10' LIMIT 1",
        "SELECT * FROM visits ORDER BY cost LIMIT 1",
        "SELECT cost + 1 FROM visits LIMIT 1",
        "SELECT * FROM patients, visits LIMIT 1",
        "SELECT COUNT(*) FROM (SELECT * FROM visits LIMIT 1) t",
    ],
)
def test_what_asks_for_rows_is_refused(session: Session, query: str) -> None:
    with pytest.raises(Error, match=r"protected|join"):
        run(session, query)
