"""released: what the cells of a release are worth: SQL of values and margins, and the error of each aggregate.

Rule: everything here is made of the noise's law and of released cells, so it tells nothing more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpsql.compiler.ir import Field, Release
from dpsql.compiler.parts import CountOutput, MeanOutput, Output, SumOutput, decimal_places, output_type
from dpsql.compiler.pricing import Noise
from dpsql.compiler.render import DUCKDB_TYPES, Leaf, canonical
from dpsql.compiler.schema import EngineColumn
from dpsql.privacy.mechanisms import DiscreteLaplace
from dpsql.sqltypes import SqlType

_TEXT = EngineColumn("VARCHAR", SqlType.TEXT, not_null=False)


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

    def at(self, table: str, noises: Sequence[Noise] | None, written: Release) -> Leaf:
        """The leaf over a table of cells.

        Args:
            table: Its name.
            noises: The noise of each cell; without it there are no margins.
            written: The release as the query writes it: its fields are the leaf's, and its keys order the rows.
        """
        aggregate = self.release.aggregate
        columns = {field: from_text(f"k{i}", field.type) for i, field in enumerate(aggregate.key_fields)}
        calls = zip(aggregate.aggregate_fields, aggregate.aggregates, self.outputs, strict=True)
        columns |= {field: _formula(output, output_type(call, output)) for field, call, output in calls}
        margins = ("CAST(NULL AS DOUBLE)" if noises is None else _margin(o, noises) for o in self.outputs)
        columns |= dict(zip(self.release.margins, margins, strict=True))
        keys = written.aggregate.key_fields
        order = ", ".join(f"{columns[field]} NULLS LAST" for field in keys)
        is_ordered = not self.private_keys and keys == aggregate.key_fields
        source = table if is_ordered else f"(SELECT * FROM {table} ORDER BY {order})"
        return Leaf(source, tuple(columns[field] for field in written.fields))

    def errors(self, noises: Sequence[Noise], index: int) -> dict[Field, ColumnError]:
        """The error of each aggregate; `index` is the release's among those of its query."""
        pairs = zip(self.release.aggregate.aggregate_fields, self.outputs, strict=True)
        return {field: _error(output, noises, index) for field, output in pairs}


def text_leaf(fields: Iterable[Field], table: str) -> Leaf:
    """A table of texts v0, v1 … in the engine of post-processing."""
    return Leaf(table, tuple(from_text(f"v{i}", field.type) for i, field in enumerate(fields)))


def input_leaf(fields: Iterable[Field], table: str) -> Leaf:
    """A table of texts v0, v1 … in the engine that holds the data: total for every text, as any table is."""
    return Leaf(table, tuple(canonical(f"v{i}", _TEXT, field.type) for i, field in enumerate(fields)))


def from_text(name: str, sql_type: SqlType) -> str:
    """A value that travelled as text; numerics keep the digits they came with as far as a decimal can."""
    return f"CAST({name} AS {DUCKDB_TYPES[sql_type]})" if not sql_type.is_text else f"CAST({name} AS VARCHAR)"


def to_text(name: str, sql_type: SqlType) -> str:
    """A value as the text from which it is read again; one that has no place in its type is told here, not there."""
    return f"CAST(CAST({name} AS {DUCKDB_TYPES[sql_type]}) AS VARCHAR)"


# Values and margins


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


def _margin(output: Output, noises: Sequence[Noise]) -> str:
    """Half the width of a 95 % interval, of the noise's law and, for a mean, of the released cells."""
    if not isinstance(output, MeanOutput):
        step = output.step if isinstance(output, SumOutput) else Fraction(1)
        return f"CAST('{noises[output.cell].half_width() * float(step)!r}' AS DOUBLE)"
    of_sum, of_count = (noises[cell].half_width() for cell in (output.sum_cell, output.count_cell))
    count = f"CAST(greatest(p{output.count_cell}, 1) AS DOUBLE)"
    spread = f"sqrt(pow({of_sum!r}, 2) + pow({of_count!r} * p{output.sum_cell} / {count}, 2)) / {count}"
    return _times(f"least({spread}, {output.grid.upper - output.grid.lower})", output.grid.step)


def _error(output: Output, noises: Sequence[Noise], index: int) -> ColumnError:
    is_mean = isinstance(output, MeanOutput)
    noise = noises[output.sum_cell if isinstance(output, MeanOutput) else output.cell]
    step = Fraction(1)
    if isinstance(output, SumOutput):
        step = output.step
    if isinstance(output, MeanOutput):
        step = output.grid.step
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
