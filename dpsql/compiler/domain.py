"""domain: the public set of values that a group key can have, or None where it is private.

Rule: a domain follows from the policy and the query's text alone; rows whose key lies outside it are dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from math import prod

from dpsql.compiler.bound import Bounds, bounds_of, interval, moment_bounds
from dpsql.compiler.catalog import Catalog
from dpsql.compiler.ir import (
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Project,
    Relation,
    Scan,
    Series,
    SetOperation,
    UnitScan,
    Value,
    Values,
    conjuncts,
    fields_in,
    rewrite_expression,
)
from dpsql.compiler.literals import INTEGER_RANGES
from dpsql.compiler.lowering import Fields
from dpsql.policy import Column as PolicyColumn
from dpsql.sqltypes import SqlType

MAX_GROUPS = 100_000
"""Groups that are enumerated at the most; beyond that keys count as private."""
TYPICAL_TABLE = 200
"""How many values a public table's column is taken to have, as long as the data is not read."""
MAX_SOURCE = 30_000
"""Values of a column's domain that are tried one by one to find a key's domain."""


@dataclass(frozen=True)
class Domain:
    """The values of one key: a public relation of one field, and how many at the most (None: as the table has)."""

    relation: Relation
    size: int | None


@dataclass(frozen=True)
class _Origin:
    """A key's expression over the columns of the scanned table, with the conditions its rows pass."""

    scan: UnitScan
    conditions: tuple[Expr, ...]
    bounds: Bounds


def enumerate_keys(
    keys: tuple[Expr, ...], relation: Relation, catalog: Catalog, fields: Fields
) -> tuple[Relation, int | None] | None:
    """All combinations of key values as a public relation with one field a key, in their order.

    Returns:
        The relation and the number of its rows at the most (None where a public table decides), or None where
        some key is private or there are too many combinations.
    """
    origin, inlined = _inline(keys, relation)
    domains = [Enumeration(catalog, fields, origin).domain(key) for key in inlined]
    known = [domain for domain in domains if domain is not None]
    if len(known) < len(domains) or not known:
        return None
    sizes = [domain.size for domain in known if domain.size is not None]
    tables = len(known) - len(sizes)
    if prod(sizes) * TYPICAL_TABLE**tables > MAX_GROUPS:
        return None
    # Each value once: a group that came twice would be noised twice and paid once.
    product: Relation = Distinct(known[0].relation)
    for domain in known[1:]:
        product = Join("cross", product, Distinct(domain.relation), None)
    return product, prod(sizes) if len(sizes) == len(known) else None


def _inline(keys: tuple[Expr, ...], relation: Relation) -> tuple[_Origin, tuple[Expr, ...]]:
    """Write keys and conditions over the columns of the scan below."""
    conditions: tuple[Expr, ...] = ()
    bounds = bounds_of(relation)
    while not isinstance(relation, UnitScan):
        if isinstance(relation, Filter):
            conditions += conjuncts(relation.condition)
            relation = relation.input
        elif isinstance(relation, Project):
            written = dict(zip(relation.fields, relation.expressions, strict=True))
            keys = tuple(_substitute(key, written) for key in keys)
            conditions = tuple(_substitute(condition, written) for condition in conditions)
            relation = relation.input
        else:
            raise TypeError(f"{type(relation).__name__} is not a relation of protected rows")
    return _Origin(relation, conditions, bounds_of(relation) | dict(bounds)), keys


def _substitute(expression: Expr, written: Mapping[Field, Expr]) -> Expr:
    return rewrite_expression(
        expression, lambda part: written.get(part.field, part) if isinstance(part, Column) else None
    )


@dataclass(frozen=True)
class Enumeration:
    """Finds the domains of key expressions over one scan."""

    catalog: Catalog
    fields: Fields
    origin: _Origin

    def domain(self, key: Expr) -> Domain | None:
        """The domain of one key, by the first rule that applies."""
        return self._image(key) or self._fixed(key) or self._union(key) or self._series(key) or self._moments(key)

    def _image(self, key: Expr) -> Domain | None:
        """A key over columns of known domain: what its expression makes of their values that pass WHERE."""
        used = sorted(fields_in(key), key=lambda field: field.number)
        domains = [self._column(field) for field in used]
        known = [domain for domain in domains if domain is not None]
        sizes = [domain.size for domain in known if domain.size is not None]
        if len(known) < len(used) or prod(sizes) > MAX_SOURCE:
            return None
        source: Relation = Values((), ((),))
        renamed: dict[Field, Expr] = {}
        for position, (field, domain) in enumerate(zip(used, known, strict=True)):
            source = domain.relation if position == 0 else Join("cross", source, domain.relation, None)
            renamed[field] = Column(domain.relation.fields[0])
        for condition in self.origin.conditions:
            if fields_in(condition) and fields_in(condition) <= set(used):
                source = Filter(source, _substitute(condition, renamed))
        image = Project(source, (self.fields.new(key.type),), (_substitute(key, renamed),))
        domain = Domain(Distinct(image), prod(sizes) if len(sizes) == len(known) else None)
        return self._within_interval(key, domain)

    def _within_interval(self, key: Expr, domain: Domain) -> Domain:
        """A whole-numbered key has no more values than its interval, and NULL; the engine holds it to that."""
        ends = self._whole_interval(key)
        if ends is None or (domain.size is not None and domain.size <= ends[1] - ends[0] + 2):
            return domain
        column = Column(domain.relation.fields[0])
        low, high = (Literal(end, SqlType.BIGINT) for end in ends)
        inside = Call("between", (column, low, high), SqlType.BOOLEAN)
        missing = Call("is_null", (column,), SqlType.BOOLEAN)
        relation = Filter(domain.relation, Call("or", (inside, missing), SqlType.BOOLEAN))
        return Domain(relation, max(0, ends[1] - ends[0] + 1) + 1)

    def _column(self, field: Field) -> Domain | None:
        """The declared domain of a column of the table."""
        scan = self.origin.scan
        columns = dict(zip(scan.column_fields, scan.columns, strict=True))
        if field not in columns:
            return None
        column = columns[field]
        nulls = column.nullable and not self.catalog.is_not_null(scan.table, column.name)
        if column.values_from is not None:
            return self._from_table(column.values_from, field.type, nulls)
        if column.values is not None:
            return self._values(column.values, field.type, nulls)
        if field.type is SqlType.BOOLEAN:
            return self._values((False, True), field.type, nulls)
        return self._declared_range(column, field.type, nulls)

    def _values(self, values: tuple[object, ...], sql_type: SqlType, nulls: bool) -> Domain:
        literals = [(Literal(_plain(value, sql_type), sql_type),) for value in values]
        if nulls:
            literals.append((Literal(None, sql_type),))
        return Domain(Values((self.fields.new(sql_type),), tuple(literals)), len(literals))

    def _from_table(self, place: tuple[str, str], sql_type: SqlType, nulls: bool) -> Domain:
        table = self.catalog.policy.table(place[0])
        source = table.column(place[1]) if table is not None else None
        if table is None or source is None:
            raise TypeError("the policy loader has found the table and its column")
        field = self.fields.new(source.type)
        scan: Relation = Scan(table, (source,), (field,))
        present = Filter(scan, Call("not", (Call("is_null", (Column(field),), SqlType.BOOLEAN),), SqlType.BOOLEAN))
        target = self.fields.new(sql_type)
        listed = Project(present, (target,), (_as_type(Column(field), sql_type),))
        relation: Relation = self._with_null(listed, sql_type) if nulls else listed
        return Domain(Distinct(relation), None)

    def _with_null(self, relation: Relation, sql_type: SqlType) -> Relation:
        null = Values((self.fields.new(sql_type),), ((Literal(None, sql_type),),))
        return SetOperation("union", True, relation, null, (self.fields.new(sql_type),))

    def _declared_range(self, column: PolicyColumn, sql_type: SqlType, nulls: bool) -> Domain | None:
        lower, upper = column.lower, column.upper
        if sql_type.is_integer and isinstance(lower, Fraction) and isinstance(upper, Fraction):
            return self._range(lower.__ceil__(), upper.__floor__(), sql_type, None, nulls)
        if sql_type is SqlType.DATE and isinstance(lower, date) and isinstance(upper, date):
            return self._range(lower, upper, sql_type, "DAY", nulls)
        return None

    def _range(
        self, start: int | date, stop: int | date, sql_type: SqlType, unit: str | None, nulls: bool
    ) -> Domain | None:
        size = _length(start, stop, unit)
        if size > MAX_SOURCE:
            return None
        series = Series((self.fields.new(sql_type),), start, stop, unit)
        return Domain(self._with_null(series, sql_type) if nulls else series, size + nulls)

    def _fixed(self, key: Expr) -> Domain | None:
        """A condition is true, false or NULL."""
        return self._values((False, True), key.type, True) if key.type is SqlType.BOOLEAN else None

    def _union(self, key: Expr) -> Domain | None:
        """CASE and COALESCE have the values of their branches."""
        if isinstance(key, Case):
            parts = [value for _, value in key.branches] + [key.default]
        elif isinstance(key, Call) and key.function == "coalesce":
            parts = list(key.arguments)
        else:
            return None
        domains = [self.domain(part) for part in parts]
        known = [domain for domain in domains if domain is not None]
        if len(known) < len(domains):
            return None
        union = known[0].relation
        for domain in known[1:]:
            union = SetOperation("union", False, union, domain.relation, (self.fields.new(key.type),))
        sizes = [domain.size for domain in known if domain.size is not None]
        return Domain(Distinct(union), sum(sizes) if len(sizes) == len(known) else None)

    def _series(self, key: Expr) -> Domain | None:
        """A whole-numbered key of bounded size."""
        ends = self._whole_interval(key)
        if ends is None:
            return None
        low, high = INTEGER_RANGES[key.type]
        return self._range(max(ends[0], low), min(ends[1], high), key.type, None, True)

    def _whole_interval(self, key: Expr) -> tuple[int, int] | None:
        if not key.type.is_integer:
            return None
        found = interval(key, self.origin.bounds)
        if found.lower is None or found.upper is None:
            return None
        years = self._years(key)
        return years if years is not None else (found.lower.__ceil__(), found.upper.__floor__())

    def _years(self, key: Expr) -> tuple[int, int] | None:
        """EXTRACT(year FROM column) lies between the years of the column's bounds."""
        inner = key.argument if isinstance(key, Cast) else key
        if not isinstance(inner, Call) or inner.function != "extract_year":
            return None
        bounds = self._moment_bounds(inner.arguments[0])
        return (bounds[0].year, bounds[1].year) if bounds is not None else None

    def _moments(self, key: Expr) -> Domain | None:
        """DATE_TRUNC of a bounded timestamp."""
        inner = key.argument if isinstance(key, Cast) else key
        if not isinstance(inner, Call) or not inner.function.startswith("date_trunc_"):
            return None
        bounds = self._moment_bounds(inner.arguments[0])
        unit = inner.function.removeprefix("date_trunc_")
        if bounds is None or key.type is SqlType.TIMESTAMPTZ:
            return None
        start, stop = _truncated(bounds[0], unit), _truncated(bounds[1], unit)
        return (
            self._range(start, stop, key.type, unit.upper(), True) if start is not None and stop is not None else None
        )

    def _moment_bounds(self, argument: Expr) -> tuple[date | datetime, date | datetime] | None:
        scan = self.origin.scan
        columns = dict(zip(scan.column_fields, scan.columns, strict=True))
        if isinstance(argument, Column) and argument.field in columns:
            return moment_bounds(columns[argument.field])
        return None


def _as_type(expression: Expr, sql_type: SqlType) -> Expr:
    return expression if expression.type is sql_type else Cast(expression, sql_type)


def _plain(value: object, sql_type: SqlType) -> Value:
    if isinstance(value, Fraction):
        return int(value) if sql_type.is_integer else Decimal(value.numerator) / Decimal(value.denominator)
    if not isinstance(value, bool | int | str | date | datetime):
        raise TypeError(f"no domain of {type(value).__name__}")
    return value


def _length(start: int | date, stop: int | date, unit: str | None) -> int:
    if isinstance(start, int) and isinstance(stop, int):
        return max(0, stop - start + 1)
    if not isinstance(start, date) or not isinstance(stop, date):
        raise TypeError("a series runs between numbers or between dates")
    days = max(0, stop.toordinal() - start.toordinal() + 1)
    hours = 24 if unit == "HOUR" else 1
    least_days = {"YEAR": 365, "QUARTER": 90, "MONTH": 28, "WEEK": 7}.get(unit or "", 1)
    return days * hours // least_days + 1


def _truncated(moment: date | datetime, unit: str) -> datetime | None:
    """The first instant of the unit that holds a moment."""
    at = moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    match unit:
        case "year":
            return day.replace(month=1, day=1)
        case "quarter":
            return day.replace(month=3 * ((day.month - 1) // 3) + 1, day=1)
        case "month":
            return day.replace(day=1)
        case "week":
            monday = day.toordinal() - day.weekday()
            return datetime.fromordinal(monday) if monday >= 1 else None
        case "day":
            return day
        case _:
            return at.replace(minute=0, second=0, microsecond=0)
