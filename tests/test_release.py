"""The only door out: selection, noise, storage, post-processing."""

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.backends import Cancellation, ExactCells, PublicRows
from dpsql.compiler.ir.nodes import Values
from dpsql.compiler.ir.primitives import MAX_CELL
from dpsql.compiler.plan.query_plan import MAX_RESULT_ROWS, CompiledQuery, OutputColumn, PlannedRelease, PublicRead
from dpsql.errors import GuaranteeMismatch, InvalidParameter, LedgerUnavailable, LimitExceeded, QueryCanceled
from dpsql.gateway.release import PostProcessor, ReleasedCells, ReleasedRows, merged, release
from dpsql.gateway.result_values import as_values
from dpsql.limits.result_memory import KeptRows, MemoryShare, RowBlock, RowStore
from dpsql.policy import load_policy
from dpsql.privacy.exponential_mechanism import RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import Threshold
from dpsql.sqltypes import Span, SqlType
from tests.compiler.plans import Planner
from tests.conftest import silence_noise
from tests.examples import profile

COUNTS = "SELECT city, COUNT(*) AS n FROM patients GROUP BY city"


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


def texts(*values: str | None) -> Any:
    return np.array(values, dtype=object)


def numbers(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def cells_of(released: ReleasedCells) -> list[tuple[Any, ...]]:
    columns = [list(key) for key in released.keys] + [cell.tolist() for cell in released.cells]
    return list(zip(*columns, strict=True))


# Noise and selection


@pytest.mark.statistical
@pytest.mark.parametrize("sql", [COUNTS, "SELECT city, SUM(age) FROM patients GROUP BY city"])
def test_blocks_are_released_by_the_law_of_all_at_once(planner: Planner, sql: str) -> None:
    """Of groups kept with a probability near ½ as many in blocks as at once; 6 standard deviations: 2e-9 a run."""
    (planned,) = planner.compile(sql).releases
    assert planned.in_blocks and planned.selection is not None
    selection, many = planned.selection, 20_000
    least = selection.cutoff if isinstance(selection, Threshold) else selection.smallest_likely
    names, units = texts(*(f"g{i:05}" for i in range(many))), numbers(*[least] * many)

    def part(place: slice) -> ExactCells:
        return ExactCells((names[place],), units[place], tuple(units[place] for _ in planned.primitives))

    blocks = [release(planned, part(slice(i, i + 100))) for i in reversed(range(0, many, 100))]
    found, whole = merged(blocks), release(planned, part(slice(0, many)))
    kept = list(found.keys[0])
    assert kept == sorted(set(kept))
    assert abs(len(kept) - len(whole.keys[0])) < 6 * (many / 2) ** 0.5
    for ours, theirs, made in zip(found.cells, whole.cells, planned.primitives, strict=True):
        assert len(ours) == len(kept)
        assert isinstance(made.noise, DiscreteLaplace | DiscreteGaussian)
        error = made.noise.stderr * (1 / len(ours) + 1 / len(theirs)) ** 0.5
        assert abs(ours.mean() - theirs.mean()) < 6 * error


def test_one_block_is_given_as_it_is(planner: Planner) -> None:
    (planned,) = planner.compile("SELECT sex, COUNT(*) FROM patients GROUP BY sex").releases
    assert not planned.in_blocks
    exact = ExactCells((texts("F", "M", "X", None),), numbers(5, 0, 0, 0), (numbers(5, 0, 0, 0),))
    assert list(merged([release(planned, exact)]).keys[0]) == ["F", "M", "X", None]


def test_every_cell_gets_noise_of_its_own(planner: Planner) -> None:
    (planned,) = planner.compile("SELECT age, COUNT(*), AVG(weight) FROM patients GROUP BY age").releases
    exact = ExactCells((texts(*map(str, range(1000))),), numbers(*range(1000)), (numbers(*[0] * 1000),) * 2)
    released = release(planned, exact)
    assert list(released.keys[0]) == list(exact.keys[0])
    for index, cell in enumerate(released.cells):
        # 1000 cells: a deviation beyond a fifth of the announced one happens in less than one run in 1e9.
        noise = planned.primitives[index].noise
        assert isinstance(noise, DiscreteLaplace | DiscreteGaussian)
        assert 0.8 < float(np.std(cell)) / noise.stderr < 1.2
        assert len(set(cell.tolist())) > 20
    assert released.cells[0].tolist() != released.cells[1].tolist()
    assert release(planned, exact).cells[0].tolist() != released.cells[0].tolist()


def test_public_groups_are_all_there_even_empty_ones(planner: Planner) -> None:
    (planned,) = planner.compile("SELECT sex, COUNT(*) FROM patients GROUP BY sex").releases
    exact = ExactCells((texts("F", "M", "X", None),), numbers(5, 0, 0, 0), (numbers(5, 0, 0, 0),))
    assert list(release(planned, exact).keys[0]) == ["F", "M", "X", None]


def test_more_groups_than_the_noise_was_made_for_are_not_released(planner: Planner) -> None:
    """Where the groups are known to be few, SQL does not number those of one unit: their number is the limit."""
    (planned,) = planner.compile("SELECT EXTRACT(year FROM visited_on), COUNT(*) FROM visits GROUP BY 1").releases
    bounds = planned.contribution
    assert not bounds.ranked and not bounds.one_row
    many = bounds.groups_per_unit + 1
    exact = ExactCells((texts(*map(str, range(many))),), numbers(*[1] * many), (numbers(*[1] * many),))
    with pytest.raises(GuaranteeMismatch, match="exceeds the planned limit"):
        release(planned, exact)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT city, SUM(age) FROM patients GROUP BY city",
        COUNTS,
        "SELECT city, AVG(age), COUNT(*) FROM patients GROUP BY city",
    ],
)
def test_private_groups_without_or_with_few_units_do_not_appear(planner: Planner, sql: str) -> None:
    """1000 groups of one unit, each shown with a probability of 1e-9 at the most; groups without a unit never."""
    (planned,) = planner.compile(sql).releases
    units = numbers(*[1] * 1000, *[0] * 1000, *[100_000] * 10)
    names = texts(*(f"g{i:05}" for i in range(2010)))
    exact = ExactCells((names,), units, tuple(units for _ in planned.primitives))
    released = release(planned, exact)
    assert list(released.keys[0]) == [f"g{i:05}" for i in range(2000, 2010)]
    assert all(len(cell) == 10 for cell in released.cells)


def test_a_group_of_nobody_stays_out_whatever_the_threshold_says(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence_noise(monkeypatch)
    (planned,) = planner.compile(COUNTS).releases
    assert isinstance(planned.selection, Threshold)
    exact = ExactCells((texts("a", "b"),), numbers(0, 1), (numbers(5, 5),))
    assert cells_of(release(planned, exact)) == [("b", 5)]


def test_the_compared_cell_is_the_released_one(planner: Planner) -> None:
    """What a threshold has let through is released as it was compared: it is never below the threshold."""
    (planned,) = planner.compile(COUNTS).releases
    selection, index = planned.selection, planned.threshold_primitive
    assert isinstance(selection, Threshold)
    assert index is not None
    units = numbers(*[selection.cutoff] * 2000)
    exact = ExactCells((texts(*map(str, range(2000))),), units, tuple(units for _ in planned.primitives))
    released = release(planned, exact)
    assert 0 < len(released.keys[0]) < 2000
    assert released.cells[index].min() >= selection.cutoff


def test_rows_of_private_groups_are_sorted_whatever_the_engines_order(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence_noise(monkeypatch)
    for sql in (COUNTS, "SELECT city, SUM(age) FROM patients GROUP BY city"):
        (planned,) = planner.compile(sql).releases
        exact = ExactCells(
            (texts("b", None, "Ä", "a", "B"),),
            numbers(1, 2, 3, 4, 5),
            tuple(numbers(1, 2, 3, 4, 5) for _ in planned.primitives),
        )
        assert [row[:2] for row in cells_of(release(planned, exact))] == [
            *(("B", 5), ("a", 4), ("b", 1), ("Ä", 3)),
            (None, 2),
        ]


def test_rows_are_sorted_by_one_key_after_another_with_nulls_last() -> None:
    keys = [(a, b, c) for a in ("b", None, "", "a") for b in (None, "Ä", "B", "") for c in ("1", "10", None)]
    expected = sorted(keys, key=lambda row: [(text is None, text or "") for text in row])
    shuffled = np.random.default_rng(7).permutation(len(keys))
    blocks = [
        ReleasedCells(tuple(texts(*(keys[row][place] for row in part)) for place in range(3)), (part.astype(np.int64),))
        for part in (shuffled[:20], shuffled[20:])
    ]
    assert cells_of(merged(blocks)) == [(*row, keys.index(row)) for row in expected]


def test_a_threshold_without_its_part_is_no_plan(planner: Planner) -> None:
    (planned,) = planner.compile(COUNTS).releases
    exact = ExactCells((texts("a"),), numbers(1), (numbers(1),))
    with pytest.raises(TypeError):
        release(replace(planned, threshold_primitive=None), exact)


def test_cells_at_the_edge_do_not_overflow(planner: Planner) -> None:
    (planned,) = planner.compile("SELECT sex, COUNT(*) FROM patients GROUP BY sex").releases
    edges = numbers(2**63 - 1, -(2**63), MAX_CELL, -MAX_CELL)
    released = release(planned, ExactCells((texts("F", "M", "X", None),), edges, (edges,)))
    for exact, noisy in zip((MAX_CELL, -MAX_CELL, MAX_CELL, -MAX_CELL), released.cells[0].tolist(), strict=True):
        assert abs(noisy) <= MAX_CELL
        assert abs(noisy - exact) < 10**6


def test_exact_cells_are_not_printed() -> None:
    exact = ExactCells((texts("secret"),), numbers(4711), (numbers(4711),))
    for shown in (repr(exact), str(exact), f"{exact}"):
        assert "4711" not in shown
        assert "secret" not in shown


# Storage


def test_cells_are_stored_exactly() -> None:
    cells = ReleasedCells(
        (texts("a", None, 'q"\\\n', "ü"), texts("", "1", "2", None)), (numbers(1, -(2**62), 2**62 - 1, 0),)
    )
    again = ReleasedCells.from_bytes(cells.to_bytes())
    assert cells_of(again) == cells_of(cells)
    assert again.cells[0].dtype == np.int64
    empty = ReleasedCells((texts(),), (numbers(),))
    assert cells_of(ReleasedCells.from_bytes(empty.to_bytes())) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"keys": [], "cells": 5}',
        b'{"keys": 5, "cells": []}',
        b'{"keys": [["a"]], "cells": ["not base64 !"]}',
        json.dumps({"keys": [], "cells": [base64.b64encode(b"1234567").decode()]}).encode(),
    ],
)
def test_what_else_is_stored_is_not_read(payload: bytes) -> None:
    with pytest.raises(LedgerUnavailable) as caught:
        ReleasedCells.from_bytes(payload)
    assert caught.value.__cause__ is None


# Picks


def test_of_each_list_the_best_are_picked_and_nothing_else_is_told(planner: Planner) -> None:
    """Differences of a million rows, at a scale of some hundred: what is released are places."""
    (planned,) = planner.compile("SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) LIMIT 2").releases
    exact = ExactCells((texts("a", "b", None, "d"),), numbers(1, 2, 3, 4), (numbers(5, 9, 7, 6) * 10**6,))
    assert cells_of(release(planned, exact)) == [("a", 1), ("b", 0), (None, 0), ("d", 2)]
    (planned,) = planner.compile("SELECT sex, MODE() WITHIN GROUP (ORDER BY age) FROM patients GROUP BY sex").releases
    (place,) = planned.contribution.lists or ()
    sexes, ages = texts("F", "M", "F", None, "M", None), texts("1", "1", "2", "1", "2", "2")
    exact = ExactCells((sexes, ages) if place == 0 else (ages, sexes), numbers(*[1] * 6), (numbers(*range(6)) * 10**6,))
    assert release(planned, exact).cells[0].tolist() == [0, 0, 1, 0, 1, 1]


def test_picks_from_more_lists_than_they_were_made_for_are_not_released(planner: Planner) -> None:
    """Of one list there may be as many groups as there are; of lists no more than one unit may stand in."""
    (planned,) = planner.compile("SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 1").releases
    exact = ExactCells((texts(*map(str, range(50))),), numbers(*[1] * 50), (numbers(*[1] * 50),))
    assert sum(release(planned, exact).cells[0]) == 1
    year = "EXTRACT(year FROM visited_on)"
    (planned,) = planner.compile(f"SELECT {year}, MODE() WITHIN GROUP (ORDER BY icd) FROM visits GROUP BY 1").releases
    bounds = planned.contribution
    assert bounds.grouped and not bounds.ranked and not bounds.one_row
    many = bounds.groups_per_unit + 1
    keys = (texts(*map(str, range(many))), texts(*map(str, range(many))))
    with pytest.raises(GuaranteeMismatch, match="exceeds the planned limit"):
        release(planned, ExactCells(keys, numbers(*[1] * many), (numbers(*[1] * many),)))


# Post-processing


@pytest.fixture(scope="module")
def processor() -> Iterator[PostProcessor]:
    opened = PostProcessor("UTC")
    yield opened
    opened.close()


def post(
    processor: PostProcessor,
    sql: str,
    types: Sequence[SqlType] = (SqlType.BIGINT,),
    *,
    releases: Sequence[tuple[PlannedRelease, ReleasedCells]] = (),
    public: Mapping[str, PublicRows] | None = None,
    cancellation: Cancellation | None = None,
) -> tuple[tuple[Any, ...], ...]:
    columns = tuple(OutputColumn(f"o{i}", type_) for i, type_ in enumerate(types))
    reads = tuple(PublicRead(name, Values((), ((),)), "", 1) for name in public or {})
    query = CompiledQuery("", columns, tuple(planned for planned, _ in releases), reads, (), sql, None, "person")
    rows = processor.run(query, [cells for _, cells in releases], public or {}, {}, cancellation or Cancellation())
    assert isinstance(rows, ReleasedRows)
    return tuple(rows.rows)


def test_released_cells_and_public_rows_are_tables(processor: PostProcessor, planner: Planner) -> None:
    (planned,) = planner.compile(COUNTS).releases
    cells = ReleasedCells((texts("a", None),), (numbers(5, 6),))
    sql = "SELECT k0, p0 * 2 FROM r0 ORDER BY p0"
    assert post(processor, sql, (SqlType.TEXT, SqlType.BIGINT), releases=[(planned, cells)]) == (("a", 10), (None, 12))
    rows = PublicRows((texts("x", None, "y"),), 3)
    assert post(processor, "SELECT v0 FROM q0 ORDER BY v0 NULLS LAST", public={"q0": rows}) == (("x",), ("y",), (None,))
    # A table of no columns still has its rows; one without rows still has its columns.
    assert post(processor, "SELECT COUNT(*) FROM q0", public={"q0": PublicRows((), 7)}) == ((7,),)
    assert post(processor, "SELECT v0 FROM q0", public={"q0": PublicRows((texts(),), 0)}) == ()
    no_keys = ReleasedCells((), (numbers(5),))
    assert post(processor, "SELECT p0 FROM r0", releases=[(planned, no_keys)]) == ((5,),)
    (keys_alone,) = planner.compile("SELECT city FROM patients GROUP BY city").releases
    no_cells = ReleasedCells((texts("a", "b"),), ())
    assert post(processor, "SELECT k0 FROM r0", releases=[(keys_alone, no_cells)]) == (("a",), ("b",))


def test_one_query_does_not_see_anothers_tables(processor: PostProcessor) -> None:
    post(processor, "SELECT v0 FROM q7", public={"q7": PublicRows((texts("x"),), 1)})
    with pytest.raises(InvalidParameter):
        post(processor, "SELECT v0 FROM q7")


def test_queries_at_the_same_time(processor: PostProcessor) -> None:
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        rows = PublicRows((texts(*[str(number)] * 100),), 100)
        found[number] = post(processor, "SELECT DISTINCT v0 FROM q0", public={"q0": rows})

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: ((str(number),),) for number in range(16)}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/dpsql-must-not-be-there.csv'",
        "ATTACH '/tmp/dpsql-must-not-be-there.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SELECT * FROM numbers",
        "SELECT getenv('HOME')",
    ],
)
def test_the_engine_reaches_nothing(processor: PostProcessor, sql: str) -> None:
    with pytest.raises(InvalidParameter):
        post(processor, sql)


def test_moments_come_in_the_datasets_zone() -> None:
    berlin = PostProcessor("Europe/Berlin")
    moment = datetime(2024, 7, 1, 10, tzinfo=UTC)
    micros = int(moment.timestamp() * 1_000_000)
    rows = post(berlin, f"SELECT {micros}, NULL, 5", (SqlType.TIMESTAMPTZ, SqlType.TIMESTAMPTZ, SqlType.BIGINT))
    assert rows == ((moment, None, 5),)
    assert str(rows[0][0]) == "2024-07-01 12:00:00+02:00"
    berlin.close()


def test_moments_at_the_ends_of_time() -> None:
    """A zone in which the year would be 10000 or 0 is left out."""
    for zone, moment in (
        ("Asia/Tokyo", datetime(9999, 12, 31, 23, tzinfo=UTC)),
        ("America/New_York", datetime(1, 1, 1, 1, tzinfo=UTC)),
    ):
        processor = PostProcessor(zone)
        micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert post(processor, f"SELECT {micros}", (SqlType.TIMESTAMPTZ,)) == ((moment,),)
        processor.close()


def test_moments_of_a_year_that_utc_does_not_have() -> None:
    for zone, text in (
        ("Europe/Berlin", "0001-01-01 00:00:00+00:53:28"),
        ("America/New_York", "9999-12-31 23:00:00-05:00"),
    ):
        moment, offset = datetime.fromisoformat(text), datetime.fromisoformat(text).utcoffset()
        assert offset is not None
        micros = (moment.replace(tzinfo=None) - datetime(1970, 1, 1) - offset) // timedelta(microseconds=1)
        processor = PostProcessor(zone)
        ((found,),) = post(processor, f"SELECT {micros}", (SqlType.TIMESTAMPTZ,))
        assert str(found) == text
        processor.close()


def test_values_that_post_processing_holds_in_another_form() -> None:
    types = [SqlType.JSONB, SqlType.INTERVAL, SqlType.TIMESTAMPTZ.array, SqlType.DATE.array]
    row = ('{"bb":1e2,"a":null}', (1, 2, 3), '["2024-01-01 00:00:00+00", null]', '["-0044-03-15"]')
    ((shown, span, moments, days),) = as_values(types, ZoneInfo("Europe/Berlin"), RowBlock.of([row])).rows()
    assert shown == '{"a": null, "bb": 100}'
    assert span == Span(1, 2, 3)
    assert [str(moment) for moment in moments] == ["2024-01-01 01:00:00+01:00", "None"]
    assert days == [None]  # Python has no such year


def test_what_cannot_be_computed_is_told(processor: PostProcessor) -> None:
    with pytest.raises(InvalidParameter, match="the result cannot be computed"):
        post(processor, "SELECT CAST('x' AS INTEGER)")


def test_too_much_memory(processor: PostProcessor) -> None:
    with pytest.raises(LimitExceeded, match="too large"):
        post(processor, "SELECT list(a.range || repeat('x', 100000)) FROM range(100000) AS a")


def test_too_many_rows(processor: PostProcessor) -> None:
    with pytest.raises(LimitExceeded, match="rows"):
        post(processor, "SELECT range FROM range(1000001)")


def test_cancelling(processor: PostProcessor) -> None:
    cancellation = Cancellation()
    timer = threading.Timer(0.2, cancellation.cancel)
    timer.start()
    with pytest.raises(QueryCanceled):
        post(processor, "SELECT COUNT(*) FROM range(10000000) a, range(10000000) b WHERE a.range % 7 > b.range",
             cancellation=cancellation)  # fmt: skip
    timer.join()
    with pytest.raises(QueryCanceled):
        post(processor, "SELECT 1", cancellation=cancellation)


def test_the_time_limit(processor: PostProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.gateway.release.POST_SECONDS", 0.2)
    with pytest.raises(QueryCanceled):
        post(processor, "SELECT COUNT(*) FROM range(10000000) a, range(10000000) b WHERE a.range % 7 > b.range")


def test_steps_are_printed_as_they_are_written(planner: Planner, processor: PostProcessor) -> None:
    """15368027 tenths are 1536802.7, not 1536802.7000000002."""
    query = planner.compile("SELECT SUM(weight) FROM patients")
    cells = [ReleasedCells((), (numbers(15368027),))]
    assert processor.run(query, cells, {}, {}, Cancellation()).rows == ((1536802.7,),)
    query = planner.compile("SELECT SUM(cost) FROM visits")
    rows = processor.run(query, [ReleasedCells((), (numbers(-1),))], {}, {}, Cancellation()).rows
    assert str(rows[0][0]) == "-0.01"
    assert Fraction(rows[0][0]) == Fraction(-1, 100)


def test_of_several_quantiles_a_greater_one_has_no_lesser_value(planner: Planner, processor: PostProcessor) -> None:
    query = planner.compile(
        "SELECT PERCENTILE_CONT(ARRAY[0.9, 0.1, 0.5, 0.9]) WITHIN GROUP (ORDER BY weight) FROM patients"
    )
    (planned,) = query.releases
    assert len(planned.primitives) == 3
    cells = [ReleasedCells((), (numbers(400), numbers(700), numbers(500)))]
    assert processor.run(query, cells, {}, {}, Cancellation()).rows == (([70.0, 40.0, 50.0, 70.0],),)
    (column,) = query.columns
    assert column.error is not None and column.error.ranks == max(
        planned.noise.reach for planned in planned.primitives if isinstance(planned.noise, RankChoice)
    )


COPIED = (
    "SELECT COUNT(*) FROM patients WHERE age > 5",
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex",
    "SELECT COUNT(weight) AS n, sex AS s, sex, COUNT(DISTINCT patient_id) FROM patients GROUP BY sex",
    "SELECT n, s FROM (SELECT sex AS s, COUNT(*) AS n, SUM(age) FROM patients GROUP BY sex) AS counted",
    "SELECT age > 50, sex, SUM(age) FROM patients GROUP BY sex, age > 50",
    "SELECT age, COUNT(*) FROM patients GROUP BY age",
    "SELECT CASE WHEN n IS NULL THEN 0 ELSE n END FROM (SELECT COUNT(*) AS n FROM patients) c",
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex LIMIT 2",
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex ORDER BY 2 DESC, sex LIMIT 2 OFFSET 1",
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex ORDER BY COUNT(*), sex DESC",
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex ORDER BY sex NULLS FIRST, 2 DESC OFFSET 2",
    "SELECT COUNT(*) FROM patients GROUP BY age ORDER BY age DESC NULLS LAST, COUNT(*)",
    "SELECT age > 50, sex, SUM(age) FROM patients GROUP BY sex, age > 50 ORDER BY age > 50 DESC, sex, 3 LIMIT 3",
)
COMPUTED = (
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex ORDER BY AVG(age)",
    "SELECT s FROM (SELECT sex AS s, COUNT(*) AS n FROM patients GROUP BY sex ORDER BY 2 LIMIT 2) AS c ORDER BY s",
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex ORDER BY 2, COUNT(*) % 2",
    "SELECT sex, COUNT(*) FROM patients GROUP BY sex HAVING COUNT(*) > 3",
    "SELECT city, COUNT(*) FROM patients GROUP BY city",
    "SELECT COUNT(*), 1 FROM patients",
    "SELECT COUNT(*) + 1 FROM patients",
    "SELECT COUNT(*)::integer FROM patients",
    "SELECT AVG(age) FROM patients",
    "SELECT SUM(weight) FROM patients",
    "SELECT SUM(cost) FROM visits",
    "SELECT CASE WHEN sex IS NULL THEN 'none' ELSE sex END, COUNT(*) FROM patients GROUP BY sex",
    "SELECT CASE WHEN a IS NULL THEN 0 ELSE 1 END FROM (SELECT AVG(age) AS a FROM patients) c",
    "SELECT COUNT(*) FROM patients UNION ALL SELECT COUNT(*) FROM patients",
)
CELLS = st.one_of(st.integers(-3, 100), st.integers(-MAX_CELL, MAX_CELL))
KEYS: Mapping[SqlType, Any] = {
    SqlType.TEXT: st.text(st.characters(codec="utf-8")),
    SqlType.BOOLEAN: st.sampled_from(("true", "false")),
    SqlType.INTEGER: st.integers(-(2**31), 2**31 - 1).map(str),
}


@pytest.mark.parametrize("intervals", ["on", "off"])
@pytest.mark.parametrize("sql", COPIED)
@profile(30)
@given(data=st.data())
def test_copied_rows_are_those_that_the_engine_returns(
    planner: Planner, processor: PostProcessor, sql: str, intervals: str, data: st.DataObject
) -> None:
    query = planner.compile(sql, intervals=intervals)
    (planned,) = query.releases
    assert query.copied is not None
    pairs = zip(query.copied.columns, query.columns, strict=True)
    types = {text.place: column.type for text, column in pairs if text.is_key}
    types |= {each.term.place: each.type for each in query.copied.order if each.term.is_key}
    count = data.draw(st.integers(0, 5)) if planned.keys else 1
    keys = [
        data.draw(st.lists(st.none() | KEYS[types.get(place, SqlType.TEXT)], min_size=count, max_size=count))
        for place in range(planned.keys)
    ]
    numbers_ = [data.draw(st.lists(CELLS, min_size=count, max_size=count)) for _ in planned.primitives]
    released = ReleasedCells(tuple(texts(*key) for key in keys), tuple(numbers(*cell) for cell in numbers_))
    copied, computed = (
        processor.run(each, [released], {}, {}, Cancellation()).rows for each in (query, replace(query, copied=None))
    )
    assert repr(copied) == repr(computed), "the types, too"
    assert len(copied) == len(range(count)[query.copied.offset :][: query.copied.limit])


@pytest.mark.parametrize("sql", COMPUTED)
def test_what_is_computed_is_not_copied(planner: Planner, sql: str) -> None:
    assert planner.compile(sql).copied is None


def test_copied_rows_are_made_some_at_a_time(
    planner: Planner, processor: PostProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = planner.compile(COPIED[1], intervals="off")
    released = ReleasedCells((np.full(50_000, "F", dtype=object),), (np.arange(50_000, dtype=np.int64),))
    cancellation, counts = Cancellation(), list[int]()
    add = RowStore.add

    def keep(store: RowStore, block: RowBlock) -> None:
        counts.append(block.count)
        if len(counts) == 3:
            cancellation.cancel()
        add(store, block)

    monkeypatch.setattr(RowStore, "add", keep)
    with pytest.raises(QueryCanceled):
        processor.run(query, [released], {}, {}, cancellation)
    assert len(counts) == 3
    assert sum(counts) < 50_000
    found = processor.run(query, [released], {}, {}, Cancellation()).rows
    assert list(found) == [("F", number) for number in range(50_000)]


def test_many_rows_are_ordered_by_the_engine_which_can_be_stopped(
    planner: Planner, processor: PostProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = planner.compile("SELECT sex, COUNT(*) FROM patients GROUP BY sex ORDER BY 2", intervals="off")
    ordered = []
    keep = PostProcessor._keep

    def seen(self: PostProcessor, kept: RowStore, query: CompiledQuery, *rest: Any) -> None:
        ordered.append(query)
        keep(self, kept, query, *rest)

    monkeypatch.setattr(PostProcessor, "_keep", seen)
    for count in (1_000, 1_001):
        released = ReleasedCells((np.full(count, "F", dtype=object),), (np.arange(count, dtype=np.int64)[::-1],))
        rows = processor.run(query, [released], {}, {}, Cancellation()).rows
        assert list(rows) == [("F", number) for number in range(count)]
        assert len(ordered) == (count > 1_000)


def test_copied_rows_are_counted_and_may_be_canceled(planner: Planner, processor: PostProcessor) -> None:
    query = planner.compile(COPIED[1], intervals="off")
    many = MAX_RESULT_ROWS + 1
    released = ReleasedCells((np.full(many, "F", dtype=object),), (np.zeros(many, dtype=np.int64),))
    with pytest.raises(LimitExceeded, match="the result has more than 1,000,000 rows"):
        processor.run(query, [released], {}, {}, Cancellation())
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(QueryCanceled):
        processor.run(query, [released], {}, {}, cancellation)


def test_intervals_of_less_noise_are_copied_too(planner: Planner, processor: PostProcessor) -> None:
    query, less = (planner.compile(COPIED[0], intervals="on", epsilon=epsilon) for epsilon in ("0.1", "1"))
    told = query.announcing(less.releases)
    assert told.copied == less.copied != query.copied
    assert told.post_sql == less.post_sql


def test_some_columns_of_rows_are_no_copy_of_what_is_in_a_file() -> None:
    store = RowStore(MemoryShare())
    store.add(RowBlock.of([(1, 2.5, "a"), (2, 3.5, "b")]))
    for rows in (((1, 2.5, "a"), (2, 3.5, "b")), KeptRows(store, range(2))):
        some = ReleasedRows(rows, (), store.shares).only((2, 0))
        assert type(some.rows) is type(rows) and some.shares == store.shares
        assert list(some.rows) == [("a", 1), ("b", 2)]
