"""No text, list or document in a row is so large that an engine fails at it: whether it is there must not show."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import Cancellation
from dpsql.compiler.aggregates.base import MAX_PRIMITIVES
from dpsql.compiler.bounding import steps
from dpsql.compiler.ir.functions import MAX_SCANNED, MAX_TEXT
from dpsql.gateway.caches import LruCache
from dpsql.gateway.release import counted
from dpsql.gateway.session import Session
from tests.conftest import silent_engine
from tests.postgres import Server, url_of
from tests.strategies.distance import in_order

POLICY = """
version = 1
[dataset]
name = "sizes"
url = "{url}"
schema = "{schema}"
privacy_unit = "person"
budget = {{ epsilon = 1000, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 1000, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.people]
unit_key = "id"
max_rows = 1
columns = {{ id = {{ type = "integer" }}, note = {{ type = "text" }} }}
[tables.giants]
unit_key = "id"
max_rows = 1
columns = {{ id = {{ type = "integer" }}, note = {{ type = "text" }}, dashes = {{ type = "text" }} }}
"""
DOCUMENTS = """
[tables.documents]
unit_key = "id"
max_rows = 1
columns = { document = { type = "json" }, tags = { type = "text[]" } }
[tables.stored]
unit_key = "id"
max_rows = 1
columns = { note = { type = "text" } }
"""
LONG = MAX_SCANNED + 1000
PEOPLE = f"""
    CREATE TABLE people (id INTEGER, note VARCHAR);
    INSERT INTO people VALUES (1, repeat('é', {LONG})), (2, repeat('b', {LONG})), (3, 'short'), (4, NULL);
"""
# A view, so that nobody has to write a gigabyte.
GIANTS = """
    CREATE VIEW giants AS
    SELECT id, repeat(repeat(chr(96 + id), 1000000), 380) AS note, repeat(repeat('ab-', 100000), 1000) AS dashes
    FROM generate_series(1, 3) AS g (id);
    CREATE TABLE documents (id INTEGER, document JSONB, tags TEXT[]);
    INSERT INTO documents SELECT 1, jsonb_agg('1e131071'::numeric), ARRAY['a'] FROM generate_series(1, 9000);
    INSERT INTO documents VALUES (2, '{}', '{}'), (3, NULL, NULL);
    CREATE TABLE stored AS SELECT 1 AS id, repeat('b', 140000000) AS note;
"""
DUCK_GIANTS = """
    CREATE VIEW giants AS
    SELECT id::INTEGER AS id, repeat(repeat('x', 1000000), 380) AS note, note AS dashes FROM range(1, 2) AS r (id)
"""


def opened(policy: str, folder: Path) -> Iterator[Session]:
    path = folder / "sizes.toml"
    path.write_text(policy, encoding="utf-8")
    with silent_engine(path, folder) as engine:
        yield Session(engine, "ana")


@pytest.fixture(scope="module")
def elephant(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with postgres_server.database(PEOPLE, GIANTS) as name:
        policy = POLICY.format(url=url_of(postgres_server.url, dbname=name), schema="public") + DOCUMENTS
        yield from opened(policy, tmp_path_factory.mktemp("elephant"))


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("duck")
    with duckdb.connect(str(folder / "sizes.duckdb")) as connection:
        connection.execute(PEOPLE + DUCK_GIANTS)
    yield from opened(POLICY.format(url=f"duckdb:///{folder}/sizes.duckdb", schema="main"), folder)


@pytest.fixture(params=["duck", "elephant"])
def each(request: pytest.FixtureRequest) -> Session:
    found: Session = request.getfixturevalue(request.param)
    return found


def ask(session: Session, sql: str) -> list[tuple[object, ...]]:
    (statement,) = session.parse(sql)
    return list(session.execute(statement).rows)


def test_keys_that_no_array_could_hold_together_are_cut(elephant: Session) -> None:
    rows = ask(elephant, "SELECT note, COUNT(*) FROM giants GROUP BY note")
    assert rows == [(letter * MAX_TEXT, 1) for letter in "abc"]


def test_a_private_key_is_the_beginning_of_a_text(each: Session) -> None:
    rows = ask(each, "SELECT note, COUNT(*) FROM people GROUP BY note")
    assert rows == [("b" * MAX_TEXT, 1), ("short", 1), ("é" * MAX_TEXT, 1), (None, 1)]


@pytest.mark.parametrize(
    "condition",
    [
        "BIT_LENGTH(note) = 800000",  # of the first characters: a view's texts are cut
        "SPLIT_PART(dashes, '-', -2) = 'ab'",  # a hundred million pieces
        "LENGTH(REVERSE(note)) = 10000",
        "LENGTH(note || note) = 10000",
    ],
)
def test_postgresql_fails_at_no_text(elephant: Session, condition: str) -> None:
    assert ask(elephant, f"SELECT COUNT(*) FROM giants WHERE id = 1 AND {condition}") == [(1,)]


@pytest.mark.parametrize("function", ["BTRIM", "LTRIM", "RTRIM"])
def test_postgresql_trims_no_more_characters_than_it_has_room_for(elephant: Session, function: str) -> None:
    """It takes eight bytes for each byte of the characters, and no more than a gigabyte."""
    assert ask(elephant, f"SELECT COUNT(*) FROM stored WHERE {function}(note, note) = ''") == [(1,)]


def test_duckdb_fails_at_no_text(duck: Session) -> None:
    """More than four gigabytes in one text end the whole database."""
    together = ", ".join(["note"] * 12)
    assert ask(duck, f"SELECT COUNT(*) FROM giants WHERE LENGTH(CONCAT({together})) = {MAX_TEXT}") == [(1,)]


def test_of_documents_and_arrays_nothing_is_read_but_whether_they_are_there(elephant: Session) -> None:
    """A document of two kilobytes may be a gigabyte of text."""
    assert ask(elephant, "SELECT COUNT(document), COUNT(tags), COUNT(*) FROM documents") == [(2, 2, 3)]
    assert ask(elephant, "SELECT COUNT(*) FROM documents WHERE document IS NULL") == [(1,)]


LENGTHS = {
    **dict.fromkeys(("LOWER(note)", "UPPER(note)", "RTRIM(note)", "TRANSLATE(note, 'b', 'c')"), MAX_SCANNED),
    "RIGHT(note, -1)": MAX_SCANNED - 1,
    "LEFT(note, 5000 - id)": 4998,
    "RIGHT(note, 100001)": MAX_SCANNED,
    "LEFT(note, 100000)": MAX_SCANNED,
    "SUBSTRING(note FROM 2)": MAX_SCANNED - 1,
    "SUBSTRING(note FROM 2 FOR 200000)": MAX_SCANNED - 1,
    "SPLIT_PART(note, '-', 1)": MAX_SCANNED,
    **dict.fromkeys(("REVERSE(note)", "INITCAP(note)", "note || note", "CONCAT(note, 1, note)"), MAX_TEXT),
    **dict.fromkeys(("CONCAT_WS('-', note, note)", "FORMAT('%s-%s', note, note)", "REPEAT(note, 2)"), MAX_TEXT),
    **dict.fromkeys(("OVERLAY(note PLACING 'x' FROM 2)", "REPLACE(note, 'b', 'cc')"), MAX_TEXT),
}


@pytest.mark.parametrize("expression", LENGTHS)
def test_what_a_function_gives_has_a_greatest_length(each: Session, expression: str) -> None:
    condition = f"id = 2 AND LENGTH({expression}) = {LENGTHS[expression]}"
    assert ask(each, f"SELECT COUNT(*) FROM people WHERE {condition}") == [(1,)]


@pytest.mark.parametrize("function", ["MIN", "MAX"])
def test_the_text_that_an_aggregate_holds_has_a_greatest_length(each: Session, function: str) -> None:
    of_each = f"SELECT id, {function}(note) AS m FROM people GROUP BY id"
    assert ask(each, f"SELECT COUNT(*) FROM ({of_each}) AS t WHERE LENGTH(m) = {MAX_SCANNED}") == [(2,)]


def test_a_row_of_the_longest_texts_fits_into_a_gigabyte() -> None:
    """PostgreSQL has 1,664 columns in a row; a character has four bytes, and in capitals six for every two."""
    assert 1664 * 6 * MAX_SCANNED < 2**30


# Lists of values


NUMBER = "LEAST(GREATEST(id, 0), 1000000)"


def quantiles(count: int) -> str:
    """So many quantiles of one expression."""
    fractions = ", ".join(f"{place / 1000}" for place in range(1, count + 1))
    return f"PERCENTILE_CONT(ARRAY[{fractions}]) WITHIN GROUP (ORDER BY {NUMBER})"


WIDE = """
    CREATE VIEW wide AS SELECT id, repeat(repeat(chr(96 + id), 1000000), 380) AS one,
        repeat(repeat(chr(97 + id), 1000000), 380) AS two, repeat(repeat(chr(98 + id), 1000000), 380) AS three
        FROM generate_series(1, 1) AS g (id);
    CREATE VIEW keyed AS SELECT repeat('k', 150000) || id AS person, 1 AS n FROM generate_series(1, 2) AS g (id);
    CREATE VIEW listed AS SELECT repeat('w', 150000) AS word;
"""
WIDE_POLICY = """
[tables.wide]
unit_key = "id"
max_rows = 1
columns = { id = { type = "integer" }, one = { type = "text" }, two = { type = "text" }, three = { type = "text" } }
[tables.keyed]
unit_key = "person"
max_rows = 1
columns = { n = { type = "integer" } }
[tables.listed]
public = true
columns = { word = { type = "text" } }
"""


def test_a_row_of_a_view_holds_no_gigabyte_of_texts(postgres_server: Server, tmp_path: Path) -> None:
    """To tell distinct texts, and to order rows, PostgreSQL puts a row together that holds all of them."""
    with postgres_server.database(PEOPLE, GIANTS, WIDE) as name:
        policy = POLICY.format(url=url_of(postgres_server.url, dbname=name), schema="public") + WIDE_POLICY
        for session in opened(policy, tmp_path):
            ordered = "SELECT LAG(id) OVER (PARTITION BY id ORDER BY one, two, three) AS n, one FROM wide"
            assert ask(session, f"SELECT COUNT(one) FROM ({ordered}) AS s WHERE n IS NULL") == [(1,)]
            distinct = "SELECT COUNT(DISTINCT one), COUNT(DISTINCT two), COUNT(DISTINCT three) FROM wide"
            assert ask(session, distinct) == [(1, 1, 1)]
            assert ask(session, "SELECT COUNT(*) FROM keyed") == [(2,)], "people are told apart by the whole key"
            assert ask(session, "SELECT word FROM listed") == [("w" * 150_000,)], "what is public is shown whole"


@pytest.mark.parametrize("key", ["", ", LENGTH(note) > 5 AS k", ", note"])
def test_a_list_of_values_is_read_once(each: Session, key: str) -> None:
    """A row that had it for each of 64 quantiles would outgrow PostgreSQL with a million people."""
    grouped = f" GROUP BY {key.split()[-1]}" if key else ""
    sql = f"SELECT {quantiles(20)}, MEDIAN({NUMBER}), MAX({NUMBER}), MEDIAN({NUMBER} + 1){key} FROM people{grouped}"
    (statement,) = each.parse(sql)
    (planned,) = each.explain(statement).query.releases
    assert [planned.sql.count(text) for text in ("string_agg", "apart0.n", "apart1.n", "apart2")] == [2, 1, 1, 0]
    cells = each._engine._backend.fetch({0: planned}, (), Cancellation()).releases[0].cells
    found = Counter(tuple(cell) for cell in cells)
    assert sorted(found.values()) == [1, 22]
    # The median of one more is the list that is there once.
    least = {count: min(int(counted(text)[0][0]) for text in texts if text) for texts, count in found.items()}
    assert least == {1: 2, 22: 1}


@pytest.mark.parametrize("key", ["", ", LENGTH(note) > 5 AS k", ", note"])
def test_a_long_list_comes_in_pieces(each: Session, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """No row of the engine's answer grows with the number of rows: PostgreSQL fails at a gigabyte."""
    grouped = f" GROUP BY {key.split()[-1]}" if key else ""
    listed = f"MEDIAN({NUMBER}), MAX({NUMBER} + 1), MIN(LEAST(GREATEST(-id, -3), 0)), MAX(LEAST(GREATEST(id, 0), 1))"
    sql = f"SELECT {listed}, MEDIAN({NUMBER}), COUNT(*), COUNT(DISTINCT LENGTH(note)){key} FROM people{grouped}"
    found = []
    for piece in (2**18, 4, 2, 1):
        monkeypatch.setattr(steps, "PIECE", piece)
        each._engine._plans = LruCache(1)
        (planned,) = each.explain(each.parse(sql)[0]).query.releases
        assert planned.query.tree.in_pieces is (piece < 2**18)
        read = each._engine._backend.fetch({0: planned}, (), Cancellation()).releases[0]
        assert len(read.cells) == len(planned.primitives)
        cells = [list(map(in_order, cell)) if cell.dtype == object else cell for cell in read.cells]
        found.append(sorted(zip(*read.keys, read.units, *cells, strict=True), key=repr))
    assert found[0] == found[1] == found[2] == found[3]
    most = max(str(cell).count(":") for group in found[0] for cell in group)
    assert most == (1 if key == ", note" else 2 if key else 4)


def test_no_row_with_as_many_lists_as_there_may_be_outgrows_postgresql() -> None:
    assert MAX_PRIMITIVES <= steps.PIECES
    assert steps.PIECES * steps.PIECE * len(f"{-(2**63)}:{2**63 - 1},") < 2**30
