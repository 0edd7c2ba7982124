"""release_leaf: a release in post-processing SQL, and the aggregates that a column passes on unchanged.

Rule: a column whose value may come from elsewhere has no origin, and no error is given for it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.compiler.aggregates.base import ColumnError, Drawn, Estimate
from dpsql.compiler.aggregates.top_k import PickEstimate
from dpsql.compiler.dialects import POST_PROCESSING
from dpsql.compiler.dialects.dialect import Dialect
from dpsql.compiler.dialects.render import CopiedText, Leaf
from dpsql.compiler.ir.nodes import (
    AggregateCall,
    Call,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Project,
    Relation,
    Release,
    Scalar,
    SetOperation,
    Sort,
)
from dpsql.compiler.ir.schema import EngineColumn, InputTable
from dpsql.privacy.exponential_mechanism import CellMechanism
from dpsql.sqltypes import SqlType

_TEXT = EngineColumn("VARCHAR", SqlType.TEXT, not_null=False)


@dataclass(frozen=True)
class ReleasedLeaf:
    """A release as post-processing reads it, from a table of its cells.

    Attributes:
        release: The release, in its canonical form.
        estimates: Its aggregates.
        private_keys: True where its rows come in no order that SQL gives them.
        selects_groups: True where rows are missing if too few units are in them; without keys there is a row of NULLs.
    """

    release: Release
    estimates: tuple[Estimate, ...]
    private_keys: bool
    selects_groups: bool = False

    @property
    def lists_all(self) -> bool:
        """True where all public groups have a row, also those without a unit."""
        return bool(self.release.aggregate.keys) and self.release.picks is None and not self.selects_groups

    @property
    def may_be_hidden(self) -> bool:
        """True where its one row may be missing."""
        return not self.release.aggregate.keys and self.selects_groups

    def at(self, table: str, drawn: Drawn | None, written: Release) -> Leaf:
        """The leaf over a table of cells.

        Args:
            table: Its name.
            drawn: What was drawn for its cells; without it there are no limits.
            written: The release as the query writes it: its fields are the leaf's, and its keys order the rows.
        """
        aggregate = self.release.aggregate
        columns = {field: _key(i, field.type) for i, field in enumerate(aggregate.key_fields)}
        first: dict[str, str] = {}
        if self.may_be_hidden:
            table = f"(SELECT * FROM (SELECT 1 AS one) LEFT JOIN {table} ON TRUE)"
        places = enumerate(zip(aggregate.aggregate_fields, self.release.limits, strict=True))
        for (place, (value, limits)), call, estimate in zip(places, aggregate.aggregates, self.estimates, strict=True):
            formula = estimate.formula(estimate.released_type(call), f"s{place}_", drawn, len(aggregate.keys))
            first |= formula.columns
            made = [self._if_shown(text) for text in (formula.value, *formula.limits)]
            columns |= zip((value, *limits), made, strict=True)
        keys = written.aggregate.key_fields
        order = ", ".join(f"{columns[field]} NULLS LAST" for field in keys)
        is_ordered = not self.private_keys and keys == aggregate.key_fields
        behind = "" if is_ordered else f" ORDER BY {order}"
        source = in_layers(table, first)
        return Leaf(
            f"(SELECT * FROM {source}{behind})" if behind else source, tuple(columns[field] for field in written.fields)
        )

    def _if_shown(self, text: str) -> str:
        """A value, or NULL where the release's one row is not shown: some functions pass over NULLs."""
        return f"CASE WHEN p0 IS NOT NULL THEN {text} END" if self.may_be_hidden else text

    def errors(self, noises: Sequence[CellMechanism], index: int) -> dict[Field, ColumnError]:
        """The error of each aggregate that is a number, and of the keys that were picked by one.

        Args:
            noises: The noise of each cell.
            index: The release's place among those of its query.
        """
        picked = next((each for each in self.estimates if isinstance(each, PickEstimate)), None)
        if picked is not None:
            return dict.fromkeys(self.release.picked_fields, picked.error(noises, index))
        pairs = zip(self.release.aggregate.aggregate_fields, self.estimates, strict=True)
        errors = ((field, estimate.error(noises, index)) for field, estimate in pairs)
        return {field: error for field, error in errors if error is not None}


def text_leaf(fields: Iterable[Field], table: str) -> Leaf:
    """A table of texts v0, v1 … in the engine of post-processing."""
    return Leaf(table, tuple(from_text(f"v{i}", field.type) for i, field in enumerate(fields)))


def input_leaf(fields: Iterable[Field], dialect: Dialect, table: InputTable) -> Leaf:
    """A table of texts v0, v1 … in the engine that holds the data: total for every text, as any table is."""
    return Leaf(table, tuple(dialect.canonical(f"v{i}", _TEXT, field.type) for i, field in enumerate(fields)))


def from_text(name: str, sql_type: SqlType) -> str:
    """A value that travelled as text; a numeric that no decimal holds is NULL."""
    cast = "TRY_CAST" if sql_type is SqlType.NUMERIC else "CAST"
    return f"{cast}({name} AS {'VARCHAR' if sql_type.is_text else POST_PROCESSING.types[sql_type]})"


def _key(place: int, sql_type: SqlType) -> str:
    """A key of a release; one of a type whose texts Python reads as the engine does may be copied."""
    text = from_text(f"k{place}", sql_type)
    is_read_alike = sql_type.is_text or sql_type.is_integer or sql_type is SqlType.BOOLEAN
    return CopiedText.of_key(text, place) if is_read_alike else text


def to_text(name: str, sql_type: SqlType) -> str:
    """A value as text from which it can be read; the first cast fails here if the type cannot hold the value."""
    return f"CAST(CAST({name} AS {POST_PROCESSING.types[sql_type]}) AS VARCHAR)"


def in_layers(table: str, columns: Mapping[str, str]) -> str:
    """Return a table with further columns, each in a SELECT above the columns that it uses.

    In DuckDB, a column may use another one of the same SELECT, but its expression is copied to each use: the text would
    grow exponentially with the number of steps.
    """
    depths: dict[str, int] = {}
    for name, text in columns.items():
        depths[name] = max((depths[word] + 1 for word in re.findall(r"\w+", text) if word in depths), default=0)
    for depth in sorted(set(depths.values())):
        layer = ", ".join(f"{text} AS {name}" for name, text in columns.items() if depths[name] == depth)
        table = f"(SELECT *, {layer} FROM {table})"
    return table


@dataclass(frozen=True)
class AggregateOrigin:
    """A field of a release that is one of its aggregates, or a key that it picks."""

    release: Release
    field: Field

    @property
    def call(self) -> AggregateCall:
        """The aggregate."""
        return self.release.aggregate.aggregates[self._place]

    @property
    def limits(self) -> tuple[Field, Field]:
        """The release's fields with the limits of its 95 % interval."""
        return self.release.limits[self._place]

    @property
    def _place(self) -> int:
        fields = self.release.aggregate.aggregate_fields
        return fields.index(self.field) if self.field in fields else 0  # keys are picked by the only one


def origins(relation: Relation, field: Field) -> tuple[AggregateOrigin, ...]:
    """Return the origins of a relation's field: one, one for each arm of a union, or none."""
    match relation:
        case Release():
            told = (*relation.aggregate.aggregate_fields, *relation.picked_fields)
            return (AggregateOrigin(relation, field),) if field in told else ()
        case Project():
            return _written(relation, relation.expressions[relation.fields.index(field)])
        case Filter() | Sort() | Distinct():
            return origins(relation.input, field)
        case Join():
            return origins(relation.left if field in relation.left.fields else relation.right, field)
        case SetOperation(kind="union"):
            place = relation.fields.index(field)
            left, right = (origins(arm, arm.fields[place]) for arm in (relation.left, relation.right))
            return left + right if left and right else ()
        case _:
            return ()


def _written(relation: Project, expression: Expr) -> tuple[AggregateOrigin, ...]:
    if isinstance(expression, Scalar):
        return origins(expression.relation, expression.relation.fields[0])
    if (
        isinstance(expression, Call)
        and expression.function == "date_add"
        and isinstance(expression.arguments[0], Literal)
    ):
        expression = expression.arguments[1]  # days since a constant day
    # A field of the row outside a subquery is not one of the input's.
    if isinstance(expression, Column) and expression.field in relation.input.fields:
        return origins(relation.input, expression.field)
    return ()
