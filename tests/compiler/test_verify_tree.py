"""What a plan reads, and what bounds it, is told by its tree: faults that are planted there are refused."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dpsql.compiler.bounding.steps import (
    BoundedQuery,
    Clamp,
    Clamped,
    ClampedSum,
    Count,
    CountedRows,
    DistinctTotal,
    Enumeration,
    GroupSampling,
    Histogram,
    Plain,
    RowCount,
    Rows,
    RowSum,
    ScaledSum,
    Totals,
    UnitCount,
    Units,
    UnitSums,
    UnitTotal,
    ValueSampling,
)
from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.nodes import (
    Exists,
    Filter,
    Join,
    Relation,
    Scan,
    SystemScan,
    UnitScan,
    Values,
)
from dpsql.compiler.ir.walk import nodes
from dpsql.compiler.plan.query_plan import PlannedRelease, WideTotal
from dpsql.compiler.plan.tree_bounds import Tree
from dpsql.compiler.plan.verify import verify
from dpsql.errors import GuaranteeMismatch
from dpsql.policy import load_policy
from tests.compiler.plans import FIVE_IN_EACH, Planner, changed_policy
from tests.compiler.test_verify import (
    DISTINCT,
    DRUGS,
    OF_DISTINCT,
    PRIVATE,
    PUBLIC,
    RANKS,
    SINGLE,
    SPREAD,
    TOTAL,
    tamper,
)
from tests.compiler.trees import Change, beneath, dropped, having, on_relation, planted

BY_DAY = "SELECT visited_on, COUNT(*), SUM(cost), MEDIAN(cost) FROM visits GROUP BY visited_on"
VALUES = "SELECT icd, COUNT(*), SUM(cost), AVG(cost), MEDIAN(cost), COUNT(DISTINCT doctor_id) FROM visits GROUP BY icd"
FEW = "SELECT cost > 100, COUNT(*) FROM visits GROUP BY 1"
OF_ONE = "SELECT sex, MEDIAN(age), COUNT(DISTINCT age), AVG(age) FROM patients GROUP BY sex"
PICKS = "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3"
MODES = "SELECT doctor_id, MODE() WITHIN GROUP (ORDER BY icd) FROM visits GROUP BY doctor_id"
GROUPS = "SELECT DISTINCT drug FROM prescriptions"
SQUARES = "SELECT VARIANCE(DISTINCT cost) FROM visits"
VALUES_IN_ALL = "SELECT MEDIAN(cost), COUNT(DISTINCT doctor_id) FROM visits"
OF_DOCTORS = "SELECT COUNT(*) FROM visits WHERE cost > (SELECT MAX(doctor_id) FROM doctors)"


TEN_GROUPS = {"max_groups": "10"}


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    """The clinic with limits of rows in each group, so that ten groups of a patient hold all rows that count."""
    limits = {"max_rows = 40 ": "max_groups = 10\nmax_rows_per_group = 4\nmax_rows = 40 "}
    with changed_policy(clinic_policy, "trees", FIVE_IN_EACH | limits) as policy:
        return Planner(load_policy(policy))


def refused(planner: Planner, sql: str, change: Change, why: str, **settings: str) -> None:
    """A plan is run as it is, and not once it is changed."""
    settings = TEN_GROUPS | settings
    query = planner.compile(sql, mechanism="laplace", **settings)
    verify(query, planner.catalog)
    with pytest.raises(GuaranteeMismatch, match=why):
        verify(tamper(query, change), planner.catalog)


def more(kind: type, name: str, by: int = 1) -> Change:
    return planted(kind, lambda node: replace(node, **{name: getattr(node, name) + by}))


def wider(kind: type, name: str) -> Change:
    """A grid that ends later."""
    return planted(kind, lambda node: replace(node, grid=replace(node.grid, **{name: 10 * getattr(node.grid, name)})))


def of_all_rows(totals: Any) -> Any:
    """Totals over rows, of which a unit has many."""
    return replace(totals, source=totals.source.input.input, cells=(RowCount(Count(None, None)),) * len(totals.cells))


def with_bounds(**changes: Any) -> Change:
    """A release whose plan says that its rows are bounded otherwise."""
    return lambda release: replace(release, contribution=replace(release.contribution, **changes))


def both_say_one_row(release: PlannedRelease) -> PlannedRelease:
    """The tree and the plan agree that a unit has one row."""
    return with_bounds(one_row=True)(having(Rows, one_row=True)(release))


ADDS_MORE, UNBOUNDED = "can change a cell by more", "not bounded"


@pytest.mark.parametrize(
    ("sql", "change", "why"),
    [
        (DRUGS, dropped(GroupSampling), UNBOUNDED),
        (DRUGS, more(GroupSampling, "groups"), ADDS_MORE),
        (BY_DAY, dropped(GroupSampling), UNBOUNDED),
        (BY_DAY, more(GroupSampling, "groups"), ADDS_MORE),
        (VALUES, more(ValueSampling, "rows"), ADDS_MORE),
        (VALUES, planted(ValueSampling, lambda node: replace(node, distinct=not node.distinct)), "another expression"),
        (DISTINCT, more(CountedRows, "rows"), ADDS_MORE),
        (PUBLIC, more(CountedRows, "rows"), ADDS_MORE),
        (TOTAL, more(ClampedSum, "lower", -1), ADDS_MORE),
        (TOTAL, more(ClampedSum, "upper"), ADDS_MORE),
        (TOTAL, more(ScaledSum, "rows"), ADDS_MORE),
        (TOTAL, wider(ScaledSum, "upper"), ADDS_MORE),
        (OF_DISTINCT, wider(Clamped, "upper"), ADDS_MORE),
        (RANKS, wider(Clamped, "upper"), "another grid"),
        (SINGLE, wider(Clamped, "upper"), ADDS_MORE),
        (SINGLE, planted(Clamped, lambda node: Plain(node.expression)), "a summed value is not clamped"),
        (TOTAL, planted(Clamp, lambda node: replace(node, amounts=node.amounts[:-1])), "not clamped"),
        (TOTAL, planted(Clamp, lambda node: replace(node, amounts=(None,) * len(node.amounts))), "not clamped"),
        (TOTAL, dropped(Clamp), "not clamped"),
        (DRUGS, dropped(Clamp), "not clamped"),
        (TOTAL, planted(Totals, lambda node: replace(node, source=node.source.input.input)), "not clamped"),
        (TOTAL, planted(UnitTotal, lambda node: RowCount(Count(None, None))), "summed rows are not bounded"),
        (TOTAL, planted(UnitTotal, lambda node: UnitCount(None, None)), "summed rows are not bounded"),
        (SINGLE, planted(RowCount, lambda node: UnitTotal()), "not clamped"),
        (TOTAL, planted(Totals, of_all_rows), "summed rows are not bounded"),
        (FEW, with_bounds(ranked=True), UNBOUNDED),
        (FEW, with_bounds(one_row=True), "more rows than the plan allows"),
        (PUBLIC, having(BoundedQuery, enumeration=None), "the groups of the plan"),
        (DRUGS, having(GroupSampling, lists=(0,)), "other lists"),
        (MODES, having(GroupSampling, lists=None), "other lists"),
        (MODES, having(Enumeration, lists=None), "the groups of the plan"),
        (MODES, dropped(GroupSampling), UNBOUNDED),
        (DRUGS, planted(Totals, lambda node: replace(node, units=Units.NONE)), "groups of one unit are not limited"),
        (
            DRUGS,
            planted(Totals, lambda node: replace(node, units=Units.DISTINCT)),
            "groups of one unit are not limited",
        ),
        (PRIVATE, planted(Totals, lambda node: replace(node, units=Units.NONE)), "groups of one unit are not limited"),
        (PUBLIC, planted(Totals, lambda node: replace(node, cells=node.cells[1:])), "differ from those that get noise"),
        (RANKS, planted(Histogram, lambda node: UnitTotal()), "a choice by rank"),
    ],
)
def test_a_fault_in_the_tree_is_refused(planner: Planner, sql: str, change: Change, why: str) -> None:
    refused(planner, sql, change, why)


# Tables


def rows_of(planner: Planner, sql: str) -> Relation:
    return beneath(totals_of(planner, sql))


def totals_of(planner: Planner, sql: str) -> Totals:
    totals = planner.compile(sql, **TEN_GROUPS).releases[0].query.tree.totals
    assert totals is not None
    return totals


def public_scan(planner: Planner) -> Scan:
    (read,) = planner.compile("SELECT city FROM doctors").public_reads
    return next(node for node in nodes(read.relation) if isinstance(node, Scan))


def crossed(other: Relation) -> Change:
    return on_relation(lambda relation: Join("cross", relation, other, None))


UNKNOWN_TABLE = "unknown table"
UNKNOWN_RELATION = "unknown kind of relation"


def test_a_table_that_is_not_known_is_not_read(planner: Planner) -> None:
    doctors = public_scan(planner)
    (patients,) = [node for node in nodes(rows_of(planner, SINGLE)) if isinstance(node, UnitScan)]
    for other in (
        replace(doctors, table=replace(doctors.table, name="salaries")),
        replace(doctors, table=replace(doctors.table, columns=())),
        replace(doctors, table=patients.table),
        replace(doctors, table=replace(patients.table, public=True)),
        replace(patients, table=doctors.table),
        replace(patients, table=replace(patients.table, name="salaries")),
    ):
        refused(planner, PRIVATE, crossed(other), UNKNOWN_TABLE)
        public_reads_refused(planner, other, UNKNOWN_TABLE)


def test_rows_are_bounded_by_their_own_unit(planner: Planner) -> None:
    """What the plan says of the unit, and of how many rows it has, is found again from the tables."""
    (patients,) = [node for node in nodes(rows_of(planner, SINGLE)) if isinstance(node, UnitScan)]
    (drugs,) = [node for node in nodes(rows_of(planner, DRUGS)) if isinstance(node, UnitScan)]
    not_unit = "rows are bounded per another key than their unit"
    refused(planner, DRUGS, planted(Rows, lambda node: replace(node, unit=drugs.column_fields[0])), not_unit)
    refused(planner, DRUGS, crossed(patients), "rows of different units would be joined")
    refused(planner, DISTINCT, both_say_one_row, "a unit can have several rows")
    refused(planner, PRIVATE, having(Rows, keys=(Exists(drugs),)), "rows of other units")
    refused(
        planner, SINGLE, planted(Clamped, lambda node: replace(node, expression=Exists(drugs))), "rows of other units"
    )


def public_reads_refused(planner: Planner, relation: Relation, why: str) -> None:
    """Neither for post-processing, nor for what is made before a release."""
    query = planner.compile("SELECT city FROM doctors")
    reads = tuple(replace(read, relation=relation) for read in query.public_reads)
    with pytest.raises(GuaranteeMismatch, match=why):
        verify(replace(query, public_reads=reads), planner.catalog)
    query = planner.compile(OF_DOCTORS)
    (release,) = query.releases
    worse = replace(release, inputs=(replace(release.inputs[0], public_reads=reads),))
    with pytest.raises(GuaranteeMismatch, match=why):
        verify(replace(query, releases=(worse,)), planner.catalog)


def test_a_protected_table_is_not_read_as_a_public_one(planner: Planner) -> None:
    protected, public = rows_of(planner, SINGLE), public_scan(planner)
    for relation in (protected, Join("cross", public, protected, None), Filter(public, Exists(protected))):
        public_reads_refused(planner, relation, "protected table would be read without noise")


def test_a_public_read_whose_tables_are_not_found_is_not_run(planner: Planner) -> None:
    public_reads_refused(planner, Values((), ((),)), "names no public table")
    public_reads_refused(planner, SystemScan("ledger", ()), UNKNOWN_RELATION)


def test_a_relation_that_is_not_known_is_not_read(planner: Planner) -> None:
    other = SystemScan("ledger", ())
    refused(planner, PRIVATE, crossed(other), UNKNOWN_RELATION)
    refused(planner, PRIVATE, having(Rows, keys=(Exists(other),)), UNKNOWN_RELATION)
    refused(planner, FEW, planted(Enumeration, lambda node: replace(node, relation=other)), UNKNOWN_RELATION)
    for sql in (SINGLE, SPREAD):  # in a value, and in a factor
        refused(planner, sql, planted(Clamped, lambda node: replace(node, expression=Exists(other))), UNKNOWN_RELATION)


def test_a_release_that_reads_no_protected_table_is_not_run(planner: Planner) -> None:
    for relation in (public_scan(planner), Values((), ((),))):  # nobody's rows have no unit
        refused(planner, PRIVATE, having(Rows, relation=relation), "another key than their unit")
    refused(planner, FEW, having(Enumeration, relation=rows_of(planner, SINGLE)), "listed from a protected table")
    refused(planner, PRIVATE, having(BoundedQuery, totals=None), "the tree reads no protected rows")


def test_a_wide_total_is_over_all_groups(planner: Planner) -> None:
    query = planner.compile(DRUGS, mechanism="laplace", **TEN_GROUPS)
    assert query.releases[0].keys
    with pytest.raises(GuaranteeMismatch, match="a wide total has groups"):
        verify(replace(query, wide_totals=(WideTotal(0, 0, 0, 0),)), planner.catalog)


def test_rows_of_a_protected_table_are_counted_beside_their_owners(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Did owners tell a unit of rows that nobody has, the plan would still be refused."""
    monkeypatch.setattr(Tree, "_check_owners", lambda self: None)
    nobody = having(Rows, relation=public_scan(planner))
    refused(planner, PRIVATE, nobody, "reads no protected table")


def test_rows_are_read_from_no_table_that_stands_in_text(planner: Planner) -> None:
    def text(release: PlannedRelease) -> PlannedRelease:
        leaves = ((rows_of(planner, SINGLE), Leaf('"main"."patients"', ())),)
        return replace(release, query=replace(release.query, tree=replace(release.query.tree, leaves=leaves)))

    refused(planner, SINGLE, text, UNKNOWN_TABLE)


def test_a_list_of_public_groups_costs_nothing_and_reads_nobody(planner: Planner) -> None:
    sql = "SELECT DISTINCT sex FROM patients"
    (release,) = planner.compile(sql, **TEN_GROUPS).releases
    assert release.events == () and release.query.tree.totals is None and "patients" not in release.sql
    for_nothing = "a plan without a price"
    refused(planner, sql, having(BoundedQuery, totals=totals_of(planner, OF_ONE)), for_nothing)
    refused(planner, sql, having(BoundedQuery, totals=totals_of(planner, OF_ONE), enumeration=None), for_nothing)
    refused(planner, sql, having(Enumeration, relation=rows_of(planner, SINGLE)), for_nothing)


# Nodes that are not known


@dataclass(frozen=True)
class Unknown:
    """A node of no kind that there is."""

    input: Any = None


Unknown.__module__ = Totals.__module__  # so that faults are planted in it, too


@pytest.mark.parametrize(
    ("sql", "change", "why"),
    [
        (TOTAL, planted(Totals, lambda node: replace(node, source=Unknown(node.source))), "unknown kind of step"),
        (DRUGS, planted(UnitSums, Unknown), "unknown kind of step"),
        (VALUES, planted(ValueSampling, lambda node: replace(node, kept=Unknown(node.kept))), "unknown kind of step"),
        (OF_ONE, planted(DistinctTotal, lambda node: replace(node, source=Unknown())), "unknown kind of step"),
        (TOTAL, planted(UnitTotal, lambda node: Unknown()), "unknown kind of cell"),
        (TOTAL, planted(CountedRows, lambda node: Unknown()), "not clamped"),
        (SINGLE, planted(Rows, lambda node: replace(node, values=(Unknown(),))), "unknown kind of value"),
        (SINGLE, planted(RowSum, lambda node: replace(node, sum=replace(node.sum, value=Unknown()))), "not clamped"),
    ],
)
def test_a_node_that_is_not_known_is_refused(planner: Planner, sql: str, change: Change, why: str) -> None:
    refused(planner, sql, change, why)


# Values that are told apart, and the rest


def on_rows(cell: Any) -> Any:
    """A cell of all rows of a unit, where it was one of chosen values."""
    return replace(cell, source=cell.source.input.input)


def of_another(cell: Any) -> Any:
    """A cell that adds up each value as if it lay on a grid of one step."""
    if not isinstance(cell.total, Clamped):
        return cell
    return replace(cell, total=replace(cell.total, grid=replace(cell.total.grid, upper=1)))


def rows_step(totals: Any) -> Any:
    return totals.source.input.input.input


@pytest.mark.parametrize(
    ("sql", "change", "why"),
    [
        (DISTINCT, having(Rows, one_row=True), "a unit can have several rows"),
        (VALUES_IN_ALL, planted(Histogram, on_rows), "distinct values of one unit is not limited"),
        (VALUES_IN_ALL, planted(DistinctTotal, on_rows), "distinct values of one unit is not limited"),
        (SQUARES, planted(DistinctTotal, of_another), "the sum is over other values than the distinct ones"),
        (
            OF_ONE,
            planted(Histogram, lambda c: replace(c, source=replace(c.source, values=()))),
            "computed from other rows",
        ),
        (VALUES, planted(ValueSampling, lambda node: replace(node, rows=None)), "not limited over all groups"),
        (VALUES, planted(ValueSampling, lambda node: replace(node, kept=GroupSampling(node.input, 1))), "several rows"),
        (PUBLIC, planted(CountedRows, lambda node: replace(node, rows=None)), "not limited over all groups"),
        (
            GROUPS,
            planted(Totals, lambda node: replace(node, source=node.source.input.input)),
            "groups of one unit are not limited",
        ),
        (
            GROUPS,
            planted(Totals, lambda node: replace(node, source=node.source.input.input.input)),
            "groups of one unit are not limited",
        ),
        (GROUPS, dropped(GroupSampling), "groups of one unit are not limited"),
    ],
)
def test_a_fault_that_lets_a_unit_add_more_is_refused(planner: Planner, sql: str, change: Change, why: str) -> None:
    refused(planner, sql, change, why)


def test_groups_are_cut_off_by_a_count_of_units(planner: Planner) -> None:
    sql = "SELECT drug, COUNT(DISTINCT patient_id), COUNT(*) FROM prescriptions GROUP BY drug"
    (release,) = planner.compile(sql, mechanism="laplace", **TEN_GROUPS).releases
    assert release.threshold_primitive == 1
    refused(planner, sql, lambda planned: replace(planned, threshold_primitive=0), "does not count units")


def test_a_list_has_a_key_to_pick(planner: Planner) -> None:
    def changed(release: PlannedRelease) -> PlannedRelease:
        bounds = replace(release.contribution, lists=(0,), grouped=True)
        return replace(having(Enumeration, lists=(0,))(release), contribution=bounds)

    refused(planner, PICKS, changed, "top-k has no key")
