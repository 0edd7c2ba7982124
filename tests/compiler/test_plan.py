"""Where a query is cut, what is made first, and what is told of the error of its columns."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.compiler.aggregates.release_leaf import origins
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Exists,
    Expr,
    Field,
    Filter,
    InRelation,
    Join,
    Project,
    Protected,
    Relation,
    Release,
    Scalar,
    Scan,
    SetOperation,
    SystemScan,
    UnitScan,
)
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease, cuts, made_first
from dpsql.errors import LimitExceeded, UnsupportedQuery
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner

AVERAGE = "SELECT AVG(cost) FROM visits"
ABOVE = f"SELECT COUNT(*) FROM visits WHERE cost > ({AVERAGE})"
TOP = "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3"
BY_ICD = "SELECT icd, COUNT(*) AS n FROM visits GROUP BY icd"


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


def inner(release: PlannedRelease) -> list[str]:
    """The keys of the releases that a release is made of."""
    return [needed.key for made in release.inputs for needed in made.releases]


# What is made first, through SQL


def test_a_released_value_is_made_first_and_read_as_a_table_of_one_text(planner: Planner) -> None:
    query = planner.compile(ABOVE)
    average, above = query.releases
    (made,) = above.inputs
    assert made.releases == (average,)
    assert (made.table, made.types, made.single, made.public_reads) == ("input.0", (SqlType.DOUBLE,), True, ())
    assert "FROM r0" in made.sql
    assert 'temp.main."input.0"' in above.sql
    assert "r0" not in above.sql
    assert average.inputs == ()
    assert average.sql == planner.compile(AVERAGE).releases[0].sql


@pytest.mark.parametrize(
    ("sql", "types", "single"),
    [
        (f"SELECT COUNT(*) FROM visits WHERE icd IN ({TOP})", [SqlType.TEXT], False),
        (f"SELECT COUNT(*) FROM visits WHERE icd NOT IN ({TOP})", [SqlType.TEXT], False),
        (f"SELECT COUNT(*) FILTER (WHERE cost > ({AVERAGE})) FROM visits", [SqlType.DOUBLE], True),
        (f"SELECT SUM(LEAST(GREATEST(cost - ({AVERAGE}), 0), 100)) FROM visits", [SqlType.DOUBLE], True),
        (f"SELECT cost > ({AVERAGE}), COUNT(*) FROM visits GROUP BY 1", [SqlType.DOUBLE], True),
        (
            f"SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM ({BY_ICD}) t WHERE t.icd = v.icd AND n > 9)",
            [SqlType.TEXT, SqlType.BIGINT],
            False,
        ),
    ],
)
def test_wherever_a_released_subquery_stands(planner: Planner, sql: str, types: list[SqlType], single: bool) -> None:
    _, outer = planner.compile(sql).releases
    (made,) = outer.inputs
    assert [list(made.types), made.single] == [types, single]


def test_what_is_made_first_stands_before_what_needs_it(planner: Planner) -> None:
    minutes = "SELECT AVG(duration_min) FROM visits"
    sql = f"SELECT COUNT(*) FROM visits WHERE cost > ({AVERAGE} WHERE duration_min > ({minutes}))"
    first, second, third = planner.compile(sql).releases
    assert (inner(first), inner(second), inner(third)) == ([], [first.key], [second.key])
    assert third.inputs[0].releases[0].inputs[0].releases == (first,)


def test_one_inner_release_serves_all_that_need_it(planner: Planner) -> None:
    sql = f"SELECT COUNT(*), AVG(duration_min) FROM visits WHERE cost > ({AVERAGE}) AND cost < 2 * ({AVERAGE})"
    average, outer = planner.compile(sql).releases
    assert [made.releases for made in outer.inputs] == [(average,)]
    assert "input.1" not in outer.sql
    total = "SELECT SUM(cost) AS s FROM visits"
    twice = f"SELECT COUNT(*) FROM patients WHERE age > (SELECT a.s - b.s FROM ({total}) a, ({total}) b)"
    assert [len(made.releases) for made in planner.compile(twice).releases[1].inputs] == [1]
    both = planner.compile(f"SELECT ({ABOVE}), ({ABOVE.replace('>', '<')}), ({AVERAGE})")
    assert [len(release.inputs) for release in both.releases] == [0, 1, 1]
    assert {key for release in both.releases for key in inner(release)} == {both.releases[0].key}


def test_a_table_that_also_stands_for_a_value_may_have_one_row(planner: Planner) -> None:
    n = "SELECT COUNT(*) AS n FROM patients"
    sql = (
        f"WITH t AS ({n}) SELECT COUNT(*) FROM visits WHERE cost > (SELECT n FROM t) AND doctor_id IN (SELECT n FROM t)"
    )
    assert [made.single for made in planner.compile(sql).releases[1].inputs] == [True]


def test_a_public_value_is_read_first_too(planner: Planner) -> None:
    """Whether it has several rows is seen before private rows are read."""
    query = planner.compile("SELECT COUNT(*) FROM patients WHERE age > (SELECT doctor_id FROM doctors)")
    ((made,),) = (release.inputs for release in query.releases)
    assert (made.single, made.releases, len(made.public_reads)) == (True, (), 1)
    assert "doctors" in made.public_reads[0].sql
    assert "doctors" not in query.releases[0].sql
    assert query.public_reads == ()
    assert query.reads(query.releases) == made.public_reads
    assert query.reads(()) == ()


def test_public_tables_are_read_where_they_stand(planner: Planner) -> None:
    query = planner.compile(
        "SELECT COUNT(*) FROM visits v JOIN doctors d ON d.doctor_id = v.doctor_id "
        "WHERE d.city IN (SELECT city FROM doctors)"
    )
    assert query.releases[0].inputs == ()
    assert query.public_reads == ()
    assert query.releases[0].sql.count('"doctors"') == 2


def test_released_and_public_rows_make_one_input(planner: Planner) -> None:
    sql = (
        f"SELECT COUNT(*) FROM visits WHERE icd IN (SELECT code FROM icd10 JOIN ({BY_ICD}) t ON t.icd = code "
        "WHERE n > (SELECT COUNT(*) FROM doctors))"
    )
    query = planner.compile(sql)
    (made,) = query.releases[1].inputs
    assert [read.table for read in made.public_reads] == ["q0", "q1"]
    assert made.releases == query.releases[:1]
    assert "icd10" not in query.releases[1].sql


def test_released_groups_are_listed(planner: Planner) -> None:
    """Rows of a released relation, kept by an outer join, are the groups there are; nobody knows how many."""
    sql = (
        f"WITH t AS ({BY_ICD}) SELECT t.n > 5, COUNT(v.visit_id) FROM t LEFT JOIN "
        "(SELECT icd, visited_on AS visit_id FROM visits) v ON v.icd = t.icd GROUP BY t.n > 5"
    )
    query = planner.compile(sql)
    outer = query.releases[-1]
    assert len(outer.inputs) == 1
    assert inner(outer) == [query.releases[0].key]


def test_the_price_is_that_of_one_query_and_all_releases_share_it(planner: Planner) -> None:
    alone, nested = planner.compile(AVERAGE), planner.compile(ABOVE)
    assert alone.price == nested.price
    costs = [Spent.zero().add([e for r in q.releases for e in r.events]).rho for q in (alone, nested)]
    assert costs[0] * Fraction(99, 100) < costs[1] <= costs[0] + Fraction(1, 10**20)


def test_compiling_is_pure(planner: Planner) -> None:
    for sql in (ABOVE, f"SELECT city, COUNT(*) FROM visits WHERE icd IN ({TOP}) GROUP BY city"):
        assert planner.compile(sql) == planner.compile(sql)


def test_releases_in_releases_are_planned(planner: Planner) -> None:
    """What is twice in a tree is not visited twice at each level: four thousand times here."""
    sql = AVERAGE
    for _ in range(12):
        sql = f"{AVERAGE} WHERE cost > ({sql})"
    assert len(planner.compile(sql).releases) == 13


def key(planner: Planner, sql: str) -> str:
    return planner.compile(sql).releases[-1].key


def test_the_key_names_everything_that_the_answer_depends_on(planner: Planner) -> None:
    same = key(planner, ABOVE)
    assert (
        key(planner, "SELECT count(*) AS n FROM visits AS v WHERE v.cost > (SELECT avg(w.cost) FROM visits w)") == same
    )
    others = [
        ABOVE.replace("AVG(cost)", "AVG(cost) + 1"),
        ABOVE.replace("AVG(cost)", "AVG(duration_min)"),
        ABOVE.replace(AVERAGE, f"{AVERAGE} WHERE city = 'Berlin'"),
        "SELECT COUNT(*) FROM visits WHERE cost > (SELECT SUM(doctor_id) FROM doctors)",
        "SELECT COUNT(*) FROM visits WHERE cost > (SELECT SUM(doctor_id + 1) FROM doctors)",
    ]
    assert len({same, *(key(planner, sql) for sql in others)}) == 1 + len(others)


def test_the_key_does_not_depend_on_where_the_release_stands(planner: Planner) -> None:
    one = planner.compile(f"SELECT ({ABOVE}), (SELECT COUNT(*) FROM patients)")
    other = planner.compile(f"SELECT (SELECT COUNT(*) FROM patients), ({ABOVE})")
    assert {release.key for release in one.releases} == {release.key for release in other.releases}


@pytest.mark.parametrize("relation", ["budget", "columns", "releases"])
def test_what_the_gateway_knows_does_not_enter_a_query_over_protected_tables(planner: Planner, relation: str) -> None:
    with pytest.raises(UnsupportedQuery) as caught:
        planner.compile(f"SELECT COUNT(*) FROM patients WHERE age > (SELECT COUNT(*) FROM dpsql.{relation})")
    assert caught.value.message == f"dpsql.{relation} cannot be used in a query over protected tables"
    # Beside a result it may stand.
    assert planner.compile(f"SELECT COUNT(*), (SELECT COUNT(*) FROM dpsql.{relation}) FROM patients").system_reads


# Public reads


def test_a_query_over_public_tables_alone_is_one_engine_query(planner: Planner) -> None:
    query = planner.compile(
        "SELECT city, (SELECT COUNT(*) FROM icd10) FROM doctors d "
        "WHERE doctor_id > (SELECT AVG(doctor_id) FROM doctors) "
        "AND EXISTS (SELECT 1 FROM doctors e WHERE e.city = d.city AND e.doctor_id < d.doctor_id)"
    )
    assert len(query.public_reads) == 1
    assert query.releases == ()
    assert query.price is None


def test_a_public_subquery_about_a_released_row_is_read_as_a_table(planner: Planner) -> None:
    query = planner.compile(
        "SELECT city, (SELECT COUNT(*) FROM doctors d WHERE d.city = t.city) "
        "FROM (SELECT city, COUNT(*) FROM patients GROUP BY city) t"
    )
    assert [read.sql.count("WHERE") for read in query.public_reads] == [0]


# The tree, by hand


def column(field: Field) -> Column:
    return Column(field)


@pytest.fixture
def tables(planner: Planner) -> tuple[UnitScan, Scan]:
    policy = planner.policy
    patients, doctors = policy.table("patients"), policy.table("doctors")
    assert patients is not None
    assert doctors is not None
    unit = UnitScan(patients, (), (), Field(1, SqlType.INTEGER))
    return unit, Scan(doctors, doctors.columns[:1], (Field(2, SqlType.INTEGER),))


def count(scan: Relation, number: int, condition: Expr | None = None) -> Release:
    """A release of COUNT(*)."""
    relation: Relation = scan if condition is None else Filter(scan, condition)
    call = AggregateCall("count", None, False, None, SqlType.BIGINT)
    aggregate = Aggregate(relation, (), (), (Field(number, SqlType.BIGINT),), (call,))
    status = Protected(relation, Field(1, SqlType.INTEGER), 1, 1, 1, True)
    return Release(status, aggregate, ((Field(number + 1, SqlType.DOUBLE), Field(number + 2, SqlType.DOUBLE)),))


def equal(left: Field, right: Field) -> Call:
    return Call("eq", (Column(left), Column(right)), SqlType.BOOLEAN)


def test_rows_of_protected_tables_are_not_read_outside_a_release(tables: tuple[UnitScan, Scan]) -> None:
    unit, doctors = tables
    for relation in (
        unit,
        Join("cross", doctors, unit, None),
        Filter(doctors, Exists(unit)),
        Project(
            doctors, (Field(9, SqlType.BOOLEAN),), (Exists(Filter(unit, equal(unit.unit_field, doctors.fields[0]))),)
        ),
    ):
        with pytest.raises(TypeError, match="protected"):
            cuts(relation)


def test_a_release_for_each_row_is_refused(tables: tuple[UnitScan, Scan]) -> None:
    unit, doctors = tables
    release = count(unit, 20, equal(unit.unit_field, doctors.fields[0]))
    post = Project(doctors, (Field(9, SqlType.BIGINT),), (Scalar(release, SqlType.BIGINT),))
    with pytest.raises(UnsupportedQuery, match="must not refer to a row outside its subquery") as caught:
        cuts(post)
    assert caught.value.hint
    outer = count(
        unit,
        30,
        InRelation(Column(unit.unit_field), count(unit, 20, equal(unit.unit_field, Field(7, SqlType.INTEGER)))),
    )
    with pytest.raises(UnsupportedQuery, match="must not refer to a row outside its subquery"):
        made_first(outer.aggregate, None)


def test_what_refers_to_the_row_outside_is_cut_below(tables: tuple[UnitScan, Scan]) -> None:
    unit, doctors = tables
    release = count(unit, 20)
    about = Filter(release, equal(release.fields[0], unit.unit_field))
    closed = Filter(release, equal(release.fields[0], release.fields[0]))
    assert made_first(count(unit, 30, Exists(about)).aggregate, None) == {release: False}
    assert made_first(count(unit, 30, Exists(closed)).aggregate, None) == {closed: False}
    assert (
        made_first(count(unit, 30, Exists(Filter(doctors, equal(doctors.fields[0], unit.unit_field)))).aggregate, None)
        == {}
    )
    assert cuts(
        Project(
            release,
            (Field(9, SqlType.BOOLEAN),),
            (Exists(Filter(doctors, equal(doctors.fields[0], release.fields[0]))),),
        )
    ) == (release, doctors)
    assert cuts(Project(release, (Field(9, SqlType.BOOLEAN),), (Exists(doctors),))) == (release, doctors)


def test_groups_that_are_listed_read_what_the_rows_read(tables: tuple[UnitScan, Scan]) -> None:
    unit, doctors = tables
    release, other = count(unit, 20), count(unit, 40)
    rows = Filter(release, equal(release.fields[0], release.fields[0]))
    aggregate = count(Join("cross", unit, rows, None), 30).aggregate
    listed = Project(rows, (Field(9, SqlType.BIGINT),), (Column(release.fields[0]),))
    assert made_first(aggregate, listed) == {rows: False}
    assert made_first(aggregate, Join("cross", listed, other, None)) == {rows: False, other: False}
    assert made_first(aggregate, doctors) == {rows: False}


def test_what_the_gateway_knows_is_found_however_deep(tables: tuple[UnitScan, Scan]) -> None:
    unit, _ = tables
    release = count(unit, 20)
    system = SystemScan("budget", (Field(50, SqlType.TEXT),))
    with pytest.raises(UnsupportedQuery, match=r"dpsql\.budget"):
        made_first(count(unit, 30, Exists(Join("cross", release, system, None))).aggregate, None)


# The error of a column


def errors(query: CompiledQuery) -> list[bool]:
    return [column.error is not None for column in query.columns]


COUNTS = "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex"
MEANS = "SELECT DISTINCT a FROM (SELECT sex, AVG(age) AS a FROM patients GROUP BY sex) t"
VISITS = "SELECT COUNT(*) AS n FROM visits"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (f"WITH t AS ({COUNTS}) SELECT a.n, b.n + 1 FROM t AS a JOIN t AS b ON a.sex = b.sex", [True, False]),
        (f"WITH t AS ({COUNTS}) SELECT a.n, b.n FROM t AS a LEFT JOIN t AS b ON a.sex = b.sex", [True, True]),
        (f"SELECT t.n, d.doctor_id FROM ({COUNTS}) t, doctors d", [True, False]),
        (f"SELECT DISTINCT n FROM ({COUNTS}) t", [True]),
        (f"{VISITS} UNION ALL SELECT COUNT(*) FROM patients", [True]),
        (f"{VISITS} UNION SELECT COUNT(*) FROM patients", [True]),
        (f"{VISITS} UNION ALL SELECT 5", [False]),
        (f"{VISITS} EXCEPT SELECT COUNT(*) FROM patients", [False]),
        ("SELECT sex, COUNT(*), AVG(age) FROM patients GROUP BY ROLLUP (sex)", [False, True, True]),
        (f"SELECT ({VISITS}), COUNT(*) FROM patients", [True, True]),
        (f"SELECT SUM(n) FROM ({COUNTS}) t", [False]),
        (f"SELECT n FROM ({COUNTS}) t WHERE n > 5 ORDER BY n LIMIT 2", [True]),
    ],
)
def test_the_error_is_told_of_what_is_handed_on_as_it_is(planner: Planner, sql: str, told: list[bool]) -> None:
    assert errors(planner.compile(sql)) == told


def test_of_a_union_the_least_exact_arm_is_told(planner: Planner) -> None:
    (own,) = planner.compile(f"{VISITS} UNION ALL SELECT COUNT(*) FROM patients").columns
    wide, narrow = planner.compile(f"SELECT ({VISITS}), COUNT(*) FROM patients").columns
    assert own.error is not None
    assert wide.error is not None
    assert narrow.error is not None
    assert own.error.plus_minus_95 == wide.error.plus_minus_95 > narrow.error.plus_minus_95  # type: ignore[operator]
    (mixed,) = planner.compile("SELECT AVG(cost) FROM visits UNION ALL SELECT AVG(age) FROM patients").columns
    assert mixed.error is not None
    assert mixed.error.plus_minus_95 is None


@pytest.mark.parametrize(
    ("sql", "limits"),
    [
        (f"WITH t AS ({COUNTS}) SELECT a.n, b.n AS m FROM t AS a JOIN t AS b ON a.sex = b.sex", 4),
        (f"SELECT DISTINCT n FROM ({COUNTS}) t", 2),
        (MEANS, 0),
        (f"SELECT DISTINCT n FROM ({VISITS} UNION ALL SELECT COUNT(*) FROM patients) t", 0),
        (f"{VISITS} UNION ALL SELECT COUNT(*) FROM patients", 2),
        (f"{VISITS} UNION ALL SELECT COUNT(*) FROM patients UNION ALL SELECT COUNT(*) FROM prescriptions", 2),
        (f"{VISITS} UNION SELECT COUNT(*) FROM patients", 0),
        (f"{VISITS} UNION ALL SELECT 5", 0),
        (f"SELECT 5 UNION ALL {VISITS}", 0),
        (f"SELECT n FROM (SELECT DISTINCT n, n + 1 AS m FROM ({COUNTS}) t) u, doctors", 2),
        (f"SELECT a FROM doctors, ({MEANS}) u", 0),
        (f"SELECT a FROM ({MEANS}) u, doctors", 0),
        ("SELECT sex, COUNT(*), AVG(age) FROM patients GROUP BY ROLLUP (sex) ORDER BY 2 LIMIT 2", 4),
        (f"SELECT ({VISITS}), COUNT(*) FROM patients", 4),
        (f"SELECT n FROM ({COUNTS}) t WHERE n > ({VISITS}) ORDER BY n LIMIT 2", 2),
    ],
)
def test_limits_stand_beside_what_is_handed_on_as_it_is(planner: Planner, sql: str, limits: int) -> None:
    query = planner.compile(sql, intervals="on")
    assert len(query.columns) - len(planner.compile(sql).columns) == limits


def test_a_field_of_the_row_outside_has_no_origin(tables: tuple[UnitScan, Scan]) -> None:
    unit, _ = tables
    release, other = count(unit, 20), count(unit, 40)
    lateral = Project(other, (Field(9, SqlType.BIGINT),), (Column(release.fields[0]),))
    assert origins(lateral, Field(9, SqlType.BIGINT)) == ()
    joined = Join("cross", release, lateral, None)
    assert [origin.field for origin in origins(joined, release.fields[0])] == [release.fields[0]]
    assert origins(joined, Field(9, SqlType.BIGINT)) == ()
    assert origins(SetOperation("intersect", False, release, other, release.fields), release.fields[0]) == ()
    assert origins(replace(release), release.limits[0][0]) == ()


def test_a_query_that_is_too_long_once_it_is_written_out_is_refused(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT COUNT(*) FROM patients WHERE age + age + age + age + age > 3"
    assert planner.compile(sql).releases
    monkeypatch.setattr("dpsql.compiler.dialects.render.MAX_CALLS", 3)
    with pytest.raises(LimitExceeded, match="after expansion"):
        planner.compile(sql)


@pytest.mark.parametrize("call", ["MEDIAN(age)", "PERCENTILE_DISC(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY age)"])
def test_the_error_of_a_quantile_is_told_in_ranks(planner: Planner, call: str) -> None:
    (column,) = planner.compile(f"SELECT {call} FROM patients").columns
    assert column.error is not None
    assert " ranks at 95 %, exponential mechanism, " in column.error.explained


def test_the_error_of_a_variance_is_told_by_its_noise(planner: Planner) -> None:
    (column,) = planner.compile("SELECT VARIANCE(age) FROM patients").columns
    assert column.error is not None and column.error.plus_minus_95 is None
    assert "noise on centred sums and a count" in column.error.explained


def test_case_without_else_does_not_show_rows_without_a_match(planner: Planner) -> None:
    counted = (
        "SELECT code, COUNT(CASE WHEN cost > 5 THEN cost {}END) FROM icd10 LEFT JOIN visits ON icd = code GROUP BY 1"
    )
    assert planner.compile(counted.format("")).releases
    with pytest.raises(UnsupportedQuery, match="which public rows have no match"):
        planner.compile(counted.format("ELSE 0 "))
