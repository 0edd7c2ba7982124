"""The heart, over bounded copies: D and D∖u are prepared each, and their cells differ by no more than was claimed."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dpsql.backends import Cancellation
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.errors import Error
from dpsql.privacy.cost import Adjacency, row_sensitivity
from tests.compiler.trees import with_sql
from tests.engines import Host
from tests.examples import profile
from tests.strategies.data import REPLACEMENTS, Database, Row, databases
from tests.strategies.distance import TooFar, assert_neighbours, vectors
from tests.strategies.world import SETTINGS, Survey, open_survey
from tests.test_neighbours import GREEDY, ORDERS, UNIT, Order, cases, greedy, is_replaced, leaves, simple_forms

ANY_ERROR = replace(SETTINGS, max_error_ratio=Fraction(1000))
FORMS = [(form, kind) for table, form, kind in simple_forms() if table == "visits"]
CONDITIONS = [form for form, kind in FORMS if kind == "bool"]
NUMBERS = [
    "n",
    "cost",
    "huge",
    "ratio",
    "f",
    *(form for form, kind in FORMS if kind in ("int", "float", "numeric")),
]
ON_GRID = ["n", "cost", "huge", "ratio", "f"]
PLACES = (
    "visits",
    "visits JOIN (VALUES (0, 'a'), (1, 'b')) x (a, b) ON TRUE",
    "visits LEFT JOIN (SELECT COUNT(*) AS k FROM kinds) x ON x.k > kind",
    "lines",
    "letters",
)


@st.composite
def simple_queries(draw: st.DrawFn) -> str:
    """A query of rows: counts, sums and means of any expressions, grouped and filtered by any."""
    place = draw(st.sampled_from(PLACES))
    if place in ("lines", "letters"):
        numbers, key = {"lines": (["boxes", "dose"], "drug"), "letters": (["words"], "topic")}[place]
        bounded = numbers
        conditions = [f"{numbers[0]} > 2", f"{key} IS NOT NULL", f"{numbers[0]} BETWEEN 1 AND 3"]
        keys = [key, f"{numbers[0]} > 1", f"LEFT({key}, 1)"]
    else:
        numbers, conditions, keys = NUMBERS, CONDITIONS, ["flag", "day", "note", *(form for form, _ in FORMS)]
        bounded = ON_GRID
    number = st.sampled_from(numbers)
    clamped = number.map(lambda each: f"LEAST(GREATEST({each}, -7), 12)")
    on_grid = st.sampled_from(bounded)
    aggregate = st.one_of(
        st.sampled_from(["COUNT(*)", "COUNT(DISTINCT who)" if place == "letters" else "COUNT(*)"]),
        number.map(lambda each: f"COUNT({each})"),
        clamped.map(lambda each: f"SUM({each})"),
        clamped.map(lambda each: f"AVG({each})"),
        st.tuples(st.sampled_from(["SUM", "AVG", "COUNT", "VAR_POP"]), on_grid).map("{0[0]}({0[1]})".format),
        st.sampled_from(conditions).map(lambda each: f"BOOL_OR({each})"),
    )
    filtered = (
        st.tuples(aggregate, st.sampled_from(conditions)).map(" FILTER (WHERE ".join).map(lambda each: f"{each})")
    )
    listed = draw(st.lists(st.one_of(aggregate, filtered), min_size=1, max_size=3))
    grouped = draw(st.sampled_from([None, *keys]))
    where = f" WHERE {draw(st.sampled_from(conditions))}" if draw(st.booleans()) else ""
    columns = ", ".join([*([grouped] if grouped else []), *listed])
    return f"SELECT {columns} FROM {place}{where}{' GROUP BY 1' if grouped else ''}"


ASKED = st.lists(simple_queries(), min_size=8, max_size=12)


@pytest.fixture(scope="module")
def each_survey(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    with host.survey(tmp_path_factory.mktemp("survey"), "add_remove", prepared=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def each_substituted(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    with host.survey(tmp_path_factory.mktemp("survey"), "substitute", prepared=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    opened = open_survey(tmp_path_factory.mktemp("survey"), "add_remove", prepared=True)
    yield opened
    opened.close()


def copied(survey: Survey, asked: list[str], options: QuerySettings = ANY_ERROR) -> list[PlannedRelease]:
    """What is read from copies for those of the queries that are not refused."""
    planned: list[PlannedRelease] = []
    for sql in asked:
        try:
            query = survey.compile(sql, options)
            survey.backend.check(query.releases, query.public_reads, Cancellation())
        except Error:
            continue
        planned += [release for release in query.releases if release.contribution.copied]
    return planned


@profile(6)
@given(database=databases(), unit=UNIT, asked=ASKED, order=ORDERS)
def test_a_unit_that_leaves(each_survey: Survey, database: Database, unit: int, asked: list[str], order: Order) -> None:
    planned = copied(each_survey, asked)
    event(f"copied: {len(planned)}")
    leaves(each_survey, planned, database, unit, order)


@profile(6)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS, asked=ASKED)
def test_a_unit_that_another_replaces(
    each_substituted: Survey, database: Database, unit: int, others: tuple[Row, ...], asked: list[str]
) -> None:
    is_replaced(each_substituted, copied(each_substituted, asked), database, database.replaced(unit, others))


# A greedy unit


def test_a_greedy_unit(each_survey: Survey) -> None:
    planned = copied(each_survey, cases(each_survey))
    assert len(planned) >= 30
    for release, left, right in zip(planned, *greedy(each_survey, planned), strict=True):
        assert_neighbours(release, left, right)


def test_the_claim_is_no_larger_than_it_must_be(survey: Survey) -> None:
    (planned,) = copied(survey, ["SELECT flag, COUNT(*), SUM(n) FROM visits GROUP BY flag"])
    (left,), (right,) = greedy(survey, [planned])
    moved = [
        sum(abs(one[key] - other[key]) for key in one) for one, other in zip(vectors(left), vectors(right), strict=True)
    ]
    assert moved[1:] == [primitive.noise.sensitivity.l1 for primitive in planned.primitives]
    assert [primitive.noise.sensitivity.l2_squared for primitive in planned.primitives] == [9**2, (9 * 9) ** 2]


# Planted faults: what bounds the copy, and what is claimed of it


def planted(survey: Survey, sql: str, change: Callable[[PlannedRelease], PlannedRelease]) -> None:
    """A release is within its claim, and beyond it once it is changed."""
    (planned,) = copied(survey, [sql])
    faulty = change(planned)
    assert faulty != planned
    (left, wrong_left), (right, wrong_right) = greedy(survey, [planned, faulty])
    assert_neighbours(planned, left, right)
    with pytest.raises(TooFar):
        assert_neighbours(faulty, wrong_left, wrong_right)


def written(pattern: str, by: str) -> Callable[[PlannedRelease], PlannedRelease]:
    """The same release with other SQL."""
    return lambda release: with_sql(release, re.sub(pattern, by, release.sql))


JOINED = '(SELECT v.* FROM "dpsql.prepared.survey"."main"."visits" v, kinds)'


@pytest.mark.parametrize(
    ("sql", "change"),
    [
        ("SELECT COUNT(*) FROM visits", written(r'"dpsql\.prepared\.survey"\."main"\."visits"', JOINED)),
        ("SELECT SUM(points + 0) FROM cards", written(r"CASE WHEN (\S+ \+ .*?) <.* END AS x0", r"\1 AS x0")),
        ("SELECT SUM(points) FROM cards", written(r'"dpsql\.grid\.0"', '"points"')),
        ("SELECT topic, AVG(words) FROM letters GROUP BY topic", written(r'"dpsql\.grid\.0"', '"words"')),
        ("SELECT COUNT(DISTINCT pid) FROM visits", written(r"count\(DISTINCT unit\)", "count(*)")),
        ("SELECT LEFT(note, 4), COUNT(n) FROM visits GROUP BY 1", written(r"count\(DISTINCT unit\)", "count(*)")),
    ],
)
def test_planted_faults_are_caught(
    survey: Survey, sql: str, change: Callable[[PlannedRelease], PlannedRelease]
) -> None:
    planted(survey, sql, change)


@pytest.mark.parametrize("sql", ["SELECT COUNT(*) FROM visits", "SELECT flag, COUNT(*) FROM visits GROUP BY flag"])
def test_the_table_in_place_of_the_copy_is_too_far(each_survey: Survey, sql: str) -> None:
    (copy,) = (name for name, table in copies(each_survey).items() if table == "visits")
    planted(
        each_survey,
        sql,
        lambda release: with_sql(release, release.sql.replace(copy, "main.visits").replace('"dpsql.unit"', '"pid"')),
    )


def copies(survey: Survey) -> dict[str, str]:
    """What engine SQL calls the copies, and of which tables they are."""
    return {".".join(map(Postgres.quote_name, copy.path)): plan.table for copy, plan in survey.copies}


def test_the_claim_for_rows_is_needed(survey: Survey) -> None:
    def as_in_tables(release: PlannedRelease) -> PlannedRelease:
        (primitive,) = release.primitives
        l2_squared = 3 * 3**2  # three groups, with three rows in each
        noise = replace(primitive.noise, sensitivity=replace(primitive.noise.sensitivity, l2_squared=l2_squared))
        return replace(release, primitives=(replace(primitive, noise=noise),))

    planted(survey, "SELECT kind > 100, COUNT(*) FROM visits GROUP BY 1", as_in_tables)


def test_the_engine_keeps_out_rows_beyond_the_bound(each_survey: Survey) -> None:
    each_survey.fill({})
    each_survey.change(GREEDY)
    for copy, plan in each_survey.copies:
        name = ".".join(map(Postgres.quote_name, copy.path))
        row = '"dpsql.unit", "dpsql.row"'
        more = f"INSERT INTO {name} ({row}) SELECT {row} + {{}} FROM {name} LIMIT 1"
        for step in (0, plan.rows_per_unit):
            with pytest.raises(Exception, match=r"(?i)constraint"):
                each_survey.run(more.format(step))
        for stored in plan.grids:
            for beyond in (stored.grid.lower - 1, stored.grid.upper + 1):
                with pytest.raises(Exception, match=r"(?i)check"):
                    each_survey.run(f'UPDATE {name} SET "{stored.name}" = {beyond}')


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("grouped", [True, False])
@given(
    rows=st.integers(1, 4),
    limits=st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(sorted),
    data=st.data(),
)
def test_the_rule_holds_for_any_rows(
    adjacency: Adjacency, grouped: bool, rows: int, limits: list[int], data: st.DataObject
) -> None:
    lower, upper = limits
    groups = rows if grouped else 1
    limit = row_sensitivity(adjacency, l0=groups, rows=rows, per_cell=rows, lower=lower, upper=upper, grouped=grouped)
    row = st.tuples(st.integers(0, 2 * groups if grouped else 0), st.integers(lower, upper))

    def unit() -> dict[int, int]:
        cells: dict[int, int] = {}
        for group, value in data.draw(st.lists(row, max_size=rows)):
            cells[group] = cells.get(group, 0) + value
        return cells

    one, other = unit(), unit() if adjacency is Adjacency.SUBSTITUTE else {}
    moved = [step for key in one.keys() | other.keys() if (step := abs(one.get(key, 0) - other.get(key, 0)))]
    assert len(moved) <= limit.l0
    assert max(moved, default=0) <= limit.linf
    assert sum(moved) <= limit.l1
    assert sum(step**2 for step in moved) <= limit.l2_squared
