"""Whose rows are is found from the tables up: what could mix units is refused, whoever planned it."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Cast,
    Column,
    Distinct,
    Exists,
    Expr,
    Field,
    Filter,
    InRelation,
    Join,
    Literal,
    Order,
    Project,
    Protected,
    Relation,
    Release,
    Scan,
    SetOperation,
    Sort,
    SystemScan,
    UnitScan,
    UnitWindows,
    Values,
    Window,
)
from dpsql.compiler.ir.schema import InputTable, PreparedSource
from dpsql.compiler.plan.belonging import Belonging, Owners
from dpsql.errors import GuaranteeMismatch
from dpsql.policy import load_policy
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner

NUMBERS = iter(range(10**6))
MIXED, NOBODY, JOINED, OTHERS = (
    "would be combined",
    "rows without a unit",
    "different units would be joined",
    "of other units",
)


def new(sql_type: SqlType = SqlType.INTEGER) -> Field:
    return Field(next(NUMBERS), sql_type)


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


@pytest.fixture
def owners(planner: Planner) -> Owners:
    return Owners(planner.catalog.schema, {})


@pytest.fixture
def visits(planner: Planner) -> UnitScan:
    return scan_of(planner, "visits")


@pytest.fixture
def patients(planner: Planner) -> UnitScan:
    return scan_of(planner, "patients")


@pytest.fixture
def doctors(planner: Planner) -> Scan:
    table = planner.catalog.policy.table("doctors")
    assert table is not None
    return Scan(table, table.columns, tuple(new(column.type) for column in table.columns))


def scan_of(planner: Planner, name: str) -> UnitScan:
    table = planner.catalog.policy.table(name)
    assert table is not None
    return UnitScan(table, table.columns, tuple(new(column.type) for column in table.columns), new())


def same(one: Field, other: Field) -> Call:
    return Call("eq", (Column(one), Column(other)), SqlType.BOOLEAN)


def both(*terms: Expr) -> Call:
    return Call("and", terms, SqlType.BOOLEAN)


def refused(owners: Owners, relation: Relation, why: str) -> None:
    with pytest.raises(GuaranteeMismatch, match=why):
        owners.of(relation)


def handed_on(relation: Relation, *fields: Field) -> Project:
    return Project(relation, tuple(new(field.type) for field in fields), tuple(map(Column, fields)))


def counted(relation: Relation, *keys: Expr) -> Aggregate:
    call = AggregateCall("count", None, False, None, SqlType.BIGINT)
    return Aggregate(relation, tuple(new(key.type) for key in keys), keys, (new(SqlType.BIGINT),), (call,))


def numbered(relation: Relation, *partition: Field) -> UnitWindows:
    window = Window("row_number", (), tuple(map(Column, partition)), (), None, SqlType.BIGINT)
    return UnitWindows(relation, (new(SqlType.BIGINT),), (window,), 1)


def between(windows: UnitWindows, low: int, high: int) -> Filter:
    number = Column(windows.window_fields[0])
    ends = zip(("ge", "le"), (low, high), strict=True)
    terms = [Call(name, (number, Literal(end, SqlType.BIGINT)), SqlType.BOOLEAN) for name, end in ends]
    return Filter(windows, both(*terms, Call("le", (number, number), SqlType.BOOLEAN), Column(new(SqlType.BOOLEAN))))


def test_rows_of_a_table_are_its_units(owners: Owners, visits: UnitScan, patients: UnitScan, doctors: Scan) -> None:
    assert owners.of(visits) == Belonging(frozenset({visits.unit_field}), False)
    assert owners.of(patients) == Belonging(frozenset({patients.unit_field}), True)
    assert owners.of(doctors) is owners.of(Filter(doctors, Literal(True, SqlType.BOOLEAN))) is None
    refused(owners, SystemScan("ledger", ()), "unknown kind of relation")


def test_what_is_made_first_is_public_and_a_copy_is_not(owners: Owners, patients: UnitScan, doctors: Scan) -> None:
    made = replace(owners, leaves={doctors: Leaf(InputTable(0, 0, 1), ()), patients: Leaf(PreparedSource(("p",)), ())})
    assert made.of(doctors) is None
    assert made.of(patients) == Belonging(frozenset({patients.unit_field}), False)


def test_a_unit_is_handed_on(owners: Owners, patients: UnitScan) -> None:
    unit, age = patients.unit_field, patients.column_fields[0]
    found = owners.of(handed_on(patients, unit, age))
    assert found is not None and len(found.units) == 1 and found.once
    wide = Project(patients, (new(SqlType.BIGINT),), (Cast(Column(unit), SqlType.BIGINT),))
    assert owners.of(wide) == Belonging(frozenset(wide.fields), True)
    narrow = Project(patients, (new(SqlType.SMALLINT),), (Cast(Column(unit), SqlType.SMALLINT),))
    for relation in (narrow, handed_on(patients, age)):
        refused(owners, relation, MIXED)


def test_groups_are_of_one_unit(owners: Owners, visits: UnitScan, patients: UnitScan) -> None:
    unit, other = visits.unit_field, visits.column_fields[0]
    assert (once := owners.of(counted(visits, Column(unit)))) is not None and once.once
    assert (several := owners.of(counted(visits, Column(unit), Column(other)))) is not None and not several.once
    # One row is in one group.
    own = counted(patients, Column(patients.unit_field), Column(patients.column_fields[0]))
    assert (once := owners.of(own)) is not None and once.once
    for keys in ((), (Column(other),)):
        refused(owners, counted(visits, *keys), MIXED)


def test_windows_go_over_one_unit(owners: Owners, visits: UnitScan) -> None:
    unit, other = visits.unit_field, visits.column_fields[0]
    for windows, low, high, once in (
        (numbered(visits, unit), 1, 1, True),
        (numbered(visits, unit), 1, 2, False),
        (numbered(visits, unit, other), 1, 1, False),
    ):
        found = owners.of(between(windows, low, high))
        assert found is not None and found.once is once
    for windows in (numbered(visits), numbered(visits, other)):
        refused(owners, windows, "a window contains rows of several units")


def test_a_condition_that_is_false_keeps_no_rows(owners: Owners, planner: Planner, visits: UnitScan) -> None:
    number = Column(numbered(visits, visits.unit_field).window_fields[0])
    other = Call("le", (number, Literal(5, SqlType.BIGINT)), SqlType.BOOLEAN)
    for value, once in ((False, True), (True, False), (None, False)):
        found = owners.of(Filter(visits, both(other, Literal(value, SqlType.BOOLEAN))))
        assert found is not None and found.once is once
    first = "SELECT DISTINCT ON (patient_id) cost FROM visits ORDER BY patient_id, cost"
    assert planner.compile(f"SELECT COUNT(*) FROM ({first}) t WHERE 3 > 5").releases


def test_rows_are_not_cut_or_told_apart_across_units(owners: Owners, visits: UnitScan) -> None:
    order = (Order(Column(visits.unit_field), False, False),)
    refused(owners, Sort(visits, visits.fields, order, 3, 0), "a limit would apply")
    assert (found := owners.of(Distinct(handed_on(visits, visits.unit_field)))) is not None and found.once
    assert (found := owners.of(Distinct(visits))) is not None and not found.once


def test_units_are_joined_with_themselves(owners: Owners, visits: UnitScan, patients: UnitScan) -> None:
    condition = same(visits.unit_field, patients.unit_field)
    for kind, units in (("inner", 2), ("left", 1), ("right", 1)):
        found = owners.of(Join(kind, visits, patients, condition))
        assert found is not None and len(found.units) == units and not found.once
    for kind in ("inner", "cross", "left", "full"):
        refused(owners, Join(kind, visits, patients, None), JOINED)
        refused(owners, Join(kind, visits, patients, same(visits.column_fields[0], patients.unit_field)), JOINED)
    refused(owners, Join("matched", visits, patients, condition), "unknown kind of join")
    refused(owners, Join("inner", visits, visits, condition), "the same field")


def test_either_unit_of_a_full_join_is_the_unit(owners: Owners, visits: UnitScan, patients: UnitScan) -> None:
    units = visits.unit_field, patients.unit_field
    joined = Join("full", visits, patients, same(*units))
    either = Call("coalesce", tuple(map(Column, units)), SqlType.INTEGER)
    turned = replace(either, arguments=either.arguments[::-1])
    for found_by in (either, turned):
        assert (found := owners.of(Project(joined, (new(),), (found_by,)))) is not None and not found.once
    wrong = Call("coalesce", (Column(units[0]), Column(patients.column_fields[0])), SqlType.INTEGER)
    for expression in (Column(units[0]), wrong):
        refused(owners, Project(joined, (new(),), (expression,)), MIXED)


def test_inner_joins_hold_together(owners: Owners, planner: Planner, visits: UnitScan, patients: UnitScan) -> None:
    """The condition that ties two relations may stand in the join around them."""
    third = scan_of(planner, "visits")
    inside = Join("cross", visits, third, None)
    ties = [same(patients.unit_field, each.unit_field) for each in (visits, third)]
    assert (found := owners.of(Join("inner", inside, patients, both(*ties)))) is not None and len(found.units) == 3
    refused(owners, Join("inner", inside, patients, ties[0]), JOINED)


def released_total(rows: UnitScan) -> Release:
    return Release(Protected(rows, rows.unit_field, 1, 1, 1, one_row=True), counted(rows), ())


def test_public_rows_are_met_once_by_a_key(owners: Owners, planner: Planner, patients: UnitScan, doctors: Scan) -> None:
    key = next(f for c, f in zip(doctors.columns, doctors.fields, strict=True) if c.name == "doctor_id")
    age = patients.column_fields[0]
    by_key = Filter(handed_on(doctors, *doctors.fields), Literal(True, SqlType.BOOLEAN))
    again = by_key.fields[doctors.fields.index(key)]
    one = Values((new(),), ((Literal(1, SqlType.INTEGER),),))
    total = released_total(patients)
    made_first = replace(owners, leaves={total: Leaf(InputTable(0, 0, 1), ())})
    for other, condition, once in (
        (doctors, same(age, key), True),
        (by_key, same(again, age), True),
        (doctors, both(same(key, age), Call("eq", (Literal(1, SqlType.INTEGER), Column(age)), SqlType.BOOLEAN)), True),
        (doctors, both(same(key, key), Call("gt", (Column(key), Column(age)), SqlType.BOOLEAN)), False),
        (doctors, None, False),
        (one, None, True),
        (Filter(one, Literal(True, SqlType.BOOLEAN)), None, True),
        (Sort(doctors, doctors.fields, (), 1, 0), None, True),
        (Sort(doctors, doctors.fields, (), 2, 0), None, False),
        (counted(doctors), None, True),
        (total, None, True),
        (Distinct(doctors), same(age, key), False),
    ):
        for kind in ("inner", "left", "matched"):
            found = made_first.of(Join(kind, patients, other, condition))
            assert found is not None and found.once is once, (kind, condition)
    first = replace(owners, leaves={doctors: Leaf(InputTable(0, 0, 1), ())})
    assert (found := first.of(Join("inner", patients, doctors, same(age, key)))) is not None and not found.once
    # Each of two is fixed by the other, and neither by the row: they make many rows together.
    table = planner.catalog.policy.table("doctors")
    assert table is not None
    twin = Scan(table, table.columns, tuple(new(column.type) for column in table.columns))
    circle = same(key, twin.fields[doctors.fields.index(key)])
    for condition, once in ((circle, False), (both(circle, same(age, key)), True)):
        found = owners.of(Join("inner", patients, Join("cross", doctors, twin, None), condition))
        assert found is not None and found.once is once


def test_rows_of_nobody_are_not_kept(owners: Owners, patients: UnitScan, doctors: Scan) -> None:
    assert owners.of(Join("right", doctors, patients, None)) is not None
    twin = replace(doctors, fields=tuple(new(field.type) for field in doctors.fields))
    assert owners.of(Join("inner", doctors, twin, None)) is owners.of(Join("full", doctors, twin, None)) is None
    for kind, left, right in (("left", doctors, patients), ("right", patients, doctors), ("full", doctors, patients)):
        refused(owners, Join(kind, left, right, None), NOBODY)
    protected, public = handed_on(patients, patients.unit_field), handed_on(doctors, doctors.fields[0])
    for one, other in ((protected, public), (public, protected)):
        refused(owners, SetOperation("union", True, one, other, (new(),)), NOBODY)


def test_set_operations_keep_units_in_one_place(
    owners: Owners, visits: UnitScan, patients: UnitScan, doctors: Scan
) -> None:
    mine, other = handed_on(visits, visits.unit_field), handed_on(patients, patients.unit_field)
    for kind, every, once in (
        ("union", True, False),
        ("union", False, True),
        ("except", True, False),
        ("intersect", False, True),
    ):
        found = owners.of(SetOperation(kind, every, mine, other, (new(),)))
        assert found is not None and found.once is once
    assert (found := owners.of(SetOperation("except", True, other, mine, (new(),)))) is not None and found.once
    crossed = handed_on(visits, visits.column_fields[0], visits.unit_field)
    ordered = handed_on(patients, patients.unit_field, patients.column_fields[0])
    refused(owners, SetOperation("union", True, crossed, ordered, (new(), new())), MIXED)
    assert owners.of(SetOperation("union", True, doctors, doctors, doctors.fields)) is None


def test_subqueries_are_about_the_row_s_unit(
    owners: Owners, visits: UnitScan, patients: UnitScan, doctors: Scan
) -> None:
    own = Filter(visits, same(visits.unit_field, patients.unit_field))
    assert owners.of(Filter(patients, Exists(own))) is not None
    assert owners.of(Filter(patients, Exists(doctors))) is not None
    for inside in (counted(own), numbered(own), between(numbered(own), 1, 1)):
        assert owners.of(Filter(patients, Call("not", (Exists(inside),), SqlType.BOOLEAN))) is not None
    listed = handed_on(visits, visits.unit_field)
    assert owners.of(Filter(patients, InRelation(Column(patients.unit_field), listed))) is not None
    others = InRelation(Column(patients.column_fields[0]), listed)
    not_units = InRelation(Column(patients.unit_field), handed_on(own, visits.column_fields[0]))
    assert owners.of(Filter(patients, not_units)) is not None
    loose = Project(visits, (new(), new()), (Column(visits.column_fields[0]), Column(visits.unit_field)))
    for subquery in (Exists(visits), others, InRelation(Column(patients.unit_field), loose)):
        refused(owners, Filter(patients, subquery), OTHERS)
        refused(owners, Join("cross", patients, doctors, subquery), OTHERS)
        refused(owners, Join("left", patients, doctors, subquery), OTHERS)
        refused(owners, Join("inner", doctors, replace(doctors, fields=()), subquery), OTHERS)
        refused(owners, Filter(doctors, subquery), OTHERS)


def test_lateral_rows_are_of_the_row_before(owners: Owners, visits: UnitScan, patients: UnitScan) -> None:
    own = Filter(visits, same(visits.unit_field, patients.unit_field))
    for kind in ("inner", "left"):
        assert owners.of(Join(kind, patients, counted(own), None)) is not None
    both_own = SetOperation("union", True, counted(own), counted(own), (new(SqlType.BIGINT),))
    assert (found := owners.of(both_own)) is not None and found.units == {patients.unit_field}


@pytest.mark.parametrize("kind", ["inner", "left", "right"])
def test_rows_that_never_meet_are_of_one_unit(owners: Owners, patients: UnitScan, visits: UnitScan, kind: str) -> None:
    def joined(condition: Expr) -> Join:
        return Join(kind, patients, visits, condition)

    units = frozenset({patients.unit_field, visits.unit_field})
    for value in (False, None):
        found = owners.of(joined(both(Literal(value, SqlType.BOOLEAN), Column(new(SqlType.BOOLEAN)))))
        assert found is not None and found.units and found.units <= units
        if kind == "inner":
            found = owners.of(Filter(Join("cross", patients, visits, None), Literal(value, SqlType.BOOLEAN)))
            assert found is not None and found.units == units
    refused(owners, Filter(Join("cross", patients, visits, None), Literal(True, SqlType.BOOLEAN)), JOINED)
    for condition in (Literal(True, SqlType.BOOLEAN), Literal(None, SqlType.BOOLEAN, parameter=0)):
        refused(owners, joined(condition), JOINED)
