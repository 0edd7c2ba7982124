"""Released rows in pandas, Arrow and numpy: each column by its type, and every value as it is."""

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.dbapi.frames import arrow_table, data_frame, masked_arrays
from dpsql.gateway.query_run import ResultColumn
from dpsql.sqltypes import Span, SqlType

BERLIN = ZoneInfo("Europe/Berlin")
POLICY = """
version = 1

[dataset]
name = "kinds"
url = "duckdb:///kinds.duckdb"
privacy_unit = "person"
timezone = "Europe/Berlin"
budget = { epsilon = 10, delta = 1e-6 }

[roles.analyst]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.5 }

[tables.people]
unit_key = "person_id"
max_rows = 1
[tables.people.columns]
age = { type = "integer", lower = 0, upper = 110 }

[tables.kinds]
public = true
[tables.kinds.columns]
"""
# Name, type in DuckDB and in the policy, a value in SQL, and what Python has of it.
KINDS: list[tuple[str, str, str, str, object]] = [
    ("b", "BOOLEAN", "boolean", "true", True),
    ("s", "SMALLINT", "smallint", "-1", -1),
    ("i", "INTEGER", "integer", "2", 2),
    ("g", "BIGINT", "bigint", "9007199254740993", 9007199254740993),
    ("n", "DECIMAL(12, 3)", "decimal", "4.125", Decimal("4.125")),
    ("r", "REAL", "real", "1.5", 1.5),
    ("f", "DOUBLE", "double", "2.5", 2.5),
    ("t", "VARCHAR", "text", "'x'", "x"),
    ("d", "DATE", "date", "'2020-01-02'", date(2020, 1, 2)),
    ("c", "TIME", "time", "'10:00:01'", time(10, 0, 1)),
    ("ts", "TIMESTAMP", "timestamp", "'2020-01-02 10:00'", datetime(2020, 1, 2, 10)),
    ("tz", "TIMESTAMPTZ", "timestamptz", "'2020-07-02 10:00:00+00'", datetime(2020, 7, 2, 12, tzinfo=BERLIN)),
    ("v", "INTERVAL", "interval", "'1 month 2 days 3 seconds'", Span(1, 2, 3_000_000)),
    ("u", "UUID", "uuid", "'00000000-0000-0000-0000-000000000001'", UUID(int=1)),
    ("x", "BLOB", "bytea", "'\\x00\\x01'::BLOB", b"\x00\x01"),
    ("a", "INTEGER[]", "integer[]", "[1, 2]", [1, 2]),
]
ALL = "SELECT * FROM kinds ORDER BY i NULLS LAST"


@pytest.fixture(scope="module")
def cursor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Cursor]:
    """A cursor where a public table has a row of values and one of NULLs."""
    folder = tmp_path_factory.mktemp("kinds")
    with duckdb.connect(str(folder / "kinds.duckdb")) as database:
        database.execute(
            "CREATE TABLE people AS SELECT range::INTEGER AS person_id, range::INTEGER AS age FROM range(90)"
        )
        database.execute(f"CREATE TABLE kinds ({', '.join(f'{name} {kind}' for name, kind, *_ in KINDS)})")
        database.execute(f"INSERT INTO kinds SELECT {', '.join(value for *_, value, _ in KINDS)}")
        database.execute(f"INSERT INTO kinds SELECT {', '.join('NULL' for _ in KINDS)}")
    columns = "\n".join(f'{name} = {{ type = "{kind}" }}' for name, _, kind, *_ in KINDS)
    policy = folder / "kinds.toml"
    policy.write_text(POLICY + columns, encoding="utf-8")
    with dpsql.connect(policy, user="ana") as connection:
        yield connection.cursor()


def test_pandas(cursor: dpsql.Cursor) -> None:
    frame = cursor.execute(ALL).fetch_df()
    assert list(frame.columns) == [name for name, *_ in KINDS]
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        **{"b": "boolean", "s": "Int16", "i": "Int32", "g": "Int64", "n": "object", "r": "float32", "f": "float64"},
        **{"t": "string", "d": "datetime64[s]", "c": "object", "ts": "datetime64[us]"},
        **{"tz": "datetime64[us, Europe/Berlin]", "v": "object", "u": "object", "x": "object", "a": "object"},
    }
    for name, *_, value in KINDS:
        held = frame[name][0]
        assert (held == value) if name != "d" else (held == pd.Timestamp("2020-01-02"))
    assert frame.iloc[1].isna().all()
    assert cursor.fetchall() == []
    assert frame["g"].sum() == 9007199254740993


def test_arrow(cursor: dpsql.Cursor) -> None:
    table = cursor.execute(ALL).fetch_arrow_table()
    assert table.schema == pa.schema(
        [
            *[("b", pa.bool_()), ("s", pa.int16()), ("i", pa.int32()), ("g", pa.int64())],
            *[("n", table.schema.field("n").type), ("r", pa.float32()), ("f", pa.float64()), ("t", pa.string())],
            *[("d", pa.date32()), ("c", pa.time64("us")), ("ts", pa.timestamp("us"))],
            *[("tz", pa.timestamp("us", tz="Europe/Berlin")), ("v", pa.month_day_nano_interval())],
            *[("u", pa.string()), ("x", pa.binary()), ("a", pa.list_(pa.int32()))],
        ]
    )
    assert pa.types.is_decimal128(table.schema.field("n").type)
    first, second = table.to_pylist()
    assert first == {
        **{name: value for name, *_, value in KINDS},
        **{"v": pa.MonthDayNano([1, 2, 3_000_000_000]), "u": str(UUID(int=1))},
    }
    assert set(second.values()) == {None}


def test_numpy(cursor: dpsql.Cursor) -> None:
    arrays = cursor.execute(ALL).fetchnumpy()
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        **{"b": "bool", "s": "int16", "i": "int32", "g": "int64", "n": "object", "r": "float32", "f": "float64"},
        **{"t": "object", "d": "datetime64[D]", "c": "object", "ts": "datetime64[us]", "tz": "datetime64[us]"},
        **{"v": "object", "u": "object", "x": "object", "a": "object"},
    }
    for name, *_, value in KINDS:
        array = arrays[name]
        assert isinstance(array, np.ma.MaskedArray)
        assert array.mask.tolist() == [False, True]
        assert array[0] == (value if name != "tz" else np.datetime64("2020-07-02T10:00"))


def test_no_rows_have_types_too(cursor: dpsql.Cursor) -> None:
    nothing = f"SELECT * FROM ({ALL}) AS t WHERE i = 0"
    full, empty = cursor.execute(ALL).fetch_df(), cursor.execute(nothing).fetch_df()
    assert (len(empty), list(empty.dtypes)) == (0, list(full.dtypes))
    types = {name: array.dtype for name, array in cursor.execute(ALL).fetchnumpy().items()}
    assert {name: array.dtype for name, array in cursor.execute(nothing).fetchnumpy().items()} == types
    table = cursor.execute(nothing).fetch_arrow_table()
    assert table.num_rows == 0
    assert table.drop_columns("n").schema == cursor.execute(ALL).fetch_arrow_table().drop_columns("n").schema


def test_a_released_answer(cursor: dpsql.Cursor) -> None:
    cursor.execute("SELECT COUNT(*) AS n, SUM(age) AS s, AVG(age) AS a FROM people")
    (row,) = cursor.fetchall()
    cursor.scroll(0, "absolute")
    frame = cursor.fetch_df()
    assert [str(dtype) for dtype in frame.dtypes] == ["Int64", "Int64", "float64"]
    assert tuple(frame.iloc[0]) == row
    assert cursor.release is not None
    assert cursor.release.error["n"] is not None


def test_the_rows_that_are_left(cursor: dpsql.Cursor) -> None:
    cursor.execute("SELECT * FROM (VALUES (1), (2), (3)) AS t (n)")
    assert cursor.fetchone() == (1,)
    assert list(cursor.fetch_df()["n"]) == [2, 3]
    assert cursor.fetch_arrow_table().num_rows == 0
    assert len(cursor.fetchnumpy()["n"]) == 0


def test_columns_of_one_name_are_all_kept(cursor: dpsql.Cursor) -> None:
    twice = "SELECT 1 AS n, 2 AS n, 3 AS n_1, 4 AS n"
    assert {name: list(array) for name, array in cursor.execute(twice).fetchnumpy().items()} == {
        **{"n": [1], "n_1": [2], "n_1_1": [3], "n_2": [4]},
    }
    assert list(cursor.execute(twice).fetch_df().columns) == ["n", "n", "n_1", "n"]
    assert cursor.execute(twice).fetch_arrow_table().column_names == ["n", "n", "n_1", "n"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (SqlType.DATE, "10000-01-01"),
        (SqlType.TIMESTAMP, "infinity"),
        (SqlType.TIMESTAMPTZ, "infinity"),
        (SqlType.INTEGER, 2**40),
    ],
)
def test_a_value_that_a_type_has_no_room_for_stays_as_it_is(kind: SqlType, value: object) -> None:
    columns, rows = [ResultColumn("x", kind)], [(value,), (None,)]
    assert masked_arrays(columns, rows)["x"][0] == value
    assert data_frame("UTC", columns, rows)["x"][0] == value
    assert arrow_table("UTC", columns, rows).column("x").to_pylist() == [str(value), None]


def test_the_end_of_time() -> None:
    """Where the zone's year 9999 is the year 10000 in UTC."""
    end = datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))
    columns, rows = [ResultColumn("x", SqlType.TIMESTAMPTZ)], [(end,), (None,)]
    assert masked_arrays(columns, rows)["x"][0] == end
    assert data_frame("America/New_York", columns, rows)["x"][0] == end
    assert arrow_table("America/New_York", columns, rows).column("x").to_pylist() == [str(end), None]


def test_decimals_have_the_digits_of_their_values() -> None:
    columns = [ResultColumn("x", SqlType.NUMERIC)]
    for texts, width, scale in (
        (["1", "2.50", "-3.125"], 128, 3),
        (["1E+5", "0"], 128, 0),
        (["9" * 30, f"0.{'0' * 29}1"], 256, 30),
    ):
        rows = [(Decimal(text),) for text in texts]
        column = arrow_table("UTC", columns, rows).column("x")
        assert (column.type.bit_width, column.type.scale) == (width, scale)
        assert column.to_pylist() == [value for (value,) in rows]


@pytest.mark.parametrize(("method", "package"), [("fetch_df", "pandas"), ("fetch_arrow_table", "pyarrow")])
def test_a_library_that_is_missing(
    cursor: dpsql.Cursor, monkeypatch: pytest.MonkeyPatch, method: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    cursor.execute("SELECT 1")
    with pytest.raises(dpsql.NotSupportedError) as caught:
        getattr(cursor, method)()
    assert (caught.value.sqlstate, caught.value.hint) == ("0A000", f"pip install {package}")
    assert cursor.fetchall() == [(1,)]


@pytest.mark.parametrize("method", ["fetch_df", "fetch_arrow_table", "fetchnumpy"])
def test_where_there_is_no_result(cursor: dpsql.Cursor, method: str) -> None:
    cursor.execute("SET dpsql.notices = on")
    with pytest.raises(dpsql.InterfaceError):
        getattr(cursor, method)()
    with cursor.connection.cursor() as closed:
        closed.execute("SELECT 1")
    with pytest.raises(dpsql.InterfaceError):
        getattr(closed, method)()


def test_moments_are_those_of_the_zone(cursor: dpsql.Cursor) -> None:
    moment = datetime(2020, 7, 2, 12, tzinfo=BERLIN)
    for value in (moment, moment.astimezone(UTC)):
        frame = cursor.execute("SELECT %s AS at", [value]).fetch_df()
        assert str(frame["at"][0]) == "2020-07-02 12:00:00+02:00"
