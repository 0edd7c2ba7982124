"""Array columns of public tables, on each engine: every element type, as Python values and over the wire."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from dpsql.errors import DatatypeMismatch, InvalidPolicy, InvalidText, PolicyViolation
from dpsql.gateway.session import Session
from dpsql.sqltypes import Span, SqlType
from dpsql.wire.binaryformat import flattened
from tests.conftest import MakeEngine
from tests.engines import Host
from tests.wire.conftest import RunningServer

_ID = UUID("00000000-0000-0000-0000-00000000002a")
_NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
# A type, literals of its elements, and their values.
COLUMNS: dict[str, tuple[list[str], list[object]]] = {
    "boolean": (["true", "false"], [True, False]),
    "smallint": (["-7"], [-7]),
    "integer": (["1", "2"], [1, 2]),
    "bigint": (["9007199254740993"], [2**53 + 1]),
    "numeric": (["1.50"], [Decimal("1.50")]),
    "real": (["1.5"], [1.5]),
    "double precision": (["0.1"], [0.1]),
    "text": (["'a'", "'b c'", "'x,\"y'", "'null'", "''"], ["a", "b c", 'x,"y', "null", ""]),
    "date": (["DATE '2026-01-31'"], [date(2026, 1, 31)]),
    "time": (["TIME '12:30:00.5'"], [time(12, 30, 0, 500_000)]),
    "timestamp": (["TIMESTAMP '2026-01-31 12:00:00'"], [_NOON.replace(tzinfo=None)]),
    "timestamptz": (["TIMESTAMPTZ '2026-01-31 13:00:00+01'"], [_NOON]),
    "interval": (["INTERVAL '3' MONTH", "INTERVAL '90' MINUTE"], [Span(3, 0, 0), Span(0, 0, 5_400_000_000)]),
    "uuid": ([f"'{_ID}'"], [_ID]),
}
NAMES = [f"c{number}" for number in range(len(COLUMNS))]
POLICY = """
version = 1
[dataset]
name = "lists"
url = "{url}"
privacy_unit = "person"
budget = {{ epsilon = 20, delta = 1e-6 }}
[roles.analyst]
budget = {{ epsilon = 5, delta = 1e-6 }}
query = {{ epsilon = 0.1, delta = 1e-9, max_epsilon = 1.0 }}
[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
marks = {{ type = "integer[]" }}
[tables.lists]
public = true
[tables.lists.columns]
bytes = {{ type = "bytea[]" }}
pairs = {{ type = "integer[][]" }}
{columns}
"""


def statements() -> list[str]:
    columns = ", ".join(f"{name} {kind}[]" for name, kind in zip(NAMES, COLUMNS, strict=True))
    values = ", ".join(
        f"CAST(ARRAY[{', '.join([*texts, 'NULL'])}] AS {kind}[])" for kind, (texts, _) in COLUMNS.items()
    )
    return [
        "CREATE TABLE people (id integer, marks integer[])",
        "INSERT INTO people VALUES (1, ARRAY[1]), (2, NULL)",
        f"CREATE TABLE lists (bytes bytea[], pairs integer[][], {columns})",
        f"INSERT INTO lists VALUES (ARRAY[CAST('x' AS bytea)], ARRAY[ARRAY[1, 2], ARRAY[3, NULL]], {values})",
    ]


def policy(folder: Path, url: str, changes: tuple[str, str] = ("", "")) -> Path:
    columns = "\n".join(f'{name} = {{ type = "{kind}[]" }}' for name, kind in zip(NAMES, COLUMNS, strict=True))
    path = folder / "lists.toml"
    path.write_text(POLICY.format(url=url, columns=columns.replace(*changes)), encoding="utf-8")
    return path


@pytest.fixture
def url(host: Host) -> Iterator[str]:
    with host.make(*statements()) as url:
        yield url


@pytest.fixture
def lists(url: str, tmp_path: Path) -> Path:
    return policy(tmp_path, url)


def test_elements_keep_their_types(lists: Path, make_engine: MakeEngine, serve: Callable[..., RunningServer]) -> None:
    engine = make_engine(lists)
    session = Session(engine, "ana")
    (statement,) = session.parse(f"SELECT bytes, pairs, {', '.join(NAMES)} FROM lists")
    result = session.execute(statement)
    assert result.columns is not None
    assert [column.type.element for column in result.columns][:3] == [SqlType.BYTEA, SqlType.INTEGER, SqlType.BOOLEAN]
    values = [[b"x"], [[1, 2], [3, None]], *([*values, None] for _, values in COLUMNS.values())]
    assert list(result.rows[0]) == values
    gateway = serve(open_session=lambda user, _: Session(engine, user))
    shown = {
        name: values[at + 2] for at, (name, kind) in enumerate(zip(NAMES, COLUMNS, strict=True)) if kind != "interval"
    }
    for binary in (False, True):
        with psycopg.connect(gateway.dsn, autocommit=True) as connection:
            row = connection.execute(f"SELECT pairs, {', '.join(shown)} FROM lists", binary=binary).fetchone()
        assert row is not None and list(row) == [values[1], *shown.values()]


def test_arrays_of_people_are_counted_only(lists: Path, make_engine: MakeEngine) -> None:
    session = Session(make_engine(lists), "ana")
    (statement,) = session.parse("SELECT COUNT(marks) FROM people")
    assert [column.type for column in session.execute(statement).columns or ()] == [SqlType.BIGINT]
    for sql in ("SELECT marks, COUNT(*) FROM people GROUP BY marks", "SELECT COUNT(*) FROM people WHERE marks = marks"):
        (statement,) = session.parse(sql)
        with pytest.raises((DatatypeMismatch, PolicyViolation)):
            session.execute(statement)


def test_a_policy_names_the_elements_type(url: str, tmp_path: Path, make_engine: MakeEngine) -> None:
    with pytest.raises(InvalidPolicy, match=r"not smallint\[\]") as raised:
        make_engine(policy(tmp_path, url, changes=('"integer[]"', '"smallint[]"')))
    assert raised.value.hint == 'type = "integer[]"'


def test_lists_of_uneven_length_are_no_array() -> None:
    for uneven in ([[1], [2, 3]], [[1], 2], [1, [2]]):
        with pytest.raises(InvalidText):
            flattened(uneven)
