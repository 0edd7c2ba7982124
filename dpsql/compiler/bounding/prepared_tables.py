"""prepared_tables: the tables that `dpsql prepare` creates: `max_rows` rows of each unit, with values on their grid.

Rule 1: the kept rows of a unit depend only on the multiset of its own rows: they are ordered by a keyed hash of the
    whole row, then by its values.
Rule 2: the engine enforces the bound: a row's number within its unit is part of the primary key and has a CHECK
    constraint. Readers take the bound from the schema, and look at no row.
Rule 3: constraints also enforce the limits of grid values; the SQL defines the values.
Rule 4: a prepared table is identified by the SQL that created it; it is read only if the current plan has the same SQL
    and data_version.
"""

import hashlib
import json
from dataclasses import dataclass

from dpsql.compiler.bounding.printer import SALT
from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.dialect import Dialect
from dpsql.compiler.dialects.render import Leaf, Renderer
from dpsql.compiler.ir.nodes import AggregateCall, Column, Field, Protected, UnitScan
from dpsql.compiler.ir.schema import EngineColumn, EngineSchema, PreparedSource, PreparedTable, StoredGrid
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.tables import Catalog, Tables
from dpsql.compiler.values.bounds import bounds_of
from dpsql.compiler.values.grids import grid_of
from dpsql.errors import LimitExceeded
from dpsql.policy import Policy, Table
from dpsql.sqltypes import SqlType

LAYOUT = "dpsql bounded copy 2"
"""A version that must change when the meaning of prepared columns changes and their SQL does not."""
UNIT = "dpsql.unit"
ROW = "dpsql.row"
GRID = "dpsql.grid."


@dataclass(frozen=True)
class PreparedTablePlan:
    """How the copy of one table is made.

    Attributes:
        table: The table's name in the policy.
        rows_per_unit: Rows of one unit that it keeps.
        grids: The columns that are on their grid in it.
        columns: Its columns and constraints, as they stand in CREATE TABLE.
        rows: SQL of its rows, in order.
        fingerprint: Tells it from copies of other rows, or of the same otherwise bounded.
    """

    table: str
    rows_per_unit: int
    grids: tuple[StoredGrid, ...]
    columns: str
    rows: str
    fingerprint: str


def plan_prepared(policy: Policy, schema: EngineSchema) -> tuple[PreparedTablePlan, ...]:
    """Plan the prepared tables of all protected tables in which the engine allows a unit more than one row."""
    catalog = Catalog(policy, schema, policy.roles[0])
    protected = (
        (table, Tables(catalog, Fields()).protected(table).status) for table in policy.tables if not table.public
    )
    return tuple(
        _plan(table, status, catalog)
        for table, status in protected
        if isinstance(status, Protected) and not status.one_row
    )


def _plan(table: Table, protected: Protected, catalog: Catalog) -> PreparedTablePlan:
    scan, dialect = protected.relation, DIALECTS[catalog.schema.engine]
    if not isinstance(scan, UnitScan):
        raise TypeError("a protected table is scanned")
    renderer = Renderer(dialect, catalog.schema, catalog.policy)
    rows = renderer.relation(scan, frozenset(scan.fields))
    ordered = (scan.unit_field, *scan.column_fields)
    decisive = [_decisive(renderer, dialect, field) for field in ordered]
    order = ", ".join([dialect.keyed_hash(decisive, SALT), *(f"{text} NULLS LAST" for text, _ in decisive[1:])])
    unit, grids = renderer.name(scan.unit_field), _grids(scan, protected.rows_per_unit)
    numbered = f"row_number() OVER (PARTITION BY {unit} ORDER BY {order})"
    names = [renderer.name(field) for field in ordered]
    numbers = f"SELECT {', '.join(names)}, {numbered} AS r FROM {dialect.derived(rows)}"
    values = [dialect.on_grid(renderer.name(field), field.type, stored.grid) for field, stored in grids.items()]
    listed = ", ".join([unit, "CAST(r AS INTEGER)", *names[1:], *values])
    laid_out = f"r, {unit}" if dialect.turns_of_rows else f"{unit}, r"
    kept = f"SELECT {listed} FROM {dialect.derived(numbers)} WHERE r <= {protected.rows_per_unit} ORDER BY {laid_out}"
    stored = tuple(grids.values())
    columns = _columns(table, scan, protected.rows_per_unit, stored, catalog)
    dataset = catalog.policy.dataset
    told = [LAYOUT, dataset.name, dataset.data_version, dataset.timezone, columns, kept]
    fingerprint = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return PreparedTablePlan(table.name, protected.rows_per_unit, stored, columns, kept, fingerprint)


def _grids(scan: UnitScan, max_rows: int) -> dict[Field, StoredGrid]:
    """The columns that can be summed: numbers with bounds, and few enough digits for exact sums.

    Of a query that narrows no bounds, their grid is this one.
    """
    bounds, grids = bounds_of(scan), dict[Field, StoredGrid]()
    for column, field in zip(scan.columns, scan.column_fields, strict=True):
        if not field.type.is_number or bounds[field].lower is None or bounds[field].upper is None:
            continue
        try:
            grid = grid_of(AggregateCall("sum", Column(field), False, None, field.type), scan, max_rows)
        except LimitExceeded:
            continue
        grids[field] = StoredGrid(f"{GRID}{len(grids)}", column.name, grid)
    return grids


def _decisive(renderer: Renderer, dialect: Dialect, field: Field) -> tuple[str, SqlType]:
    """The text that distinguishes values of a field: a month and 30 days are equal, but not the same."""
    name = renderer.name(field)
    if field.type.is_array:
        return name, SqlType.TEXT  # which its canonical value is
    return (dialect.as_text(name, field.type), SqlType.TEXT) if field.type is SqlType.INTERVAL else (name, field.type)


def _columns(table: Table, scan: UnitScan, max_rows: int, grids: tuple[StoredGrid, ...], catalog: Catalog) -> str:
    types, dialect = _stored(table, scan, catalog), DIALECTS[catalog.schema.engine]
    unit, row = dialect.quote_name(UNIT), dialect.quote_name(ROW)
    listed = [f"{unit} {types[UNIT]} NOT NULL", f"{row} INTEGER NOT NULL"]
    listed += [f"{dialect.quote_name(column.name)} {types[column.name]}" for column in scan.columns]
    listed += [f"{dialect.quote_name(stored.name)} {dialect.grid_type(stored.grid)}" for stored in grids]
    limits = [(row, 1, max_rows), *((dialect.quote_name(s.name), s.grid.lower, s.grid.upper) for s in grids)]
    checks = [f"CHECK ({name} BETWEEN {lower} AND {upper})" for name, lower, upper in limits]
    return ", ".join([*listed, f"PRIMARY KEY ({unit}, {row})", *checks])


def _stored(table: Table, scan: UnitScan, catalog: Catalog) -> dict[str, str]:
    """The types of the copy's columns, by their names."""
    dialect, engine = DIALECTS[catalog.schema.engine], catalog.schema.tables[table.name].columns
    found = {
        column.name: dialect.stored_type(engine[column.name], field.type)
        for column, field in zip(scan.columns, scan.column_fields, strict=True)
    }
    return {UNIT: dialect.stored_type(_unit_column(table, catalog), scan.unit_field.type), **found}


def _unit_column(table: Table, catalog: Catalog) -> EngineColumn:
    """The engine's column of the unit, in the table or at the end of its first way: those of others are alike."""
    while table.unit_via:
        parent = catalog.policy.table(table.unit_via[0].table)
        if parent is None:
            raise TypeError("unit path does not end at a unit key")
        table = parent
    return catalog.schema.tables[table.name].columns[table.unit_key or ""]


def prepared_leaf(scan: UnitScan, copy: PreparedTable, catalog: Catalog) -> Leaf:
    """A prepared table in place of the scanned table, with its grid values after the table's columns."""
    dialect, types = DIALECTS[catalog.schema.engine], _stored(scan.table, scan, catalog)

    def column(name: str, field: Field) -> str:
        # Texts alone must say again how they are compared.
        stored = EngineColumn(types[name], field.type, not_null=False)
        own = dialect.quote_name(name)
        return dialect.canonical(own, stored, field.type) if field.type.is_text else own

    named = zip((column.name for column in scan.columns), scan.column_fields, strict=True)
    grids = (dialect.quote_name(stored.name) for stored in copy.grids)
    columns = (*(column(name, field) for name, field in named), *grids, column(UNIT, scan.unit_field))
    return Leaf(PreparedSource(copy.path), columns)
