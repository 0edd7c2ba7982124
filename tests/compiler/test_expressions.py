"""Expressions give what PostgreSQL gives, over rows with the edges of their types."""

import string
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.compiler.expressions.patterns import read_pattern
from dpsql.errors import LimitExceeded
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.sqltypes import SqlType
from tests.compiler.test_accepted import is_same
from tests.fixtures.load import HERE
from tests.postgres import Server
from tests.world import postgres_oracle

MARK = " -- postgres: "
AT_ONCE = 25
"""Expressions that are asked in one query."""


@dataclass(frozen=True)
class Expression:
    """A line of the fixture: what dpsql is asked, and PostgreSQL."""

    line: int
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.ours}"


def _load() -> list[Expression]:
    lines = (HERE / "expressions.sql").read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("--"):
            ours, mark, theirs = line.partition(MARK)
            found.append(Expression(number, ours, theirs if mark else ours))
    return found


EXPRESSIONS = _load()
BATCHES = [EXPRESSIONS[start : start + AT_ONCE] for start in range(0, len(EXPRESSIONS), AT_ONCE)]


@pytest.fixture(scope="module")
def oracle(
    wide_policy: Path, postgres_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with postgres_oracle(
        wide_policy.with_suffix(".duckdb"), tmp_path_factory.mktemp("oracle"), postgres_server
    ) as connection:
        yield connection


@pytest.fixture
def analyst(each_wide_engine: Engine) -> Session:
    return Session(each_wide_engine, "ana")


def test_there_are_as_many_as_there_should_be() -> None:
    assert len(EXPRESSIONS) >= 400
    assert sum(each.ours != each.theirs for each in EXPRESSIONS) < len(EXPRESSIONS) / 5


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"from line {batch[0].line}")
def test_expressions(batch: list[Expression], analyst: Session, oracle: psycopg.Connection[tuple[Any, ...]]) -> None:
    (statement,) = analyst.parse(f"SELECT {', '.join(each.ours for each in batch)} FROM samples ORDER BY id")
    result = analyst.execute(statement)
    types = [column.type for column in result.columns or ()]
    # psycopg would count a month as 30 days.
    asked = [
        f"({each.theirs})::text" if sql_type is SqlType.INTERVAL else each.theirs
        for each, sql_type in zip(batch, types, strict=True)
    ]
    truth = oracle.execute(f"SELECT {', '.join(asked)} FROM samples ORDER BY id".encode()).fetchall()
    differences = [
        f"{each}: {mine!r}, not {theirs!r}"
        for our_row, their_row in zip(result.rows, truth, strict=True)
        for each, mine, theirs in zip(batch, our_row, their_row, strict=True)
        if not agree(mine, theirs)
    ]
    assert not differences, "\n".join(differences)


def agree(mine: object, theirs: object) -> bool:
    if type(mine).__name__ == "Span":
        return str(mine) == theirs
    if isinstance(theirs, Decimal) and not theirs.is_finite():
        return False
    return is_same(mine, theirs, 1e-9)


@pytest.mark.parametrize("form", ["YYYY{0}MM{0}DD", "{0}YYYY{0}{0}MM-DD{0}"])
def test_a_format_may_have_any_mark_and_text_of_it_is_read(analyst: Session, form: str) -> None:
    """An engine that met a pattern that is none would fail only for rows that get so far, and tell of them."""
    marks = sorted(set(string.punctuation + "§→") - set('"\\%'))
    parts = "TO_DATE(TO_CHAR(day, '{0}'), '{0}') = day"
    for few in (marks[start : start + 8] for start in range(0, len(marks), 8)):
        written = [parts.format(form.format(mark).replace("'", "''")) for mark in few]
        (statement,) = analyst.parse(f"SELECT day IS NULL, {', '.join(written)} FROM samples WHERE day >= '1000-01-01'")
        rows = analyst.execute(statement).rows
        assert len(rows) > 3
        for missing, *same in rows:
            assert same == [True] * len(few), [mark for mark, alike in zip(few, same, strict=True) if not alike]
            assert missing is False


READ = {
    "YYYYMMDD": ("2024 11 2", "202411 2", "20241102", "2024 11 02", "2024112"),
    "YYYY MM DD": ("2024 1 12", "2024-11-02", "2024/1/2", "2024- 5 -6", "2024\t5\n6", "2024 - 5 / 6"),
    "YYYY-MM-DD": ("2024 1 12", "2024-11-02", "2024/1/2", "2024- 5 -6", "2024\t5\n6", "2024 - 5 / 6"),
    "DD.MM.YYYY": ("2.3.2024", "02 .03. 2024"),
    "YYYY - MM/DD": ("2024 1 12", "2024-11-02", " 2024--5-6", "2024- 5 -6", "2024 - 5 / 6", "2024-+5-6"),
    "MMYYYYDD": ("01202412", "01 2024 12"),
    "YYYY§MM §DD": ("2024§ 5 § 6",),
    "-YYYY--MM-": ("-2024--05-", "2024--05", "2024 05", "- 2024 - 5"),
    "YYYYMMDDHH24MISSUS": ("2024 02  03 04 05 06 123456", "2024020304050612", "202402030405067"),
    "YYYY-MM-DD HH24:MI:SS.US": ("2024 2 3 4 5 6 7", "2024-2-3  4:5:6.000007", "2024-02-03 04-05-06-7"),
    "USYYYY": ("1234562024", "123456 2024"),
    "DDMonYYYY": ("5Dec2024", "5 dec 2024"),
    "YYYYMonthDD": ("2024December5", "2024 May 5", "2024May5", "2024july5"),
    "Month DD, YYYY": ("May 5, 2024", "May5 2024"),
}
"""Formats, and texts that have all their parts."""
UNREAD = (
    *("2024 512", "--2024-5", "2024§05§06", "2024 §05 §06", "2024 2 3 4 5 6 7", "72024", "7 2024", "05-DEC-2024"),
    *("2024-02-03 24:05:06.7", "2024-02-03 04:60:06.7", "2024-02-03 04:05:60.7", "2024/02/03T04:05:06.7", "2024Dec5"),
    *("20 24-01-01", "2024-02-30", "20240230", "2024-13-01", "", " ", "2024", "2024-02-03x", "2024\u00a002\u00a003"),
    *("2024Sept5", "2024 --5-6"),
)
"""Texts that few or none of these formats read."""


@pytest.mark.parametrize("form", READ)
def test_a_text_is_read_as_postgresql_reads_it_or_not_at_all(
    form: str, each_wide_engine: Engine, postgres: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """In a row and as a constant: NULL where PostgreSQL raises an error, or the text is not just of the format."""
    session = Session(each_wide_engine, "ana")
    texts = list(dict.fromkeys([text for read in READ.values() for text in read] + list(UNREAD)))
    truth = dict[str, object]()
    for text in texts:
        with suppress(psycopg.Error):
            ((truth[text],),) = postgres.execute("SELECT to_timestamp(%s, %s)::timestamp", (text, form)).fetchall()
    for first in ("", "left(tag::text, 0) || "):
        found = dict[str, object]()
        for few in (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE)):
            written = ", ".join(f"TO_TIMESTAMP({first}'{text}', '{form}')::timestamp" for text in few)
            (statement,) = session.parse(f"SELECT {written} FROM samples WHERE tag IS NOT NULL")
            found |= zip(few, session.execute(statement).rows[0], strict=True)
        known = {text: moment for text, moment in found.items() if moment is not None}
        assert known == {text: truth.get(text) for text in known}
        assert known.keys() >= set(READ[form])


@pytest.mark.parametrize(
    "repeated", ["(?:[^a]?){{{0}}}", "(?:[^a]*){{{0}}}", "(?:(?:[^a]|b|[^c])?){{{0}}}", "[^a]{{0,{0}}}"]
)
def test_what_is_let_through_as_a_pattern_can_be_run(analyst: Session, repeated: str) -> None:
    """At the limit of its ways, with few letters and many; beyond it PostgreSQL fails, where a row gets so far."""
    for letters in (string.ascii_lowercase, "".join(map(chr, range(0x100, 0x1C0)))):
        known = [count for count in range(1, 250) if is_pattern(repeated.format(count) + letters)]
        (statement,) = analyst.parse(
            f"SELECT COUNT(*) FROM samples WHERE word ~ '{repeated.format(max(known))}{letters}'"
        )
        assert analyst.execute(statement).rows == ((0,),)


def is_pattern(text: str) -> bool:
    try:
        read_pattern(text, None)
    except LimitExceeded:
        return False
    return True
