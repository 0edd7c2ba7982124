"""Whatever a caller hands over: a result, or one of PEP 249's exceptions with its SQLSTATE."""

import enum
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.dbapi.binding import MAX_ITEMS, bind, plain

COUNT = "SELECT COUNT(*) FROM doctors WHERE doctor_id = %s"


class Trouble(Exception):
    """What callers' objects raise."""


class Level(int, enum.Enum):
    HIGH = 3


class Word(enum.StrEnum):
    FIRST = "first"


class Amount(Decimal):
    def __str__(self) -> str:
        raise Trouble


class Loud(int):
    def __str__(self) -> str:
        raise Trouble

    __repr__ = __eq__ = __hash__ = __index__ = __int__ = __str__  # type: ignore[assignment]


class Bag(list[int]):
    """A list that says of itself what is not so."""

    def __iter__(self) -> Iterator[int]:
        raise Trouble

    def __len__(self) -> int:
        return 1


class Nowhere(tzinfo):
    """A zone that knows no offset."""

    def utcoffset(self, _moment: datetime | None) -> None:
        return None

    def dst(self, _moment: datetime | None) -> None:
        return None

    def tzname(self, _moment: datetime | None) -> str:
        return "nowhere"


class Broken(Nowhere):
    def utcoffset(self, _moment: datetime | None) -> None:
        raise Trouble


@dataclass(frozen=True)
class Patient:
    age: int


class Raising(Mapping[str, object]):
    def __getitem__(self, _name: str) -> object:
        raise Trouble

    def __iter__(self) -> Iterator[str]:
        raise Trouble

    def __len__(self) -> int:
        raise Trouble


class Endless(Sequence[int]):
    """Says that it has one item, and has as many as are asked for."""

    def __getitem__(self, _place: object) -> Any:
        return 1

    def __len__(self) -> int:
        return 1


class Lying(Endless):
    def __len__(self) -> int:
        raise OverflowError


@pytest.fixture(scope="module")
def cursor(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Cursor]:
    ledger = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.sqlite'}"
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as connection:
        yield connection.cursor()


def spent(cursor: dpsql.Cursor) -> object:
    (row,) = cursor.connection.cursor().execute("SELECT epsilon_spent FROM dpsql.budget").fetchall()
    return row


def check(error: dpsql.Error) -> None:
    assert re.fullmatch("[0-9A-Z]{5}", error.sqlstate)
    assert not error.sqlstate.startswith("XX"), error
    assert error.message


# Parameters, one by one

PLAIN: list[tuple[object, object]] = [
    (Level.HIGH, 3),
    (Word.FIRST, "first"),
    (Amount("1.50"), Decimal("1.50")),
    (np.int8(-3), -3),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float32(0.5), 0.5),
    (np.float64(-0.0), -0.0),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.datetime64("2020-01-02"), date(2020, 1, 2)),
    (np.datetime64("2020-01"), date(2020, 1, 1)),
    (np.datetime64("2020-01-02T03:04:05"), datetime(2020, 1, 2, 3, 4, 5)),
    (np.datetime64("2020-01-02T03:04:05.123456789", "ns"), datetime(2020, 1, 2, 3, 4, 5, 123456)),
    (np.timedelta64(90, "m"), timedelta(minutes=90)),
    (pd.Timestamp("2020-01-02 03:04"), datetime(2020, 1, 2, 3, 4)),
    (pd.Timestamp("2020-01-02 03:04", tz="Europe/Berlin"), datetime(2020, 1, 2, 2, 4, tzinfo=UTC)),
    (pd.Timedelta(days=1), timedelta(days=1)),
    (datetime(2020, 1, 2, tzinfo=Nowhere()), datetime(2020, 1, 2)),
    (datetime(2020, 7, 2, 12, tzinfo=ZoneInfo("Europe/Berlin")), datetime(2020, 7, 2, 10, tzinfo=UTC)),
    (
        datetime(2020, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2020, 10, 25, 1, 30, tzinfo=UTC),
    ),
    ([np.int64(1), Level.HIGH], [1, 3]),
    ((1, None), [1, None]),
    (Bag([1, 2]), [1, 2]),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN, ids=lambda value: type(value).__name__)
def test_a_value_becomes_one_of_pythons_own(value: object, expected: object) -> None:
    made = plain(value)
    assert (type(made), repr(made)) == (type(expected), repr(expected))


WRONG: list[tuple[object, type[dpsql.Error], str]] = [
    (10**30, dpsql.DataError, "22003"),
    (-(10**5000), dpsql.DataError, "22003"),
    (float("nan"), dpsql.DataError, "22003"),
    (float("-inf"), dpsql.DataError, "22003"),
    (np.float32("inf"), dpsql.DataError, "22003"),
    (Decimal("NaN"), dpsql.DataError, "22003"),
    (Decimal("sNaN"), dpsql.DataError, "22003"),
    (Decimal("Infinity"), dpsql.DataError, "22003"),
    (Decimal("1e400"), dpsql.DataError, "22003"),
    (Decimal("1e-400"), dpsql.DataError, "22003"),
    (datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), dpsql.DataError, "22003"),
    (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), dpsql.DataError, "22003"),
    ("a\0b", dpsql.DataError, "22P02"),
    ("\ud800", dpsql.DataError, "22P02"),
    ("half a \udc80", dpsql.DataError, "22P02"),
    (pd.NaT, dpsql.ProgrammingError, "42804"),
    (np.datetime64("NaT"), dpsql.ProgrammingError, "42804"),
    (np.datetime64("30000-01-01"), dpsql.ProgrammingError, "42804"),
    (np.datetime64(2**62, "s"), dpsql.ProgrammingError, "42804"),
    (np.timedelta64(1, "M"), dpsql.ProgrammingError, "42804"),
    (np.timedelta64(1), dpsql.ProgrammingError, "42804"),
    (time(1, 2, tzinfo=UTC), dpsql.ProgrammingError, "42804"),
    (b"a\0b", dpsql.ProgrammingError, "42804"),
    (bytearray(b"x"), dpsql.ProgrammingError, "42804"),
    (dpsql.Binary(b"x"), dpsql.ProgrammingError, "42804"),
    (Fraction(1, 3), dpsql.ProgrammingError, "42804"),
    (1j, dpsql.ProgrammingError, "42804"),
    (np.complex64(1), dpsql.ProgrammingError, "42804"),
    (np.array([1]), dpsql.ProgrammingError, "42804"),
    (np.longdouble(1), dpsql.ProgrammingError, "42804"),
    (Patient(40), dpsql.ProgrammingError, "42804"),
    ({}, dpsql.ProgrammingError, "42804"),
    (set(), dpsql.ProgrammingError, "42804"),
    (object(), dpsql.ProgrammingError, "42804"),
    (range(3), dpsql.ProgrammingError, "42804"),
    ([[1]], dpsql.ProgrammingError, "42804"),
    ([1] * (MAX_ITEMS + 1), dpsql.OperationalError, "54001"),
    (Bag([1] * (MAX_ITEMS + 1)), dpsql.OperationalError, "54001"),
    (datetime(2020, 1, 1, tzinfo=Broken()), dpsql.InterfaceError, "HY000"),
]


@pytest.mark.parametrize(("value", "kind", "sqlstate"), WRONG, ids=lambda value: type(value).__name__)
def test_values_that_have_no_place(cursor: dpsql.Cursor, value: object, kind: type[dpsql.Error], sqlstate: str) -> None:
    for sql in ("SELECT %s", "SELECT %s, 1"):
        with pytest.raises(kind) as caught:
            cursor.execute(sql, [value])
        assert caught.value.sqlstate == sqlstate
        check(caught.value)
        with pytest.raises(kind):
            cursor.explain(sql, [value])


def test_a_list_that_holds_itself(cursor: dpsql.Cursor) -> None:
    endless: list[object] = []
    endless.append(endless)
    for sql in ("SELECT %s", "SELECT COUNT(*) FROM doctors WHERE doctor_id = ANY(%s)"):
        with pytest.raises(dpsql.ProgrammingError, match="list"):
            cursor.execute(sql, [endless])


def test_no_method_of_a_callers_class_runs_later(cursor: dpsql.Cursor) -> None:
    assert cursor.execute("SELECT %s + 1", [Loud(2)]).fetchone() == (3,)
    assert cursor.execute("SELECT %s", [Amount("1.5")]).fetchone() == (Decimal("1.5"),)


def test_the_items_of_two_lists_stand_apart(cursor: dpsql.Cursor) -> None:
    sql = "SELECT COUNT(*) FROM doctors WHERE doctor_id = ANY(%s) OR doctor_id = ANY(%s)"
    assert cursor.execute(sql, [[1, 0], [2]]).fetchone() == (2,)
    assert MAX_ITEMS < 1 << 20  # where the places of the next list's items begin


# Statements, and what stands for parameters


@pytest.mark.parametrize("sql", [None, 5, b"SELECT 1", object(), ["SELECT 1"], Patient(1)])
def test_a_statement_is_text(cursor: dpsql.Cursor, sql: Any) -> None:
    for use in (cursor.execute, cursor.explain):
        with pytest.raises(dpsql.ProgrammingError) as caught:
            use(sql)
        assert caught.value.sqlstate == "42804"


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELECT '\ud800'", "42601"),
        ("SELECT '\0'", "42601"),
        ("\udfff", "42601"),
        ('SELECT 1 AS "\ud83d"', "42601"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "54001"),
        ("SELECT " + "-" * 50 + "1 " * 200_000, "54001"),
        ("SELECT " + "9" * 5000, "22003"),
        ("SELECT 1e999999", "22003"),
        ("SELECT 1 WHERE", "42601"),
    ],
    ids=range(9),
)
def test_statements_that_are_none(cursor: dpsql.Cursor, sql: str, sqlstate: str) -> None:
    with pytest.raises(dpsql.DatabaseError) as caught:
        cursor.execute(sql)
    assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    "parameters", [5, "abc", b"abc", {1, 2, 3}, iter([1, 2, 3]), object(), Patient(1), np.array([1])]
)
def test_parameters_are_a_sequence_or_a_mapping(cursor: dpsql.Cursor, parameters: Any) -> None:
    with pytest.raises(dpsql.ProgrammingError) as caught:
        cursor.execute("SELECT %s, %s, %s", parameters)
    assert caught.value.sqlstate == "42804"


@pytest.mark.parametrize(
    ("sql", "parameters", "sqlstate"),
    [
        ("SELECT %s", [], "42P02"),
        ("SELECT %s", [1, 2], "42P02"),
        ("SELECT 1", [1], "42P02"),
        ("SELECT %s", range(10**12), "42P02"),
        ("SELECT %(a)s", {"b": 1}, "42P02"),
        ("SELECT $1", None, "42P02"),
        ("SELECT %(a)s", [1], "42601"),
        ("SELECT %s", {"a": 1}, "42601"),
        ("SELECT 5 % 2", [1], "42601"),
    ],
)
def test_counts_and_names_that_do_not_fit(cursor: dpsql.Cursor, sql: str, parameters: Any, sqlstate: str) -> None:
    with pytest.raises(dpsql.ProgrammingError) as caught:
        cursor.execute(sql, parameters)
    assert caught.value.sqlstate == sqlstate


def test_parameters_that_raise(cursor: dpsql.Cursor) -> None:
    for sql, parameters in (("SELECT %(a)s", Raising()), ("SELECT %s", Lying()), ("SELECT %s", range(10**30))):
        with pytest.raises(dpsql.InterfaceError, match=r"Trouble|OverflowError") as caught:
            cursor.execute(sql, parameters)
        assert caught.value.sqlstate == "HY000"
        assert isinstance(caught.value.__cause__, Trouble | OverflowError)


def test_parameters_are_read_once_and_no_more_than_there_are_placeholders() -> None:
    assert bind("SELECT %s", Endless()) == ("SELECT $1", (1,))


# Cursors and connections


@pytest.mark.parametrize("size", ["3", 1.5, None, object(), -1, b"1"])
def test_sizes_that_are_none(cursor: dpsql.Cursor, size: Any) -> None:
    cursor.execute("VALUES (1), (2), (3)")
    with pytest.raises(dpsql.InterfaceError):
        cursor.arraysize = size
    if size is not None:
        with pytest.raises(dpsql.InterfaceError):
            cursor.fetchmany(size)
    assert len(cursor.fetchall()) == 3


def test_setting_values_of_any_kind(cursor: dpsql.Cursor) -> None:
    before = cursor.execute("SHOW dpsql.epsilon").fetchone()
    for value in (None, [], "\0", "\ud800", 10**5000, float("nan"), object()):
        with pytest.raises(dpsql.Error) as caught:
            cursor.connection.configure({"dpsql.epsilon": value})
        check(caught.value)
    assert cursor.execute("SHOW dpsql.epsilon").fetchone() == before


@pytest.mark.parametrize(
    "given_",
    [
        {"user": None},
        {"user": 5},
        {"user": "\ud800"},
        {"user": "a\0b"},
        {"user": ""},
        {"role": "none"},
        {"role": 5},
        {"ledger": 5},
    ],
)
def test_users_that_cannot_be(clinic_policy: Path, tmp_path: Path, given_: dict[str, Any]) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with pytest.raises(dpsql.Error) as caught:
        dpsql.connect(clinic_policy, **({"user": "eve", "ledger": ledger} | given_))
    check(caught.value)


@pytest.mark.parametrize("policy", [5, None, b"clinic.toml", "a\0b", "", "\ud800"])
def test_policies_that_cannot_be(tmp_path: Path, policy: Any) -> None:
    with pytest.raises(dpsql.Error) as caught:
        dpsql.connect(policy, user="ana", ledger=f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    check(caught.value)


def test_where_the_callers_stack_is_nearly_full(cursor: dpsql.Cursor) -> None:
    """Whatever depth is left: an answer, one of our errors, or Python's own before anything was charged."""
    before = spent(cursor)

    def at(depth: int) -> None:
        if depth > 0:
            at(depth - 1)
        else:
            cursor.execute("SELECT COUNT(*) FROM patients WHERE age > 101")

    limit = sys.getrecursionlimit() - len_of_stack()
    outcomes = set()
    for left in (3, 10, 20, 40, 80, 160, 320):
        try:
            at(limit - left)
            outcomes.add("answer")
        except dpsql.Error as error:
            assert error.sqlstate in ("54001", "58000"), error
            outcomes.add("error")
        except RecursionError:
            outcomes.add("stack")
            assert spent(cursor) == before
    assert outcomes >= {"error"}
    assert cursor.execute("SELECT 1").fetchone() == (1,)


def len_of_stack() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count


# Anything at all

TEXTS = st.text(alphabet=st.characters(), max_size=8) | st.sampled_from(["%s", "%(a)s", "\0", "\ud800", "$1", "'"])
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.decimals(), TEXTS, st.binary(max_size=4)),
    *(st.datetimes(timezones=st.none() | st.timezones()), st.dates(), st.times(), st.timedeltas(), st.uuids()),
    *(st.fractions(), st.complex_numbers(), st.integers(2**62, 2**66), st.just(object()), st.just(Patient(3))),
    st.integers(0, len(PLAIN) + len(WRONG) - 1).map(lambda place: (*PLAIN, *WRONG)[place][0]),
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXTS, SCALARS, max_size=2)
STATEMENTS = st.sampled_from(
    [
        *("SELECT %s", "SELECT %(a)s", "SELECT %s, %s", "SELECT %s + 1", "SELECT %s::date", "SELECT %s::text || 'x'"),
        *("SELECT COUNT(*) FROM doctors WHERE doctor_id = ANY(%s)", "SELECT COUNT(*) FROM doctors WHERE city = %s"),
        *("SELECT COUNT(*) FROM patients WHERE age > %s", "SELECT COUNT(*) FROM visits WHERE visited_on < %s"),
        *("SELECT 1 LIMIT %s", "SET dpsql.epsilon = %s", "SHOW %s", "EXECUTE p (%s)", "BEGIN", "ROLLBACK"),
    ]
)
PARAMETERS = st.one_of(
    st.none(), st.lists(VALUES, max_size=3), st.dictionaries(st.sampled_from(["a", "b"]), VALUES), VALUES
)


@settings(max_examples=60)
@given(STATEMENTS | TEXTS, PARAMETERS)
def test_a_result_or_one_of_our_errors(cursor: dpsql.Cursor, operation: str, parameters: Any) -> None:
    before = spent(cursor) if cursor.connection.session.transaction != "E" else None
    try:
        cursor.explain(operation, parameters)
    except dpsql.Error as error:
        check(error)
    try:
        cursor.execute(operation, parameters)
    except dpsql.Error as error:
        check(error)
        if cursor.connection.session.transaction != "E" and not isinstance(error, dpsql.OperationalError):
            assert before is None or spent(cursor) == before
    else:
        assert (cursor.description is None) == (cursor.rowcount == -1)
