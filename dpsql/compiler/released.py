"""released: what the cells of a release are worth: SQL of values and limits, and the error of each aggregate.

Rule: everything here is made of the noise's law and of released cells, so it tells nothing more.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpsql.compiler.engines import POST_PROCESSING
from dpsql.compiler.engines.dialect import Dialect
from dpsql.compiler.grids import decimal_places
from dpsql.compiler.ir import Field, Release
from dpsql.compiler.outputs import (
    CountOutput,
    GroupOutput,
    MeanOutput,
    Output,
    PlaceOutput,
    RankOutput,
    RanksOutput,
    ResponseOutput,
    SumOutput,
    TruthOutput,
    output_type,
)
from dpsql.compiler.pricing import Noise
from dpsql.compiler.ratios import debiased, fieller
from dpsql.compiler.render import Leaf
from dpsql.compiler.schema import EngineColumn
from dpsql.compiler.spreads import SpreadOutput, Statistic, statistic
from dpsql.errors import UnsupportedQuery
from dpsql.privacy.choice import RankChoice
from dpsql.privacy.mechanisms import DiscreteLaplace
from dpsql.privacy.picking import Picking
from dpsql.sqltypes import SqlType

_Computed = SpreadOutput | ResponseOutput | GroupOutput
_Numeric = CountOutput | SumOutput | MeanOutput | RankOutput | RanksOutput | PlaceOutput | _Computed
_MISSED = 0.05
_TEXT = EngineColumn("VARCHAR", SqlType.TEXT, not_null=False)


@dataclass(frozen=True)
class ColumnError:
    """What noise does to one output column, in the column's own unit.

    Attributes:
        mechanism: "laplace", "gaussian", "exponential" or "permute and flip".
        stderr: Standard deviation of the noise; None where it depends on other released cells (a mean, a spread).
        plus_minus_95: Half the width of a 95 % interval; None likewise.
        l0: Cells that one unit may change.
        linf: The most it may change one of them by.
        l1: The most it may change all of them by, added up.
        l2: The same in the Euclidean norm.
        release: Index of the release the column comes from.
        output: The formula behind it.
        ranks: How many ranks a value that was chosen lies from the one asked for, at 95 %; then the sensitivities are
            ranks, too.
        apart: Of keys that were picked: how far the counts or sums of two are apart of which the right one comes first
            at 95 %; then the sensitivities are of counts or sums, too.
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
    ranks: int | None = None
    apart: float | None = None


@dataclass(frozen=True)
class Drawn:
    """What is drawn for the cells of a release.

    Attributes:
        noises: The noise of each cell.
        threshold_part: The cell that a threshold cuts off, if one does.
        cutoff: The threshold.
    """

    noises: tuple[Noise, ...]
    threshold_part: int | None
    cutoff: int

    @property
    def widths(self) -> list[float]:
        """Half the width of a 95 % interval of each cell's noise."""
        return [_half_width(noise) for noise in self.noises]

    def low(self, cell: int) -> str:
        """The low limit of a count that is shown only where its noisy value reaches the threshold.

        Given that it is shown, a group that has the threshold's size or more is as large as y with twice the
        probability at the most: shown it is in half of the cases at least. Of a group below the threshold nothing is
        known but that somebody is in it.
        """
        noise = self.noises[cell]
        if isinstance(noise, RankChoice | Picking):
            raise TypeError("units are counted with noise")
        least = noise.half_width(1 - _MISSED / 2)
        low = f"CAST(p{cell} AS DOUBLE) - {least!r}"
        return f"CASE WHEN {low} >= {self.cutoff} THEN {low} ELSE 1 END"


# Relations that are there ready made


@dataclass(frozen=True)
class ReleasedLeaf:
    """A release as post-processing reads it, from a table of its cells.

    Attributes:
        release: The release, in its canonical form.
        outputs: The formulas of its aggregates.
        private_keys: True where its rows come in no order that SQL gives them.
    """

    release: Release
    outputs: tuple[Output, ...]
    private_keys: bool

    def at(self, table: str, drawn: Drawn | None, written: Release) -> Leaf:
        """The leaf over a table of cells.

        Args:
            table: Its name.
            drawn: What was drawn for its cells; without it there are no limits.
            written: The release as the query writes it: its fields are the leaf's, and its keys order the rows.
        """
        aggregate = self.release.aggregate
        widths = drawn.widths if drawn is not None else None
        columns = {field: from_text(f"k{i}", field.type) for i, field in enumerate(aggregate.key_fields)}
        first: dict[str, str] = {}
        places = enumerate(zip(aggregate.aggregate_fields, self.release.limits, strict=True))
        for (place, (value, limits)), call, output in zip(places, aggregate.aggregates, self.outputs, strict=True):
            if isinstance(output, _Computed):
                found = _computed(output, f"s{place}_", widths, len(aggregate.keys))
                first |= found.columns
                columns[value], ends = found.value, found.limits
            else:
                columns[value] = _formula(output, output_type(call, output), widths)
                ends = _limits(output, widths)
                if drawn is not None and isinstance(output, CountOutput) and output.cell == drawn.threshold_part:
                    ends = drawn.low(output.cell), ends[1]
            columns |= zip(limits, ends, strict=True)
        keys = written.aggregate.key_fields
        order = ", ".join(f"{columns[field]} NULLS LAST" for field in keys)
        is_ordered = not self.private_keys and keys == aggregate.key_fields
        behind = "" if is_ordered else f" ORDER BY {order}"
        source = in_layers(table, first)
        return Leaf(
            f"(SELECT * FROM {source}{behind})" if behind else source, tuple(columns[field] for field in written.fields)
        )

    def errors(self, noises: Sequence[Noise], index: int) -> dict[Field, ColumnError]:
        """The error of each aggregate that is a number, and of the keys that were picked by one.

        Args:
            noises: The noise of each cell.
            index: The release's place among those of its query.
        """
        picked = [output for output in self.outputs if isinstance(output, PlaceOutput)]
        if picked:
            error = _error(picked[0], noises, index)
            return dict.fromkeys(self.release.picked_fields, error)
        pairs = zip(self.release.aggregate.aggregate_fields, self.outputs, strict=True)
        return {f: _error(output, noises, index) for f, output in pairs if not isinstance(output, TruthOutput)}


def text_leaf(fields: Iterable[Field], table: str) -> Leaf:
    """A table of texts v0, v1 … in the engine of post-processing."""
    return Leaf(table, tuple(from_text(f"v{i}", field.type) for i, field in enumerate(fields)))


def input_leaf(fields: Iterable[Field], dialect: Dialect, table: str) -> Leaf:
    """A table of texts v0, v1 … in the engine that holds the data: total for every text, as any table is."""
    return Leaf(table, tuple(dialect.canonical(f"v{i}", _TEXT, field.type) for i, field in enumerate(fields)))


def from_text(name: str, sql_type: SqlType) -> str:
    """A value that travelled as text; numerics keep the digits they came with as far as a decimal can."""
    return f"CAST({name} AS {POST_PROCESSING.types[sql_type]})" if not sql_type.is_text else f"CAST({name} AS VARCHAR)"


def to_text(name: str, sql_type: SqlType) -> str:
    """A value as the text from which it is read again; one that has no place in its type is told here, not there."""
    return f"CAST(CAST({name} AS {POST_PROCESSING.types[sql_type]}) AS VARCHAR)"


# Values and limits


def in_layers(table: str, columns: Mapping[str, str]) -> str:
    """A table with further columns, each of a SELECT above those that it names.

    DuckDB lets a column name another one of the same SELECT, but writes it out at each such place: of what is computed
    in ten steps, the text would grow as a power of ten.
    """
    depths: dict[str, int] = {}
    for name, text in columns.items():
        depths[name] = max((depths[word] + 1 for word in re.findall(r"\w+", text) if word in depths), default=0)
    for depth in sorted(set(depths.values())):
        layer = ", ".join(f"{text} AS {name}" for name, text in columns.items() if depths[name] == depth)
        table = f"(SELECT *, {layer} FROM {table})"
    return table


def _computed(output: _Computed, prefix: str, widths: Sequence[float] | None, keys: int) -> Statistic:
    if isinstance(output, SpreadOutput):
        return statistic(output, prefix, widths)
    return debiased(output, prefix, widths, keys)


def _formula(output: Output, sql_type: SqlType, widths: Sequence[float] | None) -> str:
    """An aggregate's value, of the released cells."""
    if isinstance(output, CountOutput | PlaceOutput):
        return f"p{output.cell}"
    if isinstance(output, TruthOutput):
        return _truth(output, widths)
    if isinstance(output, RanksOutput):
        return _in_order(output, sql_type.element or SqlType.DOUBLE)
    if isinstance(output, _Computed):
        raise TypeError("it is written with its columns")
    if isinstance(output, SumOutput | RankOutput):
        places = decimal_places(output.step)
        if sql_type is SqlType.NUMERIC and places is not None:
            unit = f"{float(output.step):.{places}f}" if places else str(int(output.step))
            return f"CAST(p{output.cell} AS DECIMAL(20, 0)) * CAST({unit} AS DECIMAL({len(unit)}, {places}))"
        if sql_type.is_integer:
            return f"CAST(p{output.cell} AS {POST_PROCESSING.types[sql_type]})"
        return _times(f"p{output.cell}", output.step)
    grid = output.grid
    mean = f"({grid.centre} + p{output.sum_cell} / CAST(greatest(p{output.count_cell}, 1) AS DOUBLE))"
    inside = f"greatest(least({mean}, {grid.upper}), {grid.lower})"
    return _times(inside, grid.step)


def _truth(output: TruthOutput, widths: Sequence[float] | None) -> str:
    """True or false where more units say so than noise alone makes of none."""
    if widths is None:
        raise UnsupportedQuery(
            "BOOL_AND and BOOL_OR of protected rows stand in the result, not inside a query over protected rows",
            hint="Compare a count: (SELECT COUNT(*) FROM … WHERE NOT …) < 10",
        )
    cells = ((output.cell, output.decided), (output.other_cell, not output.decided))
    told = " ".join(f"WHEN p{cell} > {int(widths[cell])} THEN {value}" for cell, value in cells)
    return f"CASE {told} END"


def _in_order(output: RanksOutput, element: SqlType) -> str:
    """The values that were chosen, sorted, for a greater fraction has no lesser value: that brings none further off."""
    chosen = (_formula(RankOutput(cell, output.step), element, None) for cell in output.cells)
    each = dict(zip(output.places, chosen, strict=True))
    values = ", ".join(each[place] for place in sorted(each))
    places = ", ".join(str(place + 1) for place in output.places)
    return POST_PROCESSING.array(f"list_select(list_sort([{values}]), [{places}])")


def _times(text: str, step: Fraction) -> str:
    """Grid units as a double: multiplied and divided by whole numbers, so that 15368027 tenths print as 1536802.7."""
    multiplied = f"CAST({text} AS DOUBLE)" if step.numerator == 1 else f"CAST({text} AS DOUBLE) * {step.numerator}"
    return multiplied if step.denominator == 1 else f"{multiplied} / CAST({step.denominator} AS DOUBLE)"


def _limits(output: Output, widths: Sequence[float] | None) -> tuple[str, str]:
    """The limits of a 95 % interval, of the noise's law and of the released cells."""
    if widths is None or isinstance(output, TruthOutput | RankOutput | RanksOutput | PlaceOutput | _Computed):
        return "CAST(NULL AS DOUBLE)", "CAST(NULL AS DOUBLE)"
    if isinstance(output, MeanOutput):
        return _limits_of_mean(output, widths[output.sum_cell], widths[output.count_cell])
    step = output.step if isinstance(output, SumOutput) else Fraction(1)
    value, margin = _times(f"p{output.cell}", step), f"CAST('{widths[output.cell] * float(step)!r}' AS DOUBLE)"
    return f"{value} - {margin}", f"{value} + {margin}"


def _limits_of_mean(output: MeanOutput, of_sum: float, of_count: float) -> tuple[str, str]:
    """Fieller's; where the count may be nothing but noise, every mean of the grid is left."""
    grid = output.grid
    total, count = f"CAST(p{output.sum_cell} AS DOUBLE)", f"CAST(p{output.count_cell} AS DOUBLE)"
    means = fieller(total, count, repr(of_sum**2), of_count)

    def limit(mean: str, end: int) -> str:
        inside = f"greatest(least({grid.centre} + {mean}, {grid.upper}), {grid.lower})"
        return _times(f"CASE WHEN {count} > {of_count!r} THEN {inside} ELSE {end} END", grid.step)

    return limit(means[0], grid.lower), limit(means[1], grid.upper)


def _error(output: _Numeric, noises: Sequence[Noise], index: int) -> ColumnError:
    if isinstance(output, RanksOutput):
        errors = [_error(RankOutput(cell, output.step), noises, index) for cell in output.cells]
        return max(errors, key=lambda error: error.ranks or 0)
    depends = isinstance(output, MeanOutput | _Computed)
    cell, step = _first_cell(output)
    noise, scale = noises[cell], float(step)
    sensitivity = noise.sensitivity
    if isinstance(noise, RankChoice):
        return _rank_error(output, noise, index)
    if isinstance(noise, Picking):
        return _pick_error(output, noise, scale, index)
    return ColumnError(
        "laplace" if isinstance(noise, DiscreteLaplace) else "gaussian",
        None if depends else noise.stderr * scale,
        None if depends else noise.half_width() * scale,
        sensitivity.l0,
        sensitivity.linf * scale,
        sensitivity.l1 * scale,
        float(sensitivity.l2_squared) ** 0.5 * scale,
        index,
        output,
    )


def _rank_error(output: _Numeric, choice: RankChoice, index: int) -> ColumnError:
    """The error of a value that was chosen, in ranks."""
    sensitivity, weight = choice.sensitivity, choice.rank.total
    return ColumnError(
        "exponential",
        None,
        None,
        sensitivity.l0,
        sensitivity.linf / weight,
        sensitivity.l1 / weight,
        float(sensitivity.l2_squared) ** 0.5 / weight,
        index,
        output,
        choice.inset + choice.reach,
    )


def _pick_error(output: _Numeric, picking: Picking, step: float, index: int) -> ColumnError:
    """The error of keys that were picked: by what distance of counts or sums they are told apart."""
    sensitivity = picking.sensitivity
    return ColumnError(
        picking.event.mechanism.value,
        None,
        None,
        sensitivity.l0,
        sensitivity.linf * step,
        sensitivity.l1 * step,
        float(sensitivity.l2_squared) ** 0.5 * step,
        index,
        output,
        apart=picking.apart * step,
    )


def _half_width(noise: Noise) -> float:
    """Half the width of a 95 % interval of the noise; a choice has none."""
    return noise.half_width() if not isinstance(noise, RankChoice | Picking) else 0.0


def _first_cell(output: _Numeric) -> tuple[int, Fraction]:
    """The cell whose noise matters most, and what a step of it is worth."""
    if isinstance(output, SpreadOutput):
        moments = (output.xy, output.yy, output.xx)
        return next((each.cell, each.grid.step) for each in moments if each is not None)
    if isinstance(output, MeanOutput):
        return output.sum_cell, output.grid.step
    if isinstance(output, RanksOutput):
        raise TypeError("an array has several cells")
    return output.cell, output.step if isinstance(output, SumOutput | RankOutput | PlaceOutput) else Fraction(1)
