"""Bounded copies: what is in them, when they are read, and that a plan which relies on them is checked."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import Cancellation, DuckDBBackend, open_backend, prepare_tables
from dpsql.backends.duckdb_prepared import STALE, write_prepared
from dpsql.compiler.bounding.prepared_tables import plan_prepared
from dpsql.compiler.bounding.steps import DistinctTotal, Plain, Prepared, Rows, RowSum
from dpsql.compiler.ir.nodes import Column, Distinct, Join, Relation, UnitScan
from dpsql.compiler.ir.schema import EngineSchema, PreparedTable
from dpsql.compiler.ir.walk import nodes
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease
from dpsql.compiler.plan.tree_bounds import Tree
from dpsql.compiler.plan.verify import verify
from dpsql.errors import DatabaseUnavailable, Error, GuaranteeMismatch, InvalidParameter, InvalidPolicy
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import open_ledger
from dpsql.policy import load_policy
from tests.compiler.plans import Planner
from tests.compiler.trees import beneath, having, on_relation, planted
from tests.strategies.distance import assert_same
from tests.strategies.world import SETTINGS, open_survey
from tests.test_neighbours import CASES, CROWD

TOTAL = "SELECT COUNT(*), SUM(cost), AVG(cost), COUNT(DISTINCT patient_id) FROM visits"
GROUPED = "SELECT city, COUNT(*), AVG(cost) FROM visits GROUP BY city"
AVERAGE = "SELECT COUNT(*), AVG(cost) FROM visits"


@pytest.fixture(scope="module")
def prepared(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy of a clinic of its own, with copies."""
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copy(clinic_policy.with_name("clinic.duckdb"), folder)
    policy = Path(shutil.copy(clinic_policy, folder))
    prepare_tables(load_policy(policy))
    return policy


@pytest.fixture(scope="module")
def planner(prepared: Path) -> Planner:
    return Planner(load_policy(prepared))


@pytest.fixture
def own(prepared: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    for file in prepared.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / prepared.name


@pytest.fixture
def limited(own: Path) -> Planner:
    """The clinic with so few rows of a unit in a group that fewer count than a copy has in it."""
    return Planner(load_policy(changed(own, "max_groups = 10", "max_rows_per_group = 5\nmax_groups = 10")))


def prepared_of(policy: Path) -> dict[str, PreparedTable | str]:
    with closing(open_backend(load_policy(policy))) as backend:
        return dict(backend.schema.copies)


def changed(policy: Path, before: str, after: str) -> Path:
    text = policy.read_text(encoding="utf-8")
    assert before in text
    policy.write_text(text.replace(before, after), encoding="utf-8")
    return policy


def only(query: CompiledQuery) -> PlannedRelease:
    (release,) = query.releases
    return release


# What is in them


def test_a_copy_has_the_rows_of_each_unit_up_to_the_bound(own: Path) -> None:
    where, rows = prepare_tables(load_policy(changed(own, "max_rows = 50", "max_rows = 7")))
    assert Path(where).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in own.parent.iterdir()) == [
        *("clinic.duckdb", "clinic.duckdb.clinic.prepared", "clinic.toml")
    ]
    assert set(rows) == {"visits", "prescriptions"}
    with duckdb.connect(str(own.with_name("clinic.duckdb")), read_only=True) as database:
        database.execute(f"ATTACH '{where}' AS made (READ_ONLY)")
        counted = "SELECT {unit}, least(count(*), 7) FROM {table} WHERE {unit} IS NOT NULL GROUP BY 1 ORDER BY 1"
        kept = 'SELECT "dpsql.unit", count(*) FROM made.visits GROUP BY 1 ORDER BY 1'
        whole = database.execute(counted.format(unit="patient_id", table="visits")).fetchall()
        assert database.execute(kept).fetchall() == whole
        assert max(count for _, count in whole) == 7
        turns = database.execute('SELECT "dpsql.row", "dpsql.unit" FROM made.visits').fetchall()
        assert turns == sorted(turns)


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
def test_both_forms_count_the_same_where_nothing_is_cut(tmp_path: Path, adjacency: str) -> None:
    survey = open_survey(tmp_path, adjacency, most=400, prepared=True)
    survey.fill(CROWD.tables())
    compared = on_grid = 0
    for sql in CASES:
        from_copy = only(survey.compile(sql, replace(SETTINGS, max_error_ratio=Fraction(1000))))
        if not from_copy.contribution.copied:
            continue
        plain = only(survey.compile(sql, replace(SETTINGS, max_error_ratio=Fraction(0))))
        assert not plain.contribution.copied and plain.key != from_copy.key
        mine, theirs = survey.fetch([from_copy, plain])
        if not plain.private_keys:
            theirs = replace(theirs, units=mine.units)  # of public groups, nobody asks
        assert_same(mine, theirs)
        compared += 1
        on_grid += "dpsql.grid" in from_copy.sql
    assert compared >= 30 and on_grid >= 12
    survey.close()


def test_a_copy_has_bounded_values_on_their_grid(own: Path) -> None:
    where, _ = prepare_tables(load_policy(changed(own, "lower = 0, upper = 480", "lower = -60, upper = 30")))
    with duckdb.connect(where, read_only=True) as database:
        found = database.execute(
            'SELECT count(*) FROM visits WHERE "dpsql.grid.0" IS NOT DISTINCT FROM '
            "CASE WHEN cost IS NOT NULL THEN CAST(least(cost, 5000) * 100 AS INTEGER) END "
            'AND "dpsql.grid.1" IS NOT DISTINCT FROM CASE WHEN duration_min > 30 THEN 30 ELSE duration_min END'
        ).fetchone()
        assert found == database.execute("SELECT count(*) FROM visits").fetchone() != (0,)
        assert database.execute('SELECT min("dpsql.grid.1"), max("dpsql.grid.1") FROM visits').fetchall() == [(-10, 30)]


def test_values_of_too_many_digits_are_not_put_on_a_grid(own: Path) -> None:
    policy = load_policy(changed(own, "upper = 5000, step = 0.01", "upper = 5000, step = 0.0000000001"))
    with closing(open_backend(policy)) as backend:
        (visits,) = (plan for plan in plan_prepared(policy, backend.schema) if plan.table == "visits")
    assert [stored.column for stored in visits.grids] == ["duration_min"]


# When they are read


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT SUM(cost), AVG(duration_min) FROM visits", {0, 1}),
        ("SELECT icd, AVG(cost) FROM visits WHERE city IS NOT NULL GROUP BY icd", {0}),
        ("SELECT SUM(cost) FILTER (WHERE duration_min > 10), AVG(cost) FROM visits", {0}),
        ("SELECT SUM(paid), COUNT(paid) FROM (SELECT icd, cost AS paid FROM visits) v WHERE icd LIKE 'J%'", {0}),
        ("SELECT SUM(cost) FROM visits CROSS JOIN (SELECT COUNT(*) AS n FROM icd10) t WHERE n > 3", {0}),
        ("SELECT VAR_POP(duration_min), CORR(cost, duration_min) FROM visits", {0, 1}),
        ("SELECT AVG(cost) FROM visits WHERE cost > 10", set()),
        ("SELECT AVG(cost) FILTER (WHERE cost < 10), SUM(cost) FROM visits", {0}),
        ("SELECT SUM(CASE WHEN city = 'Bath' THEN cost ELSE 0 END), SUM(cost + 1) FROM visits", set()),
        ("SELECT SUM(LEAST(duration_min, 60)), COUNT(cost) FROM visits", set()),
    ],
)  # fmt: skip
def test_values_are_read_where_their_grid_is_that_of_the_noise(planner: Planner, sql: str, names: set[int]) -> None:
    release = only(planner.compile(sql, max_error_ratio="1000"))
    assert release.contribution.copied
    assert {int(name) for name in re.findall(r'"dpsql\.grid\.(\d+)"', release.sql)} == names
    assert ("on their grid" in (release.form or "")) == bool(names)


def test_a_copy_is_read_where_it_makes_nothing_less_exact(limited: Planner) -> None:
    total, grouped = only(limited.compile(TOTAL)), only(limited.compile(GROUPED))
    assert total.contribution.copied
    assert (
        total.form == 'from the prepared table of "visits", with the values of "cost" on their grid: '
        "the error is 1 times that of the table, and max_error_ratio is 1; sums lack the rows that the prepared "
        "table drops"
    )
    assert not grouped.contribution.copied
    assert (
        grouped.form == "not from a prepared table: the error is 3.16 times that of the table, and max_error_ratio is 1"
    )


def test_the_analyst_says_how_much_less_exact_it_may_be(limited: Planner) -> None:
    assert only(limited.compile(GROUPED, max_error_ratio="3.2")).contribution.copied
    assert not only(limited.compile(GROUPED, max_error_ratio="3.1")).contribution.copied
    assert not only(limited.compile(TOTAL, max_error_ratio="0")).contribution.copied
    for value in ("-1", "1001", "x"):
        with pytest.raises(InvalidParameter):
            limited.settings(max_error_ratio=value)


def test_the_policy_says_so_for_those_who_do_not(own: Path) -> None:
    planner = Planner(load_policy(changed(own, "[dataset]", "[dataset]\nmax_error_ratio = 3.5")))
    assert only(planner.compile(GROUPED)).contribution.copied
    with pytest.raises(InvalidPolicy, match="not between 0 and 1000"):
        load_policy(changed(own, "max_error_ratio = 3.5", "max_error_ratio = -1"))


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT COUNT(*) FROM visits v JOIN icd10 i ON i.title <> v.icd", "number of rows"),
        ("SELECT COUNT(*) FROM visits a JOIN visits b ON a.patient_id = b.patient_id", "in several places"),
        ("SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(v.cost) FROM visits v WHERE v.patient_id = "
         "visits.patient_id)", "in several places"),
        ("SELECT icd, COUNT(*) FROM (SELECT DISTINCT patient_id, icd FROM visits) t GROUP BY icd", "number of rows"),
        ("SELECT COUNT(DISTINCT doctor_id) FROM visits", "per unit"),
        ("SELECT MEDIAN(cost) FROM visits", "per unit"),
    ],
)  # fmt: skip
def test_what_voids_a_copy(planner: Planner, sql: str, why: str) -> None:
    release = only(planner.compile(sql, max_error_ratio="1000"))
    assert not release.contribution.copied
    assert release.form is not None and why in release.form


def test_bounds_that_are_set_void_a_copy(planner: Planner) -> None:
    for bound in ("max_rows", "max_groups", "max_rows_per_group"):
        release = only(planner.compile(TOTAL, **{bound: "2"}))
        assert not release.contribution.copied and "narrower" in (release.form or "")


def test_more_digits_than_a_sum_has_void_a_copy(limited: Planner) -> None:
    wide = "SELECT city, SUM(LEAST(GREATEST(duration_min, 0), 100000000000000)) FROM visits GROUP BY city"
    release = only(limited.compile(wide, max_error_ratio="1000"))
    assert not release.contribution.copied and "digits" in (release.form or "")


def test_other_cells_void_a_copy(own: Path) -> None:
    text = "max_groups = 10"
    planner = Planner(load_policy(changed(own, text, f"max_rows_per_group = 1\n{text}")))
    # With one row of a unit in a group, rows and units are one cell, and two in the copy.
    release = only(planner.compile("SELECT city, COUNT(*), COUNT(DISTINCT patient_id) FROM visits GROUP BY city"))
    assert not release.contribution.copied and "other primitives" in (release.form or "")


@pytest.fixture
def titled(own: Path) -> Path:
    """The same, with a public table that has one title a code."""
    with duckdb.connect(str(own.with_name("clinic.duckdb"))) as database:
        database.execute("CREATE TABLE titles (code VARCHAR PRIMARY KEY, title VARCHAR)")
        database.execute("INSERT INTO titles SELECT * FROM icd10")
    policy = changed(own, "[tables.icd10", "[tables.titles").read_text(encoding="utf-8")
    own.write_text(policy.replace('"icd10', '"titles'), encoding="utf-8")
    prepare_tables(load_policy(own))
    return own


def test_a_join_that_finds_one_row_at_most_keeps_a_copy(titled: Path) -> None:
    planner = Planner(load_policy(titled))
    for sql in (
        "SELECT COUNT(*) FROM visits v JOIN titles t ON t.code = v.icd",
        "SELECT COUNT(title) FROM visits v LEFT JOIN titles t ON t.code = v.icd",
        "SELECT COUNT(v.cost) FROM titles t RIGHT JOIN visits v ON t.code = v.icd",
        "SELECT COUNT(*) FROM visits CROSS JOIN (SELECT COUNT(*) AS n FROM titles) t WHERE n > 3",
    ):
        assert only(planner.compile(sql)).contribution.copied, sql
    assert not only(
        planner.compile("SELECT COUNT(*) FROM visits v JOIN titles t ON t.title = v.icd")
    ).contribution.copied


def test_values_on_their_grid_are_handed_on(titled: Path) -> None:
    planner = Planner(load_policy(titled))
    by_title = "SELECT title, SUM(cost) FROM titles t LEFT JOIN {} v ON t.code = v.icd {} GROUP BY title"
    releases = [
        only(planner.compile(sql, max_error_ratio="1000"))
        for sql in (
            by_title.format("visits", ""),
            # The condition on the right has columns of its own made there.
            by_title.format("(SELECT icd, cost, cost + 1 AS more FROM visits)", "AND more IS NOT NULL"),
        )
    ]
    assert all('"dpsql.grid.0"' in release.sql for release in releases)
    with closing(open_backend(load_policy(titled))) as backend:
        backend.check(tuple(releases), (), Cancellation())
        found = backend.fetch(dict(enumerate(releases)), (), Cancellation()).releases
    named, written = ([int(cell) for cell in found[index].cells[0]] for index in range(len(releases)))
    assert any(named) and named == written


# When they are not


@pytest.mark.parametrize(
    ("before", "after", "stale"),
    [
        ('data_version = "2026-11"', 'data_version = "2026-12"', {"visits", "prescriptions"}),
        ("max_rows = 50", "max_rows = 49", {"visits"}),
        ("upper = 5000, step = 0.01", "upper = 4999, step = 0.01", {"visits"}),
        ("upper = 5000, step = 0.01", "upper = 5000, step = 0.1", {"visits"}),
        ("max_groups = 10", "max_groups = 9", set()),
        ('description = "One row per patient"', 'description = "People"', set()),
    ],
)
def test_a_copy_of_other_data_is_stale(own: Path, before: str, after: str, stale: set[str]) -> None:
    found = prepared_of(changed(own, before, after))
    assert {table for table, copy in found.items() if copy == STALE} == stale
    release = only(Planner(load_policy(own)).compile(TOTAL))
    assert release.contribution.copied == (not stale)
    assert (release.form == f"not from a prepared table: {STALE}") == bool(stale)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE OR REPLACE TABLE visits AS FROM visits",
        "CREATE TABLE v AS FROM visits; DROP TABLE visits; CREATE TABLE visits ({columns}); INSERT INTO visits FROM v",
        "DELETE FROM about.copies",
        "DROP SCHEMA about CASCADE",
        "DROP TABLE visits",
    ],
)
def test_a_copy_that_was_changed_is_stale(own: Path, change: str) -> None:
    policy = load_policy(own)
    with closing(open_backend(policy)) as backend:
        (visits,) = (plan for plan in plan_prepared(policy, backend.schema) if plan.table == "visits")
    without_a_limit = visits.columns.replace(', CHECK ("dpsql.grid.0" BETWEEN 0 AND 500000)', "")
    assert without_a_limit != visits.columns
    with duckdb.connect(str(own.with_name("clinic.duckdb.clinic.prepared"))) as database:
        database.execute(change.format(columns=without_a_limit))
    assert prepared_of(own)["visits"] == STALE


def test_what_is_no_copy_is_stale(own: Path) -> None:
    own.with_name("clinic.duckdb.clinic.prepared").write_text("not a database")
    assert set(prepared_of(own).values()) == {STALE}


def test_a_policy_that_is_served_beside_another_has_its_own_copies(own: Path) -> None:
    other = own.with_name("other.toml")
    other.write_text(own.read_text(encoding="utf-8").replace('name = "clinic"', 'name = "other/one"'), encoding="utf-8")
    assert prepared_of(other) == {}
    where, _ = prepare_tables(load_policy(other))
    assert where.endswith("clinic.duckdb.other%2Fone.prepared")
    with closing(open_backend(load_policy(own))) as first, closing(open_backend(load_policy(other))) as second:
        for backend, name in ((first, "clinic"), (second, "other/one")):
            copy = backend.schema.copies["visits"]
            assert isinstance(copy, PreparedTable)
            assert copy.path[0] == f"dpsql.prepared.{name}"


def test_where_each_unit_has_one_row_there_is_nothing_to_prepare(tmp_path: Path, own: Path) -> None:
    text = own.read_text(encoding="utf-8")
    tables = re.split(r"(?m)^(?=\[tables\.)", text)
    kept = [part for part in tables if not part.startswith("[tables.") or "patients" in part.splitlines()[0]]
    own.write_text(re.sub(r"(?m)^tables = .*\n", "", "".join(kept)), encoding="utf-8")
    own.with_name("clinic.duckdb.clinic.prepared").unlink()
    assert prepare_tables(load_policy(own))[1] == {}
    assert prepared_of(own) == {}


def test_copies_that_cannot_be_made_leave_the_old_ones(own: Path) -> None:
    before = own.with_name("clinic.duckdb.clinic.prepared").read_bytes()
    policy = load_policy(own)
    with closing(open_backend(policy)) as backend:
        plans = plan_prepared(policy, backend.schema)
    failing = replace(plans[0], rows="SELECT 1/0 FROM nowhere")
    with pytest.raises(DatabaseUnavailable, match="the old ones are unchanged"):
        write_prepared(policy.dataset.url.partition("://")[2], policy, (failing,))
    assert own.with_name("clinic.duckdb.clinic.prepared").read_bytes() == before
    assert len(list(own.parent.iterdir())) == 3


def test_the_database_and_its_copies_are_read_and_nothing_else(own: Path) -> None:
    with closing(open_backend(load_policy(own))) as backend:
        assert isinstance(backend, DuckDBBackend)
        cursor = backend._database.cursor()
        for sql in (
            "FROM read_text('/etc/hostname')",
            f"ATTACH '{own.parent}/other.duckdb'",
            'DELETE FROM "dpsql.prepared.clinic".main.visits',
            "SET enable_external_access = true",
            "COPY (SELECT 1) TO '/tmp/leak.csv'",
        ):
            with pytest.raises(duckdb.Error):
                cursor.execute(sql)
        cursor.close()


# That a plan is checked


def tampered(planner: Planner, change: Callable[[PlannedRelease], PlannedRelease], schema: EngineSchema | None) -> None:
    compiled = planner.compile(GROUPED, max_error_ratio="1000")
    assert only(compiled).contribution.copied
    catalog = planner.catalog if schema is None else replace(planner.catalog, schema=schema)
    query = replace(compiled, releases=(change(only(compiled)),))
    verify(query, catalog)


def contributing(**changes: object) -> Callable[[PlannedRelease], PlannedRelease]:
    return lambda release: replace(release, contribution=replace(release.contribution, **changes))  # type: ignore[arg-type]


def from_the_table(release: PlannedRelease) -> PlannedRelease:
    """A plan in which nothing stands in the table's place."""
    return replace(release, query=replace(release.query, tree=replace(release.query.tree, leaves=())))


def crossed(other: Relation) -> Callable[[PlannedRelease], PlannedRelease]:
    """A plan that reads other rows beside its own."""
    return on_relation(lambda relation: Join("cross", relation, other, None))


def twice(rows: Relation) -> Relation:
    return Join("inner", rows, rows, None)


def rows_of(release: PlannedRelease) -> Relation:
    totals = release.query.tree.totals
    assert totals is not None
    return beneath(totals)


def understated(release: PlannedRelease) -> PlannedRelease:
    """Noise for five rows in each of ten groups."""
    (count, *others) = release.primitives
    sensitivity = replace(count.noise.sensitivity, l2_squared=10 * 5**2)
    return replace(release, primitives=(replace(count, noise=replace(count.noise, sensitivity=sensitivity)), *others))


def of_one_row(release: PlannedRelease) -> PlannedRelease:
    """A sum of all rows that is noised for one."""
    total = next(primitive for primitive in release.primitives if primitive.primitive.grid is not None)
    others = tuple(primitive for primitive in release.primitives if primitive is not total)
    return replace(release, primitives=(*others, replace(total, primitive=replace(total.primitive, cap=1))))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (contributing(copied=False), "where the plan reads the table itself"),
        (from_the_table, r"also reads unbounded rows|the same field"),
        (on_relation(twice), r"also reads unbounded rows|the same field"),
        (on_relation(Distinct), "on another grid"),
        (having(Rows, one_row=True), "a unit can have several rows"),
        (contributing(rows_per_group=49), "change a cell by more"),
        (contributing(rows_per_group=51), "a smaller sensitivity than one unit can cause"),
        (of_one_row, "change a cell by more"),
        (understated, "a smaller sensitivity than one unit can cause"),
    ],
)
def test_a_plan_that_was_tampered_with_is_not_run(
    planner: Planner, change: Callable[[PlannedRelease], PlannedRelease], why: str
) -> None:
    tampered(planner, lambda release: release, None)
    with pytest.raises(GuaranteeMismatch, match=why):
        tampered(planner, change, None)


def test_a_key_of_the_table_holds_for_the_table_alone(planner: Planner) -> None:
    """Were a patient to have one visit, its rows in the table would be in one city, and those in a copy need not."""
    visits = planner.catalog.schema.tables["visits"]
    columns = dict(visits.columns) | {"patient_id": replace(visits.columns["patient_id"], not_null=True)}
    unique = replace(visits, columns=columns, unique_keys=frozenset({frozenset({"patient_id"})}))
    schema = replace(planner.catalog.schema, tables=dict(planner.catalog.schema.tables) | {"visits": unique})
    catalog = replace(planner.catalog, schema=schema)
    release = only(planner.compile(GROUPED, max_error_ratio="1000"))
    of_copy, of_table = release.query.tree, from_the_table(release).query.tree
    for tree, groups in ((of_copy, 50), (of_table, 1)):
        assert tree.totals is not None
        assert Tree(tree, catalog, None).groups(tree.totals.source) == groups


def test_a_copy_is_read_alone(planner: Planner) -> None:
    for sql in ("SELECT COUNT(*) FROM patients", "SELECT COUNT(*) FROM visits"):
        other = only(planner.compile(sql, max_rows="7")).query.tree.totals
        assert other is not None
        protected = next(node for node in nodes(beneath(other)) if isinstance(node, UnitScan))
        with pytest.raises(GuaranteeMismatch, match=r"rows of different units would be joined|the same field"):
            tampered(planner, crossed(protected), None)


def test_a_plan_over_a_copy_that_is_stale_is_not_run(planner: Planner) -> None:
    schema = replace(planner.catalog.schema, copies={"visits": STALE})
    with pytest.raises(GuaranteeMismatch, match="unknown table"):
        tampered(planner, lambda release: release, schema)


@pytest.mark.parametrize("ends", [(0, 500_001), (-1, 500_000), (1, 500_000)])
def test_values_on_another_grid_are_not_added_up(planner: Planner, ends: tuple[int, int]) -> None:
    copy = planner.catalog.schema.copies["visits"]
    assert isinstance(copy, PreparedTable)
    cost, minutes = copy.grids
    other = replace(cost, grid=replace(cost.grid, lower=ends[0], upper=ends[1]))
    schema = replace(planner.catalog.schema, copies={"visits": replace(copy, grids=(other, minutes))})
    with pytest.raises(GuaranteeMismatch, match="on another grid"):
        tampered(planner, lambda release: release, schema)


def test_a_value_that_is_not_on_its_grid_in_the_copy_is_not_added_up(planner: Planner) -> None:
    def of_another_column(value: Prepared) -> Prepared:
        (scan,) = [node for node in nodes(rows) if isinstance(node, UnitScan)]
        return replace(
            value, field=next(f for c, f in zip(scan.columns, scan.fields, strict=False) if c.name == "cost")
        )

    rows = rows_of(only(planner.compile(GROUPED, max_error_ratio="1000")))
    with pytest.raises(GuaranteeMismatch, match="on another grid"):
        tampered(planner, planted(Prepared, of_another_column), None)
    with pytest.raises(GuaranteeMismatch, match="not clamped"):
        tampered(planner, planted(Prepared, lambda value: Plain(Column(value.field))), None)


def test_ranks_and_distinct_values_are_not_read_from_copies(planner: Planner) -> None:
    ranked = only(planner.compile("SELECT city, MEDIAN(cost) FROM visits GROUP BY city"))
    (primitive,) = ranked.primitives

    def with_rank(release: PlannedRelease) -> PlannedRelease:
        capped = replace(primitive, primitive=replace(primitive.primitive, cap=release.contribution.rows_per_group))
        return replace(release, primitives=(*release.primitives, capped))

    with pytest.raises(GuaranteeMismatch, match="differ from those that get noise"):
        tampered(planner, with_rank, None)

    totals = only(planner.compile(GROUPED, max_error_ratio="1000")).query.tree.totals
    assert totals is not None
    rows = totals.source
    assert isinstance(rows, Rows)

    def with_distinct(cell: RowSum) -> DistinctTotal:
        return DistinctTotal(rows, cell.sum.value, cell.sum.condition, total=cell.sum.value, centre=cell.centre)

    with pytest.raises(GuaranteeMismatch, match="distinct values of one unit"):
        tampered(planner, planted(RowSum, with_distinct), None)


def test_a_copy_is_never_read_without_noise(planner: Planner) -> None:
    compiled = planner.compile("SELECT title FROM icd10")
    (read,) = compiled.public_reads
    leak = replace(read, relation=rows_of(only(planner.compile(GROUPED, max_error_ratio="1000"))))
    with pytest.raises(GuaranteeMismatch, match="without noise"):
        verify(replace(compiled, public_reads=(leak,)), planner.catalog)


# What users see


@pytest.fixture
def session(own: Path) -> Iterator[Session]:
    policy = load_policy(own)
    with closing(open_ledger(f"sqlite:///{own.parent}/ledger.sqlite")) as ledger:
        ledger.add_account("ana", "analyst")
        with closing(Engine(policy, ledger, open_backend(policy))) as engine:
            yield Session(engine, "ana")


def run(session: Session, sql: str) -> list[tuple[object, ...]]:
    (statement,) = session.parse(sql)
    return list(session.execute(statement).rows)


def test_answers_come_from_a_copy_and_say_so(session: Session) -> None:
    lines = [str(row[0]) for row in run(session, f"EXPLAIN {TOTAL}")]
    assert "Release 1: contribution bound: 50 rows per patient, in all groups" in lines
    assert any(line.startswith('  from the prepared table of "visits"') for line in lines)
    assert len(run(session, "SELECT COUNT(*) FROM visits")) == 1
    run(session, "SET dpsql.max_error_ratio = 4")
    assert run(session, "SHOW dpsql.max_error_ratio") == [("4",)]
    told = json.loads("".join(str(row[0]) for row in run(session, f"EXPLAIN (FORMAT JSON) {GROUPED}")))
    explained = told[0] if isinstance(told, list) else told
    assert [form["prepared"] for form in explained["forms"]] == [True]


@pytest.mark.parametrize(("sql", "lacks"), [("SELECT SUM(cost) FROM visits", True), (AVERAGE, False)])
def test_sums_of_a_copy_say_what_they_lack(session: Session, sql: str, lacks: bool) -> None:
    """A person's rows beyond max_rows are in the sum of a table, clamped, and not in that of a copy."""
    (statement,) = session.parse(sql)
    for ratio, from_copy in (("1", True), ("0", False)):
        session.execute(session.parse(f"SET dpsql.max_error_ratio = {ratio}")[0])
        told = session.execute(statement).notices[0].message
        assert ("sums include at most 50 rows per patient" in told) == (lacks and from_copy)
        lines = [str(row[0]) for row in run(session, f"EXPLAIN {sql}")]
        assert any("sums lack the rows" in line for line in lines) == (lacks and from_copy)


def test_what_is_refused_stays_refused(planner: Planner) -> None:
    for sql in ('SELECT COUNT(*) FROM "dpsql.prepared.clinic".main.visits', 'SELECT "dpsql.unit" FROM visits'):
        with pytest.raises(Error):
            planner.compile(sql)


def test_values_of_any_type_are_kept(own: Path) -> None:
    with duckdb.connect(str(own.with_name("clinic.duckdb"))) as database:
        database.execute("CREATE TABLE notes (patient_id INTEGER, body JSON, tags INTEGER[], took INTERVAL)")
        database.execute("INSERT INTO notes SELECT 1, '{\"a\": 1}', [i], INTERVAL '1 month' FROM range(9) r(i)")
    added = '[tables.notes]\nunit_key = "patient_id"\nmax_rows = 4\n[tables.notes.columns]\nbody = { type = "json" }\n'
    more = 'tags = { type = "integer[]" }\ntook = { type = "interval" }\n'
    text = changed(own, "[tables.doctors]", f"{added}{more}\n[tables.doctors]")
    assert prepare_tables(load_policy(text))[1]["notes"] == 4
    assert only(
        Planner(load_policy(own)).compile("SELECT COUNT(body), COUNT(tags), COUNT(took) FROM notes")
    ).contribution.copied


def test_a_wide_total_is_that_of_the_table(own: Path) -> None:
    policy = changed(own, "max_epsilon = 1.0 }", "max_epsilon = 1.0, wide_share = 0.2 }")
    query = Planner(load_policy(policy)).compile(TOTAL)
    assert query.wide_totals
    for total in query.wide_totals:
        assert query.releases[total.release].contribution.copied
        assert not query.releases[total.wide].contribution.copied
