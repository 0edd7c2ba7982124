"""Exact counts of the rows that a policy's bounds drop, for the data owner only.

Rule: these counts are only printed by the command: no client, ledger or log receives them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from dpsql.backends import Backend
from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir.conditions import all_of, any_of, is_null, negated
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Expr,
    Literal,
    Project,
    Relation,
    Scan,
    UnitScan,
)
from dpsql.compiler.ir.nodes import InRelation as In
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.tables import Catalog, Tables
from dpsql.compiler.values.sources import Lister
from dpsql.policy import Bound, Policy, PolicyColumn, Table
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class SurveyFinding:
    """A problem that the rows of a table show.

    Attributes:
        column: The column; None for the table as a whole.
        count: The number of rows or units.
        what: The problem.
    """

    column: str | None
    count: int
    what: str


@dataclass(frozen=True)
class TableSurvey:
    """The counts of one protected table.

    Attributes:
        table: The table.
        rows: Its rows.
        units: The number of their units.
        one_row: True if the engine enforces that a unit has one row.
        findings: Dropped rows and suspicious values.
    """

    table: Table
    rows: int
    units: int
    one_row: bool
    findings: tuple[SurveyFinding, ...]


def survey(policy: Policy, backend: Backend) -> Iterator[TableSurvey]:
    """Count, table by table, the rows and values that the policy's bounds drop or clamp.

    Raises:
        BackendFailure: The engine failed.
    """
    everything = replace(policy.roles[0], tables=frozenset(table.name for table in policy.tables))
    surveyor = _Surveyor(policy, backend, Catalog(policy, backend.schema, everything), Fields())
    for table in policy.tables:
        if not table.public:
            yield surveyor.survey(table)


@dataclass(frozen=True)
class _Surveyor:
    policy: Policy
    backend: Backend
    catalog: Catalog
    fields: Fields

    def survey(self, table: Table) -> TableSurvey:
        """Count in one table."""
        scan = Tables(self.catalog, self.fields).find(None, table.name, None).relation
        if not isinstance(scan, UnitScan):
            raise TypeError("a protected table is scanned with its unit")
        (rows,) = self._counted(Scan(table, (), ()), ())
        units, above = self._units(scan, table)
        tests, scan = self._tests(scan, table)
        reached, *counts = self._counted(scan, [condition for _, _, condition in tests])
        findings = [SurveyFinding(name, count, what) for (name, what, _), count in zip(tests, counts, strict=True)]
        unit = self.policy.dataset.privacy_unit
        whole = [
            SurveyFinding(None, max(rows - reached, 0), f"rows without a {unit} (dropped)"),
            SurveyFinding(
                None, max(reached - rows, 0), f"rows counted again, because they belong to more than one {unit}"
            ),
            SurveyFinding(
                None, above, f"{unit}s with more than {table.rows_per_unit} rows; their other rows are dropped"
            ),
        ]
        unique = table.unit_key is not None and self.catalog.schema.tables[table.name].is_unique(
            frozenset({table.unit_key})
        )
        return TableSurvey(table, rows, units, unique, tuple(found for found in (*whole, *findings) if found.count))

    def _units(self, scan: UnitScan, table: Table) -> Sequence[int]:
        """The number of units, and of units with more than `max_rows` rows."""
        key, number = self.fields.new(scan.unit_field.type), self.fields.new(SqlType.BIGINT)
        by_unit = Aggregate(scan, (key,), (Column(scan.unit_field),), (number,), (_count(None),))
        most = Literal(table.rows_per_unit, SqlType.BIGINT)
        return self._counted(by_unit, [Call("gt", (Column(number), most), SqlType.BOOLEAN)])

    def _tests(self, scan: UnitScan, table: Table) -> tuple[list[tuple[str, str, Expr]], UnitScan]:
        """Conditions that no row should meet, each with its column and message; and the rows to test."""
        tests: list[tuple[str, str, Expr]] = []
        columns, fields = list(scan.columns), list(scan.column_fields)
        for column in table.columns:
            if column.name == table.unit_key:
                continue
            field = scan.column_fields[scan.columns.index(column)]
            # The same column again, of which only NULL is read: the typed one is NULL also where a value is lost.
            columns.append(column)
            fields.append(self.fields.new(SqlType.UNKNOWN))
            value, stored = Column(field), Column(fields[-1])
            lost = all_of(negated(is_null(stored)), is_null(value))
            tests.append((column.name, "values that are not finite values of their type (counted as NULL)", lost))
            tests += [(column.name, what, condition) for what, condition in self._of_column(table, column, value)]
        return tests, replace(scan, columns=tuple(columns), column_fields=tuple(fields))

    def _of_column(self, table: Table, column: PolicyColumn, value: Column) -> Iterator[tuple[str, Expr]]:
        if not column.nullable:
            yield "NULL values despite nullable = false", is_null(value)
        if column.lower is not None and column.upper is not None:
            outside = [
                Call(name, (value, _literal(limit, column.type)), SqlType.BOOLEAN)
                for name, limit in (("lt", column.lower), ("gt", column.upper))
            ]
            yield (
                "values outside lower and upper (clamped)",
                any_of(*outside),
            )
        if column.values is not None or column.values_from is not None:
            domain = Lister(self.catalog, self.fields).column(table, replace(column, nullable=False), column.type)
            if domain is not None:
                foreign = negated(In(value, domain.relation))
                yield (
                    "values outside the domain (their rows are in no group)",
                    all_of(negated(is_null(value)), foreign),
                )

    def _counted(self, relation: Relation, conditions: Sequence[Expr]) -> tuple[int, ...]:
        """The number of rows, and of the rows that meet each condition."""
        flags = tuple(self.fields.new(SqlType.BOOLEAN) for _ in conditions)
        tested = Project(relation, flags, tuple(conditions))
        calls = (_count(None), *(_count(Column(flag)) for flag in flags))
        numbers = tuple(self.fields.new(SqlType.BIGINT) for _ in calls)
        counts = Aggregate(tested, (), (), numbers, calls)
        renderer = Renderer(DIALECTS[self.catalog.schema.engine], self.catalog.schema, self.policy)
        sql = renderer.relation(counts, frozenset(numbers))
        return self.backend.count(sql, [renderer.name(number) for number in numbers])


def _count(condition: Expr | None) -> AggregateCall:
    return AggregateCall("count", None, False, condition, SqlType.BIGINT)


def _literal(limit: Bound, sql_type: SqlType) -> Literal:
    if not isinstance(limit, Fraction):
        return Literal(limit, sql_type)
    if sql_type.is_integer:
        return Literal(int(limit), sql_type)
    exact = Decimal(limit.numerator) / Decimal(limit.denominator)
    return Literal(exact if sql_type is SqlType.NUMERIC else float(limit), sql_type)
