"""What is remembered of a query is what compiling it anew would give, and room is bounded."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.caches import LruCache, exact_key
from dpsql.gateway.engine import Engine
from dpsql.sqltypes import SqlType
from tests.conftest import Lend, MakeEngine

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
SETTINGS = QuerySettings(Fraction(1, 10), Fraction(1, 10**9), "auto", NOON)
BY_SEX = QueryStatement("SELECT sex, COUNT(*) FROM patients GROUP BY sex")


def test_the_least_recently_used_is_forgotten() -> None:
    remembered: LruCache[int] = LruCache(2)
    for key in "ab":
        remembered.put(key, ord(key))
    assert remembered.get("a") == 97
    remembered.put("c", 99)
    assert [remembered.get(key) for key in "abc"] == [97, None, 99]
    assert len(remembered) == 2


def test_equal_constants_that_are_not_the_same_have_keys_of_their_own() -> None:
    alike = [1, True, 1.0, Decimal(1), Decimal("1.0"), 0.0, -0.0, "1", b"1", None, date(2020, 1, 1)]
    moment = datetime(2020, 1, 1, 12, tzinfo=UTC)
    alike += [moment, moment.astimezone(ZoneInfo("Europe/London")), moment.replace(tzinfo=None)]
    assert len({exact_key([value]) for value in alike}) == len(alike)
    assert exact_key([Decimal("1.5"), "x"]) == exact_key([Decimal("1.5"), "x"])
    assert exact_key([[1]]) is None is exact_key([type("Text", (str,), {})("x")])


@pytest.fixture
def engine(make_engine: MakeEngine, clinic_policy: Path, lend: Lend) -> Engine:
    return make_engine(clinic_policy, backend=lend(clinic_policy))


def test_a_query_asked_again_is_not_compiled_again(engine: Engine) -> None:
    first = engine.compile("ana", BY_SEX, SETTINGS)
    assert engine.compile("ana", BY_SEX, replace(SETTINGS, now=NOON + timedelta(days=400))) is first
    assert engine.describe("ana", BY_SEX) is engine.describe("ana", BY_SEX)


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, epsilon=Fraction(1, 5)),
        replace(SETTINGS, delta=Fraction(1, 10**8)),
        replace(SETTINGS, mechanism="gaussian"),
        replace(SETTINGS, intervals=True),
        replace(SETTINGS, max_rows=1),
        replace(SETTINGS, max_groups=1),
        replace(SETTINGS, max_rows_per_group=1),
        replace(SETTINGS, now=NOON.astimezone(ZoneInfo("Europe/London"))),
    ],
)
def test_every_setting_counts(engine: Engine, settings: QuerySettings) -> None:
    assert engine.compile("ana", BY_SEX, SETTINGS) is not engine.compile("ana", BY_SEX, settings)


def test_text_place_user_constants_and_types_count(engine: Engine) -> None:
    older = QueryStatement("SELECT COUNT(*) FROM patients WHERE age > $1")
    compiled = [
        engine.compile("ana", BY_SEX, SETTINGS),
        engine.compile("ben", BY_SEX, SETTINGS),
        engine.compile("ana", replace(BY_SEX, offset=3), SETTINGS),
        engine.compile("ana", QueryStatement(BY_SEX.sql + " "), SETTINGS),
        engine.compile("ana", older, SETTINGS, [40]),
        engine.compile("ana", older, SETTINGS, [41]),
        engine.compile("ana", older, SETTINGS, [40], [SqlType.BIGINT]),
        engine.compile("ana", older, SETTINGS, [Decimal("40.0")]),
    ]
    assert len(set(map(id, compiled))) == len(compiled)
    assert engine.compile("ana", older, SETTINGS, [40]) is compiled[4]
    assert engine.describe("ana", older) is not engine.describe("ana", older, [SqlType.BIGINT])
    assert engine.describe("ana", BY_SEX) is not engine.describe("ana", BY_SEX, intervals=True)


@pytest.mark.parametrize("time", ["NOW()", "CURRENT_DATE", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP", "CURRENT_TIME"])
def test_a_query_that_asks_for_the_time_is_compiled_anew(engine: Engine, time: str) -> None:
    statement = QueryStatement(f"SELECT {time}")
    assert engine.compile("ana", statement, SETTINGS) is not engine.compile("ana", statement, SETTINGS)
    assert not len(engine._plans)


def test_a_long_text_is_not_remembered(engine: Engine) -> None:
    long = QueryStatement(BY_SEX.sql + " " * 10_000)
    assert engine.compile("ana", long, SETTINGS) is not engine.compile("ana", long, SETTINGS)
