"""plan: cut a lowered query at its release boundaries, bound and price every release, and write the SQL.

Rule 1: a price is fixed here, before any data is read, and depends on SQL, policy and settings alone.
Rule 2: above the boundary everything is post-processing, run on released cells and public rows.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.compiler.bound import Bounds, bounds_of, interval
from dpsql.compiler.catalog import Catalog
from dpsql.compiler.clauses import Lowered
from dpsql.compiler.domain import enumerate_keys
from dpsql.compiler.ir import (
    Call,
    Cast,
    Column,
    Expr,
    Field,
    Filter,
    Project,
    Relation,
    Release,
    Scan,
    Sort,
    SystemScan,
    inputs,
)
from dpsql.compiler.lowering import Fields
from dpsql.compiler.parts import (
    UNITS,
    Contribution,
    CountOutput,
    MeanOutput,
    Output,
    Part,
    PartList,
    SumOutput,
    decimal_places,
    output_type,
)
from dpsql.compiler.render import DUCKDB_TYPES, Leaf, Renderer
from dpsql.compiler.rewrite import Bounding, rewrite
from dpsql.compiler.settings import QuerySettings
from dpsql.errors import PolicyViolation
from dpsql.privacy.cost import ZERO, Accountant, Event, Price, Share, split
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, best, gaussian, laplace
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric, select, threshold_for
from dpsql.privacy.sensitivity import Adjacency, cell_sensitivity
from dpsql.sqltypes import SqlType

MAX_RESULT_ROWS = 1_000_000
"""Rows of a result."""

Selection = TruncatedGeometric | GaussianThreshold | Threshold


@dataclass(frozen=True)
class PlannedPart:
    """A part with the noise that is added to its cells."""

    part: Part
    noise: DiscreteLaplace | DiscreteGaussian


@dataclass(frozen=True)
class PlannedRelease:
    """One bounded engine query, and everything that is done to its cells before they may leave.

    Attributes:
        table: The name its released cells have in the post-processing SQL.
        sql: Engine SQL: keys as text, the number of units, one bigint a part.
        keys: Number of group keys.
        parts: The cells with their noise.
        selection: How private groups are kept; None where all groups are public.
        threshold_part: The part whose noisy cell the selection cuts off; None for a selection of its own.
        contribution: What one unit may contribute.
        private_keys: True where a group is shown only if it passes the selection.
        key: Names this release for reuse: equal keys are equal computations on equal data.
    """

    table: str
    sql: str
    keys: int
    parts: tuple[PlannedPart, ...]
    selection: Selection | None
    threshold_part: int | None
    contribution: Contribution
    private_keys: bool
    key: str

    @property
    def events(self) -> tuple[Event, ...]:
        """What the ledger is charged with."""
        noise = tuple(planned.noise.event for planned in self.parts)
        if self.selection is None:
            return noise
        if isinstance(self.selection, Threshold):
            return (*noise, self.selection.event)
        return noise + self.selection.events


@dataclass(frozen=True)
class PublicRead:
    """A query over public tables alone, answered by the engine as it is."""

    table: str
    sql: str
    width: int


@dataclass(frozen=True)
class SystemRead:
    """A relation of schema dpsql that the post-processing needs."""

    table: str
    name: str
    width: int


@dataclass(frozen=True)
class ColumnError:
    """What noise does to one output column, in the column's own unit.

    Attributes:
        mechanism: "laplace" or "gaussian".
        stderr: Standard deviation of the noise; None where it depends on other released cells (a mean).
        plus_minus_95: Half the width of a 95 % interval; None likewise.
        l0: Cells that one unit may change.
        linf: The most it may change one of them by.
        l1: The most it may change all of them by, added up.
        l2: The same in the Euclidean norm.
        release: Index of the release the column comes from.
        output: The formula behind it.
    """

    mechanism: str
    stderr: float | None
    plus_minus_95: float | None
    l0: int
    linf: float
    l1: float
    l2: float
    release: int
    output: Output


@dataclass(frozen=True)
class OutputColumn:
    """One column of the result; `error` is None where it is not itself a noisy aggregate."""

    name: str
    type: SqlType
    error: ColumnError | None


@dataclass(frozen=True)
class CompiledQuery:
    """A query wholly planned: what is read, what is added to it, what it costs, what leaves.

    Attributes:
        sql: The text it came from.
        columns: The result's columns.
        releases: Engine queries over protected tables, each released with noise.
        public_reads: Engine queries over public tables.
        system_reads: Relations of schema dpsql.
        post_sql: What is run on all of these, in an engine that has no data.
        price: What the user is asked for; None where nothing is released.
    """

    sql: str
    columns: tuple[OutputColumn, ...]
    releases: tuple[PlannedRelease, ...]
    public_reads: tuple[PublicRead, ...]
    system_reads: tuple[SystemRead, ...]
    post_sql: str
    price: Price | None


def plan(sql: str, lowered: Lowered, catalog: Catalog, fields: Fields, settings: QuerySettings) -> CompiledQuery:
    """Plan a lowered query.

    Args:
        sql: The query's text, for the ledger's history.
        lowered: The query.
        catalog: Policy, schema and role.
        fields: The source of further fields.
        settings: Price, mechanism and narrower bounds.

    Raises:
        PolicyViolation: A sum has no bounds, or private keys have no δ to be selected with.
    """
    return Planner(sql, lowered, catalog, fields, settings).plan()


@dataclass
class Planner:
    """Plans one query."""

    sql: str
    lowered: Lowered
    catalog: Catalog
    fields: Fields
    settings: QuerySettings

    def plan(self) -> CompiledQuery:
        """Cut, bound, price, and write."""
        root = self.lowered.relation
        cuts = list(dict.fromkeys(_cuts(root)))
        outputs: dict[Relation, tuple[Output, ...]] = {}
        indexes: dict[Relation, int] = {}
        bounded: list[Bounded] = []
        for cut in cuts:
            if isinstance(cut, Release):
                item, outputs[cut] = self._bound(cut)
                # Equal releases are one: made once, paid once, the same wherever the query names it.
                indexes[cut] = next((i for i, other in enumerate(bounded) if other.sql == item.sql), len(bounded))
                bounded += [item] if indexes[cut] == len(bounded) else []
        price = Price(self._accountant, self.settings.epsilon, self.settings.delta) if bounded else None
        releases = self._calibrate(bounded, price) if price is not None else ()
        leaves: dict[Relation, Leaf] = {}
        errors: dict[Field, ColumnError] = {}
        public: list[PublicRead] = []
        system: list[SystemRead] = []
        for cut in cuts:
            if isinstance(cut, Release):
                index = indexes[cut]
                leaves[cut] = _released_leaf(cut, outputs[cut], releases[index])
                errors |= _errors(cut, outputs[cut], releases[index], index)
            elif isinstance(cut, SystemScan):
                system.append(SystemRead(f"s{len(system)}", cut.name, len(cut.fields)))
                leaves[cut] = _text_leaf(cut, system[-1].table)
            else:
                public.append(self._public_read(cut, f"q{len(public)}"))
                leaves[cut] = _text_leaf(cut, public[-1].table)
        columns, post_sql = self._output(leaves, errors)
        return CompiledQuery(self.sql, columns, tuple(releases), tuple(public), tuple(system), post_sql, price)

    @property
    def _accountant(self) -> Accountant:
        return self.catalog.role.budget.accountant

    def _renderer(self, leaves: dict[Relation, Leaf] | None = None) -> Renderer:
        return Renderer(self.catalog.schema, self.catalog.policy, leaves)

    def _public_read(self, relation: Relation, table: str) -> PublicRead:
        renderer = self._renderer()
        inner = renderer.relation(relation, frozenset(relation.fields))
        names = [renderer.name(field) for field in relation.fields]
        casts = ", ".join(f"CAST({name} AS VARCHAR) AS v{i}" for i, name in enumerate(names)) or "1 AS one"
        return PublicRead(table, f"SELECT {casts} FROM ({inner})", len(relation.fields))

    # Bounding

    def _bound(self, release: Release) -> tuple["Bounded", tuple[Output, ...]]:
        protected, aggregate = release.protected, release.aggregate
        grouped = bool(aggregate.keys)
        domain = enumerate_keys(aggregate.keys, protected.relation, self.catalog, self.fields) if grouped else None
        contribution, ranked = self._contribution(release, domain[1] if domain is not None else None)
        part_list = PartList(protected, contribution)
        outputs = tuple(part_list.output(call) for call in aggregate.aggregates)
        parts = tuple(part_list.parts)
        listed = domain[0] if domain is not None else None
        bounds = bounds_of(protected.relation)
        fine = any(_is_fine(key, bounds) for key in aggregate.keys)
        bounding = Bounding(protected, aggregate.keys, parts, contribution, listed, ranked, fine)
        sql = rewrite(bounding, self._renderer())
        return Bounded(bounding, sql, grouped and domain is None), outputs

    def _contribution(self, release: Release, groups: int | None) -> tuple[Contribution, bool]:
        protected, settings = release.protected, self.settings
        rows = min(protected.max_rows, settings.max_rows or protected.max_rows)
        if not release.aggregate.keys:
            return Contribution(False, 1, rows, protected.one_row), False
        allowed = min(protected.max_groups, settings.max_groups or protected.max_groups, protected.max_rows)
        per_group = min(protected.max_rows_per_group, settings.max_rows_per_group or rows, rows)
        all_fit = groups is not None and groups <= allowed
        touched = max(1, groups) if all_fit and groups is not None else allowed
        return Contribution(True, touched, per_group, protected.one_row), not (all_fit or protected.one_row)

    # Pricing

    def _calibrate(self, bounded: "list[Bounded]", price: Price) -> tuple[PlannedRelease, ...]:
        """Split the price over all noisy primitives of all releases, evenly."""
        basic = price.accountant is Accountant.BASIC
        # In basic a Gaussian part spends the δ of its share, so a selection there has a share of its own.
        needs = [(item, item.private_keys and (basic or UNITS not in item.bounding.parts)) for item in bounded]
        noise_delta = Fraction(basic and self.settings.mechanism != "laplace")
        shares: list[Fraction] = []
        deltas: list[Fraction] = []
        for item, selects in needs:
            shares += [Fraction(1)] * (len(item.bounding.parts) + selects)
            deltas += [noise_delta] * len(item.bounding.parts) + [Fraction(1)] * selects
            if item.private_keys and not selects:
                deltas[-1] = Fraction(1)
        parts = split(price, shares, deltas) if shares else ()
        planned = []
        for index, (item, selects) in enumerate(needs):
            count = len(item.bounding.parts) + selects
            planned.append(self._release(index, item, parts[:count], price))
            parts = parts[count:]
        return tuple(planned)

    def _release(self, index: int, item: "Bounded", shares: tuple[Share, ...], price: Price) -> PlannedRelease:
        bounding = item.bounding
        basic = price.accountant is Accountant.BASIC
        parts = tuple(
            PlannedPart(part, self._noise(part, bounding.contribution, share if basic else replace(share, delta=ZERO)))
            for part, share in zip(bounding.parts, shares, strict=False)
        )
        selection, threshold_part = None, None
        if item.private_keys:
            selection, threshold_part = self._selection(item, parts, shares)
        identity = json.dumps(
            [
                self.catalog.policy.fingerprint,
                item.sql,
                [planned.noise.event.to_json() for planned in parts],
                repr(selection),
            ]
        )
        key = hashlib.sha256(identity.encode()).hexdigest()
        return PlannedRelease(
            f"r{index}",
            item.sql,
            len(bounding.keys),
            parts,
            selection,
            threshold_part,
            bounding.contribution,
            item.private_keys,
            key,
        )

    def _noise(self, part: Part, contribution: Contribution, share: Share) -> DiscreteLaplace | DiscreteGaussian:
        sensitivity = cell_sensitivity(
            self.catalog.policy.dataset.adjacency,
            l0=contribution.max_groups,
            lower=part.lower,
            upper=part.upper,
            grouped=contribution.grouped,
        )
        if self.settings.mechanism == "laplace":
            return laplace(sensitivity, share)
        if self.settings.mechanism == "gaussian":
            return gaussian(sensitivity, share)
        return best(sensitivity, share)

    def _selection(
        self, item: "Bounded", parts: tuple[PlannedPart, ...], shares: tuple[Share, ...]
    ) -> tuple[Selection, int | None]:
        share = shares[-1]
        if share.delta == 0:
            raise PolicyViolation(
                "these group keys are private, and the query has no delta to select groups with",
                hint="SET dpsql.delta = 1e-9, or group by a column whose values the policy declares.",
            )
        groups = item.bounding.contribution.max_groups
        if self.catalog.policy.dataset.adjacency is Adjacency.SUBSTITUTE:
            groups *= 2
        if len(shares) == len(parts):
            index = item.bounding.parts.index(UNITS)
            return threshold_for(parts[index].noise, groups, share.delta), index
        return select(groups, share), None

    # Output

    def _output(
        self, leaves: dict[Relation, Leaf], errors: dict[Field, ColumnError]
    ) -> tuple[tuple[OutputColumn, ...], str]:
        relation = self.lowered.relation
        renderer = self._renderer(leaves)
        fields = [field for _, field in self.lowered.columns]
        text = renderer.relation(relation, frozenset(fields))
        columns = []
        for name, field in self.lowered.columns:
            origin = _origin(relation, field)
            error = errors.get(origin) if origin is not None else None
            columns.append(OutputColumn(name, field.type, error))
        items = [f"{_outgoing(renderer.name(field), field.type)} AS o{index}" for index, field in enumerate(fields)]
        # One row more than a result may have is enough to see that it has too many.
        return tuple(columns), f"SELECT {', '.join(items)} FROM ({text}) LIMIT {MAX_RESULT_ROWS + 1}"


@dataclass(frozen=True)
class Bounded:
    """A bounded engine query, not yet priced."""

    bounding: Bounding
    sql: str
    private_keys: bool


def _is_fine(key: Expr, bounds: Bounds) -> bool:
    """True where a key has so many values that most rows of a unit have one of their own.

    Measured on DuckDB 2.0 with a million rows: ranking rows wins from about three pairs (unit, key) in four rows.
    """
    if key.type.is_moment:
        inner = key.argument if isinstance(key, Cast) else key
        return not (isinstance(inner, Call) and inner.function in ("date_trunc_year", "date_trunc_quarter"))
    if not key.type.is_number:
        return False
    found = interval(key, bounds)
    return found.lower is None or found.upper is None or found.upper - found.lower > 1000


def _cuts(relation: Relation) -> list[Relation]:
    """Releases, system relations, and the largest subtrees over public tables alone."""
    if isinstance(relation, Release | SystemScan):
        return [relation]
    if _is_public(relation):
        return [relation] if _reads_table(relation) else []
    return [cut for part in inputs(relation) for cut in _cuts(part)]


def _is_public(relation: Relation) -> bool:
    if isinstance(relation, Release | SystemScan):
        return False
    return all(_is_public(part) for part in inputs(relation))


def _reads_table(relation: Relation) -> bool:
    return isinstance(relation, Scan) or any(_reads_table(part) for part in inputs(relation))


def _text_leaf(relation: Relation, table: str) -> Leaf:
    return Leaf(table, tuple(_from_text(f"v{i}", field.type) for i, field in enumerate(relation.fields)))


def _from_text(name: str, sql_type: SqlType) -> str:
    """A value that travelled as text; numerics keep the digits they came with as far as a decimal can."""
    return f"CAST({name} AS {DUCKDB_TYPES[sql_type]})" if not sql_type.is_text else f"CAST({name} AS VARCHAR)"


def _outgoing(name: str, sql_type: SqlType) -> str:
    """A moment with a time zone leaves as microseconds since 1970, so that no time zone data is asked for."""
    return f"epoch_us({name})" if sql_type is SqlType.TIMESTAMPTZ else name


def _released_leaf(release: Release, outputs: tuple[Output, ...], planned: PlannedRelease) -> Leaf:
    keys = tuple(_from_text(f"k{i}", field.type) for i, field in enumerate(release.aggregate.key_fields))
    values = tuple(
        _formula(output, output_type(call, output))
        for call, output in zip(release.aggregate.aggregates, outputs, strict=True)
    )
    order = ", ".join(f"{key} NULLS LAST" for key in keys)
    source = f"(SELECT * FROM {planned.table} ORDER BY {order})" if planned.private_keys else planned.table
    margins = tuple(_margin(output, planned) for output in outputs)
    return Leaf(source, keys + values + margins)


def _formula(output: Output, sql_type: SqlType) -> str:
    """An aggregate's value, of the released cells."""
    if isinstance(output, CountOutput):
        return f"p{output.cell}"
    if isinstance(output, SumOutput):
        places = decimal_places(output.step)
        if sql_type is SqlType.NUMERIC and places is not None:
            unit = f"{float(output.step):.{places}f}" if places else str(int(output.step))
            return f"CAST(p{output.cell} AS DECIMAL(20, 0)) * CAST({unit} AS DECIMAL({len(unit)}, {places}))"
        if sql_type is SqlType.BIGINT:
            return f"p{output.cell}"
        return _times(f"p{output.cell}", output.step)
    grid = output.grid
    mean = f"({grid.centre} + p{output.sum_cell} / CAST(greatest(p{output.count_cell}, 1) AS DOUBLE))"
    inside = f"greatest(least({mean}, {grid.upper}), {grid.lower})"
    return _times(inside, grid.step)


def _times(text: str, step: Fraction) -> str:
    """Grid units as a double: multiplied and divided by whole numbers, so that 15368027 tenths print as 1536802.7."""
    multiplied = f"CAST({text} AS DOUBLE)" if step.numerator == 1 else f"CAST({text} AS DOUBLE) * {step.numerator}"
    return multiplied if step.denominator == 1 else f"{multiplied} / CAST({step.denominator} AS DOUBLE)"


def _margin(output: Output, planned: PlannedRelease) -> str:
    """Half the width of a 95 % interval, of the noise's law and, for a mean, of the released cells."""
    if not isinstance(output, MeanOutput):
        step = output.step if isinstance(output, SumOutput) else Fraction(1)
        return f"CAST('{planned.parts[output.cell].noise.half_width() * float(step)!r}' AS DOUBLE)"
    of_sum, of_count = (planned.parts[cell].noise.half_width() for cell in (output.sum_cell, output.count_cell))
    count = f"CAST(greatest(p{output.count_cell}, 1) AS DOUBLE)"
    spread = f"sqrt(pow({of_sum!r}, 2) + pow({of_count!r} * p{output.sum_cell} / {count}, 2)) / {count}"
    return _times(f"least({spread}, {output.grid.upper - output.grid.lower})", output.grid.step)


def _errors(
    release: Release, outputs: tuple[Output, ...], planned: PlannedRelease, index: int
) -> dict[Field, ColumnError]:
    pairs = zip(release.aggregate.aggregate_fields, outputs, strict=True)
    return {field: _error(output, planned, index) for field, output in pairs}


def _error(output: Output, planned: PlannedRelease, index: int) -> ColumnError:
    cell = output.sum_cell if isinstance(output, MeanOutput) else output.cell
    noise = planned.parts[cell].noise
    step = Fraction(1)
    if isinstance(output, SumOutput):
        step = output.step
    if isinstance(output, MeanOutput):
        step = output.grid.step
    is_mean = isinstance(output, MeanOutput)
    sensitivity, scale = noise.sensitivity, float(step)
    return ColumnError(
        "laplace" if isinstance(noise, DiscreteLaplace) else "gaussian",
        None if is_mean else noise.stderr * scale,
        None if is_mean else noise.half_width() * scale,
        sensitivity.l0,
        sensitivity.linf * scale,
        sensitivity.l1 * scale,
        float(sensitivity.l2_squared) ** 0.5 * scale,
        index,
        output,
    )


def _origin(relation: Relation, field: Field) -> Field | None:
    """The field of a release that an output field hands on unchanged."""
    while not isinstance(relation, Release):
        if isinstance(relation, Project):
            position = relation.fields.index(field)
            expression = relation.expressions[position]
            if not isinstance(expression, Column):
                return None
            field, relation = expression.field, relation.input
        elif isinstance(relation, Filter | Sort):
            relation = relation.input
        else:
            return None
    return field
