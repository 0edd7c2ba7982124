"""quantile: MIN, MAX, MEDIAN, PERCENTILE_CONT and PERCENTILE_DISC: grid values that are chosen by their rank."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import ClassVar

from sqlglot import exp

from dpsql.compiler.aggregates.base import (
    AggregateFunction,
    ColumnError,
    Drawn,
    Estimate,
    Formula,
    PlainCall,
    Primitives,
    argument_of,
    in_steps,
)
from dpsql.compiler.aggregates.total import decimal_or_double
from dpsql.compiler.dialects import POST_PROCESSING
from dpsql.compiler.expressions.arrays import array_items
from dpsql.compiler.ir.functions import PERCENTILES
from dpsql.compiler.ir.nodes import AggregateCall, Cast, Expr, Grid, Literal, Protected
from dpsql.compiler.ir.primitives import Primitive, PrimitiveKind
from dpsql.compiler.scope.lowering import Lowering, placeholder
from dpsql.compiler.values.grids import decimal_places, grid_of
from dpsql.errors import InvalidParameter, UndefinedFunction, UnsupportedQuery
from dpsql.privacy.exponential_mechanism import CellMechanism, Rank, RankChoice
from dpsql.sqltypes import SqlType

_FRACTION_DIGITS = 6
_MAX_FRACTIONS = 32
_WITHIN_GROUP: dict[type[exp.Expr], str] = {
    exp.PercentileCont: "percentile_cont",
    exp.PercentileDisc: "percentile_disc",
}
_EXTREMES = {"min": Rank.least(), "max": Rank.greatest()}


class _Chosen(Estimate):
    """A value that is selected by rank."""

    kind: ClassVar[str] = "chosen"

    def explained(self, error: ColumnError) -> str:
        """Return the error in ranks."""
        return f"± {error.ranks} ranks at 95 %, exponential mechanism, {error.norms}"


@dataclass(frozen=True)
class QuantileEstimate(_Chosen):
    """A grid value that was chosen by its rank, times the step; NULL where none was chosen."""

    cell: int
    grid: Grid

    @property
    def cells(self) -> tuple[int, ...]:
        """The chosen grid value."""
        return (self.cell,)

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The value; an interval would cost further releases."""
        value = in_steps(f"p{self.cell}", self.grid.step, decimal_places(self.grid.step), sql_type)
        return Formula(f"CASE WHEN {_is_value(self.cell, self.grid)} THEN {value} END")

    def released_type(self, call: AggregateCall) -> SqlType:
        """Double precision where no number of digits is enough for the step."""
        return decimal_or_double(call.type, self.grid.step)

    def error(self, noises: Sequence[CellMechanism], release: int) -> ColumnError:
        """The error in ranks."""
        return _rank_error(noises[self.cell], release, self)


@dataclass(frozen=True)
class QuantilesEstimate(_Chosen):
    """An array of grid values that were chosen by their ranks, in order, times the step; NULL where one was not.

    Attributes:
        chosen: The cells.
        places: Which of the values in ascending order each one is; equal ranks are one cell.
        grid: What the values are chosen from.
    """

    chosen: tuple[int, ...]
    places: tuple[int, ...]
    grid: Grid

    @property
    def cells(self) -> tuple[int, ...]:
        """The chosen grid values."""
        return self.chosen

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The values, sorted, for a greater fraction has no lesser value: that brings none further off."""
        element, step = sql_type.element or SqlType.DOUBLE, self.grid.step
        chosen = (in_steps(f"p{cell}", step, decimal_places(step), element) for cell in self.chosen)
        each = dict(zip(self.places, chosen, strict=True))
        values = ", ".join(each[place] for place in sorted(each))
        places = ", ".join(str(place + 1) for place in self.places)
        array = POST_PROCESSING.array(f"list_select(list_sort([{values}]), [{places}])")
        known = " AND ".join(_is_value(cell, self.grid) for cell in dict.fromkeys(self.chosen))
        return Formula(f"CASE WHEN {known} THEN {array} END")

    def error(self, noises: Sequence[CellMechanism], release: int) -> ColumnError:
        """The error in ranks of the value that is least exact."""
        errors = [_rank_error(noises[cell], release, self) for cell in self.chosen]
        return max(errors, key=lambda error: error.ranks or 0)


def _is_value(cell: int, grid: Grid) -> str:
    """SQL for whether a value was selected: the number that means "no value" is above the grid."""
    return f"p{cell} <= {grid.upper}"


def _rank_error(choice: CellMechanism, release: int, estimate: Estimate) -> ColumnError:
    if not isinstance(choice, RankChoice):
        raise TypeError("a quantile is chosen by its rank")
    sensitivity, weight = choice.sensitivity, choice.rank.total
    return ColumnError(
        "exponential",
        None,
        None,
        sensitivity.l0,
        sensitivity.linf / weight,
        sensitivity.l1 / weight,
        float(sensitivity.l2_squared) ** 0.5 / weight,
        release,
        estimate,
        choice.inset + choice.reach,
    )


def _quantile(call: AggregateCall, primitives: Primitives) -> Estimate:
    grid = grid_of(call, primitives.protected.relation, primitives.cap)
    primitive = Primitive(PrimitiveKind.RANK, argument_of(call), call.filter, primitives.cap, grid)
    cells = tuple(primitives.cell(replace(primitive, rank=rank)) for rank in _ranks_of(call))
    if not call.type.is_array:
        return QuantileEstimate(cells[0], grid)
    ascending = sorted(set(call.fractions))
    return QuantilesEstimate(cells, tuple(ascending.index(each) for each in call.fractions), grid)


def _ranks_of(call: AggregateCall) -> tuple[Rank, ...]:
    """The ranks of the values that an aggregate is."""
    if call.function in PERCENTILES:
        return tuple(Rank.quantile(Fraction(each)) for each in call.fractions)
    return (_EXTREMES[call.function],)


def _median(lowering: Lowering, node: exp.Median, condition: Expr | None) -> AggregateCall:
    lowering.only(node, "this")
    return _percentile(lowering, node, ("percentile_cont", (Decimal("0.5"),)), node.this, condition)


def _within_group(lowering: Lowering, node: exp.WithinGroup, condition: Expr | None) -> AggregateCall:
    """PERCENTILE_CONT and PERCENTILE_DISC of a constant fraction or an array of them."""
    function, terms = node.this, node.expression.expressions
    name = _WITHIN_GROUP[type(function)]
    lowering.only(function, "this")
    if len(terms) != 1 or function.this is None:
        raise UnsupportedQuery(
            f"{name.upper()} takes one fraction and one ORDER BY expression", position=lowering.at(node)
        )
    lowering.only(terms[0], "this", "desc", "nulls_first")
    items = _items(lowering, function.this)
    written = [function.this] if items is None else items
    given = [lowering.coercion.to(lowering.lower(each), SqlType.DOUBLE, lowering.at(function)) for each in written]
    fractions = tuple(_fraction(lowering, name, each, node) for each in given)
    if terms[0].args.get("desc"):
        fractions = tuple(1 - each for each in fractions)
    if items is None:
        return _percentile(lowering, node, (name, fractions), terms[0].this, condition)
    if not 1 <= len(fractions) <= _MAX_FRACTIONS:
        raise InvalidParameter(
            f"the array of {name.upper()} must have 1 to {_MAX_FRACTIONS} fractions",
            hint="Give the fractions as an array of constants.",
            position=lowering.at(node),
        )
    call = _percentile(lowering, node, (name, fractions), terms[0].this, condition)
    if not call.argument or not call.argument.type.is_number:
        raise UnsupportedQuery(
            f"{name.upper()} of an array of fractions needs numbers",
            hint="Use one call for each fraction.",
            position=lowering.at(node),
        )
    return replace(call, type=call.type.array)


def _items(lowering: Lowering, node: exp.Expr) -> list[exp.Expr] | None:
    """Return the fractions of an array (ARRAY[…], a cast to an array, or an array parameter); None for one fraction."""
    is_cast = isinstance(node, exp.Cast) and isinstance(node.to, exp.DataType) and node.to.this == exp.DType.ARRAY
    index = placeholder(node)
    is_placeholder = index is not None and lowering.parameters.is_array(index)
    return array_items(lowering, node) if isinstance(node, exp.Array) or is_cast or is_placeholder else None


def _fraction(lowering: Lowering, name: str, given: Expr, node: exp.Expr) -> Decimal:
    """Return a constant between 0 and 1; an unknown parameter counts as 0.5 until it is bound."""
    given = given.argument if isinstance(given, Cast) else given
    if isinstance(given, Literal) and given.parameter is not None and given.value is None:
        return Decimal("0.5")
    if (
        not isinstance(given, Literal)
        or isinstance(given.value, bool)
        or not isinstance(given.value, int | float | Decimal)
    ):
        raise UnsupportedQuery(f"the fraction of {name.upper()} must be a constant", position=lowering.at(node))
    fraction = Decimal(str(given.value))
    if not 0 <= fraction <= 1:
        raise InvalidParameter(f"percentile value {fraction:g} is not between 0 and 1", position=lowering.at(node))
    if fraction != round(fraction, _FRACTION_DIGITS):
        raise InvalidParameter(
            f"the fraction of {name.upper()} may have at most {_FRACTION_DIGITS} digits", position=lowering.at(node)
        )
    return fraction


def _percentile(
    lowering: Lowering,
    node: exp.Expr,
    what: tuple[str, tuple[Decimal, ...]],
    written: exp.Expr,
    condition: Expr | None,
) -> AggregateCall:
    name, fractions = what
    argument = lowering.value(written)
    lowering.need_comparable(argument.type, node)
    if name == "percentile_cont" and not argument.type.is_number:
        raise UndefinedFunction(
            f"function {name}(double precision, {argument.type.value}) does not exist",
            hint="PERCENTILE_CONT needs numbers. MODE() is supported for text.",
            position=lowering.at(node),
        )
    sql_type = SqlType.DOUBLE if name == "percentile_cont" else argument.type
    return AggregateCall(name, argument, False, condition, sql_type, fractions=fractions)


class _ExtremeCall(PlainCall):
    """A call of MIN or MAX, of what has an order."""

    def __call__(self, lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
        """The call that a node writes."""
        call = super().__call__(lowering, node, condition)
        lowering.need_comparable(call.type, node)
        return call


def _type_of_extreme(argument: SqlType) -> SqlType:
    return SqlType.TEXT if argument is SqlType.VARCHAR else argument


def _check(call: AggregateCall, status: Protected, position: int | None) -> None:
    """Numbers, dates and timestamps have a rank among the values that there may be."""
    kind = argument_of(call).type
    if not (kind.is_number or kind.is_moment):
        raise UnsupportedQuery(
            f"{call.function.upper()} of protected rows needs numbers, dates or timestamps, not {kind.value}",
            hint="Group by the text and count, or aggregate a number such as LENGTH of it.",
            position=position,
        )


_RANKED = partial(AggregateFunction, build=_quantile, check=_check, has_interval=False, is_ranked=True)
FUNCTIONS = (
    *(
        _RANKED(name, _ExtremeCall(name, _type_of_extreme), (node,), in_windows=True, of_one_unit=True)
        for name, node in (("min", exp.Min), ("max", exp.Max))
    ),
    _RANKED("median", _median, (exp.Median,)),
    *(_RANKED(name, _within_group, within_group=(node,)) for node, name in _WITHIN_GROUP.items()),
)
