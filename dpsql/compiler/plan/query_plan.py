"""query_plan: a complete plan: release boundaries, reads, noise, price and output.

Rule 1: a release boundary is closed: a relation that refers to a row outside its subquery is cut at a lower place.
Rule 2: rows of protected tables are read only by releases.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from dpsql.compiler.aggregates.base import ColumnError, number_text
from dpsql.compiler.bounding.steps import PrintedQuery
from dpsql.compiler.canonical.descriptions import DescribedCell, DescribedRelease, ReleaseDescription
from dpsql.compiler.dialects.render import CopiedText
from dpsql.compiler.ir.functions import COLLECTED, JSON_FUNCTIONS
from dpsql.compiler.ir.nodes import Aggregate, Relation, Release, Scan, SystemScan, UnitScan
from dpsql.compiler.ir.primitives import Contribution
from dpsql.compiler.ir.walk import calls_in, expressions, free_fields, inputs, nodes, scalars_in, windows_in
from dpsql.compiler.plan.pricing import PlannedPrimitive, Selection
from dpsql.compiler.plan.profiled_bounds import ProfiledBounds
from dpsql.compiler.relations.empty_results import leaves_open
from dpsql.errors import UnsupportedQuery
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Event, Price
from dpsql.privacy.exponential_mechanism import CellMechanism
from dpsql.privacy.mechanisms import AddedNoise
from dpsql.privacy.selection import Threshold
from dpsql.sqltypes import SqlType


def cuts(relation: Relation) -> tuple[Relation, ...]:
    """The relations that post-processing reads: releases, system relations, and the largest closed public subtrees.

    Raises:
        UnsupportedQuery: A release refers to the row outside its subquery.
    """
    return tuple(dict.fromkeys(_cuts(relation)))


def made_first(aggregate: Aggregate, domain: Relation | None) -> dict[Relation, bool]:
    """What has to be made before an aggregation of protected rows can be.

    These are the largest closed subtrees without protected rows that hold a release, or something that an engine may
    decide in several ways; and every closed subquery that stands for one value: that it has one row at the most must be
    known before protected rows are read.

    Args:
        aggregate: The aggregation.
        domain: The relation that enumerates its groups, if one does.

    Returns:
        The subtrees in the order in which they stand, each with whether it may have one row at the most.

    Raises:
        UnsupportedQuery: A release refers to the row outside its subquery, or a relation of schema dpsql is there.
    """
    for node in nodes(aggregate):
        if isinstance(node, SystemScan):
            raise UnsupportedQuery(
                f"dpsql.{node.name} cannot be used in a query over protected tables",
                hint=f"Query it alone. Write: SELECT * FROM dpsql.{node.name}",
            )
    found: dict[Relation, bool] = {}
    _collect(aggregate, found, frozenset(), single=False)
    if domain is not None:
        _collect(domain, found, frozenset(found), single=False)
    return found


def _cuts(relation: Relation) -> Iterator[Relation]:
    if isinstance(relation, UnitScan):
        raise TypeError("rows of a protected table stand outside a release")
    if isinstance(relation, Release):
        _check_closed(relation)
    if isinstance(relation, Release | SystemScan):
        yield relation
    elif not (_reaches(relation, Release, SystemScan, UnitScan) or is_made_above(relation) or free_fields(relation)):
        if _reaches(relation, Scan):
            yield relation
    else:
        for part in inputs(relation):
            yield from _cuts(part)


def is_made_above(relation: Relation) -> bool:
    """True where post-processing alone can compute a relation, on any engine."""
    for node in nodes(relation):
        if isinstance(node, Aggregate) and any(call.function in COLLECTED for call in node.aggregates):
            return True
        if any(window.function in COLLECTED for part in expressions(node) for window in windows_in(part)):
            return True
        if any(call.function in JSON_FUNCTIONS for part in expressions(node) for call in calls_in(part)):
            return True
    return False


def _collect(relation: Relation, found: dict[Relation, bool], known: frozenset[Relation], *, single: bool) -> None:
    """Add relations that are computed first to `found`; those in `known` are not merged into larger ones."""
    if relation in known:
        return
    if isinstance(relation, Release):
        _check_closed(relation)
    needed = single or is_made_above(relation)
    needed = needed or any(isinstance(node, Release) or leaves_open(node) for node in nodes(relation))
    if needed and not _reaches(relation, UnitScan) and not free_fields(relation) and known.isdisjoint(nodes(relation)):
        found[relation] = single or found.get(relation, False)
        return
    if not needed and not any(scalars_in(each) for node in nodes(relation) for each in expressions(node)):
        return  # then nothing in it is needed either
    values = {value for expression in expressions(relation) for value in scalars_in(expression)}
    for part in inputs(relation):
        _collect(part, found, known, single=part in values)


def _check_closed(release: Release) -> None:
    if free_fields(release):
        raise UnsupportedQuery(
            "an aggregate of protected rows must not refer to a row outside its subquery",
            hint="Group the subquery by the compared column, and join its result.",
        )


def _reaches(relation: Relation, *kinds: type[Relation]) -> bool:
    """Whether a tree has a node of one of these kinds above its releases."""
    return any(isinstance(node, kinds) for node in nodes(relation))


MAX_RESULT_ROWS = 1_000_000
"""The most rows of a result, or of a relation that is computed first."""


@dataclass(frozen=True)
class PublicRead:
    """A query over public tables alone, which the engine answers without noise.

    Attributes:
        table: The name of its rows in post-processing.
        relation: The relation that it reads.
        sql: The relation as engine SQL.
        width: Its number of columns.
    """

    table: str
    relation: Relation
    sql: str
    width: int


@dataclass(frozen=True)
class PlannedInput:
    """A relation computed from releases and public rows before an engine query, which reads it as a table of texts.

    Attributes:
        table: Its name for the engine: no table of a policy has a dot in its name.
        sql: Post-processing SQL with columns v0, v1 …, over the releases as r0, r1 … and the public rows.
        types: The types that the texts are read as.
        single: Whether it stands for one value, and so has at most one row.
        releases: The releases that it reads.
        public_reads: The public rows that it reads, each under its own name.
    """

    table: str
    sql: str
    types: tuple[SqlType, ...]
    single: bool
    releases: "tuple[PlannedRelease, ...]"
    public_reads: tuple[PublicRead, ...]


@dataclass(frozen=True)
class HeldRelease:
    """A release that the user has already.

    Attributes:
        key: Its key.
        events: What it was charged with.
        number: Its place among the user's releases of the dataset, from 1 on, as in dpsql.releases.
    """

    key: str
    events: tuple[Event, ...]
    number: int


@dataclass(frozen=True)
class MergedGroups:
    """A release with the groups of another one, some of them merged, which tells cells of that one once more.

    Attributes:
        source: The release: one that the user has, or one that is bought for this purpose.
        description: Its description.
        noises: The noise of its cells.
    """

    source: "HeldRelease | PlannedRelease"
    description: ReleaseDescription
    noises: tuple[AddedNoise, ...]

    def place(self, cell: DescribedCell) -> int | None:
        """The place of a cell; None if it is none of its cells."""
        return self.description.cells.index(cell) if cell in self.description.cells else None


@dataclass(frozen=True)
class DerivedCells:
    """Cells computed from those of another release.

    Attributes:
        source: That release: one that the user has, or one that is bought for this purpose.
        sql: SQL that computes the cells from its cells, table r0, for the listed groups, table q0.
        domain: The listed groups; None without groups.
        width: The number of keys.
        places: For each cell, the place of the source's cell that is summed; None if the source does not have it.
        terms: For each cell, the most cells that are summed.
        variances: For each cell, the largest variance of its noise.
        description: The source's description.
        noises: The noise of its cells.
        merged: Other releases of the same groups. The source's cells are estimated from all of them, then summed.
    """

    source: "HeldRelease | PlannedRelease"
    sql: str
    domain: PublicRead | None
    width: int
    places: tuple[int | None, ...]
    terms: tuple[int, ...]
    variances: tuple[Fraction, ...]
    description: ReleaseDescription
    noises: tuple[AddedNoise, ...]
    merged: tuple[MergedGroups, ...] = ()

    @property
    def sources(self) -> "tuple[HeldRelease | PlannedRelease, ...]":
        """The releases that it is computed from."""
        return (self.source, *(each.source for each in self.merged))


@dataclass(frozen=True)
class PlannedRelease:
    """One bounded engine query, and how its cells are released.

    Attributes:
        query: The bounded query: its columns are keys as text, the number of units, and one bigint per primitive.
        inputs: The relations that are computed before it.
        keys: The number of group keys.
        primitives: The cells with their noise.
        selection: How groups are selected by their units; None if all are shown.
        threshold_primitive: The primitive whose noisy cell is compared with the threshold; None if there is none.
        contribution: What one unit may contribute.
        private_keys: Whether the groups depend on data.
        min_units: The least units of a group that may be shown; the selection subtracts min_units - 1.
        key: The key for reuse: releases with equal keys are equal computations on equal data and inputs.
        form: Whether and why it reads a prepared table; None if no table is prepared.
        profiled: Its bounds, if a profile chose them.
        described: The description by which derivations are found; None if there can be none.
        derived: Its derivations from other releases; its cells are their mean, and the noise of its primitives is that
            of the mean. Empty if it is released itself.
        announced: The noise for intervals, cell by cell, if it is smaller than the drawn noise; else empty.
        leaves_out: Whether the user has more releases that could derive it, which are not used.
    """

    query: PrintedQuery
    inputs: tuple[PlannedInput, ...]
    keys: int
    primitives: tuple[PlannedPrimitive, ...]
    selection: Selection | None
    threshold_primitive: int | None
    contribution: Contribution
    private_keys: bool
    min_units: int
    key: str
    form: str | None = None
    profiled: ProfiledBounds | None = None
    described: DescribedRelease | None = field(default=None, compare=False, repr=False)
    derived: tuple[DerivedCells, ...] = ()
    announced: tuple[CellMechanism, ...] = ()
    leaves_out: bool = False

    @property
    def noises(self) -> tuple[CellMechanism, ...]:
        """The noise of its cells for intervals."""
        return self.announced or tuple(each.noise for each in self.primitives)

    @property
    def sources(self) -> "tuple[PlannedRelease | HeldRelease, ...]":
        """The releases whose noise is drawn: itself, or those that it is computed from."""
        return tuple(source for each in self.derived for source in each.sources) or (self,)

    @property
    def sql(self) -> str:
        """The engine SQL."""
        return self.query.sql

    @property
    def bought(self) -> "tuple[PlannedRelease, ...]":
        """Its sources that are charged, unless the user has them."""
        return tuple(source for source in self.sources if isinstance(source, PlannedRelease))

    @property
    def limits_groups(self) -> bool:
        """Whether the noise depends on the number of a unit's groups, and not on its rows alone."""
        rows = self.contribution.rows_per_unit
        if rows is None or self.contribution.groups_per_unit < rows or self.selection is not None:
            return True
        return any(planned.primitive.counts_units for planned in self.primitives)

    @property
    def smallest_likely(self) -> int | None:
        """The number of units with which a group is shown with probability about 1/2; None if all are shown."""
        if self.selection is None:
            return None
        selection = self.selection
        counted = selection.cutoff if isinstance(selection, Threshold) else selection.smallest_likely
        return counted + self.min_units - 1

    @property
    def in_blocks(self) -> bool:
        """Whether groups are kept or dropped one by one, so that they can be released block by block.

        Public groups are released all at once, in their order.
        """
        if not self.private_keys:
            return False
        bounds = self.contribution
        # If SQL does not limit a unit's groups, their total number is compared with the limit, which needs all at once.
        return bounds.lists is None and (bounds.ranked or bounds.one_row or bounds.one_group)

    def counted(self, cell: int) -> str:
        """Return what a cell counts or sums, in words."""
        primitive = self.primitives[cell].primitive
        if primitive.counts_units:
            return "groups of units"
        return "rows" if primitive.grid is None else "sum"

    def bounds_text(self, cell: int) -> str:
        """Return the bounds that can drop a part of a cell, with the names of their settings."""
        bounds, primitive = self.contribution, self.primitives[cell].primitive
        if primitive.counts_units:
            return f"max_groups = {bounds.groups_per_unit}"
        if bounds.one_row and primitive.grid is not None:
            most = number_text(float(primitive.grid.upper * primitive.grid.step))
            return f"max_rows, which limits values to {most}"
        profile = " (chosen by the profile)" if self.profiled is not None else ""
        in_each = f" and max_rows_per_group = {bounds.rows_per_group}"
        rows = bounds.rows_per_unit
        if rows is not None:
            return f"max_rows = {rows}{in_each if bounds.rows_per_group < rows else ''}{profile}"
        if bounds.grouped and not bounds.copied and not bounds.one_group:
            return f"max_groups = {bounds.groups_per_unit}{in_each}{profile}"
        return f"max_rows = {bounds.rows_per_group}{profile}"

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The events that are charged; a release that the user has costs nothing."""
        if self.derived:
            return tuple(event for source in self.bought for event in source.events)
        noise = tuple(planned.noise.event for planned in self.primitives)
        if self.selection is None:
            return noise
        if isinstance(self.selection, Threshold):
            return (*noise, self.selection.event)
        return noise + self.selection.events


@dataclass(frozen=True)
class WideTotal:
    """The places of a cell, and of its total over all groups with wide bounds, which drop hardly any rows.

    Attributes:
        release: The release that has the cell, by its place in the plan.
        cell: The cell, by its place in the release.
        wide: The release that has the total, by its place in the plan.
        wide_cell: The total, by its place there.
        bounded: The release that has, at the same place, the total of what bounds keep, if groups do not add up to it.
        sampled: The cell that counts the rows of units of whose rows some are left out, if there is one.
        counted: Where the cell has distances from a centre: the cell that counts them.
    """

    release: int
    cell: int
    wide: int
    wide_cell: int
    bounded: int | None = None
    sampled: int | None = None
    counted: int | None = None


@dataclass(frozen=True)
class OtherRelease:
    """A release that is planned alone, from which a release of a query can be derived.

    Attributes:
        release: The release.
        like: The release of the query, by its place in the plan: bounds are the same, and there are no wide totals.
    """

    release: Release
    like: int


@dataclass(frozen=True)
class CellSum:
    """A cell whose groups are unions of the groups of the same cell in a release of finer keys.

    Attributes:
        whole: The release of the sums, by its place in the plan.
        whole_cell: The cell there.
        part: The release of finer keys.
        part_cell: The cell there.
        keys: For each key of `whole`, the place of the equal key of `part`.
    """

    whole: int
    whole_cell: int
    part: int
    part_cell: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class SourceCell:
    """A cell of a release, with the noise that was drawn for it.

    Attributes:
        release: The key of the release.
        place: The place of the cell there.
        keys: The digests of its group keys, in their order.
        noise: The noise.
    """

    release: str
    place: int
    keys: tuple[str, ...]
    noise: AddedNoise


@dataclass(frozen=True)
class CellHistory:
    """One cell in all releases of a user that have it, and which of these are sums of others.

    Attributes:
        told: For each set of group keys, the cell in each release with these keys. It is empty for keys that no release
            has, but that two others have in common.
        sums: Which sets are sums of others, by their places in `told`.
    """

    told: tuple[tuple[SourceCell, ...], ...]
    sums: tuple[CellSum, ...]


@dataclass(frozen=True)
class SystemRead:
    """A relation of schema dpsql that the post-processing needs."""

    table: str
    name: str
    width: int


@dataclass(frozen=True)
class OutputColumn:
    """One column of the result.

    Attributes:
        name: Its name.
        type: The type of its values.
        errors: Its error in each arm of a union; empty unless it is a noisy aggregate.
    """

    name: str
    type: SqlType
    errors: tuple[ColumnError, ...] = ()

    @property
    def error(self) -> ColumnError | None:
        """The largest error of the arms; that of a mean is unknown before the release."""
        return max(self.errors, key=_width, default=None)


@dataclass(frozen=True)
class CopiedOrder:
    """One ORDER BY term of copied rows; `type` is that of its values."""

    term: CopiedText
    type: SqlType
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class CopiedRows:
    """The rows of one release, or some of them; each column is a key, a cell, or a cell plus a number.

    Attributes:
        release: The release, by its place in the plan.
        columns: The source of each column.
        order: Their order; rows that are equal in it are in the release's own.
        limit: How many rows of this order are shown; None for all.
        offset: How many of the first are not.
    """

    release: int
    columns: tuple[CopiedText, ...]
    order: tuple[CopiedOrder, ...] = ()
    limit: int | None = None
    offset: int = 0


Written = tuple[str, tuple[OutputColumn, ...], CopiedRows | None]
"""Post-processing SQL, its columns, and its rows if they are only copied."""


def _width(error: ColumnError) -> float:
    return float("inf") if error.plus_minus_95 is None else error.plus_minus_95


@dataclass(frozen=True)
class CompiledQuery:
    """A complete plan: reads, noise, price and output.

    Attributes:
        sql: The text of the query.
        columns: The result's columns.
        releases: Engine queries over protected tables, each released with noise, in order of dependency.
        public_reads: Engine queries over public tables that post-processing needs.
        system_reads: Relations of schema dpsql.
        post_sql: SQL over all of these, for an engine without data, in which release i is table ri.
        price: The price; None if nothing is released.
        privacy_unit: The policy's word for one unit.
        wide_totals: The totals that measure how much bounding drops, in the order of their cells.
        limited: Places of the columns that are followed by the two limits of their 95 % interval.
        invented: Whether the rows are invented from the policy's bounds and domains.
        withheld: Whether the query selects rows of protected tables, so that only the columns are shown.
        adds_up_listed: Whether post-processing combines rows of public groups, some of which may have no unit.
        copies: The greatest number of rows that series, VALUES and arrays make of one, if bounds cut a unit's rows.
        passes_on: Whether the rows are those of its one public read, each converted by itself.
        copied: Its rows, if post-processing only copies them.
        written: Writes the post-processing for other noise of the releases.
        anew: If releases are derived: the query without derivations.
        max_error_ratio: The most times that a derived cell may have the error of a new one.
        planned: Plans the query for another ε, or another release alone, with a part of each primitive's share.
        sums: The cells that add up to other cells of the query, because both are over the same rows of each unit.
        sums_differ: Whether there are totals over other rows than those of their parts.
        fresh: If all that is bought is combined with earlier releases: the query over what is bought alone.
        earlier: Earlier releases of the user with which the query's cells are made to add up.
        histories: Which cells of all of these add up to others.
        unread: How many older releases over the same rows are not among these: only the newest ones are read.
    """

    sql: str
    columns: tuple[OutputColumn, ...]
    releases: tuple[PlannedRelease, ...]
    public_reads: tuple[PublicRead, ...]
    system_reads: tuple[SystemRead, ...]
    post_sql: str
    price: Price | None
    privacy_unit: str
    wide_totals: tuple[WideTotal, ...] = ()
    limited: tuple[int, ...] = ()
    invented: bool = False
    withheld: bool = False
    adds_up_listed: bool = False
    copies: int = 1
    passes_on: bool = False
    copied: CopiedRows | None = field(default=None, compare=False, repr=False)
    written: Callable[[Sequence[PlannedRelease]], Written] | None = field(default=None, compare=False, repr=False)

    anew: "CompiledQuery | None" = field(default=None, compare=False, repr=False)
    max_error_ratio: Fraction = Fraction(1)
    planned: "Callable[[Fraction, OtherRelease | None, Sequence[Fraction]], CompiledQuery] | None" = field(
        default=None, compare=False, repr=False
    )

    sums: tuple[tuple[CellSum, ...], ...] = ()
    sums_differ: bool = False
    fresh: "CompiledQuery | None" = field(default=None, compare=False, repr=False)
    earlier: tuple[HeldRelease, ...] = ()
    histories: tuple[CellHistory, ...] = ()
    unread: int = 0

    def announcing(self, releases: tuple[PlannedRelease, ...]) -> "CompiledQuery":
        """The same query with intervals for the noise of these releases."""
        if self.written is None:
            raise TypeError("a query knows how it is written")
        post_sql, columns, copied = self.written(releases)
        return replace(self, releases=releases, post_sql=post_sql, columns=columns, copied=copied)

    def over(self, releases: tuple[PlannedRelease, ...], price: Price | None = None) -> "CompiledQuery":
        """The same query over derived releases, with intervals for them."""
        return replace(self.announcing(releases), price=price, anew=self)

    @property
    def combines_cells(self) -> bool:
        """Whether a column with an interval is computed from several others."""
        return any(self.columns[place].error is None for place in self.limited)

    @property
    def sources(self) -> tuple[PlannedRelease | HeldRelease, ...]:
        """The releases that are requested from the ledger."""
        return (*(source for planned in self.releases for source in planned.sources), *self.earlier)

    @property
    def derived_from(self) -> tuple[int, ...]:
        """The user's numbers of the releases that it is derived from, sorted."""
        sources = (source for planned in self.releases for source in planned.sources)
        return tuple(sorted({source.number for source in sources if isinstance(source, HeldRelease)}))

    @property
    def consistent_with(self) -> tuple[int, ...]:
        """The user's numbers of the other releases that it adds up with, sorted."""
        return tuple(sorted(source.number for source in self.earlier))

    @property
    def bought(self) -> tuple[PlannedRelease, ...]:
        """The releases that are charged, unless the user has them."""
        return tuple(source for planned in self.releases for source in planned.bought)

    @property
    def combines(self) -> int:
        """The most releases that are combined in one number."""
        told = (sum(map(len, history.told)) for history in self.histories)
        return max((1, *(len(planned.sources) for planned in self.releases), *told))

    @property
    def ends(self) -> frozenset[int]:
        """Places of the limits of intervals."""
        return frozenset(place + step for place in self.limited for step in (1, 2))

    @cached_property
    def spends(self) -> Spent:
        """The cost of its releases for a user who has none of them."""
        return Spent.zero().add(event for planned in self.releases for event in planned.events)

    def reads(self, releases: Iterable[PlannedRelease]) -> tuple[PublicRead, ...]:
        """Engine queries over public tables, each once: for post-processing, and for the inputs of these releases."""
        inner = (read for planned in releases for made in planned.inputs for read in made.public_reads)
        return tuple({read.sql: read for read in (*self.public_reads, *inner)}.values())
